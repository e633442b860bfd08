"""Reports: what samples are worth, as a table, pictures, JSON and one HTML page."""

from cwdfm.report.evaluate import check_folder, evaluate
from cwdfm.report.evaluation import Evaluation, Excerpt, Picture, Row, Table, align
from cwdfm.report.molecules import evaluate_molecules
from cwdfm.report.reference import MoleculeReference
from cwdfm.report.sample_set import File, SampleSet, gather
from cwdfm.report.settings import Settings, TextSettings
from cwdfm.report.text import evaluate_text

__all__ = [
    "Evaluation",
    "Excerpt",
    "File",
    "MoleculeReference",
    "Picture",
    "Row",
    "SampleSet",
    "Settings",
    "Table",
    "TextSettings",
    "align",
    "check_folder",
    "evaluate",
    "evaluate_molecules",
    "evaluate_text",
    "gather",
]
