"""The training loop: steps, validation, checkpoints and log, until done or told to stop."""

import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cwdfm.train.optimise import learning_rate
from cwdfm.train.run import Run


class Diverged(RuntimeError):
    """The loss is no longer a number, or has exploded."""


def fit(run: Run, *, report: bool = True) -> None:
    """Train to the recipe's last step, from wherever the run stands.

    SIGTERM and SIGINT finish the step, save and return. A loss that is no number, or ten times its
    start, stops the run with the last good checkpoint kept.
    """
    recipe = run.recipe
    if run.resume() and report and run.rank == 0:
        print(f"going on from step {run.step}")
    log = Log(run.out / "metrics.jsonl", run.step) if run.rank == 0 else None
    ceiling = 10 * math.log(run.task.source.num_tokens) + 10
    start, first = time.perf_counter(), run.step
    losses: list[Tensor] = []
    with interruptible() as stop:
        while run.step < recipe.steps and not stop:
            losses.append(run.train_step())
            last = run.step == recipe.steps
            record: dict[str, Any] = {"step": run.step}
            if run.step % recipe.log_every == 0 or last or stop:
                loss = float(torch.stack(losses).mean())
                losses.clear()
                if not loss < ceiling:
                    raise Diverged(diagnosis(run, loss))
                rate = (run.step - first) / (time.perf_counter() - start)
                record |= {"loss": loss, "learning_rate": learning_rate(recipe, run.step - 1)}
                record |= {"tokens_per_second": rate * recipe.batch_size * recipe.length}
            if run.step % recipe.validate_every == 0 or last:
                record["validation_loss"] = run.validation_loss()
                run.best = min(run.best, record["validation_loss"])
            if run.step % recipe.checkpoint_every == 0 or last or stop:
                run.save()
            if log is not None and len(record) > 1:
                log.write(record, show=report)


def diagnosis(run: Run, loss: float) -> str:
    """What to say when a run diverged."""
    kind = "is no longer a number" if math.isnan(loss) else f"has exploded to {loss:.3g}"
    return (
        f"the loss {kind} by step {run.step} (learning rate "
        f"{learning_rate(run.recipe, run.step - 1):.2g}); the last checkpoint before it is kept. "
        f"Try a smaller --learning-rate, a longer --warmup, or --precision float32"
    )


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """A list that becomes non-empty, hence true, once SIGTERM or SIGINT has arrived."""
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: caught.append(n))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Log:
    """Metrics, a JSON object a line; on resuming, lines beyond the checkpoint are taken back."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        part = path.with_suffix(".part")
        part.write_text("".join(line + "\n" for line in kept))
        part.replace(path)

    def write(self, record: dict[str, Any], *, show: bool) -> None:
        """Append a record, and print it."""
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if show:
            print("  ".join(f"{key} {value:.6g}" for key, value in record.items()), flush=True)
