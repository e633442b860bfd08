"""Randomized SMILES: the same molecules, with random start atoms and branch orders.

With canonical SMILES, a model sees one string per molecule and must also learn RDKit's rules for
choosing it. Randomized SMILES are data augmentation: many strings per molecule (Arus-Pous et al.
2019).
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.dataset import TokenData, Tokens
from cwdfm.data.molecules import pack
from cwdfm.data.readers import reported
from cwdfm.data.smiles import SmilesTokenizer, randomized_smiles, split_smiles
from cwdfm.errors import InputError, check_integer

MAX_COPIES = 10_000  # all copies are held in memory


def check_randomized(copies: int, seed: int) -> None:
    """Check the arguments of `randomize`."""
    check_integer("randomized", copies, most=MAX_COPIES)
    check_integer("seed", seed, 0)


def randomized_source(copies: int, seed: int) -> dict[str, int]:
    """The entries that `randomize` adds to `TokenData.source`; stored files use these keys."""
    return {"spellings": copies, "spelling_seed": seed}


def is_randomized(data: TokenData) -> bool:
    """Whether the data contains randomized SMILES."""
    return "spellings" in data.source


def randomize(
    data: TokenData, copies: int, *, seed: int = 0, progress: Callable[[int], object] | None = None
) -> TokenData:
    """Replace each molecule by randomized SMILES, and shuffle the rows.

    Each training molecule gets `copies` strings and each held-out molecule one: train [n, N]
    becomes [n * copies, N], and valid stays [m, N]. The strings are drawn independently, so some
    may be equal. If one is too long or has unknown tokens, the original is used instead.
    """
    tokenizer = data.tokenizer
    if not isinstance(tokenizer, SmilesTokenizer):
        raise InputError(
            f"{data.name} contains {tokenizer.kind} tokens; only molecules have randomized SMILES"
        )
    check_randomized(copies, seed)
    rng = np.random.default_rng(seed)
    originals = reported(data.texts("train") + data.texts("valid"), progress)

    def draw(rows: range, copies: int) -> tuple[Tokens, NDArray[np.intp]]:
        """The sequences of the next rows, and the row of each."""
        texts: list[str] = []
        for original in islice(originals, len(rows)):
            drawn = randomized_smiles(original, copies, seed=int(rng.integers(1, 2**31)))
            texts += [text if _fits(text, tokenizer, data.length) else original for text in drawn]
        x = pack(texts, tokenizer, data.length)
        order = rng.permutation(len(x))
        return x[order], np.repeat(rows, copies).astype(np.intp)[order]

    cut, end = len(data.train), len(data.train) + len(data.valid)
    train, train_rows = draw(range(cut), copies)
    valid, valid_rows = draw(range(cut, end), 1)
    rows = np.concatenate([train_rows, valid_rows])
    columns = {name: values[rows] for name, values in data.columns.items()}
    source = data.source | randomized_source(copies, seed)
    return replace(data, train=train, valid=valid, source=source, columns=columns)


def _fits(text: str, tokenizer: SmilesTokenizer, length: int) -> bool:
    tokens = split_smiles(text)
    return len(tokens) + 2 <= length and not tokenizer.unknown_tokens(tokens)
