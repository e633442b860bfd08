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
_MAX_GROUP = 1 << 12  # documents or pieces, if these are short

GUARD = (
    "in a script, call this under `if __name__ == '__main__':`, because worker processes import "
    "the script again"
)

T = TypeVar("T", bound=tuple[Any, ...])
Batch = list[tuple[Split, str]]  # documents


class Encoded(NamedTuple):
    """A batch of encoded documents."""

    ids: dict[Split, NDArray[Any]]  # joined per split, with an end-of-text token after each
    # Documents: `read`, `blank` and `too_long`; tokens: `train` and `valid`, with `filled` padding.
    counts: Counter[str]


@dataclass(frozen=True)
class Encoder:
    """Encodes a batch of documents as little-endian ids; this is the work of a worker process."""

    tokenizer: TextTokenizer
    detokenizer: str | None
    row_length: int | None = None  # pad each document to this length; longer ones are left out

    def __call__(self, batch: Batch) -> Encoded:
        dtype = token_dtype(self.tokenizer.vocab_size).newbyteorder("<")
        end = np.array([self.tokenizer.eos_id], dtype)
        found: dict[Split, list[NDArray[Any]]] = {s: [np.empty(0, dtype)] for s in SPLITS}
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
                    found[split] += [*document, end.repeat(padding + 1)]
                    counts["filled"] += padding
                document = []
        ids = {split: np.concatenate(parts) for split, parts in found.items()}
        sizes = {str(split): len(x) for split, x in ids.items()}
        return Encoded(ids, counts + Counter(sizes))

    def _pieces(self, batch: Batch) -> Iterator[tuple[Split, str, bool]]:
        """(split, piece, whether it ends the document) of the documents that are not blank."""
        for split, raw in batch:
            text = detokenize(raw, self.detokenizer)
            if text.strip():
                *pieces, last = self.tokenizer.split_text(text, _PIECE)
                yield from ((split, piece, False) for piece in pieces)
                yield split, last, True


def grouped(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Group tuples (split, text, ...) until their texts have `size` characters."""
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
    """Raise an error in a worker process that imports an unguarded script, which would hang."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise Interrupted(GUARD)


def encode(
    documents: Iterable[tuple[Split, str]], encoder: Encoder, workers: int
) -> Iterator[Encoded]:
    """Encode batches of documents in order, a few at a time, so memory use is constant.

    workers: number of processes. With 1, this process does the work; the `tokenizers` library
    still uses all cores with threads.
    """
    batches = grouped(documents, _BATCH)
    if workers == 1:
        yield from map(encoder, batches)
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
        for batch in batches:
            waiting.append(pool.submit(_work, batch))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise Interrupted(
            f"a worker process died; {GUARD}; otherwise there may be too little memory: use fewer "
            f"workers, or workers=1"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_encoder: Encoder | None = None  # set in worker processes


def _start(handed: "Queue[Encoder]") -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    exit_with_parent()
    _encoder = handed.get()


def exit_with_parent() -> None:
    """End this worker process when its parent is killed."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _work(batch: Batch) -> Encoded:
    assert _encoder is not None
    return _encoder(batch)
