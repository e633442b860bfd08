"""Language models whose networks transformers builds.

Masked language models (BERT and GenMol, ModernBERT, ESM and DPLM, and others) have bidirectional
attention, no logit shift and no cache. The sequences of a batch have equal lengths, because
networks number the positions of padded sequences differently.

LLaDA2.0, LLaDA2.1 and SDAR mixtures of experts have block-causal attention and no logit shift. Code
in their repositories defines their networks. It runs only with `trust_remote_code=True`.
"""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError, check_integer, load_extra
from cwdfm.files import read_json
from cwdfm.language.model import LanguageModel, Network, kept
from cwdfm.model.attention import KVCache
from cwdfm.pretrained.text_tokenizer import LoadOptions, find_mask, find_stop, read_tokenizer
from cwdfm.pretrained.weights import check_weights, read_weights

MAX_LAYERS = 1000
_BLOCKS = {"llada2_moe": 32, "sdar_moe": 4}
_MASKS = {"llada2_moe": 156895}  # if neither config.json nor the tokenizer has one


# Weights of published masked language models that predict nothing about tokens: the heads of BERT,
# RoBERTa and ALBERT for whole sentences, ESM's head for contacts, and its learned positions, which
# networks with rotary positions do not have.
_UNUSED = re.compile(
    r"\b(pooler|seq_relationship|sop_classifier|contact_head)\.|embeddings\.position_(ids|embeddings)"
)


class TransformersNetwork(Network):
    """Wraps a network of transformers."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network: Any = network

    @property
    def num_tokens(self) -> int:
        count: int = self.network.config.vocab_size
        return count


class MaskedLMNetwork(TransformersNetwork):
    """Returns logits as hidden vectors, since the heads differ between networks and are small."""

    caches = pads = False

    def hidden(
        self,
        ids_BM: Tensor,
        position_BM: Tensor,
        mask: Tensor | None,
        cache: KVCache | None,
        keep_L: Tensor | None = None,
    ) -> Tensor:
        assert mask is None
        assert cache is None
        logits_BMV: Tensor = self.network(ids_BM).logits
        return kept(logits_BMV, keep_L)

    def logits(self, hidden_KD: Tensor) -> Tensor:
        return hidden_KD


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


def is_masked_lm(config: dict[str, Any]) -> bool:
    """Whether transformers has a masked language model of this type."""
    if find_spec("transformers") is None or not isinstance(config.get("model_type"), str):
        return False
    auto = load_extra("transformers.models.auto.modeling_auto", "text")
    return config.get("model_type") in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


def read_masked_lm(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Read a masked language model. Special tokens frame its texts, as in training."""
    tokenizer = read_tokenizer(folder, options)
    if any(folder.glob("*.ckpt")):
        network = _read_checkpoint(folder, options)
    else:
        network = read_transformers(folder, "AutoModelForMaskedLM", options)
    length = config.get("max_position_embeddings", 512)
    return LanguageModel(
        MaskedLMNetwork(network),
        tokenizer,
        str(config["model_type"]),
        mask_id=find_mask(config, tokenizer),
        length=min(length, getattr(tokenizer, "model_max_length", length)),
        frames=True,
        letters=config["model_type"] == "esm",
    )


def _read_checkpoint(folder: Path, options: LoadOptions) -> nn.Module:
    """Read a Lightning checkpoint with a config.json, such as GenMol's; prefers its average."""
    transformers = load_extra("transformers", "text")
    _check_layers(folder)
    config = transformers.AutoConfig.from_pretrained(str(folder))
    network: nn.Module = transformers.AutoModelForMaskedLM.from_config(config)
    weights = {name.removeprefix("backbone."): x for name, x in read_weights(folder).items()}
    weights.pop("bert.embeddings.position_ids", None)  # stored by old versions of transformers
    check_weights({name: x.shape for name, x in network.state_dict().items()}, weights)
    network.load_state_dict(weights)
    return network.to(options.device, options.dtype).eval().requires_grad_(False)


def read_block_causal(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Read LLaDA2 or SDAR. By default blocks have 32 tokens in LLaDA2, and 4 in SDAR."""
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


def read_transformers(folder: Path, kind: str, options: LoadOptions) -> nn.Module:
    """Read the network in a folder with a class of transformers."""
    transformers = load_extra("transformers", "text")
    _check_layers(folder)
    dtype = "auto" if options.dtype is None else options.dtype
    # Without safetensors files, None lets transformers read pickled tensors, which it does safely.
    safetensors = any(folder.glob("*.safetensors")) or None
    try:
        network, info = getattr(transformers, kind).from_pretrained(
            str(folder), dtype=dtype, trust_remote_code=options.trust_remote_code,
            output_loading_info=True, use_safetensors=safetensors,
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{folder} cannot be loaded by transformers ({reason}); copy the model again, or "
            f"upgrade transformers"
        ) from error
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(map(str, info.get(problem) or ()))
        if problem == "unexpected_keys":
            names = [name for name in names if not _UNUSED.search(name)]
        if names:
            raise InputError(
                f"{folder} has {len(names)} {problem.replace('_keys', '')} weights "
                f"({', '.join(names[:3])}), so its weights and config.json do not match; "
                f"copy the model again"
            )
    moved: nn.Module = network.to(options.device).eval().requires_grad_(False)
    return moved


def _check_layers(folder: Path) -> None:
    """Raise an error for an implausible number of layers, before transformers creates them."""
    layers = read_json(folder / "config.json").get("num_hidden_layers", 1)
    check_integer("num_hidden_layers in config.json", layers, most=MAX_LAYERS)
