"""The distribution metrics of molecules, against MOSES' own implementation and closed forms."""

import importlib.util
import pickle
import sys
import types
import warnings
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cwdfm.data.moses import MOSES, _ArrayUnpickler, published_statistics
from cwdfm.data.properties import map_molecules
from cwdfm.data.readers import read_column
from cwdfm.data.reference import ReferenceMolecules
from cwdfm.data.smiles import parse
from cwdfm.errors import InputError
from cwdfm.metrics.chemnet import Moments
from cwdfm.metrics.descriptors import Bags, Descriptors
from cwdfm.metrics.distribution import DistributionScores, distribution_scores
from cwdfm.metrics.filters import passes_filters
from cwdfm.metrics.reference_statistics import ReferenceStatistics, reference_statistics
from cwdfm.metrics.tanimoto import pack_bits, similarities
from tests.support.cases import slow

pytest.importorskip("rdkit", reason="needs the extra 'molecules'")
pytest.importorskip("fcd_torch", reason="needs the extra 'molecules'")
needs_moses = pytest.mark.skipif(not importlib.util.find_spec("moses"), reason="needs molsets")

# Two rings of different elements, a charge, a PAINS, three MCF, a macrocycle, a metal, no ring.
FILTERED = {
    "CC(=O)Nc1ccc(O)cc1": True,
    "C[N+](C)(C)CCO": False,
    "O=C1C=CC(=O)C=C1": False,
    "O=C1NC(=S)SC1=Cc1ccccc1": False,
    "C1CO1": False,
    "CC=O": False,
    "CSSC": False,
    "C1CCCCCCCC1": False,
    "C[Si](C)(C)C": False,
    "CCOC(=O)c1ccccc1": True,
    "c1ccc2[nH]ccc2c1": True,
    "NN=Nc1ccccc1": False,
    # PAINS that depend on hydrogen atoms, and the same without these.
    "Oc1ccccc1O": False,
    "COc1ccccc1OC": True,
    "CN(C)Cc1ccccc1O": False,
    "CN(C)Cc1ccccc1OC": True,
    "Cc1ccc(N(C)C)cc1": False,
}


@pytest.fixture(scope="module")
def moses() -> Iterator[Any]:
    """MOSES' module of metrics. It was written for old versions of pandas and RDKit."""
    pandas = import_module("pandas")
    spec = importlib.util.find_spec("moses")
    assert spec is not None
    package, six = types.ModuleType("moses"), types.ModuleType("rdkit.six")
    package.__spec__ = spec
    package.__path__ = list(spec.submodule_search_locations or ())  # without its models
    vars(six)["iteritems"] = lambda counts: iter(counts.items())
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setitem(sys.modules, "moses", package)
        patch.setitem(sys.modules, "rdkit.six", six)
        patch.setattr(
            pandas.DataFrame,
            "append",
            lambda self, other, sort: pandas.concat([self, other], sort=sort),
            raising=False,
        )
        yield import_module("moses.metrics.metrics")
    for name in [name for name in sys.modules if name.split(".")[0] == "moses"]:
        del sys.modules[name]


def rows(file: str, start: int, stop: int) -> list[str]:
    path = MOSES.path(f"dataset/data/{file}.csv.gz")
    return [smiles for _, smiles in islice(read_column(path, MOSES.column), start, stop)]


def statistics(smiles: list[str]) -> ReferenceStatistics:
    return ReferenceStatistics.of(smiles)


@needs_moses
def test_equal_to_moses(moses: Any) -> None:
    """All metrics, for samples with duplicates, invalid strings and non-canonical SMILES."""
    test, scaffolds = rows("test", 0, 60), rows("test_scaffolds", 0, 60)
    train = rows("train", 0, 10)
    gen = [*rows("test_scaffolds", 50, 80), *train[:3], "CC(", "OCC", "CCO", "CC[N+](C)(C)C"]
    found = distribution_scores(
        gen, {"Test": statistics(test), "TestSF": statistics(scaffolds)}, set(train)
    ).scores
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = moses.get_all_metrics(
            gen, k=[10], test=test, test_scaffolds=scaffolds, train=train, batch_size=64
        )
    names = {"Filters": "filters", "Novelty": "novelty"}
    names |= {name: f"{name}/Test" for name in ("logP", "QED", "weight")}
    compared = {names.get(name, name): value for name, value in theirs.items()}
    for other in ("unique@10", "SA"):  # the definition of SA has changed
        del compared[other]
    assert found.keys() >= compared.keys()
    for name, value in compared.items():
        assert found[name][0] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert found["FCD/Test"][0] != pytest.approx(found["FCD/TestSF"][0], rel=1e-3)


@needs_moses
def test_filters_are_those_of_moses(moses: Any) -> None:
    for smiles, passes in FILTERED.items():
        assert passes_filters(parse(smiles)) == passes == moses.mol_passes_filters(smiles), smiles


@needs_moses
def test_published_statistics_equal_our_own() -> None:
    """For some molecules of TestSF, this version of RDKit computes what MOSES published."""
    published, smiles = published_statistics("TestSF"), rows("test_scaffolds", 0, 40)
    own = Descriptors.of(smiles, filters=False)
    assert (pack_bits(published["SNN"]["fps"][:40]) == own.fingerprints).all()
    for name in ("logP", "QED", "weight"):
        assert published[name]["values"][:40] == pytest.approx(own.properties[name].tolist())
    assert set(own.fragments.names) <= published["Frag"]["frag"].keys()
    assert set(own.scaffolds.names) <= published["Scaf"]["scaf"].keys()
    assert published["FCD"]["sigma"].shape == (512, 512)


def test_only_arrays_are_unpickled(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    (tmp_path / "a").write_bytes(pickle.dumps(Evil()))
    with (tmp_path / "a").open("rb") as file, pytest.raises(pickle.UnpicklingError):
        _ArrayUnpickler(file).load()
    assert not (tmp_path / "ran").exists()


def test_frechet_distance() -> None:
    """Closed form for diagonal covariances, and fcd_torch's distance for others."""
    a = Moments(np.array([1.0, 2.0]), np.diag([4.0, 9.0]))
    b = Moments(np.array([0.0, 4.0]), np.diag([1.0, 16.0]))
    assert a.distance(b) == pytest.approx(1 + 4 + (2 - 1) ** 2 + (3 - 4) ** 2)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 6)) @ rng.normal(size=(6, 6)), rng.normal(size=(30, 6)) + 1
    a, b = Moments.of(x), Moments.of(y)
    distance = import_module("fcd_torch.utils").calculate_frechet_distance
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses a deprecated option of scipy
        theirs = distance(a.mean, a.covariance, b.mean, b.covariance)
    assert a.distance(b) == pytest.approx(theirs)
    assert a.distance(a) == pytest.approx(0, abs=1e-9)
    repeated = Moments.of(x, np.array([2, 3] + [1] * 38))
    direct = Moments.of(np.concatenate([x, x[:2], x[1:2]]))
    assert repeated.distance(direct) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("threads", [3, slow(1)])
def test_tanimoto_similarities(threads: int) -> None:
    """Against sets of bits, in several blocks; an empty fingerprint equals itself."""
    rng = np.random.default_rng(1)
    a, b = ((rng.random((n, 128)) < 0.2).astype(np.uint8) for n in (150, 1100))
    a[3] = b[5] = 0
    sets_a, sets_b = ([set(np.flatnonzero(row)) for row in x] for x in (a, b))
    exact = np.array([[len(p & q) / len(p | q) if p | q else 1.0 for q in sets_b] for p in sets_a])
    largest, mean, square = similarities(pack_bits(a), pack_bits(b), threads)
    np.testing.assert_allclose(largest, exact.max(1))
    np.testing.assert_allclose(mean, exact.mean(1))
    np.testing.assert_allclose(square, np.sqrt((exact**2).mean(1)))


DATA = [f"{end}{'C' * i}c1ccccc1" for i in range(12) for end in ("O", "N", "F")]  # canonical


@pytest.fixture(scope="module")
def reference() -> dict[str, ReferenceStatistics]:
    return {"Test": statistics(DATA)}


@pytest.fixture(scope="module")
def scores(reference: dict[str, ReferenceStatistics]) -> DistributionScores:
    return distribution_scores(DATA, reference, set(DATA))


def test_the_data_have_the_distribution_of_the_data(scores: DistributionScores) -> None:
    found = {name: value for name, (value, _) in scores.scores.items()}
    assert found["FCD/Test"] == pytest.approx(0, abs=1e-3)
    for name in ("SNN/Test", "Frag/Test", "valid"):
        assert found[name] == pytest.approx(1), name
    for name in ("logP/Test", "SA/Test", "QED/Test", "weight/Test", "novelty"):
        assert found[name] == pytest.approx(0, abs=1e-9), name
    assert "unique@1k" not in found  # there are fewer samples
    assert "Scaf/Test" not in found  # one ring is no scaffold


def test_standard_deviations(scores: DistributionScores) -> None:
    """That of a mean is close to the standard error; of IntDiv, to a bootstrap of all pairs.

    20 replicates estimate a standard deviation to about 16%; the seed is fixed.
    """
    found = Descriptors.of(DATA)
    passed, error = scores.scores["filters"]
    exact = (passed * (1 - passed) / len(DATA)) ** 0.5
    assert error == pytest.approx(exact, rel=0.5)
    pairs = np.array([similarities(found.fingerprints, row[None])[1] for row in found.fingerprints])
    rng = np.random.default_rng(0)
    n = len(DATA)
    drawn = [1 - pairs[np.ix_(i, i)].mean() for i in rng.integers(0, n, (2000, n))]
    value, error = scores.scores["IntDiv"]
    assert value == pytest.approx(1 - pairs.mean())
    assert error == pytest.approx(np.std(drawn), rel=0.5)


def test_no_valid_molecule(reference: dict[str, ReferenceStatistics]) -> None:
    found = distribution_scores(["C(", "x"], reference)
    assert found.scores == {"valid": (0.0, 0.0)}
    assert found.to_json()["properties"] == {}
    one = distribution_scores(["CCO", "x"], reference, set()).scores
    assert one["novelty"] == (1.0, 0.0)
    assert "FCD/Test" not in one  # one molecule has no covariance


def test_statistics_are_cached(
    reference: dict[str, ReferenceStatistics], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a key that depends on the molecules; a damaged entry is computed again."""
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path))
    calls: list[int] = []

    def of(smiles: list[str], *_: object) -> ReferenceStatistics:
        calls.append(len(smiles))
        return reference["Test"]

    monkeypatch.setattr(ReferenceStatistics, "of", of)
    molecules = ReferenceMolecules("mine", ["C"], DATA, {}, {}, "")
    first = reference_statistics(molecules)["Test"]
    again = reference_statistics(molecules)["Test"]
    assert calls == [len(DATA)]
    assert first.moments.distance(again.moments) == pytest.approx(0, abs=1e-4)
    assert (again.fingerprints == first.fingerprints).all()
    assert (again.fragments, again.scaffolds) == (first.fragments, first.scaffolds)
    assert again.properties["QED"].tolist() == first.properties["QED"].tolist()
    (path,) = tmp_path.glob("*.npz")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="damaged"):
        ReferenceStatistics.load(path)
    with pytest.warns(RuntimeWarning, match="damaged"):
        reference_statistics(molecules)
    reference_statistics(ReferenceMolecules("mine", ["C"], DATA[:20], {}, {}, ""))
    reference_statistics(ReferenceMolecules("mine", DATA[:5], [], {}, {}, ""))
    assert calls == [len(DATA), len(DATA), 20, 5]


def test_invalid_molecules_have_no_distribution() -> None:
    with pytest.raises(InputError, match="1 among 3"):
        ReferenceStatistics.of(["C(", "CCO", "x"])


def test_processes_give_the_same_result_in_order() -> None:
    texts = [f"{'C' * (i % 5 + 1)}{i % 7}" for i in range(600)]
    done: list[int] = []
    assert list(map_molecules(len, texts, 2, done.append)) == [len(text) for text in texts]
    assert done[-1] == 600


def test_counts_of_names() -> None:
    bags = Bags.of([["a", "b", "a"], [], ["b"]])
    assert dict(zip(bags.names, bags.counts(np.array([1, 5, 2])), strict=True)) == {"a": 2, "b": 3}
