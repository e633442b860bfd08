"""Sampling from bundled models on a CPU, against a plain PyTorch loop with a compiled network.

    python -m experiments.studies.cpu_sampling --out cpu_sampling.json

Like published samplers of discrete flows, the plain loop evaluates the complete network, compiled
by torch.compile, for every sequence in every step, draws a proposal for every position with
`torch.multinomial`, and updates the positions that jump. The library takes the same Euler steps
without torch.compile. Both use the same weights, float32 and two threads, and their rounds
alternate. Times are wall-clock and CPU time (best of the rounds); other processes affect CPU time
less.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._inductor.config
from torch import Tensor

import cwdfm
from cwdfm.method.flow import Flow
from cwdfm.model.transformer import DiT
from cwdfm.pretrained import Pretrained
from cwdfm.solver import Euler, Samples, sample
from cwdfm.source import MaskSource, Source
from experiments.studies.command import save, study_parser

# Bundled model -> sequences and steps.
WORK = {
    "qm9-uniform-small": (64, 64),
    "qm9-mask-small": (64, 64),
    "novels-small": (8, 64),
}
THREADS, TARGET = 2, 2.0


@torch.inference_mode()
def plain_loop(
    network: Callable[[Tensor, Tensor], Tensor],
    source: Source,
    power: float,
    noise: Tensor,
    steps: int,
) -> Tensor:
    """Euler steps for kappa = t^power; the network is evaluated for all sequences in every step."""
    x = noise.clone()
    mask_id = source.mask_id if isinstance(source, MaskSource) else None
    for k in range(steps):
        t, t_next = k / steps, (k + 1) / steps
        logits = network(x, torch.full((len(x),), t))
        if mask_id is not None:
            logits[..., mask_id] = -math.inf
        probability = logits.softmax(-1)
        proposal = torch.multinomial(probability.flatten(0, 1), 1).view_as(x)
        masked = proposal != x if mask_id is None else x == mask_id
        rate = power * t ** (power - 1) / (1 - t**power)
        jump = 1 - math.exp(-rate * (t_next - t)) if k + 1 < steps else 1.0
        moved = masked & (torch.rand(x.shape) < jump)
        x = torch.where(moved, proposal, x)
    return x


def best(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """The minimum wall-clock and CPU seconds of each, run alternately after one warm-up call."""
    found = {name: {"wall": math.inf, "cpu": math.inf} for name in work}
    for call in work.values():
        call()
    for _ in range(rounds):
        for name, call in work.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            spent = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            found[name] = {clock: min(found[name][clock], spent[clock]) for clock in spent}
    return found


def compare(name: str, batch: int, steps: int, rounds: int) -> dict[str, Any]:
    """Measure both for one model: seconds and numbers of evaluations."""
    trained: Pretrained = cwdfm.load(name)
    model, flow = trained.model, trained.method
    assert isinstance(model, DiT)
    assert isinstance(flow, Flow)
    assert isinstance(flow.schedule, cwdfm.Polynomial)
    source, power = flow.source, flow.schedule.power
    shape = (batch, trained.length)
    noise = source.noise(torch.arange(batch), trained.length, seed=0)
    drawn: list[Samples] = []

    def ours() -> None:
        drawn[:] = [sample(model, source, flow.schedule, Euler(), shape=shape, steps=steps)]

    network = torch.compile(model.forward, dynamic=False)
    plain = partial(plain_loop, network, source, power, noise, steps)
    eager = partial(plain_loop, model, source, power, noise, steps)
    seconds = best({"cwdfm": ours, "plain, compiled": plain, "plain, eager": eager}, rounds)
    torch.compiler.reset()
    evaluations = float(drawn[0].evaluations.double().mean())
    return {
        "model": name,
        "batch": batch,
        "length": trained.length,
        "steps": steps,
        "seconds": seconds,
        "evaluations": {"cwdfm": evaluations, "plain": float(steps)},
        "speedup": {
            clock: seconds["plain, compiled"][clock] / seconds["cwdfm"][clock]
            for clock in ("wall", "cpu")
        },
    }


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=list(WORK), default=list(WORK))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch._inductor.config.compile_threads = 1  # no pool of processes
    rows = []
    for name in options.models:
        row = compare(name, *WORK[name], options.rounds)
        rows.append(row)
        print(name, row["seconds"], row["evaluations"], row["speedup"], flush=True)
    config = {"threads": THREADS, "rounds": options.rounds, "solver": "euler", "dtype": "float32"}
    save(options.out, config=config, rows=rows, target=TARGET)


if __name__ == "__main__":
    main()
