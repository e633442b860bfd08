"""Tensors on disk, in safetensors: the one place that reads and writes them."""

import os
import re
from pathlib import Path

import torch
from torch import Tensor

from cwdfm.errors import InputError, load_extra


def write_tensors(path: Path, tensors: dict[str, Tensor], dtype: torch.dtype | None = None) -> None:
    """Write tensors, in `dtype` if given; OSError, with its number, if that fails."""
    whole = {name: x.detach().to(dtype=dtype).contiguous().cpu() for name, x in tensors.items()}
    try:
        load_extra("safetensors.torch", "cli").save_file(whole, path)
    except load_extra("safetensors", "cli").SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))  # which safetensors tells in words alone
        if number is None:
            raise OSError(f"{error}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors; a damaged file is refused."""
    with path.open("rb"):  # safetensors says of one that may not be read that it is not there
        pass
    try:
        found: dict[str, Tensor] = load_extra("safetensors.torch", "cli").load_file(path)
    except load_extra("safetensors", "cli").SafetensorError as error:
        raise InputError(f"{path} is damaged ({error}); copy or train it again") from error
    return found
