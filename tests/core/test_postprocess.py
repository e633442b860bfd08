"""What refinement, resampling and rejection have in common: seeds, batches, commands and errors."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.cli.main import main
from cwdfm.cli.sample import main as sample_main
from cwdfm.errors import InputError
from cwdfm.generation import generate
from cwdfm.metrics.molecule import score_molecules
from cwdfm.postprocess.base import combine
from cwdfm.sample_file import read_samples
from cwdfm.trained import prompt_tokens
from tests.support.cases import slow
from tests.support.models import SmallModel, constant
from tests.support.postprocess import MASK, SCHEDULE, UNIFORM, InconsistentSplitModel, N, V
from tests.support.stats import assert_follows, histogram

B = 40_000
X = torch.zeros(2, N, dtype=torch.int64)
Step = cwdfm.Refine | cwdfm.Resample
both_sources = pytest.mark.parametrize("source", [MASK, UNIFORM], ids=str)


def apply(step: Any, model: Any, source: cwdfm.Source, tokens: Tensor, **options: Any) -> Any:
    """Refine or resample the tokens, or compute their plausibility."""
    if isinstance(step, cwdfm.Refine):
        return cwdfm.refine(model, source, SCHEDULE, cwdfm.Euler(), tokens, step, **options)
    if isinstance(step, cwdfm.Resample):
        return cwdfm.resample(model, source, SCHEDULE, tokens, step, **options)
    return cwdfm.plausibility(model, source, SCHEDULE, tokens, **options)


def test_combine_adds_statistics() -> None:
    def samples(k: int) -> cwdfm.Samples:
        tokens, updates, loops = (torch.full((2, N), 10 * k + i) for i in range(3))
        return cwdfm.Samples(tokens, updates, loops, torch.tensor([k, 7]), k)

    both = combine(samples(1), samples(2))
    for found, expected in ((both.tokens, 20), (both.updates, 32), (both.loops, 34)):
        assert found.unique().tolist() == [expected]
    assert (both.evaluations.tolist(), both.logit_evaluations) == ([3, 14], 3)


class TrainingDependentModel(SmallModel):
    """A model whose output changes sign in training mode."""

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return super().forward(x_t, t) * (-1.0 if self.training else 1.0)


def test_models_run_in_evaluation_mode() -> None:
    """The training mode is restored afterwards."""
    model, x = TrainingDependentModel(V), torch.arange(24).reshape(2, 12) % V
    for step in (cwdfm.Resample(), None):
        found = [apply(step, model.train(mode), UNIFORM, x) for mode in (False, True)]
        assert model.training
        assert torch.equal(*(getattr(each, "tokens", each) for each in found))


STEPS_FROM_NOISE = [
    cwdfm.Refine(rounds=1, noise_fraction=1.0, steps=1),
    cwdfm.Refine(rounds=2, noise_fraction=1.0, steps=1),
    cwdfm.Resample(rounds=1, noise_fraction=1.0, threshold=1.0),
]


@both_sources
@pytest.mark.parametrize("step", STEPS_FROM_NOISE, ids=str)
def test_draws_are_independent_of_the_samples(source: cwdfm.Source, step: Step) -> None:
    """With the same seed and no context, new tokens are independent of old ones (rate 1e-6)."""
    law = np.array([0.2, 0.3, 0.5])
    logits = torch.tensor([*np.log(law), 0.0][: source.num_tokens])
    model = constant(logits)
    first = cwdfm.sample(model, source, SCHEDULE, cwdfm.Euler(), shape=(B, 1), steps=1, seed=5)
    then = apply(step, model, source, first.tokens, seed=5)
    both = torch.cat([first.tokens, then.tokens], dim=1)
    assert_follows(histogram(both, V), np.outer(law, law).flatten())


@both_sources
@pytest.mark.parametrize(
    "step",
    [
        cwdfm.Refine(rounds=3, noise_fraction=0.5, steps=4),
        cwdfm.Resample(rounds=6, threshold=0.9, tokens_per_round=2),
    ],
    ids=str,
)
def test_batches_sample_numbers_and_fixed_tokens(source: cwdfm.Source, step: Step) -> None:
    model, progress = SmallModel(source.num_tokens), list[int]()
    g = torch.Generator().manual_seed(0)
    start = torch.randint(V, (40, 12), generator=g)
    fixed = torch.rand(40, 12, generator=g) < 0.3

    def found(x: Tensor = start, seed: int = 5, fixed: Tensor = fixed, **options: Any) -> Any:
        return apply(step, model, source, x, seed=seed, fixed=fixed, **options)

    whole = found(progress=progress.append)
    assert sum(progress) == 40 * step.progress_steps
    assert torch.equal(whole.tokens[fixed], start[fixed])
    assert not torch.equal(whole.tokens, start)
    assert int(whole.tokens.max()) < V
    parts = found(batch_size=7)
    assert torch.equal(whole.tokens, parts.tokens)
    assert torch.equal(whole.evaluations, parts.evaluations)
    some = found(start[25:], fixed=fixed[25:], index=torch.arange(25, 40))
    assert torch.equal(whole.tokens[25:], some.tokens)
    assert not torch.equal(whole.tokens, found(seed=6).tokens)
    still = found(fixed=torch.ones(12, dtype=torch.bool))
    assert torch.equal(still.tokens, start)
    assert int(still.evaluations.sum()) == 0


@pytest.mark.parametrize(
    ("name", "options", "n", "after"),
    [
        ("mask", {"resample": cwdfm.Resample(rounds=6)}, 24, 17),
        slow("uniform", {"resample": cwdfm.Resample(rounds=40)}, 24, 20),
        slow("uniform", {"reject": cwdfm.Reject(0.999, max_tries=6)}, 16, 13),
    ],
)
def test_more_molecules_are_valid(name: str, options: Any, n: int, after: float) -> None:
    trained = cwdfm.load(f"qm9-{name}-small")

    def valid(samples: cwdfm.Samples) -> float:
        texts = [trained.tokenizer.decode(row) for row in samples.tokens.tolist()]
        return float(score_molecules(texts, None, fold_size=n).valid.mean)

    assert valid(generate(trained, n=n, steps=16, seed=4)) < 17 * n / 24 + 1
    assert valid(generate(trained, n=n, steps=16, seed=4, **options)) > after


COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "--refine 2 --refine-steps 3 --refine-temperature 0.5": (
        "mask",
        {"refine": cwdfm.Refine(rounds=2, steps=3, temperature=0.5)},
    ),
    "--resample 4 --resample-threshold 0.7 --resample-tokens-per-round 2 --refine 1": (
        "uniform",
        {
            "refine": cwdfm.Refine(rounds=1),
            "resample": cwdfm.Resample(rounds=4, threshold=0.7, tokens_per_round=2),
        },
    ),
    "--resample 2 --refine 1 --reject-below 0.9999 --max-tries 3 --reject-noise-fraction 0.1": (
        "uniform",
        {
            "refine": cwdfm.Refine(rounds=1),
            "resample": cwdfm.Resample(rounds=2),
            "reject": cwdfm.Reject(0.9999, 3, 0.1),
        },
    ),
}


@pytest.mark.parametrize(
    "flags", [flags if "--reject" in flags else slow(flags) for flags in COMMANDS]
)
def test_the_command_gives_the_same_samples_as_the_library(
    flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, options = COMMANDS[flags]
    out, trained = tmp_path / "a.jsonl", cwdfm.load(f"qm9-{name}-small")
    common = ["--n", "8", "--steps", "6", "--seed", "3", "--prompt", "CC", "--batch-size", "5"]
    sample_main([f"qm9-{name}-small", "--out", str(out), *common, *flags.split()])
    shared: dict[str, Any] = {"n": 8, "steps": 6, "seed": 3, "prompt": "CC"}
    found, plain = generate(trained, **shared, **options), generate(trained, **shared)
    file = read_samples(out)
    assert file.tokens == found.tokens.tolist() != plain.tokens.tolist()
    assert file.head["options"]["refine"] == options["refine"].rounds
    assert file.head["evaluations"] == int(found.evaluations.sum())
    assert list(tmp_path.iterdir()) == [out]
    tokens, fixed = prompt_tokens(trained, prompt="CC")
    assert tokens is not None
    assert fixed is not None
    assert torch.equal(found.tokens[:, fixed], tokens[fixed].expand(8, -1))
    if found.plausibility is not None:
        accepted = int((found.plausibility >= 0.9999).sum())
        assert file.head["accepted"] == accepted
        assert 0 < accepted < 8
        share = f"{accepted} of 8 ({accepted / 8:.1%})"
        assert f"accepted: {share}; the others are" in capsys.readouterr().out


STEPS = {"refine": cwdfm.Refine(), "resample": cwdfm.Resample(), "reject": cwdfm.Reject(0.5)}


@pytest.mark.parametrize("name", STEPS)
def test_requires_a_flow_and_a_config(name: str) -> None:
    trained = cwdfm.load("qm9-mask-small")
    other = replace(trained, method=Autoregressive(trained.source.vocab_size))
    options: dict[str, Any] = {name: STEPS[name]}
    with pytest.raises(InputError, match="require a flow, and this model was trained with Autoreg"):
        generate(other, n=1, steps=4, **options)
    with pytest.raises(InputError, match=f"{name} must be"):
        generate(trained, n=1, steps=4, **{name: cast("Any", 3)})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--resample -3", "resample must be"),
        ("--reject-below -3", "--reject-below must be"),
        ("--reject-below 0.9 --max-tries 0", "--max-tries must be"),
        ("--reject-below 0.9 --reject-noise-fraction 2", "--reject-noise-fraction must be"),
    ],
)
def test_bad_flags(
    flags: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ["sample", "qm9-mask-small", "--out", str(tmp_path / "a.smi"), *flags.split()]
    monkeypatch.setattr("sys.argv", ["cwdfm", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (cwdfm.Refine, {"noise_fraction": 0.0}, "noise_fraction .* between 1e-6 and 1, got 0.0"),
        (cwdfm.Refine, {"noise_fraction": 1.5}, "noise_fraction must be"),
        (cwdfm.Refine, {"noise_fraction": "a"}, "noise_fraction must be"),
        (cwdfm.Refine, {"temperature": -1.0}, "temperature must be"),
        (cwdfm.Refine, {"rounds": 0}, "rounds must be"),
        (cwdfm.Refine, {"steps": 0}, "steps must be"),
        (cwdfm.Resample, {"noise_fraction": 0.0}, "noise_fraction .* between 1e-6 and 1, got 0.0"),
        (cwdfm.Resample, {"threshold": 0.0}, r"threshold must be .* in \(0, 1\].*got 0.0"),
        (cwdfm.Resample, {"threshold": "a"}, "threshold must be"),
        (cwdfm.Resample, {"temperature": -1.0}, "temperature must be"),
        (cwdfm.Resample, {"temperature": 1e-50}, "temperature must be .* a number from 1e-6"),
        (cwdfm.Resample, {"top_p": 1.5}, "top_p must be .* got 1.5"),
        (cwdfm.Resample, {"rounds": 0}, "rounds must be"),
        (cwdfm.Resample, {"tokens_per_round": 0}, "tokens_per_round must be"),
        (cwdfm.Reject, {"threshold": 1.5}, r"threshold must be .* in \[0, 1\].*got 1.5"),
        (cwdfm.Reject, {"threshold": -1}, r"threshold must be .* in \[0, 1\]"),
        (cwdfm.Reject, {"threshold": "a"}, r"threshold must be .* in \[0, 1\]"),
        (cwdfm.Reject, {"threshold": float("nan")}, r"threshold must be .* in \[0, 1\]"),
        (cwdfm.Reject, {"threshold": 0.5, "max_tries": 0}, "max_tries must be"),
        (cwdfm.Reject, {"threshold": 0.5, "noise_fraction": 2.0}, "noise_fraction must be"),
    ],
)
def test_bad_settings(kind: Callable[..., object], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        kind(**changes)


@pytest.mark.parametrize("step", [cwdfm.Refine(), cwdfm.Resample(), None], ids=str)
def test_bad_input(step: Step | None) -> None:
    causal = SmallModel(V)
    causal.config = SimpleNamespace(attention="causal")  # type: ignore[assignment]
    short, model = torch.zeros(N + 3, dtype=torch.bool), SmallModel(V)
    cases: list[tuple[Any, Tensor, dict[str, Any], str]] = [
        (model, X + V, {}, "tokens contains ids"),
        (model, X, {"seed": -1}, "seed"),
        (model, X, {"batch_size": 0}, "batch_size"),
        (model, X, {"fixed": short}, "fixed must be"),
        (InconsistentSplitModel(V), X, {}, r"head\(trunk\(x, t\)\) differs from model\(x, t\)"),
        (causal, X, {}, "needs a network with full attention"),
    ]
    for network, tokens, options, message in cases:
        with pytest.raises(InputError, match=message):
            apply(step, network, UNIFORM, tokens, **options)


def test_bad_configs() -> None:
    arguments, wrong = (SmallModel(V), UNIFORM, SCHEDULE), cast("Any", 3)
    with pytest.raises(InputError, match="config must be"):
        cwdfm.refine(*arguments, cwdfm.Euler(), X, wrong)
    with pytest.raises(InputError, match="config must be"):
        cwdfm.resample(*arguments, X, wrong)
    with pytest.raises(InputError, match="noise_fraction must be"):
        cwdfm.plausibility(*arguments, X, noise_fraction=0.0)
