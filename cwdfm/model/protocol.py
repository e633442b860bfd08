"""What the library asks of a model.

`Model`: any callable (x_t [B, N] int64, t [B] float32) -> logits [B, N, num_tokens].

`SplitModel`: one that also offers trunk and head apart, with model(x, t) == head(trunk(x, t)). Then
logits are computed only at the coordinates that need them, and sequences without one are skipped.

A split model that carries something for each sequence, such as a cache, has `select(active [B])`:
the model for the sequences that are asked about.

`TwoPartModel`: one that has its trunk in two parts as well, `begin(x, t)` and `end(begun, place)`,
the second of which works on each coordinate on its own, and says so by `two_parts`.

A split module may also have a `readout`, an `nn.Linear` with head(hidden) == readout(hidden). Then,
on a GPU, draws and losses are fused with that map, and its logits are never stored.
"""

from typing import Any, Protocol

from torch import Tensor


class Model(Protocol):
    """x_t, t -> logits of p_{1|t}."""

    def __call__(self, x_t: Any, t: Any, /) -> Tensor: ...


class SplitModel(Model, Protocol):
    """A model whose trunk gives a vector a coordinate, and whose head turns rows into logits."""

    def trunk(self, x_t: Tensor, t: Tensor, /) -> Tensor:
        """Hidden vectors [B, N, D]; all that depends on time or on other coordinates is in them."""
        ...

    def head(self, hidden: Tensor, /) -> Tensor:
        """Logits [K, num_tokens] of hidden vectors [K, D], each row on its own."""
        ...


class TwoPartModel(SplitModel, Protocol):
    """A split model whose trunk's end is computed at the coordinates that are asked for alone."""

    @property
    def two_parts(self) -> bool:
        """Whether the two parts are the trunk."""
        ...

    def begin(self, x_t: Tensor, t: Tensor, /) -> Any:
        """The trunk as far as coordinates mix; good until the next call."""
        ...

    def end(self, begun: Any, place: Tensor, /) -> Tensor:
        """Hidden vectors [K, D] at the coordinates b N + i, place [K]."""
        ...
