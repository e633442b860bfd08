"""`cwdfm repro NAME ... --scale SCALE --out DIR`: tables and figures of the paper, from nothing."""

import itertools
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import torch

from cwdfm.cli.options import fields_given, parse, words
from cwdfm.cli.workers import dealt, side_by_side
from cwdfm.distributed import joined
from cwdfm.errors import InputError, WorkFailed
from cwdfm.files import check_place
from cwdfm.repro.brought import check_brought, unread
from cwdfm.repro.cost import cost, trainings
from cwdfm.repro.experiment import Plan, write
from cwdfm.repro.experiments import EXPERIMENTS
from cwdfm.repro.experiments.perplexity import TEST_CORPORA
from cwdfm.repro.job import Job, Resources, Store
from cwdfm.repro.jobs import Corpus, Train, corpus_of, tokens_of
from cwdfm.repro.listing import listed, no_experiment, of_the_paper
from cwdfm.repro.places import is_on_hub
from cwdfm.repro.scale import Scale
from cwdfm.repro.scores import Text, judge_identity, judge_note
from cwdfm.repro.sweep import NEEDS_FAILED, Outcome, check, foreseen, in_order, wanted, work
from cwdfm.repro.toy_judge import toy_judge

TOPICS = "python-topics"  # text in the box
LONGEST_WAIT = 10**6  # seconds: what is much longer, no clock sleeps
LOOK = 3.0  # seconds after which workers look again, unless --wait says


@dataclass(frozen=True)
class Options:
    """Make tables and figures of the paper. What is done is kept; interrupted, it goes on.

    Several processes (--workers) or machines may work in one folder at a time.
    """

    out: Path  # folder for the jobs, and in OUT/SCALE for the tables made of them
    scale: Scale = "smoke"  # smoke: minutes on a CPU; small: one GPU; paper: the paper's own
    molecules: str = "qm9"  # corpus of the experiments on molecules: a name, or what was prepared
    text: str | None = None  # corpus of text: a prepared folder, a file, a name; smoke has its own
    judge: str | None = None  # of text: a causal LM by hub name, a folder, a .gguf; smoke: a toy
    tests: tuple[str, ...] = ()  # of perplexity: NAME=PLACE of its test corpora, or NAME alone
    corpora: tuple[Corpus, ...] = ()  # of experiments on both, one alone; none named: both
    only: tuple[str, ...] = ()  # kinds of jobs to do here: train, sample, text, molecules, ...
    wait: float = 0.0  # seconds after which to look again for jobs that others are at; 0: do not
    limit: float = math.inf  # seconds after which no job is begun
    workers: int = 1  # processes that do jobs side by side; 8 share one large GPU at small scale
    dry_run: bool = False  # tell what would be done, what is there, lacks here and costs; no more
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...; auto deals workers over all GPUs


def main(arguments: list[str]) -> None:
    """Parse, work, write the tables."""
    if not arguments or arguments[0] in ("list", "-h", "--help"):
        print(f"usage: cwdfm repro NAME ... --out DIR [options]\n\n{listed()}\n")
        if arguments and arguments[0] != "list":
            parse("repro NAME ...", ["--help"], lambda missing: Options(missing))  # and leaves
        print("`cwdfm repro --help` shows all options.")
        if not arguments:
            sys.exit(2)
        return
    names, flags, options = understood(arguments)
    check_seconds(options)
    check_alone(options.workers)
    places(options.tests)
    if options.out.exists() and not options.out.is_dir():
        raise InputError(f"--out {options.out} is a file; give a folder")
    check_place(options.out)
    store = Store(options.out / "jobs")
    plans = {name: EXPERIMENTS[name].plan(options.scale) for name in names}
    order = asked(plans, options)
    todo = wanted(store, order)
    left = f"{len(todo)} of {len(order)} jobs to do, {trainings(todo)}"
    print(f"{', '.join(names)} at {options.scale} scale: {left}")
    here = [job for job in todo if not options.only or job.kind in options.only]
    if told := cost(here, options.scale):
        print(f"cost: {told}")
    hangup = options.workers > 1  # nobody shall be left behind
    with stopped_in_order(hangup=hangup), joined(options.device) as device:
        brought = brought_by(options, device)
        check_brought(brought, fields_given(Options, flags))
        if idle := unread(brought, fields_given(Options, flags), order):
            why = f"read by no job of {', '.join(names)}"
            print(f"note: {', '.join(idle)}: {why}", file=sys.stderr)
        toys = options.scale == "smoke"
        resources = resources_of(options, device)
        only = options.only
        lacks = check(todo, resources, only)
        if options.dry_run:
            foretell(order, todo, foreseen(todo, with_any_judge(resources, toys), only), device)
            if options.workers > 1:
                print(f"by {options.workers} processes side by side: --workers")
            with refusal_told():
                check_device(options, device, lacks)
            check_folder(store, order, options, resources)
            print("nothing was done: --dry-run")
            return
        check_possible(lacks, done=len(order) - len(todo))
        check_device(options, device, lacks)
        check_folder(store, order, options, resources)
        resources = with_toy_judge(resources, store, todo) if toys else resources
        possible = sum(why is None for why in lacks.values())
        begun = time.monotonic()
        try:
            since = side_by_side_since(names, options, resources, min(options.workers, possible))
            limit = max(0.0, options.limit - (time.monotonic() - begun))
            outcome = work(store, order, resources, only=only, wait=options.wait, limit=limit)
            outcome = outcome.with_failures(store, since)
        finally:  # interrupted, too: what is done is worth having
            wrong = show(plans, store, options.out / options.scale)
    report(outcome, store)
    if wrong:
        raise InputError(f"not written, for what is said above: {', '.join(wrong)}")


def understood(arguments: list[str]) -> tuple[list[str], list[str], Options]:
    """The experiments that a command line names, its flags, and what they say."""
    given = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    names = chosen(given, before=arguments[0])
    flags = arguments[len(given) :]
    verb = f"repro {' '.join(given)}"
    return names, flags, parse(verb, flags, lambda missing: Options(missing))


@contextmanager
def stopped_in_order(*, hangup: bool = False) -> Iterator[None]:
    """Let SIGTERM, by which schedulers end a job, be an exit like others: tables are written.

    With `hangup` let a terminal that is closed be one too, unless (`nohup`) it shall not matter.
    """

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if hangup and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def side_by_side_since(
    names: Sequence[str], options: Options, resources: Resources, count: int
) -> float:
    """Let `count` processes do what can be done: when they began; never, if one were alone.

    They wait for each other's jobs. What failed for one of them is left by the others, and tried
    once more by this process at the end, when all memory is free.
    """
    if count < 2 or not options.limit:
        return math.inf
    since = time.time()
    devices = dealt(options.device, resources.device, count)
    print(f"{count} processes side by side, on {', '.join(dict.fromkeys(devices))}", flush=True)
    same = replace(options, workers=1, wait=options.wait or LOOK, judge=resources.judge)
    each = [words(replace(same, device=device)) for device in devices]
    side_by_side([[str(since), *names, *flags] for flags in each], devices)
    return since


def brought_by(options: Options, device: torch.device) -> Resources:
    """What the command brings along."""
    tests = places(options.tests)
    return Resources(device, options.molecules, options.text, options.judge, tests)


def resources_of(options: Options, device: torch.device) -> Resources:
    """What there is for jobs: what the command brings along, and toys; not yet a toy judge."""
    brought = brought_by(options, device)
    return with_toys(brought) if options.scale == "smoke" else brought


def asked(plans: Mapping[str, Plan], options: Options) -> list[Job]:
    """The jobs of the corpora that are asked for, in their order."""
    jobs = [job for plan in plans.values() for job in plan.jobs]
    order = in_order(j for j in jobs if not options.corpora or corpus_of(j) in options.corpora)
    if not order:
        raise InputError(
            f"--corpora {' '.join(options.corpora)}: {', '.join(plans)} has no job on it; leave "
            f"--corpora out"
        )
    check_kinds(options, {job.kind for job in order})
    return order


def check_kinds(options: Options, there: Set[str]) -> None:
    """See that `--only` leaves some job; one line can serve experiments that lack some kinds."""
    absent = sorted(set(options.only) - there)
    if not absent:
        return
    plans = (experiment.plan(options.scale) for experiment in EXPERIMENTS.values())
    known = {job.kind for plan in plans for job in in_order(plan.jobs)}
    wrong = [kind for kind in absent if kind not in known]
    if wrong or not there & set(options.only):
        kinds = ", ".join(sorted(there))
        raise InputError(f"--only {' '.join(wrong or absent)}: no such jobs; there are {kinds}")
    print(f"note: --only {' '.join(absent)}: no such jobs here", file=sys.stderr)


def with_toys(brought: Resources) -> Resources:
    """At smoke scale nobody need bring text, or corpora to test on."""
    tests = dict.fromkeys(TEST_CORPORA, TOPICS) | dict(brought.tests)
    return replace(brought, text=brought.text or TOPICS, tests=tuple(sorted(tests.items())))


def with_toy_judge(brought: Resources, store: Store, todo: Iterable[Job]) -> Resources:
    """Nor a judge of text: one is made, once nothing else is wrong."""
    if brought.judge is not None or not any(isinstance(job, Text) for job in todo):
        return brought
    try:
        return replace(brought, judge=toy_judge(store.folder / "toy-judge"))
    except InputError as error:
        print(f"text is not judged: {error}")
        return brought


def with_any_judge(brought: Resources, toys: bool) -> Resources:
    """To foretell: as with the toy judge, which is not made for that."""
    return replace(brought, judge=brought.judge or "toy") if toys else brought


def check_possible(lacks: Mapping[Job, str | None], done: int) -> None:
    """Refuse to begin where no job can be done; tables of what is done are worth having, though."""
    first = [why for job, why in lacks.items() if not lacks.keys() & set(job.needs)]
    if first and all(first) and not done:
        raise InputError(f"nothing can be done here: {first[0]}")


def check_device(options: Options, device: torch.device, lacks: Mapping[Job, str | None]) -> None:
    """Refuse to train on a CPU for days unasked."""
    trains = any(isinstance(job, Train) and why is None for job, why in lacks.items())
    unasked = (options.device, device.type) == ("auto", "cpu") and options.limit > 0
    if options.scale != "smoke" and trains and unasked:
        raise InputError(
            f"--scale {options.scale} is for a GPU, and here is none; give --scale smoke, --limit "
            f"0 for tables of what is done, or --device cpu for trainings that take days"
        )


def check_folder(
    store: Store, order: Sequence[Job], options: Options, resources: Resources
) -> None:
    """Refuse another corpus or judge than the folder's results are of, though all be done.

    A dry run keeps nothing of what it prepares for that, and leaves corpora of the hub alone.
    """
    given: dict[Corpus, bool] = {
        "molecules": options.molecules != Options.molecules,
        "text": options.text is not None,
    }
    lengths = {(job.corpus, job.recipe.length) for job in order if isinstance(job, Train)}
    for corpus, length in sorted(lengths):
        if not given[corpus] or not store.remembers(f"{corpus}-{length}"):
            continue
        if options.dry_run and is_on_hub(place := resources.corpus(corpus)):
            print(f"whether {place} is the corpus of {store.folder} is seen when it has been read")
        else:
            tokens_of(corpus, length, store, resources, "read" if options.dry_run else True)
    judges = {job.judge for job in order if isinstance(job, Text)} if options.judge else set()
    for name in judges:
        if store.remembers(judge_note(name)):
            store.same(judge_note(name), judge_identity(str(options.judge)))


def check_seconds(options: Options) -> None:
    """Refuse times that are none."""
    if not 0 <= options.wait <= LONGEST_WAIT:
        raise InputError(
            f"--wait {options.wait:g}: give a finite number of seconds, from 0 to "
            f"{LONGEST_WAIT:,}; 0 is not to look again"
        )
    if not options.limit >= 0:  # NaN is not, either
        raise InputError(
            f"--limit {options.limit:g}: give a number of seconds, 0 or more; leave it out for no "
            f"limit"
        )


def check_alone(workers: int) -> None:
    """Refuse a group of processes, which would wait for each other in different jobs."""
    if workers < 1:
        raise InputError(
            f"--workers {workers}: give how many processes shall work side by side, 1 or more"
        )
    if sys.platform == "win32" and workers > 1:
        raise InputError(
            f"--workers {workers}: jobs have no locks on Windows, and each would be done {workers} "
            f"times; leave --workers out"
        )
    group = "WORLD_SIZE" if os.environ.get("WORLD_SIZE", "1") != "1" else "RANK"
    if group == "WORLD_SIZE" or (workers > 1 and group in os.environ):
        raise InputError(
            f"{group} is {os.environ[group]}: processes share the work of `cwdfm repro` by its "
            f"folder, not by torchrun; start it once and alone, with --workers 2 for two processes "
            f"and one --out for all machines"
        )


def places(tests: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Test corpora and where they lie, from NAME=PLACE or NAME alone."""
    parts = [test.partition("=") for test in tests]
    if wrong := [name for name, _, _ in parts if name not in TEST_CORPORA]:
        known = ", ".join(TEST_CORPORA)
        raise InputError(f"--tests {' '.join(wrong)}: no such test corpus; there are {known}")
    for name, equals, place in parts:
        if equals and not place:
            raise InputError(f"--tests {name}= names no place; give one, or {name} alone")
        if [other for other, _, _ in parts].count(name) > 1:
            raise InputError(f"--tests names {name} more than once; give one place for it")
    return tuple((name, place or name) for name, _, place in parts)


def show(plans: Mapping[str, Plan], store: Store, out: Path) -> list[str]:
    """Write tables and figures of whatever is done, and tell why some are not: their names."""
    wrong = []
    for name, plan in plans.items():
        try:
            for path in write(plan, store, out, name):
                print(f"written: {path}")
        except InputError as error:
            print(f"{name} is not written: {error}")
            wrong.append(name)
    return wrong


def chosen(given: list[str], before: str) -> list[str]:
    """The experiments that are named, each once."""
    if not given:
        raise InputError(
            f"{before} stands before the experiment's name; give that first, one of `cwdfm repro "
            f"list`"
        )
    for word in given:
        if told := no_experiment(word):
            raise InputError(f"{word} is no experiment: {told}; see `cwdfm repro list`")
    names = [name for word in given for name in of_the_paper(word) or [word]]
    known = (*EXPERIMENTS, "all")
    if wrong := [name for name in names if name not in known]:
        word = wrong[0].lower()
        begun = [name for name in known if name.startswith(word)]
        near = begun or get_close_matches(word, known)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise InputError(f"unknown experiment {wrong[0]!r}; {meant}`cwdfm repro list` has them all")
    return list(EXPERIMENTS) if "all" in names else list(dict.fromkeys(names))


def foretell(
    order: Sequence[Job], todo: Sequence[Job], lacking: Mapping[Job, str], device: torch.device
) -> None:
    """Say what the command would do, without --dry-run."""
    gone = set(todo)
    print(f"there already: {kinds(job for job in order if job not in gone)}")
    print(f"would be done, on {device}: {kinds(job for job in todo if job not in lacking)}")
    report_lacking(lacking)


@contextmanager
def refusal_told() -> Iterator[None]:
    """Say what a command would be refused for, and go on."""
    try:
        yield
    except InputError as error:
        print(f"but it would be refused here: {error}")


def kinds(jobs: Iterable[Job]) -> str:
    """How many jobs of each kind."""
    counts = Counter(job.kind for job in jobs)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"


def report_lacking(lacking: Mapping[Job, str]) -> None:
    """Say what is not done here, and why."""
    for reason in dict.fromkeys(lacking.values()):
        jobs = [job for job, why in lacking.items() if why == reason]
        more = ", ..." if len(jobs) > 1 else ""
        print(f"not done here: {many(jobs)} ({jobs[0].label}{more}): {reason}")


def many(jobs: Collection[Job]) -> str:
    """How many, in words."""
    return "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"


def report(outcome: Outcome, store: Store) -> None:
    """Say what is left, and why."""
    report_lacking(outcome.lacking)
    if outcome.elsewhere:
        print(f"in others' hands: {many(outcome.elsewhere)}; the same command goes on later")
    if outcome.waiting:
        print(f"not begun: {many(outcome.waiting)}; the same command goes on there")
    if outcome.failed:
        broken = {job: why for job, why in outcome.failed.items() if why != NEEDS_FAILED}
        job, why = next(iter(broken.items()))
        first = ", the first of them" if len(broken) > 1 else ":"
        behind = len(outcome.failed) - len(broken)
        left = f"; not done for want of what failed: {behind}" if behind else ""
        raise WorkFailed(
            f"{many(broken)} failed{first} {job.label}: {why}; see "
            f"{store.place(job) / 'failure.txt'}{left}; the same command tries again"
        )
    print("complete" if outcome.complete else "incomplete, for what is said above")
