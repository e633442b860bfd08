"""Recognize models of other projects by their config.json, and read them without their code."""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError
from cwdfm.pretrained.bd3lm import read_bd3lm
from cwdfm.pretrained.dit import Checkpoint
from cwdfm.pretrained.duo import read_duo, read_udlm
from cwdfm.pretrained.gidd import read_gidd
from cwdfm.pretrained.language import FAMILIES, is_language_model
from cwdfm.pretrained.mdlm import read_mdlm
from cwdfm.pretrained.sedd import read_sedd

# Readers by `model_type` in config.json, in lower case (see `_model_type`). To support another
# project, add a reader.
READERS: dict[str, Callable[[Path, dict[str, Any]], Checkpoint]] = {
    "mdlm": read_mdlm,
    "duo": read_duo,
    "udlm": read_udlm,
    "bd3lm": read_bd3lm,
    "sedd": read_sedd,
    "gidd": read_gidd,
}


def read_published(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """Read a model of another project; raises InputError if its type is unknown."""
    kind = _model_type(config)
    if kind not in READERS and is_language_model(config):
        raise InputError(
            f"{folder} contains a language model of type {kind!r}, which generates from prompts; "
            f"use `cwdfm sample --prompts`, or cwdfm.load and cwdfm.generate"
        )
    if kind not in READERS:
        known = (*READERS, *FAMILIES)
        nearest = get_close_matches(kind, known, n=1, cutoff=0.0)[0]
        raise InputError(
            f"{folder} contains a model of another library with type {kind or 'unknown'!r}; "
            f"supported types are {', '.join(known)} and the masked language models of "
            f"transformers (the nearest is {nearest}); give a folder written by save_pretrained "
            f"or `cwdfm train`, or wrap the network in cwdfm.Adapted"
        )
    return READERS[kind](folder, config)


def is_published(config: dict[str, Any]) -> bool:
    """Whether `read_published` can read a model with this config.json."""
    return _model_type(config) in READERS


def _model_type(config: dict[str, Any]) -> str:
    if {"graph", "noise", "model"} <= set(config):  # SEDD stores its training config
        return "sedd"
    if "p_uniform" in config:  # GIDD calls its type "dit"
        return "gidd"
    return str(config.get("model_type", "")).lower()
