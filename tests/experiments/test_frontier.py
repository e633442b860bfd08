"""The comparison of samplers: equal terms, and what is chosen and interpolated."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import cwdfm
from cwdfm import data
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.method.flow import Flow
from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT
from experiments import frontier, results
from experiments.frontier.families import Measured, Sampler, families
from experiments.frontier.tasks import CLOSE, LENGTH, Exact, Molecules, Text, next_temperature
from tests.support.cases import slow

LEARNED = cwdfm.Learned((0.0, -1.0, 0.0, 0.0))
MEASURED = Measured(LEARNED, lambda steps: tuple(k / steps for k in range(steps + 1)))


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("budget", [4, slow(16)])
def test_families_have_equal_terms(budget: int, masked: bool) -> None:
    """No sequence costs more than the budget, and every family has six different candidates."""
    task = Exact("exact", masked, LENGTH, samples=8)
    found = families(budget, LENGTH, masked=masked, candidates=6, measured=MEASURED)
    assert len(found) >= (19 if masked else 17)
    for family, candidates in found.items():
        assert len(set(map(str, candidates))) == 6, family
        for candidate in candidates[:3]:
            out = task.draw(candidate, seed=0)
            assert 0 < int(out.evaluations.max()) <= budget, (family, candidate)


def test_samplers_change_only_their_temperature() -> None:
    gibbs = Sampler(cwdfm.Gibbs(cwdfm.Euler(hazard="integrated")), 4)
    assert gibbs.at(0.5).temperature == 0.5
    assert gibbs.at(0.5).at(1.0) == gibbs
    assert str(gibbs.at(0.5)) == (
        "Sampler(solver=Gibbs(solver=Euler(temperature=0.5, hazard='integrated')), steps=4)"
    )


def test_total_variation_of_the_exact_chain_is_sampling_error() -> None:
    """One token per step is exact; 3,000 samples of 30 classes differ by less than 0.04."""
    task = Exact("exact", True, LENGTH, samples=3000)
    assert len(task.orbits.unique()) == 30  # bracelets of eight beads in two colors
    errors = [
        task.score(task.draw(sampler, seed=0).tokens.numpy(), final=True)["total variation"]
        for sampler in (Sampler(cwdfm.FirstHitting(), LENGTH), Sampler(cwdfm.Euler(), 1))
    ]
    assert errors[0] < 0.04
    assert errors[1] > 0.3


@pytest.mark.parametrize("masked", [True, False])
def test_tabulated_posterior(masked: bool) -> None:
    task = Exact("exact", masked, LENGTH, samples=4)
    model, source, _ = task.flow
    x = torch.randint(0, source.num_tokens, (50, LENGTH), generator=torch.manual_seed(0))
    for t in (torch.linspace(0, 0.9, 50), torch.full((50,), 0.3)):
        assert torch.allclose(model(x, t), model.exact(x, t))


def test_classes_of_sequences_are_orbits() -> None:
    task = Exact("exact", True, LENGTH, samples=4)
    for k, turned in enumerate((task.states.roll(3, 1), task.states.flip(1))):
        places = (turned * 2 ** torch.arange(LENGTH - 1, -1, -1)).sum(1)
        assert task.orbits[places].equal(task.orbits), k
        assert torch.allclose(task.target[places], task.target)


def test_molecules_must_be_novel() -> None:
    task = Molecules("QM9", True, 32, 1024, {"valid": 900, "unique": 890, "novel": 400})
    a, b, c = (Sampler(cwdfm.Euler(), steps) for steps in (1, 2, 3))
    scores = [(1000.0, 100.0), (900.0, 370.0), (800.0, 500.0), (9.0, 200.0)]
    found = [{"unique": unique, "novel": novel} for unique, novel in scores]
    assert task.choose([(a, found[0]), (b, found[1]), (c, found[2])]) == [b]
    assert task.choose([(a, found[0]), (c, found[3])]) == [c]


def test_fcd_of_reported_molecules_only(tmp_path: Path) -> None:
    """The distance of the held-out molecules to themselves is zero, that of others is not."""
    pytest.importorskip("fcd_torch")
    smiles = [f"{'C' * k}{end}" for k in range(1, 21) for end in ("O", "N", "F", "Cl")]
    (tmp_path / "a.smi").write_text("\n".join(smiles))
    molecules = data.load(str(tmp_path / "a.smi"), length=32)
    molecules.save(tmp_path / "a.npz")
    trained = SimpleNamespace(tokenizer=molecules.tokenizer)
    task = Molecules("QM9", True, 32, 4, None, trained, str(tmp_path / "a.npz"), fcd=True)
    held_out, training = (each.astype("int64") for each in (molecules.valid, molecules.train))
    assert set(task.score(held_out, final=False)) == {"valid", "unique", "novel"}
    assert task.score(held_out, final=True)["FCD"] == pytest.approx(0, abs=1e-3)
    assert task.score(training, final=True)["FCD"] > 0.1


def test_perplexities_are_compared_at_one_entropy() -> None:
    """Of two straight lines in (entropy, log-perplexity), the one that is lower at the entropy."""
    task = Text("text", True, 8, 4, {"entropy": 5.0})

    def points(slope: float, at_5: float, steps: int) -> list[tuple[Sampler, dict[str, float]]]:
        return [
            (
                Sampler(cwdfm.Euler(), steps).at(temperature),
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


@pytest.mark.parametrize(
    "entropy",
    [
        lambda t: 5.0 + 2.0 * (t - 1.0),  # steeper than expected
        lambda t: 5.0 + 0.2 * (t - 1.3),
        lambda t: 4.0 + 2.0 * math.tanh(t - 0.4),
        lambda t: 5.0 + (t - 0.7) + (t - 0.7) ** 3,
    ],
)
def test_temperatures_on_both_sides_of_an_entropy_are_found(
    entropy: Callable[[float], float],
) -> None:
    """Six tries bracket the requested entropy, beyond the noise of a seed."""
    known = {1.0: entropy(1.0)}
    while len(known) < 6 and (found := next_temperature(known, 5.0)) is not None:
        known[found] = entropy(found)
    assert max(e for e in known.values() if e < 5.0) <= 5.0 - CLOSE
    below = [e for e in known.values() if 4.8 < e <= 5.0 - CLOSE]
    above = [e for e in known.values() if 5.0 + CLOSE <= e < 5.2]
    assert below
    assert above


def test_the_search_ends_at_a_limit_of_the_entropy() -> None:
    """No temperature reaches the requested entropy; the smallest one is the last try."""
    known = {1.0: 5.6}
    while len(known) < 20 and (found := next_temperature(known, 5.0)) is not None:
        known[found] = 5.5 + 0.1 * found
    assert min(known) == 0.2
    assert len(known) < 6


def test_every_variant_is_tried_in_turn() -> None:
    """The one with the fewest tries is next, until all are finished."""
    task = Text("text", True, 8, 4, {"entropy": 5.0})
    variants = [Sampler(cwdfm.Euler(), steps) for steps in (1, 2)]
    tried = [(each, {"entropy": 7.0}) for each in variants]
    for number in range(4):
        sampler = task.further(tried)
        assert sampler is not None
        assert sampler.steps == 1 + number % 2
        tried.append((sampler, {"entropy": 6.0 + sampler.temperature}))  # never low enough
    done = [
        (each.at(t), {"entropy": 4.0 + t})
        for each in variants
        for t in (1 - 2 * CLOSE, 1 + 2 * CLOSE)
    ]
    assert task.further(done) is None


def test_text_is_scored_by_two_evaluators_in_turns(tmp_path: Path) -> None:
    """The first evaluator chooses; the second one is added to the reported draws later."""
    tokenizer = cwdfm.load("qm9-mask-small").tokenizer
    vocab, paths = tokenizer.vocab_size, [tmp_path / name for name in ("flow", "one", "two")]
    methods = (Flow(cwdfm.MaskSource(vocab), cwdfm.Linear()), *[Autoregressive(vocab)] * 2)
    for seed, (path, method) in enumerate(zip(paths, methods, strict=True)):
        torch.manual_seed(seed)
        network = DiT(method.network(preset("debug", vocab + 1)))
        torch.nn.init.normal_(network.readout.weight)
        cwdfm.Pretrained(network, method, tokenizer, 8).save_pretrained(path)
    flow, one, two = map(str, paths)
    words = ["--tasks", "text, flow", "--text-models", flow, "--samples", "6", "--candidates", "2"]
    words += ["--seeds", "1", "--budgets", "4", "--families", "Euler", "recommended"]
    words += ["--out", str(tmp_path / "out"), "--eval-models", one]
    frontier.main(words)
    first = json.loads((tmp_path / "out" / "frontier.json").read_text())["rows"]
    frontier.main([*words, two, "--stages", "score"])
    both = json.loads((tmp_path / "out" / "frontier.json").read_text())["rows"]
    assert [row["family"] for row in both] == ["Euler", "recommended"]
    for row, earlier in zip(both, first, strict=True):
        assert row["samplers"] == earlier["samplers"]
        assert set(row["scores"]) == set(earlier["scores"]) | {"perplexity 2"}
        assert row["search"] == earlier["search"]  # scored by the first one alone
    task = Text("text", True, 8, 6, trained=cwdfm.load(flow), evaluator_names=(one, two))
    tokens = task.draw(Sampler(cwdfm.Euler(), 4), seed=0).tokens
    scores = task.score(tokens.numpy(), final=True)
    for k, name in enumerate((one, two), start=1):
        start = torch.full((6, 1), vocab)
        with torch.no_grad():
            logits = cwdfm.load(name).model(torch.cat([start, tokens[:, :-1]], 1), torch.zeros(6))
        nats = torch.nn.functional.cross_entropy(
            logits[..., :vocab].flatten(0, 1).double(), tokens.flatten()
        )
        assert scores[f"perplexity {k}"] == pytest.approx(math.exp(nats), rel=1e-4)


def test_scores_of_some_seeds_only_are_left_out(tmp_path: Path) -> None:
    """FCD needs several valid molecules."""
    words = ["--tasks", "exact, mask", "--budgets", "4", "--families", "Euler", "--seeds", "1", "2"]
    words += ["--samples", "8", "--candidates", "1", "--out", str(tmp_path)]
    frontier.main(words)
    path = tmp_path / "exact-mask" / "4" / "euler.json"
    family = json.loads(path.read_text())
    family["draws"][family["report"][0][0]]["scores"]["FCD"] = 1.0
    path.write_text(json.dumps(family))
    frontier.main([*words, "--stages", "score"])
    (row,) = json.loads((tmp_path / "frontier.json").read_text())["rows"]
    assert row["scores"].keys() == {"total variation"}


def test_stages_and_continuation_give_the_same_record(tmp_path: Path) -> None:
    """Drawing and scoring in turns, with a second budget later, ends where one command does."""
    words = ["--tasks", "exact, mask", "--samples", "2", "--candidates", "2", "--seeds", "1"]
    words += ["--families", "Euler", "path planning", "--budgets"]
    once, parts = tmp_path / "once", tmp_path / "parts"
    frontier.main([*words, "4", "8", "--out", str(once)])
    for stage in ("draw", "score", "draw", "score"):
        frontier.main([*words, "4", "--out", str(parts), "--stages", stage])
    frontier.main([*words, "8", "--out", str(parts)])
    every = tmp_path / "every"
    frontier.main([*words, "4", "8", "--out", str(every), "--stages", "draw", "--all-seeds"])
    frontier.main([*words, "4", "8", "--out", str(every), "--stages", "score"])
    records = [json.loads((each / "frontier.json").read_text()) for each in (once, parts, every)]
    assert [len(each["commands"]) for each in records] == [1, 5, 2]
    found = [each["rows"] for each in records]
    for row in [row for rows in found for row in rows]:
        del row["seconds"]
    assert found[0] == found[1] == found[2]
    assert [(row["budget"], row["family"]) for row in found[0]] == [
        (budget, family) for budget in (4, 8) for family in ("Euler", "path planning")
    ]
    with pytest.raises(cwdfm.InputError, match="another --out"):
        frontier.main([*words, "4", "--samples", "3", "--out", str(once)])


def test_a_recorded_result_is_extended(tmp_path: Path) -> None:
    """New rows replace those of their family; the other rows and the commands stay."""
    words = ["--tasks", "exact, mask", "--budgets", "4", "--families", "Euler"]
    words += ["--extend", "frontier_exact", "--samples", "128", "--out", str(tmp_path)]
    recorded = results.read("studies")["frontier_exact"]
    frontier.main(words)
    found = json.loads((tmp_path / "frontier.json").read_text())
    assert len(found["commands"]) == len(recorded["commands"]) + 1
    changed = [new != old for new, old in zip(found["rows"], recorded["rows"], strict=True)]
    assert [row["family"] for row, new in zip(found["rows"], changed, strict=True) if new] == [
        "Euler"
    ]
    with pytest.raises(cwdfm.InputError, match=r"recorded with .*'samples': 128"):
        frontier.main([*words[:-2], "--samples", "2", "--out", str(tmp_path / "other")])
