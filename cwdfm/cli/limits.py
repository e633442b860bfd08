"""What several commands refuse before any work is done: too much, and windows that do not fit."""

import torch

from cwdfm.weight import ContextWeight

# Far beyond any use. More would end, long after, where memory does: for the grid of times, say.
MOST_SAMPLES, MOST_STEPS = 10**9, 10**6


def check_window(weight: object, length: int) -> None:
    """Refuse windows that do not fit the sequences, before any work is done."""
    if isinstance(weight, ContextWeight):
        weight(torch.zeros(1, length, dtype=torch.bool))
