"""`python -m experiments bench --out FILE`: the library's speed on this machine, beside what the machine can do."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cwdfm.cli.options import parse
from cwdfm.distributed import process_group, world_size
from cwdfm.errors import InputError
from experiments.bench.cases import CASES, chosen
from experiments.bench.settings import SHAPES, Scale, Settings
from experiments.bench.suite import run


@dataclass(frozen=True)
class Options:
    """Time training, sampling and their pieces, each in a few ways, and print the table.

    Every way stands beside its bound: its matrix products and its bytes at the ceilings that this
    machine reaches in the same run. The first way of a case is what the others are compared with.
    flow_matching is compared with where it is installed. Each case is kept as soon as it is done;
    interrupted, the same command goes on. `python -m experiments bench list` names the cases.
    """

    out: Path  # JSON file of results
    cases: tuple[str, ...] = ()  # names of cases to measure; none for all
    scale: Scale = "full"  # full: the paper's shapes, for a GPU of 80 GB; tiny: seconds on a CPU
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    compile: bool = True  # torch.compile the transformer, where there is a GPU
    whole: bool = False  # compile it in one, not a block at a time: minutes for each way
    again: bool = False  # measure cases that the file has already


def main(arguments: list[str]) -> None:
    """Parse, measure, print the table."""
    if arguments == ["list"]:
        for case in CASES.values():
            print(f"{case.name:20} {case.what(SHAPES['full'])}")
            print(f"{'':20} ways: {'; '.join(case.ways)}")
        return
    options = parse("bench", arguments, lambda missing: Options(missing))
    cases = chosen(options.cases)
    with process_group(options.device) as device:
        if world_size() > 1:
            raise InputError("the benchmark times one device; start it without torchrun")
        settings = Settings(options.scale, device, options.compile, options.whole)
        if (options.scale, options.device, device.type) == ("full", "auto", "cpu"):
            raise InputError(
                "--scale full is for a GPU, and here is none; give --scale tiny, or --device cpu "
                "for a benchmark that takes days"
            )
        run(settings, cases, options.out, again=options.again, say=partial(print, flush=True))
    print(f"\nwritten: {options.out}")
