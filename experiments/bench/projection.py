"""Projects the training speed of one GPU to a data-parallel run on many.

A ring all-reduce moves 2 (G - 1) / G of all gradients through every GPU once per step. It overlaps
with the backward pass of the last micro-batch, which is two thirds of its time; the rest is waiting
time.
"""

from dataclasses import dataclass

GRADIENT_BYTES = 4  # per parameter, float32
BACKWARD_SHARE = 2 / 3  # of a micro-batch
SHARE = 0.2  # fraction of a step above which a part counts as a bottleneck


@dataclass(frozen=True)
class Job:
    """A training run."""

    parameters: int
    steps: int = 1_000_000
    batch_tokens: int = 512 * 1024  # per step, on all GPUs together


@dataclass(frozen=True)
class Network:
    """Bidirectional bandwidth of a GPU in bytes per second, from data sheets."""

    inside: float = 450e9  # within a machine: NVLink of H100 and H200
    between: float = 50e9  # between machines: one 400 Gbit/s port per GPU
    machine: int = 8  # GPUs per machine

    def bandwidth(self, gpus: int) -> float:
        """The slowest link of a ring."""
        return self.inside if gpus <= self.machine else self.between


@dataclass(frozen=True)
class Projection:
    """The cost of a run."""

    gpus: int
    compute: float  # seconds per step
    exchange: float  # seconds per step without overlap
    waited: float  # seconds per step that are not overlapped
    hours: float
    gpu_hours: float

    @property
    def bound(self) -> str:
        """The bottlenecks of a step."""
        parts = {"arithmetic": self.compute, "exchange of gradients": self.waited}
        whole = self.compute + self.waited
        return " and ".join(name for name, part in parts.items() if part > SHARE * whole)


def project(
    job: Job,
    gpus: int,
    tokens_per_second: float,
    micro_batch_tokens: int,
    network: Network | None = None,
) -> Projection:
    """A run on `gpus` GPUs, each of which trains `tokens_per_second` alone.

    micro_batch_tokens: the maximal number of tokens per micro-batch.
    """
    network = network or Network()
    share = job.batch_tokens / gpus
    compute = share / tokens_per_second
    volume = 2 * (gpus - 1) / gpus * GRADIENT_BYTES * job.parameters
    exchange = volume / network.bandwidth(gpus)
    last = min(share, micro_batch_tokens) / tokens_per_second
    waited = max(0.0, exchange - BACKWARD_SHARE * last)
    hours = job.steps * (compute + waited) / 3600
    return Projection(gpus, compute, exchange, waited, hours, gpus * hours)
