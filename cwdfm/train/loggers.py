"""Loggers: metrics as JSON lines always, to TensorBoard or Weights & Biases on request."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from cwdfm.errors import load_extra
from cwdfm.files import replacing, write_errors


class Logger(Protocol):
    """Receives the progress of a training run."""

    def step(self, step: int) -> None:
        """Called after every step."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Called with metrics to log, `step` among them."""

    def close(self) -> None:
        """Called when the run ends or is interrupted."""


class JsonLines:
    """Metrics as one JSON object per line. Resuming drops the lines after the checkpoint."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if _step(line) <= step]
        with replacing(path) as part:
            part.write_text("".join(line + "\n" for line in kept))

    def step(self, step: int) -> None:
        pass

    def record(self, record: Mapping[str, Any]) -> None:
        with write_errors(self.path, "the checkpoints are intact"), self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        pass


def _step(line: str) -> float:
    """The step of a record; infinity for a damaged line, as a power failure may leave it."""
    try:
        match json.loads(line):
            case {"step": int(step)}:
                return step
    except ValueError:
        pass
    return math.inf


class TensorBoard:
    """TensorBoard event files. Resuming hides the events after the checkpoint."""

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
    """A Weights & Biases run, which continues under the same id when training resumes."""

    def __init__(self, project: str, folder: Path, config: dict[str, Any]) -> None:
        wandb = load_extra("wandb", "wandb")
        id_file = folder / "wandb.id"
        self.run = wandb.init(
            project=project,
            dir=str(folder),
            config=config,
            id=id_file.read_text() if id_file.exists() else None,
            resume="allow",
            allow_val_change=True,  # some settings may change when a run resumes
        )
        id_file.write_text(self.run.id)

    def step(self, step: int) -> None:
        pass

    def record(self, record: Mapping[str, Any]) -> None:
        self.run.log(dict(record), step=record["step"])

    def close(self) -> None:
        self.run.finish()
