"""LLaDA2.0 and 2.1, and SDAR's mixtures of experts: attention causal between blocks, no shift.

Their networks are code in their repositories, which runs only with `trust_remote_code=True`.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.language.model import LanguageModel, kept
from cwdfm.model.decoder import KeyValues
from cwdfm.pretrained.masked_lm import TransformersNetwork, read_transformers
from cwdfm.pretrained.text_tokenizer import LoadOptions, find_mask, find_stop, read_tokenizer

_BLOCKS = {"llada2_moe": 32, "sdar_moe": 4}


class CausalLMNetwork(TransformersNetwork):
    """A causal language model of transformers, called with masks of its own.

    It has a `model`, which returns hidden vectors, and an output layer. Its layers call
    `past_key_values.update`.
    """

    def __init__(self, network: Any) -> None:
        super().__init__(network)
        self.readout: Any = network.get_output_embeddings()

    def hidden(
        self,
        ids_BM: Tensor,
        position_BM: Tensor,
        mask: Tensor | None,
        cache: KeyValues | None,
        keep_L: Tensor | None = None,
    ) -> Tensor:
        batch, length = ids_BM.shape
        keys = length if cache is None else cache.end
        dtype = self.readout.weight.dtype
        bias = torch.zeros(batch, 1, length, keys, dtype=dtype, device=ids_BM.device)
        if mask is not None:
            bias = bias.masked_fill(~mask, torch.finfo(dtype).min)
        output = self.network.model(
            input_ids=ids_BM, attention_mask=bias, position_ids=position_BM,
            past_key_values=cache, use_cache=cache is not None,
        )  # fmt: skip
        return kept(output.last_hidden_state, keep_L)

    def logits(self, hidden_KD: Tensor) -> Tensor:
        logits_KV: Tensor = self.readout(hidden_KD)
        return logits_KV


def read_block_causal(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Blocks of 32 tokens for LLaDA2, of 4 for SDAR."""
    if not options.trust_remote_code:
        raise InputError(
            f"{folder} contains the code of its network, which runs only with "
            f"trust_remote_code=True; read the code first",
            fields=("trust_remote_code",),
        )
    tokenizer = read_tokenizer(folder, options)
    kind = str(config["model_type"])
    return LanguageModel(
        CausalLMNetwork(read_transformers(folder, "AutoModelForCausalLM", options)),
        tokenizer,
        "LLaDA2" if kind == "llada2_moe" else "SDAR",
        mask_id=find_mask(config, tokenizer),
        block=options.block or config.get("block_size") or _BLOCKS[kind],
        stop_ids=find_stop(folder, config, tokenizer),
        length=config["max_position_embeddings"],
    )
