"""Metrics of samples and models. They return numbers; `cwdfm.report` makes tables and figures."""

from cwdfm.metrics.analysis import context_analysis, update_statistics
from cwdfm.metrics.distribution import distribution_scores
from cwdfm.metrics.evaluator import EvaluatorLM
from cwdfm.metrics.mauve import Embedder, mauve_score
from cwdfm.metrics.molecule import canonical_set, histograms, score_molecules
from cwdfm.metrics.overlap import ngram_overlap
from cwdfm.metrics.perplexity import generative_perplexity
from cwdfm.metrics.reference_statistics import ReferenceStatistics, reference_statistics
from cwdfm.metrics.text import text_statistics

__all__ = [
    "Embedder",
    "EvaluatorLM",
    "ReferenceStatistics",
    "canonical_set",
    "context_analysis",
    "distribution_scores",
    "generative_perplexity",
    "histograms",
    "mauve_score",
    "ngram_overlap",
    "reference_statistics",
    "score_molecules",
    "text_statistics",
    "update_statistics",
]
