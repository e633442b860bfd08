"""The diffusion transformer (DiT) of MDLM (Sahoo et al. 2024), which the paper uses.

Attention uses rotary position embeddings. The time enters through adaptive layer norms whose gates
are initialized to zero, so that every block starts as the identity. The head is initialized to
zero, so that the initial loss is exactly ln V. `trunk` contains everything that depends on time or
on other coordinates; `head` is one linear layer.

Shapes: B batch, N length, D width, H heads, C conditioning width.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.config import added
from cwdfm.errors import InputError, check_choice, check_integer, require
from cwdfm.model.attention import (
    AttentionFn,
    AttentionPattern,
    BlockDiffusionAttention,
    CausalAttention,
    FullAttention,
)
from cwdfm.model.block import Block, modulation_layer, modulation_vectors, zero_init
from cwdfm.model.conditions import (
    Categorical,
    Condition,
    ConditionEmbedding,
    Numeric,
    ScalarEmbedding,
)
from cwdfm.model.leave_one_out import add_evidence, append_evidence
from cwdfm.ops.adaptive_norm import Residual, add_norm
from cwdfm.ops.attention import rotary
from cwdfm.ops.cuda_graph import GraphedFunction

MAX_DEPTH = 10_000  # sanity limit: building more blocks would take hours
# Up to this fraction of the coordinates, they are gathered before the pointwise end of the trunk.
GATHER_FRACTION = 0.25
# Compiled versions of a block per process. A single sampler may need 12: for the first or a later
# block, eager or during graph capture, and for one sequence, the first batch size or any other.
# Beyond PyTorch's default limit of 8 it would fall back to eager mode.
RECOMPILE_LIMIT = 64

# The time input of the network: see `DiTConfig`.
Time = Literal["given", "zero", "none", "sigma", "reversed"]
# Smallest kappa of the log-linear noise of MDLM, Duo and UDLM.
MIN_KAPPA = 1e-3

# A function of hidden vectors [B, N, D] and the head, such as a loss that never stores logits.
Read = Callable[[Tensor, nn.Linear], Tensor]


@dataclass(frozen=True)
class DiTConfig:
    """The architecture of the transformer.

    - `positions` > 0 adds a learned embedding of that many absolute positions. With 0, positions
      enter through rotary embeddings only, as in the paper; the model then cannot tell the first
      position of a fully masked sequence from the last.
    - `time`: the time input. "given" is t; "zero" is always 0, as in MDLM; "none" has no
      conditioning layers, as in autoregressive models. For networks of other projects that are
      conditioned on a noise level: "sigma" is -log kappa of the linear schedule (MDLM with time
      conditioning, Duo, UDLM), and "reversed" is 1 - t (GIDD).
    - `attention`: "full", "causal", or "block" for block diffusion with blocks of `block` tokens
      (see `cwdfm.model.attention`).
    - `leave_one_out`: the readout predicts p(x_1^i | x_t^-i) for a uniform source and the linear
      schedule, as in Duo and UDLM; the logits are those of p_{1|t} (see
      `cwdfm.model.leave_one_out`). This library cannot train such networks.
    - `conditions`: properties of a sequence that are embedded and added to the time embedding (see
      `cwdfm.model.conditions`).
    """

    num_tokens: int
    width: int = 768
    depth: int = 12
    heads: int = 12
    conditioning: int = 128
    mlp_ratio: int = 4
    dropout: float = 0.1
    positions: int = 0
    time: Time = "given"
    attention: Literal["full", "causal", "block"] = "full"
    block: int = 0
    leave_one_out: bool = added(False)
    conditions: tuple[Condition, ...] = added(())

    def __post_init__(self) -> None:
        for name in ("num_tokens", "width", "heads", "conditioning", "mlp_ratio"):
            check_integer(name, getattr(self, name))
        check_integer("depth", self.depth, most=MAX_DEPTH)
        check_integer("positions", self.positions, 0)
        if self.width % (2 * self.heads):
            raise InputError(
                f"width must be a multiple of 2 * heads (rotary embeddings act on pairs), got "
                f"width {self.width} with {self.heads} heads",
                fields=("width",),
            )
        if not (isinstance(self.dropout, int | float) and 0 <= self.dropout < 1):
            message = f"dropout must lie in [0, 1), got {self.dropout!r}"
            raise InputError(message, fields=("dropout",))
        check_choice("time", self.time, get_args(Time))
        check_choice("attention", self.attention, ("full", "causal", "block"))
        if self.attention == "block":
            check_integer("block", self.block)
        valid = isinstance(self.conditions, tuple) and all(
            isinstance(condition, Numeric | Categorical) for condition in self.conditions
        )
        names = [condition.name.lower() for condition in self.conditions] if valid else []
        rule = "be a tuple of Numeric and Categorical with distinct names"
        require(valid and len(set(names)) == len(names), "conditions", rule, self.conditions)
        if names and (self.time == "none" or self.leave_one_out):
            raise InputError("a network with conditions needs a time embedding")

    def attention_pattern(self) -> AttentionPattern:
        """The attention pattern used in training."""
        if self.attention == "block":
            return BlockDiffusionAttention(self.block)
        return CausalAttention() if self.attention == "causal" else FullAttention()


class DiT(nn.Module):
    """The transformer: (x_t, t) -> logits of p_{1|t}, [B, N, num_tokens]."""

    trained_length: int | None = None  # tokens per training sequence, set for loaded models

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config, self.attention_pattern = config, config.attention_pattern()
        self.embedding = nn.Parameter(torch.empty(config.num_tokens, config.width))
        nn.init.kaiming_uniform_(self.embedding, a=math.sqrt(5))
        self.position: nn.Parameter | None = None
        if config.positions:
            position = torch.empty(config.positions, config.width)
            if not position.is_meta:  # else this would import the compiler, which takes seconds
                position = position.normal_() * 0.02
            self.position = nn.Parameter(position)
        width, conditioning = config.width, None if config.time == "none" else config.conditioning
        self.time = None if conditioning is None else ScalarEmbedding(conditioning)
        sizes = (width, config.heads, config.mlp_ratio, config.dropout, conditioning)
        self.blocks = nn.ModuleList(Block(*sizes) for _ in range(config.depth))
        self.norm = nn.LayerNorm(width, bias=False)
        self.modulation = modulation_layer(conditioning, 2 * width)
        self.readout = zero_init(nn.Linear(config.width, config.num_tokens))
        self.conditions = nn.ModuleList(
            ConditionEmbedding(condition, config.conditioning) for condition in config.conditions
        )

    def forward(self, x_t: Tensor, t: Tensor, read: Read | None = None) -> Tensor:
        """Logits, or read(hidden, readout), for example a loss that never stores them.

        `t` holds the times [B], or [B, 1 + C] with C encoded conditions after the time (see
        `with_condition`). With times only, the network predicts without conditions.

        `read` is called within this method because DDP and FSDP2 prepare weights and gradients in
        hooks around it.
        """
        hidden_BND = self.trunk(x_t, t)
        if read is None:
            return self.head(hidden_BND)
        if self.config.leave_one_out:
            raise InputError(
                "a network with leave_one_out cannot be trained: it does not predict p_{1|t}, for "
                "which the losses are defined; train a new one"
            )
        return read(hidden_BND, self.readout)

    def compile_trunk(self, *, by_block: bool) -> None:
        """Apply torch.compile to the trunk in place, as a whole or block by block.

        Block by block, there is one graph for the first block and one for all others, so
        compilation takes seconds. The hooks of DDP and FSDP2 around blocks stay outside the graphs,
        so that gradients are exchanged while earlier blocks still compute theirs.
        """
        _raise_recompile_limit()
        if not by_block:
            self.trunk = torch.compile(self.trunk)  # type: ignore[method-assign]
            return
        for block in self.blocks:
            block.forward = torch.compile(block.forward)

    def capture_trunk(self) -> None:
        """Capture the first stage of the trunk as CUDA graphs for sampling on a GPU, in place."""
        if not isinstance(self.first_stage, GraphedFunction):
            self.first_stage = GraphedFunction(self, self.first_stage)  # type: ignore[method-assign]

    def uncompiled(self) -> AbstractContextManager[object]:
        """A context that runs compiled code eagerly: with a cache, every call would recompile."""
        compiled = "trunk" in vars(self) or any("forward" in vars(b) for b in self.blocks)
        return torch.compiler.set_stance("force_eager") if compiled else nullcontext()

    def trunk(self, x_t: Tensor, t: Tensor, pattern: AttentionPattern | None = None) -> Tensor:
        """Hidden vectors [B, N, D], including the final norm and its modulation.

        `pattern` defaults to the attention pattern used in training.
        """
        last_inputs = self._until_last_block(x_t, t, pattern or self.attention_pattern)
        h_BND, pending = self.blocks[-1](*last_inputs)
        hidden_BND = self._final_norm(h_BND, pending, last_inputs[2])
        if not self.config.leave_one_out:
            return hidden_BND
        return append_evidence(hidden_BND, x_t, t, self.config.num_tokens)  # kappa_t = t

    @property
    def two_stage(self) -> bool:
        """Whether the two stages equal the trunk: it is not overridden, and no hooks are set."""
        last = self.blocks[-1]
        hooked = bool(last._forward_hooks or last._forward_pre_hooks)
        return type(self).trunk is DiT.trunk and not (hooked or self.config.leave_one_out)

    def first_stage(self, x_t: Tensor, t: Tensor) -> "TrunkState":
        """The trunk up to its last attention. The rest is independent for each coordinate."""
        last_inputs = self._until_last_block(x_t, t, self.attention_pattern)
        last = cast(Block, self.blocks[-1])
        return TrunkState(*last.attend(*last_inputs), last_inputs[2])

    def second_stage(self, state: "TrunkState", flat_K: Tensor) -> Tensor:
        """Hidden vectors [K, D] at flat indices b N + i; equal to the trunk's up to rounding."""
        h_BND, attended_BND, c_BC = state
        last = cast(Block, self.blocks[-1])
        if flat_K.numel() > h_BND[..., 0].numel() * GATHER_FRACTION:
            hidden_BND = self._final_norm(*last.pointwise(h_BND, attended_BND, c_BC), c_BC)
            return hidden_BND.flatten(0, 1).index_select(0, flat_K)
        # Treat every coordinate as a sequence of length 1 with the time of its own sequence.
        h_K1D, attended_K1D = (x.flatten(0, 1)[flat_K][:, None] for x in (h_BND, attended_BND))
        c_KC = None if c_BC is None else c_BC[flat_K // h_BND.shape[1]]
        return self._final_norm(*last.pointwise(h_K1D, attended_K1D, c_KC), c_KC)[:, 0]

    def _until_last_block(
        self, x_t: Tensor, t: Tensor, pattern: AttentionPattern
    ) -> tuple[Tensor, Residual | None, Tensor | None, tuple[Tensor, Tensor], AttentionFn]:
        """The inputs of the last block."""
        length, device = x_t.shape[1], x_t.device
        h_BND = F.embedding(x_t, self.embedding)
        position_N = pattern.position_ids(length, device)
        if self.position is not None:
            self._check_length(pattern.sequence_length(length))
            h_BND = h_BND + self.position[position_N]
        c_BC = None
        if self.time is not None:
            c_BC = self._conditioning(t)
        rotation = rotary(position_N, self.config.width // self.config.heads)
        pending, last = None, len(self.blocks) - 1
        for layer, block in enumerate(self.blocks[:last]):
            attention = pattern.attention_fn(layer, length, device)
            h_BND, pending = block(h_BND, pending, c_BC, rotation, attention)
        return h_BND, pending, c_BC, rotation, pattern.attention_fn(last, length, device)

    def _conditioning(self, t: Tensor) -> Tensor:
        """SiLU of the embedding [B, C] of the time and the conditions, the input of modulations."""
        assert self.time is not None
        t_B, *conditions = t.unbind(1) if t.dim() == 2 else (t,)
        count = len(self.conditions)
        if conditions and len(conditions) != count:
            raise InputError(
                f"the network has {count} conditions, but the input has {len(conditions)}"
            )
        conditions = conditions or [torch.full_like(t_B, math.nan)] * count
        c_BC = self.time(_time_input(self.config.time, t_B))
        for embedding, number_B in zip(self.conditions, conditions, strict=True):
            c_BC = c_BC + embedding(number_B)
        return F.silu(c_BC)

    def _final_norm(self, h_BND: Tensor, pending: Residual, c_BC: Tensor | None) -> Tensor:
        shift, scale = modulation_vectors(self.modulation, c_BC, 2)
        dropout = self.config.dropout if self.training else 0.0
        return add_norm(h_BND, pending, self.norm, shift, scale, dropout)[1]

    @property
    def linear_head(self) -> bool:
        """Whether the head is just the linear readout."""
        return not self.config.leave_one_out

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., num_tokens] of hidden vectors [..., D]."""
        if not self.linear_head:
            return add_evidence(hidden, self.readout)
        logits: Tensor = self.readout(hidden)
        return logits

    def _check_length(self, length: int) -> None:
        if length > self.config.positions:
            raise InputError(
                f"this model has {self.config.positions} learned positions, but the sequence has "
                f"length {length}; truncate it, or train with positions >= {length} or 0"
            )


class TrunkState(NamedTuple):
    """The activations of the trunk after its last attention."""

    stream: Tensor  # [B, N, D], the residual stream
    attended: Tensor  # [B, N, D], output of the last attention
    time: Tensor | None  # [B, C], the embedding of time and conditions, if any


def _time_input(time: Time, t_B: Tensor) -> Tensor:
    """The number [B] that the network embeds as its time."""
    match time:
        case "given":
            return t_B
        case "sigma":
            return -t_B.clamp(min=MIN_KAPPA).log()
        case "reversed":
            return 1 - t_B
        case _:
            return torch.zeros_like(t_B)


def _raise_recompile_limit() -> None:
    from torch._dynamo import config  # imported here because it takes as long as importing torch

    config.recompile_limit = max(config.recompile_limit, RECOMPILE_LIMIT)
