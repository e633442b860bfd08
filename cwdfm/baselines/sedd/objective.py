"""The denoising score entropy, as a training objective."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from cwdfm.baselines.sedd.method import SEDD
from cwdfm.loss.base import TIME_EPSILON
from cwdfm.method.base import DataBatch, Objective, TrainingBatch
from cwdfm.model.positions import Positions
from cwdfm.ops.precision import product_dtype


@dataclass(frozen=True)
class ScoreEntropyObjective(Objective):
    """L = E d sigma/ds sum_i sum_{y != x^i} Q(y, x^i) [s_y - r_y log s_y + r_y (log r_y - 1)].

    The bound's integrand, constant included, at s uniform in [TIME_EPSILON, 1]. The network is told
    sigma in the place of the time. Absorbing graph: only masked tokens have terms.
    """

    method: SEDD

    def training_batch(self, batch: DataBatch) -> TrainingBatch:
        s_B = TIME_EPSILON + (1 - TIME_EPSILON) * (1 - batch.t.double())
        noise = self.method.noise_process
        sigma_B, rate_B = noise.sigma(s_B), noise.rate(s_B)
        x_t = self.method.forward_graph.corrupt(
            batch.x_1,
            sigma_B,
            batch.fixed,
            seed=batch.seed,
            step=batch.step,
            index=batch.index,
        )
        rows = Positions.of(self.method.forward_graph.rows(x_t, batch.fixed))
        read = partial(self._loss, batch=batch, x_t=x_t, sigma_B=sigma_B, rate_B=rate_B, rows=rows)
        return TrainingBatch(x_t, sigma_B.float(), read)

    def _loss(
        self,
        hidden_BND: Tensor,
        readout: nn.Linear,
        *,
        batch: DataBatch,
        x_t: Tensor,
        sigma_B: Tensor,
        rate_B: Tensor,
        rows: Positions,
    ) -> Tensor:
        """The mean over tokens that are not fixed, from hidden vectors [B, N, D] and the head."""
        graph = self.method.forward_graph
        hidden_KD = rows.take(hidden_BND)
        hidden_KD = hidden_KD.to(product_dtype(hidden_KD))
        x_K, x_1_K = rows.take(x_t), rows.take(batch.x_1)
        with torch.autocast(hidden_BND.device.type, enabled=False):
            sums = graph.head_sums(hidden_KD, readout, x_K, x_1_K)
            sigma_K, rate_K = (y_B[rows.sequence].to(sums.target) for y_B in (sigma_B, rate_B))
            terms_K = rate_K * graph.entropy(sums, x_K == x_1_K, sigma_K)
            return terms_K.sum() / (~batch.fixed).sum().clamp(min=1)

    @property
    def worst_weight(self) -> float:
        noise, graph = self.method.noise_process, self.method.forward_graph
        ends = torch.tensor([TIME_EPSILON, 1.0], dtype=torch.float64)
        return float((noise.rate(ends) * graph.largest_weight(noise.sigma(ends))).max())
