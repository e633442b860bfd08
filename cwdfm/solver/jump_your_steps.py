"""Jump your steps (Park et al. 2024): the time grid with the smallest error of parallel draws.

A step from t_a uses its prediction until the next grid time, although the state x_j at a later time
t_j would allow a better one. With rates lambda p(v), the Kullback-Leibler divergence between the
chain and its simulation on a grid grows at the rate lambda_t D(a, j), where

    D(a, j) = E sum_i [x_1^i != x_j^i] log(p_j(x_1^i) / p_a(x_1^i)) + p_j(x_j^i) - p_a(x_j^i).

For a mask source the last two terms are zero. D is estimated on data, noised at all times with the
same random draws, and dynamic programming finds the grid with the smallest total cost.

Shapes: M fine intervals, B sequences, N length.
"""

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_integer, check_tokens
from cwdfm.model.positions import Positions
from cwdfm.model.predict import check_flow_network, evaluating, model_device, predict_logits
from cwdfm.model.protocol import Model
from cwdfm.path import MixturePath
from cwdfm.schedule import Schedule, time_grid
from cwdfm.solver.base import fixed_tokens
from cwdfm.solver.sample import Samples
from cwdfm.source import Source


@torch.no_grad()
def jump_your_steps(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor | Samples,
    steps: int,
    *,
    fixed: Tensor | None = None,
    resolution: int = 64,
    seed: int = 0,
) -> Tensor:
    """The best grid of `steps` steps, float64 [steps + 1]: pass it to `sample` as `grid`.

    Args:
        model: Maps tokens [B, N] and times [B] to logits [B, N, V] of p_{1|t}.
        source: The source distribution p_0.
        schedule: The schedule kappa.
        tokens: Data, or samples of the model from many steps, [B, N]. A few dozen suffice.
        steps: The number of steps, at most `resolution`.
        fixed: Tokens that are never noised, [B, N] or [N]; the default is the prompt of `Samples`.
        resolution: The number of candidate times, equally spaced in kappa. The model is evaluated
            once at each of them.
        seed: The random seed of the noise.
    """
    check_flow_network(model)
    path = MixturePath(source, schedule)
    check_integer("steps", steps)
    check_integer("resolution", resolution, 2)
    x_1 = tokens.tokens if isinstance(tokens, Samples) else tokens
    if fixed is None and isinstance(tokens, Samples):
        fixed = tokens.fixed
    check_tokens("tokens", x_1, source.vocab_size)
    if steps > resolution:
        raise InputError(
            f"{steps} steps need at least as many candidate times, got resolution={resolution}; "
            f"set resolution={2 * steps}"
        )
    x_1 = x_1.to(model_device(model) or x_1.device)
    times = time_grid(schedule, resolution, "kappa")
    cost = step_costs(model, path, x_1, times, seed, fixed)
    return times[best_path(cost, steps)]


@torch.no_grad()
def step_costs(
    model: Model,
    path: MixturePath,
    x_1: Tensor,
    times: Tensor,
    seed: int,
    fixed: Tensor | None = None,
) -> Tensor:
    """The cost [M, M + 1] of a step from time i to time j, inf unless i < j."""
    fixed_BN = fixed_tokens(path.source, x_1, fixed)
    rows = Positions.of(~fixed_BN)
    vocab = path.source.vocab_size
    states, data, noise = [], [], []  # x_j, log p_j(x_1) and p_j(x_0), each [B N]
    with evaluating(model):
        for t in times[:-1].tolist():
            t_B = torch.full((len(x_1),), t, dtype=torch.float64, device=x_1.device)
            sample = path.sample(x_1, t_B, seed=seed, fixed=fixed_BN)  # same draws at every time
            x_1_K, x_0_K = rows.take(x_1), rows.take(sample.x_0)
            parts = []
            for k, logits_kV in predict_logits(model, path.source, sample.x_t, t_B, rows):
                log_p_kV = logits_kV.double().log_softmax(-1)
                at_x_0_k = log_p_kV.gather(1, x_0_K[k, None].clamp(max=vocab - 1))[:, 0].exp()
                at_x_0_k = torch.where(x_0_K[k] < vocab, at_x_0_k, 0.0)
                parts.append((log_p_kV.gather(1, x_1_K[k, None])[:, 0], at_x_0_k))
            states.append(rows.take(sample.x_t))
            data.append(torch.cat([part[0] for part in parts]))
            noise.append(torch.cat([part[1] for part in parts]))
    x_MK, log_p_MK, noise_MK = map(torch.stack, (states, data, noise))
    right_MK = x_MK == x_1_K
    p_MK = torch.where(right_MK, log_p_MK.exp(), noise_MK)  # p_j(x_j)
    moves_M = path.schedule.kappa(times).diff() / path.schedule.survival(times[:-1])
    cost = torch.full((len(data), len(times)), torch.inf, dtype=torch.float64)
    for a in range(len(data)):
        right_JK = right_MK[a:]
        gain_JK = torch.where(right_JK, 0.0, log_p_MK[a:] - log_p_MK[a])
        if not path.source.marks_noise:
            stale_JK = torch.where(right_JK, log_p_MK[a].exp(), noise_MK[a])
            gain_JK += p_MK[a:] - stale_JK
        cost[a, a + 1 :] = (moves_M[a:] * gain_JK.sum(1).cpu()).cumsum(0) / len(x_1)
    return cost


def best_path(cost: Tensor, steps: int) -> Tensor:
    """The indices 0 = i_0 < ... < i_steps = M with the smallest sum of costs, int64 [steps + 1]."""
    best = torch.full((cost.shape[1],), torch.inf, dtype=torch.float64)
    best[0] = 0.0
    predecessors = []
    for _ in range(steps):
        best, predecessor = (best[:-1, None] + cost).min(0)
        predecessors.append(predecessor)
    indices = [cost.shape[1] - 1]
    for predecessor in reversed(predecessors):
        indices.append(int(predecessor[indices[-1]]))
    return torch.tensor(indices[::-1])
