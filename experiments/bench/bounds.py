"""What a piece of work must at least multiply and move, and how long that takes at the ceilings.

Operations are those of matrix products, two for each multiplication; all else is bound by the
memory. Bytes are those that cannot stay on the chip: weights, the optimiser's state, tokens, and
logits where they are given. Activations are left out, so a bound is one from below.

Letters: B sequences, N length, D width, L blocks, r the MLP's ratio, C conditioning, F frequencies
of the time map, V data tokens, K rows at which the head is asked.
"""

from dataclasses import dataclass
from typing import Literal

from cwdfm.model.transformer import FREQUENCIES, DiTConfig
from experiments.bench.ceilings import Ceilings


@dataclass(frozen=True)
class Work:
    """Operations and bytes."""

    flops: float
    bytes: float

    def seconds(self, ceilings: Ceilings) -> float:
        """max(operations / ceiling, bytes / ceiling): both go on at a time."""
        return max(self.flops / ceilings.flops, self.bytes / ceilings.bytes)

    def limit(self, ceilings: Ceilings) -> Literal["arithmetic", "memory"]:
        """Which of the two it is."""
        busy = self.flops / ceilings.flops >= self.bytes / ceilings.bytes
        return "arithmetic" if busy else "memory"


def trunk_weights(config: DiTConfig) -> int:
    """Weights that multiply, head left out: L (4 + 2 r) D^2 + C (F + C + (6 L + 2) D)."""
    d, c, depth = config.width, config.conditioning, config.depth
    modulations = c * (FREQUENCIES + c + (6 * depth + 2) * d)
    return depth * (4 + 2 * config.mlp_ratio) * d**2 + modulations


def trunk_flops(config: DiTConfig, sequences: float, length: int) -> float:
    """Forward, without the head: B [N L (2 (4 + 2 r) D^2 + 4 N D) + 2 C (F + C + (6 L + 2) D)].

    A token meets the blocks' weights and, in two products, all N tokens; the time map and the
    modulations work once a sequence.
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
    """An optimiser step in m micro-batches: 3 (trunk + head) operations, 4 P (4 m + 10) bytes.

    Backward costs twice the forward. Of P parameters in float32, each micro-batch reads the weights
    twice and adds to the gradients (the first writes them: 4 m - 1); the norm reads those (1),
    AdamW reads four and writes three numbers (7), the average reads two and writes one (3).
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
    """Forward for B sequences, the head at K rows; a call reads all weights, `width` bytes each.

    Sequences, rows and calls are counted over all that is timed, and may be means.
    """
    flops = trunk_flops(config, sequences, length) + head_flops(config, rows, vocab)
    return Work(flops, calls * width * (trunk_weights(config) + float(config.width * vocab)))


def corruption(batch: int, length: int) -> Work:
    """A path's sample: x_1 read, x_0 and x_t written, 8 bytes each, and two masks: 26 B N bytes."""
    return Work(0.0, 26.0 * batch * length)


def draws(rows: int, vocab: int, width: int) -> Work:
    """Categorical draws: every logit of `width` bytes read once, K V width bytes."""
    return Work(0.0, float(rows) * vocab * width)
