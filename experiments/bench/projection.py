"""From one GPU's training speed to a whole run on many: time, GPU hours, and what bounds it.

Data-parallel training computes and exchanges gradients. The exchange, a ring's, moves
2 (G - 1) / G of all gradients through every GPU once a step, beside the last micro-batch's backward
pass, which is two thirds of its time; what does not fit there is waited for.
"""

from dataclasses import dataclass

GRADIENT_BYTES = 4  # a parameter, float32
BACKWARD_SHARE = 2 / 3  # of a micro-batch
SHARE = 0.2  # of a step, from where on something bounds it


@dataclass(frozen=True)
class Job:
    """A training run."""

    parameters: int
    steps: int = 1_000_000
    batch_tokens: int = 512 * 1024  # a step, on all GPUs together


@dataclass(frozen=True)
class Network:
    """Bytes a second that a GPU can send while it receives as many. Datasheets' figures."""

    inside: float = 450e9  # to GPUs of its own machine: NVLink of the H100 and H200
    between: float = 50e9  # to other machines: one port of 400 Gbit/s a GPU
    machine: int = 8  # GPUs of a machine

    def bandwidth(self, gpus: int) -> float:
        """The slowest link of a ring of so many."""
        return self.inside if gpus <= self.machine else self.between


@dataclass(frozen=True)
class Projection:
    """What a run takes on so many GPUs."""

    gpus: int
    compute: float  # seconds a step
    exchange: float  # seconds a step, if nothing hid it
    waited: float  # seconds a step of the exchange that computation does not hide
    hours: float
    gpu_hours: float

    @property
    def bound(self) -> str:
        """What a step is spent on, if it takes a fifth of it."""
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
    """A run on `gpus` of a kind, each of which trains `tokens_per_second` alone.

    A GPU's share of a step is cut into micro-batches of at most `micro_batch_tokens`.
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
