"""Ways to decode the samples of the paper's own setting on QM9, and their counts.

    python -m experiments.studies.qm9_endings --cells DIR --out qm9_endings.json

DIR holds the cells of `python -m experiments run headline --scale small`, samples included. A
sequence is `<bos> molecule <eos> <pad> ...`, which we decode up to the first end token. Others may
ignore end tokens, or reject sequences of another form.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from cwdfm import data
from cwdfm.data.smiles import SmilesTokenizer
from cwdfm.errors import InputError
from cwdfm.files import write_json
from cwdfm.metrics.molecule import CanonicalSet
from cwdfm.provenance import provenance
from cwdfm.sample_file import read_samples
from experiments.catalog.headline import entries
from experiments.store import Store
from experiments.studies.qm9_search import counts

Reading = Callable[[SmilesTokenizer, list[int]], str]


def on(tokenizer: SmilesTokenizer, ids: list[int]) -> str:
    """Decode the whole sequence without its end tokens."""
    return tokenizer.decode(i for i in ids if i != tokenizer.eos_id)


def framed(tokenizer: SmilesTokenizer, ids: list[int]) -> str:
    """The molecule if the sequence has the form of the training data, otherwise nothing."""
    inner = ids[1 : ids.index(tokenizer.eos_id)] if tokenizer.eos_id in ids[1:] else []
    plain = not {tokenizer.bos_id, tokenizer.pad_id} & set(inner)
    return tokenizer.decode(ids) if plain and ids == tokenizer.pack(inner, len(ids)) else ""


READINGS: dict[str, Reading] = {
    "up to the first end token": lambda tokenizer, ids: tokenizer.decode(ids),
    "end tokens ignored": on,
    "only sequences of the training form": framed,
}


def rows(store: Store) -> Iterator[dict[str, object]]:
    """Counts for each training, solver and decoding, at the largest number of steps."""
    tokens = data.load("qm9")
    training, tokenizer = CanonicalSet(tokens.texts("train")), tokens.tokenizer
    assert isinstance(tokenizer, SmilesTokenizer)
    found = entries("small")
    most = max(entry.x for entry in found)
    for entry in found:
        job = entry.cell.sample()
        path = store.folder(job) / "samples.jsonl"
        if entry.x < most or not path.exists():
            continue
        drawn = read_samples(path).tokens
        assert drawn is not None
        for name, reading in READINGS.items():
            texts = [reading(tokenizer, ids) for ids in drawn]
            yield {
                "labels": entry.labels,
                "job": job.name,
                "reading": name,
                "empty": texts.count("") / len(texts),
                **counts(texts, training),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare ways to decode sequences.")
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = list(rows(Store(options.cells)))
    if not found:
        raise InputError(
            f"no samples in {options.cells}; give the cells of `python -m experiments run headline`"
        )
    for row in found:
        print(*row.values())
    write_json(options.out, provenance() | {"config": {}, "rows": found})


if __name__ == "__main__":
    main()
