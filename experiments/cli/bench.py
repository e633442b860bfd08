"""`python -m experiments bench --out FILE`: the speed of training and sampling."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cwdfm.cli.options import parse
from cwdfm.distributed import process_group, world_size
from cwdfm.errors import InputError
from experiments.bench.settings import SHAPES, Scale, Settings
from experiments.bench.suite import CASES, chosen, run
from experiments.cli import PROGRAM


@dataclass(frozen=True)
class Options:
    """Time training, sampling and their parts, and print a table.

    Each time is compared with a lower bound from the peak speed of this machine, and with the first
    implementation of its case. flow_matching is included if it is installed. Each case is saved
    when it is finished, so the same command resumes after an interruption. To list the cases, run
    `python -m experiments bench list`.
    """

    out: Path  # JSON file of results
    cases: tuple[str, ...] = ()  # cases to measure; default: all
    scale: Scale = "full"  # full: the paper's shapes on a GPU with 80 GB; tiny: seconds on a CPU
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    compile: bool = True  # compile the transformer on a GPU
    whole: bool = False  # compile it as a whole instead of block by block, which takes minutes
    again: bool = False  # measure cases again that are already in the file


def main(arguments: list[str]) -> None:
    if arguments == ["list"]:
        for case in CASES.values():
            print(f"{case.name:20} {case.title(SHAPES['full'])}")
            print(f"{'':20} implementations: {'; '.join(case.ways)}")
        return
    options = parse("bench", arguments, lambda missing: Options(missing), PROGRAM)
    cases = chosen(options.cases)
    with process_group(options.device) as device:
        if world_size() > 1:
            raise InputError("the benchmark uses one device; run it without torchrun")
        settings = Settings(options.scale, device, options.compile, options.whole)
        if (options.scale, options.device, device.type) == ("full", "auto", "cpu"):
            raise InputError(
                "--scale full requires a GPU and none was found; use --scale tiny, or --device cpu "
                "for a benchmark that takes days"
            )
        run(settings, cases, options.out, again=options.again, say=partial(print, flush=True))
    print(f"\nwrote {options.out}")
