"""What is measured on what: the shapes of a scale, the device, compiled or not."""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from experiments.bench import peer

Scale = Literal["tiny", "full"]


@dataclass(frozen=True)
class Shapes:
    """How large everything is; the defaults are the paper's."""

    model: str = "base"  # the transformer's size, of text and of molecules
    vocab: int = 50_257  # of text
    length: int = 1024  # of text
    train_batch: int = 64  # sequences a micro-batch of text
    accumulation: int = 8  # micro-batches an optimiser step
    sample_batch: int = 32  # sequences drawn at once
    run: int = 64  # steps of the run of which single steps are timed ...
    first: int = 16  # ... from this one
    last: int = 32  # ... up to this one
    peer_steps: int = 8  # of the peer, whose steps all cost the same
    whole: int = 1024  # steps of whole samples
    long: int = 4096  # steps of whole samples, many
    molecule_vocab: int = 40
    molecule_length: int = 32
    molecule_batch: int = 2048
    molecule_steps: int = 25_000  # of a whole training run
    matrices: tuple[int, ...] = (4096, 8192, 16_384)  # sides of the products that show the ceiling
    copied: int = 2**30  # bytes of the copy that shows the ceiling
    repeats: int = 5  # timings of which the median is taken
    step_repeats: int = 3  # of an optimiser step, and of a stretch of sampling


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
        molecule_vocab=40,
        molecule_length=8,
        molecule_batch=16,
        matrices=(128, 256),
        copied=2**22,
        repeats=3,
    ),
}


@dataclass(frozen=True)
class Settings:
    """All that a measurement depends on, apart from the code."""

    scale: Scale
    device: torch.device
    compile: bool = True  # the transformer's trunk, where there is a GPU
    whole: bool = False  # compile the trunk in one, not a block at a time

    @property
    def shapes(self) -> Shapes:
        return SHAPES[self.scale]

    @property
    def compiled(self) -> bool:
        """Whether the trunk is compiled: on a CPU that gains little and costs a minute."""
        return self.compile and self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Of matrix products."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def precision(self) -> torch.autocast:
        """Matrix products in `dtype`, for a while."""
        half = self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)

    def key(self) -> dict[str, Any]:
        """What results must agree in to stand in one table."""
        cuda = self.device.type == "cuda"
        return {
            "scale": self.scale,
            "device": torch.cuda.get_device_name(self.device) if cuda else "cpu",
            "threads": torch.get_num_threads(),
            "compile": self.compiled and ("whole" if self.whole else "by block"),
            "torch": torch.__version__,
            "flow_matching": peer.version(),
        }
