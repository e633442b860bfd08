"""LLaDA2.0, LLaDA2.1 and SDAR mixtures of experts: block-causal attention, no logit shift.

Their networks are defined by code in their repositories, which runs only with
`trust_remote_code=True`.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cwdfm.errors import InputError, load_extra
from cwdfm.language.model import LanguageModel, kept
from cwdfm.model.attention import KVCache
from cwdfm.pretrained.masked_lm import TransformersNetwork, read_transformers
from cwdfm.pretrained.text_tokenizer import LoadOptions, find_mask, find_stop, read_tokenizer

_BLOCKS = {"llada2_moe": 32, "sdar_moe": 4}
_MASKS = {"llada2_moe": 156895}  # if neither config.json nor the tokenizer has one


class CausalLMNetwork(TransformersNetwork):
    """A causal language model of transformers, called with explicit attention masks.

    It must have a `model` that returns hidden vectors, and an output layer. Its layers call
    `past_key_values.update` (in SDAR only with `store_kv`). LLaDA2 takes an additive mask; SDAR
    takes a boolean one that is true where a token attends to a key.
    """

    def __init__(self, network: Any, kind: str) -> None:
        super().__init__(network)
        self.readout: Any = network.get_output_embeddings()
        self.adds_mask = kind == "llada2_moe"

    def hidden(
        self,
        ids_BM: Tensor,
        position_BM: Tensor,
        mask: Tensor | None,
        cache: KVCache | None,
        keep_L: Tensor | None = None,
    ) -> Tensor:
        keys = ids_BM.shape[1] if cache is None else cache.end
        allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids_BM.device)
        allowed = (allowed if mask is None else mask).expand(len(ids_BM), 1, ids_BM.shape[1], keys)
        options: dict[str, Any] = {"attention_mask": allowed}
        if self.adds_mask:
            bias = torch.zeros(allowed.shape, dtype=self.readout.weight.dtype, device=ids_BM.device)
            options["attention_mask"] = bias.masked_fill_(~allowed, torch.finfo(bias.dtype).min)
        elif cache is not None:
            options["store_kv"] = True
        past = None if cache is None else _cache_class()(cache)
        output = self.network.model(
            input_ids=ids_BM, position_ids=position_BM, past_key_values=past,
            use_cache=cache is not None, **options,
        )  # fmt: skip
        return kept(output.last_hidden_state, keep_L)

    def logits(self, hidden_KD: Tensor) -> Tensor:
        logits_KV: Tensor = self.readout(hidden_KD)
        return logits_KV


@cache
def _cache_class() -> Any:
    """A subclass of transformers' `Cache`, which the authors' code requires."""

    class ColumnCache(load_extra("transformers", "text").Cache):  # type: ignore[misc]
        """Keys and values of a canvas. Calls may update any of its columns."""

        def __init__(self, columns: KVCache) -> None:  # super() would create layers
            self.columns = columns

        def update(self, k: Tensor, v: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
            return self.columns.update(k, v, layer_idx)

        def get_seq_length(self, layer_idx: int = 0, *_: Any) -> int:
            return self.columns.start

        def get_usable_length(self, new: int, layer_idx: int = 0) -> int:
            """Used by code written for older versions of transformers."""
            return self.columns.start

    return ColumnCache


def read_block_causal(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Read a model. By default blocks have 32 tokens in LLaDA2, and 4 in SDAR."""
    if not options.trust_remote_code:
        raise InputError(
            f"{folder} defines its network by Python code, which runs only with "
            f"trust_remote_code=True; read the code first",
            fields=("trust_remote_code",),
        )
    tokenizer = read_tokenizer(folder, options)
    kind = str(config["model_type"]).lower()
    return LanguageModel(
        CausalLMNetwork(read_transformers(folder, "AutoModelForCausalLM", options), kind),
        tokenizer,
        "LLaDA2" if kind == "llada2_moe" else "SDAR",
        mask_id=find_mask(config, tokenizer, _MASKS.get(kind)),
        block=options.block or config.get("block_size") or _BLOCKS[kind],
        stop_ids=find_stop(folder, config, tokenizer),
        length=config["max_position_embeddings"],
    )
