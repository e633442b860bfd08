"""`cwdfm sample`: resuming, sharing the work, prompts and templates, formats."""

import csv
import inspect
import json
import re
import signal
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
from cwdfm.baselines import METHODS
from cwdfm.cli import analyze, demo, evaluate, perplexity, prepare, train
from cwdfm.cli import sample as sample_cli
from cwdfm.cli.main import COMMANDS, main
from cwdfm.cli.sample import main as sample_main
from cwdfm.cli.sample_options import Options, parse_options, settings
from cwdfm.cli.sample_output import finish
from cwdfm.errors import RunError
from cwdfm.files import held, lock_file
from cwdfm.generation import generate
from cwdfm.method.base import SampleRequest
from cwdfm.method.flow_config import LOSSES, PATHS
from cwdfm.pretrained.model import load_trained
from cwdfm.report import TextSettings
from cwdfm.sample_file import PartialSamples, SampleFile, read_samples, write_samples
from cwdfm.solver_config import SOLVERS
from cwdfm.train.config import TrainConfig
from cwdfm.trained import auto_batch_size, prompt_tokens
from experiments.cli import options as repro_options
from tests.support.cases import slow
from tests.support.command import command
from tests.support.processes import ended, ended_together
from tests.support.sample_script import (
    complete_to_a_closed_pipe,
    sample,
    sample_and_be_killed,
    sample_without_streams,
)

MODEL = "qm9-mask-small"
FLAGS = ["--n", "12", "--steps", "6", "--solver", "neighbor", "--seed", "5"]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """The samples, from Python and in one batch."""
    trained = cwdfm.load(MODEL)
    solver = cwdfm.Euler(weight=cwdfm.Neighbor(1, 4.0))
    tokens: list[list[int]] = generate(trained, solver, n=12, steps=6, seed=5).tokens.tolist()
    return tokens


def test_processes_share_the_work(tmp_path: Path, expected: list[list[int]]) -> None:
    out = tmp_path / "a.jsonl"
    words = [MODEL, "--out", str(out), *FLAGS, "--batch-size", "2"]
    (tmp_path / "said").mkdir()
    said = ended_together(tmp_path / "said", sample, *words)
    assert read_samples(out).tokens == expected
    assert said.count("written: 12 samples") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "said"}


def test_a_killed_job_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expected: list[list[int]]
) -> None:
    out = tmp_path / "a.jsonl"
    words = [MODEL, "--out", str(out), *FLAGS, "--batch-size", "1"]
    assert ended(sample_and_be_killed, *words) == -signal.SIGKILL
    parts = tmp_path / "a.jsonl.parts"
    before = [path.name for path in parts.glob("*.json")]
    assert len(before) == 3
    assert not out.exists()
    cut = parts / before.pop()  # truncate a file, as a power failure would
    cut.write_text(cut.read_text()[:20])
    line = [MODEL, "--out", str(out), *FLAGS]
    with pytest.raises(cwdfm.InputError, match="a job with different settings"):
        sample_main([*line, "--temperature", "0.5"])
    sample_main([*line, "--batch-size", "5"])
    assert f"resuming: {len(before)} of 12 samples" in capsys.readouterr().out
    found = read_samples(out)
    assert found.tokens == expected
    assert found.head["drawn"] == 12 - len(before)
    assert list(tmp_path.iterdir()) == [out]


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    assert ended(complete_to_a_closed_pipe, str(tmp_path / "errors")) == 141
    assert (tmp_path / "errors").read_text() == ""


def test_closed_streams_are_not_an_error(tmp_path: Path) -> None:
    """Files that are opened later do not receive what is printed."""
    out = tmp_path / "a.smi"
    words = [MODEL, "--n", "2", "--steps", "1", "--out", str(out)]
    assert ended(sample_without_streams, *words) == 0
    assert len(out.read_text().splitlines()) == 2
    assert list(tmp_path.iterdir()) == [out]


def test_a_job_killed_after_its_last_write_leaves_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[list[int]]
) -> None:
    def killed(_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "a.jsonl"
    with monkeypatch.context() as context:
        context.setattr(PartialSamples, "discard", killed)
        with pytest.raises(KeyboardInterrupt):
            sample_main([MODEL, "--out", str(out), *FLAGS])
    assert (tmp_path / "a.jsonl.parts").is_dir()
    with pytest.raises(cwdfm.InputError, match="already exists"):
        sample_main([MODEL, "--out", str(out), *FLAGS])
    assert list(tmp_path.iterdir()) == [out]
    assert read_samples(out).tokens == expected


def test_an_interrupted_job_without_samples_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sample_cli, "sample_batches", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sample_main([MODEL, "--out", str(tmp_path / "a.jsonl"), *FLAGS])
    assert not list(tmp_path.iterdir())


def test_force_resumes_the_same_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expected: list[list[int]]
) -> None:
    """--force overwrites the file and deletes batches with different settings only."""
    out = tmp_path / "a.jsonl"
    line = [MODEL, "--out", str(out), *FLAGS]
    identity = settings(parse_options(line)[0]) | {"weights": cwdfm.load(MODEL).fingerprint()}
    parts = PartialSamples(out, identity)
    parts.open(force=False)
    parts.add({3: {"text": "kept", "tokens": expected[3], "evaluations": 0}})
    sample_main([*line, "--force"])
    assert "resuming: 1 of 12" in capsys.readouterr().out
    assert read_samples(out).texts[3] == "kept"
    parts.open(force=False)
    parts.add({3: {"text": "kept", "tokens": expected[3], "evaluations": 0}})
    parts.folder.joinpath("3-3.json").write_text('{"settings": {}, "samples": {}}')
    sample_main([*line, "--force"])
    assert read_samples(out).tokens == expected
    assert read_samples(out).texts[3] != "kept"


def test_missing_batches_are_an_error(tmp_path: Path, expected: list[list[int]]) -> None:
    """The output of another run is not overwritten by an incomplete one."""
    out = tmp_path / "a.jsonl"
    line = [MODEL, "--out", str(out), *FLAGS]
    options, _ = parse_options(line)
    parts = PartialSamples(out, settings(options))
    parts.add({3: {"text": "left", "tokens": expected[3], "evaluations": 0}})
    out.write_text("whole")
    remedy = rf"only 1 of 12 samples.*delete {re.escape(str(parts.folder))}"
    with pytest.raises(RunError, match=remedy):
        finish(options, parts, {}, cwdfm.load(MODEL).tokenizer)
    assert out.read_text() == "whole"


def test_a_file_is_locked_while_it_is_sampled(tmp_path: Path, expected: list[list[int]]) -> None:
    out = tmp_path / "a.jsonl"
    line = [MODEL, "--out", str(out), *FLAGS]
    with held(lock_file(out)), pytest.raises(cwdfm.InputError, match=rf"another run .*{out}"):
        sample_main([*line, "--force"])
    sample_main(line)  # a stale lock does not block
    assert read_samples(out).tokens == expected
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_file_of_a_run_that_finished_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, flags = tmp_path / "new" / "a.jsonl", ["--n", "1", "--steps", "1"]

    def load_slowly(*given: Any, **options: Any) -> cwdfm.Pretrained:
        out.write_text("of another run")
        return load_trained(*given, **options)

    sample_main([MODEL, "--out", str(out), *flags])  # the folder is created
    out.unlink()
    monkeypatch.setattr(sample_cli, "load_trained", load_slowly)
    with pytest.raises(cwdfm.InputError, match=rf"{out} already exists.*--force"):
        sample_main([MODEL, "--out", str(out), *flags])
    assert [(path.name, path.read_text()) for path in out.parent.iterdir()] == [
        (out.name, "of another run")
    ]


@pytest.mark.parametrize("place", ["files", "link to a file", "link to a folder"])
def test_files_of_the_user_are_never_deleted(tmp_path: Path, place: str) -> None:
    """Not even with --force, and not if their names are those of finished batches."""
    mine, out = tmp_path / "mine", tmp_path / "a.smi"
    parts, text = tmp_path / "a.smi.parts", '{"settings": {}, "samples": {}}'
    mine.mkdir()
    (mine / "0-1.json").write_text(text)
    if place == "files":
        mine.rename(parts)
    elif place == "link to a folder":
        parts.symlink_to(mine)
    else:
        PartialSamples(out, {}).open(force=False)
        (parts / "2-3.json").symlink_to(mine / "0-1.json")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    line = [MODEL, "--out", str(out), "--n", "2", "--steps", "1", "--force"]
    with pytest.raises(cwdfm.InputError, match=re.escape(str(parts))):
        sample_main(line)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    assert [path.read_text() for path in tmp_path.rglob("0-1.json")] == [text]


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that write everything at the end start over; the message says so."""

    def interrupted(_: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"cwdfm.cli.{COMMANDS[name].module}.main", interrupted)
    action = "resumes" if name in ("prepare", "train", "sample", "eval") else "starts over"
    ended = command(name)
    assert ended.returncode == 130
    assert ended.stderr == f"cwdfm: interrupted; the same command {action}\n"


PARTS = tuple(type(part) for part in vars(TrainConfig()).values() if is_dataclass(part))
CONFIGS = (TrainConfig, *PARTS, *METHODS.values(), *PATHS.values(), *LOSSES.values())


def test_every_option_has_help() -> None:
    """Each field of each command's options has a comment, which becomes its help text."""
    shown = [Options, train.Options, prepare.Options, evaluate.Options, demo.Options]
    shown += [*CONFIGS, TextSettings, perplexity.Options, analyze.Context, analyze.Updates]
    shown += [*(each.config for each in SOLVERS.values()), repro_options.Options]
    nested = ["config", "solver_options", "path", "loss", "text"]
    nested += [field.name for field in fields(TrainConfig)]
    for kind in shown:
        lines = inspect.getsource(kind).splitlines()
        for field in fields(kind):
            if field.name not in kind.__annotations__:
                continue  # inherited
            place = next(i for i, x in enumerate(lines) if x.strip().startswith(f"{field.name}:"))
            documented = any("# " in line for line in lines[place - 1 : place + 2])
            assert documented or field.name in nested, f"{kind.__module__}: {field.name}"


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


def test_line_breaks_are_preserved_or_rejected(tmp_path: Path) -> None:
    texts = ["a\nb", "c\r", "\r\nd\u2028", 'e"\\n', ""]
    samples = SampleFile(texts, [[1]] * len(texts))
    for name in ("a.jsonl", "a.csv"):
        write_samples(tmp_path / name, samples)
        assert read_samples(tmp_path / name).texts == texts
    own = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    (tmp_path / "own.jsonl").write_text(own)
    assert read_samples(tmp_path / "own.jsonl").texts == texts
    for name, text in (("a.txt", "a\nb"), ("b.txt", "c\r"), ("a.smi", "d\u2028e")):
        with pytest.raises(cwdfm.InputError, match=r"sample 2 .* line break.*\.jsonl or \.csv"):
            write_samples(tmp_path / name, SampleFile(["", text], [[1]] * 2))
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("model", ["qm9-mask-small", slow("qm9-uniform-small")])
def test_template(model: str) -> None:
    """Fixed tokens are kept, three tokens are sampled, and the end is that of the template."""
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
    assert (tokens[:, 1:12] >= 3).all(), "holes are filled with tokens of the molecule"
    again = generate(trained, solver, n=16, steps=16, template="c1ccccc1***", batch_size=5)
    assert torch.equal(tokens, again.tokens)


@pytest.mark.slow
def test_bundled_model_of_drug_like_molecules() -> None:
    """With corrections 90% of its samples are valid: fewer than 4 of 8 has probability 4e-4."""
    chem = pytest.importorskip("rdkit.Chem", reason="needs the extra 'molecules'")
    solver = cwdfm.Gibbs(cwdfm.Euler(hazard="integrated"), 4, "unlikely", begin=0.3)
    trained = cwdfm.load("moses-uniform-small")
    out = trained.generate(solver, n=8, steps=64, grid="kappa", resample=cwdfm.Resample(40))
    valid = [mol for mol in map(chem.MolFromSmiles, out.texts) if mol is not None]
    assert len(valid) >= 4
    assert sum(mol.GetNumHeavyAtoms() for mol in valid) / len(valid) > 15  # MOSES has 22


def test_template_of_the_bundled_text_model() -> None:
    pytest.importorskip("tokenizers", reason="needs the extra 'text'")
    trained = cwdfm.load("novels-small")
    out = trained.generate(n=4, steps=16, template="The [12] of the [3] was closed.")
    assert len(set(out.texts)) > 1
    for text in out.texts:
        assert text.startswith("The")
        assert " of the" in text
        assert text.endswith(" was closed.")


def test_prompt() -> None:
    trained = cwdfm.load(MODEL)
    out = generate(trained, cwdfm.Euler(), n=8, steps=8, prompt="N#C")
    assert all(trained.tokenizer.decode(row).startswith("N#C") for row in out.tokens.tolist())
    tokens, fixed = prompt_tokens(trained, prompt="N#C")
    assert tokens is not None
    assert fixed is not None
    assert fixed.tolist() == [True] * 4 + [False] * 28


def test_auto_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = cwdfm.load(MODEL)
    assert auto_batch_size(trained) == 256
    monkeypatch.setattr("cwdfm.trained._CPU_BUDGET", 32 * 256 * 4 * 24 * 7)
    assert auto_batch_size(trained) == 7
    assert auto_batch_size(trained, 7 * 32) == 1


@pytest.mark.parametrize("wanted", [{"length": 64}, {"length": 16}, {"template": "c1ccccc1***"}])
def test_auto_batch_size_depends_on_the_length(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    trained = cwdfm.load(MODEL)
    requests = []

    def record(self: object, model: object, solver: object, request: SampleRequest) -> Any:
        requests.append(request)
        zeros = torch.zeros(request.shape, dtype=torch.int64)
        return cwdfm.Samples(zeros, zeros, zeros, zeros[:, 0], 0)

    monkeypatch.setattr("cwdfm.trained._CPU_BUDGET", 32 * 256 * 4 * 24 * 6)
    monkeypatch.setattr(type(trained.method), "sample", record)
    generate(trained, n=8, steps=8, **wanted)
    length = wanted.get("length", 32)
    assert [(each.shape, each.batch_size) for each in requests] == [((8, length), 6 * 32 // length)]


def test_out_of_memory_halves_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[list[int]]
) -> None:
    sizes = []

    def short(trained: cwdfm.Pretrained, solver: cwdfm.Solver, **options: Any) -> cwdfm.Samples:
        sizes.append(options["n"])
        if options["n"] > 3:
            raise torch.OutOfMemoryError
        return generate(trained, solver, **options)

    monkeypatch.setattr("cwdfm.cli.sample.generate_samples", short)
    out = tmp_path / "a.jsonl"
    sample_main([MODEL, "--out", str(out), *FLAGS])
    assert read_samples(out).tokens == expected
    assert sizes == [12] * 5 + [8, 4] + [2] * 6  # batch sizes 256, 128, 64, 32, 16, 8, 4, 2


def test_unreadable_files(tmp_path: Path) -> None:
    cases = {
        "a.jsonl": ('{"options": {}}\n{"text": "C", "tok', "line 2 is not JSON"),
        "b.jsonl": ('{"options": {}}\n{"smiles": "C"}\n', "line 2 has no valid 'text'"),
        "h.jsonl": ('{"text": "C"}\n' + "[" * 10**5, "line 2 is not JSON"),
        "i.jsonl": ('{"text": "C"}\n' + "9" * 5000, "line 2 is not JSON"),
        "j.jsonl": ('{"text": "\\ud800", "tokens": [1]}\n', "line 1 has no valid 'text'"),
        "k.jsonl": ('{"text": "C", "tokens": 3}\n', "line 1 has 'tokens' that are not ids"),
        "l.jsonl": ('{"text": "C", "tokens": ["C"]}\n', "line 1 has 'tokens' that are not ids"),
        "m.jsonl": ('{"text": "C", "tokens": [-1]}\n', "line 1 has 'tokens' that are not ids"),
        "f.jsonl": ("[1]\n", "line 1 is not a JSON object"),
        "g.jsonl": ('{"options": 5}\n', "line 1 .*options are not a JSON object"),
        "c.csv": ("name\nC\n", "no column 'text' or 'smiles', only 'name'"),
        "d.smi": ("", "contains no samples"),
        "e.doc": ("C\n", "must end in"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(cwdfm.InputError, match=message):
            read_samples(tmp_path / name)
    with pytest.raises(cwdfm.InputError, match=r"none\.smi does not exist"):
        read_samples(tmp_path / "none.smi")


def test_files_of_other_programs(tmp_path: Path) -> None:
    (tmp_path / "a.smi").write_text("CCO ethanol\n\nC\n")
    assert read_samples(tmp_path / "a.smi").texts == ["CCO", "", "C"]
    (tmp_path / "a.csv").write_text("\ufeffSMILES,id\nCCO,1\nC,2\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("smiles,text\nCCO,a\nC,b\n")
    assert read_samples(tmp_path / "a.csv").texts == ["CCO", "C"]
    assert read_samples(tmp_path / "b.csv").texts == ["a", "b"]


def test_the_header_records_the_provenance(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    sample_main([MODEL, "--out", str(out), "--n", "3", "--steps", "2"])
    head = read_samples(out).head
    assert head["options"]["model"] == MODEL
    assert head["provenance"]["command"]
    assert head["model"]["recipe"]["source"] == "mask"
    assert 3 <= head["evaluations"] <= 6


def test_option_names_of_version_0_1_are_read(tmp_path: Path) -> None:
    """Sample files keep the option names of the version that wrote them."""
    old = {"steps": 6, "mend": 2, "mend_trust": 0.5, "accept": 0.9, "accept_tries": 4}
    write_samples(tmp_path / "a.jsonl", SampleFile(["C"], [[1]], {"options": old}))
    new = {"steps": 6, "resample": 2, "resample_threshold": 0.5, "reject_below": 0.9}
    assert read_samples(tmp_path / "a.jsonl").options == new | {"max_tries": 4}


def test_help_shows_the_options_of_the_solver() -> None:
    cases = (("neighbor", "--radius", "--beta"), ("auto", "--hazard", "--radius"))
    for solver, shown, hidden in cases:
        text = command("sample", "--solver", solver, "--help").stdout
        assert shown in text
        assert hidden not in text


def test_call_depth_from_the_command_to_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 7 nested calls of the package, from `main` to `Euler.step`, both included."""
    depths: list[list[str]] = []
    step = cwdfm.Euler.step.__wrapped__  # type: ignore[attr-defined]

    def measured(self: cwdfm.Euler, *arguments: Any) -> Any:
        if not depths:
            frames = inspect.stack(0)[1:]
            names = [
                f.function for f in frames if f.frame.f_globals["__name__"].startswith("cwdfm")
            ]
            depths.append(names[: names.index("main", names.index("main") + 1) + 1])
        return step(self, *arguments)

    monkeypatch.setattr(cwdfm.Euler, "step", measured)
    line = ["sample", "qm9-uniform-small", "--out", str(tmp_path / "a.smi"), "--n", "2"]
    monkeypatch.setattr(sys, "argv", ["cwdfm", *line, "--steps", "2"])
    main()
    assert len(depths[0]) + 1 <= 7, depths[0]
