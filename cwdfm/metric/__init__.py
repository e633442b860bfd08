"""What the samples are worth: counts and histograms of molecules, and pictures of both."""

from cwdfm.metric.histogram import histograms
from cwdfm.metric.molecule import (
    CanonicalSet,
    FoldCounts,
    MoleculeScores,
    canonical_set,
    score_molecules,
)
from cwdfm.metric.picture import CurvePoint, curves, histogram_plot, molecule_grid

__all__ = [
    "CanonicalSet",
    "CurvePoint",
    "FoldCounts",
    "MoleculeScores",
    "canonical_set",
    "curves",
    "histogram_plot",
    "histograms",
    "molecule_grid",
    "score_molecules",
]
