"""Convert the linear layers of a transformer's blocks to float8.

In training the weights stay in float32 and are cast in every call. For sampling they are cast once.
Attention, norms, modulations and the head are unchanged.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cwdfm.errors import InputError
from cwdfm.model.transformer import DiT
from cwdfm.ops.dispatch import float8_products
from cwdfm.ops.float8 import MULTIPLE, Float8Input, InputDtypes, Rows, linear, product, to_rows
from cwdfm.ops.precision import product_dtype

LAYERS = ("qkv", "out", "up", "down")  # the linear layers of a block


class Float8Linear(nn.Linear):
    """A float8 linear layer for training, which shares the parameters of the original layer."""

    input_dtypes: InputDtypes = "both"

    def __init__(self, layer: nn.Linear) -> None:
        sizes = (layer.in_features, layer.out_features)
        super().__init__(*sizes, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor | Float8Input) -> Tensor:
        """The output [..., O] for an input [..., D]."""
        original = x.x if isinstance(x, Float8Input) else x
        assert original is not None
        rows = x.rows if isinstance(x, Float8Input) else None
        x_KD = original.to(_output_dtype(original)).flatten(0, -2)
        out_KO = linear(x_KD, rows, self.weight, self.bias)
        return out_KO.view(*original.shape[:-1], out_KO.shape[-1])


class FrozenFloat8Linear(nn.Module):
    """A linear layer with float8 weights for sampling, without gradients."""

    input_dtypes: InputDtypes = "float8"
    values: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        values, scale = to_rows(layer.weight.detach())
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    def forward(self, x: Tensor | Float8Input) -> Tensor:
        """The output [..., O] for an input [..., D]."""
        if isinstance(x, Float8Input):
            rows, dtype, shape = x.rows, _output_dtype(x.scale), x.values.shape
        else:
            if x.requires_grad:
                raise InputError(
                    "a network frozen in float8 has no gradients; use the original network"
                )
            rows, dtype, shape = to_rows(x.flatten(0, -2)), _output_dtype(x), x.shape
        out_KO = product(rows, Rows(self.values, self.scale), self.bias, dtype)
        return out_KO.view(*shape[:-1], out_KO.shape[-1])


def train_in_float8(model: DiT, device: torch.device) -> None:
    """Replace the linear layers of the blocks by `Float8Linear`, in place.

    Parameters keep their names.
    """
    _replace(model, device, Float8Linear)


def freeze_in_float8(model: DiT, device: torch.device) -> None:
    """Cast the weights of the blocks to float8 for sampling, in place.

    The network can then no longer be saved.
    """
    _replace(model, device, FrozenFloat8Linear)


def _replace(model: DiT, device: torch.device, make: Callable[[nn.Linear], nn.Module]) -> None:
    if not float8_products(device):
        raise InputError(
            f"precision float8 requires a GPU with products in float8 (compute capability 8.9 or "
            f"later: Ada, Hopper, Blackwell), but the device is {_name(device)}; use bfloat16",
            fields=("precision",),
        )
    width = model.config.width
    if width % MULTIPLE:
        raise InputError(
            f"precision float8 requires a width that is a multiple of {MULTIPLE}, and this network "
            f"has width {width}; use bfloat16",
            fields=("precision", "width"),
        )
    for block in model.blocks:
        for name in LAYERS:
            setattr(block, name, make(getattr(block, name)))


def _name(device: torch.device) -> str:
    """The type of a device; for a GPU its name and compute capability."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor})"


def _output_dtype(x: Tensor) -> torch.dtype:
    """The output dtype: on a GPU bfloat16, the only one that row-wise scales support."""
    return torch.bfloat16 if x.is_cuda else product_dtype(x)
