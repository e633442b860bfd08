"""Evaluate models of this library with the lm-evaluation-harness, as the model `cwdfm`.

    python -m cwdfm.integrations.lm_eval --model cwdfm --model_args pretrained=FOLDER --tasks TASK

runs the command `lm_eval` with this model registered, since the harness has no plugins. In Python,
import this module and call `lm_eval.simple_evaluate(model="cwdfm", ...)`.

The log-likelihood of a continuation given its context is a lower bound, estimated with a fixed seed
on one sequence without padding. It is exact for autoregressive models.
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from cwdfm.errors import InputError, check_bool, check_integer, load_extra
from cwdfm.integrations.model_view import view_model
from cwdfm.language.model import LanguageModel
from cwdfm.method import Flow, Method
from cwdfm.method.base import SampleRequest
from cwdfm.pretrained import load
from cwdfm.solver_config import make_solver
from cwdfm.trained import auto_batch_size

_load = partial(load_extra, extra="lm-eval")
_TemplateLM: Any = _load("lm_eval.api.model").TemplateLM
_register = _load("lm_eval.api.registry").register_model
_utils, _model_utils = _load("lm_eval.utils"), _load("lm_eval.models.utils")

Row = tuple[list[int], int]  # token ids, and the number of context tokens at the beginning
Draws = tuple[float, float | None]  # temperature and top_p
Job = tuple[list[int], int, Draws]  # context token ids, number of new tokens, draws


@_register("cwdfm")
class CwdfmLM(_TemplateLM):  # type: ignore[misc]
    """A trained model of this library.

    Args:
        pretrained: A name or folder for `cwdfm.load`, which may be a language model.
        revision: The branch, tag or commit of a model on the hub.
        dtype: The dtype of a language model's weights, such as bfloat16.
        trust_remote_code: Execute Python code of a language model (see `cwdfm.load`).
        device: The device. Without a GPU, the CPU is used.
        batch_size: Sequences per batch, or "auto". It does not affect the results.
        max_batch_size: Ignored.
        draws: Monte Carlo draws of the time per sequence, for bounds.
        seed: The random seed for bounds and generation.
        check_greedy: Whether to check if a continuation is the greedy one, which some tasks report
            (LAMBADA). This takes one more evaluation per token.
        max_gen_toks: Tokens to generate if the task does not say.
        solver: The solver for generation. The default is "confidence" for mask sources, and the
            model's default solver for language models.
        steps: Steps per generation; default: one per token.
        options: Options of the solver.
    """

    def __init__(
        self,
        pretrained: str,
        revision: str | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
        device: str = "auto",
        batch_size: int | str = 16,
        max_batch_size: int | None = None,
        draws: int = 16,
        seed: int = 0,
        check_greedy: bool = True,
        max_gen_toks: int = 64,
        solver: str | None = None,
        steps: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_bool("check_greedy", check_greedy)
        check_integer("max_gen_toks", max_gen_toks)
        check_integer("steps", 1 if steps is None else steps)
        self.model = load(
            pretrained,
            device if torch.cuda.is_available() else "cpu",
            revision=revision,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
        )
        self.is_language = isinstance(self.model, LanguageModel)
        self.view = view_model(self.model)
        if self.is_language:
            self.tokenizer = self.model.tokenizer
        default_size = 16 if self.is_language else auto_batch_size(self.model)
        self.batch_size = default_size if batch_size == "auto" else int(batch_size)
        self.draws, self.seed, self.check_greedy = draws, seed, check_greedy
        self.max_gen_toks, self.steps = max_gen_toks, steps
        self.has_solver = solver is not None
        self.solver = partial(_make_solver, self.view.method, solver, options)
        self.solver((0.0, None))  # raises an error for invalid options now

    @property
    def max_length(self) -> int:
        """The maximum sequence length."""
        return self.view.length

    @property
    def eot_token_id(self) -> int:
        return self.view.end

    @property
    def prefix_token_id(self) -> int:
        return self.view.start

    def tok_encode(self, string: str, add_special_tokens: Any = None, **_: Any) -> list[int]:
        return self.view.encode(string)

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of entire texts, in windows with one token of context each."""
        log_likelihoods = [0.0] * len(requests)
        rows: list[Row] = []
        owner: list[int] = []
        for i, request in enumerate(requests):
            windows = _utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            )
            for context, text in map(_utils.make_disjoint_window, windows):
                rows.append((context + text, len(context)))
                owner.append(i)
        for i, nats in zip(owner, self._nats(rows), strict=True):
            log_likelihoods[i] -= nats
        return log_likelihoods

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
        rows = [self._row(context, text) for _, context, text in requests]
        greedy = [False] * len(rows)
        if self.check_greedy:
            jobs = [(ids[:n], len(ids) - n, (0.0, None)) for ids, n in rows]
            completions = self._complete(jobs)
            greedy = [
                ids[count:] == new for (ids, count), new in zip(rows, completions, strict=True)
            ]
        return [(-nats, same) for nats, same in zip(self._nats(rows), greedy, strict=True)]

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Continue each context until one of its stop strings."""
        jobs, stops = [], []
        for request in requests:
            context, kwargs = request.args
            kwargs = _model_utils.normalize_gen_kwargs(kwargs, self.max_gen_toks)
            new = kwargs["max_gen_toks"]
            if new >= self.max_length:
                raise InputError(
                    f"the task generates {new} tokens, but the model supports {self.max_length}, "
                    f"including the context; set --gen_kwargs max_gen_toks=N"
                )
            ids = self.tok_encode(context)
            ids = (ids if self.is_language else self._begin(ids))[new + 1 - self.max_length :]
            default = 1.0 if kwargs.get("do_sample") else 0.0
            jobs.append(
                (ids, new, (float(kwargs.get("temperature", default)), kwargs.get("top_p")))
            )
            stops.append(kwargs["until"])
        if self.is_language:
            texts = self._generate(jobs, stops)
        else:
            texts = [self.view.decode(ids) for ids in self._complete(jobs)]
        cut = _model_utils.postprocess_generated_text
        return [cut(text, stop, None) for text, stop in zip(texts, stops, strict=True)]

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Format a conversation with the chat template of a language model."""
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise InputError("this model has no chat template; omit --apply_chat_template")
        text: str = self.tokenizer.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return text

    @property
    def tokenizer_name(self) -> str:
        return str(getattr(self.tokenizer, "name_or_path", "")).replace("/", "__")

    def _generate(self, jobs: Sequence[Job], stops: Sequence[list[str]]) -> list[str]:
        """Generate texts with a language model, block by block."""
        texts = [""] * len(jobs)
        pairs = zip(jobs, stops, strict=True)
        numbered = [(i, *job, tuple(stop)) for i, (job, stop) in enumerate(pairs)]
        for group in _grouped(numbered, lambda job: job[2:], len(jobs)):
            numbers, given, (new, *_), (draws, *_), (stop, *_) = zip(*group, strict=True)
            out = self.model.generate(
                prompts=[self.tokenizer.decode(ids) for ids in given],
                max_new_tokens=new,
                steps=self.steps,
                solver=self.solver(draws) if self.has_solver else None,
                temperature=draws[0],
                top_p=draws[1],
                stop=[*self.model.stop_ids, *filter(None, stop)],
                seed=self.seed,
                index=torch.tensor(numbers),
                batch_size=self.batch_size,
            )
            for i, text in zip(numbers, out.texts, strict=True):
                texts[i] = text
        return texts

    def _row(self, context: list[int], text: list[int]) -> Row:
        """Join context and continuation, truncating the context on the left if it is too long."""
        if len(text) >= self.max_length:
            raise InputError(
                f"a continuation has {len(text)} tokens, but the model supports {self.max_length}, "
                f"including the context; use a task with shorter texts"
            )
        ids = [*self._begin(context), *text][-self.max_length :]
        return ids, len(ids) - len(text)

    def _begin(self, context: list[int]) -> list[int]:
        """Prepend the start token if the context is empty or the model requires it."""
        needs_start = not context or (self.view.begins and context[0] != self.view.start)
        return [self.view.start, *context] if needs_start else context

    def _nats(self, rows: Sequence[Row]) -> list[float]:
        """-log p of the continuation in each row, or its bound, in nats."""
        terms = [
            (i, self.view.swap(torch.tensor(ids)), fixed_n)
            for i, (ids, count) in enumerate(rows)
            for ids, fixed_n in self.view.terms(ids, count)
        ]
        nats_R = torch.zeros(len(rows), dtype=torch.float64)
        for group in _grouped(terms, lambda term: len(term[1]), self.batch_size):
            index_B = torch.tensor([i for i, _, _ in group])
            with warnings.catch_warnings():
                # about sequences shorter than in training
                warnings.filterwarnings("ignore", "x_1 is")
                bound = self.view.method.likelihood(
                    self.view.network(),
                    torch.stack([x_n for _, x_n, _ in group]),
                    fixed=torch.stack([fixed_n for _, _, fixed_n in group]),
                    index=index_B,
                    seed=self.seed,
                    draws=self.draws,
                    batch_size=self.batch_size,
                )
            nats_R.index_add_(0, index_B, bound.nats_B.cpu())
        return nats_R.tolist()

    def _complete(self, jobs: Sequence[Job]) -> list[list[int]]:
        """Generate the new tokens of each job."""
        completions: list[list[int]] = [[] for _ in jobs]
        numbered = [(i, *job) for i, job in enumerate(jobs)]
        for group in _grouped(numbered, lambda job: (len(job[1]), *job[2:]), self.batch_size):
            numbers, given, (count, *_), (draws, *_) = zip(*group, strict=True)
            begin = len(given[0])
            after = self.view.after(begin + count)
            length = begin + count + len(after)
            position_N = torch.arange(length)
            fixed_N = position_N < begin
            if self.view.closing:
                fixed_N |= position_N >= begin + count
            blank = [0] * count
            prompt_BN = self.view.swap(torch.tensor([[*ids, *blank, *after] for ids in given]))
            request = SampleRequest(
                shape=(len(group), length),
                steps=self.view.method.steps(self.steps or count, length),
                seed=self.seed,
                grid="kappa",
                prompt=prompt_BN,
                fixed=fixed_N.expand(len(group), -1),
                index=torch.tensor(numbers),
            )
            samples = self.view.method.sample(self.view.network(), self.solver(draws), request)
            tokens_BN = self.view.swap(samples.tokens.cpu())[:, begin : begin + count]
            for i, ids in zip(numbers, tokens_BN.tolist(), strict=True):
                completions[i] = ids
        return completions


def _make_solver(method: Method, name: str | None, options: dict[str, Any], draws: Draws) -> Any:
    masked = isinstance(method, Flow) and method.source.marks_noise
    name = name or ("confidence" if masked else method.default_solver)
    temperature, top_p = draws
    if "temperature" in options:
        raise InputError("temperature is an option of generation; set it with --gen_kwargs")
    given = {"temperature": temperature} | ({} if top_p is None else {"top_p": top_p})
    return method.adapt(make_solver(name, **options | given))


def _grouped(items: Iterable[Any], key: Callable[[Any], Any], size: int) -> Iterable[list[Any]]:
    """Yield batches of items with the same key."""
    groups = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    for group in groups.values():
        yield from (group[i : i + size] for i in range(0, len(group), size))


def main() -> None:
    """Run the command `lm_eval`, reporting invalid input without a traceback."""
    try:
        _load("lm_eval.__main__").cli_evaluate()
    except InputError as error:
        print(f"cwdfm: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
