"""`cwdfm sample MODEL --prompts FILE --out FILE`: generate text with a language model."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from cwdfm.cli.options import (
    by_flags,
    fields_given,
    flag,
    flags_given,
    model_first,
    parse,
    value_given,
)
from cwdfm.cli.progress import Progress
from cwdfm.cli.sample_options import solver_config
from cwdfm.cli.streams import STREAM, standard_input, standard_output
from cwdfm.errors import InputError, check_integer
from cwdfm.files import check_output_file
from cwdfm.generation import generate
from cwdfm.language import LanguageModel
from cwdfm.language.prompts import check_conversation, encode_prompts
from cwdfm.language.session import CacheKind
from cwdfm.pretrained import load
from cwdfm.provenance import provenance
from cwdfm.sample_file import PartialSamples, SampleFile, check_format, write_samples
from cwdfm.solver_config import Name, SolverConfig, build_solver

KINDS = ("prompt", "messages", "template")
FORMATS = (".jsonl", ".csv")  # texts may contain line breaks


@dataclass(frozen=True, kw_only=True)
class Options:
    """Continue prompts with a language model, such as LLaDA, Dream, SDAR or BERT.

    The prompts are a .txt file with one prompt per line, or a .jsonl file. In JSON lines, every
    line is a string, or an object with one of "prompt", "messages" (a conversation to answer) or
    "template" (a text with holes: [12] is twelve tokens). Standard input is read as JSON lines if
    it starts with an object, and otherwise as one prompt per line. This help shows the options of
    the solver chosen with --solver. --threshold 0.9 without --solver reveals, in each step, all
    tokens with at least this probability, at temperature 0.
    """

    model: str  # MODEL (first argument): a folder, or owner/name on the hub
    prompts: Path  # file of prompts: .jsonl or .txt; - is standard input
    # Output file: .jsonl (text, tokens, provenance) or .csv. - is standard output, as JSON lines.
    out: Path
    chat: bool = False  # format every prompt as a user message with the model's chat template
    max_new_tokens: int = 128  # maximum number of tokens to generate
    block_length: int | None = None  # tokens per block; default: the model's
    stop: tuple[str, ...] = ()  # strings that end a text, like the model's end tokens
    steps: int | None = None  # total number of steps; default: the model's, or one per token
    # auto: the model's default, which reveals the most confident token first, at temperature 0
    # (DiffusionGemma: an entropy bound, at temperature 0.6). --temperature and --top-p override it.
    solver: Name = "auto"
    solver_options: SolverConfig = field(default_factory=SolverConfig)
    # KV cache: none, exact, or one of the approximations prefix, dual and prompt.
    cache: CacheKind | None = None
    seed: int = 0  # random seed
    # auto: the dtype of the model files.
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    batch_size: int = 16  # prompts per batch
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    revision: str | None = None  # commit of a model on the hub
    # Execute Python code from the model's repository; a hub model also requires --revision.
    trust_remote_code: bool = False
    force: bool = False  # overwrite the output file


def main(arguments: list[str]) -> None:
    """Parse the options, generate, and write the output file."""
    argv = with_threshold(model_first("sample", arguments))
    config = solver_config(argv, SolverConfig())
    options = parse(
        "sample MODEL --prompts FILE",
        argv,
        lambda missing: Options(model=missing, prompts=missing, out=missing, solver_options=config),
    )
    streamed = str(options.out) == STREAM
    with (
        by_flags(Options, **{field.name: field.name for field in fields(config)}),
        standard_output(options.out, "texts.jsonl") as out,
        standard_input([str(options.prompts)], ".txt") as (prompts,),
    ):
        options = replace(options, out=out)
        check_format(options.out, FORMATS)
        PartialSamples(options.out, {}).discard_if_written()
        check_output_file(options.out, force=options.force)
        check_integer("max_new_tokens", options.max_new_tokens)
        check_integer("batch_size", options.batch_size)
        texts = read_prompts(Path(prompts), chat=options.chat)
        solver: dict[str, Any] = {}
        if options.solver != "auto":
            solver["solver"] = build_solver(options.solver, options.solver_options)
        else:  # the defaults are those of the model's default solver
            given = fields_given(SolverConfig, argv)
            solver |= {name: getattr(options.solver_options, name) for name in sorted(given)}
        summary = _run(options, texts, solver)
    if not streamed:
        print(f"written: {summary}")


def with_threshold(argv: list[str]) -> list[str]:
    """Let --threshold without --solver select the threshold solver, by default at temperature 0."""
    given = flags_given(argv)
    if flag("threshold") not in given or value_given("solver", argv) is not None:
        return argv
    temperature = [] if flag("temperature") in given else ["--temperature", "0"]
    return [*argv, "--solver", "threshold", *temperature]


def _run(options: Options, texts: dict[str, list[Any]], solver: dict[str, Any]) -> str:
    """Generate and write the texts; returns a summary."""
    model = load(
        options.model, options.device, revision=options.revision, dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
    )  # fmt: skip
    if not isinstance(model, LanguageModel):
        raise InputError(
            f"--prompts requires a language model such as LLaDA or BERT, and {options.model} is "
            f"not one; use --prompt, the text that every sample starts with, or in Python a list, "
            f"cwdfm.generate(model, prompt=[...])"
        )
    names = ("max_new_tokens", "block_length", "steps", "cache", "seed", "batch_size")
    chosen: dict[str, Any] = {name: getattr(options, name) for name in names}
    chosen["stop"] = options.stop or None
    (prompts,) = texts.values()
    encode_prompts(model, options.max_new_tokens, **texts)  # reports errors before any work starts
    irrelevant: dict[str, Any] = {"out": None, "force": None, "batch_size": None, "device": None}
    if "solver" not in solver:
        irrelevant["solver_options"] = solver
    settings = {name: str(value) for name, value in (asdict(options) | irrelevant).items()}
    partial = PartialSamples(options.out, settings | texts)
    with partial.lock(force=options.force):
        finished = partial.open(force=options.force)
        if finished:
            print(f"resuming: {len(finished)} of {len(prompts)} texts", flush=True)
        todo = [i for i in range(len(prompts)) if i not in finished]
        with Progress("generating", len(todo)) as progress:
            for first in range(0, len(todo), options.batch_size):
                index = todo[first : first + options.batch_size]
                chosen |= {kind: [rows[i] for i in index] for kind, rows in texts.items()}
                out = generate(model, index=torch.tensor(index), **chosen, **solver)
                columns = (out.texts, out.tokens, out.evaluations.tolist(), out.new_tokens.tolist())
                keys = ("text", "tokens", "evaluations", "new_tokens")
                records = (dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True))
                partial.add(dict(zip(index, records, strict=True)))
                progress.advance(len(index))
        done = list(partial.records().values())
        new, evaluations = (sum(r[name] for r in done) for name in ("new_tokens", "evaluations"))
        header = {"options": settings, "family": model.family, "provenance": provenance()}
        header |= {"evaluations": evaluations, **texts}
        file = SampleFile([r["text"] for r in done], [r["tokens"] for r in done], header)
        write_samples(options.out, file)
        partial.discard()
    rate = f"{new / max(1, evaluations):.2f} tokens per evaluation"
    return f"{len(done)} texts to {options.out} ({new} tokens, {rate})"


def read_prompts(path: Path, *, chat: bool) -> dict[str, list[Any]]:
    """Read prompts, messages or templates from a file, as an argument of `generate`."""
    if path.suffix not in (".jsonl", ".txt"):
        raise InputError(
            f"--prompts must be a .jsonl or .txt file, or {STREAM} for standard input, got "
            f"{str(path)!r}; write one JSON object or one prompt per line"
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")  # some editors write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prompts {path} cannot be read ({error}); pass a text file") from error
    # Not `splitlines`: JSON strings may contain other line separators, such as U+2028.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    rows = [_parse_line(path, i, line) for i, line in enumerate(lines, start=1) if line.strip()]
    kinds = {kind for kind, _ in rows}
    if len(kinds) != 1:
        mixed = f"mixes {' and '.join(sorted(kinds))}" if kinds else "contains no prompts"
        raise InputError(f"{path} {mixed}; use lines of one type ({', '.join(KINDS)})")
    (kind,), values = kinds, [value for _, value in rows]
    if chat and kind == "prompt":
        return {"messages": [[{"role": "user", "content": text}] for text in values]}
    if chat and kind == "template":
        raise InputError("--chat does not apply to templates; omit it")
    return {kind if kind == "messages" else f"{kind}s": values}


def _parse_line(path: Path, number: int, line: str) -> tuple[str, Any]:
    """The kind of one line (one of KINDS) and its content."""
    if path.suffix != ".jsonl":
        return "prompt", line
    place = f"{path}:{number}"
    try:
        content = json.loads(line)
    except ValueError as error:
        raise InputError(
            f"{place} is not valid JSON ({error}); write one object per line, or name the file .txt"
        ) from error
    if isinstance(content, str):
        return "prompt", content
    present = [kind for kind in KINDS if isinstance(content, Mapping) and kind in content]
    if len(present) != 1:
        raise InputError(
            f"{place} must be a string, or an object with one of {', '.join(KINDS)}, got "
            f"{line[:80]}"
        )
    (kind,), value = present, content[present[0]]
    if kind == "messages":
        check_conversation(f"messages of {place}", value)
    elif not isinstance(value, str):
        raise InputError(f"{kind} of {place} must be a string, got {line[:80]}")
    return kind, value
