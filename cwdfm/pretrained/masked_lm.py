"""Masked language models of transformers: BERT and GenMol, ModernBERT, ESM and DPLM, and others.

They have bidirectional attention, no logit shift and no cache. The sequences of a batch have equal
lengths, because networks number the positions of padded sequences differently.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from cwdfm.errors import InputError, check_integer, load_extra
from cwdfm.files import read_json
from cwdfm.language.model import LanguageModel, Network, kept
from cwdfm.model.attention import KVCache
from cwdfm.pretrained.text_tokenizer import LoadOptions, find_mask, read_tokenizer
from cwdfm.pretrained.weights import check_weights, read_weights

MAX_LAYERS = 1000


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


def is_masked_lm(config: dict[str, Any]) -> bool:
    """Whether transformers has a masked language model of this type."""
    if find_spec("transformers") is None or not isinstance(config.get("model_type"), str):
        return False
    auto = load_extra("transformers.models.auto.modeling_auto", "text")
    return config.get("model_type") in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


def read_masked_lm(folder: Path, config: dict[str, Any], options: LoadOptions) -> LanguageModel:
    """Read a model. As in training, texts are framed by the special tokens of the tokenizer."""
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


def read_transformers(folder: Path, kind: str, options: LoadOptions) -> nn.Module:
    """Read the network in a folder with a class of transformers."""
    transformers = load_extra("transformers", "text")
    _check_layers(folder)
    dtype = "auto" if options.dtype is None else options.dtype
    try:
        network, info = getattr(transformers, kind).from_pretrained(
            str(folder), dtype=dtype, trust_remote_code=options.trust_remote_code,
            output_loading_info=True, use_safetensors=_has_safetensors(folder),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{folder} cannot be loaded by transformers ({reason}); copy the model again, or "
            f"upgrade transformers"
        ) from error
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, info.get(problem) or ())):
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


def _has_safetensors(folder: Path) -> bool | None:
    """Prefer safetensors; None lets transformers read pickled tensors, which it does safely."""
    return True if any(folder.glob("*.safetensors")) else None
