"""Sentence embeddings as features for MAUVE."""

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
from cwdfm.metrics.batching import length_batches, pad_right, token_budget
from cwdfm.metrics.evaluator import check_filled
from cwdfm.metrics.hub import Dtype, TextModel, load_text_model


@dataclass(frozen=True)
class Embedder:
    """Which sentence-embedding model to use, such as a folder with MiniLM; `load` makes it ready.

    An embedding is the mean of the last hidden states over the text's tokens, scaled to length 1.
    Texts are cut at `max_tokens`; None is what the folder's sentence_bert_config.json says, else
    the model's positions.
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
        """Read the weights; InputError where they cannot be had."""
        return LoadedEmbedder(self)


class LoadedEmbedder:
    """A sentence-embedding model in memory."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.loaded: TextModel = load_text_model(
            "AutoModel",
            embedder.model,
            dtype=embedder.dtype,
            device=embedder.device,
            revision=embedder.revision,
        )
        advised = embedder.max_tokens or _advised(embedder.model)
        self.max_tokens = min((n for n in (advised, self.loaded.positions) if n), default=512)

    def conventions(self) -> dict[str, Any]:
        """What a result must say about its features."""
        return {
            "model": self.embedder.model,
            "revision": getattr(self.loaded.model.config, "_commit_hash", None),
            "dtype": self.embedder.dtype,
            "device": str(self.loaded.device),
            "features": "mean of the last hidden states, scaled to length 1",
            "max_tokens": self.max_tokens,
        }

    @torch.inference_mode()
    def features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeddings [B, D]."""
        check_filled(texts)
        encoded = self.loaded.tokenizer(
            list(texts), truncation=True, max_length=self.max_tokens, verbose=False
        )["input_ids"]
        check_filled(encoded)
        # A hidden state and a layer's activations a token: 64 widths are plenty.
        width = self.loaded.model.config.hidden_size * self.loaded.model.dtype.itemsize * 64
        parts: dict[int, Tensor] = {}
        budget = token_budget(self.loaded.device, width)
        for batch in length_batches([len(ids) for ids in encoded], budget):
            ids_BT, mask_BT = pad_right([encoded[k] for k in batch], self.loaded.device)
            hidden_BTD = self.loaded.model(input_ids=ids_BT, attention_mask=mask_BT)[0].float()
            real_BT1 = torch.ones_like(ids_BT)[..., None] if mask_BT is None else mask_BT[..., None]
            mean_BD = (hidden_BTD * real_BT1).sum(1) / real_BT1.sum(1)
            parts |= dict(zip(batch, F.normalize(mean_BD).cpu(), strict=True))
        features: NDArray[np.float32] = torch.stack([parts[k] for k in range(len(texts))]).numpy()
        return features


def _advised(model: str) -> int | None:
    path = Path(model).expanduser() / "sentence_bert_config.json"
    advised = json.loads(path.read_text()).get("max_seq_length") if path.is_file() else None
    return advised if isinstance(advised, int) and advised > 2 else None
