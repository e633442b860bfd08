"""SMILES strings for tests."""

# Strings that are not SMILES, by the reason.
INVALID_SMILES = {
    "empty": "",
    "blanks": "  \n",
    "open-ring": "C1CC",
    "five-bonds-on-carbon": "C(C)(C)(C)(C)C",
    "three-bonds-on-oxygen": "CO(C)C",
    "open-bracket": "C(C",
    "unknown-element": "[Xx]",
    "no-kekule-form": "n1cccc1",
    "words-after-it": "CC nonsense",
    "two-molecules": "CC\tCO",
    "special-token": "CC<pad>",
    "not-ascii": "日本",
    "nul": "C\0C",
    "overflows-the-stack-of-rdkit": "C" * 20_000,
}
