"""The recommended sampler: it keeps to its budget and runs through every interface."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.cli.sample import main as sample_main
from cwdfm.method import Flow
from cwdfm.method.base import SampleRequest
from cwdfm.recommendation import RULES, recommend_for, widest_distance
from cwdfm.sample_file import read_samples
from cwdfm.schedule import time_grid
from cwdfm.solver import match_data
from tests.support.models import SmallModel

MODELS = ("qm9-mask-small", "qm9-uniform-small")


@pytest.mark.parametrize("name", MODELS)
def test_samples_stay_within_the_budget(name: str) -> None:
    trained = cwdfm.load(name)
    for evaluations in (1, 5, 12):
        out = trained.generate(evaluations=evaluations, n=3)
        assert int(out.evaluations.max()) <= evaluations
    chosen = cwdfm.recommend(trained, 12)
    same = cwdfm.generate(trained, n=3, **chosen.options)
    assert same.tokens.equal(out.tokens)


@pytest.mark.parametrize("name", MODELS)
def test_budgets_are_used(name: str) -> None:
    """Steps and rounds, at one evaluation each; a mask source has one step per token at most."""
    method, length = cwdfm.load(name).method, 32
    masked = method.source.marks_noise
    for evaluations in range(1, 300):
        chosen = recommend_for(method, evaluations, length)
        rounds = 0 if chosen.resample is None else chosen.resample.rounds
        assert chosen.steps >= 1
        assert chosen.steps + rounds == (min(evaluations, length) if masked else evaluations)


@pytest.mark.parametrize("source", [cwdfm.MaskSource(300), cwdfm.UniformSource(300)])
def test_budgets_of_text_are_used(source: cwdfm.Source) -> None:
    """No sample exceeds the budget. Some stay below: a step in which no token changes is free."""
    method, length = Flow(source, cwdfm.Polynomial(2.0)), 16
    model, names = SmallModel(source.num_tokens), set()
    for evaluations in (*range(1, 12), *range(13, 34, 4)):
        chosen = recommend_for(method, evaluations, length)
        names.add(chosen.name)
        request = SampleRequest(
            (8, length),
            steps=chosen.steps,
            grid=chosen.grid,
            postprocess=() if chosen.resample is None else (chosen.resample,),
        )
        most = int(method.sample(model, chosen.solver, request).evaluations.max())
        limit = min(evaluations, length) if source.marks_noise else evaluations
        assert 0.7 * limit <= most <= limit, (evaluations, chosen)
    kind = "mask" if source.marks_noise else "uniform"
    assert names == {rule.solver for rule in RULES[f"text, {kind}"]}


@pytest.mark.parametrize("name", MODELS)
def test_faithful_samplers_keep_the_distribution(name: str) -> None:
    """No resampling, and a lower temperature only if a mask source draws several tokens at once."""
    trained = cwdfm.load(name)
    for evaluations in (1, 8, 31, 32, 100):
        chosen = cwdfm.recommend(trained, evaluations, faithful=True)
        several = trained.source.marks_noise and evaluations < 32
        assert (chosen.solver.temperature < 1) == several
        assert chosen.resample is None
        assert chosen.steps <= evaluations
    exact = cwdfm.recommend(trained, 32, faithful=True).name
    assert (exact == "first-hitting") == trained.source.marks_noise


@pytest.mark.parametrize("steps", [3, 4, 6, 8, 16])
def test_the_widest_distance_separates_the_tokens_of_a_step(steps: int) -> None:
    """Few adjacent tokens are revealed in the same step; in a random order, one in `steps`."""
    source, schedule = cwdfm.MaskSource(3), cwdfm.Linear()
    model = SmallModel(source.num_tokens)
    times = time_grid(schedule, steps, "kappa").tolist()

    def together(distance: int) -> float:
        solver = cwdfm.TopK("random", distance=distance)
        state, pairs = solver.init(source, torch.arange(16), 128), 0
        for t, t_next in pairwise(times):
            masked = state.tokens == 3
            state, _ = solver.step(model, source, schedule, state, t, t_next)
            revealed = masked & (state.tokens != 3)
            pairs += int((revealed[:, 1:] & revealed[:, :-1]).sum())
        return pairs / (16 * 127)

    assert together(widest_distance(steps)) < 0.06
    assert together(0) > 0.8 / steps


def test_data_choose_the_sampler_of_a_small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_data, "LEVELS", 2)
    trained = cwdfm.load("qm9-uniform-small")
    data = trained.generate(n=4, steps=8)
    chosen = cwdfm.recommend(trained, 2, faithful=True, data=data)
    assert chosen.name in ("ancestral", "euler")
    if chosen.times is not None:
        expected = cwdfm.jump_your_steps(
            trained.model, trained.source, trained.schedule, data, chosen.steps
        )
        assert torch.equal(chosen.options["grid"], expected)
    out = trained.generate(n=3, **chosen.options)
    assert int(out.evaluations.max()) <= 2
    many = cwdfm.recommend(trained, 64, faithful=True, data=data)
    assert many == cwdfm.recommend(trained, 64, faithful=True)
    masked = cwdfm.load("qm9-mask-small")
    chosen = cwdfm.recommend(masked, 2, faithful=True, data=data.tokens)
    assert (chosen.name, chosen.steps) == ("random-order", 2)
    many = cwdfm.recommend(masked, 32, faithful=True, data=data.tokens)
    assert many.name == "first-hitting"
    with pytest.raises(cwdfm.InputError, match="data"):
        cwdfm.recommend(masked, 4, faithful=True, data=data.tokens + 1000)
    with pytest.raises(cwdfm.InputError, match="at least 2 sequences"):
        cwdfm.recommend(masked, 2, faithful=True, data=data.tokens[:1])
    for arguments in ({}, {"faithful": True, "data": data.tokens.int()}):
        with pytest.raises(cwdfm.InputError, match="data"):
            cwdfm.recommend(trained, 4, **{"data": data.tokens, **arguments})


def test_rules_cover_all_budgets() -> None:
    for name, rules in RULES.items():
        starts = [rule.per_token for rule in rules]
        assert starts[0] == 0, name
        assert starts == sorted(set(starts)), name


def test_command(tmp_path: Path) -> None:
    """The command gives the same samples, and records what it chose."""
    out, arguments = tmp_path / "a.jsonl", [MODELS[1], "--n", "3", "--evaluations", "12"]
    sample_main([*arguments, "--out", str(out)])
    trained, found = cwdfm.load(MODELS[1]), read_samples(out)
    assert found.tokens == trained.generate(evaluations=12, n=3).tokens.tolist()
    chosen = cwdfm.recommend(trained, 12)
    assert (found.options["solver"], found.options["steps"]) == (chosen.name, chosen.steps)
    mask = ["--n", "1", "--evaluations", "2", "--temperature", "0.9", "--out", str(out), "--force"]
    sample_main([MODELS[0], *mask])
    assert read_samples(out).options["temperature"] == 0.9  # not the recommended one
    for flags in (
        ["--steps", "4"],
        ["--solver", "euler"],
        ["--resample", "2"],
        ["--refine", "1"],
        ["--reject-below", "0.9"],
    ):
        with pytest.raises(cwdfm.InputError, match=flags[0]):
            sample_main([*arguments, *flags, "--out", str(tmp_path / "b.jsonl")])


def test_other_methods_use_their_own_solver() -> None:
    assert recommend_for(Autoregressive(30), 7, 32).name == "left-to-right"
    with pytest.raises(cwdfm.InputError, match=r"cwdfm\.load"):
        cwdfm.recommend("qm9-mask-small")
    with pytest.raises(cwdfm.InputError, match="evaluations"):
        cwdfm.recommend(cwdfm.load(MODELS[0]), 0)
    options = {"solver": "euler", "steps": 8, "grid": "kappa", "resample": cwdfm.Resample()}
    for name, value in options.items():
        with pytest.raises(cwdfm.InputError, match=f"omit {name}="):
            cwdfm.load(MODELS[0]).generate(evaluations=8, **{name: value})
    with pytest.raises(cwdfm.InputError, match="exceed"):
        cwdfm.load(MODELS[0]).generate(evaluations=8, refine=cwdfm.Refine())
