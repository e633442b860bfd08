"""The exact posterior of a small joint distribution: an error-free model for testing samplers.

Any difference between samples and target is then caused by the sampler.
"""

from itertools import product
from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor

from cwdfm.errors import InputError, describe, has_values
from cwdfm.schedule import Schedule, check_schedule
from cwdfm.source import Source, check_source


class ExactPosterior:
    """p_{1|t}^i(. | x_t) by Bayes' rule, summed over all V^N sequences of a target.

    `target` [V, ..., V] holds the probabilities of all sequences of length N = target.dim(). The
    likelihood of a coordinate is kappa_t [x_t = x_1] + (1 - kappa_t) p_0(x_t), so for a mask source
    the posterior is the target conditioned on the revealed tokens, at any time.
    """

    def __init__(self, target: Tensor, source: Source, schedule: Schedule) -> None:
        check_source(source)
        check_schedule(schedule)
        if not has_values(target) or target.is_complex():
            raise InputError(f"target must be a tensor of probabilities, got {describe(target)}")
        sizes = set(target.shape)
        total = target.sum(dtype=torch.float64)
        if sizes != {source.vocab_size} or not bool((target >= 0).all()) or not 0 < total < inf:
            raise InputError(
                f"target must contain non-negative probabilities, not necessarily normalized, with "
                f"an axis of size {source.vocab_size} for each position, got {describe(target)} "
                f"that sums to {float(total):g}"
            )
        self.source, self.schedule = source, schedule
        self.probabilities_S = target.double().flatten() / total
        states = product(range(source.vocab_size), repeat=target.dim())
        self.states_SN = torch.tensor(list(states))

    def __call__(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Logits [B, N, num_tokens], float64; -inf for the mask."""
        # Few (state, time) pairs are distinct, so Bayes' rule is evaluated once for each.
        _, time_B = torch.unique(t, return_inverse=True)
        code_B = time_B
        for x_B in x_t.unbind(1):
            code_B = code_B * self.source.num_tokens + x_B
        distinct, inverse_B = torch.unique(code_B, return_inverse=True)
        index_B = torch.arange(len(x_t), device=x_t.device)
        example = torch.zeros_like(distinct).scatter(0, inverse_B, index_B)
        return self._posterior(x_t[example], t[example])[inverse_B]

    def _posterior(self, x_t: Tensor, t: Tensor) -> Tensor:
        kappa_B1 = self.schedule.kappa(t.double())[:, None]
        states_SN = self.states_SN.to(x_t.device)
        joint_BS = self.probabilities_S.to(x_t.device).repeat(len(x_t), 1)
        revealed_BN = self.source.revealed(x_t)
        noise_BN = (1 - kappa_B1) * (1 - self.source.renoise_probability(x_t))  # (1 - kappa) p_0
        for i in range(states_SN.shape[1]):
            equal_BS = x_t[:, i, None] == states_SN[:, i]
            if revealed_BN is None:
                joint_BS = joint_BS * (kappa_B1 * equal_BS + noise_BN[:, i, None])
            else:
                joint_BS = joint_BS * (equal_BS | ~revealed_BN[:, i, None])
        # A state with probability zero has no posterior; use a uniform one.
        joint_BS = torch.where(joint_BS.sum(1, keepdim=True) > 0, joint_BS, 1.0)
        one_hot_SNV = F.one_hot(states_SN, self.source.vocab_size).double()
        logits_BNV = torch.einsum("bs,snv->bnv", joint_BS, one_hot_SNV).log()
        padding = self.source.num_tokens - self.source.vocab_size
        return F.pad(logits_BNV, (0, padding), value=-torch.inf)
