"""Cases for sampling: single steps in the second quarter of a run, and complete samples.

Categorical sampling uses float64. flow_matching computes all logits in every step, so all of its
steps cost the same: a few steps are timed and extrapolated to complete samples.
"""

from functools import partial

import torch

from cwdfm.model.predict import evaluating
from cwdfm.model.transformer import DiT
from cwdfm.ops.cuda_graph import WARMUP_CALLS
from cwdfm.solver import Euler, Samples, Solver, State, sample
from cwdfm.solver.precomputed import GPU_BATCH_SIZES
from cwdfm.source import MaskSource, Source, UniformSource
from cwdfm.weight import Entropy, Neighbor
from experiments.bench import bounds
from experiments.bench.measure import Case, Measured, Way, timed
from experiments.bench.settings import Settings
from experiments.bench.subject import SCHEDULE, make_model, peer_path, peer_walk

EULER = Euler()
NEIGHBOR = Euler(weight=Neighbor(radius=1, scale=5.0))
ENTROPY = Euler(weight=Entropy(beta=6.0))


def stretch(kind: type[Source], solver: Solver, *, long: bool = False) -> Way:
    """The mean time of steps `first` to `last` in a run of `run` steps that starts from noise."""

    def measure(settings: Settings) -> Measured:
        settings = settings.longer() if long else settings
        shapes, device = settings.shapes, settings.device
        source = kind(shapes.vocab)
        model = make_model(settings, source)
        counts = torch.zeros(2, dtype=torch.int64)  # evaluated sequences and rows of the last walk

        def walk(state: State, first: int, last: int) -> State:
            rows, asked = 0, torch.zeros(shapes.sample_batch, dtype=torch.int64, device=device)
            for k in range(first, last):
                t, t_next = k / shapes.run, (k + 1) / shapes.run
                state, info = solver.step(model, source, SCHEDULE, state, t, t_next)
                rows, asked = rows + info.logit_evaluations, asked + info.evaluated
            counts[0], counts[1] = asked.sum(), rows
            return state

        with settings.precision(), evaluating(model):
            index = torch.arange(shapes.sample_batch, device=device)
            state = solver.init(source, index, shapes.length)
            state = walk(state, max(0, shapes.first - 4), shapes.first)
            work = partial(walk, state, shapes.first, shapes.last)
            timing = timed(work, device, repeats=shapes.step_repeats)
        steps = shapes.last - shapes.first
        asked, rows = (int(count) / steps for count in counts)
        bound = _bound(settings, model, sequences=asked, rows=rows, calls=1)
        return Measured(timing.seconds / steps, bound, timing.memory_gb, {"rows": rows})

    return measure


def whole(solver: Solver, *, long: bool = False) -> Way:
    """Complete samples of a batch with a mask source, timed once, in `whole` or `long` steps."""

    def measure(settings: Settings) -> Measured:
        shapes = settings.shapes
        n = shapes.long if long else shapes.whole
        source = MaskSource(shapes.vocab)
        model = make_model(settings, source)
        found: list[Samples] = []

        def draw(n: int) -> None:
            shape = (shapes.sample_batch, shapes.length)
            found.append(sample(model, source, SCHEDULE, solver, shape=shape, steps=n))

        with settings.precision():
            _warm(settings, model, source, solver, n)
            draw(4)
            timing = timed(partial(draw, n), settings.device, repeats=1, warmup=0)
        asked_B, rows = found[-1].evaluations, found[-1].logit_evaluations
        bound = _bound(
            settings, model, sequences=int(asked_B.sum()), rows=rows, calls=int(asked_B.max())
        )
        facts = {
            "evaluations": float(asked_B.double().mean()),
            "sequences_per_second": shapes.sample_batch / timing.seconds,
        }
        return Measured(timing.seconds, bound, timing.memory_gb, facts)

    return measure


@torch.no_grad()
def _warm(settings: Settings, model: DiT, source: Source, solver: Solver, steps: int) -> None:
    """Compile and capture all batch sizes of a long run."""
    shapes, device = settings.shapes, settings.device
    state = solver.init(source, torch.arange(shapes.sample_batch, device=device), shapes.length)
    quarter = -(-shapes.sample_batch // GPU_BATCH_SIZES)
    # A batch of one sequence is compiled separately. It may occur in the last steps of a run.
    for few in (*range(GPU_BATCH_SIZES * quarter, 0, -quarter), 1):
        tokens = state.tokens[:few]
        for _ in range(WARMUP_CALLS + 2):
            model.first_stage(tokens, torch.zeros(len(tokens), device=device))
    for _ in range(8):
        state, _ = solver.step(model, source, SCHEDULE, state, 0.5, 0.5 + 0.5 / steps)


def theirs(kind: type[Source], *, projected: bool = False) -> Way:
    """A step of flow_matching, or complete samples extrapolated from it."""

    def measure(settings: Settings) -> Measured:
        shapes, device = settings.shapes, settings.device
        peer_path()  # raises early if it is not installed
        source = kind(shapes.vocab)
        model = make_model(settings, source, recorded=False)
        index = torch.arange(shapes.sample_batch, device=device)
        noise = source.noise(index, shapes.length, seed=0)
        grid = (shapes.first + torch.arange(shapes.peer_steps + 1.0)) / shapes.run
        with torch.no_grad(), settings.precision():
            work = partial(peer_walk, model, source, noise, grid)
            timing = timed(work, device, repeats=shapes.step_repeats)
        times = shapes.whole if projected else 1
        batch = shapes.sample_batch
        bound = _bound(
            settings,
            model,
            sequences=batch * times,
            rows=batch * shapes.length * times,
            calls=times,
        )
        seconds = timing.seconds / shapes.peer_steps * times
        note = f"projected from {shapes.peer_steps} steps" if projected else ""
        facts = {"ms_a_step": 1e3 * timing.seconds / shapes.peer_steps}
        return Measured(seconds, bound, timing.memory_gb, facts, note)

    return measure


def _bound(
    settings: Settings, model: DiT, *, sequences: float, rows: float, calls: float
) -> bounds.Work:
    return bounds.sampling(
        model.config,
        sequences=sequences,
        length=settings.shapes.length,
        rows=rows,
        vocab=settings.shapes.vocab,
        calls=calls,
        width=settings.dtype.itemsize,
    )


STEP = (
    "a sampling step, {sample_batch} x {length:,} tokens, {model}, V = {vocab:,}, uniform source; "
    "the mean of steps {first} to {last} of {run}"
)
WHOLE = (
    "{sample_batch} whole samples of {length:,} tokens, {model}, V = {vocab:,}, mask source, "
    "{whole:,} "
)


def _compare(name: str, label: str, solver: Solver) -> tuple[Case, Case]:
    """A weighted solver and Euler: whole samples with a mask source, steps with a uniform one."""
    steps = {"Euler": stretch(UniformSource, EULER), label: stretch(UniformSource, solver)}
    return (
        Case(f"{name}-mask", f"{WHOLE}steps", {"Euler": whole(EULER), label: whole(solver)}),
        Case(f"{name}-uniform", STEP, steps),
    )


CASES = (
    Case(
        "sampling-step",
        STEP,
        {
            "cwdfm, Euler": stretch(UniformSource, EULER),
            "flow_matching": theirs(UniformSource),
        },
    ),
    Case(
        "sampling-long",
        f"{STEP}; and as many tokens in long sequences",
        {
            "usual length": stretch(UniformSource, EULER),
            "8 times the length": stretch(UniformSource, EULER, long=True),
        },
    ),
    Case(
        "samples-mask",
        f"{WHOLE}steps",
        {"cwdfm, Euler": whole(EULER), "flow_matching": theirs(MaskSource, projected=True)},
    ),
    Case(
        "samples-more-steps",
        f"{WHOLE}and {{long:,}} steps",
        {"Euler, 1 x the steps": whole(EULER), "Euler, 4 x the steps": whole(EULER, long=True)},
    ),
    *_compare("neighbor", "Neighbor-weighted", NEIGHBOR),
    *_compare("entropy", "Entropy-weighted", ENTROPY),
)
