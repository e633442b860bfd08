"""Sentence embeddings, as features for MAUVE."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.errors import check_integer
from cwdfm.metrics.evaluator import check_nonempty
from cwdfm.metrics.text_model import Dtype, load_text_model


@dataclass(frozen=True)
class Embedder:
    """A sentence-embedding model, such as MiniLM; `load` reads its weights.

    An embedding is the mean of the last hidden states over the tokens of a text, normalized to
    length 1. Texts are truncated to `max_tokens`. With None this is `max_seq_length` in
    sentence_bert_config.json, or else the number of positions of the model.
    """

    model: str
    dtype: Dtype = "float32"
    max_tokens: int | None = None
    device: str | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 3)

    def load(self) -> "LoadedEmbedder":
        """Load the model; InputError if that is not possible."""
        return LoadedEmbedder(self)


class LoadedEmbedder:
    """A sentence-embedding model in memory."""

    def __init__(self, config: Embedder) -> None:
        self.config = config
        self.loaded = load_text_model(
            "AutoModel",
            config.model,
            dtype=config.dtype,
            device=config.device,
            revision=config.revision,
        )
        limits = (config.max_tokens or _configured_length(config.model), self.loaded.max_positions)
        self.max_tokens = min((n for n in limits if n), default=512)

    def conventions(self) -> dict[str, Any]:
        """The settings that a result must report."""
        return {
            "model": self.config.model,
            "revision": self.loaded.revision,
            "dtype": self.config.dtype,
            "device": str(self.loaded.device),
            "features": "mean of the last hidden states, normalized to length 1",
            "max_tokens": self.max_tokens,
        }

    @torch.inference_mode()
    def features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings [B, D]."""
        check_nonempty(texts)
        encoded = self.loaded.tokenizer(
            list(texts), truncation=True, max_length=self.max_tokens, verbose=False
        )["input_ids"]
        check_nonempty(encoded)
        # 64 hidden widths per token are a generous estimate of the activations of a layer.
        model = self.loaded.model
        budget = self.loaded.token_budget(model.config.hidden_size * model.dtype.itemsize * 64)
        parts: dict[int, Tensor] = {}
        for batch, ids_BT, mask_BT in self.loaded.batches(encoded, budget):
            hidden_BTD = model(input_ids=ids_BT, attention_mask=mask_BT)[0].float()
            real_BT1 = torch.ones_like(ids_BT)[..., None] if mask_BT is None else mask_BT[..., None]
            mean_BD = (hidden_BTD * real_BT1).sum(1) / real_BT1.sum(1)
            parts |= dict(zip(batch, F.normalize(mean_BD).cpu(), strict=True))
        features: NDArray[np.float32] = torch.stack([parts[k] for k in range(len(texts))]).numpy()
        return features


def _configured_length(model: str) -> int | None:
    path = Path(model).expanduser() / "sentence_bert_config.json"
    length = json.loads(path.read_text()).get("max_seq_length") if path.is_file() else None
    return length if isinstance(length, int) and length > 2 else None
