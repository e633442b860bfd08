"""The training loop: steps, validation, checkpoints and records, until done or told to stop."""

import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from cwdfm.distributed import broadcast, rank, world_size
from cwdfm.errors import NotFinite, RunError
from cwdfm.train.checkpoint import checkpoints
from cwdfm.train.loggers import JsonLines, Listener
from cwdfm.train.optimizer import learning_rate
from cwdfm.train.run import Run
from cwdfm.train.speed import peak_flops, training_flops
from cwdfm.train.validation import validate

AGREE_EVERY = 10  # steps between questions whether all processes shall stop


class Diverged(RunError):
    """The loss is no longer a number, or has exploded."""


class Clock:
    """Training speed since the last reading, validation and saving not counted."""

    def __init__(self, run: Run) -> None:
        self.run, self.first, self.start = run, run.step, time.perf_counter()
        parameters = sum(p.numel() for p in run.model.parameters())
        self.flops = training_flops(run.task.model, run.recipe.length, parameters)
        self.peak = peak_flops(run.device)

    def read(self) -> dict[str, float]:
        """Tokens a second, and the share of the device's peak where that is known."""
        now = time.perf_counter()
        done = (self.run.step - self.first) * self.run.recipe.batch_size * self.run.recipe.length
        speed = done / (now - self.start)
        self.first, self.start = self.run.step, now
        record = {"tokens_per_second": speed}
        if self.peak is not None:
            record["flop_utilisation"] = speed * self.flops / (self.peak * world_size())
        return record

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Leave out the time of what happens meanwhile."""
        before = time.perf_counter()
        yield
        self.start += time.perf_counter() - before


def fit(run: Run, listeners: Sequence[Listener] = ()) -> int:
    """Train to the recipe's last step, from wherever the run stands (see `Run.resume`).

    SIGTERM and SIGINT finish the step, save and return their number, on all processes; the run is
    at its end then only if they came with the last step. Without them, 0. A loss that is no number,
    or ten times what knowing nothing costs, or weights that are no numbers, stop the run before
    they are saved.
    """
    recipe = run.recipe
    hear: list[Listener] = list(listeners) if rank() == 0 else []
    if rank() == 0:
        hear.append(JsonLines(run.out / "metrics.jsonl", run.step))
    clock = Clock(run)
    with interruptible() as caught:
        with ExitStack() as leaving:
            for listener in hear:
                leaving.callback(listener.close)
            while run.step < recipe.steps:
                run.losses.append(run.train_step())
                stop = agreed(run.step, caught)
                keep_account(run, clock, hear, stopping=stop > 0)
                if stop:
                    return stop
        return agreed(0, caught)  # what came while the last step was saved


def keep_account(run: Run, clock: Clock, hear: Sequence[Listener], *, stopping: bool) -> None:
    """After a step: record, validate and save what is due, all of it at the end of the run."""
    recipe, last = run.recipe, run.step == run.recipe.steps
    for listener in hear:
        listener.step(run.step)
    record: dict[str, Any] = {"step": run.step}
    if run.step % recipe.log_every == 0 or last or stopping:
        loss = float(torch.stack(run.losses).mean())
        run.losses.clear()
        check_loss(run, loss)
        rate = learning_rate(recipe, run.step - 1)
        record |= {"loss": loss, "learning_rate": rate} | clock.read()
    better = False
    if run.step % recipe.validate_every == 0 or last:
        with clock.stopped(), predicting(run):
            record |= validate(run)
        better = note_best(run, record["validation_loss"])
    # Before the checkpoint: lines beyond it are taken back when the run goes on from an older one,
    # while a line that was never written would be missing for good.
    if len(record) > 1:
        for listener in hear:
            listener.record(record)
    if run.step % recipe.checkpoint_every == 0 or last or stopping or better:
        with clock.stopped():
            check_weights(run)
            run.save()


def note_best(run: Run, loss: float) -> bool:
    """Keep account of the lowest validation loss; whether this is it."""
    if not loss < run.best:
        return False
    run.best, run.best_step = loss, run.step
    return True


def check_loss(run: Run, loss: float) -> None:
    """Stop a run whose loss is no number, or ten times what knowing nothing costs."""
    ceiling = (10 * math.log(run.task.method.num_tokens) + 10) * run.objective.worst_weight
    if not loss < ceiling:
        kind = f"has exploded to {loss:.3g}" if loss > 0 else "is no longer a number"
        raise Diverged(diagnosis(run, f"the loss {kind}"))


def check_weights(run: Run) -> None:
    """Stop a run before weights that are no numbers take a good checkpoint's place."""
    if not run.finite():
        raise Diverged(diagnosis(run, "weights are no longer numbers"))


@contextmanager
def predicting(run: Run) -> Iterator[None]:
    """Stop a run whose bound or samples find predictions that are no numbers, before its loss."""
    try:
        yield
    except NotFinite as error:
        raise Diverged(diagnosis(run, "predictions are no longer numbers")) from error


def diagnosis(run: Run, what: str) -> str:
    """What to say when a run diverged."""
    kept = checkpoints(run.out / "checkpoints")
    last = f"{kept[-1]} is kept" if kept else "there is no checkpoint yet"
    return (
        f"{what} by step {run.step} (learning rate {learning_rate(run.recipe, run.step - 1):.2g}); "
        f"{last}. Try a smaller --learning-rate, a longer --warmup, or --precision float32"
    )


def agreed(step: int, caught: list[int]) -> int:
    """The signal to stop by, 0 for none: alone at once, in a group all at the same step, as the
    first one says."""
    signalled = caught[0] if caught else 0
    if world_size() == 1:
        return signalled
    return int(broadcast(signalled)) if step % AGREE_EVERY == 0 else 0


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
