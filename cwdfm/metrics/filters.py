"""The filters of MOSES (Polykovskiy et al. 2020), which all molecules of that dataset pass.

A molecule passes if it has no ring of eight or more atoms, no charged atom, no element besides
H, C, N, O, F, S, Cl and Br, and none of the substructures of the medicinal chemistry filters (MCF)
or of PAINS (Baell and Holloway 2010; the patterns are RDKit's).
"""

from functools import cache
from typing import Any

from cwdfm.data.smiles import rdkit

ELEMENTS = frozenset({"H", "C", "N", "O", "F", "S", "Cl", "Br"})
MAX_RING = 7

# SMARTS patterns for molecules with explicit hydrogen atoms, from the MOSES benchmark.
MCF = (
    "[#6]=&!@[#6]-[#6]#[#7]",
    "[#6]=&!@[#6]-[#16](=[#8])=[#8]",
    "[#6]=&!@[#6&!H0]-&!@[#6](=[#8])-&!@[#7]",
    "[H]C([H])([#6])[F,Cl,Br,I]",
    "[#6]1-[#8]-[#6]-1",
    "[#6]-[#7]=[#6]=[#8]",
    "[#6&!H0]=[#8]",
    "[#6](=&!@[#7&!H0])-&!@[#6,#7,#8,#16]",
    "[#6]1-[#7]-[#6]-1",
    "[#6]~&!@[#7]~&!@[#7]~&!@[#6]",
    "[#7]=&!@[#7]",
    "[H][#6]-1=[#6]([H])-[#6]=[#6](-*)-[#8]-1",
    "[H][#6]-1=[#6]([H])-[#6]=[#6](-*)-[#16]-1",
    "[#17,#35,#53]-c(:*):[!#1!#6]:*",
    "[H][#7]([H])-[#6]-1=[#6]-[#6]=[#6]-[#6]=[#6]-1",
    "[#16]~[#16]",
    "[#7]~&!@[#7]~&!@[#7]",
    "[#7]-&!@[#6&!H0&!H1]-&!@[#7]",
    "[#6&!H0](-&!@[#8])-&!@[#8]",
    "[#35].[#35].[#35]",
    "[#17].[#17].[#17].[#17]",
    "[#9].[#9].[#9].[#9].[#9].[#9].[#9]",
)


def passes_filters(molecule: Any) -> bool:
    """Whether an RDKit molecule passes the filters."""
    atoms = list(molecule.GetAtoms())
    if any(atom.GetFormalCharge() or atom.GetSymbol() not in ELEMENTS for atom in atoms):
        return False
    if any(len(ring) > MAX_RING for ring in molecule.GetRingInfo().AtomRings()):
        return False
    mcf, pains = _patterns()
    explicit = rdkit().AddHs(molecule)
    # RDKit's PAINS count the hydrogen atoms of an atom: explicit ones only take longer.
    return not any(map(explicit.HasSubstructMatch, mcf)) and not pains.HasMatch(molecule)


@cache
def _patterns() -> tuple[list[Any], Any]:
    """The MCF patterns and the catalog of PAINS."""
    catalog = rdkit("Chem.FilterCatalog")
    pains = catalog.FilterCatalogParams.FilterCatalogs.PAINS
    smarts = rdkit().MolFromSmarts
    return [smarts(text) for text in MCF], catalog.FilterCatalog(pains)
