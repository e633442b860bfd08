"""Classifier-free guidance, against its formula and against distributions in closed form."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.data import SmilesTokenizer
from cwdfm.errors import InputError
from cwdfm.guidance.classifier_free import ClassifierFreeModel
from cwdfm.method import Flow
from cwdfm.model.conditions import with_condition
from cwdfm.model.transformer import DiT
from tests.support.conditions import CONDITIONS, CONFIG
from tests.support.kernels import perturbed
from tests.support.stats import assert_differs, assert_follows, histogram
from tests.support.tiny import tiny_model

SCHEDULE = cwdfm.Linear()
GIVEN = {"LogP": "3.0", "kind": "ring"}
NUMBERS = torch.tensor([1.0, 1.0])  # standardized with mean 1 and standard deviation 2; the second


def network() -> DiT:
    return perturbed(replace(CONFIG, conditions=CONDITIONS), 0.3).eval()


def trained(source: type[cwdfm.MaskSource | cwdfm.UniformSource]) -> cwdfm.Pretrained:
    vocab = 6 if source is cwdfm.MaskSource else 7
    tokenizer = SmilesTokenizer(("C", "N", "O", "c")[: vocab - 3])
    return cwdfm.Pretrained(network(), Flow(source(vocab), SCHEDULE), tokenizer, 8)


@pytest.mark.parametrize("strength", [0.0, 1.0, 2.5])
def test_predictions_follow_the_formula(strength: float) -> None:
    model, source = network(), cwdfm.UniformSource(7)
    x_t, t = torch.randint(7, (5, 6), generator=torch.manual_seed(0)), torch.rand(5)
    guided = cwdfm.ClassifierFreeGuidance(GIVEN, strength).guide(model, source, SCHEDULE)
    with torch.no_grad():
        given = model(x_t, with_condition(t, NUMBERS)).double().softmax(-1)
        plain = model(x_t, t).double().softmax(-1)
        found = guided(x_t, t).double().softmax(-1)
    law = given**strength * plain ** (1 - strength)
    torch.testing.assert_close(found, law / law.sum(-1, keepdim=True), atol=1e-5, rtol=1e-4)
    assert bool((given - plain).abs().max() > 0.05)


@pytest.mark.parametrize("source", [cwdfm.MaskSource(3), cwdfm.UniformSource(3)], ids=str)
def test_independent_tokens_follow_the_closed_form(source: cwdfm.Source) -> None:
    """p ~ p(. | y)^w p^(1 - w) of each coordinate."""
    rng, strength = np.random.default_rng(0), 2.0
    given, plain = (rng.random((2, 3)) + 0.2 for _ in range(2))
    given, plain = (p / p.sum(1, keepdims=True) for p in (given, plain))
    conditional, unconditional = (
        cwdfm.ExactPosterior(torch.from_numpy(np.einsum("a,b->ab", *p)), source, SCHEDULE)
        for p in (given, plain)
    )
    model = ClassifierFreeModel(conditional, unconditional, source, strength)
    solver = cwdfm.Euler(hazard="integrated")
    out = cwdfm.sample(model, source, SCHEDULE, solver, shape=(4000, 2), steps=8, seed=2)
    law = given**strength * plain ** (1 - strength)
    law = law / law.sum(1, keepdims=True)
    assert_follows(histogram(out.tokens, 3), np.einsum("a,b->ab", *law).ravel())
    assert_differs(histogram(out.tokens, 3), np.einsum("a,b->ab", *given).ravel())


@pytest.mark.parametrize("source", [cwdfm.MaskSource, cwdfm.UniformSource])
def test_generate_with_guidance(source: type[cwdfm.MaskSource | cwdfm.UniformSource]) -> None:
    model = trained(source)
    plain, one, two = (
        model.generate(n=4, steps=6, guidance=guidance)
        for guidance in (
            (),
            cwdfm.ClassifierFreeGuidance(GIVEN),
            [cwdfm.ClassifierFreeGuidance(GIVEN, 2.0)],
        )
    )
    assert not torch.equal(plain.tokens, one.tokens)
    assert not torch.equal(two.tokens, one.tokens)
    if source is cwdfm.MaskSource:  # the steps at which tokens are revealed do not depend on it
        assert torch.equal(one.evaluations, plain.evaluations)
        assert torch.equal(two.evaluations, 2 * plain.evaluations)
    again = model.generate(n=4, steps=6, guidance=cwdfm.ClassifierFreeGuidance(GIVEN, 2.0))
    assert torch.equal(again.tokens, two.tokens)
    alone = model.generate(
        n=1, steps=6, index=torch.tensor([2]), guidance=cwdfm.ClassifierFreeGuidance(GIVEN, 2.0)
    )
    assert torch.equal(alone.tokens[0], two.tokens[2])


def test_guidance_combines_with_predictors_templates_and_postprocessing() -> None:
    def no_oxygen(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return -100.0 * (x == 5).sum(1)

    out = trained(cwdfm.MaskSource).generate(
        n=8,
        steps=4,
        template="C[4]",
        guidance=[cwdfm.ClassifierFreeGuidance(GIVEN, 2.0), cwdfm.PredictorGuidance(no_oxygen)],
        resample=cwdfm.Resample(2, threshold=0.9),
        reject=cwdfm.Reject(0.5, max_tries=2),
    )
    assert bool((out.tokens[:, 1] == 3).all())
    assert not bool((out.tokens == 5).any())


@pytest.mark.parametrize(
    ("condition", "facts"),
    [
        ({"qed": 0.5}, ["'qed'", "logp, kind"]),
        ({"logp": 60.0}, ["-3", "6"]),
        ({"logp": "high"}, ["'high'"]),
        ({"logp": float("nan")}, ["nan"]),
        ({"kind": "star"}, ["'star'", "chain, ring"]),
        ({}, ["logp, kind"]),
        (2.5, ["2.5"]),
    ],
    ids=str,
)
def test_wrong_conditions(condition: object, facts: list[str]) -> None:
    def sample() -> None:
        guidance = cwdfm.ClassifierFreeGuidance(condition)  # type: ignore[arg-type]
        trained(cwdfm.UniformSource).generate(n=2, steps=2, guidance=guidance)

    with pytest.raises(InputError) as error:
        sample()
    assert all(fact in str(error.value) for fact in facts)


def test_models_that_cannot_be_guided() -> None:
    tokenizer = SmilesTokenizer(("C", "N", "O", "c"))
    plain = tiny_model(tokenizer)
    with pytest.raises(InputError, match="trained without conditions"):
        plain.generate(n=2, steps=2, guidance=cwdfm.ClassifierFreeGuidance({"logp": 2.5}))
    with pytest.raises(InputError, match="guidance must be"):
        plain.generate(n=2, steps=2, guidance=2.0)
    causal = replace(plain, method=Autoregressive(7))
    with pytest.raises(InputError, match="Autoregressive"):
        causal.generate(n=2, guidance=cwdfm.PredictorGuidance(lambda x, t: x[:, 0].double()))
