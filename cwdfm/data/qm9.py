"""QM9: molecules with up to 9 heavy atoms (C, N, O, F) (Ramakrishnan et al. 2014).

The rows are read from the package `qm9pack` by the dataset's first author: 130,831 rows, 130,744 of
them distinct, with at most 22 tokens each. The vocabulary is fixed, so subsets of the data
(`limit`) share it.
"""

from cwdfm.data.molecules import PackagedMolecules

# fmt: off
TOKENS = (
    "#", "(", ")", "-", "1", "2", "3", "4", "5", "=", "C", "F", "N", "O",
    "[C-]", "[CH-]", "[N+]", "[N-]", "[NH+]", "[NH2+]", "[NH3+]", "[O-]",
    "[c-]", "[cH-]", "[n-]", "[nH+]", "[nH]", "c", "n", "o",
)
# fmt: on

QM9 = PackagedMolecules(
    name="qm9",
    length=32,
    tokens=TOKENS,
    package="qm9pack",
    module="qm9pack",
    install="pip install 'cwdfm[molecules]'",
    files=tuple((f"data/qm9_part{i}.csv", None) for i in (1, 2, 3)),
)
