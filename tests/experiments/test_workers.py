"""Workers of `experiments run`: each job is done once, and nobody is left when the command ends."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import experiments.cli.mps as mps_module
from cwdfm.cli.options import parse, words
from experiments.catalog import EXPERIMENTS
from experiments.cli import workers
from experiments.cli.options import Options
from experiments.cli.run import main
from experiments.cli.worker import end_with_parent
from experiments.cli.workers import dealt, environment, side_by_side
from tests.support.command import Ended, command
from tests.support.repro_worker import NAME, toys

CPU = ["--device", "cpu"]


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let workers be this program, which starts at once."""
    monkeypatch.setattr(workers, "COMMAND", [sys.executable, "-S", "-c", code])


def results(out: Path) -> dict[str, Any]:
    """What was found, apart from the seconds it took."""
    found = {path.parent.name: json.loads(path.read_text()) for path in out.glob("jobs/*/*.json")}
    timed = {"seconds", "tokens_per_second"}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items() if key not in timed}
        return [plain(each) for each in value] if isinstance(value, list) else value

    return {name: plain(record["result"]) for name, record in found.items() if "result" in record}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A real experiment and toys by two workers, of which the last toy kills one."""
    pytest.importorskip("safetensors")
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            workers, "COMMAND", [sys.executable, "-P", "-m", "tests.support.repro_worker"]
        )
        patch.setitem(EXPERIMENTS, NAME, toys())
        two = ["--workers", "2", "--wait", "0.1"]
        return out, command("run", "updates", NAME, "--out", out, *CPU, *two)


def test_two_workers_find_what_one_process_does(
    shared: tuple[Path, Ended], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, ended = shared
    main(["updates", "--out", str(tmp_path), *CPU])
    assert "side by side" not in capsys.readouterr().out
    found = {name: each for name, each in results(out).items() if not name.startswith("toy")}
    assert found == results(tmp_path)
    assert len(found) == 3
    for page in ("updates.md", "updates.csv"):
        assert (out / "smoke" / page).read_text() == (tmp_path / "smoke" / page).read_text()
    assert ended.returncode == 0
    assert ended.stdout.endswith("complete\n")


def test_all_is_done_and_told_once(shared: tuple[Path, Ended]) -> None:
    out, ended = shared
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("updates, toys at smoke scale: 12 of 12 jobs to do")
    assert lines[2] == "2 processes side by side, on cpu"
    begun = [line.split()[2] for line in lines if re.match(r"[12]: \[\d+/12\] \S+", line)]
    assert set(begun) == results(out).keys()
    assert len(begun) == 13  # one of them twice: the first worker at it was killed
    written = [line for line in lines if "written: " in line]
    assert len(written) == len(set(written)) > 5
    assert all(line.startswith("written: ") for line in written)  # not by workers
    assert [line for line in lines[3:] if not re.match(r"[12]: ", line)] == [*written, "complete"]


def test_a_worker_that_is_killed_leaves_its_job_to_others(shared: tuple[Path, Ended]) -> None:
    out, ended = shared
    note = r"note: worker [12] was ended by signal 9 \(Killed\); the others go on\n"
    assert re.fullmatch(note, ended.stderr)
    done = [line.split() for line in (out / "jobs" / "done.txt").read_text().splitlines()]
    assert sorted(int(number) for number, _ in done) == list(range(9))


ENDING = """
import os, pathlib, signal, sys, time
here = pathlib.Path({folder!r})
def end(*_):
    (here / f"{{os.getpid()}}.ended").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
(here / f"{{os.getpid()}}.begun").touch()
while len(list(here.glob("*.begun"))) < 2:
    time.sleep(0.01)
print("here", flush=True)
if int(sorted(here.glob("*.begun"))[0].stem) == os.getpid():
    os.kill(os.getppid(), {number})
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_workers_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    """In order, and with the code and tables that a single process would leave."""
    stand_in(monkeypatch, ENDING.format(folder=str(tmp_path), number=int(number)))
    monkeypatch.setitem(EXPERIMENTS, NAME, toys())
    usual: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
    }
    # In the background of a shell, or by nohup, tests may be run with these ignored.
    found = {each: signal.signal(each, handler) for each, handler in usual.items()}
    before = [signal.getsignal(each) for each in (signal.SIGTERM, *usual)]
    try:
        ended = command("run", NAME, "--out", tmp_path / "out", *CPU, "--workers", "2")
        assert [signal.getsignal(each) for each in (signal.SIGTERM, *usual)] == before
    finally:
        for each, handler in found.items():
            signal.signal(each, handler)
    assert ended.returncode == code
    assert "written: " in ended.stdout
    assert "note: worker" not in ended.stderr
    begun, gone = ({p.stem for p in tmp_path.glob(f"*.{kind}")} for kind in ("begun", "ended"))
    assert len(begun) == 2
    assert begun == gone
    for pid in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_worker_ends_with_who_started_it() -> None:
    """However that ended: its end of the pipe is closed then, and its waiting is over at once."""

    class Told(Exception):
        pass

    def tell(*_: object) -> None:
        raise Told

    def parted() -> None:
        os.close(write)
        time.sleep(30)

    kept, (read, write) = os.dup(0), os.pipe()
    before = signal.signal(signal.SIGTERM, tell)
    try:
        os.dup2(read, 0)
        end_with_parent()
        assert os.read(0, 1) == b""  # no job waits for input
        time.sleep(0.05)
        begun = time.monotonic()
        with pytest.raises(Told):
            parted()
        assert time.monotonic() - begun < 30
    finally:
        signal.signal(signal.SIGTERM, before)
        os.dup2(kept, 0)
        os.close(kept)
        os.close(read)


LINES = """
import sys
for number in range(100):
    for stream in (sys.stdout, sys.stderr):
        stream.write(f"{number} ")
        stream.flush()
        stream.write("x" * 200 + "\\n")
sys.stderr.write("10%\\r20%\\r30%\\n")
sys.stdout.write("no end of the line")
sys.exit(int(sys.argv[1]))
"""


def test_lines_come_whole_and_with_their_worker_s_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, LINES)
    side_by_side([["0"], ["2"]], ["cpu", "cpu"])
    said = capsys.readouterr()
    for number in (1, 2):
        for text, last in ((said.out, "no end of the line"), (said.err, "30%")):
            own = [line for line in text.splitlines() if line.startswith(f"{number}: ")]
            lines = [f"{number}: {i} {'x' * 200}" for i in range(100)]
            assert own == [*lines, f"{number}: {last}"]
    assert len(said.out.splitlines()) == 202
    assert "note: worker 2 ended with code 2; the others go on\n" in said.err
    assert len(said.err.splitlines()) == 203


def test_whoever_reads_no_more_ends_the_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError

    stand_in(monkeypatch, "import time; print('line', flush=True); time.sleep(60)")
    monkeypatch.setattr(workers.Crew, "_tell", broken)
    with pytest.raises(BrokenPipeError):
        side_by_side([[], []], ["cpu", "cpu"])


CONTROL = """#!/bin/sh
echo "${1-$(cat)} $CUDA_MPS_PIPE_DIRECTORY $CUDA_VISIBLE_DEVICES" >> "$CALLS"
exit $CODE
"""
ONE_GPU = ["cuda:0", "cuda:0"]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for NVIDIA's program, and the list of its calls; workers tell where it is."""
    program = tmp_path / "tools" / mps_module.CONTROL
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("CODE", "0")
    monkeypatch.delenv(mps_module.PIPES, raising=False)
    stand_in(monkeypatch, f"import os; print(os.environ.get('{mps_module.PIPES}'))")
    return tmp_path / "calls"


def told(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_workers_on_one_gpu_have_a_daemon_of_their_own(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # for workers: the daemon shall see all
    side_by_side([[], []], ONE_GPU)
    (start, pipes), (end, same) = told(calls)
    assert (start, end) == ("-d", "quit")
    assert pipes == same
    assert sorted(capsys.readouterr().out.splitlines()) == [f"1: {pipes}", f"2: {pipes}"]
    assert not Path(pipes).exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, OSError])
def test_the_daemon_ends_after_an_error_too(
    calls: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(workers.Crew, "start", broken)
    with pytest.raises(error):
        side_by_side([[], []], ONE_GPU)
    assert [call[0] for call in told(calls)] == ["-d", "quit"]


@pytest.mark.parametrize("devices", [["cpu", "cpu"], ["cuda:0", "cuda:1"]])
def test_workers_that_share_no_gpu_need_no_daemon(
    calls: Path, devices: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    side_by_side([[], []], devices)
    assert told(calls) == []
    assert sorted(capsys.readouterr().out.splitlines()) == ["1: None", "2: None"]


def test_a_daemon_of_the_user_s_is_used(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mps_module.PIPES, "/theirs")
    with mps_module.mps() as found:
        assert found == {}
    assert told(calls) == []


@pytest.mark.parametrize("why", ["is not on the PATH", "-d failed"])
def test_without_a_daemon_it_is_told(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    monkeypatch.setenv("CODE", "1")
    if "PATH" in why:
        monkeypatch.setenv("PATH", "")
    with mps_module.mps() as found:
        assert found == {}
    assert re.fullmatch(
        rf"kernels of workers on one GPU will take turns.*{why}\n", capsys.readouterr().out
    )


def test_gpus_are_dealt_in_turn_unless_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    gpu, second, cpu = (torch.device(name) for name in ("cuda", "cuda:1", "cpu"))
    assert dealt("auto", gpu, 4) == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert dealt("cuda:1", second, 2) == ["cuda:1", "cuda:1"]
    assert dealt("cuda", gpu, 2) == ["cuda", "cuda"]
    assert dealt("auto", cpu, 2) == ["cpu", "cpu"]


def test_threads_are_shared_out_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 7)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in environment(["cpu", "cpu"])  # the user's stays
    monkeypatch.delenv("OMP_NUM_THREADS")
    for count, threads in ((2, "3"), (7, "1"), (20, "1")):
        assert environment(["cpu"] * count)["OMP_NUM_THREADS"] == threads
    assert "OMP_NUM_THREADS" not in environment(["cuda:0"] * 2)


def test_workers_are_told_all_that_the_command_was() -> None:
    options = Options(
        Path("-a folder"),
        scale="small",
        molecules="-m",
        text="a b",
        eval_model="gpt2",
        tests=("lambada=x", "wikitext-103"),
        corpora=("text",),
        only=("train", "sample"),
        wait=0.1,
        limit=1 / 3,
        device="cpu",
    )
    for each in (options, Options(Path("x"))):
        assert parse("repro", words(each), lambda missing: Options(missing)) == each


@pytest.mark.parametrize("others", [["--limit", "0"], ["--only", "toy", "--dry-run"]])
def test_workers_are_not_started_for_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    others: list[str],
) -> None:
    stand_in(monkeypatch, "print('a worker')")
    monkeypatch.setitem(EXPERIMENTS, NAME, toys())
    main([NAME, "--out", str(tmp_path), *CPU, "--workers", "3", *others])
    out = capsys.readouterr().out
    assert "a worker" not in out
    assert ("by 3 processes side by side" in out) == ("--dry-run" in others)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", "0"], "--workers 0: give how many processes"),
        (["--workers", "-2"], "--workers -2: give how many processes"),
        (["--workers", "1.5"], "Error parsing --workers"),
        (["--workers", "2", "--text", "/nowhere"], "'/nowhere' is neither a dataset"),
        (["--workers", "2", "--only", "tran"], "--only tran: no such jobs"),
    ],
)
def test_what_is_refused_starts_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    stand_in(monkeypatch, "print('a worker')")
    ended = command("run", "updates", "--out", tmp_path / "x", *CPU, *words)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "a worker" not in ended.stdout
    assert not (tmp_path / "x").exists()


def test_one_process_of_torchrun_has_no_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    ended = command("run", "updates", "--out", tmp_path / "x", *CPU, "--workers", "2")
    assert ended.returncode == 2
    assert "RANK is 0: processes share the work" in ended.stderr
