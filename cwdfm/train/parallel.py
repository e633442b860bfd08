"""One model on many processes: the model's own code knows nothing of it.

DDP keeps a copy on each process. FSDP2 keeps a share of every parameter, its moments and its
average on each, and gathers a block's weights when they are needed.
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


def spread(model: DiT, kind: Parallel, device: torch.device) -> nn.Module:
    """The module to call in training. FSDP2 changes the model itself; make optimisers after it."""
    if world_size() == 1:
        return model
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard  # a second, of which most runs have no use

    mesh = init_device_mesh(device.type, (world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def keeping_gradients(module: nn.Module) -> AbstractContextManager[object]:
    """Backward passes inside leave gradients where they are, to be exchanged with later ones.

    Not so with FSDP2, for which it would mean whole gradients on every process.
    """
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return module.no_sync()
    return nullcontext()


def sharded(x: Tensor) -> "TypeGuard[DTensor]":
    """Whether processes have shares of it. Where nothing has imported such tensors, none is one."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def own(x: Tensor) -> Tensor:
    """This process's share of a tensor: all of it, unless it is sharded."""
    return x.to_local() if sharded(x) else x


def whole(x: Tensor) -> Tensor:
    """All of a tensor. Sharded ones are gathered: every process must ask."""
    return x.full_tensor() if sharded(x) else x


def like(x: Tensor, pattern: Tensor) -> Tensor:
    """A whole tensor laid out as `pattern` is."""
    x = x.to(pattern.device)
    if sharded(pattern):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(x, pattern.device_mesh, pattern.placements)
    return x
