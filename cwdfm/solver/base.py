"""The solver interface: `init` creates a state and `step` advances it from t to t_next.

A `State` holds everything the next step needs; diagnostics of a step are returned separately, as
`Info`. `sample.py` runs the loop over a time grid, but `init` and `step` can also be called
directly.

Shapes: B batch, N sequence length.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.errors import (
    MAX_LENGTH,
    InputError,
    check_instance,
    check_integer,
    check_mask,
    check_tokens,
    describe,
    has_values,
)
from cwdfm.model.protocol import Model
from cwdfm.ops.categorical import check_draw, nucleus, sample_categorical
from cwdfm.ops.random import Purpose, check_seed, sample_index, uniform_BN
from cwdfm.schedule import Schedule
from cwdfm.source import Source


@dataclass(frozen=True)
class State:
    """A batch of sequences x_t, and everything needed to advance them."""

    tokens: Tensor  # [B, N] int64: x_t
    fixed: Tensor  # [B, N] bool: prompt tokens, which never change
    index: Tensor  # [B] int64: global sample numbers, which seed the random draws
    max_free: int  # largest number of coordinates that are not fixed, over the batch
    seed: int
    step: int | Tensor  # steps taken so far; an int64 tensor [B] if it differs between sequences
    updates: Tensor  # [B, N] int32: number of times each token changed
    loops: Tensor  # [B, N] int32: number of changes that restored the previous data token
    previous: Tensor  # [B, N] int64: the data token replaced by the last change; -1 if none
    start_survival: float = 1.0  # 1 - kappa at the start time, when all free coordinates are noise
    prompted: Tensor | None = None  # [B] bool: sequences with a prompt; None if there are none
    memory: Any = None  # solver-specific state from earlier steps; None at the start

    @classmethod
    def start(cls, tokens_BN: Tensor, fixed_BN: Tensor, index_B: Tensor, seed: int) -> "State":
        """The state before the first step."""
        zeros_BN = torch.zeros_like(tokens_BN, dtype=torch.int32)
        return cls(
            tokens=tokens_BN,
            fixed=fixed_BN,
            index=index_B,
            max_free=int((~fixed_BN).sum(1).max()),
            seed=seed,
            step=0,
            updates=zeros_BN,
            loops=zeros_BN,
            previous=torch.full_like(tokens_BN, -1),
        )

    def uniform(self, purpose: Purpose) -> Tensor:
        """Uniform draws [B, N] for the next step."""
        return uniform_BN(self.seed, purpose, self.index, self.step, self.tokens.shape[1])

    def exponential(self, purpose: Purpose) -> Tensor:
        """Exp(1) draws [B, N] for the next step."""
        return -torch.log1p(-self.uniform(purpose))


@dataclass(frozen=True)
class Info:
    """Diagnostics of one step."""

    t: float
    t_next: float
    forward: Tensor  # [B, N] bool: tokens that jumped to their proposal
    backward: Tensor  # [B, N] bool: tokens that a corrector returned to the source
    logit_evaluations: int  # positions at which logits were computed
    evaluated: Tensor  # [B] bool or int64: number of model evaluations of each sequence
    alpha: Tensor | None = None  # [B, N] float64: the context weights, if they were computed


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """Options of the categorical draws, shared by all samplers.

    Tokens are drawn from softmax(logits / temperature), restricted to the `top_p` nucleus, using
    uniforms rounded to `dtype`. Temperature 0 selects the most likely token. Weights and scores
    always use the unmodified logits.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        check_draw(self.temperature, self.top_p, self.dtype)

    @property
    def fusible(self) -> bool:
        """Whether `head_draw`, which draws without storing the logits, supports these options."""
        return self.temperature > 0 and self.top_p == 1 and self.dtype == torch.float64

    def draw(self, logits_KV: Tensor, u_K: Tensor) -> Tensor:
        """Draw token ids [K] with the uniforms u_K."""
        return sample_categorical(
            logits_KV, u_K, temperature=self.temperature, top_p=self.top_p, dtype=self.dtype
        )

    def probabilities(self, logits_KV: Tensor) -> Tensor:
        """The distributions that `draw` samples from, float64 [K, V]."""
        if self.temperature == 0:
            return F.one_hot(logits_KV.argmax(-1), logits_KV.shape[-1]).double()
        p_KV = (logits_KV.double() / self.temperature).softmax(-1)
        if self.top_p == 1:
            return p_KV
        p_KV = p_KV * nucleus(p_KV, self.top_p)
        return p_KV / p_KV.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Reveals:
    """The reveal step of every coordinate, drawn before the model is evaluated."""

    step: Tensor  # [B, N] int64: the step at which each coordinate is revealed; -1 if never
    draw: DrawOptions  # how the revealed tokens are drawn


class Solver(ABC):
    """A single-step method that simulates the continuous-time Markov chain."""

    def init(
        self,
        source: Source,
        index_B: Tensor,
        length: int,
        *,
        seed: int = 0,
        prompt: Tensor | None = None,
        fixed: Tensor | None = None,
    ) -> State:
        """Create the state at t = 0: noise from the source, and the prompt where `fixed` is True.

        A sample depends only on its global number in index_B [B] and on the seed. `prompt` and
        `fixed` are [B, N] or [N]. With a mask source, `fixed` defaults to all tokens except the
        mask.
        """
        check_instance("source", source, Source, "MaskSource(vocab_size=30)")
        check_instance("index_B", index_B, Tensor, "torch.arange(4)")
        check_seed(seed)
        check_integer("length", length, most=MAX_LENGTH)
        check_integer("the number of samples", len(index_B))
        index_B = sample_index(index_B, len(index_B), index_B.device)
        shape = (len(index_B), length)
        noise_BN = source.noise(index_B, length, seed=seed)
        prompt_BN, fixed_BN = broadcast_prompt(source, shape, prompt, fixed, index_B.device)
        prompted_B = fixed_BN[:, 1:].any(1)  # a fixed first token (BOS) alone is not a prompt
        state = State.start(torch.where(fixed_BN, prompt_BN, noise_BN), fixed_BN, index_B, seed)
        return replace(state, prompted=prompted_B) if bool(prompted_B.any()) else state

    @abstractmethod
    def step(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        state: State,
        t: float,
        t_next: float,
    ) -> tuple[State, Info]:
        """Simulate from t to t_next. A step to t_next = 1 reveals all remaining tokens."""

    def unfinished(self, source: Source, state: State) -> Tensor | None:
        """The sequences that further steps may change, bool [B]; None: all, until the last step."""
        return None

    def precompute_reveals(
        self, source: Source, schedule: Schedule, state: State, times: Sequence[float]
    ) -> Reveals | None:
        """Draw the step of the time grid at which each coordinate is revealed.

        Returns None unless every coordinate jumps at most once, at a step that does not depend on
        the model. See `precomputed.py`.
        """
        return None


def with_draws(solver: Any, **options: Any) -> Any:
    """The solver with other options of its draws, or of those of the solver inside it.

    Options that are None keep their value.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if not options:
        return solver
    is_config = is_dataclass(solver) and not isinstance(solver, type)
    names = {field.name for field in fields(solver)} if is_config else set()
    if options.keys() <= names:
        return replace(solver, **options)
    if "solver" in names:
        return replace(solver, solver=with_draws(solver.solver, **options))
    missing = " and ".join(options)
    raise InputError(
        f"{solver!r} has no {missing}; omit it, or set it inside the solver", fields=(*options,)
    )


def advance(source: Source, state: State, tokens_BN: Tensor) -> State:
    """The state after a step to tokens_BN [B, N], with updated statistics.

    Loops ignore masks: a -> mask -> a is a loop, and mask -> a -> mask is not.
    """
    changed_BN = tokens_BN != state.tokens
    restored_BN = changed_BN & (tokens_BN == state.previous)
    replaced_BN = changed_BN & (state.tokens < source.vocab_size)
    return replace(
        state,
        tokens=tokens_BN,
        step=state.step + 1,
        updates=state.updates + changed_BN.int(),
        loops=state.loops + restored_BN.int(),
        previous=torch.where(replaced_BN, state.tokens, state.previous),
    )


def broadcast_prompt(
    source: Source,
    shape: tuple[int, int],
    prompt: Tensor | None,
    fixed: Tensor | None,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Check the prompt tokens and their mask, and broadcast both to `shape` [B, N]."""
    if prompt is None:
        if fixed is not None:
            raise InputError("fixed requires a prompt: pass prompt= with the tokens to keep")
        zeros_BN = torch.zeros(shape, dtype=torch.int64, device=device)
        return zeros_BN, zeros_BN.bool()
    prompt_BN = _broadcast("prompt", prompt, shape, device)
    check_tokens("prompt", prompt_BN, source.num_tokens)
    if fixed is None:
        fixed_BN = source.revealed(prompt_BN)
        if fixed_BN is None:
            raise InputError(
                f"with {source} the prompt does not show which of its tokens to keep: pass fixed= "
                f"with True at the positions to keep"
            )
    else:
        fixed_BN = _broadcast("fixed", fixed, shape, device)
        check_mask("fixed", fixed_BN, shape)
    if bool((fixed_BN & (prompt_BN >= source.vocab_size)).any()):
        raise InputError("the prompt has the mask id at a fixed position; set fixed to False there")
    return prompt_BN, fixed_BN


def fixed_tokens(source: Source, tokens_BN: Tensor, fixed: Tensor | None) -> Tensor:
    """Check the mask of the tokens to keep, [B, N] or [N], and broadcast it; None keeps none."""
    if fixed is None:
        return torch.zeros_like(tokens_BN, dtype=torch.bool)
    shape = (tokens_BN.shape[0], tokens_BN.shape[1])
    return broadcast_prompt(source, shape, tokens_BN, fixed, tokens_BN.device)[1]


def _broadcast(name: str, x: Tensor, shape: tuple[int, int], device: torch.device) -> Tensor:
    if not has_values(x) or x.shape not in (shape, shape[1:]):
        raise InputError(
            f"{name} must be a tensor of shape {shape} or {shape[1:]}, got {describe(x)}; pad it "
            f"to the sampled length, with the mask id or with any id where fixed is False"
        )
    return x.to(device).expand(shape)
