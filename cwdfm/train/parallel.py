"""Data parallelism, applied from outside: the model's code does not know about it.

DDP replicates the model on each process. FSDP2 shards every parameter with its optimizer moments
and its average, and gathers the weights of a block when they are needed.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from cwdfm.distributed import world_size
from cwdfm.model.transformer import DiT

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Parallel = Literal["ddp", "fsdp"]


def parallelize(model: DiT, kind: Parallel, device: torch.device) -> nn.Module:
    """The module to call in training. FSDP2 changes the model: create optimizers afterwards."""
    if world_size() == 1:
        return model
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard  # takes a second to import

    mesh = init_device_mesh(device.type, (world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def no_gradient_sync(module: nn.Module) -> AbstractContextManager[object]:
    """Accumulate gradients locally; the next backward pass outside this context reduces them.

    With FSDP2 this does nothing: it would keep whole gradients on every process.
    """
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return module.no_sync()
    return nullcontext()


def is_sharded(x: Tensor) -> "TypeGuard[DTensor]":
    """Whether a tensor is sharded over processes. Does not import DTensor, which is slow."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def local(x: Tensor) -> Tensor:
    """This process's shard of a tensor: all of it, unless it is sharded."""
    return x.to_local() if is_sharded(x) else x


def gathered(x: Tensor) -> Tensor:
    """The whole tensor. Collective for sharded tensors: every process must call it."""
    return x.full_tensor() if is_sharded(x) else x


def sharded_like(x: Tensor, pattern: Tensor) -> Tensor:
    """A whole tensor, moved and sharded like `pattern`."""
    x = x.to(pattern.device)
    if is_sharded(pattern):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(x, pattern.device_mesh, pattern.placements)
    return x
