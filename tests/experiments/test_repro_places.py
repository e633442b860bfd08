"""Places of corpora and judges: wrong ones are told before any job is begun, others kept apart."""

import gzip
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cwdfm
import experiments.scores as scores_module
from cwdfm.metrics.evaluator import EvaluatorLM
from experiments.brought import unread
from experiments.catalog import EXPERIMENTS
from experiments.job import Resources, Store
from experiments.jobs import HeldOut, Train, corpus_of, tokens_of
from experiments.places import check_corpus
from experiments.scores import Text
from experiments.sweep import Outcome, check, in_order, work
from experiments.toy_evaluator import toy_evaluator
from tests.support.command import Ended, command
from tests.support.evaluators import byte_tokenizer, gpt2

HERE = Resources(torch.device("cpu"))


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with one that knows nothing."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("judge")
    byte_tokenizer(transformers).save_pretrained(folder)
    gpt2(transformers, vocab_size=258).save_pretrained(folder)
    return str(folder)


def test_judges_are_told_apart(tmp_path: Path, judge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their files, by their names on the hub; and what cannot be loaded is not remembered."""
    jobs = [Text(HeldOut("text", 64, n), "any") for n in (2, 3, 4)]
    note = tmp_path / "judge-any.json"

    def judging(job: Text, by: str) -> Outcome:
        here = replace(HERE, text="python-topics", eval_model=by)
        return work(Store(tmp_path), [job], here, say=lambda _: None)

    def judged(job: Text, by: str) -> bool:
        return judging(job, by).complete

    assert "there is no GGUF file" in judging(jobs[0], "/nowhere/judge.gguf").failed[jobs[0]]
    assert not note.exists()
    assert judged(jobs[0], judge)
    assert re.fullmatch(r'"[0-9a-f]{64}"\n', note.read_text())
    monkeypatch.setattr(scores_module, "loaded_evaluator", lambda *_: EvaluatorLM(judge).load())
    with pytest.raises(cwdfm.InputError, match=r"made with other judge-any .*given now \(gpt2\)"):
        judged(jobs[1], "gpt2")
    note.unlink()
    assert judged(jobs[1], "gpt2")
    assert json.loads(note.read_text()) == "gpt2"
    with pytest.raises(cwdfm.InputError, match=r"other judge-any \(gpt2\) .*now \(gpt2-large\)"):
        judged(jobs[2], "gpt2-large")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_judge_comes_without_bars(
    terminal: bool,
    tmp_path: Path,
    judge: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a sweep they would stand between its lines, elsewhere they are for a terminal alone."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    scores_module.loaded_evaluator.cache_clear()
    scores_module.loaded_evaluator(toy_evaluator(tmp_path / "toy"), "float32", "cpu")
    assert capsys.readouterr().err == ""
    EvaluatorLM(judge, device="cpu").load()
    assert ("Loading weights" in capsys.readouterr().err) is terminal


@pytest.mark.parametrize("name", ["novel.txt", "NOVEL.TXT", "novel.txt.gz"])
def test_a_file_of_plain_text(tmp_path: Path, name: str) -> None:
    """Is text, though `data.load` takes it for molecules where nobody says otherwise."""
    text = b"It was the best of times, and the worst. " * 200
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    job, here = HeldOut("text", 16, 2), replace(HERE, text=str(tmp_path / name))
    assert work(Store(tmp_path / "jobs"), [job], here, say=lambda _: None).complete


NOWHERE = Resources(
    torch.device("cpu"),
    molecules="/nowhere/molecules.smi",
    text="/nowhere/text",
    eval_model="/nowhere/judge.gguf",
    tests=(("lambada", "/nowhere/*.jsonl"),),
)
NO_TEXT = "'/nowhere/text' is neither a dataset nor a file"
READ = {
    **dict.fromkeys(("train", "heldout", "likelihood", "context"), NO_TEXT),
    "molecules": "'/nowhere/molecules.smi' is neither a dataset nor a file",
    "text": "there is no GGUF file /nowhere/judge.gguf",
    "testlikelihood": "'/nowhere/*.jsonl' is a pattern without text files",
}


def test_every_kind_of_job_checks_the_places_that_it_reads() -> None:
    jobs = in_order(job for e in EXPERIMENTS.values() for job in e.plan("smoke").jobs)
    text = [job for job in jobs if corpus_of(job) == "text"]
    for kind, message in READ.items():
        with pytest.raises(cwdfm.InputError, match=re.escape(message)):
            check(jobs if kind == "molecules" else text, NOWHERE, only=(kind,))
    check(jobs, NOWHERE, only=tuple({job.kind for job in jobs} - set(READ)))  # the others read none
    check(jobs, replace(HERE, molecules="moses"))  # what this machine lacks is left to another
    for name in ("gpt2-large", "HuggingFaceTB/SmolLM2-135M"):  # the hub is not asked
        check(jobs, replace(HERE, eval_model=name), only=("text",))


def test_a_corpus_of_the_other_kind_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before models of text are trained on molecules, say, and their tables written."""
    jobs = in_order(job for e in EXPERIMENTS.values() for job in e.plan("smoke").jobs)
    molecules, novel = str(tmp_path / "a.smi"), str(tmp_path / "novel.txt")
    for path in (molecules, novel):
        Path(path).write_text("C\nCC\nCCC\n")
    for place in ("qm9", molecules):
        for here in (replace(HERE, text=place), replace(HERE, tests=(("lambada", place),))):
            with pytest.raises(cwdfm.InputError, match="is read as molecules, and text should be"):
                check(jobs, here)
    for place in ("python-topics", str(tmp_path)):
        with pytest.raises(cwdfm.InputError, match="is read as text, and molecules should be"):
            check(jobs, replace(HERE, molecules=place))
    check(jobs, replace(HERE, text=novel, molecules=novel))  # it may hold either
    (tmp_path / "empty" / "qm9").mkdir(parents=True)
    with pytest.raises(cwdfm.InputError, match="is a folder without text files"):
        check(jobs, replace(HERE, text=str(tmp_path / "empty")))
    monkeypatch.chdir(tmp_path / "empty")
    check_corpus.cache_clear()
    check(jobs, replace(HERE, molecules="qm9"))  # a name, whatever folder there is of it


@pytest.mark.parametrize("name", ["paper.pdf", "paper", "paper.parquet.gz"])
def test_a_file_of_unknown_ending_is_not_called_molecules(tmp_path: Path, name: str) -> None:
    """What was given as text is told as text: which endings are known, and what to do."""
    (tmp_path / name).write_text("x")
    told = rf"cannot tell how to read .*{name} as text: known are \.txt, .*; save its text as"
    for here in ("--text", str(tmp_path / name)), ("--tests", f"lambada={tmp_path / name}"):
        ended = command("run", "perplexity", "--out", tmp_path / "x", *here, "--dry-run")
        assert ended.returncode == 2
        assert re.search(told, ended.stderr)
        assert "molecules" not in ended.stderr


def files_of(folder: Path, contents: dict[str, str]) -> Path:
    """A folder of them."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        packed = gzip.compress(content.encode()) if name.endswith("gz") else content.encode()
        (folder / name).write_bytes(packed)
    return folder


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
def test_an_empty_corpus_is_told_before_the_first_job(
    tmp_path: Path, flag: str, name: str, content: str
) -> None:
    corpus = files_of(tmp_path / "corpus", {"a.txt" if name == "." else name: content})
    out = tmp_path / "x"
    ended = command("run", "losses", "--out", out, flag, corpus / name, "--device", "cpu")
    assert ended.returncode == 2
    assert re.search("holds no text|has 0 usable molecules", ended.stderr)
    assert not out.exists()


def test_a_corpus_is_looked_into_no_further_than_it_need_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file may have anything, and what a package is missing for is the job's to tell."""
    blank, prose = "\n" * (1 << 20), "Call me Ishmael.\n"
    few = {"a.txt": "\n", "b.jsonl": '{"text": "one"}\nno JSON\n', "c.parquet": "none"}
    corpus = files_of(tmp_path, {"large.txt": blank + "x", "large.smi": prose * 1000})
    for place in (corpus / "large.txt", files_of(tmp_path / "few", few)):
        check_corpus(str(place), text=True)
    check_corpus(str(corpus / "large.smi"), text=False)
    files_of(tmp_path, {"one.parquet": "none", "few.smi": prose})
    for module in ("pyarrow.parquet", "rdkit.Chem"):
        monkeypatch.setitem(sys.modules, module, None)
    check_corpus(str(tmp_path / "one.parquet"), text=True)
    check_corpus(str(tmp_path / "few.smi"), text=False)


def test_data_prepared_at_another_length_are_told(tmp_path: Path) -> None:
    """Before jobs that need other data are done."""
    jobs = in_order(job for e in EXPERIMENTS.values() for job in e.plan("smoke").jobs)
    found = {}
    for length in (32, 64):
        found[length] = str(tmp_path / str(length))
        options = ["--tokenizer", "bytes", "--length", length, "--out", found[length]]
        assert command("prepare", "python-topics", *options).returncode == 0
    check(jobs, replace(HERE, text=found[64], tests=(("lambada", found[64]),)))
    for here in (replace(HERE, text=found[32]), replace(HERE, tests=(("lambada", found[32]),))):
        with pytest.raises(cwdfm.InputError, match="with length=32, asked for is 64"):
            check(jobs, here)
    rows = cwdfm.data.load("qm9", length=16, limit=64)
    rows.save(tmp_path / "short.npz")
    with pytest.raises(cwdfm.InputError, match="length"):
        check(jobs, replace(HERE, molecules=str(tmp_path / "short.npz")))


def test_places_that_no_job_reads_are_told() -> None:
    """Of all jobs of a command: those that are not done here may read them elsewhere."""
    here = Resources(torch.device("cpu"), "moses", "python-topics", "gpt2", (("lambada", "x"),))
    flags = ["--molecules", "--text", "--eval-model", "--tests lambada"]
    for names, corpora, idle in (
        (("losses",), ("molecules", "text"), flags[3:]),
        (("losses",), ("text",), [flags[0], flags[3]]),
        (("losses",), ("molecules",), flags[1:]),
        (("losses", "perplexity"), ("molecules", "text"), []),
        (("perplexity",), ("text",), [flags[0], flags[2]]),
    ):
        jobs = [job for name in names for job in EXPERIMENTS[name].plan("smoke").jobs]
        order = in_order(job for job in jobs if corpus_of(job) in corpora)
        assert unread(here, ("molecules", "text"), order) == idle
        assert not unread(HERE, (), order), "what is not given is none's"


def test_a_dry_run_tells_another_corpus_or_judge_than_the_folder_s(
    tmp_path: Path, judge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With exit code 2, as the run; and nothing is written, in the cache neither."""
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    for name, line in (("text", "It was the best of times. " * 500), ("other", "A whale. " * 900)):
        files_of(tmp_path, {f"{name}.txt": line})
    files_of(tmp_path, {"own.smi": "C\nCC\nCCC\nCO\n", "more.smi": "C\nCC\nCCC\nCN\n"})
    jobs = in_order(EXPERIMENTS["losses"].plan("smoke").jobs)
    store = Store(tmp_path / "x" / "jobs")
    own = replace(HERE, molecules=str(tmp_path / "own.smi"), text=str(tmp_path / "text.txt"))
    for job in jobs:
        if isinstance(job, Train):
            tokens_of(job.corpus, job.recipe.length, store, own)
    store.same("judge-any", scores_module.evaluator_identity(judge))

    def dry(molecules: str, text: str, by: str) -> Ended:
        given = ["--molecules", tmp_path / molecules, "--text", tmp_path / text, "--eval-model", by]
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        ended = command("run", "losses", "--out", tmp_path / "x", *given, "--dry-run")
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        return ended

    ended = dry("own.smi", "text.txt", judge)
    assert (ended.returncode, ended.stderr) == (0, "")
    wrong = [
        (("more.smi", "text.txt", judge), "molecules-"),
        (("own.smi", "other.txt", judge), "text-"),
        (("own.smi", "text.txt", "gpt2"), "judge-any"),
    ]
    for given, what in wrong:
        ended = dry(*given)
        assert ended.returncode == 2
        assert f"were made with other {what}" in ended.stderr
        assert "would be done, on" in ended.stdout


def test_a_dry_run_downloads_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.cli.run.tokens_of", lambda *_: pytest.fail("it was read"))
    (job, *_) = (job for job in EXPERIMENTS["radius"].plan("smoke").jobs if corpus_of(job))
    trains = [job for job in in_order([job]) if isinstance(job, Train)]
    Store(tmp_path / "jobs").same(f"text-{trains[0].recipe.length}", "a" * 64)
    for name in ("openwebtext", "text8"):
        ended = command("run", "radius", "--out", tmp_path, "--text", name, "--dry-run")
        assert ended.returncode == 0
        assert f"whether {name} is the corpus of {tmp_path / 'jobs'} is seen" in ended.stdout


def test_a_command_tells_what_none_of_its_jobs_reads(tmp_path: Path) -> None:
    brought = ["--molecules", "qm9", "--eval-model", "gpt2", "--limit", "0", "--device", "cpu"]
    ended = command("run", "radius", "--out", tmp_path / "a", *brought)
    assert (ended.returncode, ended.stderr) == (0, "note: --molecules: read by no job of radius\n")
    ended = command("run", "radius", "--out", tmp_path / "a", "--only", "train", *brought[2:])
    assert (ended.returncode, ended.stderr) == (0, "")


def test_places_of_a_judge(tmp_path: Path, judge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = EXPERIMENTS["radius"].plan("smoke").jobs
    (tmp_path / "whole.gguf").write_text("")
    for place in (judge, str(tmp_path / "whole.gguf")):
        check(jobs, replace(HERE, eval_model=place))
    monkeypatch.setitem(sys.modules, "gguf", None)  # a machine that cannot judge can train
    check(jobs, replace(HERE, eval_model=str(tmp_path / "whole.gguf")))
    (tmp_path / "weights.bin").write_text("")
    for place in ("judge.gguf", "./judge", "~/no/judge", "a/b/c", ""):
        with pytest.raises(cwdfm.InputError):
            check(jobs, replace(HERE, eval_model=place))
    with pytest.raises(cwdfm.InputError, match=r"has no config\.json"):
        check(jobs, replace(HERE, eval_model=str(tmp_path)))
    with pytest.raises(cwdfm.InputError, match=r"ends in \.gguf"):
        check(jobs, replace(HERE, eval_model=str(tmp_path / "weights.bin")))
