"""SMILES strings: parsing and canonicalization with RDKit, and tokenizers for molecules.

Datasets and metrics share one definition of a valid molecule: `parse`.
"""

import io
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.tokenizer import Tokenizer, hole_size
from cwdfm.errors import InputError, describe, load_extra

SPECIAL = ("<pad>", "<bos>", "<eos>")
# RDKit's canonicalization recurses along chains of atoms. At about 15,000 atoms it overflows an 8
# MB stack, which kills the process.
MAX_CHARACTERS = 5000

# Longer alternatives first.
_TOKEN = re.compile(
    r"\[[^\[\]]+\]"  # bracket atoms: [nH], [C@@H], [O-]
    r"|Br|Cl|[BCNOPSFIbcnops*]"  # the organic subset, aromatic atoms, the wildcard
    r"|%[0-9]{2}|%\([0-9]+\)|[0-9]"  # ring closures
    r"|->|<-|[-=#$:/\\~.()]"  # bonds, branches, the dot between molecules
)

_ROWS = 16_384  # sequences decoded at a time, which bounds the memory
_HOLE = re.compile(r"\[[0-9]+\]")  # a hole in a template; a bracket atom would contain a symbol


def rdkit(module: str = "Chem") -> Any:
    """Import a module of RDKit, an optional dependency."""
    return load_extra(f"rdkit.{module}", "molecules")


def parse(smiles: str) -> Any:
    """Parse a SMILES string; None if it is invalid, too long or has no atoms.

    RDKit takes text after whitespace as the molecule's name and would accept "CC nonsense". Here,
    apart from surrounding whitespace, the whole string must be a SMILES of at most
    `MAX_CHARACTERS`.
    """
    if not isinstance(smiles, str):
        raise InputError(f"a SMILES must be a string, got {describe(smiles)}")
    chem, text = rdkit(), smiles.strip()
    if _invalid_text(text):
        return None
    with chem.rdBase.BlockLogs():  # RDKit logs every invalid string to stderr
        molecule = chem.MolFromSmiles(text)
    return molecule if molecule is not None and molecule.GetNumAtoms() else None


def _invalid_text(text: str) -> str:
    """Why a text is rejected before RDKit parses it; empty if it is not."""
    if not text:
        return "empty"
    if len(text.split()) > 1:
        return "white space"
    if len(text) > MAX_CHARACTERS:
        return f"longer than {MAX_CHARACTERS:,} characters"
    if not (text.isascii() and text.isprintable()):  # RDKit stops reading at a null character
        return "characters other than printable ASCII"
    return ""


def to_smiles(molecule: Any) -> str:
    """The canonical SMILES of an RDKit molecule, including stereochemistry."""
    return str(rdkit().MolToSmiles(molecule))


def canonical(smiles: str) -> str | None:
    """The canonical SMILES of a string; None if it is invalid."""
    return None if (molecule := parse(smiles)) is None else to_smiles(molecule)


class CanonicalSet(frozenset[str]):
    """A set of SMILES strings that are known to be canonical."""


def invalid_reason(smiles: str) -> str:
    """RDKit's explanation of why a string is not a valid molecule; empty if it is valid."""
    if parse(smiles) is not None:
        return ""
    chem, text = rdkit(), smiles.strip()
    if reason := _invalid_text(text):
        return reason
    log = io.StringIO()
    chem.rdBase.LogToPythonStderr()
    with redirect_stderr(log):
        molecule = chem.MolFromSmiles(text, sanitize=False)
        problems = [] if molecule is None else chem.DetectChemistryProblems(molecule)
    chem.rdBase.LogToCppStreams()
    if problems:
        return str(problems[0].Message())
    message = re.search(r"Parse Error: (.*?)(?: for input| while parsing|$)", log.getvalue(), re.M)
    position = re.search(r"around position (\d+)", log.getvalue())
    reason = "no atoms" if message is None else message[1]
    return reason + (f" at position {position[1]}" if position else "")


def randomized_smiles(smiles: str, n: int, *, seed: int) -> list[str]:
    """Draw `n` randomized SMILES of a molecule. RDKit requires a positive seed."""
    if (molecule := parse(smiles)) is None:
        raise InputError(f"{smiles!r} is not a valid molecule; it has no randomized SMILES")
    return [str(text) for text in rdkit().MolToRandomSmilesVect(molecule, n, randomSeed=seed)]


def split_smiles(smiles: str) -> list[str]:
    """Split a SMILES string into tokens; joining them restores the string."""
    tokens = _TOKEN.findall(smiles)
    if sum(map(len, tokens)) != len(smiles):
        position = 0
        while match := _TOKEN.match(smiles, position):
            position = match.end()
        raise InputError(
            f"{smiles!r} is not a SMILES: {smiles[position]!r} at position {position} does not "
            f"start an atom, bond, branch or ring closure; remove stray characters"
        )
    return tokens


@dataclass(frozen=True)
class MoleculeTokenizer(Tokenizer):
    """Base class: special tokens 0 `<pad>`, 1 `<bos>` and 2 `<eos>`, then one id per token.

    Texts are always SMILES. Subclasses define how to `split` a SMILES into tokens and `join` them.

    tokens: the vocabulary without special tokens, in the order of ids; `build` sorts it.
    """

    tokens: tuple[str, ...]
    pad_id, bos_id, eos_id = 0, 1, 2

    def __post_init__(self) -> None:
        invalid = [token for token in self.tokens if _TOKEN.fullmatch(token) is None]
        if invalid or len(set(self.tokens)) != len(self.tokens) or not self.tokens:
            raise InputError(
                f"tokens must be distinct SMILES tokens, at least one, got {self.tokens!r}; "
                f"special tokens are added automatically, and build() creates a vocabulary from "
                f"data"
            )

    @classmethod
    def build(cls, smiles: Iterable[str]) -> Self:
        """Build a vocabulary from the tokens of SMILES strings, sorted."""
        return cls(tuple(sorted({token for text in smiles for token in cls.split(text)})))

    @staticmethod
    @abstractmethod
    def split(smiles: str) -> list[str]:
        """Split a SMILES string into tokens; raises InputError if that is not possible."""

    @staticmethod
    @abstractmethod
    def join(tokens: Iterable[str]) -> str:
        """Convert tokens to a SMILES string."""

    @property
    def vocab_size(self) -> int:
        return len(SPECIAL) + len(self.tokens)

    @cached_property
    def _id_of(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens, start=len(SPECIAL))}

    @cached_property
    def _text_of(self) -> dict[int, str]:
        """The text of each id; empty for special tokens."""
        return dict(enumerate(("",) * len(SPECIAL) + self.tokens))

    def unknown_tokens(self, tokens: Iterable[str]) -> list[str]:
        """The tokens that are not in the vocabulary, sorted."""
        return sorted(set(tokens) - self._id_of.keys())

    def encode(self, text: str) -> list[int]:
        tokens = self.split(text)
        try:
            return [self._id_of[token] for token in tokens]
        except KeyError:
            raise InputError(
                f"{text!r} contains tokens that are not in the vocabulary of {self.vocab_size}: "
                f"{', '.join(self.unknown_tokens(tokens))}; leave the molecule out, or train "
                f"with a vocabulary that includes them"
            ) from None

    def pack(self, ids: list[int], length: int) -> list[int]:
        """`<bos> ids <eos> <pad> ...`, padded to `length`."""
        return cast(list[int], self.frame(ids, length, whole=True))

    def layout(self, texts: Sequence[str], length: int) -> tuple[list[list[int]], int]:
        """One molecule per sequence, with its own padding."""
        return [self.pack(self.encode(text), length) for text in texts], 0

    def decode(self, ids: Iterable[int]) -> str:
        """The SMILES before the first `<eos>`, without `<bos>` and `<pad>`."""
        row = list(map(int, ids))
        end = row.index(self.eos_id) if self.eos_id in row else len(row)
        try:
            return self.join(map(self._text_of.__getitem__, row[:end]))
        except KeyError as error:
            raise self.not_decodable(error.args[0]) from None

    def frame(self, ids: Sequence[int | None], length: int, *, whole: bool) -> list[int | None]:
        """`<bos> ids`, followed by `<eos> <pad> ...` if `whole`, else by free tokens."""
        if len(ids) + 2 > length:
            raise InputError(
                f"{len(ids)} tokens are given, but sequences of length {length} have room for "
                f"{length - 2} besides <bos> and <eos>; pass fewer tokens, or use length >= "
                f"{len(ids) + 2}"
            )
        rest = length - len(ids) - 1
        end = [self.eos_id] + [self.pad_id] * (rest - 1) if whole else [None] * rest
        return [self.bos_id, *ids, *end]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "special": list(SPECIAL), "tokens": list(self.tokens)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        if data.get("special") != list(SPECIAL):
            raise ValueError(f"special tokens are {data.get('special')}, not {list(SPECIAL)}")
        return cls(tuple(data["tokens"]))


class SmilesTokenizer(MoleculeTokenizer, kind="smiles"):
    """Tokenizes SMILES into atoms, bonds, branches and ring closures."""

    split = staticmethod(split_smiles)

    @staticmethod
    def join(tokens: Iterable[str]) -> str:
        return "".join(tokens)

    def decode_rows(self, x_BN: NDArray[np.integer[Any]]) -> list[str]:
        """The same as `decode` of each row, several times faster for a large dataset."""
        table = np.array(list(self._text_of.values()))  # text of fixed size, padded with "\0"
        found: list[str] = []
        for start in range(0, len(x_BN), _ROWS):
            x_bN = x_BN[start : start + _ROWS]
            ended_bN = np.logical_or.accumulate(x_bN == self.eos_id, axis=1)
            text_bN = table[np.where(ended_bN, self.pad_id, x_bN)]
            rows = text_bN.view(f"U{text_bN.itemsize // 4 * x_bN.shape[1]}")[:, 0].tolist()
            found += [row.replace("\0", "") for row in rows]
        return found

    def encode_template(self, template: str) -> list[int | None]:
        """Encode a template: `[3]` is a hole of three free tokens, and each `*` is one free token.

        `c1ccccc1[3]` and `c1ccccc1***` are both benzene followed by three free tokens. A template
        therefore cannot fix the wildcard atom `*`.
        """
        ids: list[int | None] = []
        for token in split_smiles(template):
            if token == "*" or _HOLE.fullmatch(token):
                ids += [None] * (1 if token == "*" else hole_size(template, token[1:-1]))
            else:
                ids += self.encode(token)
        if None not in ids:
            raise InputError(
                f"the template {template!r} has no holes; write [3] for three free tokens, as in "
                f"'c1ccccc1[3]', or * for each of them"
            )
        return ids


class SelfiesTokenizer(MoleculeTokenizer, kind="selfies"):
    """Tokenizes into SELFIES symbols (Krenn et al. 2020); any sequence of them is a molecule."""

    @staticmethod
    def split(smiles: str) -> list[str]:
        selfies = load_extra("selfies", "molecules")
        try:
            return list(selfies.split_selfies(selfies.encoder(smiles)))
        except selfies.EncoderError as error:
            reason = str(error).strip().partition("\n")[0]
            raise InputError(
                f"{smiles!r} cannot be converted to SELFIES ({reason}); leave it out, or use SMILES"
            ) from None

    @staticmethod
    def join(tokens: Iterable[str]) -> str:
        return str(load_extra("selfies", "molecules").decoder("".join(tokens)))

    def encode_template(self, template: str) -> list[int | None]:
        """Not supported: the meaning of a SELFIES symbol depends on the symbols before it."""
        raise InputError(
            f"the template {template!r} requires a SMILES model, but this model was trained on "
            f"SELFIES; use a prompt, or a SMILES model",
            fields=("template",),
        )


REPRESENTATIONS: dict[str, type[MoleculeTokenizer]] = {
    cls.kind: cls for cls in (SmilesTokenizer, SelfiesTokenizer)
}
