"""Checks of rotary embeddings against float64, shared by CPU and GPU tests."""

import torch
from torch import Tensor

from cwdfm.ops.attention import rotary, rotate, rotate_qkv

# B, N, H, d: the paper's heads; widths that are not powers of two; partial tiles.
SHAPES = [(2, 5, 12, 64), (1, 40, 3, 12), (3, 7, 2, 6), (2, 33, 1, 2)]


def qkv_of(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str = "cpu") -> Tensor:
    batch, length, heads, width = shape
    x = torch.randn(batch, length, 3, heads, width, generator=torch.manual_seed(0))
    return x.to(device, dtype)


def rotation_of(length: int, width: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """For positions in random order, some repeated."""
    place = torch.randint(0, 2 * length, (length,), generator=torch.manual_seed(1))
    return rotary(place.to(device), width)


def exactly(qkv: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The plain expression in float64, each [B, H, N, d]."""
    cos, sin = rotation
    q, k, v = qkv.double().permute(2, 0, 3, 1, 4).unbind(0)
    double = (cos.double(), sin.double())
    return rotate(q, double), rotate(k, double), v


def assert_rounded(mine: Tensor, exact: Tensor) -> None:
    """Equal up to float32 arithmetic and one rounding to the dtype of `mine`."""
    rtol = torch.finfo(mine.dtype).eps
    torch.testing.assert_close(mine.double(), exact, rtol=rtol, atol=2e-6)


def check_rotation(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> None:
    """Queries, keys and values, and the gradient, against float64."""
    qkv = qkv_of(shape, dtype, device).requires_grad_()
    rotation = rotation_of(shape[1], shape[3], device)
    parts, exact = rotate_qkv(qkv, rotation), exactly(qkv, rotation)
    for mine, other in zip(parts, exact, strict=True):
        assert mine.dtype == dtype
        assert_rounded(mine, other)
    grads = [torch.randn_like(part) for part in parts]
    (mine,) = torch.autograd.grad(parts, qkv, grads)
    double = [grad.double() for grad in grads]
    # In float64: casting back to the leaf would round the reference.
    leaf = qkv.detach().double().requires_grad_()
    (other,) = torch.autograd.grad(exactly(leaf, rotation), leaf, double)
    assert mine.is_contiguous()
    assert_rounded(mine, other)


def check_layouts(device: str) -> None:
    """Gradients by heads, by tokens, sliced from a larger tensor, expanded from a scalar."""
    batch, length, heads, width = shape = (2, 9, 3, 8)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=g).to(device)

    g = torch.manual_seed(3)
    by_heads = random(batch, heads, length, width).transpose(1, 2)
    packed = random(batch, length, 3, heads, width)[:, :, 1]
    strided = random(batch, length, heads, 2 * width)[..., ::2]
    constant = torch.ones((), device=device).expand(shape)
    rotation = rotation_of(length, width, device)
    for grads in ((by_heads, packed, strided), (constant, strided, by_heads)):
        mine = torch.ops.cwdfm.rotate_backward(*grads, *rotation)
        other = torch.ops.cwdfm.rotate_backward(*(g.contiguous() for g in grads), *rotation)
        assert torch.equal(mine, other)
        assert torch.equal(mine[:, :, 2], grads[2])
