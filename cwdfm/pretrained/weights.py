"""Read weight files of other projects: safetensors and pickled tensors, without running code."""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.files import check_fields, read_json, read_tensors

# Buffers that the authors' networks store with their weights, although the config determines them.
_COMPUTED = (
    "rotary_emb.inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
    "sampling_eps_min",
    "sampling_eps_max",
)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights in a folder: safetensors, pytorch_model.bin or a Lightning checkpoint.

    Large models have several model-*.safetensors, listed in model.safetensors.index.json. From a
    Lightning checkpoint (`*.ckpt`), the moving average is used if there is one.
    """
    index = folder / "model.safetensors.index.json"
    weights = _read_shards(index) if index.is_file() else _read_file(folder)
    return {name: x for name, x in weights.items() if not name.endswith(_COMPUTED)}


def _read_file(folder: Path) -> dict[str, Tensor]:
    checkpoints = sorted(folder.glob("*.ckpt"))
    if len(checkpoints) > 1:
        names = ", ".join(path.name for path in checkpoints)
        raise InputError(f"{folder} has {len(checkpoints)} checkpoints ({names}); keep only one")
    first = folder / "model.safetensors"
    files = (first, folder / "pytorch_model.bin", *checkpoints)
    path = next((file for file in files if file.is_file()), first)
    return read_tensors(path) if path == first else _read_pickle(path)


def _read_shards(index: Path) -> dict[str, Tensor]:
    content = read_json(index)
    check_fields(index.name, content, weight_map=dict)
    names = sorted({str(file) for file in content["weight_map"].values()})
    if wrong := [name for name in names if Path(name).name != name]:
        raise InputError(
            f"{index} lists {wrong[0]!r:.80}, which is not a file name; copy the model again"
        )
    return {name: x for file in names for name, x in read_tensors(index.parent / file).items()}


def renamed(weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Apply all replacements of regular expressions to the parameter names."""
    result = {}
    for name, x in weights.items():
        for pattern, replacement in names.items():
            name = re.sub(pattern, replacement, name)
        result[name] = x
    return result


def check_depth(depth: Any, weights: Mapping[str, Tensor]) -> None:
    """Raise an error if a network has more layers than weights, before it is created."""
    if isinstance(depth, int) and depth > len(weights):
        raise ValueError(
            f"config.json describes {depth} layers, but there are only {len(weights)} weights"
        )


def check_weights(expected: Mapping[str, tuple[int, ...]], weights: Mapping[str, Tensor]) -> None:
    """Raise an error unless weights have the expected names and shapes and floating dtypes."""
    actual = {name: tuple(x.shape) for name, x in weights.items()}
    expected = {name: tuple(shape) for name, shape in expected.items()}
    if wrong := sorted(n for n in expected | actual if expected.get(n) != actual.get(n)):
        missing, extra = sorted(expected.keys() - actual), sorted(actual.keys() - expected)
        first = wrong[0]
        raise ValueError(
            f"{len(wrong)} weights differ: {len(missing)} are missing ({_some(missing)}), "
            f"{len(extra)} are unexpected ({_some(extra)}); {first} has shape "
            f"{actual.get(first, 'missing')}, but {expected.get(first, 'none')} in config.json"
        )
    if wrong := [name for name, x in weights.items() if not x.is_floating_point()]:
        raise ValueError(f"{wrong[0]} has dtype {weights[wrong[0]].dtype}, which is not floating")


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") or "none"


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError) as error:
        raise InputError(
            f"{path} is damaged or contains Python objects other than tensors, which run code when "
            f"they are loaded; if you trust the file, load it in its authors' environment and save "
            f"only what is needed: torch.save({{'state_dict': c['state_dict'], 'ema': c['ema']}}, "
            f"path)"
        ) from error
    state = saved.get("state_dict", saved) if isinstance(saved, dict) else saved
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise InputError(f"{path} does not contain tensors by name; pass a state_dict")
    return state if state is saved else _averaged(path, state, saved.get("ema"))


def _averaged(path: Path, state: dict[str, Tensor], ema: Any) -> dict[str, Tensor]:
    """Replace the weights by their moving average, which is stored in the order of the network."""
    match ema:
        case None:
            return state
        case {"shadow_params": list(average)}:
            tied: dict[int, list[str]] = {}  # names of each parameter, by its address
            for name, x in state.items():
                if x.is_floating_point() and not name.endswith(_COMPUTED):
                    tied.setdefault(x.data_ptr(), []).append(name)
            if [x.shape for x in average] == [state[names[0]].shape for names in tied.values()]:
                pairs = zip(tied.values(), average, strict=True)
                return {name: x for names, x in pairs for name in names}
    raise InputError(
        f"the moving average (ema) in {path} does not match its state_dict; remove it to use only "
        f"the state_dict"
    )
