"""Metrics of samples and models. They return numbers; `cwdfm.report` draws and prints them."""

from cwdfm.metrics.context import ContextAnalysis, ContextCurve, context_analysis
from cwdfm.metrics.embed import Embedder, LoadedEmbedder
from cwdfm.metrics.evaluator import EvaluatorLM, LoadedEvaluatorLM
from cwdfm.metrics.folds import Estimate
from cwdfm.metrics.mauve import FeatureModel, Mauve, mauve_score
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
from cwdfm.metrics.updates import UpdateStatistics, update_statistics

__all__ = [
    "CanonicalSet",
    "ContextAnalysis",
    "ContextCurve",
    "Embedder",
    "Estimate",
    "EvaluatorLM",
    "FeatureModel",
    "FoldCounts",
    "LoadedEmbedder",
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
