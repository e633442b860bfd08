"""A sampling step at GPT-2's vocabulary on a CPU, against flow_matching's solver.

    python -m experiments.studies.sampling_step --out sampling_step.json

The same small model, V = 50,257, N = 256, B = 8, float64 draws, Euler. Each case runs in a separate
process, which reports seconds per step (median of three runs) and the rise of its memory. Ours is
the mean over a whole run of 64 steps. The steps of `flow_matching` all cost the same, so it runs
only 3 of the 64. Targets: at least 10 times faster, with at least 5 times less peak memory.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import cwdfm
from cwdfm.files import write_json
from cwdfm.provenance import provenance
from experiments.studies.timing import check_targets, peak_bytes

VOCAB, LENGTH, BATCH, STEPS, PEER_STEPS = 50_257, 256, 8, 64, 3
SCHEDULE = cwdfm.Polynomial(2.0)


class SmallModel(nn.Module):
    """Two transformer layers of width 64 and a head over the vocabulary."""

    def __init__(self, num_tokens: int, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(num_tokens, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.readout = nn.Linear(width, num_tokens)
        self.eval()

    def trunk(self, x_t: Tensor, t: Tensor) -> Tensor:
        hidden: Tensor = self.layers(self.embedding(x_t) + t[:, None, None])
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.readout(hidden)
        return logits

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x_t, t))


def ours(source: cwdfm.Source, solver: cwdfm.Solver) -> Callable[[], int]:
    model = SmallModel(source.num_tokens)

    def work() -> int:
        cwdfm.sample(model, source, SCHEDULE, solver, shape=(BATCH, LENGTH), steps=STEPS)
        return STEPS

    return work


def peer(source: cwdfm.Source) -> Callable[[], int]:
    from flow_matching.path import MixtureDiscreteProbPath
    from flow_matching.path.scheduler import PolynomialConvexScheduler
    from flow_matching.solver import MixtureDiscreteEulerSolver
    from flow_matching.utils import ModelWrapper

    class Probabilities(ModelWrapper):  # type: ignore[misc]
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            logits: Tensor = self.model(x, t)
            return logits.softmax(-1)

    solver = MixtureDiscreteEulerSolver(
        Probabilities(SmallModel(source.num_tokens)),
        MixtureDiscreteProbPath(PolynomialConvexScheduler(n=2.0)),
        vocabulary_size=source.num_tokens,
    )
    noise = source.noise(torch.arange(BATCH), LENGTH, seed=0)

    def work() -> int:
        solver.sample(
            x_init=noise,
            step_size=None,
            time_grid=torch.linspace(0, PEER_STEPS / STEPS, PEER_STEPS + 1),
            dtype_categorical=torch.float64,
        )
        return PEER_STEPS

    return work


MASK, UNIFORM = cwdfm.MaskSource(VOCAB), cwdfm.UniformSource(VOCAB)
NEIGHBOR = cwdfm.Euler(weight=cwdfm.Neighbor(1, 5.0))
CASES: dict[str, Callable[[], Callable[[], int]]] = {
    "flow_matching, uniform": lambda: peer(UNIFORM),
    "Euler, uniform": lambda: ours(UNIFORM, cwdfm.Euler()),
    "Neighbor-weighted, uniform": lambda: ours(UNIFORM, NEIGHBOR),
    "flow_matching, mask": lambda: peer(MASK),
    "Euler, mask": lambda: ours(MASK, cwdfm.Euler()),
    "Neighbor-weighted, mask": lambda: ours(MASK, NEIGHBOR),
}


def run_case(name: str) -> None:
    work = CASES[name]()
    peak = peak_bytes(work)  # also the warm-up
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        steps = work()
        seconds.append((time.perf_counter() - start) / steps)
    print(json.dumps({"seconds_a_step": statistics.median(seconds), "peak_bytes": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare a sampling step with flow_matching.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", choices=list(CASES))
    options = parser.parse_args()
    if options.case is not None:
        run_case(options.case)
        return
    if options.out is None:
        parser.error("--out is required")
    rows = {}
    for name in CASES:
        command = [sys.executable, "-m", "experiments.studies.sampling_step", "--case", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows[name] = json.loads(done.stdout.splitlines()[-1])
    print(f"{'':28} {'ms/step':>10} {'peak MiB':>9} {'faster':>7} {'less memory':>12}")
    for name, row in rows.items():
        base = rows[f"flow_matching, {name.split(', ')[1]}"]
        row["times_faster"] = base["seconds_a_step"] / row["seconds_a_step"]
        row["times_less_memory"] = base["peak_bytes"] / row["peak_bytes"]
        print(
            f"{name:28} {row['seconds_a_step'] * 1e3:>10.1f} {row['peak_bytes'] / 2**20:>9.0f} "
            f"{row['times_faster']:>6.1f}x {row['times_less_memory']:>11.1f}x"
        )
    config = {"vocab": VOCAB, "length": LENGTH, "batch": BATCH, "steps": STEPS, "seed": 0}
    targets = {}
    for name in ("Euler, uniform", "Euler, mask"):
        faster, less = rows[name]["times_faster"], rows[name]["times_less_memory"]
        targets[f"{name}: {faster:.0f} times faster, at least 10"] = faster >= 10
        targets[f"{name}: {less:.1f} times less memory, at least 5"] = less >= 5
    write_json(options.out, provenance() | {"config": config, "cases": rows, "claims": targets})
    check_targets(targets)


if __name__ == "__main__":
    main()
