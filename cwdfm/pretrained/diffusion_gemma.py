"""DiffusionGemma: denoises blocks ("canvases") of uniform noise after a causally encoded prefix.

The decoder attends to the encoder's keys and values and to all tokens of the canvas. Logits are
softcapped and not shifted. In every step the decoder also receives the logits of the previous step
(self-conditioning), divided by the sampling temperature as in transformers.

Shapes: B batch, L tokens per canvas, K tokens, V ids, D width.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cwdfm.errors import load_extra
from cwdfm.language.model import LanguageModel
from cwdfm.language.session import Canvas
from cwdfm.ops.decoder import softcap
from cwdfm.pretrained.text_tokenizer import LoadOptions, find_stop, read_tokenizer
from cwdfm.pretrained.transformers_models import read_transformers
from cwdfm.solver import Solver


class DiffusionGemmaNetwork(nn.Module):
    """Wraps `DiffusionGemmaForBlockDiffusion` of transformers."""

    caches = False  # not a choice: the encoder always caches the prefix

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network: Any = network

    @property
    def num_tokens(self) -> int:
        count: int = self.network.config.text_config.vocab_size
        return count

    def logits(self, logits_KV: Tensor) -> Tensor:
        """Return the input: the session already computes logits, which the next step needs."""
        return logits_KV

    def head(self, hidden_BLD: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Logits [B, L, V] in float32, and divided by the temperature in the network's dtype."""
        cap = self.network.final_logit_softcapping
        return softcap(self.network.lm_head(hidden_BLD), cap, temperature)

    def session(self, model: LanguageModel, canvas: Canvas, solver: Solver) -> "GemmaSession":
        """Start generating a batch."""
        return GemmaSession(self, canvas, getattr(solver, "temperature", 1.0) or 1.0)


class GemmaSession:
    """Encodes the prefix, then evaluates one canvas after another."""

    def __init__(self, model: DiffusionGemmaNetwork, canvas: Canvas, temperature: float) -> None:
        self.model, self.canvas, self.temperature = model, canvas, temperature
        self.network: Any = model.network
        transformers = load_extra("transformers", "text")
        config = self.network.config.get_text_config(decoder=True)
        self.cache = transformers.DynamicCache(config=config)
        self._encode(slice(0, canvas.begin))

    def start(self, block: slice) -> None:
        self.block = block
        self.previous: Tensor | None = None
        decoder = self.network.model.decoder
        self.mask = decoder.create_diffusion_decoder_attention_mask(
            config=self.network.config,
            inputs_embeds=self.canvas.tokens[:, block, None],  # only its shape matters
            past_key_values=self.cache,
            decoder_attention_mask=self.canvas.valid[:, : block.stop],
        )

    def hidden(self, x_AL: Tensor, rows_A: Tensor | None) -> Tensor:
        if rows_A is None:
            self.canvas.tokens[:, self.block] = x_AL
        else:
            self.canvas.tokens[rows_A, self.block] = x_AL
        hidden_BLD: Tensor = self.network.model.decoder(
            decoder_input_ids=self.canvas.tokens[:, self.block],
            past_key_values=self.cache,
            self_conditioning_logits=self.previous,
            decoder_attention_mask=self.mask,
            decoder_position_ids=self.canvas.position[:, self.block],
        ).last_hidden_state
        logits_BLV, self.previous = self.model.head(hidden_BLD, self.temperature)
        return logits_BLV if rows_A is None else logits_BLV[rows_A]

    def finish(self) -> None:
        self._encode(self.block)

    def select(self, rows: Tensor) -> None:
        self.canvas = self.canvas.select(rows)
        self.cache.batch_select_indices(rows.nonzero()[:, 0])

    def _encode(self, columns: slice) -> None:
        """Add final tokens to the cache."""
        encoder, canvas = self.network.model.encoder, self.canvas
        ids, position = canvas.tokens[:, columns], canvas.position[:, columns]
        blank = torch.empty(*ids.shape, 0, dtype=self.network.dtype, device=ids.device)
        masks = encoder.create_masks_for_generate(
            config=self.network.config,
            inputs_embeds=blank,  # only its shape matters
            attention_mask=canvas.valid[:, : columns.stop],
            past_key_values=self.cache,
            position_ids=position,
        )
        encoder(
            input_ids=ids, attention_mask=masks, past_key_values=self.cache, position_ids=position
        )


def read_diffusion_gemma(
    folder: Path, config: dict[str, Any], options: LoadOptions
) -> LanguageModel:
    """Read a model. Canvases have the training length, and 48 steps as in transformers."""
    tokenizer = read_tokenizer(folder, options)
    network = read_transformers(folder, "DiffusionGemmaForBlockDiffusion", options)
    return LanguageModel(
        DiffusionGemmaNetwork(network),
        tokenizer,
        "DiffusionGemma",
        block_length=config["canvas_length"],
        block_steps=48,
        whole_blocks=True,
        stop_ids=find_stop(folder, config.get("text_config", {}), tokenizer),
        length=config["text_config"]["max_position_embeddings"],
    )
