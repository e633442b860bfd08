"""Small random models in the layout of published ones, by their names on the hub.

    python -m tests.support.published FOLDER

writes them to FOLDER/OWNER/NAME. The examples of docs/pretrained.md run with them.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from cwdfm.files import write_tensors
from tests.support.gemma import write_gemma
from tests.support.language import (
    qwen_fields,
    reference,
    write_a2d,
    write_dream,
    write_llada,
    write_masked_lm,
    write_model,
    write_sdar,
)
from tests.support.texts import word_level

RECORDED = Path(__file__).parents[1] / "model" / "published"


def recorded(name: str) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """config.json, the weights, and the recorded inputs and logits."""
    path = RECORDED / f"{name}.safetensors"
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])
    tensors = load_file(path)
    weights = {k.removeprefix("weights."): x for k, x in tensors.items() if "weights." in k}
    return config, weights, {k: x for k, x in tensors.items() if "weights." not in k}


def write_dit(place: Path, name: str, remove: str = "", **changed: Any) -> Path:
    """A folder as on the hub, with a small tokenizer of its own."""
    config, weights, _ = recorded(name)
    word_level(place, **changed.pop("tokenizer", {}))
    (place / "config.json").write_text(json.dumps(config | changed))
    kept = {k: x for k, x in weights.items() if not remove or remove not in k}
    write_tensors(place / "model.safetensors", kept)
    return place


# The authors' networks call a cache as older versions of transformers do, and only one of
# transformers' own class. LLaDA2 adds its mask; SDAR's is boolean, and it caches with `store_kv`.
_CODE = """
from transformers import Cache, Qwen3Config, Qwen3ForCausalLM

class StandInConfig(Qwen3Config):
    model_type = "KIND"

class StandIn(Qwen3ForCausalLM):
    config_class = StandInConfig

    def __init__(self, config):
        super().__init__(config)
        self.model.register_forward_pre_hook(check, with_kwargs=True)

def check(module, args, given):
    past, mask = given["past_key_values"], given["attention_mask"]
    assert mask.is_floating_point() == ("KIND" == "llada2_moe")
    if past is not None:
        assert isinstance(past, Cache)
        assert given.get("store_kv", False) == ("KIND" == "sdar_moe")
        new = given["input_ids"].shape[1]
        assert mask.shape[2:] == (new, past.get_usable_length(new, 0) + new)
"""


def write_with_code(place: Path, kind: str) -> nn.Module:
    """Save a network with the call of LLaDA2's or SDAR's, as code in the folder; returns it."""
    network, fields = reference("Qwen3"), qwen_fields(kind, block_size=4)
    names = {"AutoConfig": "StandInConfig", "AutoModelForCausalLM": "StandIn"}
    fields["auto_map"] = {auto: f"modeling_{kind}.{name}" for auto, name in names.items()}
    write_model(place, network, fields)
    (place / f"modeling_{kind}.py").write_text(_CODE.replace("KIND", kind))
    return network


def write_long_llada(place: Path) -> Path:
    """LLaDA with room for longer texts."""
    write_llada(place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"max_sequence_length": 512}))
    return place


MODELS: dict[str, Callable[[Path], object]] = {
    "kuleshov-group/mdlm-owt": partial(write_dit, name="mdlm"),
    "louaaron/sedd-small": partial(write_dit, name="sedd"),
    "s-sahoo/duo": partial(write_dit, name="duo"),
    "kuleshov-group/udlm-lm1b": partial(write_dit, name="udlm"),
    "kuleshov-group/bd3lm-owt-block_size4": partial(write_dit, name="bd3lm"),
    "dvruette/gidd-base-p_unif-0.2": partial(write_dit, name="gidd"),
    "GSAI-ML/LLaDA-8B-Instruct": write_long_llada,
    "Dream-org/Dream-v0-Instruct-7B": write_dream,
    "JetLM/SDAR-1.7B-Chat": write_sdar,
    "dllm-hub/Qwen3-0.6B-diffusion-mdlm-v0.1": write_a2d,
    "inclusionAI/LLaDA2.1-mini": partial(write_with_code, kind="llada2_moe"),
    "google/diffusiongemma-26B-A4B-it": write_gemma,
    "answerdotai/ModernBERT-base": partial(write_masked_lm, kind="ModernBert"),
    "google-bert/bert-base-uncased": partial(write_masked_lm, kind="Bert"),
    "airkingbd/dplm_150m": partial(write_masked_lm, kind="Esm"),
}


if __name__ == "__main__":
    for name, write in MODELS.items():
        write(Path(sys.argv[1], name))
