"""Reference molecules for evaluation: a complete dataset, including rows too long for a model."""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cwdfm.cache import cache_path, cached, content_digest
from cwdfm.data.dataset import SEED, CacheMode, Split, TokenData, damaged
from cwdfm.data.loader import DATASETS, find_molecules, load, reads_text
from cwdfm.data.molecules import Molecules
from cwdfm.data.randomized import is_randomized
from cwdfm.data.readers import readable, reported
from cwdfm.data.smiles import CanonicalSet, SmilesTokenizer, canonical
from cwdfm.errors import InputError
from cwdfm.files import write_json
from cwdfm.provenance import package_version


@dataclass(frozen=True)
class ReferenceMolecules:
    """A training set as canonical SMILES, for novelty, and held-out molecules for statistics."""

    name: str
    training: list[str]  # distinct, in random order
    held_out: list[str]  # in random order; empty if none are held out
    report: dict[str, int]  # counts of rows
    source: dict[str, Any]  # identifies the data
    fingerprint: str

    @cached_property
    def known(self) -> CanonicalSet:
        """The training set, for membership tests."""
        return CanonicalSet(self.training)

    @property
    def about(self) -> dict[str, Any]:
        """The provenance of the molecules, as stored with scores."""
        origin = {"source": self.source, "fingerprint": self.fingerprint}
        return {"name": self.name, "rows": self.report, **origin}

    def compared(self, limit: int) -> list[str]:
        """At most `limit` held-out molecules, or training molecules if none are held out."""
        return (self.held_out or self.training)[:limit]


def load_reference(
    name: str,
    *,
    column: str | None = None,
    cache: CacheMode = True,
    progress: Callable[[int], object] | None = None,
) -> ReferenceMolecules:
    """Load all molecules of a named dataset, a user's file, or a prepared `.npz`.

    Missing molecules would overstate novelty, so none are dropped for their length or tokens. For
    named datasets and prepared data, `training` is the training split. For a user's file it is the
    whole file, since the split depends on the options of the training run.

    Raises:
        InputError: the data does not contain molecules, or preparation dropped some of them.
    """
    if reads_text(name, None):
        raise InputError(
            f"{name!r} is text, not molecules; pass molecules, or data='none' to skip novelty and "
            f"histograms",
            fields=("data",),
        )
    if name in DATASETS or Path(name).suffix == ".npz":
        return _of_prepared(name, load(name, column=column, cache=cache, progress=progress))
    return _of_rows(find_molecules(name, column), cache, progress)


def _of_prepared(name: str, data: TokenData) -> ReferenceMolecules:
    dropped = {reason: data.report.get(reason, 0) for reason in ("too_long", "unknown_tokens")}
    if any(dropped.values()):
        counts = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items() if count)
        whole = f"pass the source {data.source.get('file', data.name)!r} as data"
        if "standardize" in data.source:  # the source still has salts, charges, ...
            whole = "pass data prepared by the same rules without a tokenizer"
        raise InputError(
            f"{name} does not contain all molecules of its source ({counts} of "
            f"{data.report['read']:,}), so samples equal to the missing ones would count as "
            f"novel; {whole}, prepare it again with a larger length, or skip novelty with "
            f"data='none'",
            fields=("data",),
        )
    splits = canonical_texts(data, "train"), canonical_texts(data, "valid")
    return ReferenceMolecules(data.name, *splits, data.report, data.source, data.fingerprint)


def canonical_texts(data: TokenData, split: Split) -> list[str]:
    """The distinct molecules of a split, as canonical SMILES of the installed RDKit version."""
    texts = data.texts(split)
    was_canonical = isinstance(data.tokenizer, SmilesTokenizer) and not is_randomized(data)
    if was_canonical and data.source.get("rdkit") == package_version("rdkit"):
        return texts
    return list(dict.fromkeys(filter(None, map(canonical, texts))))


def _of_rows(
    dataset: Molecules, cache: CacheMode, progress: Callable[[int], object] | None
) -> ReferenceMolecules:
    source = {**dataset.origin(), "rdkit": package_version("rdkit")}

    def make() -> ReferenceMolecules:
        counts, molecules = Counter[str](), dict[str, None]()
        for row in reported(dataset.rows(None), progress):
            counts["read"] += 1
            smiles = canonical(row.smiles) if row.smiles.strip() else None
            if smiles is None:
                counts["unparsable" if row.smiles.strip() else "blank"] += 1
            else:
                counts["duplicate"] += smiles in molecules
                molecules[smiles] = None
        if not molecules:
            raise InputError(
                f"{dataset.name} contains no valid molecule ({counts['read']:,} rows were read, "
                f"{counts['blank']:,} of them blank); check the file, and for a table also column=",
                fields=("column",),
            )
        names = ("read", "blank", "unparsable", "duplicate")
        report = {name: counts[name] for name in names} | {"kept": len(molecules)}
        training = list(molecules)
        random.Random(SEED).shuffle(training)
        digest = content_digest(training)
        return ReferenceMolecules(dataset.name, training, [], report, source, digest)

    if not cache:
        return make()
    path = cache_path(dataset.name, {"reference": source}, ".json")
    if cache == "read" and not path.exists():
        return make()
    return cached(
        path, make, read=_read, write=lambda result, path: write_json(path, asdict(result))
    )


def _read(path: Path) -> ReferenceMolecules:
    with readable(path):
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        reference = ReferenceMolecules(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise damaged(path, str(error)) from error
    if content_digest(reference.training) != reference.fingerprint:
        raise damaged(path, "wrong checksum")
    return reference
