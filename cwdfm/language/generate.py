"""`generate_text`: generate text block by block with any solver.

Shapes: B batch, A active sequences, N columns, L tokens per block, C context columns, M = C + L.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from cwdfm.baselines.bd3lm.solver import check_fixed, cut_windows, weight_radius
from cwdfm.errors import (
    InputError,
    NotFinite,
    check_bool,
    check_callable,
    check_instance,
    check_integer,
)
from cwdfm.language.block import BlockModel, Constraint, Limits
from cwdfm.language.model import LanguageModel
from cwdfm.language.options import (
    Options,
    check_never,
    find_block,
    find_cache,
    find_solver,
    find_stop,
)
from cwdfm.language.prompts import Prompt, encode_prompts, first_block, make_canvas
from cwdfm.language.results import Generated, Results
from cwdfm.language.session import CacheKind, ColumnSession, Session
from cwdfm.model.predict import evaluating
from cwdfm.ops.host_copy import HostCopy
from cwdfm.ops.random import check_seed, derive_seed, sample_index
from cwdfm.schedule import Spacing, time_grid
from cwdfm.solver import Solver, State, TopK
from cwdfm.source import MaskSource


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
    top_p: float | None = None,
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
        max_new_tokens: The number of tokens to generate, unless a text ends earlier.
        block_length: Tokens per block; blocks are generated from left to right. Fixed by models
            whose attention is causal between blocks. The default is the model's, or else a single
            block.
        steps: The total number of steps, split evenly between blocks. The default is the model's,
            or else one per token.
        threshold: Reveal all tokens whose prediction has at least this probability, and at least
            one. Replaces `solver`.
        solver: A solver of flows, or its name (see `make_solver`). The default is `TopK` at
            temperature 0, which reveals the most confident tokens first, or `EntropyBound` at
            temperature 0.6 for models without a mask token.
        temperature: The sampling temperature; overrides the solver's.
        top_p: Draw from the most likely tokens with this total probability; overrides the solver's.
        grid: The time grid within a block (see `cwdfm.sample`).
        cache: "none", "prefix", "dual", "prompt" or "exact" (see `ColumnSession`). The default is
            "exact" if the model supports it, and "none" otherwise. "prefix", "dual" and "prompt"
            are approximations.
        stop: Token ids and strings that end a text. Strings alone are used in addition to the
            model's end tokens; ids replace them, and an empty list disables them.
        hold_stop: Draw an end token only at the first masked position of a block. Otherwise
            confident end tokens far ahead would truncate texts.
        never: Ids that are never drawn.
        constraint: Called as `constraint(logits [K, V], number [K], position [K])` for K tokens,
            with the number of their prompt and their position after it. It returns the logits to
            use, with -inf for tokens that are not allowed.
        seed: The random seed.
        index: Sample numbers [number of prompts], which seed the draws. The default is 0, 1, ....
        batch_size: The number of prompts per batch.
        callback: Called after every step with the current texts of all prompts, in which `OPEN`
            stands for every token that has not been drawn yet.
    """
    check_instance("model", model, LanguageModel, "cwdfm.load('GSAI-ML/LLaDA-8B-Instruct')")
    # First, because a text passed without `prompts=` is taken for the solver.
    solver = find_solver(model, solver, threshold, temperature=temperature, top_p=top_p)
    check_integer("max_new_tokens", max_new_tokens)
    encoded = encode_prompts(model, max_new_tokens, prompts, messages, templates)
    check_seed(seed)
    check_bool("hold_stop", hold_stop)
    check_integer("batch_size", batch_size)
    if steps is not None:
        check_integer("steps", steps)
    check_callable("constraint", constraint)
    check_callable("callback", callback)
    if templates is not None and stop:
        raise InputError("stop does not apply to templates, which are complete texts; omit it")
    stop_ids, stop_texts = find_stop(model, stop)
    options = Options(
        solver=cut_windows(solver),
        block_length=find_block(model, block_length, templates is not None),
        steps=steps,
        grid=grid,
        cache=find_cache(model, cache),
        stop_ids=stop_ids,
        stop_texts=stop_texts,
        hold_stop=hold_stop,
        never=check_never(model, never),
        constraint=constraint,
        seed=seed,
        callback=callback,
    )
    index = sample_index(index, len(encoded), torch.device("cpu")).cpu()
    results = Results(model, encoded, options)
    with evaluating(model.network):
        for batch in _batches(model, encoded, weight_radius(options.solver), batch_size):
            try:
                _Batch(model, options, batch, index, results).run()
            except NotFinite as error:
                if constraint is None:
                    raise
                raise NotFinite(
                    f"{error}. These are the logits after constraint, which must leave at least "
                    f"one token for every position"
                ) from error
    return results.finish()


class _Batch:
    """Generates the texts of one batch of prompts."""

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
        self.prompt = prompts[0][1]  # all prompts of a batch have equally many free tokens
        self.radius = weight_radius(options.solver)
        self.context = min(self.radius, first_block(model, self.prompt))
        longest = max(prompt.length - first_block(model, prompt) for _, prompt in prompts)
        self.block_length = model.block or options.block_length or longest
        if not model.whole_blocks:
            self.block_length = min(self.block_length, longest)
        self.stop_ids, self.never = options.stop_ids, options.never
        if self.prompt.is_template:  # texts do not end within a hole
            self.stop_ids, self.never = (), (*self.never, *model.tokenizer.all_special_ids)
        self.masked = isinstance(self.source, MaskSource)
        # Copied to the device once, because a copy in every step would wait for the step.
        self.end_ids = torch.tensor(self.stop_ids, dtype=torch.int64, device=model.device)
        self.end_tokens = model.swap(self.end_ids)  # as ids of the source
        self.held = bool(self.stop_ids) and options.hold_stop and self.masked
        never = torch.tensor(self.never, device=model.device) if self.never else None
        self.limits = Limits(never, self.end_ids if self.held else None, options.constraint)
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
        """The time grid of a block of `length` tokens, with its share of the steps."""
        steps = self.options.steps
        if steps is None:
            steps = self.model.block_steps or length
        else:
            steps = -(-steps * length // self.prompt.free)
        return time_grid(self.schedule, steps, self.options.grid).tolist()

    def _generate_block(self, k: int, block: slice) -> None:
        options, canvas, session = self.options, self.session.canvas, self.session
        context = min(self.context + k * self.block_length, self.radius)
        window = slice(block.start - context, block.stop)
        fixed_BM = canvas.fixed[:, window].clone()
        fixed_BM[:, :context] = True
        if bool(fixed_BM.all()):
            return
        state = options.solver.init(
            self.source, canvas.index, fixed_BM.shape[1], seed=derive_seed(options.seed, k),
            prompt=canvas.tokens[:, window].where(fixed_BM, 0), fixed=fixed_BM,
        )  # fmt: skip
        session.start(block)
        network = BlockModel(self.model, session, block, context, self.limits)
        unfinished = HostCopy((~state.fixed).sum())
        for t, t_next in pairwise(self._times(block.stop - block.start)):
            state, info = options.solver.step(network, self.source, self.schedule, state, t, t_next)
            self.results.evaluations.index_add_(0, canvas.number, info.evaluated.long())
            if self.held:
                state = self._close(state, context)
            canvas.tokens[:, block] = state.tokens[:, context:]
            if options.callback is not None:
                self.results.store(canvas, block.start)
                options.callback([self.results.text(i) for i in range(len(self.results.prompts))])
            # A block may be complete before its last step.
            if (unfinished_B := options.solver.unfinished(self.source, state)) is not None:
                before, unfinished = unfinished, HostCopy(unfinished_B.sum())
                if not int((before if self._lags else unfinished).value):
                    break

    @property
    def _lags(self) -> bool:
        """Whether to test with a delay of one step whether a block is complete.

        The host then need not wait for the current step on a GPU. This suits `TopK`, which finishes
        early only if texts end.
        """
        on_gpu = self.model.device.type == "cuda" and self.options.callback is None
        return on_gpu and isinstance(self.options.solver, TopK)

    def _close(self, state: State, context: int) -> State:
        """Complete the block in sequences with an end token and no masked token before it.

        The rest of the block is filled with the end token, so it needs no more evaluations.
        """
        end_BM = torch.isin(state.tokens, self.end_tokens) & ~state.fixed
        end_BM[:, :context] = False
        open_BM = state.tokens == self.source.num_tokens - 1
        closed_BM = end_BM & (open_BM.int().cumsum(1) == 0)
        after_BM = (closed_BM.int().cumsum(1) > 0) & open_BM
        return replace(
            state,
            tokens=torch.where(after_BM, self.end_tokens[0], state.tokens),
            fixed=state.fixed | after_BM,
        )

    def _finish(self, block: slice) -> bool:
        """Drop sequences that have ended, and cache the block. Returns False if none is left."""
        canvas = self.session.canvas
        columns = slice(canvas.begin, block.stop)
        new_BN = canvas.tokens[:, columns]
        ended_B = (torch.isin(new_BN, self.end_tokens) & ~canvas.fixed[:, columns]).any(1)
        if not self.prompt.is_template:  # the first block may contain part of the prompt
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
    """Group prompts into batches such that no window of a context weight contains padding.

    All prompts of a batch have the same number of free tokens. Templates, and all prompts of a
    network that does not support padding, also have the same length.
    """
    groups: dict[tuple[int, int], list[tuple[int, Prompt]]] = {}
    for number, prompt in enumerate(prompts):
        reach = min(radius, first_block(model, prompt))
        equal = prompt.is_template or not getattr(model.network, "pads", True)
        reach = prompt.length if equal else reach
        groups.setdefault((reach, prompt.free), []).append((number, prompt))
    for group in groups.values():
        yield from (group[i : i + size] for i in range(0, len(group), size))
