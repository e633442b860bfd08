"""Measure the time of a training step and a sampling step by kind of kernel.

    python -m experiments.studies.profile --out profile.json

Uses the shapes of `python -m experiments bench` on a GPU: training the paper's text network with
both sources, training on molecules, and one sampling step on text. `--scale tiny --device cpu` is a
quick check that lists operators instead of kernels.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cwdfm.model.predict import evaluating
from cwdfm.solver import Euler, State
from cwdfm.source import UniformSource
from cwdfm.train.recipes import RECIPES
from experiments.bench.measure import timed
from experiments.bench.settings import Settings
from experiments.bench.subject import SCHEDULE, make_model, make_run
from experiments.bench.suite import key
from experiments.bench.training import masked_text_changes, molecule_changes, text_changes
from experiments.studies.command import save, study_parser

# The first pattern that matches a kernel's name gives its kind.
KINDS = {
    "attention": r"sdpa|flash|fmha|attend|cudnn::fusion|attention",
    "matrix products": r"nvjet|gemm|cutlass|cublas|splitK|aten::(addmm|mm|bmm|linear)",
    "norms, gates, additions": r"add_norm|layer_norm",
    "gelu": r"gelu",
    "softmax and draws of the head": r"softmax_(held_)?rows|head_statistics|block_masses|draw_",
    "rotation": r"rotate",
    "optimizer": r"multi_tensor|adam|Adam",
    "embedding": r"embedding|compute_grad_weight|sum_and_scatter|gather",
}
REPEATS = 3


def time_by_kind(work: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Milliseconds per call: wall-clock, by kind of kernel, and of the slowest kernels."""
    cuda = device.type == "cuda"
    seconds = timed(work, device, repeats=REPEATS, warmup=3).seconds
    activity = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as seen:
        for _ in range(REPEATS):
            work()
        if cuda:
            torch.cuda.synchronize()
    kernels: dict[str, float] = defaultdict(float)
    launches = 0
    for event in seen.key_averages():
        each = event.self_device_time_total if cuda else event.self_cpu_time_total
        if each and not event.key.startswith("Optimizer."):  # a span of several kernels
            kernels[event.key] += each / 1e3 / REPEATS
            launches += event.count // REPEATS
    kinds: dict[str, float] = defaultdict(float)
    for kernel, ms in kernels.items():
        found = (kind for kind, sign in KINDS.items() if re.search(sign, kernel))
        kinds[next(found, "other")] += ms
    largest = sorted(kernels.items(), key=lambda item: -item[1])[:20]
    return {
        "ms": 1e3 * seconds,
        "busy_ms": sum(kernels.values()),
        "launches": launches,
        "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1])),
        "largest": [{"kernel": name[:120], "ms": ms} for name, ms in largest],
    }


def training(
    settings: Settings, recipe: str, vocab: int, changes: dict[str, Any]
) -> dict[str, Any]:
    changes |= {"batch_size": changes["batch_size"] // changes.get("accumulation", 1)}
    run = make_run(settings, RECIPES[recipe](), vocab, **changes | {"accumulation": 1})
    return time_by_kind(run.train_step, settings.device)


def sampling(settings: Settings) -> dict[str, Any]:
    """An Euler step with a uniform source."""
    shapes, device = settings.shapes, settings.device
    source, solver = UniformSource(shapes.vocab), Euler()
    model = make_model(settings, source)
    state: State = solver.init(
        source, torch.arange(shapes.sample_batch, device=device), shapes.length
    )
    first, next_ = shapes.first / shapes.run, (shapes.first + 1) / shapes.run

    def work() -> None:
        solver.step(model, source, SCHEDULE, state, first, next_)

    with settings.precision(), evaluating(model):
        return time_by_kind(work, device)


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--scale", choices=["full", "tiny"], default="full")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    settings = Settings(options.scale, torch.device(options.device))
    shapes = settings.shapes
    found = {
        "training, uniform": training(settings, "owt-paper", shapes.vocab, text_changes(shapes)),
        "training, mask": training(
            settings, "owt-paper", shapes.vocab, masked_text_changes(shapes)
        ),
        "training, molecules": training(
            settings, "qm9-paper", shapes.molecule_vocab, molecule_changes(shapes)
        ),
        "sampling, uniform": sampling(settings),
    }
    config = key(settings) | {"repeats": REPEATS}
    save(options.out, config=config, work=found)
    for name, part in found.items():
        print(f"{name}: {part['ms']:.1f} ms, kernels {part['busy_ms']:.1f} ms")
        for kind, ms in part["kinds"].items():
            print(f"  {ms:8.2f} ms  {kind}")


if __name__ == "__main__":
    main()
