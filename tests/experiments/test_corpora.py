"""Corpora and evaluators of `python -m experiments run` are checked before any task starts."""

import gzip
import json
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

import cwdfm
import experiments.tasks.score as score_module
from cwdfm.data import prepare
from cwdfm.metrics.evaluator import EvaluatorLM
from experiments.catalog import EXPERIMENTS
from experiments.cli.resources import unused_flags
from experiments.engine import Outcome, run_tasks, unavailable_tasks
from experiments.store import Store
from experiments.tasks.base import Resources, Task, in_order
from experiments.tasks.corpora import check_corpus
from experiments.tasks.sample import HeldOut
from experiments.tasks.score import Text
from experiments.tasks.train import Train, load_corpus
from experiments.toy_evaluator import toy_evaluator
from tests.support.cases import slow
from tests.support.command import Ended, command
from tests.support.evaluators import save_gpt2
from tests.support.texts import SIZES, Stories

HERE = Resources("cpu")
ALL = in_order(task for e in EXPERIMENTS.values() for task in e.plan("smoke").tasks)


def check(resources: Resources, tasks: Iterable[Task] = ALL, kinds: Collection[str] = ()) -> None:
    unavailable_tasks([task for task in tasks if not kinds or task.kind in kinds], resources)


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with an untrained evaluator LM."""
    return str(save_gpt2(tmp_path_factory.mktemp("evaluator")))


def write_files(folder: Path, contents: dict[str, str]) -> Path:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        packed = gzip.compress(content.encode()) if name.endswith("gz") else content.encode()
        (folder / name).write_bytes(packed)
    return folder


def test_a_store_keeps_to_one_evaluator(
    tmp_path: Path, evaluator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared by its files or its hub name; what cannot be loaded is not remembered."""
    tasks = [Text(HeldOut("text", 64, n), "any") for n in (2, 3, 4)]
    note = tmp_path / "judge-any.json"

    def run(task: Text, path: str) -> Outcome:
        resources = replace(HERE, text="python-topics", eval_model=path)
        return run_tasks(Store(tmp_path), [task], resources, log=lambda _: None)

    (tmp_path / "damaged.gguf").write_text("")
    assert tasks[0] in run(tasks[0], str(tmp_path / "damaged.gguf")).failed
    assert not note.exists()
    assert run(tasks[0], evaluator).complete
    assert re.fullmatch(r'"[0-9a-f]{64}"\n', note.read_text())
    monkeypatch.setattr(score_module, "load_evaluator", lambda *_: EvaluatorLM(evaluator).load())
    with pytest.raises(cwdfm.InputError, match=r"judge-any .*\(gpt2\)"):
        run(tasks[1], "gpt2")
    note.unlink()
    assert run(tasks[1], "gpt2").complete
    assert json.loads(note.read_text()) == "gpt2"
    with pytest.raises(cwdfm.InputError, match=r"judge-any \(gpt2\) .*\(gpt2-large\)"):
        run(tasks[2], "gpt2-large")


@pytest.mark.parametrize("terminal", [False, True])
def test_an_evaluator_loads_without_progress_bars(
    terminal: bool,
    tmp_path: Path,
    evaluator: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    score_module.load_evaluator.cache_clear()
    score_module.load_evaluator(toy_evaluator(tmp_path / "toy"), "float32", "cpu")
    assert capsys.readouterr().err == ""
    EvaluatorLM(evaluator, device="cpu").load()
    assert ("Loading weights" in capsys.readouterr().err) is terminal


@pytest.mark.parametrize("name", ["NOVEL.TXT", slow("novel.txt"), slow("novel.txt.gz")])
def test_a_txt_file_can_be_a_text_corpus(tmp_path: Path, name: str) -> None:
    """Elsewhere it is read as molecules unless a tokenizer is given."""
    text = b"It was the best of times, and the worst. " * 200
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    task, resources = HeldOut("text", 16, 2), replace(HERE, text=str(tmp_path / name))
    assert run_tasks(Store(tmp_path / "jobs"), [task], resources, log=lambda _: None).complete


NOWHERE = Resources(
    "cpu",
    molecules="/nowhere/molecules.smi",
    text="/nowhere/text",
    eval_model="/nowhere/model.gguf",
    tests=(("lambada", "/nowhere/*.jsonl"),),
)
READ = {
    **dict.fromkeys(("train", "heldout", "likelihood", "context"), NOWHERE.text),
    "molecules": NOWHERE.molecules,
    "text": NOWHERE.eval_model,
    "testlikelihood": "/nowhere/*.jsonl",
}


def test_every_task_checks_the_paths_it_reads() -> None:
    text = [task for task in ALL if task.corpus_kind == "text"]
    for kind, path in READ.items():
        with pytest.raises(cwdfm.InputError, match=re.escape(str(path))):
            check(NOWHERE, ALL if kind == "molecules" else text, (kind,))
    check(NOWHERE, kinds={task.kind for task in ALL} - set(READ))
    check(replace(HERE, molecules="moses"))
    for name in ("gpt2-large", "HuggingFaceTB/SmolLM2-135M"):  # without asking the hub
        check(replace(HERE, eval_model=name), kinds=("text",))


def test_a_corpus_of_the_wrong_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    molecules, novel = str(tmp_path / "a.smi"), str(tmp_path / "novel.txt")
    for path in (molecules, novel):
        Path(path).write_text("C\nCC\nCCC\n")
    for path in ("qm9", molecules):
        for resources in (replace(HERE, text=path), replace(HERE, tests=(("lambada", path),))):
            with pytest.raises(cwdfm.InputError, match=f"{path}.* read as molecules"):
                check(resources)
    for path in ("python-topics", str(tmp_path)):
        with pytest.raises(cwdfm.InputError, match=f"{path}.* read as text"):
            check(replace(HERE, molecules=path))
    check(replace(HERE, text=novel, molecules=novel))  # can be either
    (tmp_path / "empty" / "qm9").mkdir(parents=True)
    with pytest.raises(cwdfm.InputError, match="empty"):
        check(replace(HERE, text=str(tmp_path / "empty")))
    monkeypatch.chdir(tmp_path / "empty")
    check_corpus.cache_clear()
    check(replace(HERE, molecules="qm9"))  # the name of a dataset, not the folder


@pytest.mark.parametrize("name", ["paper.pdf", "paper", "paper.parquet.gz"])
def test_a_text_file_with_an_unknown_suffix(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    for flags in ("--text", str(tmp_path / name)), ("--tests", f"lambada={tmp_path / name}"):
        ended = command("run", "perplexity", "--out", tmp_path / "x", *flags, "--dry-run")
        assert ended.returncode == 2
        assert re.search(rf"{name} .*\.txt", ended.stderr)
        assert "molecules" not in ended.stderr


@pytest.mark.parametrize(
    ("flag", "name", "content"),
    [
        ("--text", "a.txt", ""),
        ("--text", "a.txt.gz", ""),
        ("--text", "a.md", " \n\n\t\n"),
        ("--text", "a.jsonl", '{"text": ""}\n{"text": " "}\n'),
        ("--text", ".", "\n"),
        ("--molecules", "a.smi", ""),
        ("--molecules", "a.smi", "\n \n"),
        ("--molecules", "a.smi", "Call me Ishmael.\nSome years ago\n"),
        ("--molecules", "a.csv", "smiles\n"),
    ],
)
def test_an_empty_corpus(tmp_path: Path, flag: str, name: str, content: str) -> None:
    corpus = write_files(tmp_path / "corpus", {"a.txt" if name == "." else name: content})
    out = tmp_path / "x"
    ended = command("run", "losses", "--out", out, flag, corpus / name, "--device", "cpu")
    assert ended.returncode == 2
    assert re.search("contains no text|0 usable molecules", ended.stderr)
    assert not out.exists()


def test_checks_are_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not read large files, and leave missing packages to the task."""
    blank, prose = "\n" * (1 << 20), "Call me Ishmael.\n"
    few = {"a.txt": "\n", "b.jsonl": '{"text": "one"}\nno JSON\n', "c.parquet": "none"}
    corpus = write_files(tmp_path, {"large.txt": blank + "x", "large.smi": prose * 1000})
    for path in (corpus / "large.txt", write_files(tmp_path / "few", few)):
        check_corpus(str(path), text=True)
    check_corpus(str(corpus / "large.smi"), text=False)
    write_files(tmp_path, {"one.parquet": "none", "few.smi": prose})
    for module in ("pyarrow.parquet", "rdkit.Chem"):
        monkeypatch.setitem(sys.modules, module, None)
    check_corpus(str(tmp_path / "one.parquet"), text=True)
    check_corpus(str(tmp_path / "few.smi"), text=False)


def test_a_corpus_prepared_with_a_different_length(tmp_path: Path) -> None:
    paths = {length: str(tmp_path / str(length)) for length in (32, 64)}
    for length, path in paths.items():
        prepare(Stories(sizes=SIZES), "bytes", length, Path(path))
    check(replace(HERE, text=paths[64], tests=(("lambada", paths[64]),)))
    for given in ({"text": paths[32]}, {"tests": (("lambada", paths[32]),)}):
        with pytest.raises(cwdfm.InputError, match=r"32.*64"):
            check(replace(HERE, **given))
    cwdfm.data.load("qm9", length=16, limit=64).save(tmp_path / "short.npz")
    with pytest.raises(cwdfm.InputError, match="length"):
        check(replace(HERE, molecules=str(tmp_path / "short.npz")))


def test_unused_flags(tmp_path: Path) -> None:
    resources = Resources("cpu", "moses", "python-topics", "gpt2", (("lambada", "x"),))
    flags = ["--molecules", "--text", "--eval-model", "--tests lambada"]
    for names, corpora, unused in (
        (("losses",), ("molecules", "text"), flags[3:]),
        (("losses",), ("text",), [flags[0], flags[3]]),
        (("losses",), ("molecules",), flags[1:]),
        (("losses", "perplexity"), ("molecules", "text"), []),
        (("perplexity",), ("text",), [flags[0], flags[2]]),
    ):
        tasks = [task for name in names for task in EXPERIMENTS[name].plan("smoke").tasks]
        order = in_order(task for task in tasks if task.corpus_kind in corpora)
        assert unused_flags(resources, ("molecules", "text"), order) == unused
        assert not unused_flags(HERE, (), order)
    given = ["--molecules", "qm9", "--eval-model", "gpt2", "--time-limit", "0", "--device", "cpu"]
    ended = command("run", "radius", "--out", tmp_path / "a", *given)
    assert ended.returncode == 0
    assert re.fullmatch(r"note: --molecules: .*radius\n", ended.stderr)


def test_a_dry_run_compares_fingerprints(
    tmp_path: Path, evaluator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It exits with code 2 like the real run, and writes nothing, not even to the cache."""
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    texts = {"text.txt": "It was the best of times. " * 500, "other.txt": "A whale. " * 900}
    molecules = {"own.smi": "C\nCC\nCCC\nCO\n", "more.smi": "C\nCC\nCCC\nCN\n"}
    write_files(tmp_path, texts | molecules)
    store = Store(tmp_path / "x" / "jobs")
    own = replace(HERE, molecules=str(tmp_path / "own.smi"), text=str(tmp_path / "text.txt"))
    for task in in_order(EXPERIMENTS["paths"].plan("smoke").tasks):
        if isinstance(task, Train):
            load_corpus(task.corpus, task.recipe.length, store, own)
    store.check_fingerprint("judge-any", score_module.evaluator_fingerprint(evaluator))

    def dry(molecules: str, text: str, path: str) -> Ended:
        given = ["--molecules", tmp_path / molecules, "--text", tmp_path / text]
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        given += ["--eval-model", path]
        ended = command("run", "paths", "--out", tmp_path / "x", *given, "--dry-run")
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        return ended

    ended = dry("own.smi", "text.txt", evaluator)
    assert (ended.returncode, ended.stderr) == (0, "")
    for given, name in (
        (("more.smi", "text.txt", evaluator), "molecules-"),
        (("own.smi", "other.txt", evaluator), "text-"),
        (("own.smi", "text.txt", "gpt2"), "judge-any"),
    ):
        ended = dry(*given)
        assert ended.returncode == 2
        assert f"different {name}" in ended.stderr
        assert "would run" in ended.stdout


def test_a_dry_run_downloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        pytest.fail("the corpus was read")

    monkeypatch.setattr("experiments.cli.resources.load_corpus", fail)
    train = next(
        t for t in in_order(EXPERIMENTS["radius"].plan("smoke").tasks) if t.kind == "train"
    )
    assert isinstance(train, Train)
    Store(tmp_path / "jobs").check_fingerprint(f"text-{train.recipe.length}", "a" * 64)
    for name in ("openwebtext", "text8"):
        ended = command("run", "radius", "--out", tmp_path, "--text", name, "--dry-run")
        assert ended.returncode == 0
        assert f"{name} is not downloaded" in ended.stdout


def test_paths_of_an_evaluator(
    tmp_path: Path, evaluator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = EXPERIMENTS["radius"].plan("smoke").tasks
    (tmp_path / "whole.gguf").write_text("")
    for path in (evaluator, str(tmp_path / "whole.gguf")):
        check(replace(HERE, eval_model=path), tasks)
    monkeypatch.setitem(sys.modules, "gguf", None)  # needed only by the task
    check(replace(HERE, eval_model=str(tmp_path / "whole.gguf")), tasks)
    (tmp_path / "weights.bin").write_text("")
    for path in ("model.gguf", "./model", "~/no/model", "a/b/c", "", str(tmp_path / "weights.bin")):
        with pytest.raises(cwdfm.InputError):
            check(replace(HERE, eval_model=path), tasks)
