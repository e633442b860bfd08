"""A trunk's training pass as two CUDA graphs, one there and one back.

Small networks take the host longer to launch than a GPU to run: each of their hundreds of kernels
is a call from Python. All micro-batches of a run have one shape, so its passes can be recorded.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cwdfm.ops.precision import product_dtype

AFTER = 3  # calls before the recording: whatever is compiled or chosen on a first one is done


class Graphed:
    """A model's trunk, replayed when it trains on what it was recorded for; else the trunk itself.

    Gradients come in memory that the next pass overwrites. They must be added to ones that are
    there already: where `grad` is None, autograd would keep that memory itself.
    """

    def __init__(self, model: nn.Module, trunk: Callable[..., Tensor]) -> None:
        self.model, self.trunk = model, trunk
        self.calls = 0
        self.key: Any = None
        self.replayed: Callable[[Tensor, Tensor], Tensor] | None = None

    def __call__(self, x_t: Tensor, t: Tensor, *rest: Any) -> Tensor:
        """Hidden vectors; good until the next call."""
        if rest or not (x_t.is_cuda and self.model.training and torch.is_grad_enabled()):
            return self.trunk(x_t, t, *rest)
        key = (x_t.shape, t.shape, t.dtype, product_dtype(t))
        self.key = self.key or key
        if key != self.key:
            return self.trunk(x_t, t)
        self.calls += 1
        if self.calls <= AFTER:
            return self.trunk(x_t, t)
        if self.replayed is None:
            self.replayed = self._record(x_t, t)
        return self.replayed(x_t, t)

    def _record(self, x_t: Tensor, t: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        # A cast that autocast keeps would be recorded and then dropped: it is not to keep any.
        enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        module = _Trunk(self.model, self.trunk).train()
        if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
            # The recording keeps nodes that add up gradients, and they keep its stream. Autograd
            # has the streams wait for each other, as it should, and would warn of that.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        cast = torch.autocast("cuda", dtype, enabled=enabled, cache_enabled=False)
        with torch.cuda.device(x_t.device), cast:
            asked = (x_t.clone(), t.clone())
            torch.cuda.make_graphed_callables(module, asked, allow_unused_input=True)
        return module  # whose forward is now the recording


class _Trunk(nn.Module):
    """A module of the model's parameters whose forward pass is the trunk alone."""

    def __init__(self, model: nn.Module, trunk: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.trunk = model, trunk

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.trunk(x_t, t)
