"""Settings of a benchmark: shapes, device, compilation."""

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch

Scale = Literal["tiny", "full"]


@dataclass(frozen=True)
class Shapes:
    """Sizes; the defaults are those of the paper."""

    model: str = "base"  # transformer preset
    vocab: int = 50_257  # of text
    length: int = 1024  # of text
    train_batch: int = 64  # sequences per micro-batch of text
    accumulation: int = 8  # micro-batches per optimizer step
    sample_batch: int = 32  # sequences per sampling batch
    run: int = 64  # steps of the sampling run in which single steps are timed ...
    first: int = 16  # ... from this one
    last: int = 32  # ... up to this one
    peer_steps: int = 8  # timed steps of the peer, whose steps all cost the same
    whole: int = 1024  # steps for complete samples
    long: int = 4096  # many steps for complete samples
    long_factor: int = 8  # long sequences are longer by this factor, at equal tokens per batch
    molecule_vocab: int = 40
    molecule_length: int = 32
    molecule_batch: int = 2048
    molecule_steps: int = 25_000  # steps of a complete training
    matrices: tuple[int, ...] = (4096, 8192, 16_384)  # sizes of matrix products for the peak speed
    copied: int = 2**30  # bytes of the copy for the peak bandwidth
    repeats: int = 5  # timings per median
    step_repeats: int = 3  # timings per median, for optimizer steps and sampling steps


SHAPES: dict[Scale, Shapes] = {
    "full": Shapes(),
    "tiny": Shapes(
        model="debug",
        vocab=64,
        length=16,
        train_batch=4,
        accumulation=2,
        sample_batch=4,
        run=16,
        first=4,
        last=8,
        peer_steps=3,
        whole=16,
        long=64,
        long_factor=2,
        molecule_vocab=40,
        molecule_length=8,
        molecule_batch=16,
        matrices=(128, 256),
        copied=2**22,
        repeats=3,
    ),
}


BATCHES = ("train_batch", "sample_batch")  # of sequences of text


@dataclass(frozen=True)
class Settings:
    """Everything that determines a measurement, except for the code."""

    scale: Scale
    device: torch.device
    compile: bool = True  # compile the trunk of the transformer on a GPU
    whole: bool = False  # compile the trunk as a whole, not block by block
    factor: int = 1  # sequences are this much longer, in batches of as many tokens

    @property
    def shapes(self) -> Shapes:
        shapes, f = SHAPES[self.scale], self.factor
        batches = {name: max(1, getattr(shapes, name) // f) for name in BATCHES}
        return replace(shapes, length=f * shapes.length, **batches)

    def longer(self) -> Self:
        """The same settings with long sequences."""
        return replace(self, factor=self.shapes.long_factor)

    @property
    def compiled(self) -> bool:
        """Whether the trunk is compiled. On a CPU, compiling takes longer than it saves."""
        return self.compile and self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrix products."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def precision(self) -> torch.autocast:
        """A context in which matrix products use `dtype`."""
        half = self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)
