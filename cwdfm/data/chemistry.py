"""Molecules from SMILES strings, by RDKit: one rule of what is valid, for data and for metrics."""

from typing import Any

from cwdfm.errors import InputError, describe, load_extra


def parse(text: str) -> Any:
    """RDKit's molecule for a SMILES string; None where it is no molecule, or an empty one.

    RDKit takes what follows a blank for the molecule's name and would let "CC nonsense" pass; here
    the whole string counts, blanks around it aside.
    """
    if not isinstance(text, str):
        raise InputError(f"a SMILES must be a string, got {describe(text)}")
    chem, base = load_extra("rdkit.Chem", "molecules"), load_extra("rdkit.rdBase", "molecules")
    words = text.split()
    if len(words) != 1:
        return None
    with base.BlockLogs():  # RDKit reports every bad string on stderr
        molecule = chem.MolFromSmiles(words[0])
    return molecule if molecule is not None and molecule.GetNumAtoms() else None


def canonical(text: str) -> str | None:
    """The canonical SMILES, stereochemistry included; None if the text is no valid molecule."""
    molecule = parse(text)
    if molecule is None:
        return None
    return str(load_extra("rdkit.Chem", "molecules").MolToSmiles(molecule))


def spellings(text: str, n: int, *, seed: int) -> list[str]:
    """`n` SMILES of a valid molecule, each drawn at random. The seed is positive, as RDKit's is."""
    molecule = parse(text)
    if molecule is None:
        raise InputError(f"{text!r} is no valid molecule; spellings are those of molecules")
    chem = load_extra("rdkit.Chem", "molecules")
    return [str(each) for each in chem.MolToRandomSmilesVect(molecule, n, randomSeed=seed)]
