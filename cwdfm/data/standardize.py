"""Standardization of molecules before they are tokenized. By default, nothing changes."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cwdfm.data.smiles import canonical, parse
from cwdfm.errors import check_choice, load_extra

MIXTURE = "mixture"  # the reason for which rows with several components are left out


@dataclass(frozen=True)
class Standardize:
    """Rules for salts, mixtures, charges, isotopes and stereochemistry, applied in this order."""

    # Rows with several molecules, such as salts, solvates and mixtures: keep all, keep the largest
    # (organic before inorganic, then by atoms and weight), or leave the row out.
    components: Literal["keep", "largest", "drop"] = "keep"
    # Add or remove protons until the molecule is neutral, where possible. Charges of nitro groups,
    # quaternary ammonium and zwitterions without protons remain.
    charges: Literal["keep", "neutralize"] = "keep"
    isotopes: Literal["keep", "remove"] = "keep"  # mass numbers such as [13C] and [2H]
    stereo: Literal["keep", "remove"] = "keep"  # of centers and double bonds

    def __post_init__(self) -> None:
        check_choice("components", self.components, ("keep", "largest", "drop"))
        check_choice("charges", self.charges, ("keep", "neutralize"))
        check_choice("isotopes", self.isotopes, ("keep", "remove"))
        check_choice("stereo", self.stereo, ("keep", "remove"))

    def to_json(self) -> dict[str, str]:
        """The rules that are not the default; part of the source of prepared data."""
        return {name: rule for name, rule in asdict(self).items() if rule != "keep"}

    def __call__(self, smiles: str, changed: Counter[str]) -> str:
        """Apply the rules to a canonical SMILES; "" for a mixture to be left out.

        changed: counts the rules that changed the molecule.
        """
        for name, rule in self.to_json().items():
            if rule == "drop":
                if "." in smiles:
                    return ""
                continue
            new = canonical(_smiles(_RULES[name](parse(smiles)))) or smiles
            changed[name] += new != smiles
            smiles = new
        return smiles


KEEP = Standardize()


def _smiles(molecule: Any) -> str:
    return str(load_extra("rdkit.Chem", "molecules").MolToSmiles(molecule))


def _standardizer() -> Any:
    return load_extra("rdkit.Chem.MolStandardize.rdMolStandardize", "molecules")


def _largest(molecule: Any) -> Any:
    parameters = _standardizer().CleanupParameters()
    parameters.preferOrganic = True
    return _standardizer().LargestFragmentChooser(parameters).choose(molecule)


def _without_isotopes(molecule: Any) -> Any:
    for atom in molecule.GetAtoms():
        atom.SetIsotope(0)
    return load_extra("rdkit.Chem", "molecules").RemoveHs(molecule)


def _without_stereo(molecule: Any) -> Any:
    load_extra("rdkit.Chem", "molecules").RemoveStereochemistry(molecule)
    return molecule


_RULES = {
    "components": _largest,
    "charges": lambda molecule: _standardizer().Uncharger().uncharge(molecule),
    "isotopes": _without_isotopes,
    "stereo": _without_stereo,
}
