"""Lower bounds on the time of a workload (roofline model), and projections to many GPUs.

Operations are the operations of matrix products, two per multiply-add. Bytes are the bytes that
must be read from or written to memory: weights, optimizer state, tokens, and input logits.
Activations are not counted.

Symbols: B sequences, N length, D width, L blocks, r MLP ratio, C conditioning, F frequencies of the
time embedding, V data tokens, K positions at which the head is evaluated.
"""

from dataclasses import dataclass
from typing import Literal

from cwdfm.model.conditions import FREQUENCIES
from cwdfm.model.transformer import DiTConfig
from cwdfm.train.execution import Parallel

GRADIENT_BYTES = 4  # per parameter, float32
BACKWARD_SHARE = 2 / 3  # of the time of a micro-batch
SHARE = 0.2  # fraction of a step above which a part counts as a bottleneck


@dataclass(frozen=True)
class Ceilings:
    """Measured peak speeds: the best over a few sizes."""

    flops: float  # per second, in products of square matrices
    bytes: float  # per second, read and written, in a copy
    dtype: str  # of the matrix products


@dataclass(frozen=True)
class Work:
    """The operations and bytes of a workload."""

    flops: float
    bytes: float

    def seconds(self, ceilings: Ceilings) -> float:
        """The lower bound max(operations / peak, bytes / peak), assuming that both overlap."""
        return max(self.flops / ceilings.flops, self.bytes / ceilings.bytes)

    def limit(self, ceilings: Ceilings) -> Literal["arithmetic", "memory"]:
        busy = self.flops / ceilings.flops >= self.bytes / ceilings.bytes
        return "arithmetic" if busy else "memory"


def trunk_weights(config: DiTConfig) -> int:
    """Weights of matrix products without the head: L (4 + 2 r) D^2 + C (F + C + (6 L + 2) D)."""
    d, c, depth = config.width, config.conditioning, config.depth
    modulations = c * (FREQUENCIES + c + (6 * depth + 2) * d)
    return depth * (4 + 2 * config.mlp_ratio) * d**2 + modulations


def trunk_flops(config: DiTConfig, sequences: float, length: int) -> float:
    """Forward, without the head: B [N L (2 (4 + 2 r) D^2 + 4 N D) + 2 C (F + C + (6 L + 2) D)].

    Each token is multiplied by the weights of all blocks and attends to all N tokens. The time
    embedding and the modulations are computed once per sequence.
    """
    d, c, depth = config.width, config.conditioning, config.depth
    token = depth * (2 * (4 + 2 * config.mlp_ratio) * d**2 + 4 * length * d)
    once = 2 * c * (FREQUENCIES + c + (6 * depth + 2) * d)
    return float(sequences) * (length * token + once)


def head_flops(config: DiTConfig, rows: float, vocab: int) -> float:
    """Forward: 2 K D V."""
    return 2.0 * rows * config.width * vocab


def training(
    config: DiTConfig,
    parameters: int,
    *,
    batch: int,
    length: int,
    micro_batches: int,
    rows: float,
    vocab: int,
) -> Work:
    """An optimizer step in m micro-batches: 3 (trunk + head) operations, 4 P (4 m + 10) bytes.

    The backward pass costs twice the forward pass. With P float32 parameters, each micro-batch
    reads the weights twice and updates the gradients (4 m - 1); the gradient norm reads them (1),
    AdamW reads four and writes three numbers (7), the EMA reads two and writes one (3).
    """
    flops = trunk_flops(config, batch, length) + head_flops(config, rows, vocab)
    return Work(3 * flops, 4.0 * parameters * (4 * micro_batches + 10))


def sampling(
    config: DiTConfig,
    *,
    sequences: float,
    length: int,
    rows: float,
    vocab: int,
    calls: float,
    width: int,
) -> Work:
    """Forward passes for B sequences with the head at K positions; `width` is bytes per weight.

    Sequences, positions and calls are totals over the timed run. Each call reads all weights.
    """
    flops = trunk_flops(config, sequences, length) + head_flops(config, rows, vocab)
    return Work(flops, calls * width * (trunk_weights(config) + float(config.width * vocab)))


def corruption(batch: int, length: int) -> Work:
    """Sampling a path: read x_1, write x_0 and x_t (8 bytes each) and two masks, 26 B N bytes."""
    return Work(0.0, 26.0 * batch * length)


def draws(rows: int, vocab: int, width: int) -> Work:
    """Categorical draws: read every logit of `width` bytes once, K V width bytes."""
    return Work(0.0, float(rows) * vocab * width)


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
        """The bandwidth of the slowest link in a ring."""
        return self.inside if gpus <= self.machine else self.between


@dataclass(frozen=True)
class Exchange:
    """Sizes in bytes of the tensors in the collective operations of an optimizer step."""

    all_reduce: float = 0.0
    all_gather: float = 0.0
    reduce_scatter: float = 0.0

    def volume(self, gpus: int) -> float:
        """Bytes that each GPU sends in a ring of G: (G - 1) / G of them, twice for an all-reduce."""
        once = 2 * self.all_reduce + self.all_gather + self.reduce_scatter
        return (gpus - 1) / gpus * once


def exchange(
    parallel: Parallel, parameters: int, block_parameters: int, micro_batches: int
) -> Exchange:
    """The communication for P parameters, P_b of them in blocks, with m micro-batches.

    DDP reduces all gradients once: 4 P bytes. FSDP2 gathers all weights for each forward pass and
    those of the blocks again for each backward pass, 4 m (P + P_b), and then scatters the sums of
    the gradients, 4 m P.
    """
    whole, blocks = (float(GRADIENT_BYTES * n) for n in (parameters, block_parameters))
    if parallel == "ddp":
        return Exchange(all_reduce=whole)
    return Exchange(
        all_gather=micro_batches * (whole + blocks), reduce_scatter=micro_batches * whole
    )


@dataclass(frozen=True)
class Projection:
    """The projected cost of a training run."""

    gpus: int
    compute: float  # seconds per step
    exchange: float  # seconds per step without overlap
    waited: float  # seconds of communication per step that are not overlapped
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

    A ring all-reduce moves 2 (G - 1) / G of all gradients through every GPU once per step. It
    overlaps with the backward pass of the last micro-batch. The rest of its time is exposed.

    micro_batch_tokens: the maximum number of tokens per micro-batch.
    """
    network = network or Network()
    share = job.batch_tokens / gpus
    compute = share / tokens_per_second
    volume = exchange("ddp", job.parameters, 0, 1).volume(gpus)
    duration = volume / network.bandwidth(gpus)
    last = min(share, micro_batch_tokens) / tokens_per_second
    waited = max(0.0, duration - BACKWARD_SHARE * last)
    hours = job.steps * (compute + waited) / 3600
    return Projection(gpus, compute, duration, waited, hours, gpus * hours)
