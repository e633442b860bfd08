"""The command line: what it writes, and exit code 2 with a message for wrong input."""

import contextlib
import errno
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
from cwdfm import __version__
from cwdfm.cli import analyze, demo, evaluate, perplexity, prepare
from cwdfm.cli.main import COMMANDS, main
from cwdfm.cli.options import by_flags
from cwdfm.cli.train import Terminal
from cwdfm.data import SmilesTokenizer, TokenData, canonical, load
from cwdfm.errors import InputError
from cwdfm.files import LOCK, held
from cwdfm.pretrained import load as load_model
from cwdfm.provenance import provenance
from cwdfm.sample_file import SampleFile, write_samples
from cwdfm.train.config import TrainConfig
from tests.support.cases import slow
from tests.support.command import command, rejected, succeeded

ROOT = Path(__file__).parents[2]
MOLECULES = ["C" * n + end for n in range(1, 9) for end in ("", "O", "N", "=O", "#N", "(C)C")]


def test_unknown_command_in_a_subprocess() -> None:
    line = [sys.executable, "-m", "cwdfm.cli.main", "dance"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"cwdfm: unknown command 'dance'; choose from {', '.join(COMMANDS)}\n"


def test_library_warnings_are_printed_as_notes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warned(_: list[str]) -> None:
        warnings.simplefilter("always")
        for _again in range(2):
            warnings.warn_explicit("of ours", UserWarning, cwdfm.__file__, 7)
            warnings.warn_explicit("of others", UserWarning, "/elsewhere/other.py", 7)

    monkeypatch.setattr(demo, "main", warned)
    monkeypatch.setattr(sys, "argv", ["cwdfm", "demo"])
    others: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda *expected: others.append(str(expected[0])))
    main()
    assert capsys.readouterr().err == "note: of ours\n"
    assert others == ["of others"] * 2


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny dataset, prepared as one file."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "my.smi").write_text("\n".join(MOLECULES))
    data: TokenData = load(folder / "my.smi", length=16, cache=False)
    assert isinstance(data.tokenizer, SmilesTokenizer)
    data.save(folder / "my.npz")
    return folder / "my.npz"


def test_molecules_are_prepared_into_one_file(tmp_path: Path) -> None:
    (tmp_path / "my.smi").write_text("\n".join(MOLECULES))
    out = tmp_path / "new" / "my.npz"
    done = succeeded(
        "prepare", tmp_path / "my.smi", "--length", 16, "--randomized", 3, "--out", out
    )
    assert f"written: {out}" in done.stdout
    own, randomized = load(tmp_path / "my.smi", length=16, cache=False), load(out)
    assert len(randomized.train) == 3 * len(own.train)
    assert {canonical(text) for text in randomized.texts("train")} == set(own.texts("train"))


def test_prepare_names_the_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("cwdfm.cli.progress._INTERVAL", -1.0)
    path, out = tmp_path / "my.smi", tmp_path / "my.npz"
    path.write_text("\n".join(MOLECULES * 30))
    done = succeeded("prepare", path, "--condition", "logp", "qed", "--workers", 1, "--out", out)
    lines = [line.split(":")[0] for line in done.stderr.splitlines()]
    assert lines == ["reading my.smi", "properties"]


def test_prepare_does_not_overwrite_other_files(tmp_path: Path) -> None:
    for name, smiles in (("my.smi", MOLECULES), ("other.smi", MOLECULES[1:])):
        (tmp_path / name).write_text("\n".join(smiles))
    mine, other, out = tmp_path / "my.smi", tmp_path / "other.smi", tmp_path / "my.npz"
    flags = ["--length", 16, "--out", out]
    out.write_text("precious")
    said = rejected("prepare", mine, *flags)
    assert f"{out} already exists" in said
    assert "--force" in said
    assert out.read_text() == "precious"
    succeeded("prepare", mine, *flags, "--force")
    before = out.stat().st_mtime_ns, out.read_bytes()
    assert f"written: {out}" in succeeded("prepare", mine, *flags).stdout
    for different in ([other, *flags], [mine, *flags, "--randomized", 2], [mine, "--out", out]):
        assert "different data or with different options" in rejected("prepare", *different)
    assert before == (out.stat().st_mtime_ns, out.read_bytes())
    randomized = [mine, *flags, "--randomized", 2, "--seed", 3]
    for more in (["--force"], []):
        succeeded("prepare", *randomized, *more)
    assert load(out).source["spelling_seed"] == 3
    assert command("prepare", *randomized[:-1], 4).returncode == 2


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    flags = ["--data", prepared, "--length", 16, "--steps", 12, "--batch-size", 16]
    flags += ["--checkpoint-every", 6, "--validate-every", 6, "--log-every", 6]
    done = succeeded("train", "qm9-debug", "--out", out, *flags)
    assert "validation_loss" in done.stdout
    again = command("train", "qm9-debug", "--out", out, *flags)
    assert "all steps are done" in again.stdout
    return out / "model"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), slow(signal.SIGINT, 130)])
def test_interrupted_training_returns_the_signal_code(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    """The run saves a checkpoint and exits with an error, so that `&&` stops."""
    monkeypatch.setattr(Terminal, "step", lambda *_: os.kill(os.getpid(), number))
    flags = ["--data", prepared, "--length", 16, "--steps", 12, "--batch-size", 16]
    done = command("train", "qm9-debug", "--out", tmp_path, *flags)
    assert done.returncode == code, done.stderr
    assert "interrupted at step 2; the same command resumes from there" in done.stdout
    assert [path.name for path in tmp_path.glob("checkpoints/*")] == ["step-00000002"]
    assert not (tmp_path / "model").exists()
    monkeypatch.undo()
    sample = ["--n", 2, "--steps", 2, "--force", "--out", tmp_path / "a.smi"]
    expected = "sampling from its checkpoint at step 2 of 12\n"
    assert command("sample", tmp_path, *sample).stderr.endswith(expected)
    named = succeeded("sample", tmp_path / "checkpoints" / "step-00000002", *sample)
    assert "not finished" not in named.stderr, "the checkpoint was named explicitly"
    again = succeeded("train", "qm9-debug", "--out", tmp_path, *flags)
    assert "resuming from step 2" in again.stdout
    assert "not finished" not in command("sample", tmp_path, *sample).stderr
    shutil.rmtree(tmp_path / "model")  # the last checkpoint is equivalent
    assert "not finished" not in command("sample", tmp_path, *sample).stderr


@pytest.mark.parametrize("solver", ["neighbor", slow("euler"), slow("entropy")])
def test_train_then_sample(trained: Path, tmp_path: Path, solver: str) -> None:
    out = tmp_path / "a.jsonl"
    flags = ["--n", 8, "--steps", 6, "--solver", solver, "--batch-size", 3]
    succeeded("sample", trained, "--out", out, *flags)
    head, *rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert head["options"]["solver"] == solver
    assert head["provenance"]["command"]
    assert len(rows) == 8
    smi = tmp_path / "a.smi"
    succeeded("sample", trained, "--out", smi, *flags)
    assert smi.read_text().split("\n")[:8] == [row["text"] for row in rows]
    said = rejected("sample", trained, "--out", out, *flags)
    assert "already exists" in said
    assert "--force" in said


@pytest.mark.parametrize(
    ("options", "fields", "message", "expected"),
    [
        (evaluate.Options, ["first_token"], "use first_token='skip'", "use --first-token skip"),
        (evaluate.Options, ["fold_size"], "fold_size must be 1", "--fold-size must be 1"),
        (evaluate.Options, ["retokenize"], "set retokenize=False", "set --no-retokenize"),
        (evaluate.Options, ["force"], "or set force=True", "or set --force"),
        (evaluate.Options, ["end"], "use keep, or pass it as end='...'", "use keep"),
        (TrainConfig, ["batch_size"], "batch_size 3 must be 4", "--batch-size 3 must be 4"),
        (TrainConfig, [], "model is damaged; copy it again", "model is damaged; copy it again"),
        (TrainConfig, ["data"], "my/data/data.smi has no data", "my/data/data.smi has no --data"),
        (perplexity.Options, ["boundary"], "cut it, or boundary='cut'; or not", "cut it; or not"),
        (analyze.Context, ["boundary"], "8, or boundary='cut'", "8, or --boundary cut"),
        (prepare.Options, ["column"], "no column in column='a b'", "no column in --column 'a b'"),
        (prepare.Options, ["column", "part"], "column= and part=", "--column and --part"),
    ],
)
def test_errors_name_flags(options: type, fields: list[str], message: str, expected: str) -> None:
    with pytest.raises(InputError) as raised, by_flags(options):
        raise InputError(message, fields=tuple(fields))
    assert str(raised.value) == expected


def test_version_is_printed_and_recorded() -> None:
    shown = succeeded("--version")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert shown.stdout.startswith(f"cwdfm {__version__} ")
    assert f"torch {torch.__version__}, device {device}: " in shown.stdout
    assert provenance()["versions"]["cwdfm"] == __version__


def test_help() -> None:
    assert command().returncode == 2
    for line, expected in (
        ("--help", "train"),
        ("--help", "perplexity"),
        ("train --help", "qm9-paper"),
        ("train --out y -h", "qm9-paper"),
        ("sample --help", "--resample-threshold"),
        ("train qm9-debug --help", "--learning-rate"),
        ("perplexity --help", "--draws"),
        ("analyze context --help", "--radius"),
        ("analyze updates --help", "--solvers"),
        ("analyze --help", "context  How hard masked tokens are"),
        ("analyze --help", "updates  How often solvers update each token"),
    ):
        assert expected in succeeded(*line.split()).stdout
    bundled = cwdfm.bundled_models()
    assert len(bundled) > 1
    for name in ("sample", "perplexity", "analyze context", "analyze updates"):
        shown = command(*name.split(), "--help").stdout
        assert all(model in shown for model in bundled)


def test_commands_in_the_help_text_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is run as printed, except that it draws fewer samples."""
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^  cwdfm (.+)$", command("--help").stdout, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["demo", "sample"]
    succeeded(*lines[1].split(), "--n", 2, "--steps", 2)
    assert len(Path("molecules.smi").read_text().splitlines()) == 2


INTERRUPTED = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, *rest):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from cwdfm.cli.main import main
sys.argv = ["cwdfm", "demo"]
main()
"""


def test_ctrl_c_during_imports() -> None:
    """The process ends by the signal, without a traceback."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        cwd=ROOT,
        # A shell that starts the tests in the background ignores the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


def test_ascii_terminal_still_prints_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the character that the terminal cannot show is replaced."""
    (tmp_path / "a.smi").write_text("\n".join(MOLECULES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path))
    line = ["perplexity", "qm9-mask-small", "--data", "a.smi", "--draws", "2", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["cwdfm", *line])
    shown = io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(shown, encoding="ascii")) as terminal:
        main()
        terminal.flush()
    assert re.search(rb"<= [0-9.]+ \? [0-9.]+ ", shown.getvalue())


def test_incomplete_torchrun_variables_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler may leave some of the variables set."""
    line = ["sample", "qm9-mask-small", "--n", 2, "--steps", 2, "--out", tmp_path / "a.smi"]
    line += ["--device", "cpu"]
    steps = (
        ({"RANK": "0"}, "WORLD_SIZE, MASTER_PORT is missing"),
        ({"WORLD_SIZE": "1", "MASTER_PORT": "x"}, "but MASTER_PORT is missing"),
        ({"MASTER_PORT": "29512"}, "but MASTER_ADDR is missing"),
    )
    for variables, expected in steps:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        said = rejected(*line)
        assert expected in said
        assert "unset RANK" in said
    assert not list(tmp_path.iterdir())


def test_arguments_must_be_valid_utf8(tmp_path: Path) -> None:
    for word in ("--prompt=\udcff", f"--out={tmp_path}/\udcff.smi"):
        said = rejected("sample", "qm9-mask-small", "--n", 2, "--steps", 2, word)
        assert "\\udcff" in said
        assert "is not valid UTF-8" in said
    assert not list(tmp_path.iterdir())


DEVICES = {  # commands with --device, and their required arguments
    "train": "qm9-debug --out x",
    "sample": "qm9-mask-small --out x.smi",
    "eval": "a.jsonl --out x --folds 1 --eval-model gpt2",
    "perplexity": "qm9-mask-small --data qm9",
    "analyze": "context qm9-mask-small --data qm9 --out x",
    "app": "--no-open",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_rejects_an_unknown_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = DEVICES.get(name, "").split()[:1]
    assert ("--device" in command(name, *first, "--help").stdout) == (name in DEVICES)
    if name not in DEVICES:
        return
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path / "a.jsonl", SampleFile(["ab"], [[97, 98]], {"tokenizer": "bytes"}))
    said = rejected(name, *DEVICES[name].split(), "--device", "foo")
    assert said.startswith("cwdfm: --device must be auto, cpu, cuda or cuda:NUMBER, got 'foo'")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_folder_of_an_active_run_is_locked(tmp_path: Path) -> None:
    train = ["train", "qm9-debug", "--out", str(tmp_path), "--data", "/no.smi", "--device", "cpu"]
    with held(tmp_path / LOCK) as mine:
        assert mine
        assert f"another run is training in {tmp_path}; wait" in rejected(*train)
    assert "another run" not in command(*train).stderr  # the missing data are reported instead
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_rejected_run_leaves_no_files(tmp_path: Path) -> None:
    train = ["train", "qm9-debug", "--out", str(tmp_path / "a" / "run"), "--device", "cpu"]
    assert command(*train, "--data", "/nowhere.smi").returncode == 2
    assert not list(tmp_path.iterdir())
    if importlib.util.find_spec("wandb") is None:
        assert "pip install 'cwdfm[wandb]'" in rejected(*train, "--wandb", "mine")
        assert not list(tmp_path.iterdir())


def test_file_system_without_locks_is_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        def flock(*_: object) -> None:
            raise OSError(number, "no lock")

        monkeypatch.setattr("fcntl.flock", flock)

    fail(errno.ENOSYS)
    with pytest.warns(UserWarning, match="SoftFileLock"), held(tmp_path / LOCK) as mine:
        assert mine
    fail(errno.ENOLCK)
    (tmp_path / "other").mkdir()
    with held(tmp_path / "other" / LOCK) as mine:
        assert mine
    fail(errno.EIO)
    (tmp_path / "lock").unlink(missing_ok=True)
    with pytest.raises(OSError, match="no lock"), held(tmp_path / LOCK):
        pass


def test_out_of_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(_: list[str]) -> None:
        raise MemoryError

    def allocates(_: list[str]) -> None:
        torch.empty(2**60)  # torch raises a RuntimeError for CPU memory

    for failing in (short, allocates):
        monkeypatch.setattr(demo, "main", failing)
        assert "out of memory" in rejected("demo")


def test_missing_permissions_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable file is not reported as missing, and no plan is printed."""
    load_model("qm9-mask-small").save_pretrained(tmp_path / "model")
    weights, plain = tmp_path / "model" / "model.safetensors", Path.open

    def fail(path: Path, *args: Any, **more: Any) -> Any:
        if path == weights:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return plain(path, *args, **more)

    monkeypatch.setattr(Path, "open", fail)
    few = ("--n", 2, "--steps", 2, "--device", "cpu")
    line = ["sample", tmp_path / "model", "--out", tmp_path / "a.smi", *few]
    assert f"no permission to read {weights}" in rejected(*line)
    monkeypatch.setattr(os, "access", lambda *_: False)
    ended = command("run", "updates", "--out", tmp_path / "all")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"no permission to write into {tmp_path}" in ended.stderr


def test_damaged_models_name_the_problem(tmp_path: Path) -> None:
    trained = load_model("qm9-mask-small")
    trained.save_pretrained(tmp_path / "without")
    (tmp_path / "without" / "model.safetensors").unlink()
    trained.save_pretrained(tmp_path / "key")
    config = tmp_path / "key" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lenght": 9}))
    with torch.no_grad():
        for weight in trained.model.parameters():
            weight.fill_(torch.nan)
    trained.save_pretrained(tmp_path / "nan")
    for name, message in (
        ("without", "model.safetensors is missing"),
        ("key", f"{config} is invalid: unknown fields lenght"),
        ("nan", "are NaN"),
    ):
        out = ["--out", str(tmp_path / "a.smi"), "--n", "2", "--steps", "2", "--device", "cpu"]
        assert message in rejected("sample", tmp_path / name, *out)
