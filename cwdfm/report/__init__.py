"""Reports on samples: scores in a table, figures, a JSON file and an HTML page."""

from cwdfm.report.evaluate import check_folder, evaluate, report_folder
from cwdfm.report.page import Evaluation
from cwdfm.report.text_data import TextSettings

__all__ = ["Evaluation", "TextSettings", "check_folder", "evaluate", "report_folder"]
