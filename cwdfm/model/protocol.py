"""The interfaces that a model can implement.

- `Model`: a callable (x_t [B, N] int64, t [B] float32) -> logits [B, N, num_tokens].
- `SplitModel`: also exposes trunk and head, with model(x, t) == head(trunk(x, t)). Logits are then
  computed only at the coordinates that need them, and sequences without any are skipped. A split
  model with per-sequence state, such as a cache, must provide `select(active [B])`, which returns
  the model for the active sequences.
- A guided model provides `logits_at(x_t, t, positions)`, which yields logits [k, vocab_size] at
  these positions in order (see `cwdfm.guidance`).
- `TwoStageModel`: also exposes its trunk in two stages, the second of which processes each
  coordinate independently.

A split `nn.Module` may have a `readout`, an `nn.Linear` with head(hidden) == readout(hidden). On a
GPU, draws and losses are then fused with this layer, and its logits are never stored. If `readout`
is only part of the head, the module must set `linear_head` = False.
"""

from typing import Any, Protocol

from torch import Tensor


class Model(Protocol):
    """A callable (x_t, t) -> logits of p_{1|t}."""

    def __call__(self, x_t: Any, t: Any, /) -> Tensor: ...


class SplitModel(Model, Protocol):
    """A model with a trunk, which returns hidden vectors, and a head, which returns logits."""

    def trunk(self, x_t: Tensor, t: Tensor, /) -> Tensor:
        """Hidden vectors [B, N, D], with all dependence on time and context."""
        ...

    def head(self, hidden: Tensor, /) -> Tensor:
        """Logits [K, num_tokens] of hidden vectors [K, D], computed independently for each row."""
        ...


class TwoStageModel(SplitModel, Protocol):
    """A split model that can evaluate the end of its trunk only at the requested coordinates."""

    @property
    def two_stage(self) -> bool:
        """Whether the two stages together equal the trunk."""
        ...

    def first_stage(self, x_t: Tensor, t: Tensor, /) -> Any:
        """The trunk up to its last attention. The result is valid until the next call."""
        ...

    def second_stage(self, state: Any, flat: Tensor, /) -> Tensor:
        """Hidden vectors [K, D] at the flat indices b N + i [K]."""
        ...
