"""The folder format of trained models: weights in safetensors, everything else in config.json.

A folder contains everything that sampling needs: the network, the method it was trained with, the
tokenizer, whether the first token is fixed, and a model card that records the training.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cwdfm.baselines import METHODS
from cwdfm.baselines.gidd import GIDD
from cwdfm.cache import content_digest
from cwdfm.config import from_config
from cwdfm.data.tokenizer import tokenizer_from_json
from cwdfm.errors import MAX_LENGTH, InputError, NotInstalled, check_instance, check_integer
from cwdfm.files import check_fields, check_regular, read_json, read_tensors
from cwdfm.method import Flow, Method
from cwdfm.model.conditions import Categorical, Numeric
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.pretrained.own import Builder, OwnNetwork
from cwdfm.pretrained.published import Checkpoint, read_published
from cwdfm.pretrained.weights import check_depth, check_weights
from cwdfm.schedule import Cosine, Linear, Polynomial
from cwdfm.source import MaskSource, UniformSource

# Format 1: flows only, with `source` and `schedule` instead of `method`. Format 2: no checksums.
FORMAT = 3
_FILE = re.compile(r"[a-z]+\.(safetensors|json)")  # names of the files of a checkpoint
FLOW = (MaskSource, UniformSource, Polynomial, Linear, Cosine)
PARTS = (DiTConfig, Numeric, Categorical, GIDD, *FLOW)
CLASSES = {c.__name__: c for c in (*PARTS, *(config.method_class for config in METHODS.values()))}


def read_model(folder: Path, network: Builder | None = None) -> dict[str, Any]:
    """Read the fields of a `Pretrained` from a folder, on the CPU; InputError if it is invalid.

    network: the class of a network outside this library; see `pretrained/own.py`.
    """
    try:
        config = read_json(folder / "config.json")
        if not isinstance(config, dict):
            raise TypeError(f"config.json holds a {type(config).__name__}")
        read = _read_own if "format" in config else read_published
        fields, shape, weights = read(folder, config)
        if isinstance(shape, OwnNetwork):
            return {"model": shape.build(network, weights).eval(), **fields}
        if network is not None:
            raise InputError(
                f"network applies to models with a custom network, but {folder} has a "
                f"{DiT.__name__}; omit it",
                fields=("network",),
            )
        return {"model": _build_network(shape, weights).eval(), **fields}
    except FileNotFoundError as error:
        raise InputError(
            f"{folder} is not a trained model: {Path(error.filename).name} is missing; pass a run, "
            f"a checkpoint or a model of `cwdfm train`, or a folder written by save_pretrained"
        ) from error
    except PermissionError as error:
        message = f"no permission to read {error.filename}; grant it, or choose another model"
        raise InputError(message) from error
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{folder} is damaged, or its config.json and weights do not match "
            f"({type(error).__name__}: {reason}); copy or train the model again"
        ) from error


def _read_own(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """Read a folder written by `save_pretrained`."""
    check_fields("config.json", config, format=int)
    if config["format"] > FORMAT:
        raise InputError(
            f"{folder} has format {config['format']}, but this version reads formats up to "
            f"{FORMAT}; upgrade cwdfm"
        )
    try:
        fields, shape = _read_config(config)
    except NotInstalled:
        raise
    except InputError as error:
        path = folder / "config.json"
        raise InputError(f"{path} is invalid: {error}; copy or train the model again") from error
    verify(folder)
    if config["format"] >= 3 or "sha256" in config:
        _verify_digests(folder, config)
    return Checkpoint(fields, shape, read_tensors(folder / "model.safetensors"))


def _read_config(config: dict[str, Any]) -> tuple[dict[str, Any], DiTConfig | OwnNetwork]:
    """Read the fields of a `Pretrained` without its network, and the network's shape."""
    check_integer("format", config["format"])
    known = {"format", "model", "tokenizer", "length", "fix_first", "card", "sha256"}
    known |= {"source", "schedule"} if config["format"] == 1 else {"method"}
    if unknown := sorted(set(config) - known):
        raise InputError(
            f"unknown fields {', '.join(unknown)}; the known fields are "
            f"{', '.join(sorted(known))}; put other information under card"
        )
    if config["format"] == 1:
        method = Flow(*(from_config(config[name], CLASSES) for name in ("source", "schedule")))
    else:
        method = from_config(config["method"], CLASSES)
    if isinstance(config["model"], dict) and "network" in config["model"]:
        shape = OwnNetwork.from_json(config["model"])
    else:
        shape = from_config(config["model"], CLASSES)
        check_instance("model", shape, DiTConfig, "DiTConfig(num_tokens=34)")
    tokenizer = tokenizer_from_json(config["tokenizer"])
    check_instance("method", method, Method, "Flow(MaskSource(30), Linear())")
    check_integer("length", config["length"], most=MAX_LENGTH)
    check_instance("fix_first", config["fix_first"], bool, "true")
    check_instance("card", config["card"], dict, "{}")
    # The method may have one more id than the tokenizer, the mask or start token.
    ids = getattr(shape, "num_tokens", method.num_tokens)  # unknown for custom networks
    if ids != method.num_tokens or tokenizer.vocab_size > method.num_tokens:
        raise InputError(
            f"the network has {ids} token ids, the method {method.num_tokens} and the "
            f"tokenizer {tokenizer.vocab_size}, which do not match"
        )
    others = {name: config[name] for name in ("length", "fix_first", "card")}
    return {"method": method, "tokenizer": tokenizer, **others}, shape


def _build_network(shape: DiTConfig, weights: dict[str, Tensor]) -> DiT:
    """Build the network with these weights. Checks shapes before allocating memory."""
    check_depth(shape.depth, weights)
    with torch.device("meta"):
        expected = {name: tuple(x.shape) for name, x in DiT(shape).state_dict().items()}
    check_weights(expected, weights)
    model = DiT(shape)
    model.load_state_dict({name: x.float() for name, x in weights.items()})
    return model


def verify(folder: Path) -> None:
    """Compare a checkpoint's files with the checksums in its meta.json, if there is one.

    Raises ValueError, KeyError or OSError if they do not match.
    """
    meta = folder / "meta.json"
    if not meta.exists():
        return
    content = read_json(meta)
    check_fields("meta.json", content, sha256=dict)
    for name, digest in content["sha256"].items():
        if not _FILE.fullmatch(name):
            raise ValueError(f"meta.json lists {name!r:.80}, which is not a file of a checkpoint")
        if checksum(folder / name) != digest:
            raise ValueError(f"the checksum of {name} does not match")


def digests(weights: Path, config: dict[str, Any]) -> dict[str, str]:
    """The checksums of the weights and of the other fields of config.json."""
    return {"weights": checksum(weights), "config": content_digest(config)}


def _verify_digests(folder: Path, config: dict[str, Any]) -> None:
    check_fields("config.json", config, sha256=dict)
    rest = {name: value for name, value in config.items() if name != "sha256"}
    actual = digests(folder / "model.safetensors", rest)
    for key, file in (("weights", "model.safetensors"), ("config", "config.json")):
        if config["sha256"].get(key) != actual[key]:
            raise ValueError(f"the checksum of {file} does not match")


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
