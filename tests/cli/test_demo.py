"""`cwdfm demo`: its sample files and its report."""

import json
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path

import pytest

from cwdfm.cli import demo, demo_page
from cwdfm.cli.sample_options import Options, parse_options, settings
from cwdfm.data.smiles import canonical
from cwdfm.report.molecule_plots import molecule_grid
from cwdfm.report.molecule_table import median_table
from cwdfm.sample_file import SampleFile, read_samples, write_samples
from cwdfm.solver.recording import Recording
from tests.support.cases import slow
from tests.support.html import Links

pytest.importorskip("rdkit", reason="needs the extra 'molecules'")
pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
pytest.importorskip("tokenizers", reason="needs the extra 'text'")

Drawn = dict[str, list[str]]  # the molecules in each image file


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Collect the molecules that reports draw."""
    found: Drawn = {}

    def collect(smiles: list[str], path: Path, *, highlight: object) -> None:
        found[path.name] = smiles
        molecule_grid(smiles, path)

    monkeypatch.setattr("cwdfm.report.molecules.molecule_grid", collect)
    return found


def section(page: str, title: str) -> str:
    """The part of a page from this heading to the next."""
    return page.split(f"<h2>{title}</h2>")[1].split("<h2>")[0]


@pytest.mark.parametrize("processes", [False, slow(True)])
@pytest.mark.usefixtures("blank_figures")
def test_demo(
    processes: bool,
    tmp_path: Path,
    drawn: Drawn,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The output folder may contain the results of an earlier demo."""
    monkeypatch.setattr(demo, "cores", lambda: 1)  # starting a worker costs more than its samples
    monkeypatch.setattr(demo, "RESAMPLE", 4)
    if not processes:  # they take longer to start than to sample
        monkeypatch.setattr(demo, "workers", lambda _: ThreadPoolExecutor(1))
    data, out = tmp_path / "my.smi", tmp_path / "demo"
    data.write_text("\n".join("C" * n + end for n in range(1, 9) for end in "CNOF"))
    (out / "samples").mkdir(parents=True)
    for old in (out / "samples" / f"{demo.MODELS[0]}-euler-2.jsonl", out / "report.html"):
        old.write_text("old")
    demo.main(["--quick", "--out", str(out), "--data", str(data)])
    page = (out / "report.html").read_text()
    assert 0 < page.index("<iframe") < page.index("<blockquote>") < page.index("<table ")
    sentences = read_samples(out / "samples/novels-small-neighbor-4.jsonl")
    assert re.fullmatch("The.+ of the.+ was closed.", sentences.texts[0], re.DOTALL)
    for name in ("novels-small", "qm9-mask-small"):
        for solver in ("euler", "neighbor"):
            stem = out / "samples" / f"{name}-{solver}-4"
            recording = Recording.load(stem.with_suffix(".recording.npz"))
            tokens = read_samples(stem.with_suffix(".jsonl")).tokens
            assert recording.tokens.tolist() == (tokens or [])[: len(recording.tokens)]
    printed = capsys.readouterr().out
    assert printed.count("neighbor") == 5
    assert printed.count("Neighbor") == 4
    assert printed.count(demo.DRUG_MODEL) == 1
    assert str(out / "report.html") in printed
    found = json.loads((out / "scores.json").read_text())["sets"]
    assert len(found) == 12
    assert {s["solver"] for s in found} == {"Euler", "Neighbor", "Entropy"}
    names = {"curves-qm9-mask-small.png", "curves-qm9-uniform-small.png", "report.html"}
    assert names <= {path.name for path in out.iterdir()}
    options = found[0]["files"][0]["options"]
    assert (options["model"], options["hazard"]) == (demo.MODELS[0], "euler")
    check_drug_like(page, out, drawn)
    check_commands(page, out / "samples")


def check_drug_like(page: str, out: Path, drawn: Drawn) -> None:
    """Every distinct valid sample of the model is drawn."""
    file = read_samples(out / "samples" / f"{demo.DRUG_MODEL}-gibbs-4.jsonl")
    names = ("model", "solver", "grid", "resample", "tokens", "select", "begin")
    assert [file.options[name] for name in names] == [
        *(demo.DRUG_MODEL, "gibbs", "kappa", demo.RESAMPLE),
        *demo.GIBBS.values(),
    ]
    assert len(file.texts) == demo.QUICK.drug_like
    distinct = dict.fromkeys(s for s in map(canonical, file.texts) if s)
    assert drawn.get(f"molecules-{demo.DRUG_MODEL}.png", []) == list(distinct)
    assert section(page, "Drug-like molecules").count("<img ") == bool(distinct)


def check_commands(page: str, samples: Path) -> None:
    """The commands on the page have the options of the sample files."""
    commands = [shlex.split(unescape(text)) for text in re.findall("<code>(.*?)</code>", page)]
    assert len(commands) == len(demo.SOLVERS) + 1
    for words in commands:
        assert words[:2] == ["cwdfm", "sample"]
        options, _ = parse_options(words[2:])
        assert settings(options) == read_samples(samples / options.out).options


def written(job: Options, texts: list[str]) -> Options:
    """Write a sample file of a job."""
    job.out.parent.mkdir(exist_ok=True)
    write_samples(job.out, SampleFile(texts, [[1]] * len(texts)))
    return job


@pytest.mark.parametrize("valid", [0, 1, 23, 24])
def test_all_drug_like_molecules_are_drawn(valid: int, tmp_path: Path, drawn: Drawn) -> None:
    job = demo.drug_like_job(demo.FULL, tmp_path / "samples")
    texts = ["C" * n for n in range(1, valid + 1)]
    written(job, texts + ["C1"] * (job.n - valid))
    small = written(demo.molecule_jobs(demo.FULL, tmp_path / "samples")[0], ["CCO"])
    shown = section(demo_page.drug_like_molecules(job, [small], tmp_path), "Drug-like molecules")
    assert not Links(shown).open
    assert shown.count("<img ") == bool(valid)
    assert [len(smiles) for smiles in drawn.values()] == [valid] * bool(valid)


def test_medians_of_valid_molecules() -> None:
    table = median_table({"a": ["CO", "C1", "C", "CCO"], "b": ["C1"]}, ("weight", "rings"))
    assert table.columns[1:] == ("weight", "rings")
    assert table.rows == (("a", "32", "0"), ("b", "-", "-"))  # methanol is the middle one
