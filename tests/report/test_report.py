"""The molecule report: scores against the metrics and hand-counted sets; a self-contained page."""

import csv
import gzip
import hashlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cwdfm.cli import demo, evaluate
from cwdfm.data import load, load_reference
from cwdfm.data.reference import ReferenceMolecules
from cwdfm.data.smiles import CanonicalSet
from cwdfm.errors import InputError
from cwdfm.metrics.distribution import distribution_scores
from cwdfm.metrics.molecule import score_molecules
from cwdfm.metrics.reference_statistics import ReferenceStatistics
from cwdfm.report import Evaluation, TextSettings, report_folder
from cwdfm.report.evaluate import sample_kind
from cwdfm.report.molecule_table import LISTED, molecule_table
from cwdfm.report.molecules import ScoredMolecules, _notes, evaluate_molecules, pictures
from cwdfm.report.page import Picture
from cwdfm.report.page import page as page_of
from cwdfm.report.sample_set import File, SampleSet, by_model, gather, sampling_notes, short_titles
from cwdfm.report.table import Table
from cwdfm.sample_file import SampleFile, read_samples, write_samples
from tests.support.cases import slow
from tests.support.command import command, rejected
from tests.support.html import check_self_contained

pytest.importorskip("rdkit", reason="needs the extra 'molecules'")
pytest.importorskip("matplotlib", reason="needs the extra 'plot'")

# Six are valid; ethanol and benzene occur twice; cyclopropane and acetamide are not in TRAINING.
BY_HAND = ["CCO", "OCC", "C1CC1", "C1CC", "", "CC(=O)N", "c1ccccc1", "C1=CC=CC=C1"]
TRAINING = ["CCO", "c1ccccc1"] + ["C" * n + end for n in range(4, 12) for end in ("", "N", "F")]
OPTIONS = {"model": "small", "solver": "euler", "steps": 8, "seed": 0, "radius": 1, "scale": 4.0}


def samples(path: Path, texts: list[str] | None = None, **options: object) -> Path:
    """Write a file as `cwdfm sample` does."""
    texts = BY_HAND if texts is None else texts
    head: dict[str, Any] = {"options": OPTIONS | options, "provenance": {"date": "today"}}
    write_samples(path, SampleFile(texts, [[1]] * len(texts), head))
    return path


# The tests that draw figures; composing them is enough for the others.
DRAWN = ("test_the_distribution_is_reported", "test_the_page_is_self_contained")


@pytest.fixture(autouse=True)
def few_figures(request: pytest.FixtureRequest) -> None:
    if request.node.name not in DRAWN:
        request.getfixturevalue("blank_figures")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prepared data with ethanol and benzene in the training split."""
    folder = tmp_path_factory.mktemp("data")
    for seed in range(20):
        (folder / "my.smi").write_text("\n".join(TRAINING))
        found = load(folder / "my.smi", cache=False, seed=seed)
        if set(TRAINING[:2]) <= set(found.texts("train")):
            found.save(folder / "my.npz")
            return str(folder / "my.npz")
    raise AssertionError("no split keeps both")


def run(*arguments: object) -> None:
    counts = () if "--distribution" in arguments else ("--no-distribution",)
    evaluate.main([str(a) for a in (*arguments, *counts)])


def scores_of(out: Path) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads((out / "scores.json").read_text())
    return scores


def test_folders_are_locked_and_unfinished_ones_are_completed(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with report_folder(out, force=False):
        with pytest.raises(InputError, match="another run"), report_folder(out, force=True):
            pass
        (out / "a.png").touch()
    with pytest.raises(InputError, match="not empty"), report_folder(out, force=False):
        pass
    for _ in range(2):  # after an interruption, the same command may write there again
        with pytest.raises(KeyboardInterrupt), report_folder(out, force=_ == 0):
            raise KeyboardInterrupt
    with report_folder(out, force=False):
        pass
    assert [path.name for path in out.iterdir()] == ["a.png"]


def test_failed_evaluations_leave_nothing(tmp_path: Path) -> None:
    file = samples(tmp_path / "a.jsonl")
    with pytest.raises(InputError):
        run(file, "--out", tmp_path / "out", "--data", tmp_path / "missing.smi")
    assert list(tmp_path.iterdir()) == [file]


def test_counted_by_hand(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = samples(tmp_path / "a.jsonl"), tmp_path / "out"
    run(file, "--out", out, "--data", data, "--fold-size", 8)
    (found,) = scores_of(out)["sets"]
    assert [found["scores"][n]["counts"] for n in ("valid", "unique", "novel")] == [[6], [4], [2]]
    assert found["noise"]["valid"] == pytest.approx((6 * 2 / 8) ** 0.5)
    assert (found["model"], found["solver"], found["steps"]) == ("small", "Euler", 8)
    (origin,) = found["files"]
    assert origin["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert origin["options"] == OPTIONS
    assert origin["samples"] == 8
    assert found["histograms"]["samples"] == {"given": 8, "valid": 6}
    printed = capsys.readouterr().out
    assert re.search(
        r"Euler +8 +6 ± 1.2 \(75.0%\) +4 ± 1.4 \(50.0%\) +2 ± 1.2 \(25.0%\) +1 of 8", printed
    )
    assert str(out / "report.html") in printed
    row = "| small | Euler | 8 | 6 ± 1.2 (75.0%) | 4 ± 1.4 (50.0%) | 2 ± 1.2 (25.0%) | 1 of 8 |"
    assert row in (out / "table.md").read_text()


def test_training_on_other_data_than_the_default_is_noted(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = load_reference(data)
    monkeypatch.setattr("cwdfm.report.molecules.load_reference", lambda _, **__: reference)
    monkeypatch.setattr("cwdfm.report.molecules.pictures", lambda *_: ((), ()))
    head: dict[str, Any] = {"options": OPTIONS}
    note = "Novel molecules are those not in qm9, but small was trained on my.csv"
    mine, other = {"data": "my.csv"}, {"data": "qm9"}
    for card, chosen, noted in (
        (mine, "auto", True),
        (mine, "qm9", False),
        (other, "auto", False),
        ({}, "auto", False),
    ):
        file = SampleFile(BY_HAND, [[1]] * len(BY_HAND), head | {"model": card})
        write_samples(tmp_path / "a.jsonl", file)
        found = evaluate_molecules(gather([tmp_path / "a.jsonl"]), tmp_path, data=chosen)
        notes = [each[: len(note)] for each in found.notes if each.startswith("Novel molecules")]
        assert notes == [note] * noted


def test_the_distribution_is_reported(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All scores of the metrics, in a table of their own, and a plot of the properties."""
    pytest.importorskip("fcd_torch")
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    run(samples(tmp_path / "a.jsonl"), "--out", out, "--data", data, "--distribution")
    held_out = load(data).texts("valid")
    reference = {"Test": ReferenceStatistics.of(held_out)}
    expected = distribution_scores(BY_HAND, reference, set(load(data).texts("train")))
    (found,) = scores_of(out)["sets"]
    assert found["distribution"]["properties"] == expected.to_json()["properties"]
    for name, (value, std) in expected.scores.items():
        assert found["distribution"]["scores"][name]["value"] == pytest.approx(value, rel=1e-4)
        assert found["distribution"]["scores"][name]["std"] == pytest.approx(std, rel=1e-3)
    assert scores_of(out)["compared_with"] == {"Test": len(held_out)}
    printed = capsys.readouterr().out
    assert re.search(r"^FCD/Test +[0-9]", printed, re.MULTILINE)
    assert re.search(r"^\| novelty \| 0\.50 ", (out / "table.md").read_text(), re.MULTILINE)
    assert (out / "properties.png").stat().st_size > 10_000
    assert re.search(r">IntDiv</t[dh]>", (out / "report.html").read_text())
    (tmp_path / "invalid.smi").write_text("C1\nC(\n")
    run(tmp_path / "invalid.smi", "--out", tmp_path / "no", "--data", data, "--distribution")
    (found,) = scores_of(tmp_path / "no")["sets"]
    assert found["distribution"] == {"scores": {"valid": {"value": 0.0, "std": 0.0}}} | {
        "properties": {}
    }


def test_scores_equal_the_metric(tmp_path: Path, data: str) -> None:
    texts = ["C" * (i % 9 + 1) + "ON("[i % 3] for i in range(50)]
    out = tmp_path / "out"
    run(samples(tmp_path / "a.jsonl", texts), "--out", out, "--data", data, "--fold-size", 16)
    expected = score_molecules(texts, load(data).texts("train"), fold_size=16)
    (found,) = scores_of(out)["sets"]
    assert found["scores"] == expected.to_json()
    assert expected.novel is not None
    assert found["noise"]["novel"] == expected.novel.std
    page = (out / "report.html").read_text()
    assert "are not counted: small, Euler, 8 steps (2)." in page
    assert f"{expected.valid.mean:.1f} ± {expected.valid.std:.1f}" in page


def test_the_page_is_self_contained(tmp_path: Path, data: str) -> None:
    files = [
        samples(tmp_path / f"{solver}{steps}.jsonl", solver=solver, steps=steps)
        for solver in ("euler", "neighbor")
        for steps in (8, 16)
    ]
    files.append(samples(tmp_path / "other.jsonl", model="<b>other</b>"))
    for i, file in enumerate(files):  # no two files are equal
        file.write_text(file.read_text() + json.dumps({"text": "C" * i, "tokens": [1]}) + "\n")
    out = tmp_path / "out"
    run(*files, "--out", out, "--data", data)
    page = (out / "report.html").read_text()
    check_self_contained(page, images=5)  # two grids, two histograms, curves of one model
    assert "<b>" not in page
    each = {
        f"{kind}-{m}.png" for kind in ("molecules", "histograms") for m in ("small", "b-other-b")
    }
    assert {path.name for path in out.glob("*.png")} == {"curves-small.png", *each}


def test_curves_need_two_step_counts(tmp_path: Path) -> None:
    """And folds of the same size."""

    def has_curves(*arguments: object) -> bool:
        run(*arguments, "--out", tmp_path / "out", "--data", "none", "--force")
        drawn = (tmp_path / "out" / "curves.png").exists()
        (tmp_path / "out" / "curves.png").unlink(missing_ok=True)
        return drawn

    one = samples(tmp_path / "a.jsonl", steps=8)
    two = samples(tmp_path / "b.jsonl", steps=8, solver="neighbor")
    longer = samples(tmp_path / "d.jsonl", [*BY_HAND, "C"], steps=32)
    assert not has_curves(one, two)
    assert has_curves(one, two, samples(tmp_path / "c.jsonl", steps=16))
    assert has_curves(one, longer, "--fold-size", 8)
    assert not has_curves(one, longer)
    assert "small: no curves" in (tmp_path / "out" / "report.html").read_text()


def test_files_with_other_seeds_are_pooled(tmp_path: Path) -> None:
    how = {"batch_size": 3, "device": "cuda", "n": 8, "force": True, "out": "b"}  # changes nothing
    one = samples(tmp_path / "a.jsonl")
    two = samples(tmp_path / "b.jsonl", ["C"] * 8, seed=1, **how)
    run(one, two, "--out", tmp_path / "out", "--data", "none", "--fold-size", 8)
    (found,) = scores_of(tmp_path / "out")["sets"]
    assert found["scores"]["valid"]["counts"] == [6, 8]
    assert found["scores"]["novel"] is found["noise"]["novel"] is None
    assert len(found["files"]) == 2


def test_labels_name_what_differs(tmp_path: Path) -> None:
    def labels(**changes: list[object]) -> list[str | None]:
        (name, values), *_ = changes.items()
        files = [
            samples(tmp_path / f"{name}{i}.jsonl", None, **{"solver": "neighbor", name: value})
            for i, value in enumerate(values)
        ]
        files.append(samples(tmp_path / f"{name}.jsonl", radius=7, steps=99))
        return [found.solver for found in gather(files)]

    assert labels(steps=[8, 16]) == ["Neighbor", "Neighbor", "Euler"]
    assert labels(scale=[4.0, 0.5]) == ["Neighbor (scale 4)", "Neighbor (scale 0.5)", "Euler"]
    differ = ["Neighbor (grid t)", "Neighbor (grid kappa)", "Euler"]
    assert labels(grid=["t", "kappa"]) == differ
    refined = ["Neighbor (refine 2)", "Neighbor", "Euler"]
    assert labels(refine=[2, 0]) == refined
    with pytest.raises(InputError, match="count twice"):  # unused without refinement
        labels(refine_share=[0.1, 0.2])
    with pytest.raises(InputError, match="count twice"):  # for an invalid seed, too
        labels(seed=[[], []])
    name = "neighbor-counted"
    counted = [samples(tmp_path / f"c{s}.jsonl", solver=name, scale=s, seed=s) for s in (1, 8)]
    both = ["Neighbor-counted (scale 1)", "Neighbor-counted (scale 8)"]
    assert [found.solver for found in gather(counted)] == both
    # Euler does not use the radius.
    assert len(gather([samples(tmp_path / f"e{i}.jsonl", radius=i, seed=i) for i in (1, 2)])) == 1


def test_samples_from_different_weights_form_separate_sets(tmp_path: Path) -> None:
    """A run that was sampled, trained further and sampled again."""
    files = []
    for seed, (model, weights) in enumerate([("run", "a" * 64), ("run", "b" * 64), ("other", "c")]):
        path = samples(tmp_path / f"{seed}.jsonl", model=model, seed=seed)
        found = read_samples(path)
        write_samples(path, replace(found, head=found.head | {"weights": weights}))
        files.append(path)
    labels = ["Euler (weights aaaaaaaa)", "Euler (weights bbbbbbbb)", "Euler"]
    assert [found.solver for found in gather(files)] == labels


def test_short_titles_leave_out_what_sets_have_in_common(tmp_path: Path) -> None:
    linked = samples(tmp_path / "a.jsonl", linker=["CC*", "C1CC1"])
    steps, other = samples(tmp_path / "b.jsonl", steps=16), samples(tmp_path / "c.jsonl", model="b")
    plain = samples(tmp_path / "d.jsonl")
    assert short_titles(gather([plain, linked])) == ["Euler", "Euler (linker CC* C1CC1)"]
    assert short_titles(gather([plain, steps])) == ["Euler, 8 steps", "Euler, 16 steps"]
    whole = ["small, Euler, 8 steps", "b, Euler, 8 steps"]
    assert short_titles(gather([plain, other])) == whole
    assert short_titles(gather([plain])) == whole[:1]


def test_long_samples_in_a_table(tmp_path: Path) -> None:
    texts = ["long " * 40_000, "short"]
    limit = csv.field_size_limit()
    write_samples(tmp_path / "a.csv", SampleFile(texts))
    assert read_samples(tmp_path / "a.csv").texts == texts
    assert csv.field_size_limit() == limit  # tables read later keep their limit


@pytest.mark.parametrize(("kind", "column"), [("selfies", "smiles"), ("bytes", "text")])
def test_tables_name_what_they_contain(tmp_path: Path, kind: str, column: str) -> None:
    """A table of molecules can be trained on, whose default column is `smiles`."""
    path = tmp_path / "a.csv"
    write_samples(path, SampleFile(["CCO", "CC"], head={"tokenizer": kind}))
    assert path.read_text() == f'"index","{column}"\n0,"CCO"\n1,"CC"\n'
    assert read_samples(path).texts == ["CCO", "CC"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", '\ufeffname;SMILES\r\n"a;b";CCO\r\nx;CC\r\n'),
        ("a.csv", "name,SMILES\na,CCO,too,long\nx,CC\n"),
        ("a.csv.gz", "name,SMILES\na,CCO\nx,CC\n"),
        ("a.SMI", "CCO a\nCC\n"),
        ("a.smiles", "CCO a\nCC\n"),
    ],
    ids=["semicolons", "long-row", "compressed", "uppercase", "smiles"],
)
def test_files_of_other_programs(tmp_path: Path, name: str, content: str) -> None:
    packed = gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
    (tmp_path / name).write_bytes(packed)
    assert read_samples(tmp_path / name).texts == ["CCO", "CC"]


def test_files_without_a_head(tmp_path: Path, data: str) -> None:
    (tmp_path / "other").mkdir()
    one, two = tmp_path / "a.smi", tmp_path / "other" / "a.smi"
    one.write_text("CCO\nC1CC\n")
    two.write_text("hello\nworld\n")
    run(one, two, "--out", tmp_path / "out", "--data", data)
    first, second = scores_of(tmp_path / "out")["sets"]
    assert (first["solver"], first["scores"]["valid"]["counts"]) == (None, [1])
    assert (second["scores"]["valid"]["counts"], second["scores"]["short"]) == ([0], True)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "No valid molecule: " + str(two) in page
    assert "Fewer samples than a fold of 1,024" in page
    assert ": all sets." in page
    assert page.count("<img") == 3  # a grid of the one molecule; histograms of both


def test_given_tokens_are_noted(tmp_path: Path) -> None:
    files = [samples(tmp_path / f"{i}.jsonl", steps=i, template="C*") for i in (1, 2)]
    run(*files, "--out", tmp_path / "out", "--data", "none")
    notes = scores_of(tmp_path / "out")["notes"]
    assert "Scores include the tokens of the prompt or template: all sets." in notes


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_smiles_in_any_file_are_molecules(tmp_path: Path, name: str) -> None:
    write_samples(tmp_path / name, SampleFile(["CCO", "C1CC", ""], [[1]] * 3))
    run(tmp_path / name, "--out", tmp_path / "out", "--data", "none")
    (found,) = scores_of(tmp_path / "out")["sets"]
    assert found["scores"]["valid"]["counts"] == [1]


def test_table_in_the_terminal() -> None:
    rows = (("Euler", "7"), ("Neighbor [x]", "128"))
    lines = ["solver             n", "a", "  Euler            7", "  Neighbor [x]   128"]
    assert Table(("solver", "n"), rows, ("a", "a")).text().splitlines() == lines
    plain = ["solver           n", "Euler            7", "Neighbor [x]   128"]
    assert Table(("solver", "n"), rows).text().splitlines() == plain


def test_table_as_markdown() -> None:
    rows = (("x", "1"),)
    grouped = "|  | s | n |\n| --- | --- | ---: |\n| a\\|b | x | 1 |\n"
    assert Table(("s", "n"), rows, ("a|b",)).markdown() == grouped
    assert Table(("s", "n"), rows).markdown() == "| s | n |\n| --- | ---: |\n| x | 1 |\n"


def test_figures_of_several_models_have_distinct_names() -> None:
    """Also on case-insensitive file systems."""

    def suffixes(*models: str) -> list[str]:
        return [suffix for *_, suffix in by_model(molecules(["C"], model=m) for m in models)]

    assert suffixes("a", "a") == [""]
    assert suffixes("runs/a", "b.") == ["-runs-a", "-b"]
    assert suffixes("Run", "run") == ["-1-Run", "-2-run"]


def test_the_page_shows_all_content(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"png")
    one = Evaluation(
        title="t<",
        table=Table(("c<", "n", "m"), (("x<", "1", "2"),), ("g<",)),
        explanation=("m<",),
        notes=("n<",),
        pictures=(Picture("a.png", "p<", wide=True), Picture("a.png", "q")),
        settings={},
        scores={},
        excerpts={"e<": ["one\n\ttwo"]},
        listings={"l<": Table(("a", "b"), (("1", "C<"),))},
    )
    file = File(Path("f<.smi"), "0123", SampleFile(["C"], None, {"options": {"o": 1.5}}))
    page = page_of(one, [file], {"versions": {"torch": 2, "mauve": None}, "b": "<"}, tmp_path)
    check_self_contained(page, images=2)
    assert not re.search(r"[a-z]<<|[a-z]<[.:]", page)  # everything is escaped
    for part in (
        '<th scope="col">c&lt;</th>',
        '<tr><th colspan="3" scope="rowgroup">g&lt;</th></tr>\n<tr><th scope="row">x&lt;</th>'
        "<td>1</td><td>2</td></tr>",
        "<summary>l&lt;</summary>",
        '<table class="listing">',
        "<p>m&lt;</p>",
        "<li>n&lt;</li>",
        '<div class="scroll wide"><img alt="p&lt;" src="data:image/png;base64,cG5n">',
        '<div class="scroll"><img alt="q"',
        "<summary>e&lt;</summary>\n<blockquote>one\n\ttwo</blockquote>",
        "<summary>f&lt;.smi: 1 samples</summary><dl><dt>sha256</dt><dd>0123</dd>\n<dt>o</dt>"
        "<dd>1.5</dd></dl>",
        "<dt>versions</dt><dd>torch 2</dd>\n<dt>b</dt><dd>&lt;</dd>",
    ):
        assert part in page


def test_samples_are_listed_with_the_reason_of_invalid_ones(tmp_path: Path, data: str) -> None:
    found = molecule_table([*BY_HAND, "F(C)C", "C C", "C" * 5001], CanonicalSet(["CCO"]))
    assert [row[1] for row in found.rows[:8]] == BY_HAND
    results = [row[2] for row in found.rows]
    assert results[:2] == ["known", "repeats 1"]
    assert results[2] == results[5] == results[6] == "novel"
    assert results[7] == "repeats 7"  # benzene in another form
    reasons = {3: "unclosed ring", 4: "empty", 8: "valence", 9: "space", 10: "5,000"}
    for number, words in reasons.items():
        assert re.fullmatch(rf"invalid: .*{words}.*", results[number])
    assert {row[2] for row in molecule_table(["C", "N"]).rows} == {"valid"}
    assert len(molecule_table(["C"] * (LISTED + 1)).rows) == LISTED
    run(samples(tmp_path / "a.jsonl"), "--out", tmp_path / "out", "--data", data)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<td>CC(=O)N</td><td>novel</td>" in page
    assert "<td>C1CC</td><td>invalid: unclosed ring</td>" in page


def molecules(
    texts: list[str], steps: int | None = 8, fold_size: int = 4, model: str = "m"
) -> ScoredMolecules:
    file = File(Path("a.smi"), "0", SampleFile(texts))
    found = SampleSet(model, "Euler" if steps else None, steps, (file,))
    return ScoredMolecules(found, score_molecules(texts, None, fold_size=fold_size), None)


def test_drawings_show_the_set_with_the_most_valid_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[str]] = []
    monkeypatch.setattr("cwdfm.report.molecules.molecule_grid", lambda x, *_, **__: drawn.append(x))
    monkeypatch.setattr("cwdfm.report.molecules.step_curves", lambda *_, **__: None)
    known = ReferenceMolecules("mine", ["CC", "CO"], [], {}, {}, "")

    def captions(*rows: ScoredMolecules, reference: ReferenceMolecules | None = known) -> list[str]:
        return [picture.caption for picture in pictures(rows, tmp_path, reference, {})[0]]

    few, most = molecules(["x", "x", "x", "CCC"]), molecules(["CC", "CO", "N", "OC"], 16)
    curve, grid = captions(few, most)
    assert curve.endswith("Bars are one binomial standard deviation.")
    what = "m, Euler, 16 steps: 3 of 3 distinct molecules"
    assert grid == f"{what}, novel ones first."
    assert captions(most, reference=None) == [f"{what}, in the order of the samples."]
    assert drawn == [["N", "CC", "CO"], ["CC", "CO", "N"]]
    many = molecules(["C" * n for n in range(3, 33)])
    assert "20 of 30 distinct molecules" in captions(many)[0]
    assert "deviations over folds" in captions(molecules(["C"] * 8), molecules(["C"] * 8, 16))[0]
    # The share counts, not the number: 3 of 3 is better than 4 of 8.
    assert "16 steps" in captions(molecules(["C", "x"] * 4, 8, 8), molecules(["C"] * 3, 16, 3))[0]
    uneven = [molecules(["C"] * 3, 8, 8), molecules(["C"] * 5, 16, 8)]
    _, (note,) = pictures(uneven, tmp_path, None, {})
    assert "a fold size of at most 3" in note


def test_notes_on_counts() -> None:
    """A set has valid molecules even if its first fold has none."""
    rows = [molecules(["x"] * 4 + ["C"] * 4), molecules(["x"] * 4, None)]
    assert rows[1].cells()[:2] == ("-", "-")
    assert rows[1].to_json()["model"] is None
    report = {"read": 5000, "unparsable": 1234}
    reference = ReferenceMolecules("mine", ["C"], ["C"], report, {}, "")
    invalid, unparsable = _notes(rows, 4, reference)
    assert invalid == "No valid molecule: m."
    assert unparsable.startswith("1,234 of 5,000 rows (24.7%) of mine")
    assert _notes(rows, 4, replace(reference, report={})) == [invalid]


def test_the_reference_is_canonicalized_unless_it_is_canonical(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Histograms use the held-out molecules."""
    found = load(data)
    reference = load_reference(data)
    assert reference.held_out == found.texts("valid") != found.texts("train")
    assert reference.compared(99) == reference.held_out
    other = replace(found, source=found.source | {"rdkit": "another"})
    here = replace(found, source=found.source | {"spellings": "as they came"})
    spelt = {"train": ["OCC", "C1=CC=CC=C1"], "valid": []}
    monkeypatch.setattr(type(other), "texts", lambda _, split: spelt[split])
    for each in (other, here):
        monkeypatch.setattr("cwdfm.data.reference.load", lambda *_, each=each, **__: each)
        reference = load_reference("mine.npz")
        assert sorted(reference.training) == sorted(reference.compared(9)) == ["CCO", "c1ccccc1"]
    asked: list[str] = []
    monkeypatch.setattr(
        "cwdfm.report.molecules.load_reference", lambda name, **_: asked.append(name)
    )
    evaluate_molecules(gather([samples(tmp_path / "a.jsonl", ["x"])]), tmp_path)
    assert asked == ["qm9"]  # the default


def test_grouping_of_files_into_sets(tmp_path: Path) -> None:
    """Unused options do not separate files; steps must be a number."""
    same = [
        samples(tmp_path / f"{i}.jsonl", n=i, device=str(i), accept_tries=i, seed=i)
        for i in range(2)
    ]
    (one,) = gather(same)
    assert (one.solver, len(one.files)) == ("Euler", 2)
    bar = [samples(tmp_path / f"b{i}.jsonl", accept=0.5, accept_tries=i, seed=i) for i in (1, 2)]
    assert [found.solver for found in gather(bar)] == [f"Euler (max_tries {i})" for i in (1, 2)]
    (odd,) = gather([samples(tmp_path / "odd.jsonl", steps="many")])
    assert (odd.model, odd.solver, odd.steps) == ("odd.jsonl", None, None)
    falling = [samples(tmp_path / f"s{steps}.jsonl", steps=steps) for steps in (16, 8)]
    assert [found.steps for found in gather(falling)] == [8, 16]
    (note,) = sampling_notes(gather([samples(tmp_path / "p.jsonl", prompt="C")]))
    assert note.endswith(": Euler, 8 steps.")


def test_lines_with_whitespace_are_text(tmp_path: Path) -> None:
    """Empty lines do not count; if the kind is unknown, the data to compare with decides."""

    def kind(*lines: str) -> str | None:
        (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
        return gather([tmp_path / "a.txt"])[0].files[0].kind

    assert kind("call me", "some years", "never") == "text"
    assert kind("call me", "CCO") is kind("call me", "CCO", "CC") is None
    assert kind("call me", "", "") == "text"
    kind("CCO")
    sets = gather([tmp_path / "a.txt"])
    assert sample_kind(sets, "openwebtext", TextSettings()) == "text"
    assert sample_kind(sets, "none", TextSettings()) == "smiles"


def test_wrong_input(tmp_path: Path) -> None:
    good, empty, cut = samples(tmp_path / "a.jsonl"), tmp_path / "e.smi", tmp_path / "cut.jsonl"
    again = samples(tmp_path / "b.jsonl", ["C"])
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(good.read_bytes())
    empty.write_text("")
    smi = tmp_path / "a.smi"
    smi.write_text("CCO\n")
    cut.write_text(good.read_text()[:-9])
    text = tmp_path / "text.jsonl"
    text.write_text(json.dumps({"tokenizer": "music"}) + '\n{"text": "Once"}\n')
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    out = ["--out", tmp_path / "out", "--data", "none"]
    cases: list[tuple[list[object], str]] = [
        (["--out", tmp_path], "files"),
        (["--files", *out], "no sample files"),
        ([tmp_path / "no.jsonl", *out], "does not exist"),
        ([tmp_path / "no.doc", *out], "must end in"),
        ([empty, *out], "contains no samples"),
        ([cut, *out], "truncated"),
        ([good, again, *out], "have the same seed (0) and settings"),
        ([good, good, *out], "a.jsonl are identical, so their samples would count twice"),
        ([good, copy, *out], "would count twice"),
        ([text, *out], "samples of kind 'music'; supported: 'smiles', 'bytes'"),
        ([text, smi, *out], "require separate reports"),
        ([good, *out, "--fold-size", 0], "--fold-size must be an integer >= 1, got 0"),
        ([good, *out[:2], "--data", "nothing.smi"], "neither a dataset nor a file"),
        ([good, "--out", full, "--data", "none"], "is not empty"),
        ([good, "--out", empty, "--data", "none"], "is a file"),
        ([good, "--out", empty / "x", "--data", "none"], "is a file, not a folder"),
    ]
    for arguments, message in cases:
        ended = command("eval", *arguments)
        assert ended.returncode == 2, arguments
        assert message in ended.stderr + ended.stdout, (arguments, ended)
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    run(good, "--out", full, "--data", "none", "--force")
    assert (full / "mine.txt").read_text() == "mine"
    assert (full / "report.html").exists()


def test_text_is_not_a_reference_for_molecules(tmp_path: Path) -> None:
    text = tmp_path / "stories.jsonl"
    text.write_text('{"text": "some words"}\n')
    with pytest.raises(InputError, match="text, not molecules"):
        run(samples(tmp_path / "a.jsonl"), "--out", tmp_path / "out", "--data", text)


LONG = ["C" * n + end for n in range(20, 60) for end in ("O", "[Si](C)C", "Br")]


@pytest.mark.parametrize(
    ("name", "options"),
    [("own.tsv", ("--column", "Structure")), slow("my.smi", ()), slow("my.csv", ())],
)
def test_copies_of_a_file_are_not_novel(tmp_path: Path, name: str, options: tuple[str]) -> None:
    """Neither the length nor the tokens of a molecule exclude it from the reference."""
    header = {".smi": "", ".csv": "smiles\n", ".tsv": "id\tstructure\n"}[Path(name).suffix]
    start = "7\t" if header.startswith("id") else ""
    reference = tmp_path / name
    reference.write_text(header + "".join(f"{start}{text}\n" for text in [*LONG, "not one"]))
    copies = tmp_path / "copies.smi"
    copies.write_text("\n".join([*LONG, "OCC"]))
    for _ in range(2):  # the second reads the cache
        run(copies, "--out", tmp_path / "out", "--data", reference, *options, "--force")
        (found,) = scores_of(tmp_path / "out")["sets"]
        assert found["scores"]["unique"]["counts"] == [len(LONG) + 1]
        assert found["scores"]["novel"]["counts"] == [1]
    rows = scores_of(tmp_path / "out")["data"]["rows"]
    assert rows == {"read": 121, "blank": 0, "unparsable": 1, "duplicate": 0, "kept": 120}


def test_prepared_data_without_all_molecules_are_no_reference(tmp_path: Path) -> None:
    (tmp_path / "my.smi").write_text("\n".join([*LONG, *TRAINING]))
    copies, out = samples(tmp_path / "a.jsonl"), tmp_path / "out"
    load(tmp_path / "my.smi").save(tmp_path / "part.npz")
    with pytest.raises(InputError, match=r"too_long \d+ of 146.*'my.smi'"):
        run(copies, "--out", out, "--data", tmp_path / "part.npz")
    load(tmp_path / "my.smi", length=70).save(tmp_path / "whole.npz")
    run(copies, "--out", out, "--data", tmp_path / "whole.npz")


@pytest.mark.parametrize("end", ['"CCO\nCCN\n', '"CCO"C\nCCN\n'])
def test_unbalanced_quotes_in_a_table_are_an_error(tmp_path: Path, data: str, end: str) -> None:
    table = tmp_path / "a.csv"
    table.write_text("smiles\nCCC\n" + end)
    with pytest.raises(InputError, match=r"a\.csv.*quotes"):
        run(table, "--out", tmp_path / "out", "--data", data)
    with pytest.raises(InputError, match=r"a\.csv.*quotes"):
        run(samples(tmp_path / "a.jsonl"), "--out", tmp_path / "out", "--data", table)
    with pytest.raises(InputError, match=r"a\.csv.*quotes"):
        load(table, cache=False)


def test_columns_of_samples_and_data(tmp_path: Path) -> None:
    """--column is for all tables, --data-column for data with another name."""
    mine, other = tmp_path / "mine.csv", tmp_path / "other.csv"
    mine.write_text("id,Structure\n" + "".join(f"1,{text}\n" for text in BY_HAND if text))
    other.write_text("n,known\n1,OCC\n2,c1ccccc1\n")
    out, data = tmp_path / "out", ("--data", other)
    run(mine, "--out", out, *data, "--column", "structure", "--data-column", "known")
    assert scores_of(out)["sets"][0]["scores"]["novel"]["counts"] == [2]
    for words, message in (
        ((mine, *data), r"'Structure'.*--column"),
        ((mine, *data, "--column", "known"), r"mine\.csv has no column 'known'"),
        ((mine, *data, "--column", "structure"), r"other\.csv has no column 'structure'"),
        ((samples(tmp_path / "a.jsonl"), "--data", "none", "--column", "a"), r"--column a.*tables"),
    ):
        assert re.search(message, rejected("eval", *words, "--out", tmp_path / "new"))
        assert not (tmp_path / "new").exists()


def test_a_missing_plotting_library_is_reported_before_the_work(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    file, out = samples(tmp_path / "a.jsonl"), tmp_path / "out"
    with pytest.raises(InputError, match=r"pip install 'cwdfm\[plot\]'"):
        run(file, "--out", out, "--data", data)
    with pytest.raises(InputError, match=r"pip install 'cwdfm\[plot\]'"):
        demo.main(["--quick", "--out", str(out), "--data", data])
    assert not out.exists()
    run(file, "--out", out, "--data", "none")  # a grid of molecules, which RDKit draws
    assert (out / "report.html").exists()
