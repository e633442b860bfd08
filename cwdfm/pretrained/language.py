"""Recognize language models by their config.json, and read them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError
from cwdfm.language.model import LanguageModel
from cwdfm.pretrained.decoder import read_a2d, read_dream, read_llada, read_sdar
from cwdfm.pretrained.diffusion_gemma import read_diffusion_gemma
from cwdfm.pretrained.text_tokenizer import LoadOptions
from cwdfm.pretrained.transformers_models import is_masked_lm, read_block_causal, read_masked_lm

# Readers by `model_type` in config.json, in lower case. `read_masked_lm` reads all other types that
# transformers supports as masked language models. To support another family, add a reader.
FAMILIES: dict[str, Callable[[Path, dict[str, Any], LoadOptions], LanguageModel]] = {
    "llada": read_llada,
    "dream": read_dream,
    "sdar": read_sdar,
    "a2d-qwen3": read_a2d,
    "a2d-qwen2": read_a2d,
    "a2d-llama": read_a2d,
    "llada2_moe": read_block_causal,
    "sdar_moe": read_block_causal,
    "diffusion_gemma": read_diffusion_gemma,
}


# Families with causal attention between blocks, whose length may differ between models.
BLOCKS = ("sdar", "sdar_moe", "llada2_moe")


def is_language_model(config: dict[str, Any]) -> bool:
    """Whether a config.json describes a language model that can be read."""
    model_type = str(config.get("model_type", "")).lower()
    return model_type in FAMILIES or is_masked_lm(config)


def read_language_model(
    folder: Path, config: dict[str, Any], options: LoadOptions
) -> LanguageModel:
    """Read the language model in a folder; raises InputError if it is incomplete or damaged."""
    model_type = str(config["model_type"]).lower()
    if options.block is not None and model_type not in BLOCKS:
        raise InputError(
            f"block is the block length of models with causal attention between blocks, such as "
            f"SDAR; {folder} is of type {model_type!r}: omit it, and pass block_length to generate",
            fields=("block",),
        )
    try:
        return FAMILIES.get(model_type, read_masked_lm)(folder, config, options)
    except InputError:
        raise
    except KeyError as error:
        raise InputError(
            f"{folder}/config.json has no field {error}, which a model of type {model_type!r} "
            f"needs; copy the model again"
        ) from error
    except FileNotFoundError as error:
        missing = Path(error.filename).name if error.filename else str(error)
        raise InputError(f"{folder} is not complete: {missing} is missing; copy it") from error
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{folder} is damaged, or its config.json and weights do not match "
            f"({type(error).__name__}: {reason}); copy the model again"
        ) from error
