"""Every method through the same commands: train, resume, fine-tune, sample, score."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.baselines import METHODS
from cwdfm.baselines.bd3lm import BlockObjective
from cwdfm.cli import perplexity, sample, train
from cwdfm.cli.sample_options import check_solver_flags
from cwdfm.data import TokenData
from cwdfm.data.smiles import SmilesTokenizer
from cwdfm.sample_file import read_samples
from cwdfm.solver_config import SOLVERS, SPECIFIC_OPTIONS, make_solver, option_names
from cwdfm.train.config import TrainConfig
from cwdfm.train.loop import fit
from cwdfm.train.recipes import RECIPES
from cwdfm.train.run import Run
from cwdfm.train.validation import validate, validation_loss
from tests.support.cases import slow

pytest.importorskip("tyro")
pytest.importorskip("rdkit")

KNOWN = {config.method_class for config in METHODS.values()}
LENGTH = 16
TOKENIZER = SmilesTokenizer(("C", "N", "O"))
# Every method, SEDD and flows with both sources.
CASES: dict[str, dict[str, Any]] = {
    "flow": {"method": "flow", "source": "uniform"},
    "mdlm": {"method": "mdlm"},
    "sedd-mask": {"method": "sedd", "source": "mask"},
    "sedd-uniform": {"method": "sedd", "source": "uniform", "noise": "geometric"},
    "bd3lm": {"method": "bd3lm", "block": 4},
    "ar": {"method": "ar"},
}


def recipe(case: str, **more: Any) -> TrainConfig:
    base = RECIPES["qm9-debug"]()
    few: dict[str, Any] = {
        "steps": 4,
        "batch_size": 8,
        "warmup": 1,
        "validate_every": 2,
        "checkpoint_every": 2,
    }
    rows: dict[str, Any] = {"validation_rows": 8, "elbo_rows": 4, "previews": 4, "preview_steps": 4}
    return base.updated(length=LENGTH, log_every=2, **few, **rows, **CASES[case], **more)


def tokens() -> TokenData:
    g = np.random.default_rng(0)
    rows = [
        TOKENIZER.pack(TOKENIZER.encode("".join(g.choice(list("CNO"), 9))), LENGTH)
        for _ in range(40)
    ]
    array = np.array(rows, np.int16)
    n = len(array)
    report = {"read": n, "kept": n, "train": 32, "valid": n - 32}
    return TokenData("chains", array[:32], array[32:], TOKENIZER, report, {}, {"length": LENGTH})


def trained(case: str, folder: Path, **more: Any) -> Run:
    run = Run(recipe(case, **more), tokens(), folder, torch.device("cpu"))
    run.resume()
    fit(run)
    return run


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for case in CASES:
        trained(case, folder / case).averaged().save_pretrained(folder / case / "model")
    return folder


@pytest.fixture(scope="module")
def loaded(models: Path) -> dict[str, cwdfm.Pretrained]:
    return {case: cwdfm.load(models / case) for case in CASES}


def test_every_method_has_a_case() -> None:
    assert {case["method"] for case in CASES.values()} == set(METHODS)
    assert {kind.default_solver for kind in KNOWN} <= set(SOLVERS)


@pytest.mark.parametrize("case", CASES)
def test_interrupted_run_ends_with_the_same_weights(
    case: str, models: Path, tmp_path: Path
) -> None:
    first = Run(recipe(case), tokens(), tmp_path, torch.device("cpu"))
    while first.step < 2:
        first.losses.append(first.train_step())
    before = first.objective
    validate(first)  # where BD3LM looks for its clipping
    assert (first.objective != before) == (case == "bd3lm")
    first.losses.clear()
    first.save()
    again = trained(case, tmp_path)
    whole = cwdfm.load(models / case)
    for name, weight in again.averaged().model.state_dict().items():
        assert torch.equal(weight, whole.model.state_dict()[name]), name


@pytest.mark.parametrize("case", CASES)
def test_trained_model_round_trip(case: str, models: Path) -> None:
    found = cwdfm.load(models / case)
    assert found.method == recipe(case).build(TOKENIZER.vocab_size).method
    settings = RECIPES["finetune"]().continued_from(found)
    assert settings.build(TOKENIZER.vocab_size, found).model == found.model.config


@pytest.mark.parametrize("case", CASES)
def test_commands(
    case: str, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.jsonl"
    sample.main([str(models / case), "--n", "6", "--steps", str(LENGTH), "--out", str(out)])
    found = read_samples(out)
    assert np.array(found.tokens).shape == (6, LENGTH)
    assert np.array(found.tokens).max() < TOKENIZER.vocab_size
    assert found.options["solver"] == cwdfm.load(models / case).method.default_solver
    prepared = tmp_path / "chains.npz"
    tokens().save(prepared)
    perplexity.main([str(models / case), "--data", str(prepared), "--rows", "4"])
    printed = capsys.readouterr().out
    assert ("<= " in printed) == (case != "ar")


SUITED = {
    "flow": {"euler", "ancestral"}
    | {f"neighbor{rest}" for rest in ("", "-counted", "-share")}
    | {f"entropy{rest}" for rest in ("", "-counted", "-inverse", "-bound")}
    | {"gibbs", "theta-trapezoidal", "theta-rk2"},
    "mdlm": set(SOLVERS) - {"left-to-right", "analytic", "score-euler"},
    "bd3lm": set(SOLVERS) - {"left-to-right", "analytic", "score-euler"},
    "sedd-mask": {"analytic", "score-euler"},
    "ar": {"left-to-right"},
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("case", [slow(case) if case == "mdlm" else case for case in SUITED])
def test_unsuitable_solvers_are_rejected(
    case: str, name: str, loaded: dict[str, cwdfm.Pretrained]
) -> None:
    """Suitable solvers draw samples; the others raise an error with the reason."""
    found = loaded[case]
    solver = found.method.adapt(make_solver(name))
    if name in SUITED[case]:
        out = cwdfm.generate(found, solver, n=1, steps=LENGTH)
        assert int(out.tokens.max()) < TOKENIZER.vocab_size
    else:
        with pytest.raises(
            cwdfm.InputError, match=r"cannot sample from|use a MaskSource|Remask|blocks"
        ):
            cwdfm.generate(found, solver, n=1, steps=LENGTH)


def test_block_size_must_divide_the_length() -> None:
    with pytest.raises(cwdfm.InputError, match="length 16 must be a multiple of block 5"):
        recipe("bd3lm").updated(block=5).build(TOKENIZER.vocab_size)


@pytest.mark.parametrize("case", ["bd3lm", "ar"])
def test_flow_functions_reject_other_networks(case: str, models: Path) -> None:
    model, source = cwdfm.load(models / case).model, cwdfm.MaskSource(TOKENIZER.vocab_size)
    with pytest.raises(cwdfm.InputError, match=r"full attention.*use cwdfm\.generate"):
        cwdfm.sample(model, source, cwdfm.Linear(), cwdfm.Euler(), shape=(2, LENGTH), steps=2)
    with pytest.raises(cwdfm.InputError, match="full attention"):
        cwdfm.elbo(model, source, cwdfm.Linear(), torch.zeros(2, LENGTH, dtype=torch.int64))


def test_flags_must_agree_with_the_trained_model(models: Path, tmp_path: Path) -> None:
    prepared = tmp_path / "chains.npz"
    tokens().save(prepared)
    flags = ["--init", str(models / "bd3lm"), "--data", str(prepared), "--steps", "1"]
    for more, message in (
        (["--block", "8"], r"--block 4 \(given: 8\)"),
        (["--method", "ar", "--block", "8"], r"--method bd3lm \(given: ar\)"),
    ):
        with pytest.raises(cwdfm.InputError, match=message):
            train.main(["finetune", *flags, *more, "--out", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_flags_of_other_solvers_are_errors() -> None:
    for solver, name in product(SOLVERS, SPECIFIC_OPTIONS):
        flag = f"--{name.replace('_', '-')}"
        words = ["--solver", solver, flag, "1"]
        if name in option_names(solver):
            check_solver_flags(solver, words)
        else:
            with pytest.raises(
                cwdfm.InputError, match=f"{flag} is an option of .* not of {solver}"
            ):
                check_solver_flags(solver, words)
        check_solver_flags(solver, ["--temperature", "0.5", "--top-p", "0.5"])


def test_flags_apply_to_the_default_solver(models: Path, tmp_path: Path) -> None:
    """The default solver of BD3LM is not Euler; its blocks always cut windows."""
    line = [str(models / "bd3lm"), "--n", "2", "--steps", "8", "--out", str(tmp_path / "a.jsonl")]
    with pytest.raises(cwdfm.InputError, match=r"--hazard is an option of .* not of ancestral"):
        sample.main([*line, "--hazard", "integrated"])
    assert not list(tmp_path.iterdir())
    sample.main([*line, "--solver", "neighbor", "--boundary", "cut"])


def test_grid_needs_a_solver_with_time_steps(models: Path, tmp_path: Path) -> None:
    flags = ["--n", "1", "--steps", "8", "--grid", "kappa", "--out"]
    with pytest.raises(cwdfm.InputError, match=r"--grid does not apply to .*ar"):
        sample.main([str(models / "ar"), *flags, str(tmp_path / "ar.smi")])
    for case in ("mdlm", "sedd-mask", "bd3lm"):
        sample.main([str(models / case), *flags, str(tmp_path / f"{case}.smi")])


def test_stop_needs_a_block_solver(models: Path) -> None:
    with pytest.raises(cwdfm.InputError, match=r"stop must be omitted.*bd3lm"):
        cwdfm.load(models / "ar").method.adapt(make_solver("left-to-right"), 1)


def test_recorded_steps_are_the_steps_taken(models: Path, tmp_path: Path) -> None:
    """An autoregressive model takes one step per token; other values are an error."""
    for case, steps in (("ar", LENGTH), ("bd3lm", LENGTH // 4), ("mdlm", 2)):
        out = tmp_path / f"{case}.jsonl"
        flags = [] if case == "ar" else ["--steps", "2"]
        sample.main([str(models / case), "--n", "2", *flags, "--out", str(out)])
        assert read_samples(out).options["steps"] == steps
    line = [str(models / "ar"), "--n", "2", "--out", str(tmp_path / "other.jsonl")]
    with pytest.raises(cwdfm.InputError, match=f"--steps 64 .* of its {LENGTH} tokens"):
        sample.main([*line, "--steps=64"])
    assert not (tmp_path / "other.jsonl.parts").exists()


def test_a_changed_number_of_steps_is_reported(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block needs at least one step."""
    line = [str(models / "bd3lm"), "--n", "1", "--force", "--out", str(tmp_path / "a.jsonl")]
    blocks = LENGTH // 4
    for steps in (1, blocks - 1):
        sample.main([*line, "--steps", str(steps)])
        note = f"using {blocks} steps instead of {steps}\n"
        assert note in capsys.readouterr().out
    for steps in (blocks, LENGTH):
        sample.main([*line, "--steps", str(steps)])
        assert "note:" not in capsys.readouterr().out
    sample.main([*line, "--steps", str(blocks), "--solver", "first-hitting"])
    assert "the last step of a block draws all remaining tokens at once" in capsys.readouterr().out


def test_large_windows_need_boundary_cut(models: Path, tmp_path: Path) -> None:
    flags = ["--n", "2", "--steps", "4", "--solver", "neighbor", "--radius", "12"]
    with pytest.raises(cwdfm.InputError, match="overlap"):
        sample.main([str(models / "mdlm"), *flags, "--out", str(tmp_path / "a.jsonl")])
    cut = [*flags, "--boundary", "cut", "--out", str(tmp_path / "b.jsonl")]
    sample.main([str(models / "mdlm"), *cut])


def test_commands_that_need_a_flow_say_so(models: Path) -> None:
    with pytest.raises(cwdfm.InputError, match=r"discrete flow.*trained as Autoregressive"):
        _ = cwdfm.load(models / "ar").source


def test_validation_losses_do_not_depend_on_the_clipping(tmp_path: Path) -> None:
    """The noise ranges of BD3LM change the training loss, not the validation loss."""
    run = Run(recipe("bd3lm"), tokens(), tmp_path, torch.device("cpu"))
    before = validation_loss(run, run.averaged())
    objective = run.objective
    assert isinstance(objective, BlockObjective)
    run.objective = replace(objective, low=0.4, high=0.6)
    assert validation_loss(run, run.averaged()) == before
    index = torch.arange(8)
    t, x_1 = torch.linspace(0.05, 0.95, 8), run.valid_rows.at(index)
    batch = run.data_batch(x_1, t, index, step=0)
    clipped, whole = (o(run.model, batch) for o in (run.objective, run.objective.held_out))
    assert not torch.equal(clipped, whole)
