"""`python -m experiments run NAME ... --scale SCALE --out DIR`: tables and figures of the paper, from nothing."""

import math
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from textwrap import fill

import torch

from cwdfm.cli.options import HELP, fields_given, parse, words
from cwdfm.distributed import process_group
from cwdfm.errors import InputError
from cwdfm.files import check_output_folder
from experiments.brought import check_brought, unread
from experiments.catalog import EXPERIMENTS
from experiments.catalog.perplexity import TEST_CORPORA
from experiments.cli.options import Options, check_alone, check_seconds, places, understood
from experiments.cli.summary import foretell, refusal_told, report, together
from experiments.cli.workers import dealt, side_by_side
from experiments.cost import cost, trainings
from experiments.experiment import Plan, write
from experiments.job import Job, Resources, Store
from experiments.jobs import Corpus, Train, corpus_of, tokens_of
from experiments.listing import listed
from experiments.places import is_on_hub
from experiments.scores import Text, evaluator_identity, evaluator_note
from experiments.sweep import check, foreseen, in_order, wanted, work
from experiments.toy_evaluator import toy_evaluator

TOPICS = "python-topics"  # text in the box
LOOK = 3.0  # seconds after which workers look again, unless --wait says


def main(arguments: list[str]) -> None:
    """Parse, work, write the tables."""
    if not arguments or arguments[0] in ("list", *HELP):
        usage(arguments)
        return
    names, flags, options = understood(arguments)
    check_seconds(options)
    check_alone(options.workers)
    places(options.tests)
    if not (options.dry_run and options.out.is_dir()):
        check_writable(options)
    store = Store(options.out / "jobs")
    plans = {name: EXPERIMENTS[name].plan(options.scale) for name in names}
    order = asked(plans, options)
    todo = wanted(store, order)
    left = f"{len(todo)} of {len(order)} jobs to do, {trainings(todo)}"
    print(f"{together(names)} at {options.scale} scale: {left}")
    here = [job for job in todo if not options.only or job.kind in options.only]
    if told := cost(here, options.scale):
        print(fill(f"cost: {told}", 100, subsequent_indent="  ", break_on_hyphens=False))
    hangup = options.workers > 1  # nobody shall be left behind
    with stopped_in_order(hangup=hangup), process_group(options.device) as device:
        brought, given = brought_by(options, device), fields_given(Options, flags)
        check_brought(brought, given)
        if idle := unread(brought, given, order):
            why = f"read by no job of {together(names)}"
            print(f"note: {', '.join(idle)}: {why}", file=sys.stderr)
        resources = resources_of(options, device)
        lacks = check(todo, resources, options.only)
        if options.dry_run:
            dry_run(store, order, todo, lacks, options, resources)
            return
        check_possible(lacks, done=len(order) - len(todo))
        check_device(options, device, lacks)
        check_folder(store, order, options, resources)
        if options.scale == "smoke":
            resources = with_toy_evaluator(resources, store, todo)
        possible = sum(why is None for why in lacks.values())
        begun = time.monotonic()
        try:
            since = side_by_side_since(names, options, resources, min(options.workers, possible))
            limit = max(0.0, options.limit - (time.monotonic() - begun))
            only, wait = options.only, options.wait
            outcome = work(store, order, resources, only=only, wait=wait, limit=limit)
            outcome = outcome.with_failures(store, since)
        finally:  # interrupted, too: what is done is worth having
            wrong = show(plans, store, options.out / options.scale)
    report(outcome, store, limit=options.limit, unwritten=wrong)


def usage(arguments: list[str]) -> None:
    """List the experiments; after --help the options too, after nothing with exit code 2."""
    helps = any(word in HELP for word in arguments)
    if len(arguments) > 1 and not helps:
        raise InputError(
            f"`python -m experiments list` lists all experiments and takes nothing more, got "
            f"{' '.join(arguments[1:])}; what one would do and cost, `python -m experiments run NAME --scale "
            f"SCALE --out DIR --dry-run` tells"
        )
    print(f"usage: python -m experiments run NAME ... --out DIR [options]\n\n{listed()}\n")
    if helps:
        parse("repro NAME ...", ["--help"], lambda missing: Options(missing))  # and leaves
    print("`python -m experiments run --help` shows all options.")
    if not arguments:
        sys.exit(2)


def dry_run(
    store: Store,
    order: Sequence[Job],
    todo: Sequence[Job],
    lacks: Mapping[Job, str | None],
    options: Options,
    resources: Resources,
) -> None:
    """Say what the command would do, and what it would be refused for."""
    device = resources.device
    judged = resources
    if options.scale == "smoke":  # the toy judge is not made for that
        judged = replace(resources, eval_model=resources.eval_model or "toy")
    foretell(order, todo, foreseen(todo, judged, options.only), device)
    if options.workers > 1:
        print(f"by {options.workers} processes side by side: --workers")
    with refusal_told():
        check_writable(options)
        check_device(options, device, lacks)
    check_folder(store, order, options, resources)
    print("nothing was done: --dry-run")


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
    same = replace(options, workers=1, wait=options.wait or LOOK, eval_model=resources.eval_model)
    each = [words(replace(same, device=device)) for device in devices]
    side_by_side([[str(since), *names, *flags] for flags in each], devices)
    return since


def brought_by(options: Options, device: torch.device) -> Resources:
    """What the command brings along."""
    tests = places(options.tests)
    return Resources(device, options.molecules, options.text, options.eval_model, tests)


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


def with_toy_evaluator(brought: Resources, store: Store, todo: Iterable[Job]) -> Resources:
    """Nor a judge of text: one is made, once nothing else is wrong."""
    if brought.eval_model is not None or not any(isinstance(job, Text) for job in todo):
        return brought
    try:
        return replace(brought, eval_model=toy_evaluator(store.folder / "toy-evaluator"))
    except InputError as error:
        print(f"text is not judged: {error}")
        return brought


def check_writable(options: Options) -> None:
    """Refuse a folder that jobs, or what is made of them, cannot be written into."""
    for folder in (options.out, options.out / "jobs", options.out / options.scale):
        check_output_folder(folder)


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
    judges = {job.judge for job in order if isinstance(job, Text)} if options.eval_model else set()
    for name in judges:
        if store.remembers(evaluator_note(name)):
            store.same(evaluator_note(name), evaluator_identity(str(options.eval_model)))


def show(plans: Mapping[str, Plan], store: Store, out: Path) -> list[str]:
    """Write tables and figures of whatever is done, and tell why some are not: their names."""

    def say(line: str) -> None:
        with suppress(BrokenPipeError):  # files are worth having though nobody reads any more
            print(line)

    wrong = []
    for name, plan in plans.items():
        try:
            for path in write(plan, store, out, name):
                say(f"written: {path}")
        except InputError as error:
            say(f"{name} is not written: {error}")
            wrong.append(name)
    return wrong
