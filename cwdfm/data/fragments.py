"""Templates that fix fragments of a molecule and let the model generate the rest.

A fragment is a SMILES string. Marks `*` are its attachment points: 'c1ccc(*)cc1'. They may be
numbered, as in '[*:1]' and '[1*]'; the numbers are ignored. A fragment without marks is extended at
random atoms, drawn for each sample among the atoms that have a hydrogen atom and no specified
stereochemistry. Every sample has its own template: the canonical SMILES, with holes of random
length in place of the marks. The result does not depend on which SMILES of the fragment was given.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.smiles import SmilesTokenizer, invalid_reason, parse, rdkit, to_smiles
from cwdfm.data.tokenizer import Tokenizer, hole_size
from cwdfm.errors import InputError, check_integer

MAX_POINTS = 3  # attachment points of a scaffold without marks
_ATTEMPTS = 32  # draws of attachment points that fit into the sequence
_RARE = 1e-6  # added to every probability, so that lengths beyond the data remain possible
# An atom in place of the hole between two fragments. A canonical SMILES starts with it only if all
# other atoms have more neighbors, so templates start like the data: inside a fragment, at its end.
_MIDDLE = "[999Te]"
_RANGE = re.compile(r"\*\{(\d*),(\d*)\}")


def parse_fragment(smiles: str, name: str = "fragment") -> Any:
    """Parse a fragment with RDKit; an InputError explains why it is invalid."""
    if (molecule := parse(smiles)) is not None:
        if not any(atom.GetAtomicNum() for atom in molecule.GetAtoms()):
            raise InputError(f"{name} {smiles!r} has no atoms; add some", fields=(name,))
        if len(rdkit().GetMolFrags(molecule)) > 1:
            raise InputError(
                f"{name} {smiles!r} has several parts, separated by '.'; pass only one, or join "
                f"two with a linker",
                fields=(name, "linker"),
            )
        for atom in molecule.GetAtoms():  # ignore the numbers of marks, as in [*:1] and [1*]
            atom.SetAtomMapNum(0)
            if not atom.GetAtomicNum():
                atom.SetIsotope(0)
        # Canonical atom order, so that random choices do not depend on the given SMILES.
        return parse(to_smiles(molecule))
    raise InputError(
        f"{name} {smiles!r} is not a valid molecule: {invalid_reason(smiles)}; correct it",
        fields=(name,),
    )


@dataclass(frozen=True)
class Fragment(ABC):
    """A part of the molecule that every sample contains."""

    @cached_property
    @abstractmethod
    def parts(self) -> tuple[Any, ...]:
        """The fragments as RDKit molecules; marks are atoms with atomic number 0."""

    @abstractmethod
    def marked(self, rng: np.random.Generator) -> str:
        """The SMILES with a mark at each attachment point, drawn at random where none is given."""

    @cached_property
    def patterns(self) -> list[Any]:
        """The parts without marks, for highlighting them in drawings."""
        return [_without_marks(part) for part in self.parts]

    @cached_property
    def _queries(self) -> list[Any]:
        return [_query(part) for part in self.parts]

    def accepts(self, text: str) -> bool:
        """Whether a SMILES is a valid molecule that contains all parts and their stereochemistry.

        Parts with marks must be extended at all of their marks and nowhere else.
        """
        molecule = parse(text)
        return molecule is not None and all(
            molecule.HasSubstructMatch(query, useChirality=True) for query in self._queries
        )

    def check(self, tokenizer: Tokenizer, length: int) -> SmilesTokenizer:
        """Raise an error if the fragment exceeds the vocabulary or the length of the model."""
        if not isinstance(tokenizer, SmilesTokenizer):
            raise InputError(
                f"fragments require a model trained on SMILES, but the tokens of this model are "
                f"{tokenizer.kind}; use a SMILES model"
            )
        smiles = self.marked(np.random.default_rng(0))
        tokens = [token for token in tokenizer.split(smiles) if token != "*"]
        if unknown := tokenizer.unknown_tokens(tokens):
            written = " and ".join(repr(to_smiles(part)) for part in self.parts)
            raise InputError(
                f"{written} contains tokens that are not in the vocabulary of the model: "
                f"{', '.join(unknown)}; the vocabulary is {' '.join(tokenizer.tokens)}. Train a "
                f"model on data with these tokens"
            )
        self.template(tokenizer, length, 0)
        return tokenizer

    def template(
        self,
        tokenizer: SmilesTokenizer,
        length: int,
        *seed: int,
        law: NDArray[np.float64] | None = None,
    ) -> str:
        """Draw the template of one sample, for `Tokenizer.encode_template`.

        law: probabilities [length - 1] of molecules with 0, 1, ... tokens; uniform by default.
            Every split of the free tokens among the holes is equally likely.
        """
        rng = np.random.default_rng(seed)
        for _ in range(_ATTEMPTS):  # another draw may have fewer marks, which take fewer tokens
            smiles = self.marked(rng)
            if (room := length - 2 - len(tokenizer.split(smiles))) >= 0:
                break
        else:
            raise InputError(
                f"{smiles!r} has {len(tokenizer.split(smiles))} tokens, counting each * as one, "
                f"but a sample has {length - 2}; use a smaller fragment, or a model for "
                f"longer sequences"
            )
        weights = np.ones(room + 1) if law is None else law[-room - 1 :] + _RARE
        total = int(rng.choice(room + 1, p=weights / weights.sum()))
        cuts = np.sort(rng.integers(0, total + 1, smiles.count("*") - 1))
        sizes = iter(np.diff([0, *cuts, total]) + 1)
        return re.sub(r"\*", lambda _: f"[{next(sizes)}]", smiles)


@dataclass(frozen=True)
class Scaffold(Fragment):
    """A fragment that is extended at all of its marks; without marks, at 1 to `most` atoms."""

    smiles: str
    most: int = MAX_POINTS

    def __post_init__(self) -> None:
        check_integer("most", self.most)

    @cached_property
    def parts(self) -> tuple[Any, ...]:
        return (parse_fragment(self.smiles, "scaffold" if self.most > 1 else "grow"),)

    def marked(self, rng: np.random.Generator) -> str:
        return to_smiles(_extend(self.parts[0], rng, self.most))


def grow(smiles: str) -> Scaffold:
    """A fragment that is extended at one point."""
    scaffold = Scaffold(smiles, most=1)
    if (marks := len(_marks(scaffold.parts[0]))) > 1:
        raise InputError(
            f"grow extends a fragment at one point, but {smiles!r} has {marks} marks *; remove "
            f"all but one, or use it as a scaffold",
            fields=("grow", "scaffold"),
        )
    return scaffold


@dataclass(frozen=True)
class Linker(Fragment):
    """Two fragments joined by generated tokens, each at its mark or else at a random atom."""

    first: str
    second: str

    @cached_property
    def parts(self) -> tuple[Any, ...]:
        parts = tuple(parse_fragment(smiles, "linker") for smiles in (self.first, self.second))
        for smiles, part in zip((self.first, self.second), parts, strict=True):
            if (marks := len(_marks(part))) > 1:
                raise InputError(
                    f"a linker joins two fragments at one point each, but {smiles!r} has {marks} "
                    f"marks *; remove all but one",
                    fields=("linker",),
                )
        return parts

    def marked(self, rng: np.random.Generator) -> str:
        chem = rdkit()
        ends = []
        for number, part in enumerate(self.parts, start=1):
            end = chem.RWMol(_extend(part, rng, 1))
            (mark,) = _marks(end)
            end.GetAtomWithIdx(mark).SetAtomMapNum(number)
            ends.append(end.GetMol())
        first, second = ends
        middle = chem.MolFromSmiles(f"[*:1]{_MIDDLE}[*:2]")
        pieces = chem.CombineMols(chem.CombineMols(first, middle), second)
        return to_smiles(chem.molzip(pieces)).replace(_MIDDLE, "*")


def find_fragment(
    scaffold: str | None = None, growing: str | None = None, linker: Sequence[str] | None = None
) -> Fragment | None:
    """The fragment for the command-line options; None if none is set."""
    if linker is not None:
        return Linker(*linker)
    if growing is not None:
        return grow(growing)
    return None if scaffold is None else Scaffold(scaffold)


def _marks(molecule: Any) -> list[int]:
    return [atom.GetIdx() for atom in molecule.GetAtoms() if atom.GetAtomicNum() == 0]


def _without_marks(molecule: Any) -> Any:
    editable = rdkit().RWMol(molecule)
    for i in sorted(_marks(molecule), reverse=True):
        editable.RemoveAtom(i)
    return editable.GetMol()


def _query(molecule: Any) -> Any:
    """A molecule as a substructure query.

    With marks, each mark matches any atom, and the other atoms may have no further neighbors.
    """
    if not _marks(molecule):
        return molecule
    chem = rdkit()
    options = chem.AdjustQueryParameters.NoAdjustments()
    options.makeDummiesQueries = options.adjustDegree = True
    options.adjustDegreeFlags = chem.AdjustQueryWhichFlags.ADJUST_IGNOREDUMMIES
    return chem.AdjustQueryProperties(molecule, options)


def _extend(molecule: Any, rng: np.random.Generator, most: int) -> Any:
    """Add 1 to `most` marks at random atoms, unless the molecule has marks."""
    if _marks(molecule):
        return molecule
    chiral = rdkit().ChiralType.CHI_UNSPECIFIED
    free = [
        atom.GetIdx()
        for atom in molecule.GetAtoms()
        if atom.GetTotalNumHs() and atom.GetChiralTag() == chiral
    ]
    if not free:
        raise InputError(
            f"{to_smiles(molecule)!r} cannot be extended: no atom has a hydrogen to replace; "
            f"mark a position with *, or use another fragment"
        )
    editable = rdkit().RWMol(molecule)
    count = int(rng.integers(1, min(most, len(free)) + 1))
    for i in sorted(rng.choice(free, count, replace=False).tolist()):
        atom = editable.GetAtomWithIdx(i)
        if atom.GetNumExplicitHs():
            atom.SetNumExplicitHs(atom.GetNumExplicitHs() - 1)
        mark = editable.AddAtom(rdkit().Atom(0))
        editable.AddBond(i, mark, rdkit().BondType.SINGLE)
    marked = editable.GetMol()
    rdkit().SanitizeMol(marked)
    return marked


def expand_holes(template: str, *seed: int) -> str:
    """Replace each `*{2,8}` by a hole of 2 to 8 tokens, drawn uniformly from the seed.

    Without a seed, holes get their maximum size.
    """
    rng = np.random.default_rng(seed)

    def hole(match: re.Match[str]) -> str:
        low, high = (hole_size(template, digits) for digits in match.groups())
        if low > high:
            raise InputError(
                f"the hole {match[0]} in {template!r} has a minimum above its maximum; write "
                f"*{{{high},{low}}}",
                fields=("template",),
            )
        return f"[{rng.integers(low, high + 1) if seed else high}]"

    return _RANGE.sub(hole, template)


def has_ranges(template: object) -> bool:
    """Whether a template has holes of unknown length."""
    return isinstance(template, str) and _RANGE.search(template) is not None
