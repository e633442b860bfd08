"""Sessions: the canvas of tokens of a batch, and the columns that every step evaluates.

The columns of a canvas contain the padding and the prompt of every sequence, followed by the blocks
that are generated from left to right.

Shapes: B batch, N columns, L tokens per block, M evaluated columns, K keys, D width.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from cwdfm.language.model import LanguageModel, shift_right
from cwdfm.model.attention import KVCache
from cwdfm.ops.cuda_graph import WARMUP_CALLS, GraphedFunction

CacheKind = Literal["none", "prefix", "dual", "prompt", "exact"]
# Parameters times tokens of an evaluation that takes a GPU longer than launching its kernels takes
# the host: about 20 ms, at 600 TFLOP/s. A CUDA graph would gain nothing, and its capture evaluates
# the network twice more.
LONG_EVALUATION = 6e12


@dataclass
class Canvas:
    """The sequences of a batch, padded on the left."""

    tokens: Tensor  # [B, N] int64: ids of the source
    fixed: Tensor  # [B, N] bool: prompt and padding
    valid: Tensor  # [B, N] bool: all columns except padding
    number: Tensor  # [B] int64: prompt numbers
    index: Tensor  # [B] int64: sample numbers, which seed the random draws
    new: Tensor  # [B] int64: first column after the prompt; 0 for a template
    begin: int = 0  # first column of the first block

    def __post_init__(self) -> None:
        self.position = (self.valid.cumsum(1) - 1).clamp(min=0)
        self.padded = not bool(self.valid.all())

    def select(self, rows: Tensor) -> "Canvas":
        """The canvas of some of the sequences."""
        names = ("tokens", "fixed", "valid", "number", "index", "new")
        parts: dict[str, Any] = {name: getattr(self, name)[rows] for name in names}
        return Canvas(**parts, begin=self.begin)


class Session(Protocol):
    """Evaluates the blocks of a canvas one after the other."""

    canvas: Canvas

    def start(self, block: slice) -> None:
        """Begin the block with these columns."""

    def hidden(self, x_AL: Tensor, rows_A: Tensor | None) -> Tensor:
        """Hidden vectors [A, L, D] that predict the block, from its current tokens [A, L].

        `rows_A` selects the sequences; None for all.
        """

    def finish(self) -> None:
        """End the block; its tokens in the canvas are final."""

    def select(self, rows: Tensor) -> None:
        """Keep only the sequences for which `rows`, bool [B], is True."""


class ColumnSession:
    """The session of a `Network`, with one of these caches:

    - "none": every step evaluates all columns that the block may depend on.
    - "exact", for attention that is causal between blocks: a step evaluates only its block. Keys
      and values of earlier blocks cannot change, so the result is the same as without a cache.
    - "prefix", for bidirectional attention: the first step of a block evaluates all columns. Later
      steps reuse the keys and values of the columns before the block. This is an approximation,
      because these depend on the tokens drawn since.
    - "dual": like "prefix", but also reuses those of the columns after the block.
    - "prompt": like "dual", but the first step of a block evaluates only the columns after the
      prompt. The prompt is evaluated once, when all these columns are masked.
    """

    def __init__(self, language: LanguageModel, canvas: Canvas, cache: CacheKind) -> None:
        self.language, self.canvas, self.kind = language, canvas, cache
        self.cache = None if cache == "none" else KVCache(canvas.tokens.shape[1])
        self._discard_graphs()
        self.parameters = sum(p.numel() for p in language.network.parameters())
        if cache == "exact" and canvas.begin:
            self._run(0, canvas.begin, canvas.begin, None, None)

    def start(self, block: slice) -> None:
        self.block, self.first = block, True
        self.filled = bool(self.cache is not None and self.cache.layers)
        # The columns whose hidden vectors predict the block.
        self.before = min(self._before, block.start)
        columns = range(block.start - self.before, block.stop)
        self.keep_L = torch.tensor(columns, device=self.canvas.tokens.device)

    def hidden(self, x_AL: Tensor, rows_A: Tensor | None) -> Tensor:
        if rows_A is None:
            self.canvas.tokens[:, self.block] = x_AL
        else:
            self.canvas.tokens[rows_A, self.block] = x_AL
        # With a cache, evaluate all sequences: copying part of it would take longer.
        subset = rows_A if self.cache is None else None
        begin, end, keys = self._columns(self.block.start, self.block.stop)
        if subset is None and self._uses_graph(begin, end, keys):
            hidden_BLD = self._replay(begin, end)
        else:
            keep_L = None if begin == self.keep_start and end == self.block.stop else self.keep_L
            hidden_BLD = self._run(begin, end, keys, subset, keep_L)
        self.first, hidden_BLD = False, hidden_BLD[:, self.before :]
        return hidden_BLD if rows_A is None or subset is not None else hidden_BLD[rows_A]

    def finish(self) -> None:
        if self.kind != "exact":
            return
        start, stop = self.block.start, self.block.stop
        if self._uses_graph(start, stop, stop):
            self._replay(start, stop)
        else:
            self._run(start, stop, stop, None, None)

    def select(self, rows: Tensor) -> None:
        self.canvas = self.canvas.select(rows)
        if self.cache is not None:
            self.cache = self.cache.select(rows)
        self._discard_graphs()  # the tensors have changed

    @property
    def keep_start(self) -> int:
        """The first column whose hidden vector predicts the block."""
        start: int = self.block.start - self.before
        return start

    @property
    def _before(self) -> int:
        """Columns to evaluate before a block: 1 if the previous column predicts its first token."""
        return int(self.language.shift and self.language.block is None)

    def _discard_graphs(self) -> None:
        # On a GPU, launching the kernels of a step one by one would take longer than running them.
        # With these caches, all steps of all blocks have the same shape: capture it at once.
        warmup_calls = 0 if self.kind in ("dual", "prompt", "exact") else WARMUP_CALLS
        self.graphed = GraphedFunction(nn.Module(), self._graph, warmup_calls)

    def _uses_graph(self, begin: int, end: int, keys: int) -> bool:
        """Whether to evaluate columns begin..end, which attend to `keys`, by a CUDA graph.

        Its shapes must not depend on the block.
        """
        batch, total = self.canvas.tokens.shape
        fixed = self.kind == "exact" or (self.language.block is None and keys == total)
        fixed = fixed and begin in (0, self.keep_start)
        long = batch * (end - begin) * self.parameters > LONG_EVALUATION
        return self.language.network.graphs and fixed and not long

    def _replay(self, begin: int, end: int) -> Tensor:
        """Hidden vectors [B, L, D] that predict the block, by a CUDA graph on a GPU."""
        hidden_BLD: Tensor = self.graphed(self.canvas.tokens[:, begin:end], self.keep_L)
        return hidden_BLD

    def _graph(self, tokens_BM: Tensor, keep_L: Tensor) -> Tensor:
        """Evaluate all columns, or those from keep_L[0] on if there are fewer tokens.

        The host may use the shapes of the arguments, but not their values.
        """
        cache, canvas, columns = self.cache, self.canvas, tokens_BM.shape[1]
        place_M = torch.arange(columns, device=keep_L.device)
        whole = columns == canvas.tokens.shape[1]
        if not whole:
            place_M = place_M + keep_L[0]
        kept = None if columns == len(keep_L) else keep_L if whole else keep_L - keep_L[0]
        mask = canvas.valid[:, None, None, :] if canvas.padded else None
        if self.kind == "exact":
            known_N = torch.arange(canvas.tokens.shape[1], device=keep_L.device) <= place_M[-1]
            mask = known_N[None, None, None, :] if mask is None else mask & known_N
        position_BM = canvas.position.index_select(1, place_M)
        if cache is None:
            return self._predict(tokens_BM, position_BM, mask, kept)
        cache.place, cache.end = place_M, cache.columns
        try:
            return self._predict(tokens_BM, position_BM, mask, kept)
        finally:
            cache.place = None

    def _columns(self, start: int, stop: int) -> tuple[int, int, int]:
        """The range (start, stop) of columns to evaluate, and the end of those to attend to."""
        total = self.canvas.tokens.shape[1]
        if self.kind == "exact":
            return start, stop, stop
        if self.language.block is not None:
            return 0, stop, stop
        if self.kind == "none" or self.first:
            known = self.canvas.begin - self._before if self.kind == "prompt" and self.filled else 0
            return max(known, 0), total, total
        return self.keep_start, total if self.kind == "prefix" else stop, total

    def _run(
        self, start: int, stop: int, end: int, rows: Tensor | None, keep_L: Tensor | None
    ) -> Tensor:
        """Evaluate columns start..stop, and return the hidden vectors of the columns keep_L.

        The result is [B, L, D]; the default is all evaluated columns.
        """
        canvas = self.canvas if rows is None else self.canvas.select(rows)
        if self.cache is not None:
            self.cache.start, self.cache.end = start, end
        tokens_BM, position_BM = canvas.tokens[:, start:stop], canvas.position[:, start:stop]
        mask = self._mask(canvas, start, stop, end)
        kept = None if keep_L is None else keep_L - start
        return self._predict(tokens_BM, position_BM, mask, kept)

    def _predict(
        self, tokens_BM: Tensor, position_BM: Tensor, mask: Tensor | None, keep_L: Tensor | None
    ) -> Tensor:
        network, shift = self.language.network, self.language.shift
        ids_BM = self.language.swap(tokens_BM)
        hidden_BLD: Tensor = network.hidden(ids_BM, position_BM, mask, self.cache, keep_L)
        if not shift:
            return hidden_BLD
        first_BM = position_BM == 0
        first_BL = first_BM if keep_L is None else first_BM.index_select(1, keep_L)
        return shift_right(hidden_BLD, first_BL)

    def _mask(self, canvas: Canvas, start: int, stop: int, end: int) -> Tensor | None:
        """The attention mask of the columns, [B, 1, M or 1, K]; None if they attend to all keys."""
        mask = canvas.valid[:, None, None, :end] if canvas.padded else None
        block = self.language.block
        if block is None or start // block == (end - 1) // block:
            return mask
        column = torch.arange(end, device=canvas.tokens.device)
        query, key = column[start:stop, None], column[None, :]
        causal = query // block >= key // block
        if mask is None:
            return causal[None, None]
        return (mask & causal) | (query == key)  # padding attends to itself: no row is empty
