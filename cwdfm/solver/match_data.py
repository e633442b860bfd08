"""Compare samples with data by a flow's own predictions, to choose between samplers.

The denoising cross-entropy of a sequence x_1 at noise level kappa_t = kappa,

    l_kappa(x_1) = -1/N sum_i log p_t(x_1^i | x_t),    x_t ~ p_t(. | x_1),

measures how well its tokens fit each other, locally for kappa near 1 and as a whole for kappa near
0. Coarse steps draw dependent tokens independently, which raises it; a low temperature lowers it.
For samples that follow the distribution of the data, its mean and standard deviation equal those
of the data at every noise level.

Shapes: B sequences, N length, L noise levels.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_instance, check_tokens, describe
from cwdfm.likelihood.bound import cross_entropy, position_sum
from cwdfm.model.predict import check_flow_network, evaluating, model_device
from cwdfm.model.protocol import Model
from cwdfm.path import MixturePath
from cwdfm.solver.base import fixed_tokens

LEVELS = 8  # noise levels, the midpoints of equal intervals

T = TypeVar("T")


@torch.no_grad()
def denoising_moments(
    model: Model, path: MixturePath, tokens: Tensor, fixed: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Mean and standard deviation of l_kappa over sequences [B, N], float64 [L, 2].

    The noise depends on the seed and the row only, so it is the same for other tokens of the same
    shape. Fixed tokens, [B, N] or [N], are neither noised nor predicted.
    """
    tokens = tokens.to(model_device(model) or tokens.device)
    fixed_BN = fixed_tokens(path.source, tokens, fixed)
    free_B = (~fixed_BN).sum(1).clamp(min=1)
    found = []
    with evaluating(model):
        for level in range(LEVELS):
            kappa_B = torch.full((len(tokens),), (level + 0.5) / LEVELS, dtype=torch.float64)
            t_B = path.schedule.inverse(kappa_B).to(tokens.device)
            x_t = path.sample(tokens, t_B, seed=seed, step=level, fixed=fixed_BN).x_t
            movable_BN = path.source.movable(x_t, fixed_BN)
            inputs = (path.source, x_t, tokens, movable_BN, t_B, t_B)
            loss_B = position_sum(model, *inputs, cross_entropy) / free_B
            found.append(torch.stack([loss_B.mean(), loss_B.std()]))
    return torch.stack(found).cpu()


def closest_to_data(
    model: Model,
    path: MixturePath,
    data: Tensor,
    draws: Mapping[T, Tensor] | Iterable[tuple[T, Tensor]],
    fixed: Tensor | None = None,
) -> T:
    """The label of the draw [B, N] whose moments are closest to those of the data [B, N].

    `draws` maps the label of each sampler to its samples. The distance is the mean absolute
    difference of `denoising_moments`. Use a few hundred sequences of data and as many in each draw:
    with few, the sampling error hides the differences.
    """
    check_flow_network(model)
    check_instance("path", path, MixturePath, "MixturePath(source, schedule)")
    check_tokens("data", data, path.source.vocab_size)
    if len(data) < 2:
        raise InputError(f"data must have at least 2 sequences to compare with, got {len(data)}")
    expected = denoising_moments(model, path, data, fixed)
    best: tuple[float, T] | None = None
    for label, tokens in _pairs(draws):
        check_tokens("a draw", tokens, path.source.vocab_size)
        if tokens.shape != data.shape:
            raise InputError(
                f"draws and data must have the same shape, got {list(tokens.shape)} and "
                f"{list(data.shape)}"
            )
        moments = denoising_moments(model, path, tokens, fixed)
        difference = float((moments - expected).abs().mean().nan_to_num(nan=torch.inf))
        if best is None or difference < best[0]:
            best = difference, label
    if best is None:
        raise InputError("no draws to choose from")
    return best[1]


def _pairs(draws: Mapping[T, Tensor] | Iterable[tuple[T, Tensor]]) -> Iterator[tuple[T, Tensor]]:
    """The labels and tokens; raises an error for anything else."""
    if not isinstance(draws, Iterable) or isinstance(draws, str | bytes | Tensor):
        raise InputError(
            f"draws must map labels to tokens [B, N] or be pairs of them, got {describe(draws)}"
        )
    for pair in draws.items() if isinstance(draws, Mapping) else draws:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InputError(f"draws must be pairs (label, tokens [B, N]), got {describe(pair)}")
        yield pair
