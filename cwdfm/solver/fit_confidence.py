"""Fit the weights `Learned` and `CalibratedEntropy` to a model's predictions of held-out data."""

from collections.abc import Iterator

import torch
from torch import Tensor

from cwdfm.errors import check_integer, check_tokens
from cwdfm.model.positions import Positions
from cwdfm.model.predict import check_flow_network, evaluating, model_device, predict_logits
from cwdfm.model.protocol import Model
from cwdfm.path import MixturePath
from cwdfm.schedule import Schedule
from cwdfm.solver.base import fixed_tokens
from cwdfm.source import Source
from cwdfm.weight import CalibratedEntropy, Learned
from cwdfm.weight.learned import calibrating_temperature, features, fit_logistic


def fit_confidence(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor,
    *,
    fixed: Tensor | None = None,
    times: int = 16,
    scale: float = 1.0,
    seed: int = 0,
) -> Learned:
    """Fit the probability that a token drawn from the model is correct, on held-out data.

    Args:
        model: Maps tokens [B, N] and times [B] to logits [B, N, V] of p_{1|t}.
        source: The source distribution p_0.
        schedule: The schedule kappa.
        tokens: Held-out data, [B, N]. A few hundred sequences suffice.
        fixed: Tokens that are never noised, [B, N] or [N], such as a first token that the model
            never predicts.
        times: The number of times, equally spaced in kappa. The model is evaluated once at each.
        scale: The exponent of the weight.
        seed: The random seed of the noise.
    """
    inputs, targets = [], []
    flow = (model, source, schedule)
    predictions = held_out_predictions(*flow, tokens, fixed, times, seed, masked_only=True)
    for logits_kV, x_1_k in predictions:
        inputs.append(features(logits_kV))
        log_p_kV = logits_kV.double().log_softmax(-1)
        # Use the probability that a draw equals the data, not a draw: this reduces the variance.
        targets.append(log_p_kV.gather(1, x_1_k[:, None])[:, 0].exp())
    weight = fit_logistic(torch.cat(inputs), torch.cat(targets)).tolist()
    return Learned((weight[0], weight[1], weight[2], weight[3]), scale)


def fit_temperature(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor,
    *,
    fixed: Tensor | None = None,
    times: int = 16,
    beta: float = 1.0,
    seed: int = 0,
) -> CalibratedEntropy:
    """Fit the temperature that maximizes the likelihood of held-out data; see `fit_confidence`.

    With a uniform source the prediction includes the probability that the current token is already
    correct, so all coordinates are used, not only masked ones.
    """
    flow = (model, source, schedule)
    predictions = held_out_predictions(*flow, tokens, fixed, times, seed, masked_only=False)
    logits, targets = zip(*predictions, strict=True)
    return CalibratedEntropy(calibrating_temperature(logits, targets), beta)


@torch.no_grad()
def held_out_predictions(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor,
    fixed: Tensor | None,
    times: int,
    seed: int,
    *,
    masked_only: bool,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield chunks of predictions [k, V] for noised data, with the data tokens [k] as targets.

    They cover the masked coordinates. With a uniform source they cover all free coordinates, unless
    `masked_only` is set.
    """
    check_flow_network(model)
    path = MixturePath(source, schedule)
    check_integer("times", times)
    check_tokens("tokens", tokens, source.vocab_size)
    tokens = tokens.to(model_device(model) or tokens.device)
    fixed_BN = fixed_tokens(source, tokens, fixed)
    with evaluating(model):
        for step in range(times):
            kappa = torch.full((len(tokens),), (step + 0.5) / times, dtype=torch.float64)
            t_B = schedule.inverse(kappa).to(tokens.device)
            noised = path.sample(tokens, t_B, seed=seed, step=step, fixed=fixed_BN)
            movable_BN = source.movable(noised.x_t, fixed_BN)
            rows = Positions.of(~noised.revealed if masked_only else movable_BN)
            x_1_K = rows.take(tokens)
            for k, logits_kV in predict_logits(model, source, noised.x_t, t_B, rows):
                yield logits_kV, x_1_K[k]
