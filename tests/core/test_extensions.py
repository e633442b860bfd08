"""What objects of users' classes return is checked; prompts are kept and cut windows."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.ops.random import Purpose, uniform_BN
from tests.support.cases import slow
from tests.support.models import SmallModel, SmallSplitModel

SCHEDULE, SOURCE = cwdfm.Linear(), cwdfm.MaskSource(5)
BATCH, LENGTH = 8, 8  # equal, so that a score [B] broadcasts to [B, N]


def sample(solver: cwdfm.Solver, model: Any = None, **options: Any) -> cwdfm.Samples:
    model = model or SmallModel(SOURCE.num_tokens)
    settings: dict[str, Any] = {"shape": (BATCH, LENGTH), "steps": 4} | options
    return cwdfm.sample(model, SOURCE, SCHEDULE, solver, **settings)


@dataclass(frozen=True)
class Scores(cwdfm.Weight):
    """A user's weight with the given scores."""

    context: Callable[[Tensor], Any]
    prediction: Callable[[Tensor], Any] | None = None
    equivariant = False

    @property
    def needs_logits(self) -> bool:
        return self.prediction is not None

    def context_score(self, revealed_BN: Tensor) -> Tensor:
        return self.context(revealed_BN)  # type: ignore[no-any-return]

    def prediction_score(self, logits: Tensor) -> Tensor:
        assert self.prediction is not None
        return self.prediction(logits)  # type: ignore[no-any-return]


def zeros(revealed_BN: Tensor) -> Tensor:
    return torch.zeros(revealed_BN.shape)


BAD_WEIGHTS = {
    "NaN": Scores(lambda r: zeros(r) + math.nan),
    "inf": Scores(lambda r: zeros(r).index_fill(1, torch.tensor([2]), math.inf)),
    "all -inf": Scores(lambda r: zeros(r) - math.inf),
    "[B]": Scores(lambda r: zeros(r)[:, 0]),
    "a number": Scores(lambda r: 0.0),
    "NaN prediction": Scores(zeros, lambda logits: logits[..., 0] * math.nan),
    "[V] prediction": Scores(zeros, lambda logits: logits.sum(0)),
}


@pytest.mark.parametrize("weight", BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_scores_of_weights_are_checked(weight: Scores) -> None:
    summed = cwdfm.Neighbor() + weight
    x_1, t = torch.zeros(BATCH, LENGTH, dtype=torch.int64), torch.full((BATCH,), 0.5)
    batch = cwdfm.MixturePath(SOURCE, SCHEDULE).sample(x_1, t)
    logits = SmallModel(SOURCE.num_tokens)(batch.x_t, batch.t)
    calls: list[Callable[[], object]] = [
        lambda: sample(cwdfm.Euler(weight)),
        lambda: sample(cwdfm.Euler(summed)),
        lambda: sample(cwdfm.Euler(weight, counted=True)),
        lambda: sample(cwdfm.FirstHitting(weight), steps=LENGTH),
        lambda: weight(batch.revealed, logits, source=SOURCE),
        lambda: cwdfm.ScaledCrossEntropy(weight)(logits, batch, SCHEDULE),
    ]
    if not weight.needs_logits:
        path = cwdfm.ContextPath(SOURCE, SCHEDULE, weight)
        calls.append(lambda: path.sample(x_1, t))
    for call in calls:
        with pytest.raises(cwdfm.InputError, match="Scores"):
            call()


def test_scores_of_minus_infinity_are_weights_of_zero() -> None:
    """Of 6 masked coordinates one has a finite score, so its alpha is 6."""
    weight = Scores(lambda r: zeros(r).index_fill(1, torch.arange(5), -math.inf))
    alpha = weight(torch.tensor([[False] * 6 + [True] * 2] * BATCH))
    expected = torch.tensor([[0.0] * 5 + [6.0, 0.0, 0.0]] * BATCH, dtype=torch.float64)
    torch.testing.assert_close(alpha, expected)


class WritesInPlace(SmallModel):
    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        logits = super().forward(x_t, t)
        x_t.fill_(0)
        t.fill_(0.0)
        return logits


class TrunkWritesInPlace(SmallSplitModel):
    def trunk(self, x_t: Tensor, t: Tensor) -> Tensor:
        hidden = super().trunk(x_t, t)
        x_t.fill_(0)
        return hidden


@pytest.mark.parametrize(
    ("pure", "impure"), [(SmallModel, WritesInPlace), (SmallSplitModel, TrunkWritesInPlace)]
)
def test_models_may_write_into_their_arguments(pure: Any, impure: Any) -> None:
    torch.manual_seed(0)
    model, other = pure(SOURCE.num_tokens), impure(SOURCE.num_tokens)
    other.load_state_dict(model.state_dict())
    prompt = torch.tensor([3] + [SOURCE.mask_id] * (LENGTH - 1))
    for solver in (cwdfm.Euler(), cwdfm.Euler(cwdfm.Entropy()), cwdfm.TopK()):
        found = [sample(solver, each, prompt=prompt).tokens for each in (model, other)]
        assert torch.equal(*found)
    x_1 = torch.randint(0, 5, (BATCH, LENGTH))
    bounds = [cwdfm.elbo(each, SOURCE, SCHEDULE, x_1).nats_B for each in (model, other)]
    assert torch.equal(*bounds)


@dataclass(frozen=True)
class Wrong(cwdfm.Solver):
    """A solver whose step returns the wrong thing."""

    result: Callable[[cwdfm.State, cwdfm.Info], Any]

    def step(self, *arguments: Any) -> Any:
        return self.result(*cwdfm.Euler().step(*arguments))


WRONG_STEPS: dict[str, Callable[[cwdfm.State, cwdfm.Info], Any]] = {
    "nothing": lambda state, info: None,
    "the state alone": lambda state, info: state,
    "another shape": lambda state, info: (replace(state, tokens=state.tokens[:, 1:]), info),
    "another dtype": lambda state, info: (replace(state, tokens=state.tokens.int()), info),
    "masks": lambda state, info: (replace(state, tokens=state.tokens.clamp(min=5)), info),
    "unknown ids": lambda state, info: (replace(state, tokens=state.tokens - 9), info),
    "a changed prompt": lambda state, info: (
        replace(state, tokens=torch.where(state.fixed, 1, state.tokens)),
        info,
    ),
}


@pytest.mark.parametrize("result", WRONG_STEPS.values(), ids=WRONG_STEPS)
def test_results_of_solvers_are_checked(result: Callable[..., Any]) -> None:
    prompt = torch.tensor([3] + [SOURCE.mask_id] * (LENGTH - 1))
    with pytest.raises(cwdfm.InputError, match="Wrong"):
        sample(Wrong(result), prompt=prompt)
    assert sample(Wrong(lambda state, info: (state, info)), prompt=prompt).tokens[:, 0].eq(3).all()


@dataclass(frozen=True)
class Power(cwdfm.Schedule):
    """A user's schedule t^power with some methods replaced."""

    power: float = 1.5
    wrong: tuple[tuple[str, Callable[[Tensor], Any]], ...] = ()

    def _value(self, method: str, t: Tensor | float) -> Any:
        t = torch.as_tensor(t, dtype=torch.float64)
        right = {
            "kappa": t**self.power,
            "kappa_dot": self.power * t ** (self.power - 1),
            "survival": 1 - t**self.power,
            "inverse": t ** (1 / self.power),
        }
        return dict(self.wrong)[method](t) if method in dict(self.wrong) else right[method]

    def kappa(self, t: Tensor | float) -> Tensor:
        return self._value("kappa", t)  # type: ignore[no-any-return]

    def kappa_dot(self, t: Tensor | float) -> Tensor:
        return self._value("kappa_dot", t)  # type: ignore[no-any-return]

    def survival(self, t: Tensor | float) -> Tensor:
        return self._value("survival", t)  # type: ignore[no-any-return]

    def inverse(self, kappa: Tensor | float) -> Tensor:
        return self._value("inverse", kappa)  # type: ignore[no-any-return]


WRONG_SCHEDULES: dict[str, dict[str, Callable[[Tensor], Any]]] = {
    "a float": {"kappa": lambda t: float(t) if t.dim() == 0 else t},
    "a constant": {"kappa_dot": lambda t: torch.tensor(1.0)},
    "decreasing": {
        "kappa": lambda t: 1 - t,
        "kappa_dot": lambda t: -torch.ones_like(t),
        "survival": lambda t: t,
        "inverse": lambda t: 1 - t,
    },
    "up to 1/2": {
        "kappa": lambda t: t / 2,
        "kappa_dot": lambda t: torch.full_like(t, 0.5),
        "survival": lambda t: 1 - t / 2,
        "inverse": lambda t: (2 * t).clamp(max=1),
    },
    "NaN": {"kappa": lambda t: t * math.nan},
    "another derivative": {"kappa_dot": lambda t: 2 * t},
    "another survival": {"survival": lambda t: 1 - t},
    "another inverse": {"inverse": lambda t: t**1.5},
}


@pytest.mark.parametrize("wrong", WRONG_SCHEDULES.values(), ids=WRONG_SCHEDULES)
def test_schedules_are_checked(wrong: dict[str, Callable[[Tensor], Any]]) -> None:
    schedule = Power(wrong=tuple(wrong.items()))
    model = SmallModel(SOURCE.num_tokens)
    x_1 = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    calls: list[Callable[[], object]] = [
        lambda: cwdfm.MixturePath(SOURCE, schedule),
        lambda: cwdfm.sample(model, SOURCE, schedule, cwdfm.Euler(), shape=(2, 8), steps=2),
        lambda: cwdfm.elbo(model, SOURCE, schedule, x_1),
        lambda: cwdfm.plausibility(model, SOURCE, schedule, x_1),
    ]
    for call in calls:
        with pytest.raises(cwdfm.InputError, match="Power"):
            call()


def test_a_users_schedule_equals_the_polynomial() -> None:
    model, x_1 = SmallModel(SOURCE.num_tokens), torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    mine, builtin = (
        cwdfm.elbo(model, SOURCE, schedule, x_1).nats_B
        for schedule in (Power(1.5), cwdfm.Polynomial(1.5))
    )
    torch.testing.assert_close(mine, builtin)


@dataclass(frozen=True)
class Skewed(cwdfm.Source):
    """A user's source: token 0 with probability 1/2, else another token; some parts replaced."""

    wrong: tuple[tuple[str, Callable[..., Any]], ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.vocab_size

    def _value(self, method: str, value: Any) -> Any:
        return dict(self.wrong)[method](value) if method in dict(self.wrong) else value

    def _tokens(self, u_BN: Tensor) -> Tensor:
        return ((2 * u_BN - 1) * (self.vocab_size - 1) + 1).floor().clamp(min=0).long()

    def noise(self, index_B: Tensor, length: int, *, seed: int, step: int = 0) -> Tensor:
        u_BN = uniform_BN(seed, Purpose.SOURCE, index_B, step, length)
        return self._value("noise", self._tokens(u_BN))  # type: ignore[no-any-return]

    def revealed(self, x_BN: Tensor) -> Tensor | None:
        return self._value("revealed", None)  # type: ignore[no-any-return]

    def renoise_probability(self, x_BN: Tensor) -> Tensor:
        p_BN = torch.where(x_BN == 0, 0.5, 0.5 / (self.vocab_size - 1)).double()
        return self._value("renoise_probability", 1 - p_BN)  # type: ignore[no-any-return]

    def renoise(self, x_BN: Tensor, u_BN: Tensor) -> Tensor:
        other_BN = torch.where(x_BN == 0, 1 + (u_BN * 4).long(), 0)
        return self._value("renoise", other_BN)  # type: ignore[no-any-return]


WRONG_SOURCES: dict[str, tuple[str, Callable[..., Any]]] = {
    "other ids": ("noise", lambda x: x + 50),
    "one sequence": ("noise", lambda x: x[0]),
    "floats": ("noise", lambda x: x.float()),
    "depends on the batch": ("noise", lambda x: x.flip(0)),
    "nothing": ("renoise", lambda x: None),
    "other ids again": ("renoise", lambda x: x - 1),
    "current tokens": ("renoise", torch.zeros_like),
    "probabilities above 1": ("renoise_probability", lambda p: 2 * p),
    "a number": ("renoise_probability", lambda p: 0.5),
    "one mask": ("revealed", lambda x: torch.tensor([True, False])),
}


@pytest.mark.parametrize("wrong", WRONG_SOURCES.values(), ids=WRONG_SOURCES)
def test_sources_are_checked(wrong: tuple[str, Callable[..., Any]]) -> None:
    source, model = Skewed(5, (wrong,)), SmallModel(5)
    calls: list[Callable[[], object]] = [
        lambda: cwdfm.MixturePath(source, SCHEDULE),
        lambda: cwdfm.sample(model, source, SCHEDULE, cwdfm.Euler(), shape=(2, 8), steps=2),
    ]
    for call in calls:
        with pytest.raises(cwdfm.InputError, match=f"Skewed.{wrong[0]}"):
            call()


def test_formulas_of_uniform_sources_are_not_used_for_others() -> None:
    """The exact posterior uses p_0; the leave-one-out prediction has a uniform p_0 only."""
    target, source = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1]), Skewed(5)
    model, kappa = cwdfm.ExactPosterior(target, source, SCHEDULE), 0.3
    for token, p_0 in ((0, 0.5), (3, 0.125)):
        likelihood = (1 - kappa) * torch.full((5,), p_0)
        likelihood[token] += kappa
        posterior = model(torch.tensor([[token]]), torch.tensor([kappa])).softmax(-1)[0, 0]
        exact = target * likelihood / (target * likelihood).sum()
        torch.testing.assert_close(posterior, exact.double(), rtol=1e-5, atol=1e-6)
    solvers = (
        cwdfm.Gibbs(cwdfm.Euler()),
        cwdfm.Euler(corrector=cwdfm.Corrector(weight=cwdfm.Entropy(1.0))),
    )
    for solver in solvers:
        with pytest.raises(cwdfm.InputError, match="UniformSource"):
            cwdfm.sample(SmallModel(5), source, SCHEDULE, solver, shape=(2, 8), steps=4)
    assert (
        cwdfm.sample(model, source, SCHEDULE, cwdfm.Euler(), shape=(2, 1), steps=4).tokens.max() < 5
    )


@dataclass(frozen=True)
class Reveals(cwdfm.Path):
    """A user's path with the given reveal mask."""

    mask: Any = None
    context_weight = None

    def reveal(self, kappa: Tensor, length: int, **options: Any) -> Tensor:
        return self.mask  # type: ignore[no-any-return]


ALL = torch.ones(BATCH, LENGTH, dtype=torch.bool)


@pytest.mark.parametrize("mask", [None, ALL.float(), ALL[0], ALL[:, 1:], ~ALL])
def test_reveal_masks_of_paths_are_checked(mask: Any) -> None:
    x_1, t = torch.zeros(BATCH, LENGTH, dtype=torch.int64), torch.full((BATCH,), 0.5)
    with pytest.raises(cwdfm.InputError, match="Reveals"):
        Reveals(SOURCE, SCHEDULE, mask).sample(x_1, t, fixed=ALL)
    assert torch.equal(Reveals(SOURCE, SCHEDULE, ALL).sample(x_1, t, fixed=ALL).x_t, x_1)


@dataclass(frozen=True)
class Terms(cwdfm.Loss):
    """A user's loss with the given coordinates and terms."""

    mask: Any
    result: Any

    def needed(self, batch: cwdfm.PathSample) -> Tensor:
        return self.mask  # type: ignore[no-any-return]

    def terms(self, *arguments: Any) -> Tensor:
        return self.result  # type: ignore[no-any-return]


TERMS = torch.ones(BATCH, LENGTH)


@pytest.mark.parametrize(
    ("mask", "terms"),
    [(ALL[0], TERMS), (ALL.float(), TERMS), (ALL, TERMS.mean()), (ALL, TERMS[0]), (ALL, 1.0)],
)
def test_terms_of_losses_are_checked(mask: Any, terms: Any) -> None:
    x_1, t = torch.zeros(BATCH, LENGTH, dtype=torch.int64), torch.full((BATCH,), 0.5)
    batch = cwdfm.MixturePath(SOURCE, SCHEDULE).sample(x_1, t)
    logits = torch.zeros(BATCH, LENGTH, SOURCE.num_tokens)
    with pytest.raises(cwdfm.InputError, match="Terms"):
        Terms(mask, terms)(logits, batch, SCHEDULE)
    assert Terms(ALL, TERMS)(logits, batch, SCHEDULE) == 1


PROMPT = torch.tensor([1] * 8 + [SOURCE.mask_id] * 24)
WINDOWS: list[cwdfm.Weight] = [
    cwdfm.Neighbor(1, 6.0),
    cwdfm.NeighborShare(1),
    cwdfm.Distance(6.0),
    cwdfm.Neighbor(1, 6.0) + cwdfm.Entropy(0.0),
]


def with_boundary(weight: Any, boundary: str) -> Any:
    if isinstance(weight, cwdfm.Sum):
        return cwdfm.Sum(tuple(with_boundary(term, boundary) for term in weight.terms))
    return replace(weight, boundary=boundary) if hasattr(weight, "boundary") else weight


@pytest.mark.parametrize("weight", [*WINDOWS[:1], *map(slow, WINDOWS[1:])])
def test_windows_of_prompted_sequences_are_cut(weight: cwdfm.Weight) -> None:
    """Each sequence by itself: cut with a prompt, circular without, whatever the batch."""
    model = SmallModel(SOURCE.num_tokens)
    prompts = torch.stack([PROMPT, torch.full((32,), SOURCE.mask_id)] * 4)
    first_only = prompts.clone()
    first_only[:, 1:] = SOURCE.mask_id

    def draw(boundary: str, prompt: Tensor, solver: Any = cwdfm.Euler) -> Tensor:
        chosen = solver(with_boundary(weight, boundary))
        return sample(chosen, model, prompt=prompt, shape=(8, 32), steps=16).tokens

    for solver in (cwdfm.Euler, cwdfm.FirstHitting, lambda w: cwdfm.Euler(w, counted=True)):
        auto, cut, circular = (draw(b, prompts, solver) for b in ("auto", "cut", "circular"))
        assert torch.equal(auto[::2], cut[::2])
        assert torch.equal(auto[1::2], circular[1::2])
        assert not torch.equal(cut[::2], circular[::2])
    assert torch.equal(draw("auto", first_only), draw("circular", first_only))


def test_postprocessing_keeps_the_prompt_of_samples() -> None:
    model = SmallModel(SOURCE.num_tokens)
    prompt = torch.tensor([SOURCE.mask_id, 4, 4, 4] * 2)
    out = sample(cwdfm.Euler(), model, prompt=prompt)
    assert out.fixed is not None
    given = prompt != SOURCE.mask_id
    assert torch.equal(out.fixed, given.expand(BATCH, LENGTH))
    harsh = cwdfm.Resample(rounds=20, threshold=1.0)
    resampled = cwdfm.resample(model, SOURCE, SCHEDULE, out, harsh)
    often = cwdfm.Refine(rounds=4, noise_fraction=0.9)
    refined = cwdfm.refine(model, SOURCE, SCHEDULE, cwdfm.Euler(), out, often)
    for result in (resampled, refined):
        assert (result.tokens[:, given] == 4).all()
        assert torch.equal(result.fixed, out.fixed)  # type: ignore[arg-type]
    # The free tokens do change, and so would the prompt without its mask.
    free = cwdfm.resample(model, SOURCE, SCHEDULE, out.tokens, harsh)
    assert not (free.tokens[:, given] == 4).all()
    scores = cwdfm.plausibility(model, SOURCE, SCHEDULE, out.tokens, fixed=given)
    assert torch.equal(cwdfm.plausibility(model, SOURCE, SCHEDULE, out), scores)


def test_bounds_with_probability_zero_are_infinite_never_nan() -> None:
    """Token 0 has probability zero; with NeighborShare it may also have rate zero."""

    def model(x_t: Tensor, t: Tensor) -> Tensor:
        logits = torch.zeros(*x_t.shape, SOURCE.num_tokens)
        logits[..., 0] = -math.inf
        return logits

    x_1 = torch.randint(0, 5, (16, LENGTH), generator=torch.Generator().manual_seed(0))
    possible = (x_1 != 0).all(1)
    for weight in (None, cwdfm.NeighborShare(), cwdfm.Neighbor()):
        with pytest.warns(UserWarning, match=f"{int((~possible).sum())} of 16"):
            bound = cwdfm.elbo(model, SOURCE, SCHEDULE, x_1, weight=weight, draws=64)
        assert bound.nats_per_token == bound.standard_error == math.inf
        assert torch.equal(bound.nats_B.isfinite(), possible)


def test_numbers_that_would_overflow_or_be_truncated_are_refused() -> None:
    x_1, t = torch.zeros(3, LENGTH, dtype=torch.int64), torch.full((3,), 0.5)
    path = cwdfm.MixturePath(SOURCE, SCHEDULE)
    batch, logits = path.sample(x_1, t), torch.zeros(3, LENGTH, SOURCE.num_tokens)
    untyped: Any = path.sample
    raw = cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(2, -1e4), "raw")
    level = cwdfm.ScaledCrossEntropy(cwdfm.Confidence(1e4), "level")
    calls: list[Callable[[], object]] = [
        lambda: untyped(x_1, t, step=1.5),
        lambda: untyped(x_1, t, step=math.nan),
        lambda: cwdfm.Distance(radius=sys.maxsize),
        lambda: raw(logits, batch, SCHEDULE),
        lambda: level(logits, batch, SCHEDULE),
    ]
    for call in calls:
        with pytest.raises(cwdfm.InputError):
            call()
