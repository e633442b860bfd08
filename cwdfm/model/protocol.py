"""What the library asks of a model.

`Model`: any callable (x_t [B, N] int64, t [B] float32) -> logits [B, N, num_tokens].

`SplitModel`: one that also offers trunk and head apart, with model(x, t) == head(trunk(x, t)). Then
logits are computed only at the coordinates that need them, and sequences without one are skipped.

A split model that carries something for each sequence, such as a cache, has `select(active [B])`:
the model for the sequences that are asked about.

It may also have the trunk in two parts, `begin(x, t)` and `end(begun, place [K])`, the second of
which works on each coordinate on its own: hidden vectors [K, D] at the coordinates b N + i. What it
gives is good until the next call.

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
