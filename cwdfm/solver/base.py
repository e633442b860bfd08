"""What a solver is: `init` makes a state, `step` takes it from t to t_next.

The state holds all that the next step needs; what is merely worth knowing about a step comes apart
from it, as its Info. The loop over a time grid lives in `sample.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_integer, check_mask, check_tokens, describe
from cwdfm.model.protocol import Model
from cwdfm.ops.random import check_seed, sample_index
from cwdfm.schedule import Schedule
from cwdfm.source import Source


@dataclass(frozen=True)
class State:
    """A batch of sequences on their way from noise to data."""

    tokens: Tensor  # [B, N] int64, x_t
    fixed: Tensor  # [B, N] bool: given tokens, which never change
    index: Tensor  # [B] int64: the samples' global numbers, which their randomness hangs on
    free: int  # coordinates that are not fixed, of the sequence that has the most of them
    seed: int
    step: int | Tensor  # steps taken: by all, or int64 [B] by each
    updates: Tensor  # [B, N] int32: how often each token changed
    loops: Tensor  # [B, N] int32: how often a change brought the data token before it back
    before: Tensor  # [B, N] int64: the last data token that a change replaced; -1 if none yet
    left: float = 1.0  # 1 - kappa at the time the free coordinates were all noise: 1 at t = 0


@dataclass(frozen=True)
class Info:
    """What one step did and what it cost."""

    t: float
    t_next: float
    forward: Tensor  # [B, N] bool: tokens that moved to their proposal
    backward: Tensor  # [B, N] bool: tokens that a corrector sent back to the source
    rows: int  # coordinates at which logits were computed or read
    asked: Tensor  # [B] bool: sequences for which the model was needed


class Drawing(Protocol):
    """How tokens are drawn: fields that every solver has."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def dtype(self) -> torch.dtype: ...


@dataclass(frozen=True)
class Reveals:
    """What is known of all steps of a grid before the model is asked."""

    step: Tensor  # [B, N] int64: the step in which each coordinate moves, once; -1: it does not
    drawing: Drawing  # how its token is drawn then


class Solver(ABC):
    """One way to simulate the chain."""

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
        """The state at t = 0 of the samples numbered index_B [B]: noise, or prompt where fixed.

        `prompt` [B, N] or [N] holds the given tokens; `fixed`, of such a shape too, says which of
        them are given. With a mask source it may be left out: all but the mask id is given.
        """
        check_seed(seed)
        check_integer("length", length)
        check_integer("the number of samples", len(index_B))
        index_B = sample_index(index_B, len(index_B), index_B.device)
        shape = (len(index_B), length)
        noise_BN = source.noise(index_B, length, seed=seed)
        prompt_BN, fixed_BN = given(source, shape, prompt, fixed, index_B.device)
        zeros_BN = torch.zeros(shape, dtype=torch.int32, device=index_B.device)
        return State(
            tokens=torch.where(fixed_BN, prompt_BN, noise_BN),
            fixed=fixed_BN,
            index=index_B,
            free=int((~fixed_BN).sum(1).max()),
            seed=seed,
            step=0,
            updates=zeros_BN,
            loops=zeros_BN,
            before=torch.full_like(noise_BN, -1),
        )

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
        """Simulate from t to t_next; a step to 1 moves every masked token to its proposal."""

    def reveals(
        self, source: Source, schedule: Schedule, state: State, times: Sequence[float]
    ) -> Reveals | None:
        """When each coordinate moves along a grid of times, from this state.

        Only where it moves once at most, and when does not hang on the model; None elsewhere, which
        is the default. See `visit.py` for what is gained.
        """
        return None


def moved(source: Source, state: State, tokens_BN: Tensor) -> State:
    """The state after a step to tokens_BN, with its counts brought up to date.

    A mask in between does not count: a, mask, a is a loop, and mask, a, mask is none.
    """
    changed_BN = tokens_BN != state.tokens
    undone_BN = changed_BN & (tokens_BN == state.before)
    replaced_BN = changed_BN & (state.tokens < source.vocab_size)
    return State(
        tokens=tokens_BN,
        fixed=state.fixed,
        index=state.index,
        free=state.free,
        seed=state.seed,
        step=state.step + 1,
        updates=state.updates + changed_BN.int(),
        loops=state.loops + undone_BN.int(),
        before=torch.where(replaced_BN, state.tokens, state.before),
        left=state.left,
    )


def given(
    source: Source,
    shape: tuple[int, int],
    prompt: Tensor | None,
    fixed: Tensor | None,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The prompt and where it is fixed, checked and broadcast to [B, N]."""
    if prompt is None:
        if fixed is not None:
            raise InputError("fixed without a prompt: pass prompt= with the tokens to keep")
        blank_BN = torch.zeros(shape, dtype=torch.int64, device=device)
        return blank_BN, blank_BN.bool()
    prompt_BN = _broadcast("prompt", prompt, shape, device)
    check_tokens("prompt", prompt_BN, source.num_tokens)
    if fixed is None:
        fixed_BN = source.revealed(prompt_BN)
        if fixed_BN is None:
            raise InputError(
                f"with {source} a prompt does not tell which of its tokens are given: "
                f"pass fixed= with True where they are"
            )
    else:
        fixed_BN = _broadcast("fixed", fixed, shape, device)
        check_mask("fixed", fixed_BN, shape)
    if bool((fixed_BN & (prompt_BN >= source.vocab_size)).any()):
        raise InputError("a fixed position of the prompt holds the mask id; leave it unfixed")
    return prompt_BN, fixed_BN


def _broadcast(name: str, x: Tensor, shape: tuple[int, int], device: torch.device) -> Tensor:
    if not isinstance(x, Tensor) or x.shape not in (shape, shape[1:]):
        raise InputError(
            f"{name} must be a tensor of shape {shape} or {shape[1:]}, got {describe(x)}; "
            f"pad it to the length that is sampled, with the mask id, or with any id where fixed "
            f"is False"
        )
    return x.to(device).expand(shape)
