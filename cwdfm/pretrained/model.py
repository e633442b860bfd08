"""A trained model with everything that sampling needs, loaded by name or path."""

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from cwdfm.config import to_config
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.device import find_device
from cwdfm.errors import InputError, require
from cwdfm.files import replacing, write_json, write_tensors
from cwdfm.generation import generate
from cwdfm.likelihood.dataset import DatasetLikelihood, text_likelihood
from cwdfm.method import Flow, Method
from cwdfm.method.flow import flow_of
from cwdfm.model.transformer import DiT
from cwdfm.pretrained.format import FORMAT, digests, read_model
from cwdfm.schedule import Schedule
from cwdfm.solver import Samples
from cwdfm.source import Source

BUNDLED = Path(__file__).parent.parent / "bundled"


@dataclass(frozen=True)
class Pretrained:
    """A trained model."""

    model: DiT  # the network, in evaluation mode
    method: Method  # how the network was trained, and so how it is sampled and scored
    tokenizer: Tokenizer  # between text and data tokens
    length: int  # tokens per sequence in training
    fix_first: bool = False  # whether the first token was always given in training
    card: dict[str, Any] = field(default_factory=dict)  # how it was trained; stored as JSON

    def __post_init__(self) -> None:
        self.model.trained_length = self.length

    @property
    def source(self) -> Source:
        """The source of a flow; InputError for other methods."""
        return self.flow.source

    @property
    def schedule(self) -> Schedule:
        """The schedule of a flow; InputError for other methods."""
        return self.flow.schedule

    @property
    def flow(self) -> Flow:
        """The method, if it is a discrete flow; InputError otherwise."""
        return flow_of(self.method)

    def generate(self, solver: object = None, **options: Any) -> Samples:
        """Sample sequences: see `cwdfm.generate`. Their `texts` are the decoded samples."""
        return generate(self, solver, **options)

    def likelihood(self, texts: Sequence[str], **options: Any) -> DatasetLikelihood:
        """The likelihood of texts, or a bound on it: see `text_likelihood`.

        The texts get the start, end and padding tokens that the model was trained with; text models
        score them as one stream of documents, cut into windows.
        """
        return text_likelihood(self, texts, **options)

    def to(self, device: torch.device | str) -> Self:
        """Move the network to a device; returns this model."""
        self.model.to(find_device(device))
        return self

    def fingerprint(self) -> str:
        """A SHA-256 of the weights and the config, equal for models that sample alike."""
        digest = hashlib.sha256(json.dumps(self._config(), sort_keys=True).encode())
        for name, weight in sorted(self.model.state_dict().items()):
            digest.update(name.encode())
            digest.update(weight.contiguous().cpu().view(torch.uint8).numpy())
        return digest.hexdigest()

    def _config(self) -> dict[str, Any]:
        return {
            "model": to_config(self.model.config),
            "method": to_config(self.method),
            "tokenizer": self.tokenizer.to_json(),
            "length": self.length,
            "fix_first": self.fix_first,
        }

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write the model to a folder, with weights in `dtype`, a floating-point type."""
        floating = isinstance(dtype, torch.dtype) and dtype.is_floating_point
        require(
            floating and dtype.itemsize > 1, "dtype", "be a float type of 16 bits or more", dtype
        )
        weights = Path(folder, "model.safetensors")
        with replacing(weights) as part:
            write_tensors(part, self.model.state_dict(), dtype)
        # As JSON reads them: tuples become lists, and keys strings.
        config = json.loads(json.dumps({"format": FORMAT, **self._config(), "card": self.card}))
        config["sha256"] = digests(weights, config)
        write_json(Path(folder, "config.json"), config)

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: torch.device | str = "cpu") -> Self:
        """Read a folder of `save_pretrained` or of another project; weights become float32."""
        target = find_device(device)
        trained = cls(**read_model(Path(folder)))
        trained.model.to(target)
        return trained


def bundled_models() -> list[str]:
    """The names of the models that come with the library."""
    return sorted(path.name for path in BUNDLED.iterdir() if (path / "config.json").exists())


def load(name_or_folder: str | Path, device: torch.device | str = "cpu") -> Pretrained:
    """Load a trained model: a bundled one by name, or a folder (also of other projects).

    The folder of a training run gives its trained model, or else its newest checkpoint.
    """
    named = isinstance(name_or_folder, str | Path)
    require(
        named, "the model", f"be a folder or one of {', '.join(bundled_models())}", name_or_folder
    )
    folder, device = Path(name_or_folder), find_device(device)
    if (found := _model_folder(name_or_folder)) is not None:
        return Pretrained.from_pretrained(found, device)
    if not folder.is_dir():
        raise InputError(
            f"{str(name_or_folder)!r} is neither a folder nor a bundled model; the bundled models "
            f"are {', '.join(bundled_models())}"
        )
    checkpoints = sorted(folder.glob("checkpoints/step-*"), reverse=True)
    for checkpoint in checkpoints:
        try:
            return Pretrained.from_pretrained(checkpoint, device)
        except InputError as error:
            if checkpoint == checkpoints[-1]:
                raise
            warnings.warn(f"{error}; using the previous one", stacklevel=2)
    if (folder / "recipe.json").exists():
        raise InputError(
            f"{folder} is a training run without a checkpoint; continue it to its first checkpoint "
            f"(see checkpoint_every)",
            fields=("checkpoint_every",),
        )
    return Pretrained.from_pretrained(folder, device)


def unfinished_steps(name_or_folder: str | Path, trained: Pretrained) -> tuple[int, int] | None:
    """(steps done, steps planned) if `load` took a checkpoint of an unfinished run, else None.

    None also for a checkpoint that was given by its own path, and for a run that completed its
    steps but did not save its model.
    """
    if _model_folder(name_or_folder) is not None:
        return None
    match trained.card:
        case {"steps": int(done), "config": {"optimizer": {"steps": int(planned)}}}:
            pass
        case {"steps": int(done), "recipe": {"steps": int(planned)}}:  # an older version's card
            pass
        case _:
            return None
    return (done, planned) if done < planned else None


def _model_folder(name_or_folder: str | Path) -> Path | None:
    """The folder of a bundled model, a saved model or a finished run; None otherwise."""
    if str(name_or_folder) in bundled_models():
        return BUNDLED / name_or_folder
    folders = (Path(name_or_folder), Path(name_or_folder) / "model")
    return next((folder for folder in folders if (folder / "config.json").exists()), None)
