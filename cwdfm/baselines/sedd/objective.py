"""Training of SEDD: the objective, denoising score entropy, and its config.

Shapes: B batch, N length, K positions, k positions of a chunk, D width, V data tokens.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cwdfm.baselines.sedd.graph import LogitSums
from cwdfm.baselines.sedd.method import SEDD
from cwdfm.errors import check_choice
from cwdfm.loss.base import TIME_EPSILON
from cwdfm.method.base import DataBatch, Method, MethodConfig, Objective, Task, TrainingBatch
from cwdfm.model.positions import Positions
from cwdfm.model.transformer import DiTConfig
from cwdfm.ops.head_loss import head_log_prob
from cwdfm.ops.head_rows import MAX_ELEMENTS
from cwdfm.ops.precision import product_dtype, sum_dtype


@dataclass(frozen=True)
class ScoreEntropyObjective(Objective):
    """L = E d sigma/ds sum_i sum_{y != x^i} Q(y, x^i) [s_y - r_y log s_y + r_y (log r_y - 1)].

    This is the integrand of the likelihood bound, including its constant, at s uniform in
    [TIME_EPSILON, 1]. The network is conditioned on sigma instead of the time. With the absorbing
    graph only masked tokens have terms.
    """

    method: SEDD

    def training_batch(self, batch: DataBatch) -> TrainingBatch:
        s_B = TIME_EPSILON + (1 - TIME_EPSILON) * (1 - batch.t.double())
        graph, noise = self.method.forward_graph, self.method.noise_process
        sigma_B = noise.sigma(s_B)
        x_t = graph.corrupt(batch.x_1, sigma_B, **batch.noise)
        rate_B, positions = noise.rate(s_B), Positions.of(graph.source.movable(x_t, batch.fixed))

        def loss(hidden_BND: Tensor, readout: nn.Linear) -> Tensor:
            hidden_KD = positions.take(hidden_BND)
            hidden_KD = hidden_KD.to(product_dtype(hidden_KD))
            x_K, x_1_K = positions.take(x_t), positions.take(batch.x_1)
            with torch.autocast(hidden_BND.device.type, enabled=False):
                if graph.source.marks_noise:
                    sums = masked_head_sums(hidden_KD, readout, x_1_K, graph.vocab_size)
                else:
                    sums = head_sums(hidden_KD, readout, x_K, x_1_K, graph.vocab_size)
                sigma_K, rate_K = (y[positions.sequence].to(sums.target) for y in (sigma_B, rate_B))
                terms_K = rate_K * graph.score_entropy(sums, x_K == x_1_K, sigma_K)
                return terms_K.sum() / (~batch.fixed).sum().clamp(min=1)

        return TrainingBatch(x_t, sigma_B.float(), loss)

    @property
    def worst_weight(self) -> float:
        noise, graph = self.method.noise_process, self.method.forward_graph
        ends = torch.tensor([TIME_EPSILON, 1.0], dtype=torch.float64)
        return float((noise.rate(ends) * graph.max_weight(noise.sigma(ends))).max())


@dataclass(frozen=True)
class SEDDConfig(MethodConfig):
    """Score entropy discrete diffusion: absorbing with a mask source, otherwise uniform."""

    method_class = SEDD

    method: str = "sedd"  # the training method: flow, mdlm, sedd, bd3lm or ar
    source: Literal["mask", "uniform"] = "uniform"  # the noise distribution
    noise: Literal["loglinear", "geometric"] = "loglinear"  # the noise schedule

    def __post_init__(self) -> None:
        check_choice("source", self.source, ("mask", "uniform"))
        check_choice("noise", self.noise, ("loglinear", "geometric"))

    def build(self, vocab_size: int, size: DiTConfig, length: int) -> Task:
        method = SEDD(vocab_size, "absorb" if self.source == "mask" else "uniform", self.noise)
        return Task(method, ScoreEntropyObjective(method), method.network(size))

    @classmethod
    def settings_of(cls, method: Method, model: DiTConfig) -> dict[str, Any] | None:
        if not isinstance(method, SEDD):
            return None
        source = "mask" if method.graph == "absorb" else "uniform"
        return {"method": "sedd", "source": source, "noise": method.noise}


def head_sums(
    hidden_KD: Tensor, readout: nn.Linear, x_K: Tensor, x_1_K: Tensor, vocab_size: int
) -> LogitSums:
    """The sums of readout(hidden), differentiable, with the logits of one chunk in memory.

    The logits of a chunk are discarded after the forward pass and recomputed in the backward pass.
    """
    weight, bias = readout.weight, readout.bias  # FSDP shards those of the module after the pass

    def chunk_sums(hidden_kD: Tensor, x_k: Tensor, x_1_k: Tensor) -> LogitSums:
        dtype = hidden_kD.dtype
        shift = None if bias is None else bias[:vocab_size].to(dtype)
        logits_kV = F.linear(hidden_kD, weight[:vocab_size].to(dtype), shift)
        return LogitSums.of(logits_kV, x_k, x_1_k)

    size = max(1, MAX_ELEMENTS.get(hidden_KD.device.type, MAX_ELEMENTS["cpu"]) // vocab_size)
    chunks = zip(*(x.split(size) for x in (hidden_KD, x_K, x_1_K)), strict=True)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    parts = [checkpoint(chunk_sums, *chunk, **options) for chunk in chunks]
    return LogitSums(*(torch.cat(column) for column in zip(*parts, strict=True)))


def masked_head_sums(
    hidden_KD: Tensor, readout: nn.Linear, x_1_K: Tensor, vocab_size: int
) -> LogitSums:
    """The sums of readout(hidden) if every current token is the mask; `total` is NaN.

    log sum_y exp(l_y) = l_{x_1} - log p(x_1), by the fused `head_log_prob` and one dot product per
    position.
    """
    log_p_K = head_log_prob(hidden_KD, readout, x_1_K[:, None], vocab_size)[:, 0]
    dtype, wide = hidden_KD.dtype, sum_dtype(hidden_KD)
    weight_KD = F.embedding(x_1_K, readout.weight).to(dtype)
    target_K = (hidden_KD.to(wide) * weight_KD.to(wide)).sum(-1)
    if readout.bias is not None:
        target_K = target_K + F.embedding(x_1_K, readout.bias[:, None])[:, 0].to(dtype).to(wide)
    target_K = target_K.to(dtype).to(log_p_K.dtype)  # rounded like the logits inside log p
    return LogitSums(target_K - log_p_K, torch.full_like(target_K, torch.nan), target_K)
