"""What models and solvers do: prediction difficulty against context, updates per token."""

from cwdfm.analyze.context import ContextAnalysis, ContextCurve, context_analysis
from cwdfm.analyze.picture import context_plot, updates_plot
from cwdfm.analyze.updates import UpdateStatistics, update_statistics, updates_table

__all__ = [
    "ContextAnalysis",
    "ContextCurve",
    "UpdateStatistics",
    "context_analysis",
    "context_plot",
    "update_statistics",
    "updates_plot",
    "updates_table",
]
