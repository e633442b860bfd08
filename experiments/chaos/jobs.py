"""Commands that write files, and the results that they must produce despite any fault."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cwdfm.sample_file import read_samples
from cwdfm.solver.recording import Recording
from experiments.chaos.forked import start

MODEL = "qm9-mask-small"
SEEDS = 3  # of each job: their results are computed once


@dataclass(frozen=True)
class Job:
    """A command line per seed, the path it writes, and the part of the output to compare."""

    words: Callable[[int], list[str]]
    out: str
    result: Callable[[Path], object]
    also: tuple[str, ...] = ()  # other paths it writes


@cache
def _inputs() -> "tempfile.TemporaryDirectory[str]":
    """A folder with input files, removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="chaos-")
    root = Path(folder.name)
    root.chmod(0o755)
    (root / "text.txt").write_text("".join(f"Line {i} of a short text.\n" for i in range(400)))
    for seed in range(SEEDS):
        lines = "".join(f"{'C' * i}{'O' * (seed + 1)}\n" for i in range(1, 9))
        (root / f"{seed}.smi").write_text(lines)
    return folder


def given(name: str) -> str:
    return f"{_inputs().name}/{name}"


@cache
def recording(seed: int) -> str:
    root = Path(_inputs().name, f"recorded-{seed}")
    root.mkdir()
    ended = start([*sample(seed), "--record"], root).end()
    assert ended.code == 0, ended.said
    return str(root / "a.recording.npz")


@cache
def language_model() -> str:
    """The folder of a small language model, with prompts.txt in it."""
    from tests.support.language import write_llada  # imports transformers

    root = Path(_inputs().name, "language")
    root.mkdir()
    folder, _ = write_llada(root)
    (root / "prompts.txt").write_text("the cat sat\na big old dog\nmoon\n")
    return str(folder)


def sample(seed: int, model: str = MODEL) -> list[str]:
    """Sample four molecules, one per batch."""
    line = ["sample", model, "--out", "a.jsonl", "--n", "4", "--batch-size", "1", "--steps", "4"]
    return [*line, "--seed", str(seed)]


def train(seed: int, data: str | None = None, recipe: str = "text-debug") -> list[str]:
    """Train for six steps, with three checkpoints and two validations."""
    text = ["--tokenizer", "chars", "--length", "16"] if data is None else []
    return [
        *("train", recipe, "--out", "out", "--data", data or given("text.txt"), *text),
        *("--seed", str(seed), "--steps", "6", "--batch-size", "4", "--checkpoint-every", "2"),
        *("--validate-every", "3", "--validation-rows", "4", "--elbo-rows", "2", "--log-every"),
        *("2", "--previews", "1", "--preview-steps", "2", "--no-tensorboard", "--device", "cpu"),
    ]


def prepare(seed: int) -> list[str]:
    """Pack text into windows; the seed sets their length."""
    return [
        *("prepare", given("text.txt"), "--out", "out", "--tokenizer", "chars"),
        *("--length", str(16 + seed), "--documents", "lines", "--workers", "1"),
    ]


def evaluate(seed: int) -> list[str]:
    """Score the molecules of one of the input files."""
    return ["eval", given(f"{seed}.smi"), "--out", "out", "--data", "none", "--fold-size", "4"]


def _json(path: Path, *names: str) -> object:
    found = json.loads(path.read_text())
    return [found[name] for name in names]


def _run(folder: Path) -> object:
    """The weights and the metrics of a training run, without its speed."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return (folder / "model" / "model.safetensors").read_bytes(), [
        {name: value for name, value in record.items() if name != "tokens_per_second"}
        for record in records
    ]


JOBS = {
    "sample": Job(sample, "a.jsonl", lambda path: read_samples(path).tokens),
    "prepare": Job(
        prepare, "out", lambda folder: {path.name: path.read_bytes() for path in folder.iterdir()}
    ),
    "molecules": Job(
        lambda seed: [
            *("prepare", given("0.smi"), "--out", "a.npz"),
            *("--randomized", "3", "--seed", str(seed)),
        ],
        "a.npz",
        Path.read_bytes,
    ),
    "train": Job(train, "out", _run),
    "perplexity": Job(
        lambda seed: [
            *("perplexity", MODEL, "--data", given("0.smi"), "--out", "a.json"),
            *("--draws", "2", "--seed", str(seed)),
        ],
        "a.json",
        lambda path: _json(path, "results", "weights"),
    ),
    "eval": Job(evaluate, "out", lambda path: _json(path / "scores.json", "sets")),
    "analyze": Job(
        lambda seed: [
            *("analyze", "updates", MODEL, "--out", "out", "--n", "2", "--steps", "4"),
            *("--seed", str(seed)),
        ],
        "out",
        lambda path: _json(path / "updates.json", "solvers", "weights"),
    ),
    "fragments": Job(
        lambda seed: [*sample(seed), "--scaffold", "c1ccccc1", "--record"],
        "a.jsonl",
        lambda path: (
            read_samples(path).tokens,
            Recording.load(path.with_name("a.recording.npz")).tokens.tolist(),
        ),
        also=("a.recording.npz",),
    ),
    "replay": Job(
        lambda seed: ["replay", recording(seed), "--out", "a.html"], "a.html", Path.read_bytes
    ),
    "prompts": Job(
        lambda seed: [
            *("sample", language_model(), "--prompts", given("language/prompts.txt")),
            *("--out", "a.jsonl", "--max-new-tokens", "6", "--batch-size", "1"),
            *("--temperature", "1", "--seed", str(seed)),
        ],
        "a.jsonl",
        lambda path: read_samples(path).tokens,
    ),
    "conditions": Job(
        lambda seed: [*train(seed, given("0.smi"), "qm9-debug"), "--condition", "logp"],
        "out",
        _run,
    ),
}


@cache
def expected(name: str, seed: int) -> tuple[object, float]:
    """The result of an undisturbed run, and its duration in seconds."""
    job = JOBS[name]
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "at")
        folder.mkdir()
        begin = time.monotonic()
        ended = start(job.words(seed), folder).end()
        assert ended.code == 0, ended.said
        return job.result(folder / job.out), time.monotonic() - begin
