"""The training loop: steps, logging, validation and checkpoints, until finished or interrupted."""

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from cwdfm.distributed import broadcast, rank, world_size
from cwdfm.errors import NotFinite, RunError
from cwdfm.train.checkpoint import checkpoints
from cwdfm.train.loggers import JsonLines, Logger, SpeedMeter, peak_flops, training_flops
from cwdfm.train.optimizer import learning_rate
from cwdfm.train.run import Run
from cwdfm.train.validation import validate

SYNC_EVERY = 10  # steps between checks for a signal to the first process


class Diverged(RunError):
    """The loss is not finite or has exploded."""


def fit(run: Run, loggers: Sequence[Logger] = ()) -> int:
    """Train from the current step of the run to the last step of the config.

    To continue from a checkpoint, call `Run.resume` first. On SIGTERM or SIGINT, all processes
    finish the current step and save it, and the signal number is returned; otherwise 0. A signal
    during the last step is also returned, although the run is complete.

    Raises `Diverged`, before writing a checkpoint, if the loss is not finite or exceeds ten times
    the loss of a uniform prediction, or if a weight is not finite.
    """
    metrics = JsonLines(run.out / "metrics.jsonl", run.step) if rank() == 0 else None
    all_loggers = [] if metrics is None else [*loggers, metrics]
    meter = speed_meter(run)
    with interruptible() as caught:
        with ExitStack() as stack:
            for logger in all_loggers:
                stack.callback(logger.close)
            while run.step < run.config.optimizer.steps:
                run.losses.append(run.train_step())
                stop = signal_to_stop(run.step, caught)
                after_step(run, meter, all_loggers, stopping=stop > 0)
                if stop:
                    return stop
        return signal_to_stop(0, caught)  # a signal that arrived while the last step was saved


def after_step(run: Run, meter: SpeedMeter, loggers: Sequence[Logger], *, stopping: bool) -> None:
    """Log, validate and save if this is due after the step; after the last step, do all of it."""
    config, last = run.config, run.step == run.config.optimizer.steps
    for logger in loggers:
        logger.step(run.step)
    record: dict[str, Any] = {"step": run.step}
    if run.step % config.evaluation.log_every == 0 or last or stopping:
        loss = float(torch.stack(run.losses).mean())
        run.losses.clear()
        check_loss(run, loss)
        rate = learning_rate(config.optimizer, run.step - 1)
        record |= {"loss": loss, "learning_rate": rate} | meter.read(run.step)
    improved = False
    if run.step % config.evaluation.validate_every == 0 or last:
        try:
            with meter.paused():
                record |= validate(run)
        except NotFinite as error:
            raise diverged(run, "the model's predictions are NaN or infinite") from error
        improved = record_best(run, record["validation_loss"])
    # Log before saving: resuming drops records after the checkpoint, but a record that was not
    # written before the checkpoint would be lost.
    if len(record) > 1:
        for logger in loggers:
            logger.record(record)
    if run.step % config.checkpoint.checkpoint_every == 0 or last or stopping or improved:
        with meter.paused():
            if not run.is_finite():  # checked before saving, since old checkpoints are deleted
                raise diverged(run, "the weights are NaN or infinite")
            run.save()


def record_best(run: Run, loss: float) -> bool:
    """Record the lowest validation loss and its step. Returns whether `loss` is a new minimum."""
    if improved := loss < run.best:
        run.best, run.best_step = loss, run.step
    return improved


def speed_meter(run: Run) -> SpeedMeter:
    """A speed meter that starts at the run's current step."""
    length = run.config.data.length
    parameters = sum(p.numel() for p in run.model.parameters())
    flops = training_flops(run.task.model, length, parameters)
    tokens = run.config.optimizer.batch_size * length
    return SpeedMeter(run.step, tokens, flops, peak_flops(run.device))


def check_loss(run: Run, loss: float) -> None:
    """Raise `Diverged` if the loss is NaN or above ten times that of a uniform prediction."""
    ceiling = (10 * math.log(run.task.method.num_tokens) + 10) * run.objective.worst_weight
    if not loss < ceiling:
        problem = f"has exploded to {loss:.3g}" if loss > 0 else "is NaN"
        raise diverged(run, f"the loss {problem}")


def diverged(run: Run, problem: str) -> Diverged:
    """The error for a run that diverged."""
    kept = checkpoints(run.out / "checkpoints")
    last = f"the checkpoint {kept[-1]} is kept" if kept else "there is no checkpoint yet"
    rate = learning_rate(run.config.optimizer, run.step - 1)
    return Diverged(
        f"{problem} by step {run.step} (learning rate {rate:.2g}); {last}. Try a smaller "
        f"learning rate, a longer warmup, or float32 precision"
    )


def signal_to_stop(step: int, caught: list[int]) -> int:
    """Return the signal that stops the run, or 0.

    A single process stops immediately. Several processes stop at the same step, after the first
    process has received a signal.
    """
    received = caught[0] if caught else 0
    if world_size() == 1:
        return received
    return int(broadcast(received)) if step % SYNC_EVERY == 0 else 0


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT in a list instead of stopping the process."""
    caught: list[int] = []
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {s: signal.signal(s, lambda number, _: caught.append(number)) for s in signals}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
