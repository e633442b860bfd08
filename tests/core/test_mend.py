"""Mending: its law by enumeration, what it trusts and what it is given, and that it mends."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.cli.main import main
from cwdfm.cli.sample import main as sample_main
from cwdfm.errors import InputError
from cwdfm.generation import generate, given
from cwdfm.metrics.molecule import score_molecules
from cwdfm.postprocess.base import together
from cwdfm.postprocess.token_scores import Reader
from cwdfm.sample_file import read_samples
from tests.support.exact import Array, Chain, correlated_target
from tests.support.models import SmallModel
from tests.support.stats import assert_differs, assert_follows, histogram

V, N, B = 3, 4, 40_000
TARGET = correlated_target(V, N, seed=7)
SCHEDULE = cwdfm.Polynomial(2.0)
MASK, UNIFORM = cwdfm.MaskSource(V), cwdfm.UniformSource(V)
MODEL = cwdfm.ExactPosterior(torch.from_numpy(TARGET), UNIFORM, SCHEDULE)
START = (0, 2, 1, 1)
ALL = (MODEL, UNIFORM, SCHEDULE)


def posterior(x: Sequence[int], share: float) -> Array:
    """p(x_1^i = v | x) [N, V] by Bayes' rule, if each token is noise by `share`."""
    found = np.zeros((N, V))
    for y in product(range(V), repeat=N):
        seen = [share / V + (1 - share) * (a == b) for a, b in zip(x, y, strict=True)]
        found[np.arange(N), y] += TARGET[y] * np.prod(seen)
    return np.asarray(found / found.sum(1, keepdims=True))


def conditional(x: Sequence[int], groups: Sequence[int]) -> Array:
    """p(x_1^i = v | the tokens outside i's group) [N, V]."""
    found = np.zeros((N, V))
    for y in product(range(V), repeat=N):
        for i in range(N):
            if all(y[j] == x[j] for j in range(N) if groups[j] != groups[i]):
                found[i, y[i]] += TARGET[y]
    return np.asarray(found / found.sum(1, keepdims=True))


def orders(doubt: Array, count: int) -> dict[tuple[int, ...], float]:
    """Places drawn one after the other by their doubt, none twice, and how likely each order is."""
    if count == 0 or not doubt.any():
        return {(): 1.0}
    found = {}
    for i in np.flatnonzero(doubt):
        rest = np.where(np.arange(N) == i, 0.0, doubt)
        for order, chance in orders(rest, count - 1).items():
            found[int(i), *order] = chance * doubt[i] / doubt.sum()
    return found


def law(p_NV: Array, trust: float, how: cwdfm.Mend) -> Array:
    """Of what becomes of START in one round, for all V^N sequences."""
    chance = p_NV[np.arange(N), START]
    doubt = np.where(chance < trust, 1 - chance, 0.0)
    draws = Chain(TARGET, False, top_p=how.top_p or 1.0, temperature=how.temperature or 1.0)
    drawn_NV = draws.drawn_from(p_NV)
    found = np.zeros(TARGET.shape)
    for places, chance_of_them in orders(doubt, how.at_once).items():
        for tokens in product(range(V), repeat=len(places)):
            y = np.array(START)
            y[list(places)] = tokens
            found[tuple(y)] += chance_of_them * drawn_NV[list(places), tokens].prod()
    return found.flatten()


WAYS = [
    (0.5, 1.0, cwdfm.Mend(rounds=1)),
    (0.3, 0.8, cwdfm.Mend(rounds=1, temperature=0.5)),
    (0.5, 1.0, cwdfm.Mend(rounds=1, temperature=2.0, top_p=0.7, at_once=2)),
    (0.8, 0.55, cwdfm.Mend(rounds=1, at_once=9)),
]


@pytest.mark.parametrize(("share", "trust", "how"), WAYS)
def test_the_law_of_a_round(share: float, trust: float, how: cwdfm.Mend) -> None:
    start, how = torch.tensor(START).expand(B, N), replace(how, share=share, trust=trust)
    counts = histogram(cwdfm.mend(*ALL, start, how).tokens, V)
    assert_follows(counts, law(posterior(START, share), trust, how))
    assert_differs(counts, law(posterior(START, share / 2), trust, how))


@pytest.mark.parametrize(("share", "trust", "how"), WAYS)
def test_the_law_of_a_round_with_a_mask_source(share: float, trust: float, how: cwdfm.Mend) -> None:
    """Two groups of two tokens by a share of 1/2, three by 1/3, one by 0.8: all ways to part."""
    model = cwdfm.ExactPosterior(torch.from_numpy(TARGET), MASK, SCHEDULE)
    start, how = torch.tensor(START).expand(B, N), replace(how, share=share, trust=trust)
    found = cwdfm.mend(model, MASK, SCHEDULE, start, how)
    counts, groups = histogram(found.tokens, V), round(1 / share)
    parted = [[rank % groups for rank in order] for order in permutations(range(N))]
    laws = [law(conditional(START, part), trust, how) for part in parted]
    assert_follows(counts, np.mean(laws, axis=0))
    assert_differs(counts, law(posterior(START, share), trust, how))
    assert found.evaluations.tolist() == [groups] * B


@pytest.mark.parametrize(
    ("source", "share", "noise"),
    [(MASK, 0.3, 1 / 3), (MASK, 0.35, 1 / 3), (MASK, 0.01, 1 / N), (UNIFORM, 0.3, 0.3)],
    ids=str,
)
def test_models_hear_how_much_is_noise(source: cwdfm.Source, share: float, noise: float) -> None:
    """kappa_t = t^2 = 1 - noise; with a mask source noise is what a group hides: 1 of 3, or 1 of N.

    Where tokens are all seen it is the share itself.
    """
    heard: set[float] = set()

    def model(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        heard.update(t.tolist())
        return torch.zeros(*x_t.shape, source.num_tokens)

    start = torch.zeros(3, N, dtype=torch.int64)
    cwdfm.mend(model, source, SCHEDULE, start, cwdfm.Mend(rounds=2, share=share))
    assert list(heard) == [pytest.approx((1 - noise) ** 0.5)]


@pytest.mark.parametrize(
    ("source", "trust", "groups", "noise"),
    [(MASK, 0.05, 8, 1 / 8), (UNIFORM, 0.8, 1, 0.5)],
    ids=str,
)
def test_what_suits_a_source(source: cwdfm.Source, trust: float, groups: int, noise: float) -> None:
    """Unless told otherwise: at which chance a token is doubted, and what models hear."""
    start = torch.zeros(2, 16, dtype=torch.int64)
    told: list[int] = []
    heard: set[float] = set()

    def model(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        heard.update(t.tolist())
        logits = torch.tensor([chance, *[(1 - chance) / (V - 1)] * (V - 1), 1.0]).log()
        return logits[: source.num_tokens].expand(*x_t.shape, -1)

    for chance in (trust - 0.01, trust + 0.01):
        found = cwdfm.mend(model, source, SCHEDULE, start, progress=told.append)
        once = found.evaluations.tolist() == [groups] * 2
        assert once == torch.equal(found.tokens, start) == (chance > trust)
    assert list(heard) == [pytest.approx((1 - noise) ** 0.5)]
    assert sum(told) == 2 * 2 * 40


def test_what_both_took_is_added_up() -> None:
    def made_up(k: int) -> cwdfm.Samples:
        tokens, updates, loops = (torch.full((2, N), 10 * k + i) for i in range(3))
        return cwdfm.Samples(tokens, updates, loops, torch.tensor([k, 7]), k)

    both = together(made_up(1), made_up(2))
    for found, expected in ((both.tokens, 20), (both.updates, 32), (both.loops, 34)):
        assert found.unique().tolist() == [expected]
    assert (both.evaluations.tolist(), both.rows) == ([3, 14], 3)


class Dropping(SmallModel):
    """Whose answers are another's while it is trained."""

    def forward(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return super().forward(x_t, t) * (-1.0 if self.training else 1.0)


def test_networks_are_asked_as_in_sampling() -> None:
    """Without dropout, and put back as they were."""
    model, x = Dropping(V), torch.arange(24).reshape(2, 12) % V
    ask = (UNIFORM, SCHEDULE, x)
    found = [
        (cwdfm.mend(model.train(mode), *ask).tokens, cwdfm.plausibility(model.train(mode), *ask))
        for mode in (False, True)
    ]
    assert model.training
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_what_is_trusted_stays() -> None:
    """And costs one evaluation."""
    x, share, trust = torch.cartesian_prod(*[torch.arange(V)] * N), 0.4, 0.5
    found = cwdfm.mend(*ALL, x, cwdfm.Mend(rounds=9, share=share, trust=trust))
    least = [posterior(y, share)[np.arange(N), y].min() for y in x.tolist()]
    trusted = torch.tensor(np.array(least) >= trust)
    assert 0 < int(trusted.sum()) < len(x)
    assert torch.equal(found.tokens[trusted], x[trusted])
    assert bool((found.evaluations[trusted] == 1).all())
    assert bool((found.evaluations[~trusted] > 1).all())
    assert int(found.updates[trusted].sum()) == 0
    assert found.rows == N * int(found.evaluations.sum())


@pytest.mark.parametrize("source", [MASK, UNIFORM], ids=str)
def test_errors_in_a_code_are_mended(source: cwdfm.Source) -> None:
    """Three words, each of one token but for rare errors: a single one is found and set right."""
    letter = torch.full((V, V), 0.01 / (V - 1), dtype=torch.float64).fill_diagonal_(0.99)
    target = torch.einsum("wa,wb,wc,wd,we->abcde", *[letter] * 5)
    model = cwdfm.ExactPosterior(target, source, SCHEDULE)
    right = torch.arange(V).repeat(100)[:, None].expand(-1, 5)
    wrong = right.clone()
    g = torch.Generator().manual_seed(0)
    place = torch.randint(5, (len(wrong), 1), generator=g)
    wrong.scatter_(1, place, (wrong[:, :1] + torch.randint(1, V, (len(wrong), 1), generator=g)) % V)
    how = cwdfm.Mend(rounds=30, share=0.2, trust=0.4, temperature=0.1)
    found = cwdfm.mend(model, source, SCHEDULE, wrong, how)
    assert torch.equal(found.tokens, right)
    assert torch.equal(found.updates.sum(1), torch.ones(len(wrong), dtype=torch.int64))
    assert int(found.loops.sum()) == 0


def test_loops_are_counted() -> None:
    """A network that always doubts the first token, and wants 1 for 0 and 0 for 1."""

    def restless(x_t: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        wanted = x_t.clone()
        wanted[:, 0] = 1 - x_t[:, 0]
        return 50.0 * torch.nn.functional.one_hot(wanted, V)

    start = torch.zeros(3, N, dtype=torch.int64)
    found = cwdfm.mend(restless, UNIFORM, SCHEDULE, start, cwdfm.Mend(rounds=5))
    assert found.tokens[:, 0].tolist() == [1, 1, 1]
    assert found.updates[:, 0].tolist() == [5, 5, 5]
    assert found.loops[:, 0].tolist() == [4, 4, 4]
    assert found.evaluations.tolist() == [5, 5, 5]


def test_what_is_certain_is_left_alone_by_any_trust() -> None:
    def certain(x_t: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return 50.0 * torch.nn.functional.one_hot(x_t, V)

    start = torch.zeros(3, N, dtype=torch.int64)
    found = cwdfm.mend(certain, UNIFORM, SCHEDULE, start, cwdfm.Mend(rounds=5, trust=1.0))
    assert found.evaluations.tolist() == [1, 1, 1]


def test_a_loop_is_one_however_long_it_takes() -> None:
    """Two tokens that are never right, one of which is drawn in a round: the other waits."""

    def restless(x_t: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        wanted = torch.cat([1 - x_t[:, :2], x_t[:, 2:]], dim=1)
        return 50.0 * torch.nn.functional.one_hot(wanted, V)

    start = torch.zeros(20, N, dtype=torch.int64)
    found = cwdfm.mend(restless, UNIFORM, SCHEDULE, start, cwdfm.Mend(rounds=9))
    assert found.updates[:, :2].sum(1).tolist() == [9] * 20
    assert len(found.updates[:, 0].unique()) > 2
    assert torch.equal(found.loops, (found.updates - 1).clamp(min=0))


@pytest.mark.parametrize("source", [MASK, UNIFORM], ids=str)
def test_what_is_drawn_anew_does_not_hang_on_what_was_sampled(source: cwdfm.Source) -> None:
    """By one seed: without context a new token is independent of the old; false alarms 1e-6."""
    law = np.array([0.2, 0.3, 0.5])
    logits = torch.tensor([*np.log(law), 0.0][: source.num_tokens])

    def model(x_t: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return logits.expand(*x_t.shape, -1)

    first = cwdfm.sample(model, source, SCHEDULE, cwdfm.Euler(), shape=(B, 1), steps=1, seed=5)
    how = cwdfm.Mend(rounds=1, share=1.0, trust=1.0)
    then = cwdfm.mend(model, source, SCHEDULE, first.tokens, how, seed=5)
    both = torch.cat([first.tokens, then.tokens], dim=1)
    assert_follows(histogram(both, V), np.outer(law, law).flatten())


@pytest.mark.parametrize("source", [MASK, UNIFORM], ids=str)
def test_batches_numbers_and_what_is_given(source: cwdfm.Source) -> None:
    model, how = SmallModel(source.num_tokens), cwdfm.Mend(rounds=6, trust=0.9, at_once=2)
    g = torch.Generator().manual_seed(0)
    start = torch.randint(V, (40, 12), generator=g)
    fixed = torch.rand(40, 12, generator=g) < 0.3
    ask = (model, source, SCHEDULE)
    told: list[int] = []
    whole = cwdfm.mend(*ask, start, how, seed=5, fixed=fixed, progress=told.append)
    assert sum(told) == 40 * 6
    assert torch.equal(whole.tokens[fixed], start[fixed])
    assert not torch.equal(whole.tokens, start)
    parts = cwdfm.mend(*ask, start, how, seed=5, fixed=fixed, batch_size=7)
    assert torch.equal(whole.tokens, parts.tokens)
    assert torch.equal(whole.evaluations, parts.evaluations)
    some = cwdfm.mend(*ask, start[25:], how, seed=5, fixed=fixed[25:], index=torch.arange(25, 40))
    assert torch.equal(whole.tokens[25:], some.tokens)
    other = cwdfm.mend(*ask, start, how, seed=6, fixed=fixed)
    assert not torch.equal(whole.tokens, other.tokens)
    still = cwdfm.mend(*ask, start, how, fixed=torch.ones(12, dtype=torch.bool))
    assert torch.equal(still.tokens, start)
    assert int(still.evaluations.sum()) == 0


@pytest.mark.parametrize(("name", "after"), [("uniform", 20), ("mask", 17)])
def test_more_molecules_are_valid(name: str, after: float) -> None:
    """Of few steps: most of what is wrong is mended."""
    trained = cwdfm.load(f"qm9-{name}-small")

    def valid(samples: cwdfm.Samples) -> float:
        texts = [trained.tokenizer.decode(row) for row in samples.tokens.tolist()]
        return float(score_molecules(texts, None, fold_size=24).valid.mean)

    how = cwdfm.Mend(rounds=40 if name == "uniform" else 6)
    plain = generate(trained, n=24, steps=16, seed=4)
    mended = generate(trained, n=24, steps=16, seed=4, mend=how)
    assert valid(plain) < 17
    assert valid(mended) > after


def test_the_command(tmp_path: Path) -> None:
    out, common = tmp_path / "a.jsonl", ["--n", "8", "--steps", "6", "--seed", "3"]
    flags = ["--mend", "4", "--mend-trust", "0.7", "--mend-at-once", "2", "--prompt", "CC"]
    sample_main(["qm9-uniform-small", "--out", str(out), *common, *flags, "--refine", "1"])
    trained = cwdfm.load("qm9-uniform-small")
    how = cwdfm.Mend(rounds=4, trust=0.7, at_once=2)
    ask = {"n": 8, "steps": 6, "seed": 3, "prompt": "CC"}
    found = generate(trained, **ask, refine=cwdfm.Refine(rounds=1), mend=how)  # type: ignore[arg-type]
    assert read_samples(out).tokens == found.tokens.tolist()
    tokens, fixed = given(trained, prompt="CC")
    assert tokens is not None
    assert fixed is not None
    assert torch.equal(found.tokens[:, fixed], tokens[fixed].expand(8, -1))
    refined = generate(trained, **ask, refine=cwdfm.Refine(rounds=1))  # type: ignore[arg-type]
    assert not torch.equal(found.tokens, refined.tokens)


def test_only_flows_are_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = cwdfm.load("qm9-mask-small")
    other = replace(trained, method=Autoregressive(trained.source.vocab_size))
    with pytest.raises(InputError, match="as a flow does, and this model is trained by Autoreg"):
        generate(other, n=1, steps=4, mend=cwdfm.Mend())
    ask = ["sample", "qm9-mask-small", "--out", str(tmp_path / "a.smi"), "--mend", "-3"]
    monkeypatch.setattr("sys.argv", ["cwdfm", *ask])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "mend must be" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"share": 0.0}, r"share must lie between 1e-6 and 1, the part .* network, got 0.0"),
        ({"trust": 0.0}, r"trust must lie in \(0, 1\].*got 0.0"),
        ({"trust": "a"}, "trust must lie"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"temperature": 1e-50}, "temperature must be a number from 1e-6"),
        ({"top_p": 1.5}, r"top_p must lie in \(0, 1\]"),
        ({"rounds": 0}, "rounds must be"),
        ({"at_once": 0}, "at_once must be"),
    ],
)
def test_bad_settings(changes: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        cwdfm.Mend(**changes)  # type: ignore[arg-type]


def test_draws_are_those_of_the_solver_unless_told_otherwise() -> None:
    """Temperature and nucleus, and groups no more than tokens."""
    trained, ask = cwdfm.load("qm9-uniform-small"), {"n": 6, "steps": 4, "seed": 1}
    cold = cwdfm.Euler(temperature=0.3, top_p=0.9)
    found = generate(trained, cold, **ask, mend=cwdfm.Mend(rounds=3))  # type: ignore[arg-type]
    how = cwdfm.Mend(rounds=3, temperature=0.3, top_p=0.9)
    same = generate(trained, cold, **ask, mend=how)  # type: ignore[arg-type]
    other = generate(trained, cold, **ask, mend=replace(how, temperature=3.0))  # type: ignore[arg-type]
    assert torch.equal(found.tokens, same.tokens)
    assert not torch.equal(found.tokens, other.tokens)
    x = torch.zeros(2, N, dtype=torch.int64)
    model = cwdfm.ExactPosterior(torch.from_numpy(TARGET), MASK, SCHEDULE)
    one = cwdfm.mend(model, MASK, SCHEDULE, x, cwdfm.Mend(rounds=1, share=1e-6))
    assert one.evaluations.tolist() == [N, N]


class TwoHalves(SmallModel):
    """Whose trunk and head are not the two halves of it."""

    def trunk(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*x_t.shape, 5)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*hidden.shape[:-1], V)


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"head\(trunk\(x, t\)\) is not model\(x, t\)"):
        cwdfm.mend(TwoHalves(V), UNIFORM, SCHEDULE, torch.zeros(2, N).long())
    x = torch.zeros(2, N, dtype=torch.int64)
    with pytest.raises(InputError, match="tokens contains ids"):
        cwdfm.mend(*ALL, x + V)
    with pytest.raises(InputError, match="how must be"):
        cwdfm.mend(*ALL, x, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seed"):
        cwdfm.mend(*ALL, x, seed=-1)
    with pytest.raises(InputError, match="batch_size"):
        cwdfm.mend(*ALL, x, batch_size=0)
    causal = SmallModel(V)
    causal.config = SimpleNamespace(attention="causal")  # type: ignore[assignment]
    with pytest.raises(InputError, match="needs a network with full attention"):
        cwdfm.mend(causal, UNIFORM, SCHEDULE, x)
    with pytest.raises(InputError, match="mend must be"):
        generate(cwdfm.load("qm9-uniform-small"), n=1, steps=4, mend=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", [MASK, UNIFORM], ids=str)
def test_rows_that_fill_a_batch_up_do_not_show(source: cwdfm.Source) -> None:
    """Three sequences are read alike in a batch of three and of four, and cost the same."""
    model, tokens = SmallModel(source.num_tokens), torch.tensor([START] * 3)
    asked = (tokens, torch.ones_like(tokens, dtype=torch.bool), torch.arange(3), 0)
    reader = Reader(model, source, SCHEDULE, N, share=0.5, seed=1)
    alone, filled = reader.read(*asked), reader.read(*asked, unit=4)
    assert alone.rows == filled.rows == tokens.numel()
    for field in ("chance", "drawn", "evaluations"):
        torch.testing.assert_close(getattr(alone, field), getattr(filled, field))
