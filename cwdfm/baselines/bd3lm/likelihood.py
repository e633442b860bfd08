"""The likelihood bound of all blocks, over the whole range of noise."""

import torch
from torch import Tensor

from cwdfm.baselines.bd3lm.checks import check_given, check_length
from cwdfm.baselines.bd3lm.network import Beside
from cwdfm.likelihood.bound import Bound, free_tokens
from cwdfm.likelihood.elbo import elbo
from cwdfm.likelihood.exact import sequence_nats
from cwdfm.model.predict import evaluating
from cwdfm.model.transformer import DiT
from cwdfm.ops.random import sample_index
from cwdfm.schedule import Schedule
from cwdfm.source import MaskSource


def block_elbo(
    model: DiT,
    source: MaskSource,
    schedule: Schedule,
    block: int,
    x_1: Tensor,
    *,
    seed: int,
    draws: int,
    fixed: Tensor | None,
    index: Tensor | None,
    batch_size: int,
) -> Bound:
    """-log p(x_1) = -sum_k log p(x_k | x_<k) <= the sum of the blocks' own bounds.

    Each block's bound is a mean over its own time and noise. The sum's is one over any joint law
    of the blocks' times, since means add whatever the dependence: so all blocks of a sequence share
    one time, and the estimate is `cwdfm.elbo` of a network that reads the clean blocks beside.
    Blocks of one token need no bound.
    """
    x_1, fixed, tokens = free_tokens(model, x_1, fixed, source.vocab_size, batch_size)
    check_length(x_1.shape[1], block)
    check_given(fixed, block)
    index_B = sample_index(index, len(x_1), x_1.device)
    nats_B = torch.zeros(len(x_1), dtype=torch.float64, device=x_1.device)
    variance = 0.0
    for rows in torch.arange(len(x_1), device=x_1.device).split(batch_size):
        if bool(fixed[rows].all()):
            continue
        if block == 1:  # a token that is masked or not: its own law is all there is
            x, masks = x_1[rows], torch.full_like(x_1[rows], source.mask_id)
            with torch.no_grad(), evaluating(model):
                nats_B[rows] = sequence_nats(Beside(model, x), source, masks, x, ~fixed[rows])
            continue
        part = elbo(
            Beside(model, x_1[rows]),
            source,
            schedule,
            x_1[rows],
            seed=seed,
            draws=draws,
            fixed=fixed[rows],
            index=index_B[rows],
            batch_size=batch_size,
        )
        nats_B[rows] = part.nats_B
        variance += (part.standard_error * part.tokens) ** 2
    return Bound.of(nats_B, tokens, variance, exact=block == 1)
