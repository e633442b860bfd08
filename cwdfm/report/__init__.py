"""Reports on samples: scores as a table, figures, JSON and one HTML page."""

from cwdfm.report.evaluate import check_folder, evaluate, report_folder
from cwdfm.report.molecules import MoleculeReference
from cwdfm.report.page import Evaluation
from cwdfm.report.text_data import TextSettings

__all__ = [
    "Evaluation",
    "MoleculeReference",
    "TextSettings",
    "check_folder",
    "evaluate",
    "report_folder",
]
