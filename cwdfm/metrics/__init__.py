"""Metrics of samples and models: molecules, text, analyses. Numbers only."""

from cwdfm.metrics.context import ContextAnalysis, ContextCurve, context_analysis
from cwdfm.metrics.embed import Embedder, LoadedEmbedder
from cwdfm.metrics.evaluator import EvaluatorLM, LoadedEvaluatorLM
from cwdfm.metrics.folds import Estimate
from cwdfm.metrics.histogram import histograms
from cwdfm.metrics.mauve import FeatureModel, Mauve, mauve_score
from cwdfm.metrics.molecule import (
    CanonicalSet,
    FoldCounts,
    MoleculeScores,
    canonical_set,
    score_molecules,
)
from cwdfm.metrics.perplexity import Perplexity, cut_text, generative_perplexity
from cwdfm.metrics.text import TextStatistics, text_statistics
from cwdfm.metrics.updates import UpdateStatistics, update_statistics, updates_table

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
    "updates_table",
]
