"""Small models for tests: a plain callable, and the same function with trunk and head."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def constant(logits: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """A model with the same logits, [V] or [N, V], for every sequence and time."""
    return lambda x_t, t: logits.expand(*x_t.shape, -1)


class SmallModel(nn.Module):
    """A float64 network of neighboring tokens and the time, as a plain callable."""

    def __init__(self, num_tokens: int, width: int = 16) -> None:
        super().__init__()
        generator = torch.manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(num_tokens, width, generator=generator).double())
        self.mixing = nn.Parameter(torch.randn(3 * width, width, generator=generator).double())
        self.readout = nn.Parameter(torch.randn(width, num_tokens, generator=generator).double())

    def hidden(self, x_t: Tensor, t: Tensor) -> Tensor:
        e = self.embedding[x_t] + t[:, None, None].double()
        around = torch.cat([e, e.roll(1, 1), e.roll(-1, 1)], dim=-1)
        return torch.tanh(around @ self.mixing / 4)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.readout

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.logits(self.hidden(x_t, t))


class SmallSplitModel(SmallModel):
    """The same network with trunk and head; counts sequences and rows."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(num_tokens)
        self.sequences = 0
        self.rows = 0

    def trunk(self, x_t: Tensor, t: Tensor) -> Tensor:
        self.sequences += len(x_t)
        return self.hidden(x_t, t)

    def head(self, hidden: Tensor) -> Tensor:
        self.rows += hidden.shape[:-1].numel()
        return self.logits(hidden)


class Recorder:
    """A model that records the arguments of its calls."""

    def __init__(self, model: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.model = model
        self.asked: list[tuple[Tensor, Tensor]] = []

    def __call__(self, x_t: Tensor, t: Tensor) -> Tensor:
        self.asked.append((x_t, t))
        return self.model(x_t, t)

    @property
    def times(self) -> Tensor:
        """All times that the model was conditioned on."""
        return torch.cat([t for _, t in self.asked])
