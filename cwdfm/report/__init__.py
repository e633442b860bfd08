"""Reports on samples: scores as a table, figures, JSON and one HTML page."""

from cwdfm.report.evaluate import check_folder, evaluate
from cwdfm.report.molecules import MoleculeReference, evaluate_molecules
from cwdfm.report.page import Evaluation, Picture
from cwdfm.report.sample_set import File, SampleSet, gather
from cwdfm.report.table import Table
from cwdfm.report.text import evaluate_text
from cwdfm.report.text_data import TextSettings

__all__ = [
    "Evaluation",
    "File",
    "MoleculeReference",
    "Picture",
    "SampleSet",
    "Table",
    "TextSettings",
    "check_folder",
    "evaluate",
    "evaluate_molecules",
    "evaluate_text",
    "gather",
]
