"""Preparing a corpus: once, whole or not at all, and by one process at a time."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cwdfm.data.dataset import TokenData
from cwdfm.data.text.characters import CharacterTokenizer
from cwdfm.data.text.corpus import Corpus, Interrupted
from cwdfm.data.text.encode import check_guard
from cwdfm.data.text.find import find_tokenizer
from cwdfm.data.text.pack import Packing
from cwdfm.data.text.prepared import is_prepared, open_prepared, read_meta
from cwdfm.data.text.tokenizer import TextTokenizer
from cwdfm.errors import MAX_LENGTH, InputError, check_choice, check_integer
from cwdfm.files import check_writable, locked, write_advice

SEED = 42
# Raise it whenever the same documents would be prepared differently: caches are keyed by it.
PREPARATION = 1
MOST_WORKERS = 4096  # beyond the cores of any machine; each is told of its work beforehand


def prepare(
    corpus: Corpus,
    tokenizer: TextTokenizer | str,
    length: int,
    out: str | Path,
    *,
    workers: int = 1,
    part: str | None = None,
    limit: int | None = None,
    seed: int = SEED,
    progress: Callable[[int], object] | None = None,
) -> TokenData:
    """Prepare a corpus into the folder `out`, or open it where that was done.

    tokenizer: or its name, see `find_tokenizer`; "chars" for the characters of the corpus.
    workers: processes that tokenise; a script of your own needs `if __name__ == "__main__":`.
    part: one part of the corpus alone, all of it held out, for evaluation; None for training.
    limit: only the first documents (of each split the corpus brings).
    seed: of the split, and of the order of the held-out windows.
    progress: is told how many documents are done.

    An interrupted call is resumed by the next; until it is whole the work lies in `out`.part.
    """
    check_integer("length", length, 2, MAX_LENGTH)
    check_integer("workers", workers, most=MOST_WORKERS)
    if workers > 1:
        check_guard()
    check_integer("seed", seed, 0)
    if limit is not None:
        check_integer("limit", limit)
    out = Path(out)
    if isinstance(tokenizer, str) and tokenizer != "chars":
        tokenizer = find_tokenizer(tokenizer)
    source = describe(corpus, tokenizer, length, part=part, limit=limit, seed=seed)
    try:
        if (done := _finished(out, source)) is not None:
            return done
        check_writable(out)
        work = out.with_name(out.name + ".part")
        with locked(out):
            work.mkdir(exist_ok=True)
            if (done := _finished(out, source)) is not None:  # by whoever had the lock
                shutil.rmtree(work, ignore_errors=True)
                return done
            try:
                if isinstance(tokenizer, str):
                    tokenizer = CharacterTokenizer.build(corpus.texts(part, limit))
                packing = Packing(corpus, tokenizer, length, work, source)
                rows = packing.run(workers, progress)
            except Interrupted:
                raise
            except InputError:  # nothing of this will be used again
                shutil.rmtree(work, ignore_errors=True)
                raise
            _settle(work, out, rows * packing.row_size)
    except OSError as error:
        raise InputError(
            f"cannot write {out}: {error.strerror or error}; {write_advice(error)} (out=, or "
            f"CWDFM_CACHE for cached data)"
        ) from error
    return open_prepared(out)


def describe(
    corpus: Corpus,
    tokenizer: TextTokenizer | str,
    length: int,
    *,
    part: str | None,
    limit: int | None,
    seed: int,
) -> dict[str, Any]:
    """All that prepared text depends on; caches are keyed by it."""
    if part is not None:
        check_choice("part", part, corpus.part_names)
    return {
        "corpus": corpus.name,
        **corpus.origin(),
        "detokenizer": corpus.detokenizer,
        "tokenizer": tokenizer if isinstance(tokenizer, str) else tokenizer.identity,
        "length": length,
        "packing": "documents with end tokens, joined and cut",
        "part": part,
        "limit": limit,
        "seed": seed,
        "unit": "documents",
        "preparation": PREPARATION,
    }


def _settle(work: Path, out: Path, size: int) -> None:
    """Give finished work its place, with `size` bytes to train on, and without what made it."""
    if out.exists():
        out.rmdir()  # it is empty, or `_finished` would have refused it
    work.rename(out)
    os.truncate(out / "train.bin", size)
    for name in ("valid.stream", "progress.json"):
        (out / name).unlink(missing_ok=True)
    for left in out.glob("*.json.*.part"):  # by a process that was killed
        left.unlink()


def _finished(out: Path, source: dict[str, Any]) -> TokenData | None:
    taken = _taken(out)  # before the question whether it is prepared: others finish meanwhile
    if is_prepared(out):
        if read_meta(out)["source"] == source:
            return open_prepared(out)
        raise InputError(
            f"{out} holds text that was prepared from something else or in another way; choose "
            f"another place or delete it"
        )
    if taken:
        raise InputError(f"{out} exists and holds something else; choose another place")
    return None


def _taken(out: Path) -> bool:
    """Whether something lies there; an empty folder is nothing."""
    try:
        return any(out.iterdir())
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return out.exists()  # it is a file; or one above it is, and nothing can be written there
