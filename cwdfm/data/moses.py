"""MOSES: drug-like molecules from ZINC with a fixed split (Polykovskiy et al. 2020).

1,584,663 training and 176,074 held-out molecules, all distinct, with at most 54 tokens each and a
vocabulary of 23 tokens. Only the data files of the package `molsets` are used, so its dependencies
are not required.
"""

from cwdfm.data.molecules import PackagedMolecules

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
    files=(("dataset/data/train.csv.gz", "train"), ("dataset/data/test.csv.gz", "valid")),
)
