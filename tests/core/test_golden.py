"""Golden samples: digests of samples, paths, losses and bounds through the public API.

A refactoring must not change what a seed gives. Every exported weight, solver, path and loss runs
here with both sources, and both bundled models are sampled. Tokens are compared exactly. Floating
point results are compared at a relative tolerance of 1e-6, because the last bits depend on the CPU.

The values of golden.json never change. Those of classes added later are in golden_added.json:
`python -m tests.core.test_golden` records the cases that have no value yet.
"""

import hashlib
import inspect
import json
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path as FilePath

import pytest
import torch
from torch import Tensor

import cwdfm

RECORD = FilePath(__file__).with_name("golden.json")
ADDED = FilePath(__file__).with_name("golden_added.json")
VOCAB, LENGTH, BATCH, STEPS = 12, 16, 8, 12
SOURCES: dict[str, cwdfm.Source] = {
    "mask": cwdfm.MaskSource(VOCAB),
    "uniform": cwdfm.UniformSource(VOCAB),
}
SCHEDULES: dict[str, cwdfm.Schedule] = {
    "Polynomial": cwdfm.Polynomial(2.0),
    "Linear": cwdfm.Linear(),
    "Cosine": cwdfm.Cosine(),
}
WEIGHTS: dict[str, cwdfm.Weight] = {
    "Neighbor": cwdfm.Neighbor(radius=2, scale=1.5),
    "NeighborShare": cwdfm.NeighborShare(radius=2),
    "Distance": cwdfm.Distance(),
    "Entropy": cwdfm.Entropy(2.0),
    "EntropyInverse": cwdfm.EntropyInverse(),
    "Confidence": cwdfm.Confidence(),
    "Margin": cwdfm.Margin(),
    "Sum": cwdfm.Neighbor(radius=1, scale=1.0) + cwdfm.Entropy(1.0),
    "Learned": cwdfm.Learned((0.3, -1.0, 0.5, 0.2), 3.0),
    "CalibratedEntropy": cwdfm.CalibratedEntropy(1.5, 2.0),
}
CONTEXT = {k: w for k, w in WEIGHTS.items() if isinstance(w, cwdfm.ContextWeight)}
SOLVERS: dict[str, cwdfm.Solver] = {
    "Euler": cwdfm.Euler(),
    "Euler-integrated": cwdfm.Euler(hazard="integrated"),
    "Euler-corrector": cwdfm.Euler(corrector=cwdfm.Corrector(2.0, 0.5, 0.5)),
    "Euler-nucleus": cwdfm.Euler(temperature=0.8, top_p=0.9),
    **{f"Euler-{name}": cwdfm.Euler(weight=weight) for name, weight in WEIGHTS.items()},
    "Euler-counted": cwdfm.Euler(weight=WEIGHTS["Neighbor"], counted=True),
    "FirstHitting": cwdfm.FirstHitting(),
    "TopK-confidence": cwdfm.TopK("confidence"),
    "TopK-margin": cwdfm.TopK("margin"),
    "TopK-entropy": cwdfm.TopK("entropy"),
    "EntropyBound": cwdfm.EntropyBound(0.5),
    "EntropyPace": cwdfm.EntropyPace(),
    "Threshold": cwdfm.Threshold(0.5),
    "KLASS": cwdfm.KLASS(0.3, 0.1, 1),
    "PathPlanning": cwdfm.PathPlanning(),
    "Edit": cwdfm.Edit(cwdfm.Threshold(0.5), 0.3, 8),
    "ThetaTrapezoidal": cwdfm.ThetaTrapezoidal(),
    "ThetaRK2": cwdfm.ThetaRK2(),
    "Gibbs": cwdfm.Gibbs(cwdfm.Euler(hazard="integrated"), tokens=2),
}
# Solvers that run with a mask source only, or are recorded only there.
MASK_ONLY = (
    "FirstHitting",
    "TopK",
    "EntropyBound",
    "EntropyPace",
    "Threshold",
    "KLASS",
    "PathPlanning",
    "Edit",
)
PATHS: dict[str, cwdfm.Weight | None] = {
    "MixturePath": None,
    **{f"ContextPath-{name}": weight for name, weight in CONTEXT.items()},
}
LOSSES: dict[str, cwdfm.Loss] = {
    "CrossEntropy": cwdfm.CrossEntropy(),
    "CrossEntropy-masked": cwdfm.CrossEntropy("masked"),
    "NELBO": cwdfm.NELBO(),
    "Bregman": cwdfm.Bregman(),
    "ScaledCrossEntropy": cwdfm.ScaledCrossEntropy(WEIGHTS["Neighbor"]),
    "ScaledCrossEntropy-joint": cwdfm.ScaledCrossEntropy(WEIGHTS["Neighbor"], "joint"),
    "ScaledCrossEntropy-raw": cwdfm.ScaledCrossEntropy(WEIGHTS["Neighbor"], "raw"),
}
BUNDLED = ("qm9-mask-small", "qm9-uniform-small")


def model(source: cwdfm.Source) -> Callable[[Tensor, Tensor], Tensor]:
    """A network with interactions between neighbors and a weak dependence on time."""
    table = torch.randn(3, VOCAB + 1, source.num_tokens, generator=torch.manual_seed(7))

    def logits(x_t: Tensor, t: Tensor) -> Tensor:
        near = table[0][x_t] + table[1][x_t.roll(1, 1)] + table[2][x_t.roll(-1, 1)]
        return near * (0.5 + t[:, None, None])

    return logits


def data() -> Tensor:
    """Sequences [B, N] of data tokens."""
    return torch.randint(0, VOCAB, (BATCH, LENGTH), generator=torch.manual_seed(3))


def digest(*tensors: Tensor) -> str:
    """The first 16 digits of a SHA-256 of integer or boolean tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.to(torch.int64).cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def sampled(name: str, solver: cwdfm.Solver, source: str) -> str:
    """The digest of samples from the model above."""
    fixed = torch.zeros(LENGTH, dtype=torch.bool)
    fixed[:3] = name == "Euler-prompt"
    kind = SOURCES[source]
    out = cwdfm.sample(
        model(kind),
        kind,
        SCHEDULES["Polynomial"],
        solver,
        shape=(BATCH, LENGTH),
        steps=STEPS,
        seed=5,
        prompt=data() if name == "Euler-prompt" else None,
        fixed=fixed.expand(BATCH, -1) if name == "Euler-prompt" else None,
    )
    return digest(out.tokens, out.updates, out.loops, out.evaluations)


def postprocessed(kind: str, source: str) -> str:
    """The digest of samples after refinement or resampling, or of their acceptance scores."""
    law, schedule = SOURCES[source], SCHEDULES["Polynomial"]
    if kind == "refine":
        how = cwdfm.Refine(rounds=2)
        out = cwdfm.refine(model(law), law, schedule, cwdfm.Euler(), data(), how, seed=5)
    else:
        out = cwdfm.resample(model(law), law, schedule, data(), cwdfm.Resample(rounds=6), seed=5)
    return digest(out.tokens, out.updates)


def corrupted(name: str, source: str, schedule: str) -> str:
    """The digest of a path's corruption of the data."""
    ends = (SOURCES[source], SCHEDULES[schedule])
    weight = PATHS[name]
    path = cwdfm.MixturePath(*ends) if weight is None else cwdfm.ContextPath(*ends, weight)
    found = path.sample(data(), torch.linspace(0.05, 0.95, BATCH), seed=5, step=2)
    return digest(found.x_0, found.x_t, found.revealed)


def loss_value(loss: cwdfm.Loss, source: str) -> float:
    """The mean loss of the model above on corrupted data."""
    law, schedule = SOURCES[source], SCHEDULES["Polynomial"]
    batch = cwdfm.MixturePath(law, schedule).sample(
        data(), torch.linspace(0.05, 0.95, BATCH), seed=5
    )
    return float(loss(model(law)(batch.x_t, batch.t), batch, schedule))


def bound_value(weight: cwdfm.Weight | None, source: str) -> float:
    """The bound on the negative log likelihood of the data, in nats per token."""
    law = SOURCES[source]
    found = cwdfm.elbo(
        model(law), law, SCHEDULES["Polynomial"], data(), seed=5, draws=4, weight=weight
    )
    return float(found.nats_per_token)


def bundled(name: str, solver: str) -> str:
    """The digest of samples from a bundled model."""
    chosen = {"Euler": cwdfm.Euler(), "Neighbor": cwdfm.Euler(weight=cwdfm.Neighbor(1, 4.0))}
    return digest(cwdfm.generate(cwdfm.load(name), chosen[solver], n=8, steps=16, seed=5).tokens)


def cases() -> dict[str, Callable[[], str | float]]:
    """Every case by name."""
    found: dict[str, Callable[[], str | float]] = {}
    for source in SOURCES:
        for name, solver in {**SOLVERS, "Euler-prompt": cwdfm.Euler()}.items():
            if source == "mask" or not name.startswith(MASK_ONLY):
                found[f"sample/{source}/{name}"] = partial(sampled, name, solver, source)
        for kind in ("refine", "resample"):
            found[f"postprocess/{source}/{kind}"] = partial(postprocessed, kind, source)
        for schedule, path in product(SCHEDULES, PATHS):
            found[f"path/{source}/{schedule}/{path}"] = partial(corrupted, path, source, schedule)
        for name, loss in LOSSES.items():
            found[f"loss/{source}/{name}"] = partial(loss_value, loss, source)
        found[f"bound/{source}/mixture"] = partial(bound_value, None, source)
    for name, weight in CONTEXT.items():  # a weighted bound needs a mask source
        found[f"bound/mask/{name}"] = partial(bound_value, weight, "mask")
    for model_name, solver_name in product(BUNDLED, ("Euler", "Neighbor")):
        found[f"bundled/{model_name}/{solver_name}"] = partial(bundled, model_name, solver_name)
    return found


CASES = cases()


def records() -> dict[str, str | float]:
    """All recorded values by the name of their case."""
    found: dict[str, str | float] = json.loads(RECORD.read_text()) | json.loads(ADDED.read_text())
    return found


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    """The result is what it was when it was recorded."""
    recorded = records()[name]
    found = CASES[name]()
    if isinstance(found, float):
        assert found == pytest.approx(recorded, rel=1e-6)
    else:
        assert found == recorded


def test_every_export_is_covered() -> None:
    """A new weight, solver, path, loss or schedule must get a golden case."""
    kinds = (cwdfm.Weight, cwdfm.Solver, cwdfm.Path, cwdfm.Loss, cwdfm.Schedule)
    exported = {
        name
        for name, value in vars(cwdfm).items()
        if inspect.isclass(value) and issubclass(value, kinds) and not inspect.isabstract(value)
    }
    used = [*SOLVERS, *WEIGHTS, *PATHS, *LOSSES, *SCHEDULES]
    assert {name for name in exported if not any(name in case for case in used)} == set()


if __name__ == "__main__":
    old = records()
    new = {name: case() for name, case in CASES.items() if name not in old}
    values = json.loads(ADDED.read_text()) | new
    ADDED.write_text(json.dumps(values, indent=1) + "\n")
