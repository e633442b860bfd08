"""Molecules in several spellings: a SMILES may begin at any atom and branch in any order.

A model of canonical SMILES learns one spelling of every molecule, and with it RDKit's own rules of
where to begin. One that sees many spellings learns chemistry and grammar from more examples of it
(Arus-Pous et al. 2019).
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np

from cwdfm.data.chemistry import spellings as spellings_of
from cwdfm.data.dataset import Split, TokenData, Tokens
from cwdfm.data.molecules import pack
from cwdfm.data.smiles import SmilesTokenizer, split_smiles
from cwdfm.errors import InputError, check_integer

MOST = 10_000  # spellings a molecule: all of them are in memory
_TICK = 1000  # molecules between calls of `progress`


def check_spellings(spellings: int, seed: int) -> None:
    """Refuse what `respelled` could not do."""
    check_integer("spellings", spellings)
    check_integer("seed", seed, 0)
    if spellings > MOST:
        raise InputError(f"spellings must be at most {MOST:,} a molecule, got {spellings:,}")


def respelled(
    data: TokenData,
    spellings: int,
    *,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> TokenData:
    """The same molecules, those to train on `spellings` times, held-out ones once, in random order.

    So train [n, N] becomes [n * spellings, N], and valid stays [m, N]. Every spelling is drawn
    anew, so that some may be equal. Where one has tokens that the vocabulary lacks, or too many of
    them, the molecule's own stays.
    """
    tokenizer = data.tokenizer
    if not isinstance(tokenizer, SmilesTokenizer):
        raise InputError(
            f"{data.name} holds {tokenizer.kind} tokens; molecules alone have spellings"
        )
    check_spellings(spellings, seed)
    rng = np.random.default_rng(seed)
    done = count()

    def spelled(split: Split, copies: int) -> Tokens:
        texts: list[str] = []
        for own in data.texts(split):
            drawn = spellings_of(own, copies, seed=int(rng.integers(1, 2**31)))
            texts += [text if _fits(text, tokenizer, data.length) else own for text in drawn]
            if (number := next(done)) % _TICK == 0 and progress is not None:
                progress(number)
        x = pack(texts, tokenizer, data.length)
        rng.shuffle(x)
        return x

    return replace(
        data,
        train=spelled("train", spellings),
        valid=spelled("valid", 1),
        source=data.source | {"spellings": spellings, "spelling_seed": seed},
    )


def _fits(text: str, tokenizer: SmilesTokenizer, length: int) -> bool:
    tokens = split_smiles(text)
    return len(tokens) + 2 <= length and not tokenizer.unknown(tokens)
