"""The published loop of token editing."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tests.support.exact import Array

Tokens = NDArray[np.int64]


def published_edits(
    logits: Callable[[Tokens], Array],
    x: Tokens,
    mask: int,
    thresholds: tuple[float, float],
    post_steps: int,
    *,
    editable: NDArray[np.bool_] | bool = True,
) -> tuple[Tokens, int]:
    """LLaDA2.1's loop for one block at temperature 0, and its number of evaluations.

    `thresholds` are those of a token to be revealed, and to be edited.
    """
    evaluations = post = 0
    while True:
        masked = x == mask
        post += not masked.any()
        if post > post_steps:
            return x, evaluations
        p = np.exp(logits(x))
        p /= p.sum(-1, keepdims=True)
        best, sure, evaluations = p.argmax(-1), p.max(-1), evaluations + 1
        reveal = masked & (sure >= thresholds[0])
        if masked.any() and not reveal.any():
            reveal[np.where(masked, sure, -1).argmax()] = True
        edit = ~masked & editable & (best != x) & (sure >= thresholds[1])
        x = np.where(reveal | edit, best, x)
        if not masked.any() and not edit.any():
            return x, evaluations
