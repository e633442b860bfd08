"""`cwdfm sample`: resuming, sharing the work, prompts and templates, formats."""

import csv
import inspect
import json
import re
import signal
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
from cwdfm.cli import analyze, demo, evaluate, perplexity, prepare, train
from cwdfm.cli import sample as sample_cli
from cwdfm.cli.main import VERBS, main
from cwdfm.cli.options import parse
from cwdfm.cli.partial_samples import Parts
from cwdfm.cli.sample import finish
from cwdfm.cli.sample import main as sample_main
from cwdfm.cli.sample_options import Options, settings
from cwdfm.errors import RunError
from cwdfm.files import held
from cwdfm.generation import fitting_batch, generate, given
from cwdfm.method.base import DrawRequest
from cwdfm.method.flow_config import LOSSES, PATHS
from cwdfm.report.text_scores import TextSettings
from cwdfm.sample_file import SampleFile, read_samples, write_samples
from cwdfm.solver_config import SolverChoice
from cwdfm.train.config import METHODS, TrainConfig
from experiments.cli import options as repro_options

ROOT = Path(__file__).parents[2]
MODEL = "qm9-mask-small"
FLAGS = ["--n", "12", "--steps", "6", "--solver", "neighbor", "--seed", "5"]


def command(*arguments: object, processes: int = 0) -> list[str]:
    several = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m", "--"]
    start = [sys.executable, "-m", *(several if processes else []), "cwdfm.cli.main", "sample"]
    return [*start, MODEL, *map(str, arguments)]


def run(*arguments: object, processes: int = 0) -> "subprocess.CompletedProcess[str]":
    line = command(*arguments, processes=processes)
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """The samples, from Python and in one batch."""
    trained = cwdfm.load(MODEL)
    solver = cwdfm.Euler(weight=cwdfm.Neighbor(1, 4.0))
    tokens: list[list[int]] = generate(trained, solver, n=12, steps=6, seed=5).tokens.tolist()
    return tokens


def test_processes_share_the_work(tmp_path: Path, expected: list[list[int]]) -> None:
    out = tmp_path / "a.jsonl"
    done = run("--out", out, *FLAGS, "--batch-size", 2, processes=2)
    assert done.returncode == 0, done.stderr
    assert read_samples(out).tokens == expected
    assert done.stdout.count("written: 12 samples") == 1
    assert list(tmp_path.iterdir()) == [out]


KILLED = """
import os, signal
from cwdfm.cli.main import main
from cwdfm.cli.partial_samples import Parts
plain = Parts.add
def add(parts, rows):
    plain(parts, rows)
    if len(parts.rows()) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
Parts.add = add
main()
"""


def test_killed_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expected: list[list[int]]
) -> None:
    out = tmp_path / "a.jsonl"
    arguments = ["sample", MODEL, "--out", str(out), *FLAGS, "--batch-size", "1"]
    line = [sys.executable, "-c", KILLED, *arguments]
    killed = subprocess.run(line, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    assert killed.returncode == -signal.SIGKILL
    parts = tmp_path / "a.jsonl.parts"
    before = [path.name for path in parts.glob("*.piece")]
    assert len(before) == 3
    assert not out.exists()
    cut = parts / before.pop()  # with the machine's power, say
    cut.write_text(cut.read_text()[:20])
    line = [MODEL, "--out", str(out), *FLAGS]
    with pytest.raises(cwdfm.InputError, match="the beginning of a job with other settings"):
        sample_main([*line, "--temperature", "0.5"])
    sample_main([*line, "--batch-size", "5"])
    assert f"going on: {len(before)} of 12 samples are there" in capsys.readouterr().out
    found = read_samples(out)
    assert found.tokens == expected
    assert found.head["drawn"] == 12 - len(before)
    assert list(tmp_path.iterdir()) == [out]


def test_a_refused_job_leaves_nothing_behind(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "a.smi"), "--n", "2", "--steps", "2", "--solver", "neighbor"]
    with pytest.raises(cwdfm.InputError, match="radius"):
        sample_main([MODEL, *out, "--radius", "16"])
    assert not list(tmp_path.iterdir())
    sample_main([MODEL, *out, "--radius", "3"])


def test_force_goes_on_with_the_same_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expected: list[list[int]]
) -> None:
    """It overwrites the file and throws away pieces of other settings, not one's own."""
    out = tmp_path / "a.jsonl"
    line = [MODEL, "--out", str(out), *FLAGS]
    options = parse("sample", ["--model", *line], lambda no: Options(model=no, out=no))
    trained = cwdfm.load(MODEL)
    parts = Parts(out, settings(options) | {"weights": trained.fingerprint()})
    parts.add({3: {"text": "kept", "tokens": expected[3], "evaluations": 0}})
    sample_main([*line, "--force"])
    assert "going on: 1 of 12" in capsys.readouterr().out
    assert read_samples(out).texts[3] == "kept"
    parts.add({3: {"text": "kept", "tokens": expected[3], "evaluations": 0}})
    (tmp_path / "a.jsonl.parts" / "settings.json").write_text("broken")
    sample_main([*line, "--force"])
    assert read_samples(out).tokens == expected
    assert read_samples(out).texts[3] != "kept"


def test_pieces_that_another_run_took_away(tmp_path: Path, expected: list[list[int]]) -> None:
    """What the other wrote is not replaced by what is left."""
    out = tmp_path / "a.jsonl"
    line = [MODEL, "--out", str(out), *FLAGS]
    options = parse("sample", ["--model", *line], lambda no: Options(model=no, out=no))
    parts = Parts(out, settings(options))
    parts.add({3: {"text": "left", "tokens": expected[3], "evaluations": 0}})
    out.write_text("whole")
    remedy = rf"of 12 samples 1 are left in .*delete {re.escape(str(parts.folder))}; else"
    with pytest.raises(RunError, match=remedy):
        finish(options, parts, {})
    assert out.read_text() == "whole"


def test_one_run_at_a_time_draws_a_file(tmp_path: Path, expected: list[list[int]]) -> None:
    out = tmp_path / "a.jsonl"
    line = [MODEL, "--out", str(out), *FLAGS]
    folder = tmp_path / "a.jsonl.parts"
    folder.mkdir()
    with held(folder), pytest.raises(cwdfm.InputError, match=rf"another run .* of {out}; wait"):
        sample_main([*line, "--force"])
    sample_main(line)  # what the other left of its lock is in nobody's way
    assert read_samples(out).tokens == expected
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_job_that_drew_nothing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sample_cli, "draw", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sample_main([MODEL, "--out", str(tmp_path / "a.jsonl"), *FLAGS])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", VERBS)
def test_ctrl_c(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A verb that writes all at its end begins anew, and says no other."""

    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(VERBS, verb, replace(VERBS[verb], main=interrupted))
    monkeypatch.setattr(sys, "argv", ["cwdfm", verb])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 130
    anew = verb in ("perplexity", "analyze", "demo")
    then = "begins anew" if anew else "goes on with what is left"
    assert capsys.readouterr().err == f"cwdfm: interrupted; the same command {then}\n"


PARTS = tuple(type(part) for part in vars(TrainConfig()).values() if is_dataclass(part))
CONFIGS = (TrainConfig, *PARTS, *METHODS.values(), *PATHS.values(), *LOSSES.values())


def test_every_option_is_explained() -> None:
    """Each field of each verb's options has a comment, which becomes its help."""
    shown = [Options, train.Options, prepare.Options, evaluate.Options, demo.Options]
    shown += [*CONFIGS, TextSettings, perplexity.Options, analyze.Context, analyze.Updates]
    shown += [SolverChoice, repro_options.Options]
    nested = ("config", "path", "loss", "text", *(f.name for f in fields(TrainConfig)))
    for kind in shown:
        lines = inspect.getsource(kind).splitlines()
        for field in fields(kind):
            if field.name not in kind.__annotations__:
                continue  # inherited, and explained there
            place = next(i for i, x in enumerate(lines) if x.strip().startswith(f"{field.name}:"))
            told = "  # " in lines[place] or lines[place - 1].strip().startswith("# ")
            assert told or field.name in nested, f"{kind.__module__}: {field.name}"


def test_formats_agree(tmp_path: Path, expected: list[list[int]]) -> None:
    trained = cwdfm.load(MODEL)
    texts = [trained.tokenizer.decode(row) for row in expected]
    samples = SampleFile(texts, expected, {"options": {"steps": 6}})
    for name in ("a.jsonl", "a.csv", "a.smi", "a.txt"):
        write_samples(tmp_path / name, samples)
        assert read_samples(tmp_path / name).texts == texts
    assert read_samples(tmp_path / "a.jsonl") == samples
    with (tmp_path / "a.csv").open() as file:
        assert [row["text"] for row in csv.DictReader(file)] == texts


def test_line_breaks_survive_or_are_refused(tmp_path: Path) -> None:
    texts = ["a\nb", "c\r", "\r\nd\u2028", 'e"\\n', ""]
    samples = SampleFile(texts, [[1]] * len(texts))
    for name in ("a.jsonl", "a.csv"):
        write_samples(tmp_path / name, samples)
        assert read_samples(tmp_path / name).texts == texts
    own = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    (tmp_path / "own.jsonl").write_text(own)
    assert read_samples(tmp_path / "own.jsonl").texts == texts
    for name, text in (("a.txt", "a\nb"), ("b.txt", "c\r"), ("a.smi", "d\u2028e")):
        with pytest.raises(
            cwdfm.InputError, match=r"sample 2 holds a line break.*\.jsonl or \.csv"
        ):
            write_samples(tmp_path / name, SampleFile(["", text], [[1]] * 2))
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("model", cwdfm.box())
def test_template(model: str) -> None:
    """Given tokens stay, three tokens are free, and the end is where the template says."""
    trained = cwdfm.load(model)
    solver = cwdfm.Euler(weight=cwdfm.Neighbor(1, 4.0))
    out = generate(trained, solver, n=16, steps=16, template="c1ccccc1***")
    ids = trained.tokenizer.encode("c1ccccc1")
    tokens = out.tokens
    assert (tokens[:, 1:9] == torch.tensor(ids)).all()
    assert (tokens[:, 0] == trained.tokenizer.bos_id).all()
    assert (tokens[:, 12] == trained.tokenizer.eos_id).all()
    assert (tokens[:, 13:] == trained.tokenizer.pad_id).all()
    assert len({tuple(row) for row in tokens[:, 9:12].tolist()}) > 1
    assert (tokens[:, 1:12] >= 3).all(), "a hole holds a token of the molecule, not its end"
    again = generate(trained, solver, n=16, steps=16, template="c1ccccc1***", batch_size=5)
    assert torch.equal(tokens, again.tokens)


def test_prompt() -> None:
    trained = cwdfm.load(MODEL)
    out = generate(trained, cwdfm.Euler(), n=8, steps=8, prompt="N#C")
    assert all(trained.tokenizer.decode(row).startswith("N#C") for row in out.tokens.tolist())
    tokens, fixed = given(trained, prompt="N#C")
    assert tokens is not None
    assert fixed is not None
    assert fixed.tolist() == [True] * 4 + [False] * 28


def test_batches_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = cwdfm.load(MODEL)
    assert fitting_batch(trained) == 256
    monkeypatch.setattr("cwdfm.generation._CPU_BUDGET", 32 * 256 * 4 * 24 * 7)
    assert fitting_batch(trained) == 7
    assert fitting_batch(trained, 7 * 32) == 1


@pytest.mark.parametrize("wanted", [{"length": 64}, {"length": 16}, {"template": "c1ccccc1***"}])
def test_batches_fit_by_the_length_asked_for(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    trained = cwdfm.load(MODEL)
    asked = []

    def draw(self: object, model: object, solver: object, draw: DrawRequest) -> None:
        asked.append(draw)

    monkeypatch.setattr("cwdfm.generation._CPU_BUDGET", 32 * 256 * 4 * 24 * 6)
    monkeypatch.setattr(type(trained.method), "draw", draw)
    generate(trained, n=8, steps=8, **wanted)
    length = wanted.get("length", 32)
    assert [(d.shape, d.batch_size) for d in asked] == [((8, length), 6 * 32 // length)]


def test_short_memory_means_smaller_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[list[int]]
) -> None:
    sizes = []

    def short(trained: cwdfm.Pretrained, solver: cwdfm.Solver, **options: Any) -> cwdfm.Samples:
        sizes.append(options["n"])
        if options["n"] > 3:
            raise torch.OutOfMemoryError
        return generate(trained, solver, **options)

    monkeypatch.setattr("cwdfm.cli.sample.generate", short)
    out = tmp_path / "a.jsonl"
    sample_main([MODEL, "--out", str(out), *FLAGS])
    assert read_samples(out).tokens == expected
    assert sizes == [12] * 5 + [8, 4] + [2] * 6  # from 256 at once: 256, 128, 64, 32, 16, 8, 4, 2


WRONG = [
    (["--template", "c1ccccc1"], "hole"),
    (["--template", "C" * 31 + "*"], "room for 30"),
    (["--template", "[Si]**"], "[Si]"),
    (["--prompt", "C", "--template", "C*"], "a prompt and a template at once"),
    (["--prompt", "C" * 40], "room for 30"),
    (["--prompt", "Hello"], "not SMILES"),
    (["--device", "tpu9"], "device must be auto, cpu, cuda"),
    (["--batch-size", "-1"], "cwdfm: --batch-size must be"),
    (["--steps", "0"], "steps must be"),
    (["--top-p", "2"], "cwdfm: --top-p must"),
    (["--corrector", "nan"], "cwdfm: --corrector must have a finite scale"),
    (
        ["--corrector", "1", "--corrector-power", "-1"],
        "cwdfm: --corrector-power must be a finite number >= 0, got -1",
    ),
    (["--corrector-power", "1"], "--corrector-power is read with --corrector alone"),
    (["--radius", "-1", "--solver", "neighbor"], "cwdfm: --radius must"),
    (["--radius", "40", "--solver", "neighbor"], "a radius below 32/2, or --boundary cut\n"),
    (["--accept", "1.5"], "cwdfm: --accept must lie in [0, 1]"),
    (["--mend", "2", "--mend-share", "3"], "cwdfm: --mend-share must lie between"),
    (["--mend", "2", "--mend-at-once", "0"], "cwdfm: --mend-at-once must be"),
    (["--refine", "1", "--refine-temperature", "0"], "cwdfm: --refine-temperature must be"),
    (["--refine", "1", "--refine-temperature", "1e-9"], "cwdfm: --refine-temperature must be"),
    (["--refine", "1", "--refine-steps", "10" * 9], "cwdfm: --refine-steps must be an integer <= "),
    (["--refine", "10" * 9], "cwdfm: --refine must be an integer <= 1,000,000, got 1010"),
    (["--mend", "10" * 9], "cwdfm: --mend must be an integer <= 1,000,000, got 1010"),
    (
        ["--accept", "0.9", "--accept-tries", "10" * 9],
        "cwdfm: --accept-tries must be an integer <=",
    ),
    (
        ["--radius", "7"],
        "--radius is read by --solver neighbor, neighbor-counted and neighbor-share alone, and",
    ),
    (["--solver", "entropy", "--scale", "2"], "alone, and the solver is entropy; leave it out"),
    (["--solver", "euler", "--beta", "3"], "read by --solver entropy and entropy-counted alone"),
    (["--gamma", "1"], "--gamma is read by --solver entropy-bound alone, and the solver is euler"),
    (["--solver", "margin", "--hazard", "integrated"], "--hazard is read by --solver euler, neigh"),
    (
        ["--mend-share", "0.3"],
        "--mend-share is read with --mend alone; leave it out, or give --mend",
    ),
    (["--mend-at-once", "2", "--refine", "1"], "--mend-at-once is read with --mend alone"),
    (["--accept-tries", "3"], "--accept-tries is read with --accept alone"),
    (
        ["--solver", "neighbor-counted", "--corrector", "1"],
        "the neighbor-counted solver has no corrector; use --solver euler, neighbor, entropy, n",
    ),
    (["--refine-steps", "3", "--mend", "2"], "--refine-steps is read with --refine alone"),
]


@pytest.mark.parametrize(("flags", "message"), WRONG, ids=[" ".join(f)[:24] for f, _ in WRONG])
def test_wrong_input(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
) -> None:
    line = ["cwdfm", "sample", MODEL, "--out", str(tmp_path / "a.smi"), *flags]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_unreadable_files(tmp_path: Path) -> None:
    cases = {
        "a.jsonl": ('{"options": {}}\n{"text": "C", "tok', "line 2 is not JSON"),
        "b.jsonl": ('{"options": {}}\n{"smiles": "C"}\n', "lines without 'text'"),
        "h.jsonl": ('{"text": "C"}\n' + "[" * 10**5, "line 2 is not JSON"),
        "i.jsonl": ('{"text": "C"}\n' + "9" * 5000, "line 2 is not JSON"),
        "j.jsonl": ('{"text": "\\ud800", "tokens": [1]}\n', "lines without 'text'"),
        "k.jsonl": ('{"text": "C", "tokens": 3}\n', "'tokens' are no list of ids"),
        "l.jsonl": ('{"text": "C", "tokens": ["C"]}\n', "'tokens' are no list of ids"),
        "m.jsonl": ('{"text": "C", "tokens": [-1]}\n', "'tokens' are no list of ids"),
        "f.jsonl": ("[1]\n", "lines that are no objects"),
        "g.jsonl": ('{"options": 5}\n', "options that are no object"),
        "c.csv": ("name\nC\n", "no column 'text' or 'smiles', only 'name'; rename"),
        "d.smi": ("", "holds no samples"),
        "e.doc": ("C\n", "must end in"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(cwdfm.InputError, match=message):
            read_samples(tmp_path / name)
    with pytest.raises(cwdfm.InputError, match="cannot read"):
        read_samples(tmp_path / "none.smi")


def test_names_behind_smiles(tmp_path: Path) -> None:
    (tmp_path / "a.smi").write_text("CCO ethanol\n\nC\n")
    assert read_samples(tmp_path / "a.smi").texts == ["CCO", "", "C"]


def test_tables_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\ufeffSMILES,id\nCCO,1\nC,2\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("smiles,text\nCCO,a\nC,b\n")
    assert read_samples(tmp_path / "a.csv").texts == ["CCO", "C"]
    assert read_samples(tmp_path / "b.csv").texts == ["a", "b"]


def test_the_head_says_where_samples_come_from(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    sample_main([MODEL, "--out", str(out), "--n", "3", "--steps", "2"])
    head = json.loads(out.read_text().splitlines()[0])
    assert head["options"]["model"] == MODEL
    assert head["provenance"]["command"]
    assert head["model"]["recipe"]["source"] == "mask"
    assert 3 <= head["evaluations"] <= 6
