"""The tables of a report on molecules, and the text that explains them."""

from collections.abc import Collection, Mapping, Sequence
from statistics import median

from cwdfm.data.properties import PROPERTIES
from cwdfm.data.smiles import canonical, invalid_reason, parse
from cwdfm.report.table import Table, format_estimate

LISTED = 200  # maximum number of samples in a table
_DISTRIBUTION = (
    "The table “Distribution” compares the valid samples with the data by the metrics of MOSES "
    "(Polykovskiy et al. 2020). FCD (Frechet ChemNet distance) and the Wasserstein distances of "
    "logP, SA (synthetic accessibility), QED (drug-likeness) and weight are 0 for equal "
    "distributions. SNN is the mean Tanimoto similarity to the nearest molecule of the data. Frag "
    "and Scaf are the cosine similarities of the counts of BRICS fragments and of Murcko "
    "scaffolds. IntDiv is one minus the mean similarity of two samples. Unique@k and novelty are "
    "fractions of distinct molecules. Filters is the fraction without problematic substructures.",
    "Test is the held-out part of the data, or all of the data if none is held out. TestSF, a test "
    "set of MOSES, has molecules whose scaffolds occur neither in its training set nor in Test. ± "
    "is one standard deviation over bootstrap replicates of the samples. FCD has a bias that "
    "decreases with the number of samples: compare only sets of equal size.",
)


def molecule_table(texts: Sequence[str], training: Collection[str] | None = None) -> Table:
    """One row per sample, in order, for at most `LISTED` samples.

    A valid sample is listed as "novel" or "known" if there is a training set, and as "valid"
    otherwise, or as a repetition of an earlier sample.
    """
    first: dict[str, int] = {}
    rows = []
    for number, text in enumerate(texts[:LISTED], start=1):
        smiles = canonical(text)
        if smiles is None:
            result = f"invalid: {invalid_reason(text)}"
        elif (before := first.setdefault(smiles, number)) < number:
            result = f"repeats {before}"
        elif training is None:
            result = "valid"
        else:
            result = "known" if smiles in training else "novel"
        rows.append((str(number), text, result))
    return Table(("number", "SMILES", "result"), tuple(rows))


def median_table(sets: Mapping[str, Sequence[str]], properties: Sequence[str]) -> Table:
    """The medians of some `PROPERTIES` over the valid samples, with one row per title in `sets`."""
    rows = []
    for title, texts in sets.items():
        molecules = [molecule for molecule in map(parse, texts) if molecule is not None]
        values = [median(map(PROPERTIES[name], molecules)) for name in properties if molecules]
        cells = [f"{value:.3g}" for value in values] or ["-"] * len(properties)
        rows.append((title, *cells))
    return Table(("median", *properties), tuple(rows))


def distribution_table(
    sets: Sequence[tuple[str, Mapping[str, tuple[float, float | None]]]],
) -> Table | None:
    """One row per metric and one column per sample set; `sets` are pairs of title and scores."""
    names = dict.fromkeys(name for _, scores in sets for name in scores)
    rows = [(n, *(format_estimate(*scores.get(n, (None,))) for _, scores in sets)) for n in names]
    return Table(("metric", *(title for title, _ in sets)), tuple(rows)) if sets else None


def explanation(known: tuple[int, str] | None, *, distribution: bool) -> tuple[str, ...]:
    """Explain the tables. `known`: the number of training molecules and the name of the data."""
    novel = known and (
        f" Novel counts the unique molecules that are not among the {known[0]:,} "
        f"training molecules of {known[1]}."
    )
    return (
        f"Each sample is a SMILES string. Valid counts the samples that RDKit parses completely, "
        f"with no atom exceeding its valence. Unique counts the distinct molecules among the "
        f"valid samples.{novel or ''} Higher is better, but only for all three together: a model "
        f"that copies its training data is valid but not novel.",
        "The column “folds” shows how samples are counted: “2 of 1,024” is the mean over two folds "
        "of 1,024 samples. ± is one standard deviation of the count in a fold: over the folds, or, "
        "for a single fold, the binomial estimate sqrt(p(1-p)n).",
        *(_DISTRIBUTION if distribution else ()),
    )
