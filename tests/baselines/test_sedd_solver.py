"""Samplers of SEDD: the distribution of samples, against the exact chain."""

import math
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.baselines.sedd.graph import JumpLaw, Uniform
from cwdfm.baselines.sedd.method import SEDD, score_grid
from cwdfm.baselines.sedd.solver import Analytic, ReverseChain, ScoreEuler, ScoreSolver
from cwdfm.method import Flow, SampleRequest
from tests.support.cases import slow
from tests.support.exact import Array, correlated_target
from tests.support.exact_score import SETTINGS, ExactScore, Model, Process, flawed
from tests.support.models import SmallModel, SmallSplitModel, constant
from tests.support.stats import assert_differs, assert_follows, histogram

GraphName = Literal["absorb", "uniform"]
GRAPHS: list[GraphName] = ["absorb", "uniform"]
TARGET = correlated_target(3, 2, seed=0)
SOLVERS = [Analytic(), ScoreEuler()]


def exact_law(method: SEDD, model: Model, solver: ScoreSolver, steps: int) -> Array:
    """The distribution of samples after `steps` uniform steps."""
    noise, s = method.noise_process, [1 - k / steps for k in range(steps)]
    sizes = [noise.rate_at(x) / steps for x in s] if isinstance(solver, ScoreEuler) else None
    process = Process(model, 3, 2, method.graph == "absorb")
    return process.sampled([noise.sigma_at(x) for x in s], sizes)


def draw(method: SEDD, model: Any, solver: Any, n: int, steps: int, **asked: Any) -> Tensor:
    return method.sample(model, solver, SampleRequest((n, 2), steps, **asked)).tokens


@pytest.mark.parametrize("noise", SETTINGS)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("solver", SOLVERS, ids=type)
@pytest.mark.parametrize("exact", [slow(True), False], ids=["true score", "flawed network"])
@pytest.mark.parametrize("steps", [1, slow(2), 6])
def test_samples_follow_the_exact_chain(
    graph: GraphName,
    noise: Literal["loglinear", "geometric"],
    solver: ScoreSolver,
    exact: bool,
    steps: int,
) -> None:
    method = SEDD(3, graph, **SETTINGS[noise])
    score = ExactScore(TARGET, graph == "absorb")
    model = score if exact else flawed(score, graph == "absorb")
    found = histogram(draw(method, model, solver, 20_000, steps, seed=1), 3)
    assert_follows(found, exact_law(method, model, solver, steps))
    if steps == 6 and not exact:
        assert_differs(found, TARGET.ravel())


@pytest.mark.parametrize(
    ("graph", "solver"), [(GRAPHS[0], SOLVERS[0]), slow(GRAPHS[1], SOLVERS[1])], ids=str
)
def test_many_steps_converge_to_the_target(graph: GraphName, solver: ScoreSolver) -> None:
    """With the true score the distance to the target falls like 1 / steps."""
    method, model = SEDD(3, graph), ExactScore(TARGET, graph == "absorb")
    laws = [exact_law(method, model, solver, steps) for steps in (32, 64, 128)]
    distances = [0.5 * np.abs(law - TARGET.ravel()).sum() for law in laws]
    assert distances[2] < 0.005
    for before, after in pairwise(distances):
        assert 1.6 < before / after < 2.4
    assert_follows(histogram(draw(method, model, solver, 20_000, 128), 3), laws[-1])


def test_analytic_sampler_is_exact_for_one_token() -> None:
    """Tweedie's rule is exact for a single free token, with any number of steps."""
    model = ExactScore(TARGET, absorb=True)
    prompt = torch.tensor([2, 3])  # 3 is the mask id, which marks free positions
    for steps in (1, 3):
        x = draw(SEDD(3), model, None, 20_000, steps, prompt=prompt)
        assert bool((x[:, 0] == 2).all())
        assert_follows(histogram(x[:, 1:], 3), TARGET[2] / TARGET[2].sum())


def test_euler_equals_analytic_for_absorbing_loglinear_noise() -> None:
    """They agree up to rounding; with geometric noise they differ."""
    asked = SampleRequest((500, 12), 9, seed=3)
    for noise, same in (("loglinear", True), ("geometric", False)):
        method = SEDD(5, noise=noise)  # type: ignore[arg-type]
        a, b = (method.sample(SmallModel(6), s, asked).tokens for s in SOLVERS)
        assert torch.equal(a, b) == same


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("solver", SOLVERS, ids=type)
def test_samples_depend_on_their_index_only(graph: GraphName, solver: ScoreSolver) -> None:
    method = SEDD(5, graph)
    model = SmallModel(method.num_tokens)
    whole = method.sample(model, solver, SampleRequest((30, 8), 6, seed=2))
    assert whole.tokens.dtype == torch.int64
    assert int(whole.tokens.max()) < 5
    split = SmallSplitModel(method.num_tokens)
    ticks: list[int] = []
    parts = method.sample(
        split, solver, SampleRequest((30, 8), 6, seed=2, batch_size=7, progress=ticks.append)
    )
    assert torch.equal(whole.tokens, parts.tokens)
    assert torch.equal(whole.updates, parts.updates)
    assert sum(ticks) == 30 * 6
    some = torch.tensor([4, 29, 11])
    few = method.sample(model, solver, SampleRequest((3, 8), 6, seed=2, index=some))
    assert torch.equal(few.tokens, whole.tokens[some])
    assert not torch.equal(
        method.sample(model, solver, SampleRequest((30, 8), 6)).tokens, whole.tokens
    )
    if graph == "absorb":  # one update per token, and scores of masked tokens only
        assert bool((whole.updates == 1).all())
        assert whole.logit_evaluations < 30 * 8 * 6
        # check_split evaluates a few positions, twice
        assert split.rows <= parts.logit_evaluations + 16
    assert int(whole.evaluations.max()) <= 6


@pytest.mark.parametrize("graph", GRAPHS)
def test_prompts_and_banned_tokens(graph: GraphName) -> None:
    method = SEDD(5, graph)
    model = SmallModel(method.num_tokens)
    prompt = torch.randint(5, (40, 8), generator=torch.manual_seed(0))
    fixed = torch.zeros_like(prompt, dtype=torch.bool)
    fixed[:, 2:4] = True
    for steps in (1, 5):
        for solver in SOLVERS:
            asked = SampleRequest((40, 8), steps, prompt=prompt, fixed=fixed, banned_tokens=(0, 3))
            x = method.sample(model, solver, asked).tokens
            assert torch.equal(x[fixed], prompt[fixed])
            drawn = x[~fixed]
            assert set(drawn.tolist()) <= {1, 2, 4}
            free = method.sample(model, solver, SampleRequest((40, 8), steps)).tokens
            assert {0, 3} & set(free.flatten().tolist())


@pytest.mark.parametrize("graph", ["absorb", slow("uniform")])
def test_banned_token_gives_the_conditional_distribution(graph: GraphName) -> None:
    """For independent tokens, samples follow the target conditioned on the allowed tokens."""
    first, second = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    method, model = SEDD(3, graph), ExactScore(np.outer(first, second), graph == "absorb")
    x = draw(method, model, None, 20_000, 64, banned_tokens=(0,))
    law = np.outer(first, second)[1:, 1:].ravel()
    assert_follows(histogram(x - 1, 2), law / law.sum())


def test_banned_token_keeps_the_rate_of_unmasking() -> None:
    """Each step unmasks as many tokens as before; a banned token always jumps away."""
    logits = torch.tensor([1.0, 0.0, 2.0, 0.5])
    model = constant(logits)
    free, left = (
        SEDD(3).sample(model, Analytic(), SampleRequest((200, 9), 7, banned_tokens=without))  # type: ignore[arg-type]
        for without in ((), (2,))
    )
    assert free.logit_evaluations == left.logit_evaluations
    half = torch.full((2,), 0.5, dtype=torch.float64)
    law = JumpLaw(half, half, torch.zeros(2, 3)).excluding(torch.tensor([0, 1]), [1])
    assert law.prob_K.tolist() == [0.5, 1.0]


def test_temperature_and_top_p_change_the_target_of_jumps() -> None:
    """One masked token and one step: softmax(logits / temperature), truncated by top_p."""
    logits = torch.tensor([[1.0, 0.0, 2.0, 0.5]])
    model = constant(logits)
    n = 20_000
    x = SEDD(3).sample(model, Analytic(temperature=0.5), SampleRequest((n, 1), 1)).tokens  # type: ignore[arg-type]
    assert_follows(histogram(x, 3), (2 * logits[0, :3].double()).softmax(-1).numpy())
    x = SEDD(3).sample(model, ScoreEuler(top_p=0.6), SampleRequest((n, 1), 3)).tokens  # type: ignore[arg-type]
    assert set(x.flatten().tolist()) == {2}
    # the probability of a jump is unchanged: the same number of evaluations
    level = logits - logits[:, :3].logsumexp(-1) + math.log(3)
    normalized = constant(level)
    cold, warm = (
        SEDD(3).sample(normalized, Analytic(temperature=t), SampleRequest((200, 9), 7))  # type: ignore[arg-type]
        for t in (0.3, 1.0)
    )
    assert cold.logit_evaluations == warm.logit_evaluations


def test_grids() -> None:
    for graph, noise in (("absorb", "loglinear"), ("uniform", "geometric")):
        method = SEDD(5, graph, noise)  # type: ignore[arg-type]
        grid = score_grid(method.noise_process, 10, "kappa")
        kept = (-method.noise_process.sigma(1 - grid)).exp()
        torch.testing.assert_close(kept.diff(), (kept[-1] - kept[0]).expand(10) / 10)
        late = (-method.noise_process.sigma(1 - score_grid(method.noise_process, 10, "sqrt"))).exp()
        left = (kept[-1] - late) / (kept[-1] - kept[0])
        torch.testing.assert_close(left, (1 - torch.arange(11).double() / 10) ** 2)
        method.sample(SmallModel(method.num_tokens), None, SampleRequest((3, 4), 10, grid="kappa"))
        own = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
        method.sample(SmallModel(method.num_tokens), None, SampleRequest((3, 4), 2, grid=own))
    with pytest.raises(cwdfm.InputError, match="must increase"):
        score_grid(method.noise_process, 2, own.flip(0))


def test_other_solvers_are_rejected() -> None:
    method, model = SEDD(5), SmallModel(6)
    for solver in (
        cwdfm.Euler(),
        cwdfm.Euler(weight=cwdfm.Neighbor(1, 1.0)),
        cwdfm.Euler(weight=cwdfm.Entropy(1.0)),
        "analytic",
    ):
        with pytest.raises(cwdfm.InputError, match=r"scores.*Analytic"):
            method.sample(model, solver, SampleRequest((2, 3), 4))
    flow = Flow(cwdfm.MaskSource(5), cwdfm.Linear())
    with pytest.raises(cwdfm.InputError, match="Analytic"):
        flow.sample(model, Analytic(), SampleRequest((2, 3), 4))
    with pytest.raises(cwdfm.InputError, match="banned_tokens must contain"):
        method.sample(model, None, SampleRequest((2, 3), 4, banned_tokens=(5,)))
    with pytest.raises(cwdfm.InputError, match="banned_tokens must contain"):
        method.sample(model, None, SampleRequest((2, 3), 4, banned_tokens=(0, 1, 2, 3, 4)))
    with pytest.raises(cwdfm.InputError, match="top_p"):
        Analytic(top_p=0.0)


@pytest.mark.parametrize("rule", SOLVERS, ids=type)
@pytest.mark.parametrize("graph", GRAPHS)
def test_step_is_a_distribution_for_any_score(graph: GraphName, rule: ScoreSolver) -> None:
    """Scores that are far too large do not give a jump probability above 1."""
    method = SEDD(3, graph)
    x, logits = torch.full((4,), method.num_tokens - 1), torch.full((4, 3), 9.0)
    law = rule.law(method.forward_graph, method.noise_process, logits, x, 0.9, 0.1)
    assert bool((law.jump_K >= 0).all())
    assert bool((law.stay_K >= 0).all())
    assert bool((law.prob_K <= 1).all())


def test_last_step_leaves_banned_tokens() -> None:
    """Noise may be a banned token, and the floor of Tweedie's rule would let it stay."""
    method = SEDD(3, "uniform")
    solver = ReverseChain(
        Analytic(), method.forward_graph, method.noise_process, banned_tokens=(2,)
    )
    law = solver._law(torch.zeros(2, 3), torch.tensor([2, 0]), 0.9, 1.0)
    assert float(law.prob_K[0]) == 1
    assert law.log_weight_KV[:, 2].tolist() == [-math.inf] * 2
    assert float(law.prob_K[1]) < 1


def test_scores_without_banned_tokens_with_a_uniform_graph() -> None:
    """The score of the data distribution restricted to the other tokens, noised again."""
    vocab, sigma, banned = 6, 0.7, [1, 4]
    generator = torch.Generator().manual_seed(0)
    p_KV = torch.rand(5, vocab, generator=generator, dtype=torch.float64)
    x_K = torch.tensor([0, 1, 2, 3, 4])
    kept_KV = p_KV.clone()
    kept_KV[:, banned] = 0

    def log_score(data_KV: Tensor) -> Tensor:
        data_KV = data_KV / data_KV.sum(-1, keepdim=True)
        noised_KV = math.exp(-sigma) * data_KV - math.expm1(-sigma) / vocab
        return (noised_KV / noised_KV.gather(1, x_K[:, None])).log()

    found = Uniform(vocab).excluding(log_score(p_KV), x_K, sigma, banned)
    torch.testing.assert_close(found, log_score(kept_KV), rtol=1e-9, atol=1e-9)
