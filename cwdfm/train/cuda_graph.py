"""The forward and backward pass of a trunk as two CUDA graphs.

Launching the hundreds of kernels of a small network from Python takes longer than running them.
All micro-batches of a run have one shape, so its passes can be captured once and replayed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cwdfm.ops.precision import product_dtype

WARMUP_CALLS = 3  # calls before the capture, for compilation and autotuning


class GraphedTrunk:
    """Replays a captured trunk for training inputs of the captured shape; else calls the trunk.

    The next pass overwrites the memory of the gradients. They must be added to existing ones: where
    `grad` is None, autograd would keep that memory itself.
    """

    def __init__(self, model: nn.Module, trunk: Callable[..., Tensor]) -> None:
        self.model, self.trunk = model, trunk
        self.calls = 0
        self.key: Any = None
        self.replay: Callable[[Tensor, Tensor], Tensor] | None = None

    def __call__(self, x_t: Tensor, t: Tensor, *rest: Any) -> Tensor:
        """Hidden vectors [B, N, D], valid until the next call."""
        if rest or not (x_t.is_cuda and self.model.training and torch.is_grad_enabled()):
            return self.trunk(x_t, t, *rest)
        key = (x_t.shape, t.shape, t.dtype, product_dtype(t))
        self.key = self.key or key
        if key != self.key:
            return self.trunk(x_t, t)
        self.calls += 1
        if self.calls <= WARMUP_CALLS:
            return self.trunk(x_t, t)
        if self.replay is None:
            self.replay = self._capture(x_t, t)
        return self.replay(x_t, t)

    def _capture(self, x_t: Tensor, t: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        # Casts in autocast's cache would be captured and then freed, so the cache is disabled.
        enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        module = _Trunk(self.model, self.trunk).train()
        if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
            # The captured AccumulateGrad nodes belong to the capture stream. Autograd synchronizes
            # the streams correctly; only the warning is switched off.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        cast = torch.autocast("cuda", dtype, enabled=enabled, cache_enabled=False)
        with torch.cuda.device(x_t.device), cast:
            inputs = (x_t.clone(), t.clone())
            torch.cuda.make_graphed_callables(module, inputs, allow_unused_input=True)
        return module  # make_graphed_callables replaced its forward by the replay


class _Trunk(nn.Module):
    """A module with the model's parameters whose forward pass is the trunk."""

    def __init__(self, model: nn.Module, trunk: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.trunk = model, trunk

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.trunk(x_t, t)
