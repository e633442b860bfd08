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
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.dataset import SPLITS, Split, token_dtype
from cwdfm.data.text.corpus import Interrupted, detokenize
from cwdfm.data.text.tokenizer import TextTokenizer

_PIECE = 1 << 16  # characters; longer documents are encoded in pieces
_CALL = 1 << 20  # characters per call of the tokenizer, which bounds its memory
_BATCH = 1 << 20  # characters per batch for a worker
_MAX_GROUP = 1 << 12  # maximum number of short documents or pieces in a group

GUARD = (
    "in a script, call this under `if __name__ == '__main__':`, because worker processes import "
    "the script again"
)

T = TypeVar("T", bound=tuple[Any, ...])
Batch = list[tuple[Split, str]]  # documents and their splits


class Encoded(NamedTuple):
    """A batch of encoded documents."""

    ids: dict[Split, NDArray[Any]]  # joined per split, with an end-of-text token after each
    # Numbers of documents (`read`, `blank`, `too_long`) and tokens (`train`, `valid`; `filled` is
    # the padding among them).
    counts: Counter[str]


@dataclass(frozen=True)
class Encoder:
    """Encodes a batch of documents as little-endian ids. Worker processes run it."""

    tokenizer: TextTokenizer
    detokenizer: str | None
    row_length: int | None = None  # pad each document to this length; longer ones are left out

    def __call__(self, batch: Batch) -> Encoded:
        dtype = token_dtype(self.tokenizer.vocab_size).newbyteorder("<")
        end = np.array([self.tokenizer.eos_id], dtype)
        arrays_of: dict[Split, list[NDArray[Any]]] = {s: [np.empty(0, dtype)] for s in SPLITS}
        document: list[NDArray[Any]] = []
        counts = Counter(read=len(batch), blank=len(batch))
        for pieces in grouped(self._pieces(batch), _CALL):
            arrays = self.tokenizer.encode_batch([piece for _, piece, _ in pieces])
            for (split, _, last), array in zip(pieces, arrays, strict=True):
                document.append(array.astype(dtype))
                if not last:
                    continue
                counts["blank"] -= 1
                size = sum(map(len, document)) + 1
                padding = 0 if self.row_length is None else self.row_length - size
                if padding < 0:
                    counts["too_long"] += 1
                else:
                    arrays_of[split] += [*document, end.repeat(padding + 1)]
                    counts["filled"] += padding
                document = []
        ids = {split: np.concatenate(parts) for split, parts in arrays_of.items()}
        sizes = {str(split): len(x) for split, x in ids.items()}
        return Encoded(ids, counts + Counter(sizes))

    def _pieces(self, batch: Batch) -> Iterator[tuple[Split, str, bool]]:
        """Yield (split, piece, whether it ends its document), skipping blank documents."""
        for split, raw in batch:
            text = detokenize(raw, self.detokenizer)
            if text.strip():
                *pieces, last = self.tokenizer.split_text(text, _PIECE)
                yield from ((split, piece, False) for piece in pieces)
                yield split, last, True


def grouped(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Group tuples (split, text, ...) so that the texts of a group have about `size` characters."""
    group: list[T] = []
    characters = 0
    for item in items:
        group.append(item)
        characters += len(item[1])
        if characters >= size or len(group) >= _MAX_GROUP:
            yield group
            group, characters = [], 0
    if group:
        yield group


def check_main_guard() -> None:
    """Raise an error if a worker process is importing an unguarded script, which would hang."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise Interrupted(GUARD)


def encode(
    documents: Iterable[tuple[Split, str]], encoder: Encoder, workers: int
) -> Iterator[Encoded]:
    """Encode batches of documents in order. Few batches are in flight, so memory use is constant.

    workers: number of processes. With 1, the current process encodes; the `tokenizers` library
        still uses threads on all cores.
    """
    batches = grouped(documents, _BATCH)
    if workers == 1:
        yield from map(encoder, batches)
        return
    context = multiprocessing.get_context("spawn")  # fork is unsafe with torch's threads
    # The encoder is not passed in `initargs`. These are sent through a pipe that is smaller than a
    # tokenizer, so a worker that dies before reading them would block this process forever.
    queue: Queue[Encoder] = context.Queue()
    queue.cancel_join_thread()
    for _ in range(workers):
        queue.put(encoder)
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(queue,))
    pending: deque[Future[Encoded]] = deque()
    try:
        for batch in batches:
            pending.append(pool.submit(_work, batch))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise Interrupted(
            f"a worker process died; {GUARD}; if it is guarded, the machine may be out of memory: "
            f"use fewer workers, or workers=1"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_encoder: Encoder | None = None  # set in worker processes


def _start(queue: "Queue[Encoder]") -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    exit_with_parent()
    _encoder = queue.get()


def exit_with_parent() -> None:
    """Make this worker process exit when its parent dies."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _work(batch: Batch) -> Encoded:
    assert _encoder is not None
    return _encoder(batch)
