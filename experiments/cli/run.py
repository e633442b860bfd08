"""`python -m experiments run NAME ... --scale SCALE --out DIR`."""

import signal
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from cwdfm.cli.options import HELP, fields_given, parse
from cwdfm.errors import InputError, RunError
from cwdfm.files import check_output_folder
from experiments.catalog import EXPERIMENTS
from experiments.cli import PROGRAM
from experiments.cli.options import Options, parse_command, parse_test_corpora
from experiments.cli.resources import (
    check_fingerprints,
    check_given,
    unused_flags,
    with_smoke_corpora,
    with_smoke_evaluator,
)
from experiments.engine import DEPENDENCY_FAILED, Outcome, run_tasks, unavailable_tasks, unfinished
from experiments.experiment import Plan, write
from experiments.listing import list_experiments
from experiments.store import FAILURE, Store
from experiments.tasks.base import Resources, Task, in_order
from experiments.tasks.train import Train


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] in HELP:
        usage(arguments)
        return
    names, flags, options = parse_command(arguments)
    if not (options.dry_run and options.out.is_dir()):
        check_writable(options)
    store = Store(options.out / "jobs")
    plans = {name: EXPERIMENTS[name].plan(options.scale) for name in names}
    order = select_tasks(plans, options)
    todo = unfinished(store, order)
    print(f"{names_of(names)} at {options.scale} scale: {len(order)} tasks, {len(todo)} to run")
    resources = prepare_resources(options, fields_given(Options, flags), order, names)
    unavailable = unavailable_tasks(todo, _with_evaluator(resources, options))
    if options.dry_run:
        dry_run(store, order, todo, unavailable, options, resources)
        return
    check_any_available(todo, unavailable, finished=len(order) - len(todo))
    check_device(options, resources, (task for task in todo if task not in unavailable))
    check_fingerprints(store, order, options, resources)
    if options.scale == "smoke":
        resources = with_smoke_evaluator(resources, store, todo)
    with exit_on_signals():
        try:
            outcome = run_tasks(
                store,
                order,
                resources,
                workers=options.workers,
                config=options.config,
                time_limit=options.time_limit,
            )
        finally:  # after an interruption, too
            not_written = write_all(plans, store, options.out / options.scale)
    report(outcome, store, not_written)


def list_command(arguments: list[str]) -> None:
    """`python -m experiments list`."""
    if arguments and not any(word in HELP for word in arguments):
        raise InputError(
            f"`python -m experiments list` takes no arguments, got {' '.join(arguments)}; `python "
            f"-m experiments run NAME --out DIR --dry-run` shows what an experiment would run"
        )
    print(list_experiments())


def usage(arguments: list[str]) -> None:
    """Print the experiments, and after --help also the options."""
    print(
        f"usage: python -m experiments run NAME ... --out DIR [options]\n\n{list_experiments()}\n"
    )
    if arguments:
        parse("run NAME ...", ["--help"], lambda missing: Options(missing), PROGRAM)  # exits
    print("`python -m experiments run --help` shows all options.")
    sys.exit(2)


def select_tasks(plans: Mapping[str, Plan], options: Options) -> list[Task]:
    """The tasks on the selected corpora, in topological order."""
    tasks = [task for plan in plans.values() for task in plan.tasks]
    if options.corpora:
        tasks = [task for task in tasks if task.corpus_kind in options.corpora]
    if not tasks:
        raise InputError(
            f"--corpora {' '.join(options.corpora)}: {', '.join(plans)} has no task on it; leave "
            f"--corpora out"
        )
    return in_order(tasks)


def prepare_resources(
    options: Options, flags: Collection[str], order: Sequence[Task], names: Sequence[str]
) -> Resources:
    tests = parse_test_corpora(options.tests)
    given = Resources(options.device, options.molecules, options.text, options.eval_model, tests)
    check_given(given, flags)
    if unused := unused_flags(given, flags, order):
        print(f"note: {', '.join(unused)}: not used by {names_of(names)}", file=sys.stderr)
    return with_smoke_corpora(given) if options.scale == "smoke" else given


def _with_evaluator(resources: Resources, options: Options) -> Resources:
    """At smoke scale, check with the toy evaluator, which is created later."""
    if options.scale == "smoke" and resources.eval_model is None:
        return replace(resources, eval_model="toy")
    return resources


def dry_run(
    store: Store,
    order: Sequence[Task],
    todo: Sequence[Task],
    unavailable: Mapping[Task, str],
    options: Options,
    resources: Resources,
) -> None:
    """Print what the command would do, including the error that would stop it."""
    runnable = [task for task in todo if task not in unavailable]
    remaining = set(todo)
    print(f"finished: {count_kinds(task for task in order if task not in remaining)}")
    print(f"would run: {count_kinds(runnable)}")
    report_unavailable(unavailable)
    try:
        check_writable(options)
        check_device(options, resources, runnable)
    except InputError as error:
        print(f"the command would stop here: {error}")
    check_fingerprints(store, order, options, resources)
    print("dry run: nothing was executed")


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exit that stops the workers and writes the tables."""

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # not under nohup
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_writable(options: Options) -> None:
    for folder in (options.out, options.out / "jobs", options.out / options.scale):
        check_output_folder(folder)


def check_any_available(
    todo: Sequence[Task], unavailable: Mapping[Task, str], finished: int
) -> None:
    """Raise an error if no task can run and there are no results for a table."""
    if todo and not finished and all(task in unavailable for task in todo):
        raise InputError(f"no task can run here: {unavailable[todo[0]]}")


def check_device(options: Options, resources: Resources, runnable: Iterable[Task]) -> None:
    """Raise an error instead of training large models on a CPU by accident."""
    on_cpu = options.device == "auto" and resources.torch_device().type == "cpu"
    local = options.config is None and options.time_limit > 0
    trains = any(isinstance(task, Train) for task in runnable)
    if options.scale != "smoke" and on_cpu and local and trains:
        raise InputError(
            f"--scale {options.scale} requires a GPU and none was found; use --scale smoke, "
            f"--config for a cluster, --time-limit 0 to write tables only, or --device cpu to "
            f"train for days"
        )


def write_all(plans: Mapping[str, Plan], store: Store, folder: Path) -> list[str]:
    """Write the tables and figures of finished tasks; returns those that could not be written."""
    failed = []
    for name, plan in plans.items():
        try:
            for path in write(plan, store, folder, name):
                with suppress(BrokenPipeError):
                    print(f"wrote {path}")
        except InputError as error:
            with suppress(BrokenPipeError):
                print(f"{name} was not written: {error}")
            failed.append(name)
    return failed


def report(outcome: Outcome, store: Store, not_written: Sequence[str] = ()) -> None:
    """Print the unfinished tasks and the reasons; raise an error if tasks failed."""
    report_unavailable(outcome.unavailable)
    if outcome.not_started:
        print(f"not started because of --time-limit: {count(outcome.not_started)}")
    if outcome.failed:
        causes = {task: why for task, why in outcome.failed.items() if why != DEPENDENCY_FAILED}
        task, why = next(iter(causes.items()))
        first = ", first" if len(causes) > 1 else ":"
        blocked = len(outcome.failed) - len(causes)
        more = f"; {blocked} tasks that depend on them did not run" if blocked else ""
        raise RunError(
            f"{count(causes)} failed{first} {task.label}: {why}; see "
            f"{store.folder(task) / FAILURE}{more}; the same command tries again"
        )
    if not_written:
        raise InputError(f"not written, see above: {', '.join(not_written)}")
    print("complete" if outcome.complete else "incomplete: the same command continues")


def report_unavailable(unavailable: Mapping[Task, str]) -> None:
    """Print the tasks that cannot run here, grouped by reason."""
    for reason in dict.fromkeys(unavailable.values()):
        tasks = [task for task, why in unavailable.items() if why == reason]
        more = ", ..." if len(tasks) > 1 else ""
        print(f"skipped {count(tasks)} ({tasks[0].label}{more}): {reason}")


def names_of(names: Sequence[str]) -> str:
    return f"all {len(names)} experiments" if len(names) == len(EXPERIMENTS) else ", ".join(names)


def count_kinds(tasks: Iterable[Task]) -> str:
    counts = Counter(task.kind for task in tasks)
    return ", ".join(f"{number} {kind}" for kind, number in counts.items()) or "none"


def count(tasks: Collection[Task]) -> str:
    return "1 task" if len(tasks) == 1 else f"{len(tasks)} tasks"
