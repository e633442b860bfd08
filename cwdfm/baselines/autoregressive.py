"""Autoregressive models: p(x) = prod_k p(x_k | start, x_1 .. x_{k-1}).

The network reads [start, x_1 .. x_{N-1}], and its output k predicts x_k. All N tokens are
predicted, so likelihoods are comparable with the bounds of the other methods.

Token ids are those of a mask source, whose mask id serves as the start token. The start token is
never sampled or scored; in a prompt it marks a free position.

Shapes: B batch, N length, M = N + 1 tokens with the start token, K positions, D width.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from cwdfm.baselines.left_to_right import CachedModel, Chunk
from cwdfm.errors import InputError, check_bool
from cwdfm.likelihood.bound import (
    Bound,
    BoundBatch,
    BoundTerms,
    LikelihoodOptions,
    estimate_bound,
    exact_terms,
)
from cwdfm.method.base import (
    DataBatch,
    Method,
    MethodConfig,
    Objective,
    SampleRequest,
    Task,
    TrainingBatch,
    unsupported_solver,
)
from cwdfm.model.attention import KVCache
from cwdfm.model.positions import Positions
from cwdfm.model.predict import check_split, evaluating, fusible_hidden, predict_logits
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.model.wrappers import BannedTokens
from cwdfm.ops.head_draw import head_draw
from cwdfm.ops.head_loss import head_cross_entropy
from cwdfm.ops.precision import product_dtype
from cwdfm.ops.random import Purpose, uniform
from cwdfm.solver import Samples
from cwdfm.solver.base import DrawOptions
from cwdfm.solver.sample import ScaledProgress
from cwdfm.source import MaskSource


@dataclass(frozen=True)
class Autoregressive(Method):
    """A causal network for p(x_k | x_<k). The id after the data tokens is the start token."""

    default_solver = "left-to-right"
    exact = True
    causal_block = 1
    step_per_token = True

    vocab_size: int

    def __post_init__(self) -> None:
        MaskSource(self.vocab_size)  # checks the size

    @property
    def num_tokens(self) -> int:
        return self.vocab_size + 1

    def network(self, config: DiTConfig) -> DiTConfig:
        return replace(config, num_tokens=self.num_tokens, attention="causal", time="none")

    def steps(self, requested: int, length: int) -> int:
        """One step per token, regardless of the requested number."""
        return length

    def sample(self, model: nn.Module, solver: object, request: SampleRequest) -> Samples:
        solver = LeftToRight() if solver is None else solver
        if not isinstance(solver, LeftToRight):
            reason = "its order is fixed, left to right, and it has no rates to simulate or weight"
            unsupported_solver(self, solver, "LeftToRight() (solver left-to-right)", reason)
        return solver.sample(model, self.vocab_size, request)

    def likelihood(
        self, model: nn.Module, x_1: Tensor, **options: Unpack[LikelihoodOptions]
    ) -> Bound:
        """-log p(x_1), exact. `fixed` tokens must be a prefix; the rest is conditioned on them."""
        ids = MaskSource(self.vocab_size)

        def terms(batch: BoundBatch) -> BoundTerms:
            check_network(model, batch.x_1.shape[1])
            input_BN = prepend_start(batch.x_1, ids)[:, :-1]
            return exact_terms(model, ids, input_BN, batch)

        data = (model, x_1, terms, self.vocab_size)
        return estimate_bound(*data, exact=True, check_fixed=check_prefix, **options)


@dataclass(frozen=True)
class NextToken(Objective):
    """The mean of -log p(x_k | x_<k) over the tokens that are not fixed, without corruption."""

    vocab_size: int

    def __post_init__(self) -> None:
        MaskSource(self.vocab_size)  # checks the size

    def training_batch(self, batch: DataBatch) -> TrainingBatch:
        input_BN = prepend_start(batch.x_1, MaskSource(self.vocab_size))[:, :-1]
        loss = partial(self._loss, x_1=batch.x_1, free_BN=~batch.fixed)
        return TrainingBatch(input_BN, batch.t, loss)

    def _loss(
        self, hidden_BND: Tensor, readout: nn.Linear, *, x_1: Tensor, free_BN: Tensor
    ) -> Tensor:
        """The loss from hidden states and the head, without storing the logits of all tokens."""
        hidden_KD = hidden_BND.flatten(0, 1)
        hidden_KD = hidden_KD.to(product_dtype(hidden_KD))
        weight_K = free_BN.flatten().float()
        with torch.autocast(hidden_KD.device.type, enabled=False):
            total = head_cross_entropy(hidden_KD, readout, x_1.flatten(), weight_K, self.vocab_size)
            return total / weight_K.sum().clamp(min=1)


@dataclass(frozen=True)
class LeftToRight(DrawOptions):
    """The autoregressive sampler: x_k ~ p(x_k | start, x_1 .. x_{k-1}), one token per step.

    The number of steps is the number of tokens; `steps` and `grid` of a request have no effect.

    - `temperature`, `top_p`, `dtype`: see `DrawOptions`.
    - `cached`: cache keys and values, so that a step evaluates one token. False evaluates the
      entire sequence for every token, which works with any callable. The samples are the same up to
      rounding.
    """

    cached: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bool("cached", self.cached)

    @torch.no_grad()
    def sample(self, model: nn.Module, vocab_size: int, request: SampleRequest) -> Samples:
        """Sample sequences.

        Token k of sample i depends on (seed, i, k) and the tokens before it, but not on the batch.
        """
        ids = MaskSource(vocab_size)
        start = Chunk.of(model, ids, request)
        check_network(model, request.shape[1])
        if self.cached and not isinstance(model, DiT):
            raise InputError(
                f"a cache needs a DiT, whose trunk accepts an attention, got "
                f"{type(model).__name__}; use LeftToRight(cached=False)"
            )
        check_prefix(start.fixed)
        with evaluating(model), model.uncompiled() if isinstance(model, DiT) else nullcontext():
            if not self.cached:
                check_split(model, start.tokens[:1], 0.0)
            chunks = start.split(request.batch_size)
            parts = [self._sample_chunk(model, ids, chunk, request) for chunk in chunks]
        free_BN = ~start.fixed
        return Samples(
            tokens=torch.cat(parts),
            updates=free_BN.int(),
            loops=torch.zeros_like(free_BN, dtype=torch.int32),
            evaluations=free_BN.sum(1),
            logit_evaluations=int(free_BN.sum()),
        )

    def _sample_chunk(
        self, model: nn.Module, ids: MaskSource, chunk: Chunk, request: SampleRequest
    ) -> Tensor:
        """Complete one batch, starting at the end of its shortest prompt; returns tokens [B, N]."""
        batch, length = chunk.tokens.shape
        tokens_BM = prepend_start(chunk.tokens, ids)
        cache = KVCache(length)
        network = model
        if isinstance(model, DiT) and self.cached:
            network = CachedModel(model, cache, causal=True)
        if request.banned_tokens:
            network = BannedTokens(network, request.banned_tokens)
        progress = ScaledProgress(request.progress, batch, request.steps, length)
        for k in range(int(chunk.fixed.sum(1).min()), length):
            index_B = chunk.index
            u_B = uniform(request.seed, Purpose.PROPOSAL, index_B, k, torch.full_like(index_B, k))
            next_B = self._draw_next(network, ids, tokens_BM[:, cache.start : k + 1], u_B)
            tokens_BM[:, k + 1] = torch.where(chunk.fixed[:, k], tokens_BM[:, k + 1], next_B)
            if self.cached:
                cache.start = k + 1
            progress.update(k + 1)
        progress.update(length)  # even if all tokens of the batch are fixed
        return tokens_BM[:, 1:]

    def _draw_next(
        self, network: nn.Module, ids: MaskSource, input_BL: Tensor, u_B: Tensor
    ) -> Tensor:
        """Draw the next token [B] after the cached tokens and the L new ones."""
        last_BL = torch.zeros_like(input_BL, dtype=torch.bool)
        last_BL[:, -1] = True
        t_B = torch.zeros(len(input_BL), device=input_BL.device)
        query = (network, ids, input_BL, t_B, Positions.of(last_BL))
        if self.fusible and (fused := fusible_hidden(*query)) is not None:
            return head_draw(*fused, u_B, ids.vocab_size, temperature=self.temperature).tokens
        parts = [self.draw(logits_kV, u_B[k]) for k, logits_kV in predict_logits(*query)]
        return torch.cat(parts)


def prepend_start(x_BN: Tensor, ids: MaskSource) -> Tensor:
    """[start, x] [B, N + 1]. Without its last token, it is the network's input to predict x."""
    return torch.cat([torch.full_like(x_BN[:, :1], ids.mask_id), x_BN], dim=1)


def check_prefix(fixed_BN: Tensor) -> None:
    """Raise an InputError unless the fixed tokens of every sequence are a prefix."""
    after_free_BN = fixed_BN[:, 1:] & ~fixed_BN[:, :-1]
    if bool(after_free_BN.any()):
        b, i = after_free_BN.nonzero()[0].tolist()
        raise InputError(
            f"position {i + 1} of sequence {b} is fixed and position {i} before it is not: a "
            f"left-to-right model cannot condition on later tokens; fix only a prefix, or use a "
            f"flow for infilling"
        )


def check_network(model: nn.Module, length: int) -> None:
    """Raise an InputError unless a transformer is causal and has enough learned positions."""
    if not isinstance(model, DiT):
        return
    config = model.config
    if config.attention != "causal":
        raise InputError(
            f"an autoregressive model needs causal attention, got attention={config.attention!r}, "
            f"with which it would see the tokens that it predicts; build it with "
            f"DiT(method.network(config))"
        )
    if 0 < config.positions < length:
        raise InputError(
            f"this model has {config.positions} learned positions, and the sequences have {length} "
            f"tokens; use shorter sequences, or train with positions=0"
        )


@dataclass(frozen=True)
class AutoregressiveConfig(MethodConfig):
    """An autoregressive model, without settings of its own."""

    method_class = Autoregressive

    method: str = "ar"  # the training method: flow, mdlm, sedd, bd3lm or ar

    def build(self, vocab_size: int, size: DiTConfig, length: int) -> Task:
        method = Autoregressive(vocab_size)
        return Task(method, NextToken(vocab_size), method.network(size))

    @classmethod
    def settings_of(cls, method: Method, model: DiTConfig) -> dict[str, Any] | None:
        return {"method": "ar"} if isinstance(method, Autoregressive) else None
