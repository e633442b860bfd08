"""Scenarios: each injects one random fault into a command and returns a defect, if any."""

import io
import os
import random
import re
import shutil
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

from cwdfm.cli.app_form import Form
from cwdfm.cli.app_form import run as fill_in
from cwdfm.cli.main import COMMANDS
from cwdfm.errors import InputError
from cwdfm.pretrained.model import BUNDLED
from cwdfm.solver_config import SOLVERS, option_names
from experiments.chaos.forge import forgeries, read_document, write_document
from experiments.chaos.forked import start
from experiments.chaos.jobs import JOBS, MODEL, SEEDS, evaluate, expected, given, sample, train

# Arguments for random command lines: valid and invalid names and values.
FLAGS = [
    "--out", "--n", "--steps", "--solver", "--seed", "--length", "--prompt", "--template",
    "--temperature", "--radius", "--scale", "--data", "--draws", "--rows", "--device", "--force",
    "--refine", "--resample", "--reject-below", "--tokenizer", "--column", "--limit", "--documents",
    "--batch-size", "--eval-model", "--fold-size", "--help", "--no-such", "--record", "--scaffold",
    "--grow", "--linker", "--prompts", "--evaluations", "--only", "--condition", "--network",
    "--title", "--revision",
]  # fmt: skip
VALUES = [
    "a.smi", "a.jsonl", "b.csv", "new/dir/a.smi", "c.json", "out", "text.txt", "text",
    "qm9-mask-small", ".", "/", "/dev/null", "/proc/a.smi", "none", "gpt2", "bytes", "chars",
    "neighbor", "euler", "entropy", "top-k", "lines", "rows", "cpu", "cuda:9", "0", "1", "2", "8",
    "-1", "1.5", "nan", "inf", "1e9", "99999999999999999999", "''", "$HOME", "ü", "***", "[2]",
    "c1ccccc1***", "{}", "../a.smi", "-", "c1ccc(*)cc1", "C*{2,8}", "valid", "logp", "os:system",
    "owner/name@main",
]  # fmt: skip
SMALL = ["--steps", "2"]  # for commands that would otherwise run for minutes
_TRAINED: dict[str, object] = {}  # models trained on undamaged data, by kind of data
_TEMPORARY = re.compile(r".*\.\d+-[0-9a-f]{8}\.part")  # a file that was being written


def command(rng: random.Random, folder: Path, name: str) -> str:
    """A command with random options must end with a result or an error message."""
    shutil.copy(given("text.txt"), folder)
    words = [name]
    if words[0] in ("app", "demo"):  # one serves until it is stopped, the other runs for minutes
        words += ["--no-such"]
    if words[0] == "train" and rng.random() < 0.5:
        words = [*train(0)[:-4], "--seed", "1"]
    else:
        words += rng.sample([MODEL, "text.txt", "updates", given("0.smi")], rng.randrange(2))
    for _ in range(rng.randrange(5)):
        words += [rng.choice(FLAGS), *rng.choices(VALUES, k=rng.randrange(2))]
    if words[0] in ("sample", "analyze"):  # small, unless a later flag says otherwise
        words[2:2] = ["--n", "2", *SMALL]
    elif words[0] == "eval":  # without data: reading QM9 for the first time takes a minute
        words += ["--data", "none"]
    elif words[0] == "train":
        words += SMALL
    ended = start(words, folder).end()
    return ended.problem and f"{words}: {ended.problem}"


def _compared(name: str, seed: int, folder: Path) -> str:
    """Whether a job has written its result, and nothing else."""
    job = JOBS[name]
    left = [path.name for path in folder.iterdir() if not _TEMPORARY.fullmatch(path.name)]
    if sorted(left) != sorted((job.out, *job.also)):
        return f"{name} {seed}: left {left}"
    try:
        same = job.result(folder / job.out) == expected(name, seed)[0]
    except Exception as error:
        return f"{name} {seed}: the result cannot be read: {error!r}"
    return "" if same else f"{name} {seed}: another result"


def _ends(name: str, seed: int, folder: Path, what: str) -> str:
    """Run a job again after the fault `what`: it must resume or start over, with the same result.

    If the result was already complete, the command may report that the output exists.
    """
    ended = start(JOBS[name].words(seed), folder).end()
    difference = _compared(name, seed, folder)
    if ended.problem or (ended.code and difference):
        return f"{name} {seed}: after {what}: {ended.problem or ended.said[-2000:]}"
    return difference


def kill(rng: random.Random, folder: Path, name: str) -> str:
    """A command that is killed at a random moment and run again must give the same result."""
    seed = rng.randrange(SEEDS)
    _, seconds = expected(name, seed)
    while True:
        child = start(JOBS[name].words(seed), folder)
        if child.wait(rng.uniform(0, seconds)) is None:
            child.kill()
            return _ends(name, seed, folder, "a kill")
        for path in folder.iterdir():  # it finished before the kill: try again
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def full_disk(rng: random.Random, folder: Path, name: str) -> str:
    """A command must report a full disk, and must finish when it is run again with free space."""
    seed = rng.randrange(SEEDS)
    # The output of the command also goes to a file, which must fit.
    most = rng.choice([2000, 4000, 8000, 100_000])
    ended = start(JOBS[name].words(seed), folder, most_bytes=most).end()
    if ended.problem:
        return f"{name} {seed} on a full disk: {ended.problem}"
    return _ends(name, seed, folder, "a full disk") if ended.code else _compared(name, seed, folder)


def read_only(rng: random.Random, folder: Path, name: str) -> str:
    """A command must report a read-only folder, and leave no files."""
    seed = rng.randrange(SEEDS)
    folder.chmod(0o555)
    ended = start(JOBS[name].words(seed), folder, unprivileged=True).end()
    folder.chmod(0o755)
    if ended.problem or ended.code != 2:
        return f"{name} {seed}: in a read-only folder: {ended.problem or ended}"
    return _ends(name, seed, folder, "a read-only folder")


def race(rng: random.Random, folder: Path, name: str) -> str:
    """If two commands write the same path, one must succeed, and the path must have its result."""
    seeds = rng.sample(range(SEEDS), 2)
    children = []
    for seed in seeds:
        children.append(start(JOBS[name].words(seed), folder))
        delay = rng.choice([0, 0, 0.05, 1.0]) * rng.uniform(0, expected(name, seed)[1])
        children[-1].wait(delay)
    ends = [child.end() for child in children]
    if problems := [ended.problem for ended in ends if ended.problem]:
        return f"{name}: race: {problems}"
    if sorted(ended.code or 0 for ended in ends) != [0, 2]:
        return f"{name}: race: the exit codes are {[(e.code, e.said[-500:]) for e in ends]}"
    return _compared(name, seeds[ends[0].code != 0], folder)


def damage(rng: random.Random, folder: Path, what: str) -> str:
    """Damaged or forged files must be rejected, or give the same result as intact ones.

    Forged files have matching checksums and may be valid; then any result is correct.
    """
    made = folder / "made"
    if what == "model":
        shutil.copytree(BUNDLED / MODEL, made / "model")
    else:
        made.mkdir()
        start(JOBS[what].words(0), made).end()
    words = {
        "model": sample(0, "../made/model"),
        "prepare": train(0, "../made/out"),
        "molecules": [*train(0, "../made/a.npz", "qm9-debug"), "--batch-size", "2"],
        "sample": [*evaluate(0)[:1], "../made/a.jsonl", *evaluate(0)[2:]],
        "train": train(0),
    }[what]
    run = folder / "run"
    run.mkdir()
    if what in ("prepare", "molecules") and what not in _TRAINED:
        start(words, run).end()
        _TRAINED[what] = JOBS["train"].result(run / "out")
        shutil.rmtree(run / "out")
    if what == "train":  # resume from the checkpoints
        made = shutil.copytree(made / "out", run / "out") / "checkpoints"
        shutil.rmtree(run / "out" / "model")
    files = [path for path in made.rglob("*") if path.is_file()]
    path = rng.choice(sorted(path for path in files if path.stat().st_size))
    # A pipe is a valid sample file, which is read until it ends.
    how = rng.choice(["flip", "truncate", "remove", "forge", *["pipe"] * (what != "sample")])
    is_document = path.suffix in (".json", ".jsonl", ".npz")
    how = "flip" if how == "forge" and not is_document else how
    _damage(rng, path, how)
    ended = start(words, run).end()
    if ended.problem:
        return f"{what}: {how} {path.name}: {ended.problem}"
    if ended.code or how == "forge" or what == "sample":  # sample files have no checksum
        return ""
    if name := {"model": "sample", "train": "train"}.get(what):
        return _compared(name, 0, run)
    same = JOBS["train"].result(run / "out") == _TRAINED[what]
    return "" if same else f"{what}: {how} {path.name}: read without an error"


def _damage(rng: random.Random, path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
    elif how == "truncate":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif how == "forge":
        forged = [*forgeries(read_document(path))]
        write_document(path, rng.choice(forged)[1])
    else:
        path.unlink()
        if how == "pipe":
            os.mkfifo(path)


def app(rng: random.Random, folder: Path, model: str) -> str:
    """The form of the app with random values must give samples or an error message."""

    def form() -> Form:
        solver = rng.choice(["auto", *SOLVERS])
        options = sorted(option_names("euler" if solver == "auto" else solver))
        return Form(
            model=rng.choice([model, model, model, rng.choice(VALUES)]),
            solver=solver,
            settings=tuple(
                (name, rng.choice([-1, 0, 0.5, 1, 3, 1e9, "euler", "masked", True]))
                for name in rng.sample(options, rng.randrange(min(3, len(options) + 1)))
            ),
            steps=rng.choice([0, 1, 4, 10**9]) if rng.random() < 0.2 else 4,
            evaluations=rng.random() < 0.3,
            n=rng.choice([-1, 1, 2, 10**9]) if rng.random() < 0.2 else 2,
            seed=rng.choice([0, -1, 2**70]) if rng.random() < 0.2 else 5,
            prompt=rng.choice(["", "", "C", *rng.sample(VALUES, 1)]),
            template=rng.choice(["", "", "C[3]", *rng.sample(VALUES, 1)]),
        )

    forms = [form() for _ in range(rng.choice([1, 2]))]
    try:
        with redirect_stderr(io.StringIO()):  # the parser of the command prints its errors
            found = fill_in(forms, folder, "cpu", lambda _: None)
    except (InputError, SystemExit):
        return ""
    except Exception:
        return f"{forms}: {traceback.format_exc()}"
    complete = len(found.rows) == sum(form.n for form in forms)
    return "" if complete else f"{forms}: {len(found.rows)} samples"


Scenario = Callable[[random.Random, Path, str], str]
# The commands that each scenario disturbs, in turn.
SCENARIOS: dict[str, tuple[Scenario, tuple[str, ...]]] = {
    "commands": (command, (*COMMANDS, "nothing")),
    "kills": (kill, tuple(JOBS)),
    "full disks": (full_disk, tuple(JOBS)),
    "read-only folders": (read_only, tuple(JOBS)),
    "races": (race, tuple(JOBS)),
    "app": (app, (MODEL, "novels-small")),
    "damaged files": (damage, ("model", "prepare", "molecules", "sample", "train")),
}
