"""Standardize molecules before tokenization: salts, charges, isotopes, stereochemistry."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cwdfm.data.smiles import canonical, parse, rdkit, to_smiles
from cwdfm.errors import check_choice

MIXTURE = "mixture"  # the reason in the report for dropping rows with several components


@dataclass(frozen=True)
class Standardize:
    """Rules for salts and mixtures, charges, isotopes and stereochemistry, applied in this order.

    The default rules change nothing.
    """

    # For rows with several molecules (salts, solvates, mixtures): keep all, keep only the largest
    # (organic before inorganic, then by atoms and weight), or drop the row.
    components: Literal["keep", "largest", "drop"] = "keep"
    # Neutralize by adding or removing protons where possible. Nitro groups, quaternary ammonium and
    # zwitterions without protons keep their charges.
    charges: Literal["keep", "neutralize"] = "keep"
    isotopes: Literal["keep", "remove"] = "keep"  # isotope labels such as [13C] and [2H]
    stereo: Literal["keep", "remove"] = "keep"  # stereochemistry of centers and double bonds

    def __post_init__(self) -> None:
        check_choice("components", self.components, ("keep", "largest", "drop"))
        check_choice("charges", self.charges, ("keep", "neutralize"))
        check_choice("isotopes", self.isotopes, ("keep", "remove"))
        check_choice("stereo", self.stereo, ("keep", "remove"))

    def to_json(self) -> dict[str, str]:
        """The rules other than "keep", as stored in the source of prepared data."""
        return {name: rule for name, rule in asdict(self).items() if rule != "keep"}

    def __call__(self, smiles: str, changed: Counter[str]) -> str:
        """Apply the rules to a canonical SMILES; returns "" for a mixture to drop.

        changed: counts, for each rule, the molecules that it changed.
        """
        for name, rule in self.to_json().items():
            if rule == "drop":
                if "." in smiles:
                    return ""
                continue
            new = canonical(to_smiles(_RULES[name](parse(smiles)))) or smiles
            changed[name] += new != smiles
            smiles = new
        return smiles


KEEP = Standardize()


def _largest(molecule: Any) -> Any:
    standardizer = rdkit("Chem.MolStandardize.rdMolStandardize")
    parameters = standardizer.CleanupParameters()
    parameters.preferOrganic = True
    return standardizer.LargestFragmentChooser(parameters).choose(molecule)


def _uncharged(molecule: Any) -> Any:
    return rdkit("Chem.MolStandardize.rdMolStandardize").Uncharger().uncharge(molecule)


def _without_isotopes(molecule: Any) -> Any:
    for atom in molecule.GetAtoms():
        atom.SetIsotope(0)
    return rdkit().RemoveHs(molecule)


def _without_stereo(molecule: Any) -> Any:
    rdkit().RemoveStereochemistry(molecule)
    return molecule


_RULES = {
    "components": _largest,
    "charges": _uncharged,
    "isotopes": _without_isotopes,
    "stereo": _without_stereo,
}
