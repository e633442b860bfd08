"""`python -m experiments COMMAND ...`: the paper's tables and figures, benchmarks, result pages."""

import sys

from cwdfm.cli.main import exit_on_error, fail
from cwdfm.cli.options import HELP
from experiments import frontier, report, results
from experiments.chaos import run as chaos
from experiments.cli import bench, run

COMMANDS = {
    "list": (run.list_command, "list the experiments and their cost"),
    "run": (run.main, "run experiments: train, sample, score, write tables and figures"),
    "bench": (bench.main, "measure the speed of training and sampling on this machine"),
    "chaos": (chaos.main, "inject faults into commands and count what breaks"),
    "collect": (results.collect_command, "add finished cells and studies to results/"),
    "restore": (results.restore_command, "copy the recorded cells into a run folder"),
    "report": (report.main, "write the tables of the recorded results into docs/ and results/"),
}


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in HELP:
        print("usage: python -m experiments COMMAND ...\n\ncommands:")
        for name, (_, summary) in COMMANDS.items():
            print(f"  {name:8} {summary}")
        sys.exit(0 if arguments else 2)
    if arguments[0] not in COMMANDS:
        fail(f"unknown command {arguments[0]!r}; choose from {', '.join(COMMANDS)}")
    command, _ = COMMANDS[arguments[0]]
    if arguments[:2] == ["run", "frontier"]:  # a study with its own options
        command, arguments = frontier.main, arguments[1:]
    with exit_on_error(resumable=True):
        command(arguments[1:])


if __name__ == "__main__":
    main()
