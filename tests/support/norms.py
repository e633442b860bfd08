"""Checks of adaptive norms against float64, shared by CPU and GPU tests."""

from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cwdfm.model.transformer import DiTConfig
from cwdfm.ops.adaptive_norm import CHUNK, Residual, add_norm

# B, N, D: one token; full and partial tiles and chunks; widths that do not fill a block.
SHAPES = [(2, 1, 8), (3, 7, 96), (2, CHUNK, 128), (2, CHUNK + 5, 130), (1, 3, 384)]
FULL, HALF = torch.float32, torch.bfloat16
SEED = 5
# Relative error of the norm of a result: float32 sums, or one rounding to half precision.
NEAR = {FULL: 3e-6, HALF: 2**-8}


class Given(NamedTuple):
    """The arguments of `add_norm`."""

    h: Tensor
    y: Tensor | None
    gate: Tensor | None
    norm: nn.LayerNorm
    shift: Tensor | None
    scale: Tensor | None

    def to(self, dtype: torch.dtype) -> "Given":
        h = self.h.detach().to(dtype).requires_grad_()
        y, gate, shift, scale = (
            None if v is None else v.detach().to(dtype).requires_grad_()
            for v in (self.y, self.gate, self.shift, self.scale)
        )
        return Given(h, y, gate, deepcopy(self.norm).to(dtype), shift, scale)

    def leaves(self) -> list[Tensor]:
        every = (self.h, self.y, self.gate, self.norm.weight, self.shift, self.scale)
        return [v for v in every if v is not None]

    def run(self, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
        addition = None if self.y is None else Residual(self.y, self.gate)
        return add_norm(self.h, addition, self.norm, self.shift, self.scale, dropout)


def given(
    shape: tuple[int, int, int],
    stream: torch.dtype = FULL,
    half: torch.dtype = FULL,
    *,
    timed: bool = True,
    adds: bool = True,
    device: str = "cpu",
) -> Given:
    """A residual stream in one dtype, branch and modulation in another."""
    batch, _, width = shape
    g = torch.manual_seed(0)

    def random(*size: int, dtype: torch.dtype = half) -> Tensor:
        return torch.randn(size, generator=g).to(device, dtype)

    h, y = 3 + random(*shape, dtype=stream), random(*shape)
    norm = nn.LayerNorm(width, bias=False, device=device, dtype=stream)
    norm.weight.data += random(width, dtype=stream) / 2
    shift, scale, gate = random(batch, 1, 3 * width).requires_grad_().chunk(3, dim=-1)
    h.requires_grad_(), y.requires_grad_()
    if not timed:
        return Given(h, y if adds else None, None, norm, None, None)
    return Given(h, y if adds else None, gate if adds else None, norm, shift, scale)


def assert_near(mine: Tensor, exact: Tensor, near: float) -> None:
    assert mine.shape == exact.shape
    error = float((mine.double() - exact).detach().norm())
    assert error <= near * float(exact.detach().norm()), (error, near)


def gradients(x: Given, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradients of a random function of the outputs, the same one in all dtypes."""
    g = torch.Generator().manual_seed(1)
    weights = [torch.randn(out.shape, generator=g).to(HALF).to(out) for out in outputs]
    return torch.autograd.grad(
        outputs, x.leaves(), weights, allow_unused=True, materialize_grads=True
    )


def check_against_exact(x: Given, dropout: float = 0.0) -> None:
    """Stream, norm and all gradients against the plain expression in float64.

    With dropout, the mask is read off from an input of ones under the same seed.
    """
    double = x.to(torch.float64)
    factor = kept(x, dropout) if dropout else 1.0
    torch.manual_seed(SEED)
    mine = x.run(dropout)
    exact = double._replace(y=None if double.y is None else double.y * factor).run()
    assert mine[0].dtype == x.h.dtype
    # A half-precision stream is rounded before its norm is computed, like a plain sum.
    near = {k: v * 4 for k, v in NEAR.items()} if x.h.dtype == HALF else NEAR
    for a, b in zip(mine, exact, strict=True):
        assert_near(a, b, near[a.dtype])
    grads = gradients(x, mine), gradients(double, exact)
    for leaf, a, b in zip(x.leaves(), *grads, strict=True):
        assert a.dtype == leaf.dtype
        assert_near(a, b, near[HALF if HALF in (a.dtype, mine[1].dtype) else FULL])


def kept(x: Given, dropout: float) -> Tensor:
    """The dropout factors [B, N, D]."""
    plain = Given(torch.zeros_like(x.h), torch.ones_like(x.h), None, x.norm, None, None)
    torch.manual_seed(SEED)
    return plain.run(dropout)[0].detach()


def check_dropout(device: str) -> None:
    """A fraction p is zeroed, independently, and the rest is scaled up."""
    p, x = 0.3, given((3, 50, 130), device=device)
    factor = kept(x, p)
    lost = factor == 0
    assert torch.equal(
        factor[~lost], torch.full_like(factor[~lost], 1 / (1 - round(p * 2**24) / 2**24))
    )
    # Five standard deviations: a false alarm in a million; the seed is fixed.
    bound = 5 * (p * (1 - p) / lost.numel()) ** 0.5
    assert abs(float(lost.double().mean()) - p) < bound
    # Adjacent elements, and words of one Philox counter, are zeroed independently.
    flat = lost.flatten(0, 1)
    bound = 5 * (p**2 * (1 - p**2) / lost.numel()) ** 0.5 * 1.1  # for one row or column less
    for a, b in ((flat[1:], flat[:-1]), (flat[:, 1:], flat[:, :-1]), (flat[:, 4:], flat[:, :-4])):
        assert abs(float((a & b).double().mean()) - p**2) < bound
    again = kept(x, p)
    assert torch.equal(again, factor)
    plain = Given(torch.zeros_like(x.h), torch.ones_like(x.h), None, x.norm, None, None)
    assert not torch.equal(plain.run(p)[0], factor)  # the generator has advanced


SMALL = DiTConfig(11, width=24, depth=2, heads=2, conditioning=8, dropout=0.0)
NETWORKS = [
    SMALL,
    replace(SMALL, time="zero"),
    replace(SMALL, time="none", attention="causal"),
    replace(SMALL, attention="block", block=4),
]
