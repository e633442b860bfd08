"""The values that the paper reports, with standard deviations.

Text: MAUVE, generative perplexity and entropy on OpenWebText. Molecules: valid and novel of 1,024
on QM9.
"""

from experiments.table import Value
from experiments.tasks.base import Corpus

TABLES, FIGURES = 7, 11  # the number of tables and figures

# name: MAUVE, perplexity and entropy, each with its standard deviation
_TEXT = {
    "data": (0.890, 0.008, 14.66, 0.13, 7.86, 0.01),
    "AR": (0.817, 0.017, 12.72, 0.25, 7.57, 0.02),
    "BD3LM, block 4": (0.784, 0.025, 24.19, 0.08, 7.69, 0.01),
    "BD3LM, block 8": (0.734, 0.022, 29.47, 0.08, 7.70, 0.01),
    "BD3LM, block 16": (0.727, 0.023, 32.95, 0.39, 7.71, 0.01),
    "SEDD": (0.574, 0.024, 110.23, 0.63, 8.14, 0.01),
    "MDLM": (0.685, 0.021, 41.73, 0.49, 7.73, 0.01),
    "uniform, ce": (0.628, 0.030, 82.17, 0.84, 7.93, 0.01),
    "uniform, nelbo": (0.677, 0.035, 74.18, 0.40, 7.88, 0.01),
    "uniform, bregman": (0.682, 0.015, 63.06, 0.53, 7.85, 0.01),
    "uniform, sce": (0.777, 0.017, 30.20, 0.22, 7.66, 0.01),
    "uniform, sce, context 0.5": (0.779, 0.017, 48.91, 0.29, 7.83, 0.01),
    "uniform, sce, context 1": (0.768, 0.017, 37.45, 0.38, 7.70, 0.01),
    "mask, ce": (0.672, 0.024, 40.90, 0.31, 7.64, 0.01),
    # The same row in the main table, with a different deviation.
    "mask, ce, main table": (0.672, 0.024, 40.90, 0.08, 7.64, 0.01),
    "mask, nelbo": (0.685, 0.020, 40.46, 0.24, 7.66, 0.01),
    "mask, bregman": (0.594, 0.018, 51.02, 0.50, 7.74, 0.01),
    "mask, sce": (0.690, 0.010, 38.85, 0.50, 7.67, 0.01),
    "mask, sce, context 0.5": (0.712, 0.023, 35.48, 0.26, 7.60, 0.01),
    "mask, sce, context 1": (0.751, 0.012, 36.25, 0.52, 7.65, 0.01),
}

FOLD = 1024  # molecules per fold

# Notes below tables with the paper's values.
OWN_TEXT = "The paper's columns are for OpenWebText at its own scale"
TEXT_NOTE = f"{OWN_TEXT}, with a nucleus of 0.9, evaluated by a GPT-2 of unknown size."
MOLECULE_NOTE = "The paper's columns are for 92M parameters and 25,000 training steps."

# name: valid and novel, each with its standard deviation
_MOLECULES = {
    "uniform, ce": (475.4, 17.1, 287.0, 15.6),
    "uniform, nelbo": (481.4, 14.4, 299.0, 15.8),
    "uniform, bregman": (494.4, 10.4, 308.0, 8.7),
    "uniform, sce": (556.0, 16.1, 297.6, 10.1),
    "uniform, sce, context 1": (658.4, 20.3, 310.2, 19.6),
    "mask, ce": (134.8, 12.4, 114.8, 10.5),
    "mask, nelbo": (158.8, 7.0, 128.6, 7.4),
    "mask, bregman": (119.8, 4.7, 98.2, 6.9),
    "mask, sce": (177.2, 11.3, 137.8, 7.6),
    "mask, sce, context 1": (298.0, 13.6, 181.6, 9.62),
}

# Approximate factors from the text: the row they refer to, and factors of valid and novel.
GAINS = {"mask, ce, Neighbor": ("mask, ce", 2.8, 1.9)}

# Best solver settings: radius and scale of Neighbor weights, beta of Entropy weights.
BEST: dict[tuple[Corpus, str], tuple[int, float, float]] = {
    ("text", "uniform"): (1, 5.0, 6.0),
    ("text", "mask"): (1, 5.0, 6.0),
    ("molecules", "uniform"): (1, 4.0, 7.0),
    ("molecules", "mask"): (1, 4.0, 6.0),
}

# Upper bounds on test perplexity, by model and source.
TEST_CORPORA = ("wikitext-103", "lambada", "fineweb-edu")
TESTS = {
    ("DFM", "uniform"): (63.38, 84.33, 48.20),
    ("DFM + SCE", "uniform"): (91.53, 133.25, 72.90),
    ("DFM", "mask"): (45.33, 57.88, 35.00),
    ("DFM + SCE", "mask"): (45.27, 59.59, 34.80),
}

# Updates per token and percentage of loops, uniform source, by solver.
UPDATES = {
    "Euler": (Value(1.033, 0.001, 3), Value(None)),
    "Neighbor": (Value(1.157, 0.001, 3), Value(0.02, None, 2)),
}


def with_solver(name: str, solver: str) -> str:
    """The name of a row with a solver; the tables are for Euler."""
    return name if solver == "Euler" or not name else f"{name}, {solver}"


def text(name: str) -> tuple[Value, ...]:
    """MAUVE, generative perplexity and entropy of a row; empty if the paper has none."""
    if name not in _TEXT:
        return ()
    mauve, mauve_std, ppl, ppl_std, entropy, entropy_std = _TEXT[name]
    return (
        Value(mauve, mauve_std, 3, printed=True),
        Value(ppl, ppl_std, 2, printed=True),
        Value(entropy, entropy_std, 2, printed=True),
    )


def molecules(name: str) -> tuple[Value, ...]:
    """Valid and novel molecules of a row; empty if the paper has none.

    Rows in `GAINS` are computed from a factor and have no spread.
    """
    if name in GAINS:
        of, *gains = GAINS[name]
        valid, _, novel, _ = _MOLECULES[of]
        return Value(gains[0] * valid, None, 0), Value(gains[1] * novel, None, 0)
    if name not in _MOLECULES:
        return ()
    valid, valid_std, novel, novel_std = _MOLECULES[name]
    return Value(valid, valid_std, 1, printed=True), Value(novel, novel_std, 1, printed=True)
