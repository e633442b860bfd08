"""Load a trained model by name or path: bundled models, folders, training runs."""

import warnings
from pathlib import Path

import torch

from cwdfm.device import find_device
from cwdfm.errors import InputError
from cwdfm.pretrained.model import Pretrained

BUNDLED = Path(__file__).parent.parent / "bundled"


def bundled_models() -> list[str]:
    """The names of the models that come with the library."""
    return sorted(path.name for path in BUNDLED.iterdir() if (path / "config.json").exists())


def load(name_or_folder: str | Path, device: torch.device | str = "cpu") -> Pretrained:
    """Load a trained model: a bundled one by name, or a folder (also one of MDLM's authors).

    The folder of a training run gives its trained model, or else its newest checkpoint.
    """
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
            return (done, planned) if done < planned else None
        case {"steps": int(done), "recipe": {"steps": int(planned)}}:  # an older version's card
            return (done, planned) if done < planned else None
    return None


def _model_folder(name_or_folder: str | Path) -> Path | None:
    """The folder of a bundled model, a saved model or a finished run; None otherwise."""
    if str(name_or_folder) in bundled_models():
        return BUNDLED / name_or_folder
    folders = (Path(name_or_folder), Path(name_or_folder) / "model")
    return next((folder for folder in folders if (folder / "config.json").exists()), None)
