"""Generate text block by block with any solver.

Shapes: B batch, A active sequences, N columns, L tokens per block, C context columns, M = C + L.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from cwdfm.baselines.bd3lm.solver import check_fixed, cut_windows, weight_radius
from cwdfm.errors import InputError, check_callable, check_choice, check_instance, check_integer
from cwdfm.language.block import BlockModel, Constraint, Limits
from cwdfm.language.model import LanguageModel
from cwdfm.language.prompts import (
    Prompt,
    check_new_tokens,
    encode_prompts,
    first_block,
    make_canvas,
)
from cwdfm.language.session import CacheKind, Canvas, ColumnSession, Session
from cwdfm.model.predict import evaluating
from cwdfm.ops.random import check_seed, derive_seed, sample_index
from cwdfm.schedule import Spacing, time_grid
from cwdfm.solver import Euler, Solver, TopK
from cwdfm.solver_config import make_solver
from cwdfm.source import MaskSource

OPEN = "\u2591"  # a token that is not drawn yet, in the texts of a callback


@dataclass(frozen=True)
class Generated:
    """Generated texts, in the order of the prompts."""

    texts: list[str]  # without prompts and special tokens; of a template, the complete text
    tokens: list[list[int]]  # the new tokens up to the end; of a template, all tokens
    evaluations: Tensor  # [B] int64: number of network evaluations
    new_tokens: Tensor  # [B] int64: number of tokens that were generated and kept

    @property
    def tokens_per_forward(self) -> Tensor:
        """New tokens per network evaluation, float64 [B]."""
        return self.new_tokens.double() / self.evaluations.clamp(min=1)


@dataclass(frozen=True)
class Options:
    """How texts are generated: see `generate_text`."""

    solver: Solver
    block_length: int | None
    steps: int | None
    grid: Spacing | Tensor
    cache: CacheKind
    stop_ids: tuple[int, ...]
    stop_texts: tuple[str, ...]
    hold_stop: bool
    never: tuple[int, ...]
    constraint: Constraint | None
    seed: int
    callback: Callable[[list[str]], object] | None


@torch.no_grad()
def generate_text(
    model: LanguageModel,
    *,
    prompts: Sequence[str] | None = None,
    messages: Sequence[Sequence[Mapping[str, str]]] | None = None,
    templates: Sequence[str] | None = None,
    max_new_tokens: int = 128,
    block_length: int | None = None,
    steps: int | None = None,
    threshold: float | None = None,
    solver: Solver | str | None = None,
    temperature: float | None = None,
    grid: Spacing | Tensor = "t",
    cache: CacheKind | None = None,
    stop: Collection[str | int] | None = None,
    hold_stop: bool = True,
    never: Collection[int] = (),
    constraint: Constraint | None = None,
    seed: int = 0,
    index: Tensor | None = None,
    batch_size: int = 16,
    callback: Callable[[list[str]], object] | None = None,
) -> Generated:
    """Continue prompts, answer messages, or fill the holes of templates.

    The result for a prompt does not depend on the other prompts of its batch.

    Args:
        model: A language model returned by `cwdfm.load`.
        prompts: Texts to continue.
        messages: Conversations, each a list of {"role": ..., "content": ...}, to answer. The
            tokenizer's chat template formats them.
        templates: Texts with holes: "The [3] of" has a hole of three tokens.
        max_new_tokens: The number of tokens to generate, unless a text ends before.
        block_length: Tokens per block; blocks are generated from left to right. A model whose
            attention is causal between blocks determines it. The default is the model's, or else
            everything in one block.
        steps: The total number of steps, split evenly between blocks. The default is one per token.
        threshold: Reveal all tokens whose prediction has at least this probability, and at least
            one. It replaces `solver`.
        solver: A solver of flows, or its name (see `make_solver`). The default reveals the most
            confident tokens first, `TopK`, at temperature 0.
        temperature: The temperature of the draws, in place of the solver's.
        grid: The time grid inside a block (see `cwdfm.sample`).
        cache: "none", "prefix", "dual" or "exact" (see `ColumnSession`). The default is "exact" if
            the model allows it, and otherwise "none". "prefix" and "dual" are approximations.
        stop: Ids of tokens, and texts, that end a text. The default is the model's own tokens.
        hold_stop: Draw an end token only at the first open position of a block. Otherwise
            confident end tokens, far from the text so far, cut texts short.
        never: Ids that are never drawn.
        constraint: Called as `constraint(logits [K, V], number [K], position [K])` for K tokens of
            the prompts with these numbers, at these positions after the prompt. It returns the
            logits to use, -inf for tokens that are not allowed.
        seed: The random seed.
        index: Sample numbers [number of prompts], which seed the draws. The default is 0, 1, ....
        batch_size: The number of prompts per batch.
        callback: Called after every step with the texts of all prompts so far. `OPEN` stands for
            each token that is not drawn yet.
    """
    check_instance("model", model, LanguageModel, "cwdfm.load('LLaDA-8B-Instruct')")
    check_new_tokens(max_new_tokens)
    encoded = encode_prompts(model, max_new_tokens, prompts, messages, templates)
    check_seed(seed)
    check_integer("batch_size", batch_size)
    check_callable("constraint", constraint)
    check_callable("callback", callback)
    stop_ids, stop_texts = _find_stop(model, stop)
    options = Options(
        solver=cut_windows(_find_solver(model, solver, threshold, temperature)),
        block_length=_find_block(model, block_length, templates is not None),
        steps=steps,
        grid=grid,
        cache=_find_cache(model, cache),
        stop_ids=stop_ids,
        stop_texts=stop_texts,
        hold_stop=hold_stop,
        never=_check_ids(model, "never", never),
        constraint=constraint,
        seed=seed,
        callback=callback,
    )
    index = sample_index(index, len(encoded), torch.device("cpu")).cpu()
    results = Results(model, encoded, options)
    with evaluating(model.network):
        for batch in _batches(model, encoded, weight_radius(options.solver), batch_size):
            _Batch(model, options, batch, index, results).run()
    return results.finish()


class Results:
    """The tokens of all prompts so far."""

    def __init__(self, model: LanguageModel, prompts: Sequence[Prompt], options: Options) -> None:
        self.model, self.prompts, self.options = model, prompts, options
        self.tokens: list[list[int]] = [[] for _ in prompts]  # -1: not drawn yet
        self.evaluations = torch.zeros(len(prompts), dtype=torch.int64, device=model.device)

    def store(self, canvas: Canvas, done: int) -> None:
        """Copy the tokens of a canvas, whose columns before `done` are final."""
        tokens_BN = self.model.swap(canvas.tokens)
        if isinstance(self.model.source, MaskSource):
            open_BN = canvas.tokens == self.model.source.mask_id
        else:
            column = torch.arange(canvas.tokens.shape[1], device=canvas.tokens.device)
            open_BN = ~canvas.fixed & (column >= done)
        rows = tokens_BN.masked_fill(open_BN, -1).tolist()
        padding = (~canvas.valid).sum(1).tolist()
        for number, row, pad in zip(canvas.number.tolist(), rows, padding, strict=True):
            prompt = self.prompts[number]
            start = 0 if prompt.is_template else len(prompt.before)
            size = prompt.length if prompt.is_template else prompt.new
            self.tokens[number] = row[pad + start : pad + start + size]

    def text(self, number: int) -> str:
        """The text so far."""
        decode, parts = self.model.tokenizer.decode, [[]]  # type: tuple[Any, list[list[int]]]
        for token in self._kept(number):
            if token < 0:
                parts.append([])
            else:
                parts[-1].append(token)
        text = OPEN.join(decode(part, skip_special_tokens=True) for part in parts)
        ends = [text.find(stop) for stop in self.options.stop_texts if stop in text]
        return text[: min(ends)] if ends else text

    def has_stop_text(self, number: int) -> bool:
        """Whether the text so far contains a text that ends it."""
        known = [token for token in self._kept(number) if token >= 0]
        text = self.model.tokenizer.decode(known, skip_special_tokens=True)
        return any(stop in text for stop in self.options.stop_texts)

    def finish(self) -> Generated:
        """All texts."""
        numbers = range(len(self.prompts))
        tokens = [self._kept(number) for number in numbers]
        new = [
            prompt.free if prompt.is_template else len(row)
            for prompt, row in zip(self.prompts, tokens, strict=True)
        ]
        texts = [self.text(number) for number in numbers]
        return Generated(texts, tokens, self.evaluations.cpu(), torch.tensor(new))

    def _kept(self, number: int) -> list[int]:
        """The tokens before the first end token."""
        row = self.tokens[number]
        if self.prompts[number].is_template:
            return row
        stop = set(self.options.stop_ids)
        return row[: next((i for i, token in enumerate(row) if token in stop), len(row))]


class _Batch:
    """Generates the prompts of one batch."""

    def __init__(
        self,
        model: LanguageModel,
        options: Options,
        prompts: Sequence[tuple[int, Prompt]],
        index: Tensor,
        results: Results,
    ) -> None:
        self.model, self.options, self.results = model, options, results
        self.source, self.schedule = model.source, model.schedule
        self.prompt = prompts[0][1]  # all have as many free tokens
        self.radius = weight_radius(options.solver)
        self.context = min(self.radius, first_block(model, self.prompt))
        longest = max(prompt.length - first_block(model, prompt) for _, prompt in prompts)
        self.block_length = model.block or options.block_length or longest
        if not model.whole_blocks:
            self.block_length = min(self.block_length, longest)
        self.stop_ids, self.never = options.stop_ids, options.never
        if self.prompt.is_template:  # texts do not end inside a hole
            self.stop_ids, self.never = (), (*self.never, *model.tokenizer.all_special_ids)
        canvas = make_canvas(model, prompts, index, self.block_length)
        if model.block is not None:
            check_fixed(canvas.fixed[:, canvas.begin :], model.block)
        make = getattr(model.network, "session", None)
        self.session: Session = (
            ColumnSession(model, canvas, options.cache)
            if make is None
            else make(model, canvas, options.solver)
        )

    def run(self) -> None:
        """Generate all blocks."""
        begin, columns = self.session.canvas.begin, self.session.canvas.tokens.shape[1]
        starts = range(begin, columns, self.block_length)
        for k, start in enumerate(starts):
            block = slice(start, min(start + self.block_length, columns))
            self._generate_block(k, block)
            self.results.store(self.session.canvas, block.stop)
            if k + 1 < len(starts) and not self._finish(block):
                return

    def _times(self, length: int) -> list[float]:
        """The time grid of a block: its share of the steps."""
        free = self.prompt.free
        steps = -(-(self.options.steps or free) * length // free)
        return time_grid(self.schedule, steps, self.options.grid).tolist()

    def _generate_block(self, k: int, block: slice) -> None:
        options, canvas, session = self.options, self.session.canvas, self.session
        context = min(self.context + k * self.block_length, self.radius)
        window = slice(block.start - context, block.stop)
        fixed_BM = canvas.fixed[:, window].clone()
        fixed_BM[:, :context] = True
        if bool(fixed_BM.all()):
            return
        masked = isinstance(self.source, MaskSource)
        state = options.solver.init(
            self.source, canvas.index, fixed_BM.shape[1], seed=derive_seed(options.seed, k),
            prompt=canvas.tokens[:, window].where(fixed_BM, 0), fixed=fixed_BM,
        )  # fmt: skip
        session.start(block)
        held = self.stop_ids if options.hold_stop and masked else ()
        limits = Limits(self.never, held, options.constraint)
        network = BlockModel(self.model, session, block, context, limits)
        for t, t_next in pairwise(self._times(block.stop - block.start)):
            state, info = options.solver.step(network, self.source, self.schedule, state, t, t_next)
            self.results.evaluations.index_add_(0, canvas.number, info.evaluated.long())
            if held:
                state = self._close(state, context)
            canvas.tokens[:, block] = state.tokens[:, context:]
            if options.callback is not None:
                self.results.store(canvas, block.start)
                options.callback([self.results.text(i) for i in range(len(self.results.prompts))])
            if masked and not bool((state.tokens == self.source.num_tokens - 1).any()):
                break

    def _close(self, state: Any, context: int) -> Any:
        """End the block of the sequences with an end token and nothing open before it.

        The rest of the block is filled with the end token: it costs no more evaluations.
        """
        ids = self.model.swap(torch.tensor(self.stop_ids, device=state.tokens.device))
        end_BM = torch.isin(state.tokens, ids) & ~state.fixed
        end_BM[:, :context] = False
        open_BM = state.tokens == self.source.num_tokens - 1
        closed_BM = end_BM & (open_BM.int().cumsum(1) == 0)
        after_BM = (closed_BM.int().cumsum(1) > 0) & open_BM
        return replace(
            state,
            tokens=torch.where(after_BM, ids[0], state.tokens),
            fixed=state.fixed | after_BM,
        )

    def _finish(self, block: slice) -> bool:
        """Drop the sequences that have ended, and cache the block; False if none is left."""
        canvas = self.session.canvas
        columns = slice(canvas.begin, block.stop)
        ids = self.model.swap(torch.tensor(self.stop_ids, device=canvas.tokens.device))
        new_BN = canvas.tokens[:, columns]
        ended_B = (torch.isin(new_BN, ids) & ~canvas.fixed[:, columns]).any(1)
        if not self.prompt.is_template:  # the first block may contain a part of the prompt
            ended_B |= block.stop - canvas.new >= self.prompt.new
        if self.options.stop_texts:
            texts = [self.results.has_stop_text(number) for number in canvas.number.tolist()]
            ended_B |= torch.tensor(texts, device=ended_B.device)
        if bool(ended_B.all()):
            return False
        if bool(ended_B.any()):
            self.session.select(~ended_B)
        self.session.finish()
        if self.options.cache == "exact":
            self.results.evaluations[self.session.canvas.number] += 1
        return True


def _batches(
    model: LanguageModel, prompts: Sequence[Prompt], radius: int, size: int
) -> Iterator[list[tuple[int, Prompt]]]:
    """Prompts in batches, in which padding does not reach into the windows of a context weight.

    Templates in a batch have equal lengths and numbers of free tokens, and so have all texts of a
    network without padding.
    """
    groups: dict[tuple[int, int], list[tuple[int, Prompt]]] = {}
    for number, prompt in enumerate(prompts):
        reach = min(radius, first_block(model, prompt))
        equal = prompt.is_template or not getattr(model.network, "pads", True)
        reach = prompt.length if equal else reach
        groups.setdefault((reach, prompt.free), []).append((number, prompt))
    for group in groups.values():
        yield from (group[i : i + size] for i in range(0, len(group), size))


def _find_block(model: LanguageModel, block_length: int | None, templates: bool) -> int | None:
    """Tokens per block; None for a single block, the default for templates."""
    if block_length is None:
        return model.block or (None if templates else model.block_length)
    check_integer("block_length", block_length)
    if model.block is not None and block_length != model.block:
        raise InputError(
            f"{model.family} has blocks of {model.block} tokens, got block_length={block_length}; "
            f"omit it, or load the model with block={block_length}",
            fields=("block_length",),
        )
    return block_length


def _find_cache(model: LanguageModel, cache: CacheKind | None) -> CacheKind:
    if cache is None:
        return "exact" if model.block is not None else "none"
    check_choice("cache", cache, ("none", "prefix", "dual", "exact"))
    supported: tuple[str, ...] = ("none", "prefix", "dual")
    if model.block is not None:
        supported = ("none", "exact")
    if not getattr(model.network, "caches", True):
        supported = ("none",)
    if cache not in supported:
        raise InputError(
            f"{model.family} supports the caches {', '.join(map(repr, supported))}, got {cache!r}",
            fields=("cache",),
        )
    return cache


def _find_solver(
    model: LanguageModel,
    solver: Solver | str | None,
    threshold: float | None,
    temperature: float | None,
) -> Solver:
    masked = model.mask_id is not None
    if threshold is not None:
        raise InputError("threshold is not supported yet", fields=("threshold",))
    if solver is None:
        solver = TopK(temperature=0.0) if masked else Euler()
    elif isinstance(solver, str):
        solver = make_solver(solver)
    check_instance("solver", solver, Solver, "TopK(temperature=0.0)")
    assert isinstance(solver, Solver)
    if temperature is not None:
        if not hasattr(solver, "temperature"):
            raise InputError(f"{solver!r} has no temperature; omit it")
        solver = replace(solver, temperature=temperature)  # type: ignore[type-var]
    return solver


def _find_stop(
    model: LanguageModel, stop: Collection[str | int] | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ids and the texts that end a text."""
    if stop is None:
        return model.stop_ids, ()
    if isinstance(stop, str) or not isinstance(stop, Collection):
        raise InputError(
            f"stop must be a list of token ids and texts, got {stop!r}", fields=("stop",)
        )
    texts = tuple(each for each in stop if isinstance(each, str))
    if "" in texts:
        raise InputError("stop contains an empty text; omit it", fields=("stop",))
    ids = [each for each in stop if not isinstance(each, str)]
    return _check_ids(model, "stop", ids), texts


def _check_ids(model: LanguageModel, name: str, ids: Any) -> tuple[int, ...]:
    count = len(model.tokenizer)
    valid = isinstance(ids, Collection) and not isinstance(ids, str)
    if not valid or not all(isinstance(i, int) and 0 <= i < count for i in ids):
        raise InputError(f"{name} must contain ids 0..{count - 1}, got {ids!r}", fields=(name,))
    return tuple(ids)
