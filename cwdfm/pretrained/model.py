"""Trained models on disk: weights in safetensors, everything else in config.json.

A folder holds all that sampling needs: the network, the method it was trained by, its tokenizer,
whether the first token is given, and a card that says how it was trained.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.baselines.sedd import SEDD
from cwdfm.config import from_config, to_config
from cwdfm.data.text.fast_tokenizer import find_tokenizer
from cwdfm.data.tokenizer import Tokenizer, tokenizer_from_json
from cwdfm.device import find_device
from cwdfm.errors import MAX_LENGTH, InputError, check_instance, check_integer
from cwdfm.files import read_tensors, replacing, write_tensors
from cwdfm.method import Flow, Method
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.pretrained.mdlm import mdlm_shape, mdlm_weights
from cwdfm.schedule import Cosine, Linear, Polynomial, Schedule
from cwdfm.source import MaskSource, Source, UniformSource

FORMAT = 2  # 1 knew flows alone, and had `source` and `schedule` in the place of `method`
BOX = Path(__file__).parent.parent / "bundled"
METHODS = (Flow, Autoregressive, BlockDiffusion, SEDD)
PARTS = (DiTConfig, MaskSource, UniformSource, Polynomial, Linear, Cosine)
CLASSES = {c.__name__: c for c in (*METHODS, *PARTS)}


@dataclass(frozen=True)
class Pretrained:
    """A trained model with everything that belongs to it."""

    model: DiT
    method: Method
    tokenizer: Tokenizer
    length: int
    fix_first: bool = False
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """The source of a flow; other methods have none."""
        return self.flow.source

    @property
    def schedule(self) -> Schedule:
        """The schedule of a flow; other methods have none."""
        return self.flow.schedule

    @property
    def flow(self) -> Flow:
        """The method, for what makes sense of flows alone."""
        if not isinstance(self.method, Flow):
            raise InputError(
                f"this needs a discrete flow, with a source and a schedule, and the model was "
                f"trained as {type(self.method).__name__}; give one that was trained with --method "
                f"flow or mdlm"
            )
        return self.method

    def fingerprint(self) -> str:
        """A SHA-256 of the weights and of what they mean: equal for models that sample alike."""
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
        """Write the folder; the weights are stored in `dtype`."""
        folder = Path(folder)
        with replacing(folder / "model.safetensors") as part:
            write_tensors(part, self.model.state_dict(), dtype)
        config = {"format": FORMAT, **self._config(), "card": self.card}
        with replacing(folder / "config.json") as part:
            part.write_text(json.dumps(config, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: torch.device | str = "cpu") -> Self:
        """Read a folder that `save_pretrained` wrote; weights become float32."""
        place = find_device(device)
        trained = cls._read(Path(folder))
        trained.model.to(place)  # what fails here is no fault of the folder's
        return trained

    @classmethod
    def _read(cls, folder: Path) -> Self:
        """The folder's model on the CPU, or an InputError that says what is wrong with it."""
        try:
            config = json.loads((folder / "config.json").read_text())
            if isinstance(config, dict) and config.get("model_type") == "mdlm":
                return cls._read_mdlm(folder, config)
            if not isinstance(config, dict) or "format" not in config:
                raise InputError(
                    f"{folder} holds a model of another library: its config.json has no format; "
                    f"give a folder written by save_pretrained or `cwdfm train`"
                )
            verify(folder)
            weights = read_tensors(folder / "model.safetensors")
            if config["format"] > FORMAT:
                raise InputError(
                    f"{folder} has format {config['format']}, newer than this version's {FORMAT}; "
                    f"update the library"
                )
            with _as_told_by(folder / "config.json"):
                shape, others = _parts(config)
            return cls(model=_network(shape, weights).eval(), **others)
        except FileNotFoundError as error:
            raise InputError(
                f"{folder} is no trained model: it lacks {Path(error.filename).name}; give a "
                f"run, a checkpoint or a model of `cwdfm train`, or a folder written by "
                f"save_pretrained"
            ) from error
        except PermissionError as error:
            raise InputError(
                f"there is no permission to read {error.filename}; give yourself one, or another "
                f"model"
            ) from error
        except InputError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            what = (str(error).splitlines() or [""])[0]
            raise InputError(
                f"{folder} is damaged, or its config.json and weights do not belong together "
                f"({type(error).__name__}: {what}); copy or train it again"
            ) from error

    @classmethod
    def _read_mdlm(cls, folder: Path, config: dict[str, Any]) -> Self:
        """A folder as MDLM's authors publish them; its tokenizer is GPT-2's unless it has one."""
        shape = mdlm_shape(config)
        own = (folder / "tokenizer.json").is_file()
        tokenizer = find_tokenizer(folder if own else "gpt2")
        if tokenizer.vocab_size not in (shape.num_tokens - 1, shape.num_tokens):
            raise InputError(
                f"{folder} knows {shape.num_tokens} ids, its mask included, and "
                f"{'its' if own else 'the'} tokenizer{'' if own else ' of GPT-2'} has "
                f"{tokenizer.vocab_size}; put the model's own tokenizer.json into the folder"
            )
        weights = mdlm_weights(read_tensors(folder / "model.safetensors"))
        return cls(
            model=_network(shape, weights).eval(),
            method=Flow(MaskSource(shape.num_tokens - 1), Linear()),
            tokenizer=tokenizer,
            length=config["model_length"],
            card={"origin": "a checkpoint of MDLM"},
        )


@contextmanager
def _as_told_by(path: Path) -> Iterator[None]:
    """Errors about what a file holds name the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path} is wrong: {error}; copy or train the model again") from error


def _parts(config: dict[str, Any]) -> tuple[DiTConfig, dict[str, Any]]:
    """What a config.json says of the network, and of all that belongs to it."""
    check_integer("format", config["format"])
    known = {"format", "model", "tokenizer", "length", "fix_first", "card"}
    known |= {"source", "schedule"} if config["format"] == 1 else {"method"}
    if unknown := sorted(set(config) - known):
        raise InputError(
            f"it sets {', '.join(unknown)}, and known are {', '.join(sorted(known))}; what is not "
            f"known belongs under card, or nowhere"
        )
    shape, method = from_config(config["model"], CLASSES), _method(config)
    tokenizer = tokenizer_from_json(config["tokenizer"])
    check_instance("model", shape, DiTConfig, "DiTConfig(num_tokens=34)")
    check_instance("method", method, Method, "Flow(MaskSource(30), Linear())")
    check_integer("length", config["length"], most=MAX_LENGTH)
    check_instance("fix_first", config["fix_first"], bool, "true")
    check_instance("card", config["card"], dict, "{}")
    # A mask or start is one more than the vocabulary.
    if shape.num_tokens != method.num_tokens or tokenizer.vocab_size > method.num_tokens:
        raise InputError(
            f"its network knows {shape.num_tokens} ids, its method {method.num_tokens} and its "
            f"tokenizer {tokenizer.vocab_size}, which are not those of one model"
        )
    plain = {name: config[name] for name in ("length", "fix_first", "card")}
    return shape, {"method": method, "tokenizer": tokenizer, **plain}


def _method(config: dict[str, Any]) -> Method:
    if config["format"] == 1:
        parts = (from_config(config[name], CLASSES) for name in ("source", "schedule"))
        return Flow(*parts)
    method: Method = from_config(config["method"], CLASSES)
    return method


def _network(shape: DiTConfig, weights: dict[str, Tensor]) -> DiT:
    """The network with these weights; ValueError, before memory is taken, if they are no fit."""
    with torch.device("meta"):
        asked = {name: tuple(x.shape) for name, x in DiT(shape).state_dict().items()}
    found = {name: tuple(x.shape) for name, x in weights.items()}
    if wrong := sorted(name for name in asked | found if asked.get(name) != found.get(name)):
        one = wrong[0]
        raise ValueError(
            f"of {len(wrong)} weights that differ, {one} is {found.get(one, 'not there')}, and "
            f"{asked.get(one, 'none')} by config.json"
        )
    model = DiT(shape)
    model.load_state_dict({name: x.float() for name, x in weights.items()})
    return model


def verify(folder: Path) -> None:
    """Compare a checkpoint's files with the checksums in its meta.json, where there is one.

    ValueError, KeyError or OSError tell what is wrong.
    """
    note = folder / "meta.json"
    if not note.exists():
        return
    for name, digest in json.loads(note.read_text())["sha256"].items():
        if checksum(folder / name) != digest:
            raise ValueError(f"the checksum of {name} does not match")


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def box() -> list[str]:
    """The names of the models that come with the library."""
    return sorted(path.name for path in BOX.iterdir() if (path / "config.json").exists())


def load(name_or_folder: str | Path, device: torch.device | str = "cpu") -> Pretrained:
    """A trained model: one from the box by its name, or a folder of one's own, or of MDLM's.

    Of a training run's folder, the finished model, or else the newest checkpoint.
    """
    folder, device = Path(name_or_folder), find_device(device)
    if (place := _model_in(name_or_folder)) is not None:
        return Pretrained.from_pretrained(place, device)
    if not folder.is_dir():
        raise InputError(
            f"{str(name_or_folder)!r} is neither a folder nor a model in the box; the box holds "
            f"{', '.join(box())}"
        )
    checkpoints = sorted(folder.glob("checkpoints/step-*"), reverse=True)
    for checkpoint in checkpoints:
        try:
            return Pretrained.from_pretrained(checkpoint, device)
        except InputError as error:
            if checkpoint == checkpoints[-1]:
                raise
            warnings.warn(f"{error}; using the one before", stacklevel=2)
    if (folder / "recipe.json").exists():
        raise InputError(
            f"{folder} is a training run that has saved nothing yet; go on with it up to its first "
            f"checkpoint (--checkpoint-every)"
        )
    return Pretrained.from_pretrained(folder, device)


def steps_short(name_or_folder: str | Path, trained: Pretrained) -> tuple[int, int] | None:
    """(steps done, steps planned) of what `load` took from a run that is not finished, else None.

    A checkpoint that was named itself is what was wanted, and a run may have ended with no time
    left to write its model.
    """
    if _model_in(name_or_folder) is not None:
        return None
    match trained.card:
        case {"steps": int(done), "config": {"optimizer": {"steps": int(planned)}}}:
            return (done, planned) if done < planned else None
        case {"steps": int(done), "recipe": {"steps": int(planned)}}:  # an older version's card
            return (done, planned) if done < planned else None
    return None


def _model_in(name_or_folder: str | Path) -> Path | None:
    """Where a model lies that is no run's checkpoint: in the box, a folder, or a finished run."""
    if str(name_or_folder) in box():
        return BOX / name_or_folder
    folders = (Path(name_or_folder), Path(name_or_folder) / "model")
    return next((folder for folder in folders if (folder / "config.json").exists()), None)
