"""The examples: invalid input, interruption, and redrawing a figure from its file."""

import json
import re
import runpy
import signal
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.cli import train
from examples import concepts, exact_target, generation
from experiments import results

ROOT = Path(__file__).parents[2]
BAD: dict[str, tuple[str, str]] = {
    "none": ("exact_target.py --samples 0", "--samples must be an integer >= 1, got 0"),
    "negative": ("exact_target.py --samples -3", "--samples must be an integer >= 1, got -3"),
    "in-a-file": ("exact_target.py --out file", "file is a file"),
    "nothing-there": ("exact_target.py --redraw --out new", "No such file.*omit --redraw"),
    "no-json": ("exact_target.py --redraw --out empty", "does not contain results"),
    "foreign": ("exact_target.py --redraw --out foreign", "does not contain results"),
    "no-samples": ("finetune.py --out a.json --samples -3", "--samples must be an integer >= 1"),
    "no-steps": ("finetune.py --out a.json --steps 0", "--steps must be an integer >= 1, got 0"),
    "a-folder": ("finetune.py --out empty", "empty is a folder; pass the path of a file"),
    "under-a-file": ("finetune.py --out file/a.json", "cannot be written: .*file is a file"),
}


@pytest.mark.parametrize("row", BAD)
def test_invalid_input(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, message = BAD[row]
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for folder, content in (("empty", ""), ("foreign", "[3]")):
        Path(folder).mkdir()
        Path(folder, "exact_target.json").write_text(content)
    before = sorted(tmp_path.rglob("*"))
    name, *arguments = line.split()
    monkeypatch.setattr("sys.argv", [name, *arguments])
    assert exit_code(name) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(f"cwdfm: [^\n]*{message}[^\n]*\n", printed.err), printed.err
    assert sorted(tmp_path.rglob("*")) == before


def exit_code(name: str) -> object:
    """Run an example as a script and return its exit code."""
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    return exit_.value.code


def test_interrupted_measurement_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cwdfm, "sample", interrupted)
    monkeypatch.setattr("sys.argv", ["exact_target.py", "--out", str(tmp_path), "--samples", "2"])
    assert exit_code("exact_target.py") == 130
    assert not list(tmp_path.iterdir()), "there is nothing to resume from"
    assert capsys.readouterr().err == "cwdfm: interrupted; the same command starts over\n"


def test_interrupted_fine_tuning_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint is deleted with the temporary folder, so no message may offer to resume."""
    pytest.importorskip("rdkit", reason="needs the extra 'molecules'")
    (tmp_path / "few.smi").write_text("".join(f"{'C' * n}c1ccccc1\n" for n in range(24)))
    few = cwdfm.data.load(tmp_path / "few.smi", cache=False)
    monkeypatch.setattr(cwdfm.data, "load", lambda _: few)
    monkeypatch.setattr(train, "fit", lambda *_: signal.SIGINT)
    monkeypatch.setattr(train, "loggers", lambda *_: ())
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.argv", ["finetune.py", "--out", str(tmp_path / "a.json")])
    assert exit_code("finetune.py") == 130
    assert not list(tmp_path.rglob("recipe.json")), "there is nothing to resume from"
    printed = capsys.readouterr().out
    assert printed.endswith("\ninterrupted at step 0; the same command starts again\n")


def test_redraw_uses_the_recorded_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    figures = []
    monkeypatch.setattr(exact_target, "save_figure", lambda figure, _: figures.append(figure))
    monkeypatch.setattr(exact_target, "reveal_times", lambda *_, **__: torch.zeros(2, 3))
    recorded = json.dumps(results.record("exact_target"))
    (tmp_path / "exact_target.json").write_text(recorded)
    exact_target.main(["--out", str(tmp_path), "--redraw"])
    assert (tmp_path / "exact_target.json").read_text() == recorded
    (figure,) = figures
    (legend,) = figure.legends
    assert set(exact_target.SOLVERS) < {text.get_text() for text in legend.get_texts()}
    rows = json.loads(recorded)["rows"]
    euler = [r["total_variation"] for r in rows if (r["source"], r["solver"]) == ("mask", "Euler")]
    lines = {each.get_label(): each.lines[0] for each in figure.axes[0].containers}
    assert list(lines["Euler"].get_ydata()) == euler
    # Both lines are visible where they coincide: the narrow one is drawn on the wide one.
    under = lines["Neighbor-weighted"]
    assert under.get_zorder() < lines["Euler"].get_zorder()
    assert under.get_linewidth() > 2 * lines["Euler"].get_linewidth()


def test_generation_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token of both panels appears in its step, and the committed picture is small."""
    pytest.importorskip("tokenizers", reason="needs the extra 'text'")
    monkeypatch.setattr(generation, "LENGTH", 24)
    monkeypatch.setattr(generation, "STEPS", 6)
    root = ElementTree.fromstring(generation.draw())
    groups = [each.get("class", "") for each in root.iter() if each.tag.endswith("}g")]
    steps = Counter(groups)
    assert set(steps) <= {f"s{step}" for step in range(6)}
    style = "".join(each.text or "" for each in root.iter() if each.tag.endswith("}style"))
    assert all(f"@keyframes {name}{{" in style for name in steps)
    committed = ROOT / "docs" / "figures" / "generation.svg"
    assert committed.stat().st_size < 1e6
    ElementTree.parse(committed)


def test_tokens_without_a_known_neighbor() -> None:
    order = [-1, 2, 5, 5, 3, 7, 6]
    known = [
        any(0 <= j < len(order) and order[j] < order[i] for j in (i - 1, i + 1))
        for i in range(len(order))
    ]
    expected = [step >= 0 and not near for step, near in zip(order, known, strict=True)]
    assert generation.alone(np.array(order)).tolist() == expected


def test_concept_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    monkeypatch.setattr("sys.argv", ["concepts.py", "--out", str(tmp_path)])
    concepts.main()
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in (ROOT / "docs" / "figures").glob("concept-*.svg")
    }
