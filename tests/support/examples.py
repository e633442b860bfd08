"""One or more examples of every exported weight, path, loss, solver, source and schedule."""

import torch

import cwdfm

EXAMPLES: list[object] = [
    cwdfm.Linear(),
    cwdfm.Polynomial(2.0),
    cwdfm.Cosine(),
    cwdfm.MaskSource(7),
    cwdfm.UniformSource(7),
    cwdfm.Neighbor(2, 1.5),
    cwdfm.Neighbor(1, 4.0, "cut"),
    cwdfm.Neighbor(1, 1.0, grid=(3, 4)),
    cwdfm.Distance(0.5, 4),
    cwdfm.NeighborShare(2),
    cwdfm.Entropy(6.0),
    cwdfm.EntropyInverse(),
    cwdfm.Confidence(2.0),
    cwdfm.Margin(2.0),
    cwdfm.Learned((0.3, -1.0, 0.5, 0.2), 3.0),
    cwdfm.CalibratedEntropy(1.5, 2.0),
    cwdfm.Neighbor(1, 1.0) + cwdfm.Entropy(1.0),
    cwdfm.MixturePath(cwdfm.MaskSource(7), cwdfm.Linear()),
    cwdfm.MixturePath(cwdfm.UniformSource(7), cwdfm.Cosine()),
    cwdfm.ContextPath(cwdfm.MaskSource(7), cwdfm.Polynomial(2.0), cwdfm.Neighbor(1, 4.0)),
    cwdfm.ContextPath(cwdfm.UniformSource(7), cwdfm.Linear(), cwdfm.Distance(1.0)),
    cwdfm.CrossEntropy(),
    cwdfm.NELBO(),
    cwdfm.Bregman(),
    cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(3, 0.5)),
    cwdfm.ScaledCrossEntropy(cwdfm.Entropy(1.0), "joint"),
    cwdfm.Euler(),
    cwdfm.Euler(weight=cwdfm.Neighbor(1, 4.0), corrector=cwdfm.Corrector(), hazard="integrated"),
    cwdfm.Euler(weight=cwdfm.Entropy(6.0), temperature=0.8, top_p=0.9, dtype=torch.float32),
    cwdfm.TopK("margin", top_p=0.9),
    cwdfm.EntropyBound(1.0, "confidence"),
    cwdfm.FirstHitting(cwdfm.Neighbor(1, 4.0)),
    cwdfm.ThetaTrapezoidal(0.4),
    cwdfm.ThetaRK2(0.7, temperature=0.8, top_p=0.9),
    cwdfm.TopK(cwdfm.Neighbor(1, 4.0) + cwdfm.Entropy(1.0)),
    cwdfm.Threshold(0.3),
    cwdfm.EntropyPace(0.5, distance=1),
    cwdfm.TopK("margin", distance=2),
    cwdfm.KLASS(0.2, 0.1, 1),
    cwdfm.PathPlanning(0.5),
    cwdfm.Edit(cwdfm.Threshold(0.4), 0.3, 4),
    cwdfm.Gibbs(cwdfm.Euler(hazard="integrated", temperature=0.8), tokens=2, begin=0.3),
]

# Solvers that require a mask source.
MASK_ONLY = (
    cwdfm.TopK, cwdfm.EntropyPace, cwdfm.Threshold, cwdfm.KLASS, cwdfm.PathPlanning,
    cwdfm.FirstHitting, cwdfm.Edit,
)  # fmt: skip

LENGTH = 12


def examples(base: type) -> list[object]:
    return [example for example in EXAMPLES if isinstance(example, base)]
