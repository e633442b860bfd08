"""SMILES: the regex tokenizer."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from cwdfm.data.tokenizer import Tokenizer
from cwdfm.errors import InputError

SPECIAL = ("<pad>", "<bos>", "<eos>")

# Longer alternatives come first.
_TOKEN = re.compile(
    r"\[[^\[\]]+\]"  # bracket atoms: [nH], [C@@H], [O-]
    r"|Br|Cl|[BCNOPSFIbcnops*]"  # the organic subset, aromatic atoms, the wildcard
    r"|%[0-9]{2}|%\([0-9]+\)|[0-9]"  # ring closures
    r"|->|<-|[-=#$:/\\~.()]"  # bonds, branches, the dot between molecules
)


def split_smiles(smiles: str) -> list[str]:
    """The tokens of a SMILES string. Joined they are the string again; else it is refused."""
    tokens = _TOKEN.findall(smiles)
    if sum(map(len, tokens)) != len(smiles):
        place = 0
        while match := _TOKEN.match(smiles, place):
            place = match.end()
        raise InputError(
            f"{smiles!r} is not SMILES: {smiles[place]!r} at position {place} begins no atom, "
            f"bond, branch or ring closure; look for stray characters"
        )
    return tokens


@dataclass(frozen=True)
class SmilesTokenizer(Tokenizer, kind="smiles"):
    """Ids 0, 1, 2 are `<pad>`, `<bos>`, `<eos>`; the regex tokens follow in the given order.

    `tokens` holds the regex tokens alone; `build` sorts them.
    """

    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        bad = [token for token in self.tokens if _TOKEN.fullmatch(token) is None]
        if bad or len(set(self.tokens)) != len(self.tokens) or not self.tokens:
            raise InputError(
                f"tokens must be distinct SMILES tokens, at least one, got {self.tokens!r}; "
                f"special tokens are added by themselves, and build() makes a vocabulary from data"
            )

    @classmethod
    def build(cls, smiles: Iterable[str]) -> Self:
        """The vocabulary of some SMILES strings: their tokens, sorted."""
        return cls(tuple(sorted({token for text in smiles for token in split_smiles(text)})))

    @property
    def vocab_size(self) -> int:
        return len(SPECIAL) + len(self.tokens)

    @property
    def pad_id(self) -> int:
        return 0

    @property
    def bos_id(self) -> int:
        return 1

    @property
    def eos_id(self) -> int:
        return 2

    @cached_property
    def _id_of(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens, start=len(SPECIAL))}

    @cached_property
    def _text_of(self) -> tuple[str, ...]:
        """By id: special tokens leave no trace."""
        return ("",) * len(SPECIAL) + self.tokens

    def unknown(self, tokens: Iterable[str]) -> list[str]:
        """Those of the tokens that the vocabulary lacks, sorted."""
        return sorted(set(tokens) - self._id_of.keys())

    def encode(self, text: str) -> list[int]:
        tokens = split_smiles(text)
        try:
            return [self._id_of[token] for token in tokens]
        except KeyError:
            raise InputError(
                f"{text!r} holds tokens that the vocabulary of {self.vocab_size} lacks: "
                f"{', '.join(self.unknown(tokens))}; leave it out or train with a vocabulary "
                f"that has them"
            ) from None

    def pack(self, ids: list[int], length: int) -> list[int]:
        """`<bos> ids <eos> <pad> ...`, `length` ids in all."""
        if len(ids) + 2 > length:
            raise InputError(
                f"{len(ids)} tokens with <bos> and <eos> do not fit into length {length}; "
                f"leave the sequence out or use length >= {len(ids) + 2}"
            )
        return [self.bos_id, *ids, self.eos_id] + [self.pad_id] * (length - len(ids) - 2)

    def decode(self, ids: Iterable[int]) -> str:
        """The molecule up to the first end token; begin and padding tokens leave no trace."""
        out, text_of, eos_id = [], self._text_of, self.eos_id  # millions of ids come here
        for i in map(int, ids):
            if i == eos_id:
                break
            if not 0 <= i < len(text_of):
                raise InputError(
                    f"id {i} cannot be decoded, allowed are 0..{self.vocab_size - 1}; "
                    f"id {self.vocab_size} would be a mask that no solver step has revealed"
                )
            out.append(text_of[i])
        return "".join(out)

    def holes(self, template: str) -> list[int | None]:
        """Every `*` is one free token: `c1ccccc1***` is benzene and three more.

        So the wildcard atom cannot be a fixed token of a template.
        """
        tokens = split_smiles(template)
        if "*" not in tokens:
            raise InputError(
                f"the template {template!r} has no holes; write * for each token to fill in, as in "
                f"'c1ccccc1***'"
            )
        ids = iter(self.encode("".join(token for token in tokens if token != "*")))
        return [None if token == "*" else next(ids) for token in tokens]

    def frame(self, ids: Sequence[int | None], length: int, *, whole: bool) -> list[int | None]:
        """`<bos> ids`, behind them `<eos> <pad> ...` or free tokens."""
        if len(ids) + 2 > length:
            raise InputError(
                f"{len(ids)} tokens are given, and the model's sequences of {length} have room for "
                f"{length - 2} beside <bos> and <eos>; give fewer"
            )
        free = length - len(ids) - 1
        end = [self.eos_id] + [self.pad_id] * (free - 1) if whole else [None] * free
        return [self.bos_id, *ids, *end]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "special": list(SPECIAL), "tokens": list(self.tokens)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        tokens = data.get("tokens")
        if (
            data.get("special") != list(SPECIAL)
            or not isinstance(tokens, list)
            or not all(isinstance(token, str) for token in tokens)
        ):
            raise InputError(
                f"a SMILES tokenizer is stored as special {list(SPECIAL)} and a list of tokens, "
                f"got {data!r}; take the one that the data or the model was saved with"
            )
        return cls(tuple(tokens))
