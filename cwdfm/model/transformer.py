"""The diffusion transformer of MDLM (Sahoo et al. 2024), which the paper trains, and its twins.

Attention with rotary positions; time enters through adaptive layer norms whose gates start at zero,
so that every block starts as the identity. The head starts at zero, so that the first loss is
exactly ln V. All that depends on time or other coordinates is in `trunk`; `head` is one linear map.

Shapes: B batch, N length, D width, H heads, C conditioning width.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.errors import InputError, check_choice, check_integer
from cwdfm.model.attention import Attention, Causal, Full, Halves, Mix
from cwdfm.model.block import Block, modulations, zeroed
from cwdfm.model.cuda_graph import Recorded
from cwdfm.ops.adaptive_norm import Addition, add_norm
from cwdfm.ops.rotary import rotary

FREQUENCIES = 256
MAX_PERIOD = 10_000.0
MOST_BLOCKS = 10_000  # far beyond any use: more would be built for hours
FEW_ROWS = 0.25  # share of coordinates, up to which the last block's rest works on these alone
# Compiled versions of a block that are kept, over all blocks and networks of a process. One sampler
# alone may need 12: the first block or another, live or while it is recorded, and of one sequence,
# of as many as came first, or of any number. PyTorch's limit is 8, and the rest runs uncompiled.
MOST_VERSIONS = 64

# What may be made of hidden vectors [B, N, D] and the head in place of logits.
Read = Callable[[Tensor, nn.Linear], Tensor]


@dataclass(frozen=True)
class DiTConfig:
    """The transformer's shape.

    With `positions` > 0 a learned vector for each of that many absolute positions is added to the
    tokens. Without, positions are known by rotation alone, as in the paper: then a fully masked
    sequence looks the same everywhere, and the model cannot tell its first place from its last.

    `time`: "given"; "zero" for a network that is told 0 whatever the time, as MDLM's; "none" for
    one without the layers that would hear it, as an autoregressive one. `attention`: "full",
    "causal", or "block" for blocks of `block` tokens (see `cwdfm.model.attention`).
    """

    num_tokens: int
    width: int = 768
    depth: int = 12
    heads: int = 12
    conditioning: int = 128
    mlp_ratio: int = 4
    dropout: float = 0.1
    positions: int = 0
    time: Literal["given", "zero", "none"] = "given"
    attention: Literal["full", "causal", "block"] = "full"
    block: int = 0

    def __post_init__(self) -> None:
        for name in ("num_tokens", "width", "heads", "conditioning", "mlp_ratio"):
            check_integer(name, getattr(self, name))
        check_integer("depth", self.depth, most=MOST_BLOCKS)
        check_integer("positions", self.positions, 0)
        if self.width % (2 * self.heads):
            raise InputError(
                f"width must be a multiple of twice the heads (rotations work on pairs), got width "
                f"{self.width} with {self.heads} heads"
            )
        if not (isinstance(self.dropout, int | float) and 0 <= self.dropout < 1):
            raise InputError(f"dropout must lie in [0, 1), got {self.dropout!r}")
        check_choice("time", self.time, ("given", "zero", "none"))
        check_choice("attention", self.attention, ("full", "causal", "block"))
        if self.attention == "block":
            check_integer("block", self.block)

    def sight(self) -> Attention:
        """The attention that the network is trained with."""
        if self.attention == "block":
            return Halves(self.block)
        return Causal() if self.attention == "causal" else Full()


class DiT(nn.Module):
    """x_t, t -> logits of p_{1|t}, [B, N, num_tokens]."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config, self.sight = config, config.sight()
        self.embedding = nn.Parameter(torch.empty(config.num_tokens, config.width))
        nn.init.kaiming_uniform_(self.embedding, a=math.sqrt(5))
        self.position: nn.Parameter | None = None
        if config.positions:
            self.position = nn.Parameter(torch.randn(config.positions, config.width) * 0.02)
        timed = config.time != "none"
        self.time = TimeEmbedding(config.conditioning) if timed else None
        self.blocks = nn.ModuleList(
            Block(
                config.width,
                config.heads,
                config.mlp_ratio,
                config.dropout,
                conditioning=config.conditioning if timed else None,
            )
            for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width, bias=False)
        self.modulation = (
            zeroed(nn.Linear(config.conditioning, 2 * config.width)) if timed else None
        )
        self.readout = zeroed(nn.Linear(config.width, config.num_tokens))

    def forward(self, x_t: Tensor, t: Tensor, read: Read | None = None) -> Tensor:
        """Logits; or read(hidden, readout), say a loss that never stores them.

        That happens in here, because DDP and FSDP2 ready the weights, and watch for gradients, by
        hooks around this call.
        """
        hidden_BND = self.trunk(x_t, t)
        return self.head(hidden_BND) if read is None else read(hidden_BND, self.readout)

    def compile_trunk(self, *, by_block: bool) -> None:
        """torch.compile what comes before the head, in place: all in one, or a block at a time.

        By block, one graph serves the first, another all others, and they are there in seconds; the
        hooks that DDP and FSDP2 put around blocks stay outside, and gradients are exchanged while
        earlier blocks still compute theirs.
        """
        _keep_versions()
        if not by_block:
            self.trunk = torch.compile(self.trunk)  # type: ignore[method-assign]
            return
        for block in self.blocks:
            block.forward = torch.compile(block.forward)

    def record_trunk(self) -> None:
        """Record what samplers ask for, in place, where a GPU samples: see `record.py`."""
        if not isinstance(self.begin, Recorded):
            self.begin = Recorded(self, self.begin)  # type: ignore[method-assign]

    def uncompiled(self) -> AbstractContextManager[object]:
        """Run what was compiled as it was written: behind a cache, each call is another graph."""
        compiled = "trunk" in vars(self) or any("forward" in vars(b) for b in self.blocks)
        stance: AbstractContextManager[object] = (
            torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        )
        return stance

    def trunk(self, x_t: Tensor, t: Tensor, attention: Attention | None = None) -> Tensor:
        """Hidden vectors [B, N, D], the final norm and its modulation included.

        `attention` None is the one that the network is trained with.
        """
        asked = self._before_last(x_t, t, attention or self.sight)
        h_BND, pending = self.blocks[-1](*asked)
        return self._after_last(h_BND, pending, asked[2])

    @property
    def two_parts(self) -> bool:
        """Whether `begin` and `end` are the trunk: nothing was put in its place, or hooked in."""
        last = self.blocks[-1]
        hooked = any(getattr(last, f"_{kind}_hooks") for kind in ("forward", "forward_pre"))
        return type(self).trunk is DiT.trunk and not hooked

    def begin(self, x_t: Tensor, t: Tensor) -> "Begun":
        """The trunk as far as coordinates mix. All behind that works on each on its own."""
        asked = self._before_last(x_t, t, self.sight)
        last = cast(Block, self.blocks[-1])
        return Begun(*last.attend(*asked), asked[2])

    def end(self, begun: "Begun", place_K: Tensor) -> Tensor:
        """Hidden vectors [K, D] at place = b N + i: the trunk's there, up to rounding."""
        h_BND, mixed_BND, c_BC = begun
        last = cast(Block, self.blocks[-1])
        if place_K.numel() > h_BND[..., 0].numel() * FEW_ROWS:
            hidden_BND = self._after_last(*last.finish(h_BND, mixed_BND, c_BC), c_BC)
            return hidden_BND.flatten(0, 1).index_select(0, place_K)
        # Rows as sequences of one: each has the time of its own.
        h_K1D, mixed_K1D = (x.flatten(0, 1)[place_K][:, None] for x in (h_BND, mixed_BND))
        c_KC = None if c_BC is None else c_BC[place_K // h_BND.shape[1]]
        return self._after_last(*last.finish(h_K1D, mixed_K1D, c_KC), c_KC)[:, 0]

    def _before_last(
        self, x_t: Tensor, t: Tensor, sight: Attention
    ) -> tuple[Tensor, Addition | None, Tensor | None, tuple[Tensor, Tensor], Mix]:
        """What the last block is asked."""
        length, device = x_t.shape[1], x_t.device
        h_BND = F.embedding(x_t, self.embedding)
        place_N = sight.positions(length, device)
        if self.position is not None:
            self._check_length(sight.reach(length))
            h_BND = h_BND + self.position[place_N]
        c_BC = None
        if self.time is not None:
            c_BC = self.time(t if self.config.time == "given" else torch.zeros_like(t))
        rotation = rotary(place_N, self.config.width // self.config.heads)
        pending = None
        last = len(self.blocks) - 1
        for layer, block in enumerate(self.blocks[:last]):
            mix = sight.mix(layer, length, device)
            h_BND, pending = block(h_BND, pending, c_BC, rotation, mix)
        return h_BND, pending, c_BC, rotation, sight.mix(last, length, device)

    def _after_last(self, h_BND: Tensor, pending: Addition, c_BC: Tensor | None) -> Tensor:
        """The final norm and its modulation."""
        shift, scale = modulations(self.modulation, c_BC, 2)
        dropout = self.config.dropout if self.training else 0.0
        return add_norm(h_BND, pending, self.norm, shift, scale, dropout)[1]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., num_tokens] of hidden vectors [..., D]."""
        logits: Tensor = self.readout(hidden)
        return logits

    def _check_length(self, length: int) -> None:
        if length > self.config.positions:
            raise InputError(
                f"this model has learned {self.config.positions} positions and was given a "
                f"sequence of {length}; cut the sequence, or train with positions >= {length} or 0"
            )


class Begun(NamedTuple):
    """A trunk's work as far as coordinates mix."""

    stream: Tensor  # [B, N, D]
    mixed: Tensor  # [B, N, D], by the last attention
    time: Tensor | None  # [B, C], if the network is told of one


class TimeEmbedding(nn.Module):
    """A sinusoid of t, two linear maps, and the activation in front of every modulation."""

    def __init__(self, conditioning: int) -> None:
        super().__init__()
        self.first = nn.Linear(FREQUENCIES, conditioning)
        self.second = nn.Linear(conditioning, conditioning)

    def forward(self, t_B: Tensor) -> Tensor:
        half = FREQUENCIES // 2
        exponent = torch.arange(half, device=t_B.device, dtype=torch.float32) / half
        angle = t_B.float()[:, None] * torch.exp(-math.log(MAX_PERIOD) * exponent)
        wave = torch.cat([angle.cos(), angle.sin()], dim=-1).to(self.first.weight.dtype)
        conditioning: Tensor = F.silu(self.second(F.silu(self.first(wave))))
        return conditioning


def _keep_versions() -> None:
    """Let the compiler keep as many versions of a function, at least in this thread."""
    from torch._dynamo import config  # not above: it takes as long as importing torch

    config.recompile_limit = max(config.recompile_limit, MOST_VERSIONS)
