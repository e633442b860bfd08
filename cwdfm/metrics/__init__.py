"""Metrics of samples and models. They return numbers; `cwdfm.report` draws and prints them."""

from cwdfm.metrics.analysis import (
    ContextAnalysis,
    ContextCurve,
    UpdateStatistics,
    context_analysis,
    update_statistics,
)
from cwdfm.metrics.evaluator import EvaluatorLM, LoadedEvaluatorLM
from cwdfm.metrics.folds import Estimate
from cwdfm.metrics.mauve import Embedder, FeatureModel, Mauve, mauve_score
from cwdfm.metrics.molecule import (
    CanonicalSet,
    FoldCounts,
    MoleculeScores,
    canonical_set,
    histograms,
    score_molecules,
)
from cwdfm.metrics.perplexity import Perplexity, cut_text, generative_perplexity
from cwdfm.metrics.text import TextStatistics, text_statistics

__all__ = [
    "CanonicalSet",
    "ContextAnalysis",
    "ContextCurve",
    "Embedder",
    "Estimate",
    "EvaluatorLM",
    "FeatureModel",
    "FoldCounts",
    "LoadedEvaluatorLM",
    "Mauve",
    "MoleculeScores",
    "Perplexity",
    "TextStatistics",
    "UpdateStatistics",
    "canonical_set",
    "context_analysis",
    "cut_text",
    "generative_perplexity",
    "histograms",
    "mauve_score",
    "score_molecules",
    "text_statistics",
    "update_statistics",
]
