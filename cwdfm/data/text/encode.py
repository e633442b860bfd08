"""Tokenize documents in parallel, in corpus order."""

import multiprocessing
import os
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.queues import Queue
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.dataset import SPLITS, Split, token_dtype
from cwdfm.data.text.corpus import Document, Interrupted
from cwdfm.data.text.detokenize import DETOKENIZERS
from cwdfm.data.text.tokenizer import TextTokenizer

_PIECE = 1 << 16  # characters; longer documents are encoded in pieces
_CALL = 1 << 20  # characters per call of the tokenizer, which bounds its memory
_BATCH = 1 << 20  # characters per batch for a worker
_BATCH_DOCUMENTS = 1 << 12

_GUARD = (
    "in a script, call this under `if __name__ == '__main__':`, because worker processes import "
    "the script again"
)

Batch = list[tuple[Split, Document]]


class Encoded(NamedTuple):
    """A batch of encoded documents."""

    ids: dict[Split, NDArray[Any]]  # joined per split, with an end-of-text token after each
    counts: Counter[str]  # documents: `read` and `blank`; tokens: `train` and `valid`


@dataclass(frozen=True)
class Encoder:
    """Encodes a batch of documents as little-endian ids; this is the work of a worker process."""

    tokenizer: TextTokenizer
    detokenizer: str | None

    def __call__(self, batch: Batch) -> Encoded:
        dtype = token_dtype(self.tokenizer.vocab_size).newbyteorder("<")
        end = np.array([self.tokenizer.eos_id], dtype)
        found: dict[Split, list[NDArray[Any]]] = {s: [np.empty(0, dtype)] for s in SPLITS}
        clean = DETOKENIZERS[self.detokenizer] if self.detokenizer else str
        counts = Counter(read=len(batch))
        pending: list[tuple[Split, str, bool]] = []  # split, piece, whether it ends a document
        size = 0

        def flush() -> None:
            arrays = self.tokenizer.encode_batch([piece for _, piece, _ in pending])
            for (split, _, last), ids in zip(pending, arrays, strict=True):
                found[split] += [ids.astype(dtype), end] if last else [ids.astype(dtype)]
            pending.clear()

        for split, document in batch:
            text = clean(document.text)
            if not text.strip():
                counts["blank"] += 1
                continue
            done = 0
            for piece in self.tokenizer.split_text(text, _PIECE):
                done += len(piece)
                size += len(piece)
                pending.append((split, piece, done == len(text)))
                if size >= _CALL:
                    flush()
                    size = 0
        flush()
        ids = {split: np.concatenate(parts) for split, parts in found.items()}
        return Encoded(ids, counts + Counter({split: len(x) for split, x in ids.items()}))


def batches(documents: Iterable[tuple[Split, Document]]) -> Iterator[Batch]:
    """Group documents into batches of similar size in characters."""
    batch: Batch = []
    size = 0
    for item in documents:
        batch.append(item)
        size += len(item[1].text)
        if size >= _BATCH or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def check_main_guard() -> None:
    """Raise an error in a worker process that imports an unguarded script; it would hang."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise Interrupted(_GUARD)


def encode(found: Iterable[Batch], encoder: Encoder, workers: int) -> Iterator[Encoded]:
    """Encode batches in order, a few at a time, so memory use is constant.

    workers: number of processes. With 1, this process does the work; the `tokenizers` library
    still uses all cores with threads.
    """
    if workers == 1:
        yield from map(encoder, found)
        return
    context = multiprocessing.get_context("spawn")  # fork is unsafe with torch's threads
    # The encoder is not passed in `initargs`: a tokenizer is larger than the pipe they are sent
    # through, so a worker that dies before reading them would block this process forever.
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
            f"a worker process died; {_GUARD}; otherwise there may be too little memory: use fewer "
            f"workers, or workers=1"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_encoder: Encoder | None = None  # set in worker processes


def _start(handed: "Queue[Encoder]") -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _encoder = handed.get()


def _exit_with_parent() -> None:
    """End this process when its parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(batch: Batch) -> Encoded:
    assert _encoder is not None
    return _encoder(batch)
