"""Documents to ids, in parallel, in the order of the corpus."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.queues import Queue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.dataset import Split, token_dtype
from cwdfm.data.text.corpus import Document, Interrupted
from cwdfm.data.text.detokenize import DETOKENIZERS
from cwdfm.data.text.tokenizer import TextTokenizer

_PIECE = 1 << 16  # characters of a long document that are encoded as one text
_AT_ONCE = 1 << 20  # characters in one call of the tokenizer: they take much more room as tokens
_BATCH = 1 << 20  # characters that a worker is given, or
_DOCUMENTS = 1 << 12  # documents

_GUARD = (
    "in a script of your own, call this under `if __name__ == '__main__':`, since workers import "
    "the script again"
)

Batch = list[tuple[Split, Document]]


@dataclass(frozen=True)
class Encoded:
    """The ids of a batch of documents, each with an end token, joined for each split."""

    ids: dict[Split, NDArray[Any]]
    read: int
    blank: int


@dataclass(frozen=True)
class Encoder:
    """What a worker does with a batch."""

    tokenizer: TextTokenizer
    detokenizer: str | None

    def __call__(self, batch: Batch) -> Encoded:
        dtype = token_dtype(self.tokenizer.vocab_size)
        found: dict[Split, list[NDArray[Any]]] = {"train": [], "valid": []}
        end = np.array([self.tokenizer.eos_id], dtype=dtype)
        clean = DETOKENIZERS[self.detokenizer] if self.detokenizer else str
        blank = 0
        pending: list[tuple[Split, str, bool]] = []  # split, piece, whether it ends a document
        size = 0

        def flush() -> None:
            arrays = self.tokenizer.arrays([piece for _, piece, _ in pending])
            for (split, _, last), ids in zip(pending, arrays, strict=True):
                found[split] += [ids.astype(dtype), end] if last else [ids.astype(dtype)]
            pending.clear()

        for split, document in batch:
            text = clean(document.text)
            if not text.strip():
                blank += 1
                continue
            done = 0
            for piece in self.tokenizer.pieces(text, _PIECE):
                done += len(piece)
                size += len(piece)
                pending.append((split, piece, done == len(text)))
                if size >= _AT_ONCE:
                    flush()
                    size = 0
        flush()
        ids = {s: np.concatenate([np.empty(0, dtype), *parts]) for s, parts in found.items()}
        return Encoded(ids, read=len(batch), blank=blank)


def batches(documents: Iterable[tuple[Split, Document]]) -> Iterator[Batch]:
    """Documents in batches of about as many characters each."""
    batch: Batch = []
    size = 0
    for item in documents:
        batch.append(item)
        size += len(item[1].text)
        if size >= _BATCH or len(batch) >= _DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def check_guard() -> None:
    """Refuse to start workers from a worker that imports a script; it would wait for its parent."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise Interrupted(_GUARD)


def encode(found: Iterable[Batch], encoder: Encoder, workers: int) -> Iterator[Encoded]:
    """The batches encoded, in order; a few at a time are under way, so memory stays flat.

    workers: processes; with 1 there is none beside this one (the `tokenizers` library still uses
    all cores by threads of its own).
    """
    if workers == 1:
        yield from map(encoder, found)
        return
    context = multiprocessing.get_context("spawn")  # fork is unsafe beside torch's threads
    # Not as an argument of `_start`: a tokenizer is larger than the pipe that takes those, and a
    # worker that dies before it has read them would be waited for without end.
    handed: Queue[Encoder] = context.Queue()
    handed.cancel_join_thread()
    for _ in range(workers):
        handed.put(encoder)
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(handed,))
    waiting: deque[Future[Encoded]] = deque()
    try:
        for batch in found:
            waiting.append(pool.submit(_work, batch))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise Interrupted(
            f"a worker process died; {_GUARD}; else there may be too little memory: use fewer "
            f"workers, or workers=1"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_encoder: Encoder | None = None  # of a worker process


def _start(handed: "Queue[Encoder]") -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _encoder = handed.get()


def _leave_with_parent() -> None:
    """End this process when the one that started it was killed: nobody else would."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(batch: Batch) -> Encoded:
    assert _encoder is not None
    return _encoder(batch)
