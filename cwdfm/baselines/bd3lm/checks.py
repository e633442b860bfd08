"""What can be asked of a model that goes from block to block."""

from torch import Tensor, nn

from cwdfm.errors import InputError
from cwdfm.model.transformer import DiT


def check_length(length: int, block: int) -> None:
    """Refuse a sequence that does not divide into blocks."""
    if length % block:
        raise InputError(
            f"a sequence of {length} tokens does not divide into blocks of {block}: cut or pad it "
            f"to a multiple, such as {(length // block + 1) * block}, or train with a block that "
            f"divides {length}"
        )


def check_network(model: nn.Module, block: int) -> DiT:
    """The model, if it is a transformer that was built for such blocks."""
    if not isinstance(model, DiT):
        raise InputError(
            f"block diffusion needs a DiT, whose trunk takes an attention, got "
            f"{type(model).__name__}; build it with DiT(method.network(config))"
        )
    config = model.config
    if (config.attention, config.block) != ("block", block) or config.time == "given":
        raise InputError(
            f"block diffusion with blocks of {block} needs a network with attention='block', "
            f"block={block} and time='zero', got attention={config.attention!r}, "
            f"block={config.block}, time={config.time!r}; build it with "
            f"DiT(method.network(config))"
        )
    return model


def check_given(fixed_BN: Tensor, block: int) -> None:
    """Refuse given tokens that come after a block with a free one.

    Blocks are made from left to right, and an earlier one does not see a later one. So whole blocks
    may be given, then one in part, with holes anywhere in it, and from then on nothing.
    """
    fixed_BKL = fixed_BN.unflatten(1, (-1, block))
    some_BK, open_BK = fixed_BKL.any(2), ~fixed_BKL.all(2)
    open_before_BK = (open_BK.int().cumsum(1) - open_BK.int()) > 0
    wrong_BK = some_BK & open_before_BK
    if bool(wrong_BK.any()):
        b, k = wrong_BK.nonzero()[0].tolist()
        first = int(open_BK[b].int().argmax())
        raise InputError(
            f"sequence {b} has given tokens in block {k} (positions {k * block}.."
            f"{(k + 1) * block - 1}) and free ones in block {first}, which comes before it and "
            f"would be made without regard to them; give whole blocks from the start and then one "
            f"in part, or fill holes with a flow"
        )
