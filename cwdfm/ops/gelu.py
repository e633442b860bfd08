"""GELU (tanh approximation) of a linear layer.

Without gradients, cuBLAS applies bias and GELU in the epilogue of the matrix product. With
gradients the pre-activation has to be stored anyway, and torch.compile fuses the rest.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cwdfm.ops.dispatch import fused_gelu
from cwdfm.ops.precision import product_dtype


def linear_gelu(x: Tensor, layer: nn.Linear) -> Tensor:
    """gelu(layer(x)), [..., out_features] for x [..., in_features]."""
    if not fused_gelu(x):
        return F.gelu(layer(x), approximate="tanh")
    x, weight, bias = (v.to(product_dtype(x)) for v in (x, layer.weight, layer.bias))
    flat = torch._addmm_activation(bias, x.flatten(0, -2), weight.t(), use_gelu=True)
    return flat.view(*x.shape[:-1], flat.shape[-1])
