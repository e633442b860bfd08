"""`cwdfm sample MODEL --out FILE`: draw sequences from a trained model."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from cwdfm.cli.options import parse
from cwdfm.errors import InputError, check_integer
from cwdfm.pretrained import Pretrained, load
from cwdfm.provenance import provenance
from cwdfm.solver import Corrector, Euler, Samples, sample
from cwdfm.weight import Entropy, Neighbor, Weight

FORMATS = (".jsonl", ".smi", ".txt")


@dataclass(frozen=True)
class Options:
    """Draw sequences. Sample number i of a seed is the same whatever the batch size."""

    model: str  # a model in the box by its name, or a folder with one
    out: Path  # .jsonl (tokens, text and provenance), or .smi / .txt (one text a line)
    n: int = 1024  # how many samples
    steps: int = 64
    seed: int = 0
    solver: Literal["euler", "neighbor", "entropy"] = "euler"
    radius: int = 1  # neighbor
    scale: float = 4.0  # neighbor
    beta: float = 6.0  # entropy
    corrector: float = 0.0  # scale of the corrector; 0 for none
    hazard: Literal["euler", "integrated"] = "euler"
    grid: Literal["t", "kappa"] = "t"
    temperature: float = 1.0
    top_p: float = 1.0
    batch_size: int = 1024
    device: str = "auto"  # auto, cpu, cuda, ...
    force: bool = False  # overwrite the output file


def main(arguments: list[str]) -> None:
    """Parse, sample, write."""
    first = bool(arguments) and not arguments[0].startswith("-")
    given = ["--model", arguments[0], *arguments[1:]] if first else arguments
    options = parse("sample MODEL", given, lambda missing: Options(missing, missing))
    check_integer("n", options.n)
    if options.out.suffix not in FORMATS:
        raise InputError(f"--out must end in {', '.join(FORMATS)}, got {options.out}")
    if options.out.exists() and not options.force:
        raise InputError(f"{options.out} exists; give another name, or --force to overwrite it")
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    trained = load(options.model, device)
    out = draw(trained, options)
    texts = [trained.tokenizer.decode(row) for row in out.tokens.tolist()]
    write(options, trained, out, texts)
    print(f"written: {len(texts)} samples to {options.out}")


def solver_of(options: Options) -> Euler:
    """The solver that the options name."""
    weights: dict[str, Weight | None] = {
        "euler": None,
        "neighbor": Neighbor(options.radius, options.scale),
        "entropy": Entropy(options.beta),
    }
    return Euler(
        weight=weights[options.solver],
        hazard=options.hazard,
        corrector=Corrector(options.corrector) if options.corrector else None,
        temperature=options.temperature,
        top_p=options.top_p,
    )


def draw(trained: Pretrained, options: Options) -> Samples:
    """The samples, with the first token given where the model was trained so."""
    prompt = fixed = None
    if trained.fix_first:
        prompt = torch.full((trained.length,), trained.tokenizer.pad_id)
        prompt[0] = trained.tokenizer.bos_id
        fixed = torch.arange(trained.length) == 0
    return sample(
        trained.model,
        trained.source,
        trained.schedule,
        solver_of(options),
        shape=(options.n, trained.length),
        steps=options.steps,
        seed=options.seed,
        grid=options.grid,
        prompt=prompt,
        fixed=fixed,
        batch_size=options.batch_size,
    )


def write(options: Options, trained: Pretrained, out: Samples, texts: list[str]) -> None:
    """One line a sample; in .jsonl behind a first line with where they come from."""
    lines = texts
    if options.out.suffix == ".jsonl":
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(options).items()}
        head: dict[str, Any] = {"provenance": provenance(), "options": settings}
        head["model"] = trained.card
        rows = zip(texts, out.tokens.tolist(), strict=True)
        records = [head, *({"text": text, "tokens": tokens} for text, tokens in rows)]
        lines = [json.dumps(record) for record in records]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    part = options.out.with_name(options.out.name + ".part")
    part.write_text("".join(line + "\n" for line in lines))
    part.replace(options.out)
