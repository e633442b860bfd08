"""What the samples are worth: molecules, texts, likelihoods, and pictures of them."""

from cwdfm.metric.embed import Embedder, LoadedEmbedder
from cwdfm.metric.fold import Estimate
from cwdfm.metric.histogram import histograms
from cwdfm.metric.judge import Judge, LoadedJudge
from cwdfm.metric.likelihood import SplitBound, bound_split
from cwdfm.metric.mauve import FeatureModel, Mauve, mauve_score
from cwdfm.metric.molecule import (
    CanonicalSet,
    FoldCounts,
    MoleculeScores,
    canonical_set,
    score_molecules,
)
from cwdfm.metric.perplexity import Perplexity, cut_text, generative_perplexity
from cwdfm.metric.picture import CurvePoint, curves, histogram_plot, molecule_grid
from cwdfm.metric.text import TextStatistics, text_statistics

__all__ = [
    "CanonicalSet",
    "CurvePoint",
    "Embedder",
    "Estimate",
    "FeatureModel",
    "FoldCounts",
    "Judge",
    "LoadedEmbedder",
    "LoadedJudge",
    "Mauve",
    "MoleculeScores",
    "Perplexity",
    "SplitBound",
    "TextStatistics",
    "bound_split",
    "canonical_set",
    "curves",
    "cut_text",
    "generative_perplexity",
    "histogram_plot",
    "histograms",
    "mauve_score",
    "molecule_grid",
    "score_molecules",
    "text_statistics",
]
