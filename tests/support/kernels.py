"""Perturbed transformers, and the mark of tests that need Triton's interpreter."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from cwdfm.model.attention import AttentionPattern
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.ops import dispatch

T = TypeVar("T")

interpreted = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton and TRITON_INTERPRET=1",
)


def perturbed(config: DiTConfig, scale: float = 0.2, seed: int = 0) -> DiT:
    """A transformer in which every layer has an effect."""
    torch.manual_seed(seed)
    model = DiT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    return model


def moved_dit(attention: str = "full", width: int = 24, depth: int = 2) -> DiT:
    """A small perturbed transformer without dropout."""
    sizes = {
        "width": width,
        "depth": depth,
        "heads": 2,
        "conditioning": 8,
        "dropout": 0.0,
        "block": 4,
    }
    return perturbed(DiTConfig(11, attention=attention, **sizes))  # type: ignore[arg-type]


def trained(
    model: DiT, trunk: Callable[..., Tensor], x: Tensor, *rest: AttentionPattern
) -> list[Tensor]:
    """Hidden vectors and the gradients of a function of them."""
    hidden = trunk(x, torch.full((len(x),), 0.3, device=x.device), *rest)
    weights = [p for name, p in model.named_parameters() if "readout" not in name]
    target = torch.linspace(-1, 1, hidden.numel(), device=x.device).view_as(hidden)
    return [hidden, *torch.autograd.grad((hidden * target).sum(), weights)]


def in_both_modes(run: Callable[[], T]) -> tuple[T, T]:
    """The results without kernels and with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "MODE", "off")
        plain = run()
        patch.setattr(dispatch, "MODE", "on")
        return plain, run()


def tokens(length: int, batch: int = 3) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(2))


def assert_alike(mine: list[Tensor], other: list[Tensor], tolerance: float) -> None:
    """Compare norms: elements that cancel may have large relative errors."""
    for a, b in zip(mine, other, strict=True):
        assert float((a - b).detach().norm()) <= tolerance * float(b.detach().norm())


def random_head(
    width: int, num_tokens: int, dtype: torch.dtype, device: str = "cpu", *, bias: bool = True
) -> nn.Linear:
    """A head whose logits have standard deviation 2 on unit normal vectors."""
    torch.manual_seed(0)
    readout = nn.Linear(width, num_tokens, bias=bias)
    nn.init.normal_(readout.weight, std=2 / width**0.5)
    return readout.to(device, dtype).requires_grad_(False)


class CastTime(nn.Module):
    """Casts the time embedding, which is computed in float32, to another precision."""

    def __init__(self, time: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.time, self.dtype = time.float(), dtype

    def forward(self, t_B: Tensor) -> Tensor:
        conditioning: Tensor = self.time(t_B).to(self.dtype)
        return conditioning


def small_dit(num_tokens: int, dtype: torch.dtype = torch.float64, width: int = 32) -> DiT:
    """A perturbed transformer in another precision."""
    config = DiTConfig(num_tokens, width=width, depth=2, heads=2, conditioning=16, dropout=0.0)
    model = perturbed(config).eval().to(dtype)
    if dtype != torch.float32:
        assert model.time is not None
        model.time = CastTime(model.time, dtype)  # type: ignore[assignment]
    return model
