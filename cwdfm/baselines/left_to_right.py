"""Sampling from left to right: x_k ~ p(x_k | start, x_1 .. x_{k-1}), one token a step.

Keys and values of what was read stay in a cache, so that a step reads one token; the prompt that
all sequences of a batch share the length of is read at once.

Shapes: B batch, N length, M = N + 1: the start token, then the sequence.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError, check_bool, check_integer
from cwdfm.method.base import DrawRequest
from cwdfm.model.attention import CachedAttention, KVCache
from cwdfm.model.positions import Positions
from cwdfm.model.predict import (
    check_split,
    evaluating,
    fusible_hidden,
    model_device,
    predict_logits,
)
from cwdfm.model.transformer import DiT
from cwdfm.model.wrappers import BannedTokens
from cwdfm.ops.categorical import check_draw, sample_categorical
from cwdfm.ops.head_draw import head_draw
from cwdfm.ops.random import Purpose, check_seed, sample_index, uniform
from cwdfm.solver import Samples
from cwdfm.solver.base import given
from cwdfm.solver.sample import batches
from cwdfm.source import MaskSource


@dataclass(frozen=True)
class LeftToRight:
    """The autoregressive sampler.

    It takes one step a token, whatever `steps` and `grid` are asked for.

    - `temperature`, `top_p`, `dtype`: of the categorical draws, as in Euler.
    - `cached`: False reads the whole sequence again for every token, which any callable can do; the
      tokens are the same, up to rounding.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    dtype: torch.dtype = torch.float64
    cached: bool = True

    def __post_init__(self) -> None:
        check_draw(self.temperature, self.top_p, self.dtype)
        check_bool("cached", self.cached)

    @torch.no_grad()
    def sample(self, model: nn.Module, vocab_size: int, asked: DrawRequest) -> Samples:
        """Sequences, all of their free tokens drawn once. See `DrawRequest`.

        The token at k of sample i hangs on (seed, i, k) and on what comes before it, not on the
        batch it is drawn in.
        """
        ids, (batch, length) = start_ids(vocab_size), asked.shape
        check_integer("batch", batch)
        check_integer("length", length)
        check_seed(asked.seed)
        check_network(model, length)
        if self.cached and not isinstance(model, DiT):
            raise InputError(
                f"a cache needs a DiT, whose trunk takes an attention, got {type(model).__name__}; "
                f"use LeftToRight(cached=False)"
            )
        device = model_device(model) or torch.device("cpu")
        places = batches(batch, asked.batch_size, device)
        index_B = sample_index(asked.index, batch, device)
        prompt_BN, fixed_BN = given(ids, asked.shape, asked.prompt, asked.fixed, device)
        check_prefix(fixed_BN)
        if bool(fixed_BN.all()):
            raise InputError("all positions are fixed: nothing is left to sample; unfix some")
        tokens_BN = torch.where(fixed_BN, prompt_BN, ids.mask_id)
        with evaluating(model), model.uncompiled() if isinstance(model, DiT) else nullcontext():
            if not self.cached:
                check_split(model, tokens_BN[:1], 0.0)
            parts = [
                self._walk(model, ids, tokens_BN[rows], fixed_BN[rows], index_B[rows], asked)
                for rows in places
            ]
        free_BN = ~fixed_BN
        return Samples(
            tokens=torch.cat(parts),
            updates=free_BN.int(),
            loops=torch.zeros_like(free_BN, dtype=torch.int32),
            evaluations=free_BN.sum(1),
            rows=int(free_BN.sum()),
        )

    def _walk(
        self,
        model: nn.Module,
        ids: MaskSource,
        tokens_BN: Tensor,
        fixed_BN: Tensor,
        index_B: Tensor,
        asked: DrawRequest,
    ) -> Tensor:
        """One batch from the end of its shortest prompt to its last token."""
        batch, length = tokens_BN.shape
        line_BM = with_start(tokens_BN, ids)
        cache = KVCache(length)
        network = Remembering(model, cache) if isinstance(model, DiT) and self.cached else model
        network = BannedTokens(network, asked.without) if asked.without else network
        tick = _proportional(asked, batch, length)
        first = int(fixed_BN.sum(1).min())
        for k in range(first, length):
            u_B = uniform(asked.seed, Purpose.PROPOSAL, index_B, k, torch.full_like(index_B, k))
            drawn_B = self._next(network, ids, line_BM[:, cache.length : k + 1], u_B)
            line_BM[:, k + 1] = torch.where(fixed_BN[:, k], line_BM[:, k + 1], drawn_B)
            if self.cached:
                cache.length = k + 1
            tick(k + 1)
        tick(length)
        return line_BM[:, 1:]

    def _next(self, network: nn.Module, ids: MaskSource, read_BR: Tensor, u_B: Tensor) -> Tensor:
        """The token [B] behind those given, which follow what the network remembers."""
        rows_BR = torch.zeros_like(read_BR, dtype=torch.bool)
        rows_BR[:, -1] = True
        t_B = torch.zeros(len(read_BR), device=read_BR.device)
        asked = (network, ids, read_BR, t_B, Positions.of(rows_BR))
        plain = self.top_p == 1 and self.dtype == torch.float64
        if plain and (found := fusible_hidden(*asked)) is not None:
            return head_draw(*found, u_B, ids.vocab_size, temperature=self.temperature).tokens
        drawn = [
            sample_categorical(
                logits_kV,
                u_B[k],
                temperature=self.temperature,
                top_p=self.top_p,
                dtype=self.dtype,
            )
            for k, logits_kV in predict_logits(*asked)
        ]
        return torch.cat(drawn)


class Remembering(nn.Module):
    """A causal network that is given only what comes behind its cache.

    What it is given stays if the owner of the cache moves `cache.length` on. All sequences are
    asked each time, a finished prompt or not, since all are to be remembered.
    """

    def __init__(self, model: DiT, cache: KVCache) -> None:
        super().__init__()
        self.model, self.cache, self.readout = model, cache, model.readout

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x, t))

    def trunk(self, x: Tensor, t: Tensor) -> Tensor:
        """Hidden vectors of the tokens given."""
        return self.model.trunk(x, t, CachedAttention(self.cache, causal=True))

    def head(self, hidden: Tensor) -> Tensor:
        """The model's own."""
        return self.model.head(hidden)


def start_ids(vocab_size: int) -> MaskSource:
    """The ids of an autoregressive network are those of a mask source, its mask the start token.

    Never drawn, never scored; in a prompt it stands where a token is free.
    """
    return MaskSource(vocab_size)


def with_start(x_BN: Tensor, ids: MaskSource) -> Tensor:
    """[start, x], [B, N + 1]: without its last token, what the network reads to predict x."""
    return torch.cat([torch.full_like(x_BN[:, :1], ids.mask_id), x_BN], dim=1)


def check_prefix(fixed_BN: Tensor) -> None:
    """Refuse given tokens behind free ones."""
    behind_BN = fixed_BN[:, 1:] & ~fixed_BN[:, :-1]
    if bool(behind_BN.any()):
        b, i = behind_BN.nonzero()[0].tolist()
        raise InputError(
            f"position {i + 1} of sequence {b} is fixed and position {i} before it is not: a "
            f"left-to-right model predicts from what comes before, and cannot be conditioned on "
            f"what comes after a hole; fix only how a sequence begins, or fill holes with a flow"
        )


def check_network(model: nn.Module, length: int) -> None:
    """Refuse a transformer that sees what it shall predict, or knows no positions so far out."""
    if not isinstance(model, DiT):
        return
    if model.config.attention != "causal":
        raise InputError(
            f"an autoregressive model needs causal attention, got attention="
            f"{model.config.attention!r}: it would read the tokens that it predicts; build it "
            f"with DiT(method.network(config))"
        )
    if 0 < model.config.positions < length:
        raise InputError(
            f"this model has learned {model.config.positions} positions and was asked for "
            f"sequences of {length}; ask for shorter ones, or train with positions=0"
        )


def _proportional(asked: DrawRequest, batch: int, length: int) -> Callable[[int], None]:
    """Tells `asked.tick` of as many steps in all as were asked for, as tokens are done."""
    told = 0

    def tick(done: int) -> None:
        nonlocal told
        due = asked.steps * done // length
        if asked.tick is not None and due > told:
            asked.tick((due - told) * batch)
        told = due

    return tick
