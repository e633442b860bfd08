"""Scenarios: each does one random thing to a command and returns what was wrong, or nothing."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from cwdfm.cli.main import COMMANDS
from cwdfm.pretrained.model import BUNDLED
from cwdfm.sample_file import read_samples
from experiments.chaos.forge import forgeries
from experiments.chaos.forked import start

MODEL = "qm9-mask-small"
TEXT = "".join(f"Line {i} of a short text.\n" for i in range(400))
# Words of random command lines: names and values that exist, and others that do not.
FLAGS = [
    "--out",
    "--n",
    "--steps",
    "--solver",
    "--seed",
    "--length",
    "--prompt",
    "--template",
    "--temperature",
    "--radius",
    "--scale",
    "--data",
    "--draws",
    "--rows",
    "--device",
    "--force",
    "--refine",
    "--resample",
    "--reject-below",
    "--tokenizer",
    "--column",
    "--limit",
    "--documents",
    "--batch-size",
    "--eval-model",
    "--fold-size",
    "--help",
    "--no-such",
]
VALUES = [
    "a.smi",
    "a.jsonl",
    "b.csv",
    "new/dir/a.smi",
    "c.json",
    "out",
    "text.txt",
    "text",
    "qm9-mask-small",
    ".",
    "/",
    "/dev/null",
    "/proc/a.smi",
    "none",
    "gpt2",
    "bytes",
    "chars",
    "neighbor",
    "euler",
    "entropy",
    "top-k",
    "lines",
    "cpu",
    "cuda:9",
    "0",
    "1",
    "2",
    "8",
    "-1",
    "1.5",
    "nan",
    "inf",
    "1e9",
    "99999999999999999999",
    "''",
    "$HOME",
    "ü",
    "***",
    "[2]",
    "c1ccccc1***",
    "{}",
    "../a.smi",
]


def command(rng: random.Random, folder: Path) -> str:
    """A random command line ends with a result or a message."""
    (folder / "text.txt").write_text(TEXT)
    words = [rng.choice([*COMMANDS, "nothing"])]
    if words[0] in ("train", "demo"):  # these run for minutes if their options are valid
        words += ["--no-such"]
    words += rng.sample([MODEL, "text.txt", "context", "a.smi", "qm9-debug"], rng.randrange(2))
    for _ in range(rng.randrange(5)):
        words += [rng.choice(FLAGS), *rng.choices(VALUES, k=rng.randrange(2))]
    if words[0] == "sample":  # small, unless a later flag says otherwise
        words[2:2] = ["--n", "2", "--steps", "2"]
    ended = start(words, folder).end()
    return ended.problem and f"{words}: {ended.problem}"


def _sample(seed: int, *flags: str, model: str = MODEL) -> list[str]:
    line = ["sample", model, "--out", "a.jsonl", "--n", "6", "--batch-size", "1", "--steps", "8"]
    return [*line, "--seed", str(seed), *flags]


def _prepare(_: int) -> list[str]:
    return [
        *("prepare", "../text.txt", "--out", "out", "--tokenizer", "chars", "--length", "16"),
        *("--documents", "lines", "--workers", "1"),
    ]


_LINES: tuple[Callable[[int], list[str]], ...] = (_sample, _prepare)


def _result(folder: Path) -> object:
    """What a command has written: samples, or the bytes of prepared data; None without a file."""
    if (folder / "a.jsonl").exists():
        return read_samples(folder / "a.jsonl").tokens
    return {path.name: path.read_bytes() for path in (folder / "out").glob("*")} or None


def _reference(words: list[str], folder: Path) -> object:
    """The result of an undisturbed run."""
    whole = folder / "whole"
    whole.mkdir()
    assert start(words, whole).end().code == 0
    return _result(whole)


def kill(rng: random.Random, folder: Path) -> str:
    """A command that is killed at random moments and repeated ends with the same result."""
    (folder / "text.txt").write_text(TEXT)
    words = rng.choice(_LINES)(rng.randrange(1000))
    expected = _reference(words, folder)
    killed = folder / "killed"
    killed.mkdir()
    for _ in range(2):
        child = start(words, killed)
        if (ended := child.wait(rng.uniform(0, 1.5))) is None:
            child.kill()
        elif ended.code == 0:
            break
        elif ended.problem or "already exists" not in ended.said:
            return f"{words}: after a kill: {ended.problem or ended.said}"
    if _result(killed) is None and (last := start(words, killed).end()).code != 0:
        return f"{words}: does not resume: {last.said[-2000:]}"
    return _compared(words, killed, expected)


def _compared(words: list[str], folder: Path, expected: object) -> str:
    left = sorted(path.name for path in folder.iterdir())
    if len(left) > 1:
        return f"{words}: left {left}"
    return "" if _result(folder) == expected else f"{words}: another result"


def full_disk(rng: random.Random, folder: Path) -> str:
    """A command that cannot write says so, and the same command finishes afterwards."""
    (folder / "text.txt").write_text(TEXT)
    words = rng.choice(_LINES)(rng.randrange(1000))
    expected = _reference(words, folder)
    full = folder / "full"
    full.mkdir()
    # What the command says is written to a file as well, and must fit.
    ended = start(words, full, most_bytes=rng.choice([2000, 4000, 8000])).end()
    if ended.problem:
        return f"{words} on a full disk: {ended.problem}"
    if ended.code and start(words, full).end().code != 0:
        return f"{words}: does not resume after a full disk"
    return _compared(words, full, expected)


def race(rng: random.Random, folder: Path) -> str:
    """Of two commands that write the same file, one succeeds, and its file is the result."""
    children = []
    for seed in (1, 2):
        children.append(start(_sample(seed)[:4] + _sample(seed)[6:] + ["--n", "1"], folder))
        children[-1].wait(rng.choice([0, 0, 0.05, 0.3]))
    ends = [child.end() if _alive(child.pid) else None for child in children]
    said = [child.said.read_text() for child in children]
    if problems := [ended.problem for ended in ends if ended and ended.problem]:
        return f"race: {problems}"
    written = [seed for seed, text in zip((1, 2), said, strict=True) if "written: " in text]
    if len(written) != 1:
        return f"race: {len(written)} of 2 commands wrote the file: {said}"
    found = read_samples(folder / "a.jsonl").options["seed"]
    return "" if found == written[0] else f"race: the file of seed {found} replaced {written[0]}"


def _alive(pid: int) -> bool:
    """Whether a child has not been waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def damage(rng: random.Random, folder: Path) -> str:
    """A damaged or forged model is rejected, or gives the samples of the whole one."""
    model = folder / "model"
    shutil.copytree(BUNDLED / MODEL, model)
    path = rng.choice([model / "config.json", model / "model.safetensors"])
    how = rng.choice(["flip", "truncate", "remove", "pipe", "forge"])
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
    elif how == "truncate":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif how in ("remove", "pipe"):
        path.unlink()
        if how == "pipe":
            os.mkfifo(path)
    else:
        forged = list(forgeries(json.loads((model / "config.json").read_text())))
        (model / "config.json").write_text(json.dumps(rng.choice(forged)[1]))
    run = folder / "run"
    run.mkdir()
    words = _sample(3, "--batch-size", "6", model="../model")
    ended = start(words, run).end()
    if ended.problem:
        return f"{how} {path.name}: {ended.problem}"
    if ended.code == 0 and _result(run) != _reference(_sample(3, "--batch-size", "6"), folder):
        return f"{how} {path.name}: sampled without an error"
    return ""


SCENARIOS: dict[str, Callable[[random.Random, Path], str]] = {
    "commands": command,
    "kills": kill,
    "full disks": full_disk,
    "races": race,
    "damaged models": damage,
}
