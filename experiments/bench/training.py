"""Cases for training: optimizer steps of the library, and the same with flow_matching's loss.

A step is `Run.train_step`: all micro-batches with corruption, loss and gradients, then gradient
clipping, AdamW and the EMA. The peer, flow_matching, differs in corruption and loss, and uses
a compiled transformer of plain PyTorch without this library's kernels.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from cwdfm.method.flow import FlowObjective
from cwdfm.ops.dispatch import plain
from cwdfm.train.recipes import RECIPES
from experiments.bench import bounds
from experiments.bench.measure import Case, Measured, Way, timed
from experiments.bench.settings import Settings, Shapes
from experiments.bench.subject import SCHEDULE, PeerObjective, make_run, peer_path

Changes = Callable[[Shapes], dict[str, Any]]
OURS, THEIRS = "cwdfm", "flow_matching, loss uncompiled"
COMPILED = "flow_matching, head and loss compiled"


def text_changes(shapes: Shapes, **more: Any) -> dict[str, Any]:
    """The OpenWebText recipe in micro-batches, with `more` changes."""
    return {
        "length": shapes.length,
        "batch_size": shapes.train_batch * shapes.accumulation,
        "accumulation": shapes.accumulation,
        **more,
    }


def masked_text_changes(shapes: Shapes) -> dict[str, Any]:
    """The same with a mask source and the loss on masked tokens."""
    return text_changes(shapes, source="mask", masked_only=True)


def molecule_changes(shapes: Shapes) -> dict[str, Any]:
    """The QM9 recipe without micro-batches."""
    return {"length": shapes.molecule_length, "batch_size": shapes.molecule_batch}


def step(
    changes: Changes, *, theirs: bool = False, compiled: bool = False, long: bool = False
) -> Way:
    """An optimizer step with our objective or the peer's, whose loss may be `compiled`."""
    molecules = changes is molecule_changes
    recipe = RECIPES["qm9-paper" if molecules else "owt-paper"]

    def measure(settings: Settings) -> Measured:
        settings = settings.longer() if long else settings
        with plain() if theirs else nullcontext():
            return timed_step(settings)

    def timed_step(settings: Settings) -> Measured:
        shapes = settings.shapes
        vocab = shapes.molecule_vocab if molecules else shapes.vocab
        path = peer_path() if theirs else None
        run = make_run(settings, recipe(), vocab, **changes(shapes))
        config, objective = run.config, run.objective
        assert isinstance(objective, FlowObjective)
        masked_only = bool(config.flat().get("masked_only"))
        if path is not None:
            source = objective.path.source
            whole = compiled and settings.compiled
            run.objective = PeerObjective(path, source, masked_only, whole)
        timing = timed(run.train_step, settings.device, repeats=shapes.step_repeats, warmup=2)
        batch, length = config.optimizer.batch_size, config.data.length
        micro_batches = config.runtime.accumulation
        # Times are uniform, so a fraction 1 - E kappa = 1 - 1 / (power + 1) of tokens is masked.
        masked = 1 - 1 / (SCHEDULE.power + 1)
        rows = batch * length * (masked if masked_only and not theirs else 1.0)
        work = bounds.training(
            run.model.config,
            sum(p.numel() for p in run.model.parameters()),
            batch=batch,
            length=length,
            micro_batches=micro_batches,
            rows=rows,
            vocab=vocab,
        )
        facts = {
            "tokens_per_second": batch * length / timing.seconds,
            "micro_batch_ms": 1e3 * timing.seconds / micro_batches,
        }
        if molecules:  # extrapolated to a complete training run
            steps = shapes.molecule_steps
            facts[f"minutes_for_{steps}_steps"] = steps * timing.seconds / 60
        return Measured(timing.seconds, work, timing.memory_gb, facts)

    return measure


def _with_peer(changes: Changes) -> dict[str, Way]:
    """Our step, the peer's, and the peer's with a compiled loss."""
    return {
        OURS: step(changes),
        THEIRS: step(changes, theirs=True),
        COMPILED: step(changes, theirs=True, compiled=True),
    }


TEXT = (
    "an optimizer step of {accumulation} micro-batches of {train_batch} x {length:,} tokens, "
    "{model}, V = {vocab:,}, "
)
CASES = (
    Case(
        "training-uniform",
        f"{TEXT}uniform source, cross-entropy",
        _with_peer(text_changes),
    ),
    Case(
        "training-mask",
        f"{TEXT}mask source, cross-entropy on masked tokens",
        _with_peer(masked_text_changes),
    ),
    Case(
        "training-long",
        f"{TEXT}uniform source; and as many tokens in long sequences",
        {
            "usual length": step(text_changes),
            "8 times the length": step(text_changes, long=True),
        },
    ),
    Case(
        "training-context",
        f"{TEXT}uniform source, cross-entropy",
        {
            "mixture path": step(text_changes),
            "context-weighted path": step(partial(text_changes, path="context", path_radius=3)),
        },
    ),
    Case(
        "training-scaled",
        f"{TEXT}uniform source",
        {
            "cross-entropy": step(text_changes),
            "scaled cross-entropy": step(partial(text_changes, loss="sce")),
        },
    ),
    Case(
        "training-molecules",
        "an optimizer step of {molecule_batch:,} x {molecule_length} tokens, {model}, "
        "V = {molecule_vocab}, uniform source, cross-entropy",
        _with_peer(molecule_changes),
    ),
)
