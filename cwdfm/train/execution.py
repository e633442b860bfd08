"""Parallelism and CUDA graphs for training, applied from outside the model code.

DDP replicates the model on each process. FSDP2 shards every parameter, with its optimizer moments
and average, and gathers the weights of a block when they are needed.

On a single GPU, the forward and backward passes of the trunk run as two CUDA graphs, because
launching the hundreds of kernels of a small network from Python takes longer than running them. All
micro-batches of a run have the same shape, so the passes are captured once and replayed.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from cwdfm.distributed import world_size
from cwdfm.model.transformer import DiT
from cwdfm.ops.precision import product_dtype

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Parallel = Literal["ddp", "fsdp"]
WARMUP_CALLS = 3  # calls before the capture, so that compilation and autotuning are done


def parallelize(model: DiT, kind: Parallel, device: torch.device) -> nn.Module:
    """Return the module to call in training. FSDP2 modifies the model: create optimizers later."""
    if world_size() == 1:
        return model
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard  # takes a second to import

    mesh = init_device_mesh(device.type, (world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if device.type == "cpu":  # divide the sum of gradients: gloo's average is a sum in torch 2.8
        sharded: list[Any] = [model, *model.blocks]
        for module in sharded:
            module.set_force_sum_reduction_for_comms(True)
    return model


def no_gradient_sync(module: nn.Module) -> AbstractContextManager[object]:
    """Accumulate gradients locally; the next backward pass outside this context reduces them.

    With FSDP2 this does nothing, since it would keep unsharded gradients on every process.
    """
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return module.no_sync()
    return nullcontext()


def is_sharded(x: Tensor) -> "TypeGuard[DTensor]":
    """Whether a tensor is sharded over processes; avoids importing DTensor, which is slow."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def local(x: Tensor) -> Tensor:
    """This process's shard of a tensor, or the tensor itself if it is not sharded."""
    return x.to_local() if is_sharded(x) else x


def gathered(x: Tensor) -> Tensor:
    """The full tensor. Every process must call this, since it gathers sharded tensors."""
    return x.full_tensor() if is_sharded(x) else x


def sharded_like(x: Tensor, pattern: Tensor) -> Tensor:
    """Move and shard a full tensor like `pattern`."""
    x = x.to(pattern.device)
    if is_sharded(pattern):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(x, pattern.device_mesh, pattern.placements)
    return x


class GraphedTrunk:
    """Replays the captured trunk for training inputs of the captured shape; else calls the trunk.

    The next pass overwrites the memory of the gradients, so they must be added to existing ones. If
    `grad` were None, autograd would store a reference to that memory instead of a copy.
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
        # Disable autocast's cache: its casts would be captured and then freed.
        enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        module = _Trunk(self.model, self.trunk).train()
        if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
            # The captured AccumulateGrad nodes belong to the capture stream. Autograd synchronizes
            # the streams correctly, so the warning is disabled.
            torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        cast = torch.autocast("cuda", dtype, enabled=enabled, cache_enabled=False)
        with torch.cuda.device(x_t.device), cast:
            inputs = (x_t.clone(), t.clone())
            torch.cuda.make_graphed_callables(module, inputs, allow_unused_input=True)
        return module  # make_graphed_callables has replaced its forward by the replay


class _Trunk(nn.Module):
    """A module with the model's parameters whose forward pass is the trunk."""

    def __init__(self, model: nn.Module, trunk: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.trunk = model, trunk

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.trunk(x_t, t)
