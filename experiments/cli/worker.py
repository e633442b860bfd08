"""`python -m experiments.cli.worker SINCE NAME ... --out DIR ...`: one worker process.

It does jobs and no more. The command that starts it has made all checks, and writes the tables.
"""

import io
import os
import signal
import sys
from threading import Thread, get_ident

from cwdfm.cli.main import run, write_any_text
from cwdfm.distributed import process_group
from experiments.catalog import EXPERIMENTS
from experiments.cli.options import understood
from experiments.cli.run import asked, resources_of, stopped_in_order
from experiments.job import Store
from experiments.sweep import work


def main() -> None:
    """Work along, with lines that whoever started this can pass on as they come."""
    write_any_text()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    end_with_parent()
    run(work_along, sys.argv[1:], keeps=True)


def end_with_parent() -> None:
    """End in order once the standard input does, as it does with the process that holds it."""
    held, main_thread = os.dup(0), get_ident()
    with open(os.devnull) as nothing:  # noqa: PTH123  # no job shall wait for it
        os.dup2(nothing.fileno(), 0)

    def watch() -> None:
        while os.read(held, 1):
            pass
        signal.pthread_kill(main_thread, signal.SIGTERM)  # another's would not wake it from a wait

    Thread(target=watch, daemon=True).start()


def work_along(arguments: list[str]) -> None:
    """The jobs of some experiments, so far as others do not do them; `SINCE`: see `work`."""
    since, *others = arguments
    names, _, options = understood(others)
    order = asked({name: EXPERIMENTS[name].plan(options.scale) for name in names}, options)
    with stopped_in_order(), process_group(options.device) as device:
        work(
            Store(options.out / "jobs"),
            order,
            resources_of(options, device),
            only=options.only,
            wait=options.wait,
            limit=options.limit,
            since=float(since),
        )


if __name__ == "__main__":
    main()
