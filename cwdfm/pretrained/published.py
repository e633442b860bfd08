"""Recognize a model of another project by its config.json, and read it without its code."""

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

# By `model_type` in config.json, in lower case, or see `_model_type`. To support another project,
# add a reader.
READERS: dict[str, Callable[[Path, dict[str, Any]], Checkpoint]] = {
    "mdlm": read_mdlm,
    "duo": read_duo,
    "udlm": read_udlm,
    "bd3lm": read_bd3lm,
    "sedd": read_sedd,
    "gidd": read_gidd,
}


def read_published(folder: Path, config: dict[str, Any]) -> Checkpoint:
    """The model in a folder of another project; InputError if it is of an unknown type."""
    kind = _model_type(config)
    if kind not in READERS and is_language_model(config):
        raise InputError(
            f"{folder} holds a language model of type {kind!r}, which generates from prompts; use "
            f"`cwdfm sample --prompts`, or cwdfm.load and cwdfm.generate"
        )
    if kind not in READERS:
        known = (*READERS, *FAMILIES)
        nearest = get_close_matches(kind, known, n=1, cutoff=0.0)[0]
        raise InputError(
            f"{folder} holds a model of another library, of type {kind or 'unknown'!r}; supported "
            f"are {', '.join(known)} and the masked language models of transformers (the nearest "
            f"is {nearest}); give a folder written by save_pretrained or `cwdfm train`, or wrap "
            f"the network in cwdfm.Adapted"
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
