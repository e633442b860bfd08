"""Where a run's records go: a file of JSON lines always, other places on request."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from cwdfm.errors import InputError, load_extra
from cwdfm.files import replacing, retry_advice


class Listener(Protocol):
    """Hears of a run's progress."""

    def step(self, step: int) -> None:
        """A step is done."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Figures worth keeping; `step` among them."""

    def close(self) -> None:
        """The run is over, or interrupted."""


class JsonLines:
    """Metrics, a JSON object a line; on resuming, lines beyond the checkpoint are taken back."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if _step(line) <= step]
        with replacing(path) as part:
            part.write_text("".join(line + "\n" for line in kept))

    def step(self, step: int) -> None:
        pass

    def record(self, record: Mapping[str, Any]) -> None:
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise InputError(
                f"cannot write {self.path}: {error.strerror or error}; the checkpoints are whole. "
                f"{retry_advice(error, self.path)} and start again with the same command"
            ) from error

    def close(self) -> None:
        pass


def _step(line: str) -> float:
    """The step of a record; infinite for a line that is none, as a loss of power leaves it."""
    try:
        match json.loads(line):
            case {"step": int(step)}:
                return step
    except ValueError:
        pass
    return math.inf


class TensorBoard:
    """Event files for TensorBoard; on resuming, it hides what lies beyond the checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        board = load_extra("torch.utils.tensorboard", "tensorboard")
        self.writer = board.SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def step(self, step: int) -> None:
        pass

    def record(self, record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name != "step":
                self.writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A W&B run that goes on under the same id when training does."""

    def __init__(self, project: str, folder: Path, config: dict[str, Any]) -> None:
        wandb = load_extra("wandb", "wandb")
        note = folder / "wandb.id"
        identity = note.read_text() if note.exists() else None
        self.run = wandb.init(
            project=project,
            dir=str(folder),
            config=config,
            id=identity,
            resume="allow",
            allow_val_change=True,  # a run may go on with other settings
        )
        note.write_text(self.run.id)

    def step(self, step: int) -> None:
        pass

    def record(self, record: Mapping[str, Any]) -> None:
        self.run.log(dict(record), step=record["step"])

    def close(self) -> None:
        self.run.finish()
