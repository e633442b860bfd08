"""Jobs are done once, whoever asks and however it was interrupted."""

import errno
import json
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
import experiments.jobs as jobs_module
import experiments.sweep as sweep_module
from cwdfm.train.recipes import RECIPES
from experiments.cli.summary import report
from experiments.job import Job, Resources, Store, Unavailable
from experiments.jobs import _forget_others
from experiments.sweep import TRIES, in_order, wanted, work

HERE = Resources(torch.device("cpu"))


@dataclass(frozen=True)
class Count(Job):
    """Writes a line each time it runs, so that running twice shows."""

    number: int

    def run(self, place: Path, store: Store, resources: Resources) -> dict[str, Any]:
        with (store.folder / "ran.txt").open("a") as log:
            log.write(f"{self.number}\n")
        time.sleep(0.02)
        return {"square": self.number**2}


@dataclass(frozen=True)
class Add(Job):
    left: Count
    right: Count

    def run(self, place: Path, store: Store, resources: Resources) -> dict[str, Any]:
        return {"sum": sum(store.found(job)["square"] for job in self.needs)}


@dataclass(frozen=True)
class Judged(Job):
    """Needs something that machines may lack."""

    of: Count

    def run(self, place: Path, store: Store, resources: Resources) -> dict[str, Any]:
        if resources.eval_model is None:
            raise Unavailable("no judge")
        return {"judge": resources.eval_model}


def silent(_: str) -> None:
    pass


def ran(store: Store) -> list[int]:
    return sorted(int(n) for n in (store.folder / "ran.txt").read_text().split())


def test_needed_jobs_come_first_and_nothing_runs_twice(tmp_path: Path) -> None:
    store, jobs = Store(tmp_path), [Add(Count(2), Count(3)), Add(Count(3), Count(4)), Count(2)]
    assert in_order(jobs) == [Count(2), Count(3), jobs[0], Count(4), jobs[1]]
    said: list[str] = []
    for _ in range(2):
        assert work(store, jobs, HERE, say=said.append).complete
    assert [line.split()[0] for line in said] == [f"[{n}/5]" for n in range(1, 6)]
    assert store.found(jobs[0]) == {"sum": 13}
    assert ran(store) == [2, 3, 4]
    record = store.result(Count(2))
    assert record is not None
    assert record["job"] == {"class": "Count", "number": 2}
    assert record["provenance"]["versions"]["torch"]


def test_another_version_of_a_job_is_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Count(2).name
    assert Count(2).name == before != Count(3).name
    monkeypatch.setattr(Count, "version", 2)
    assert Count(2).name != before


def test_what_another_did_while_its_lock_was_waited_for_is_not_done_again(tmp_path: Path) -> None:
    class Late(Store):
        @contextmanager
        def _held(self, job: Job) -> Iterator[bool]:
            Store(self.folder).do(job, HERE)  # by another, between question and lock
            with super()._held(job) as mine:
                yield mine

    assert Late(tmp_path).do(Count(1), HERE)
    assert ran(Store(tmp_path)) == [1]


def test_a_job_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)

    def killed(*_: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Count, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            work(store, [Count(1)], HERE, say=silent)
    assert store.result(Count(1)) is None
    assert work(store, [Count(1)], HERE, say=silent).complete


def test_a_job_that_breaks_off_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real = Store(tmp_path), Count.run

    def breaking(job: Count, *others: Any) -> dict[str, Any]:
        if job.number == 1:
            raise RuntimeError("out of memory\nand more of that")
        return real(job, *others)

    lost, jobs = Add(Count(1), Count(2)), [Add(Count(1), Count(2)), Add(Count(2), Count(3))]
    with monkeypatch.context() as patch:
        patch.setattr(Count, "run", breaking)
        outcome = work(store, jobs, HERE, say=silent)
    assert outcome.done == 3
    assert not outcome.complete
    why = {Count(1): "RuntimeError: out of memory", lost: "needs a job that failed"}
    assert outcome.failed == why
    assert "and more of that" in (store.place(Count(1)) / "failure.txt").read_text()
    said = r"1 job failed: .*count-.*; not done for want of what failed: 1; .*tries again"
    with pytest.raises(cwdfm.errors.RunError, match=said):
        report(outcome, store)
    assert work(store, jobs, HERE, say=silent).complete
    assert not (store.place(Count(1)) / "failure.txt").exists()


def test_a_full_disk_stops_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that a job tells in words of its own: none of the others could keep its work."""
    tried = []

    def full(job: Count, *_: Any) -> dict[str, Any]:
        tried.append(job)
        raise cwdfm.InputError("not kept") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Count, "run", full)
    with pytest.raises(cwdfm.InputError, match="not kept"):
        work(Store(tmp_path), [Count(1), Count(2)], HERE, say=silent)
    assert tried == [Count(1)]


def test_a_failure_is_not_tried_again_while_waiting_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, looks = Store(tmp_path), [0]

    def elsewhere(store: Store, job: Job, *_: object) -> bool:
        looks[0] += 1
        if job == Count(1):
            raise RuntimeError("broken")
        return looks[0] > 4  # in others' hands for a while

    monkeypatch.setattr(Store, "do", elsewhere)
    store.place(Count(1)).mkdir()
    outcome = work(store, [Count(1), Count(2)], HERE, say=silent, wait=0.01)
    assert outcome.failed == {Count(1): "RuntimeError: broken"}
    assert looks[0] == 5  # once for the one, four times for the other


def test_what_failed_for_another_of_the_command_s_processes_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(job: Count, *_: object) -> dict[str, Any]:
        if job.number == 1:
            raise RuntimeError("broken")
        return {"square": job.number**2}

    store, jobs = Store(tmp_path), [Count(1), Add(Count(1), Count(2))]
    monkeypatch.setattr(Count, "run", broken)
    work(store, jobs, HERE, say=silent)
    note = store.place(Count(1)) / "failure.txt"
    os.utime(note, (100.0, 100.0))
    said: list[str] = []
    outcome = work(store, jobs, HERE, say=said.append, since=50.0)
    assert said == []
    assert outcome.failed == {Count(1): "RuntimeError: broken", jobs[1]: "needs a job that failed"}
    assert work(store, jobs, HERE, say=silent, limit=0).with_failures(store, 50.0).failed == {
        Count(1): "RuntimeError: broken"
    }
    assert not work(store, jobs, HERE, say=silent, limit=0).with_failures(store, 150.0).failed
    both = replace(outcome, waiting=[Count(1)], failed={Count(9): "own"}).with_failures(store, 50.0)
    assert both.failed == {Count(9): "own", Count(1): "RuntimeError: broken"}
    assert both.waiting == []
    work(store, jobs, HERE, say=said.append, since=150.0)  # of another command, long ago
    assert [line for line in said if line.startswith("failed")] != []
    assert note.stat().st_mtime > 150.0


def test_memory_that_others_hold_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    plain = Count.run

    def run(job: Count, place: Path, store: Store, resources: Resources) -> dict[str, Any]:
        calls.append(job.number)
        if (job.number == 1 and calls.count(1) < 3) or job.number == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(job, place, store, resources)

    held: list[object] = []  # what errors still hold when memory is given back

    def given_back() -> None:
        held.append(sys.exc_info()[1])

    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    monkeypatch.setattr(Count, "run", run)
    monkeypatch.setattr(sweep_module, "_release", given_back)
    jobs = [Count(1), Count(2), Count(3)]
    outcome = work(Store(tmp_path), jobs, HERE, say=silent, wait=10.0)
    assert outcome.done == 2
    assert list(outcome.failed) == [Count(2)]
    assert calls == [1, 2, 3, 1, 2, 1, 2, 2]  # again only after a while
    assert calls.count(2) == TRIES
    assert held == [None] * len(calls)
    # Nobody to wait for: it has failed.
    outcome = work(Store(tmp_path / "alone"), jobs, HERE, say=silent)
    assert calls.count(2) == TRIES + 1
    assert list(outcome.failed) == [Count(2)]


def test_runs_of_one_network_share_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    resets = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(1))
    monkeypatch.setattr(jobs_module, "_compiled", [])
    recipe = RECIPES["qm9-debug"]()
    changes: list[tuple[dict[str, Any], int]] = [
        ({}, 1),
        ({"seed": 3, "loss": "sce", "path": "context"}, 1),
        ({"batch_size": 4}, 2),
        ({"batch_size": 4, "method": "ar"}, 3),
        ({}, 4),
    ]
    for change, expected in changes:
        _forget_others(replace(recipe, **change))
        assert len(resets) == expected


def share(folder: Path) -> None:
    jobs = [Add(Count(i), Count(i + 1)) for i in range(12)]
    work(Store(folder), jobs, HERE, say=silent, wait=0.01)


def test_processes_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")  # threads are about, and do not fork
    context.set_forkserver_preload([__name__])
    others = [context.Process(target=share, args=(tmp_path,)) for _ in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join(300)
        assert other.exitcode == 0
    store = Store(tmp_path)
    assert ran(store) == list(range(13))  # each once
    assert all(store.result(Add(Count(i), Count(i + 1))) for i in range(12))


def test_what_a_machine_lacks_is_left_to_another(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = work(store, [Judged(Count(1)), Count(2)], HERE, say=silent)
    assert first.lacking == {Judged(Count(1)): "no judge"}
    assert first.done == 2
    there = Resources(torch.device("cpu"), eval_model="gpt2")
    assert work(store, [Judged(Count(1))], there, say=silent).complete


@dataclass(frozen=True)
class Leave(Job):
    """Leaves a file, and counts how often."""

    number: int

    @property
    def leaves(self) -> tuple[str, ...]:
        return ("made.txt",)

    def run(self, place: Path, store: Store, resources: Resources) -> dict[str, Any]:
        with (store.folder / "ran.txt").open("a") as log:
            log.write(f"{self.number}\n")
        (place / "made.txt").write_text(str(self.number))
        return {}


@dataclass(frozen=True)
class Read(Job):
    """Needs that file."""

    of: Leave
    times: int = 1

    def run(self, place: Path, store: Store, resources: Resources) -> dict[str, Any]:
        return {"product": self.times * int((store.place(self.of) / "made.txt").read_text())}


def test_what_is_gone_is_made_again_for_those_who_need_it_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    done = [Read(Leave(1)), Read(Leave(2))]
    work(store, done, HERE, say=silent)
    for job in done:
        (store.place(job.of) / "made.txt").unlink()  # results alone were kept
    assert wanted(store, done) == []
    assert work(store, done, HERE, say=silent).complete
    assert ran(store) == [1, 2]
    more = [*done, Read(Leave(2), times=5)]
    assert wanted(store, more) == [Leave(2), more[-1]]
    outcome = work(store, more, HERE, say=silent)
    assert outcome.complete
    assert outcome.done == 5
    assert store.found(more[-1]) == {"product": 10}
    assert ran(store) == [1, 2, 2]


@dataclass(frozen=True)
class Parse(Job):
    """Needs that file, and refuses a damaged one by its name."""

    of: Leave

    def run(self, place: Path, store: Store, resources: Resources) -> dict[str, Any]:
        path = store.place(self.of) / "made.txt"
        if path.read_text() != str(self.of.number):
            raise cwdfm.InputError(f"{path} is cut off")
        return {}


def test_what_was_left_and_is_damaged_is_made_again_as_the_failure_says(tmp_path: Path) -> None:
    store, job = Store(tmp_path), Parse(Leave(7))
    work(store, [job.of], HERE, say=silent)
    (store.place(job.of) / "made.txt").write_text("")
    for _ in range(2):  # trying again does not help
        why = work(store, [job], HERE, say=silent).failed[job]
    said, path = why.split("; to have it made again, delete ")
    assert said.endswith("is cut off")
    Path(path).unlink()
    assert work(store, [job], HERE, say=silent).complete
    assert ran(store) == [7, 7]


def test_what_is_made_again_is_not_ready_before_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor after a kill on the way, whatever was left by then; the result stays to be read."""
    store, plain = Store(tmp_path), Leave.run
    work(store, [Read(Leave(1))], HERE, say=silent)
    place = store.place(Leave(1))
    (place / "made.txt").unlink()
    (place / "checkpoint").write_text("of the run before")
    seen: list[tuple[bool, bool]] = []

    def killed(job: Leave, place: Path, *others: Any) -> dict[str, Any]:
        assert not (place / "checkpoint").exists()
        with store._held(job) as free:
            assert not free  # its lock is still ours
        (place / "begun").write_text("of this run")
        plain(job, place, *others)
        seen.append((store.ready(job), store.result(job) is not None))
        raise KeyboardInterrupt

    more = [Read(Leave(1), times=3)]
    with monkeypatch.context() as patch:
        patch.setattr(Leave, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            work(store, more, HERE, say=silent)
    assert seen == [(False, True)]
    assert not store.ready(Leave(1))
    assert wanted(store, more) == [Leave(1), *more]
    assert work(store, more, HERE, say=silent).complete
    assert (place / "begun").exists()  # what the killed one left was there to go on from
    assert store.ready(Leave(1))
    assert store.found(more[0]) == {"product": 3}


def test_results_say_of_which_run_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, dates = Store(tmp_path), iter(f"2026-01-0{day}" for day in range(1, 9))
    monkeypatch.setattr("experiments.job.provenance", lambda: {"date": next(dates)})
    first, second, third = (Read(Leave(1), times) for times in (1, 2, 3))
    for jobs in ([first], [first, second], [first, second, third]):
        assert store.run_of(Leave(1), jobs[-1]) is None
        work(store, jobs, HERE, say=silent)
        (store.place(Leave(1)) / "made.txt").unlink()
    runs = ["2026-01-01", "2026-01-03", "2026-01-05"]
    assert [store.run_of(Leave(1), job) for job in (first, second, third)] == runs
    for job in (first, second, third):  # as results were that did not say it
        path = store.place(job) / "result.json"
        record = json.loads(path.read_text())
        del record["needs"]
        path.write_text(json.dumps(record))
    assert [store.run_of(Leave(1), job) for job in (first, second, third)] == runs
    for date in ("2026-01-03", "2025-12-31"):  # of one moment with a run; before all of them
        path.write_text(json.dumps({**record, "provenance": {"date": date}}))
        assert store.run_of(Leave(1), third) == max(date, runs[0])


def test_a_job_that_does_not_leave_what_it_should_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Leave, "run", lambda *_: {})
    outcome = work(Store(tmp_path), [Leave(1)], HERE, say=silent)
    assert "did not leave made.txt" in outcome.failed[Leave(1)]


def test_what_others_did_meanwhile_is_no_longer_lacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plain = Store(tmp_path), Count.run

    def run(job: Count, place: Path, store: Store, resources: Resources) -> dict[str, Any]:
        store.do(Leave(7), resources)  # by another, who may
        return plain(job, place, store, resources)

    monkeypatch.setattr(Count, "run", run)
    outcome = work(store, [Read(Leave(7)), Count(2)], HERE, only=("read", "count"), say=silent)
    assert outcome.complete
    assert store.found(Read(Leave(7))) == {"product": 7}


def test_after_each_job_the_first_that_can_be_done_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process finishes what the first job needs while this one is at the second."""
    store, plain = Store(tmp_path), Count.run

    def run(job: Count, place: Path, store: Store, resources: Resources) -> dict[str, Any]:
        if job.number == 2:  # meanwhile, elsewhere
            elsewhere.__exit__(None, None, None)
            store.do(Leave(7), resources)
        return plain(job, place, store, resources)

    monkeypatch.setattr(Count, "run", run)
    said: list[str] = []
    jobs = [Read(Leave(7)), Count(2), Count(3)]
    elsewhere = store._held(Leave(7))
    assert elsewhere.__enter__()
    assert work(store, jobs, HERE, say=said.append).complete
    assert [line.split()[1] for line in said] == [str(Count(2)), str(jobs[0]), str(Count(3))]


def test_no_job_is_begun_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, clock = Store(tmp_path), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    plain = Count.run

    def run(job: Count, *others: Any) -> dict[str, Any]:
        clock[0] += 10.0
        return plain(job, *others)

    monkeypatch.setattr(Count, "run", run)
    jobs = [Leave(0), *(Count(i) for i in range(1, 4))]

    def breaks_off(*_: object) -> dict[str, Any]:
        clock[0] += 10.0
        raise RuntimeError("broken")

    monkeypatch.setattr(Leave, "run", breaks_off)
    outcome = work(store, jobs, HERE, say=silent, limit=15.0)
    assert list(outcome.failed) == [Leave(0)]
    assert ran(store) == [1]
    assert outcome.waiting == [Count(2), Count(3)]
    assert not outcome.complete
    with pytest.raises(cwdfm.errors.RunError):
        report(outcome, store)
    assert "not begun: 2 jobs" in capsys.readouterr().out
    waiting = replace(outcome, failed={})
    for limit, why in (
        (15.0, "the same command goes on there"),
        (0.0, "--limit 0 begins none; the same command without it goes on there"),
    ):
        report(waiting, store, limit=limit)
        assert f"not begun: 2 jobs; {why}\n" in capsys.readouterr().out
    report(replace(waiting, elsewhere=[Count(1)]), store)
    told = capsys.readouterr().out
    assert "in others' hands: 1 job; the same command goes on later, or waits for them" in told
    assert "not begun: 2 jobs; they need what is in others' hands\n" in told
    assert work(store, jobs[1:], HERE, say=silent).complete


def test_others_are_waited_for_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock = Store(tmp_path), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    with store._held(Count(1)):
        outcome = work(store, [Count(1)], HERE, say=silent, wait=10.0, limit=15.0)
    assert outcome.elsewhere == [Count(1)]
    assert clock == [15.0]


def test_only_some_kinds(tmp_path: Path) -> None:
    store, job = Store(tmp_path), Add(Count(1), Count(2))
    assert not work(store, [job], HERE, only=("count",), say=silent).complete
    assert store.result(Count(1))
    assert store.result(job) is None


def test_other_data_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.same("text-512", "a" * 64)
    store.same("text-512", "a" * 64)
    with pytest.raises(cwdfm.InputError, match=r"other text-512 .*give the same, or another"):
        store.same("text-512", "b" * 64)


WHOLE = '{"result": {}, "provenance": {"date": "2026-01-01"}'


@pytest.mark.parametrize(
    "content",
    [
        *("{", "", "null", "3", '"x"', "[]", "{}", '{"result": {}}', WHOLE + ', "needs": 3}'),
        *(WHOLE + ', "earlier": 3}', WHOLE + ', "earlier": [3]}'),
        '{"result": 3, "provenance": {"date": "2026-01-01"}}',
        '{"result": {}, "provenance": {}}',
    ],
)
def test_a_damaged_result_is_made_again(tmp_path: Path, content: str) -> None:
    store = Store(tmp_path)
    work(store, [Count(1)], HERE, say=silent)
    path = store.place(Count(1)) / "result.json"
    path.write_text(WHOLE + "}")  # all that a store needs of one
    assert work(store, [Count(1)], HERE, say=silent).complete
    path.write_text(content)
    damaged = rf"{re.escape(str(path))} is damaged .*; the job is done again"
    with pytest.warns(UserWarning, match=damaged):
        assert work(store, [Count(1)], HERE, say=silent).complete
    assert store.found(Count(1)) == {"square": 1}


@dataclass(frozen=True)
class Pinned(Job):
    """Of one corpus alone."""

    def run(self, place: Path, store: Store, resources: Resources) -> dict[str, Any]:
        store.same("molecules-32", "a" * 64)
        return {}


@pytest.mark.parametrize("content", ["{", "", "3", "null", "[]"])
def test_a_damaged_note_of_the_corpus_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "molecules-32.json"
    path.write_text(content)
    damaged = rf"{re.escape(str(path))} is damaged .*; delete it"
    with pytest.raises(cwdfm.InputError, match=damaged):
        work(Store(tmp_path), [Pinned()], HERE, say=silent)
    path.unlink()
    assert work(Store(tmp_path), [Pinned()], HERE, say=silent).complete
