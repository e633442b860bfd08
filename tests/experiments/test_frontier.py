"""The comparison of samplers: equal terms, and what is chosen and interpolated."""

import json
import math
from pathlib import Path

import pytest

from cwdfm.recommend import Recommendation as Sampler
from experiments import frontier
from experiments.frontier.families import families
from experiments.frontier.tasks import LENGTH, Exact, Molecules, Text


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("budget", [4, 16])
def test_families_have_equal_terms(budget: int, masked: bool) -> None:
    task = Exact("exact", masked, LENGTH, samples=4)
    found = families(budget, LENGTH, masked=masked, candidates=6)
    assert len(found) >= 13
    for family, candidates in found.items():
        assert len(set(candidates)) == 6, family
        for candidate in candidates[:3]:
            _, evaluations = task.draw(candidate, seed=0)
            assert 0 < evaluations <= budget, (family, candidate)


def test_total_variation_of_the_exact_chain_is_sampling_error() -> None:
    """One token per step is exact; 3,000 samples of 256 states differ by about 0.1."""
    task = Exact("exact", True, LENGTH, samples=3000)
    assert task.draw(Sampler("first-hitting", LENGTH), seed=0)[0]()["total variation"] < 0.14
    assert task.draw(Sampler("euler", 1), seed=0)[0]()["total variation"] > 0.3


def test_molecules_must_be_novel() -> None:
    task = Molecules("QM9", True, 32, 1024, {"valid": 900, "unique": 890, "novel": 400})
    a, b, c = (Sampler("euler", steps) for steps in (1, 2, 3))
    scores = [(1000.0, 100.0), (900.0, 370.0), (800.0, 500.0), (9.0, 200.0)]
    found = [{"unique": unique, "novel": novel} for unique, novel in scores]
    assert task.choose([(a, found[0]), (b, found[1]), (c, found[2])]) == [b]
    assert task.choose([(a, found[0]), (c, found[3])]) == [c]


def test_perplexities_are_compared_at_one_entropy() -> None:
    """Of two straight lines in (entropy, log-perplexity), the one that is lower at the entropy."""
    task = Text("text", True, 8, 4, {"entropy": 5.0})

    def points(slope: float, at_5: float, steps: int) -> list[tuple[Sampler, dict[str, float]]]:
        return [
            (
                Sampler("euler", steps, settings=(("temperature", temperature),)),
                {"entropy": entropy, "perplexity 1": math.exp(at_5 + slope * (entropy - 5))},
            )
            for temperature, entropy in ((1.0, 6.0), (0.8, 4.5), (0.6, 3.0))
        ]

    steep, flat = points(2.0, 3.0, steps=1), points(0.1, 3.5, steps=2)
    chosen = task.choose([*steep, *flat])
    assert chosen == [steep[1][0], steep[0][0]]
    combined = task.combine([scores for sampler, scores in steep if sampler in chosen])
    assert combined == pytest.approx({"entropy": 5.0, "perplexity 1": math.exp(3.0)})
    low = points(2.0, 3.0, steps=1)[1:]  # too little entropy: the nearest candidate
    assert task.choose(low) == [low[0][0]]
    assert task.combine([low[0][1]])["entropy"] == 4.5


def test_command_continues(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    words = ["--out", str(out), "--tasks", "exact, mask", "--samples", "1", "--workers", "1"]
    words += ["--candidates", "1", "--seeds", "1", "--budgets"]
    frontier.main([*words, "2"])
    first = json.loads(out.read_text())
    frontier.main([*words, "2", "3"])
    both = json.loads(out.read_text())
    assert both["rows"][: len(first["rows"])] == first["rows"]
    assert {row["budget"] for row in both["rows"]} == {2, 3}
    assert both["references"] == first["references"]
