"""The studies: an independent sampler, the search for samplers, and outcomes of GPU tests."""

import argparse
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch

import cwdfm
import experiments.studies.guidance as guidance
import experiments.studies.kernels as kernels
import experiments.studies.moses as moses
import experiments.studies.qm9_causes as causes
from cwdfm.cli.train import read_options
from cwdfm.data.smiles import canonical
from cwdfm.metrics.molecule import canonical_set
from cwdfm.sample_file import read_samples
from cwdfm.weight import Neighbor
from experiments.studies.gpu_tests import files, outcomes
from experiments.studies.qm9_search import KEPT, Setting, accepting, parse_setting, settings_of
from tests.support.cases import slow
from tests.support.chains import exact_law, model_of, source_of
from tests.support.exact import Chain, correlated_target, neighbor
from tests.support.stats import assert_differs, assert_follows, histogram

GRID = np.linspace(0, 1, 6)
REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="good" />
<testcase classname="tests.a" name="left"><skipped message="no" /></testcase>
<testcase classname="tests.a" name="wrong"><failure message="assert 1 == 2&#10;more" /></testcase>
<testcase classname="tests.b" name="early"><error /></testcase>
</testsuite></testsuites>"""


def test_outcomes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    counts, failed = outcomes(tmp_path / "report.xml")
    assert counts == {"passed": 1, "skipped": 1, "failed": 2}
    assert failed == {"tests.a.wrong": "assert 1 == 2", "tests.b.early": "error"}


def test_gpu_tests_are_found() -> None:
    found = {Path(name).name for name in files()}
    assert {"test_gpu_parity.py", "test_draw_kernels.py", "test_bd3lm.py"} <= found
    assert "test_parity.py" not in found


@pytest.mark.parametrize("weighted", [slow(False), True], ids=["Euler", "Neighbor"])
@pytest.mark.parametrize("name", causes.WALKS)
def test_samples_follow_the_exact_law(
    name: str, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an exact model no change alters the law of the samples."""
    monkeypatch.setattr(causes, "prompt_tokens", lambda _: (None, None))
    chain = Chain(correlated_target(2, 5, seed=1), True, neighbor(1, 4.0) if weighted else None)
    trained: Any = SimpleNamespace(model=model_of(chain), source=source_of(chain), length=5)
    weight = Neighbor(1, 4.0) if weighted else None
    # Rounded logits change the law slightly, by less than this many samples can detect.
    n = 5_000 if name == "logits in bfloat16" else 60_000
    last, end = causes.walk(trained, causes.WALKS[name], weight, n, len(GRID) - 1)
    assert_follows(histogram(end, 2), exact_law(chain, GRID))
    if n > 5_000:
        other = Chain(chain.target, True, None if weighted else neighbor(1, 4.0))
        assert_differs(histogram(end, 2), exact_law(other, GRID))
    kept = (last == end) | (last == trained.source.mask_id)
    assert kept.all()  # an exact model reproduces revealed tokens


def test_least_plausible_samples_are_rejected() -> None:
    known = canonical_set(["C"])
    texts = ["C", "C("] * 10  # every other one is invalid and implausible
    plausible = [0.9 - i / 100 if i % 2 == 0 else 0.3 - i / 1000 for i in range(20)]
    found = {row["share"]: row for row in accepting(texts, plausible, known)}
    assert tuple(found) == KEPT
    assert found[0.5]["valid"] == 1024
    assert found[0.5]["least"] == pytest.approx(0.72)
    assert found[0.8]["valid"] == pytest.approx(1024 * 10 / 16)
    assert found[0.8]["least"] == pytest.approx(0.289)


def test_remaining_samples_form_equal_folds() -> None:
    kinds = ["C" * (i % 30) + "N" + "O" * (i // 30) for i in range(900)]
    texts = [kinds[i % 900] for i in range(2000)]
    found = {row["share"]: row for row in accepting(texts, [1.0] * 2000, canonical_set(["F"]))}
    for share, fold in ((0.8, 800), (0.5, 1000)):  # two folds, and one with repeated molecules
        assert found[share]["valid"] == 1024
        assert found[share]["unique"] == pytest.approx(min(fold, 900) * 1024 / fold)


def test_settings_are_parsed() -> None:
    found = parse_setting("solver=euler,steps=64,temperature=1.3,glance=null")
    assert found == Setting(solver="euler", steps=64, temperature=1.3)
    with pytest.raises(argparse.ArgumentTypeError, match="rounding"):
        parse_setting("rounding=3")


@pytest.mark.parametrize("name", ["qm9_search", "qm9_refine", "qm9_mend", "qm9_spelled24"])
def test_recorded_searches_can_be_repeated(name: str) -> None:
    assert len(settings_of(name)) > 5


def prepared(folder: Path, representation: Literal["smiles", "selfies"]) -> Path:
    """Small data of the length of the study."""
    pytest.importorskip("rdkit")
    (folder / "a.smi").write_text("".join(f"{'C' * n}c1ccccc1\n" for n in range(1, 40)))
    how: dict[str, Any] = {"length": moses.LENGTH, "cache": False}
    data = cwdfm.data.load(folder / "a.smi", representation=representation, **how)
    data.save(path := folder / f"{representation}.npz")
    return path


def act(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    """Run the study of MOSES at the smallest scale."""
    monkeypatch.setattr("sys.argv", ["moses", *map(str, words), "--scale", "smoke"])
    moses.main()


@pytest.mark.slow
def test_runs_of_moses_are_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, resume, sample, pack and unpack at the smallest scale."""
    data = prepared(tmp_path, "smiles")
    work, name = tmp_path / "work", "mask-grown"

    trained = ("train", name, "--data", data, "--work", work)
    act(monkeypatch, *trained, "--minutes", 0)  # stopped at once
    assert not (work / name / "model").exists()
    act(monkeypatch, *trained)
    model = cwdfm.load(work / name)
    assert isinstance(model.source, cwdfm.MaskSource)
    assert model.fix_first
    act(monkeypatch, "sample", name, "--work", work)
    act(monkeypatch, "pack", name, "--work", work, "--out", tmp_path / "parts")
    parts = list((tmp_path / "parts").iterdir())
    assert all(part.stat().st_size <= moses.PART for part in parts)
    act(monkeypatch, "unpack", "--parts", tmp_path / "parts", "--out", tmp_path / "home")
    packed = cwdfm.load(tmp_path / "home" / name)
    for ours, theirs in zip(packed.model.parameters(), model.model.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16().float())
    samples = sorted((tmp_path / "home" / "samples").iterdir())
    assert [len(read_samples(path).texts) for path in samples] == [4] * len(moses.MASK_SETTINGS)


@pytest.mark.slow
def test_representations_of_moses_are_rehearsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call trains both; SELFIES are decoded at home if the package is missing elsewhere."""
    pytest.importorskip("selfies")
    paths = [prepared(tmp_path, kind) for kind in ("smiles", "selfies")]
    names, work = ("uniform-4m", "uniform-4m-selfies"), tmp_path / "work"
    act(monkeypatch, "train", *names, "--work", work, "--data", *paths)
    kinds = [cwdfm.load(work / name).tokenizer.kind for name in names]
    assert kinds == ["smiles", "selfies"]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "selfies", None)  # not installed
        act(patch, "sample", names[1], "--work", work)
    act(monkeypatch, "pack", names[1], "--work", work, "--out", tmp_path / "parts")
    act(monkeypatch, "unpack", "--parts", tmp_path / "parts", "--out", tmp_path / "home")
    for path in (tmp_path / "home" / "samples").iterdir():
        assert not any(read_samples(work / "samples" / path.name).texts)
        assert any(map(canonical, read_samples(path).texts))
    with pytest.raises(SystemExit):  # no data with this representation
        act(monkeypatch, "train", names[1], "--work", work, "--data", paths[0])


@pytest.mark.parametrize("name", [*moses.RUNS][:3] + [slow(name) for name in [*moses.RUNS][3:]])
def test_commands_of_moses_are_valid(name: str, tmp_path: Path) -> None:
    """The words of every run describe a training, with the settings of its scale."""
    data = dict.fromkeys(("smiles", "selfies"), "moses")
    chosen = {"tokens": 1e9, "files": data, "work": tmp_path}
    full, smoke = (
        moses.command(name, argparse.Namespace(**chosen, scale=scale))[3:]
        for scale in ("full", "smoke")
    )
    config = read_options(full[1], full[2:])[0].config
    reads = moses.RUNS[name].reads * config.optimizer.steps * moses.BATCH * moses.LENGTH
    assert reads == pytest.approx(1e9, rel=1e-3)
    assert config.optimizer.batch_size == moses.BATCH
    assert config.runtime.compile
    config = read_options(smoke[1], smoke[2:])[0].config
    assert config.model.model == "debug"
    assert not config.runtime.compile


def test_kernels_are_compared_with_equal_functions() -> None:
    """The references of the comparison compute what the kernels compute, with their gradients."""
    cpu, names = torch.device("cpu"), set()
    for make_cases in (kernels.text_cases, kernels.head_cases, kernels.decoder_cases):
        torch.manual_seed(0)
        for case in make_cases(kernels.TINY, cpu):
            if case.ours is case.reference or not case.backward:
                continue  # the same function, or a kernel without another implementation
            names.add(case.name)
            found, expected = (
                kernels.step_of(case, function)() for function in (case.ours, case.reference)
            )
            assert kernels.difference(found, expected) < 0.01, case.name
    assert names == {"cross-entropy of the head", "log-probabilities of the head"}
    one = torch.ones(4)
    assert kernels.difference([one, one.long()], [2 * one, one.long()]) == pytest.approx(0.5)
    assert kernels.difference([one.long()], [torch.arange(4)]) == pytest.approx(0.75)


def test_rejection_keeps_the_valid_molecule_closest_to_the_request() -> None:
    """logP, QED and similarities are RDKit's."""
    pytest.importorskip("rdkit")
    from rdkit.Chem import MolFromSmiles, rdMolDescriptors

    texts = ["CCO", "C(", "c1ccccc1", "CCCCCC", "(", ")", "CCN", "CCCl"]
    logp = {
        text: rdMolDescriptors.CalcCrippenDescriptors(MolFromSmiles(text))[0]
        for text in texts
        if text.isalnum()
    }
    near = min(("CCO", "c1ccccc1", "CCCCCC"), key=lambda text: abs(logp[text] - 1.5))
    assert guidance.closest(texts, 4, "logP", 1.5) == [near, "CCCl"]
    assert guidance.closest(texts, 2, "logP", 1.5) == ["CCO", near, "(", "CCCl"]
    assert guidance.closest(texts[:5], 2, "logP", 1.5) == ["CCO", near]  # complete groups only
    found = guidance.scores(["CCO", "C(", "CCO", "CCCl"], "logP", 1.0)
    errors = np.abs(np.array([logp["CCO"], logp["CCO"], logp["CCCl"]]) - 1.0)
    assert found["valid"] == 0.75
    assert found["unique"] == pytest.approx(2 / 3)
    assert found["error"] == pytest.approx(errors.mean())
    assert found["standard_error"] == pytest.approx(errors.std(ddof=1) / np.sqrt(3))
    pool = {"texts": texts * 2, "evaluations": 10.0, "seconds": 1.0}
    rows = guidance.unguided(pool, 4)
    assert {row["evaluations"] for row in rows if row["draws"] == 4} == {40.0}
    assert {(row["property"], row["requested"]) for row in rows} == set(guidance.requests())
