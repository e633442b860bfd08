"""A recording that reveals one sequence from left to right."""

from collections.abc import Sequence

import numpy as np

from cwdfm.data import SmilesTokenizer
from cwdfm.solver.recording import Recording


def revealed_in_order(tokenizer: SmilesTokenizer, row: Sequence[int]) -> Recording:
    """Each step reveals the next token of `row`, with certainty."""
    length, mask = len(row), tokenizer.vocab_size
    return Recording(
        start=np.full((1, length), mask, np.int32),
        fixed=np.zeros((1, length), bool),
        times=np.linspace(0, 1, length + 1),
        move_step=np.arange(length, dtype=np.int32),
        move_sequence=np.zeros(length, np.int32),
        move_position=np.arange(length, dtype=np.int32),
        move_token=np.array(row, np.int32),
        move_alternatives=np.zeros((length, 1), np.int32),
        move_probabilities=np.ones((length, 1), np.float16),
        entropy=np.zeros((length, 1, length), np.uint8),
        alpha=np.zeros((length, 1, length), np.uint8),
        vocab_size=mask,
        mask_id=mask,
        labels={"tokenizer": tokenizer.to_json()},
    )
