"""MOSES: drug-like molecules of ZINC, with a split of its own, by Polykovskiy et al. (2020).

1,584,663 molecules to train on and 176,074 held out, all distinct; 54 tokens at most, of 23 kinds,
the vocabulary. Of the package `molsets` only the data are used; its dependencies are not
needed.
"""

from cwdfm.data.packaged import PackagedMolecules

# fmt: off
TOKENS = (
    "#", "(", ")", "-", "1", "2", "3", "4", "5", "6", "=",
    "Br", "C", "Cl", "F", "N", "O", "S", "[nH]", "c", "n", "o", "s",
)
# fmt: on

MOSES = PackagedMolecules(
    name="moses",
    length=64,
    tokens=TOKENS,
    package="molsets",
    module="moses",
    install="pip install 'cwdfm[molecules]' && pip install --no-deps molsets",
    column="SMILES",
    files=(("dataset/data/train.csv.gz", "train"), ("dataset/data/test.csv.gz", "valid")),
)
