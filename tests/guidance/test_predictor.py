"""Guidance by a predictor, against the conditional distribution of a small target."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.errors import InputError
from tests.support.chains import SCHEDULE, model_of, source_of
from tests.support.exact import Array, Chain, correlated_target
from tests.support.examples import MASK_ONLY, examples
from tests.support.stats import assert_differs, assert_follows, histogram

VOCAB, LENGTH = 3, 3
TARGET = correlated_target(VOCAB, LENGTH, seed=0)
GIVEN = np.random.default_rng(1).random(TARGET.shape) ** 2 + 0.01  # p(y | x_1)
CONDITIONAL = TARGET * GIVEN / (TARGET * GIVEN).sum()  # p(x_1 | y)
CHAINS = [Chain(TARGET, mask) for mask in (True, False)]


def predictor_of(chain: Chain) -> Callable[[Tensor, Tensor], Tensor]:
    """log p(y | x_t), by Bayes' rule over all sequences."""

    def predictor(x_t: Tensor, t: Tensor) -> Tensor:
        kappa = t[:, None, None].double() ** 2
        same = x_t[:, None] == torch.from_numpy(chain.data_YN)
        if chain.mask:
            seen = (same | (x_t == chain.vocab)[:, None]).double()
        else:
            seen = kappa * same + (1 - kappa) / chain.vocab
        joint = torch.from_numpy(chain.target.ravel()) * seen.prod(-1)
        given = torch.from_numpy(GIVEN.ravel())
        return ((joint * given).sum(1) / joint.sum(1)).log()

    return predictor


def guided(chain: Chain, predictor: Any, strength: float = 1.0, form: Any = "exact") -> cwdfm.Model:
    guidance = cwdfm.PredictorGuidance(predictor, strength, form)
    return guidance.guide(model_of(chain), source_of(chain), SCHEDULE)


def guided_model(chain: Chain, strength: float = 1.0) -> cwdfm.Model:
    """The model conditioned on y by its exact predictor."""
    return guided(chain, predictor_of(chain), strength)


def probabilities(chain: Chain, model: cwdfm.Model, t: float) -> Array:
    """What a model predicts in all states, [S, N, V]."""
    states = torch.tensor(chain.states)
    logits = model(states, torch.full((len(states),), t))[..., : chain.vocab]
    return np.asarray(logits.double().softmax(-1))


@pytest.mark.parametrize("chain", CHAINS, ids=["mask", "uniform"])
@pytest.mark.parametrize("t", [0.2, 0.6, 0.99])
def test_guided_posterior_is_the_conditional_posterior(chain: Chain, t: float) -> None:
    conditional = Chain(CONDITIONAL, chain.mask)
    truth = np.stack([conditional.posterior(x, t**2) for x in conditional.states])
    found = probabilities(chain, guided_model(chain), t)
    plain = probabilities(chain, model_of(chain), t)
    free = np.array(chain.states) == chain.vocab if chain.mask else np.ones((27, 3), bool)
    np.testing.assert_allclose(found[free], truth[free], atol=1e-6)
    assert np.abs(plain - truth)[free].max() > 0.02


@pytest.mark.parametrize("solver", examples(cwdfm.Solver), ids=str)
def test_every_solver_samples_as_from_the_conditional_model(solver: cwdfm.Solver) -> None:
    for chain in CHAINS:
        if not chain.mask and isinstance(solver, MASK_ONLY):
            continue
        options: dict[str, Any] = {"shape": (64, LENGTH), "steps": 8, "seed": 3}
        flow = (source_of(chain), SCHEDULE, solver)
        try:
            truth = cwdfm.sample(model_of(Chain(CONDITIONAL, chain.mask)), *flow, **options)
        except InputError:
            continue  # the solver does not support this source
        found = cwdfm.sample(guided_model(chain), *flow, **options)
        same = (found.tokens == truth.tokens).all(1).double().mean()
        # The predictor is asked at kappa = 0.01 at the earliest, which changes few samples.
        assert same > 0.9, f"{solver} with {source_of(chain)}: {same}"


@pytest.mark.parametrize(
    ("chain", "solver", "steps"),
    [
        (CHAINS[0], cwdfm.FirstHitting(), 3),
        (CHAINS[0], cwdfm.Euler(hazard="integrated"), 100),
        (CHAINS[1], cwdfm.Euler(hazard="integrated"), 100),
    ],
    ids=["mask, exact", "mask, Euler", "uniform, Euler"],
)
def test_guided_chains_reach_the_conditional_distribution(
    chain: Chain, solver: cwdfm.Solver, steps: int
) -> None:
    model, flow = guided_model(chain), (source_of(chain), SCHEDULE, solver)
    out = cwdfm.sample(model, *flow, shape=(2000, LENGTH), steps=steps, seed=1)
    counts = histogram(out.tokens, VOCAB)
    assert_follows(counts, CONDITIONAL.ravel())
    assert_differs(counts, TARGET.ravel())


@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0])
def test_strength_is_the_exponent_of_the_ratio(strength: float) -> None:
    """With a mask source: p(v | x) h(x with v)^strength, here at the last mask."""
    chain = CHAINS[0]
    found = probabilities(chain, guided_model(chain, strength=strength), 0.3)
    for state, p_NV in zip(chain.states, found, strict=True):
        if sum(token == VOCAB for token in state) != 1:
            continue
        i = state.index(VOCAB)
        line = tuple(slice(None) if token == VOCAB else token for token in state)
        law = TARGET[line] * GIVEN[line] ** strength
        np.testing.assert_allclose(p_NV[i], law / law.sum(), atol=1e-6)


@pytest.mark.parametrize("chain", CHAINS, ids=["mask", "uniform"])
def test_first_order_form_is_exact_for_log_linear_predictors(chain: Chain) -> None:
    slope = torch.randn(LENGTH, chain.vocab + chain.mask, generator=torch.manual_seed(2))
    score = {
        "exact": lambda x, t: slope[torch.arange(LENGTH), x].sum(1) * t,
        "taylor": lambda x, t: (slope * x).sum((1, 2)) * t,
    }
    found = [probabilities(chain, guided(chain, score[form], 0.1, form), 0.7) for form in score]
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_first_order_form_estimates_differences_by_the_gradient() -> None:
    """The error is of second order in the size of the differences."""
    chain, slope = CHAINS[0], torch.randn(LENGTH, VOCAB + 1, generator=torch.manual_seed(4))

    def score(scale: float, x: Tensor, t: Tensor) -> Tensor:
        one_hot = x if x.is_floating_point() else torch.nn.functional.one_hot(x, VOCAB + 1).float()
        return ((slope * one_hot).sum((1, 2)) * scale).exp()

    errors = []
    for scale in (0.1, 0.05):
        predictor = partial(score, scale)
        p, q = (
            probabilities(chain, guided(chain, predictor, 1.0, form), 0.5)
            for form in ("exact", "taylor")
        )
        errors.append(np.abs(p - q).max())
    assert 3 < errors[0] / errors[1] < 5


def test_tokens_that_the_predictor_rules_out_are_not_drawn() -> None:
    def first_is_zero(x: Tensor, t: Tensor) -> Tensor:
        return torch.where((x[:, 0] == 0) | (x[:, 0] == VOCAB), 0.0, -torch.inf)

    chain = CHAINS[0]
    flow = (source_of(chain), SCHEDULE, cwdfm.Euler())
    out = cwdfm.sample(guided(chain, first_is_zero), *flow, shape=(200, LENGTH), steps=4)
    assert bool((out.tokens[:, 0] == 0).all())
    nothing = guided(chain, lambda x, t: torch.full((len(x),), -torch.inf))
    plain = probabilities(chain, model_of(chain), 0.5)
    np.testing.assert_allclose(probabilities(chain, nothing, 0.5), plain, atol=1e-12)


@pytest.mark.parametrize(
    ("predictor", "form", "fact"),
    [
        (lambda x, t: torch.zeros(len(x), 2), "exact", "shape"),
        (lambda x, t: torch.zeros(len(x)).long(), "exact", "floating"),
        (lambda x, t: torch.full((len(x),), torch.nan), "exact", "NaN"),
        (lambda x, t: None, "exact", "None"),
        (lambda x, t: torch.zeros(len(x)), "taylor", "gradient"),
    ],
    ids=["shape", "integers", "nan", "nothing", "no gradient"],
)
def test_wrong_predictors(predictor: Callable[..., Tensor], form: str, fact: str) -> None:
    chain = CHAINS[1]
    model = guided(chain, predictor, 1.0, form)
    with pytest.raises(InputError, match=fact):
        cwdfm.sample(model, source_of(chain), SCHEDULE, cwdfm.Euler(), shape=(2, 3), steps=2)


@pytest.mark.parametrize(
    "arguments",
    [
        (None, 1.0, "exact"),
        ("logp", 1.0, "exact"),
        (len, -1.0, "exact"),
        (len, float("nan"), "exact"),
        (len, "2", "exact"),
        (len, 1.0, "best"),
    ],
    ids=str,
)
def test_wrong_arguments(arguments: tuple[object, ...]) -> None:
    with pytest.raises(InputError):
        cwdfm.PredictorGuidance(*arguments)  # type: ignore[arg-type]
