"""What the studies of guidance share: requests, draws, scores, and rejection sampling beside them.

Rejection sampling draws several molecules without guidance for each one it keeps: the valid one
whose property is closest to the request.
"""

import json
import math
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import cwdfm
from cwdfm.data.properties import PROPERTIES
from cwdfm.data.smiles import canonical, parse
from cwdfm.files import write_json
from cwdfm.metrics.descriptors import Descriptors
from cwdfm.metrics.tanimoto import similarities
from experiments.studies.command import save, study_parser

TARGETS = {"logP": (1.0, 4.0), "QED": (0.6, 0.9)}
STRENGTHS = (1.0, 2.0, 4.0)
DRAWS = (2, 4)  # of rejection sampling
STEPS, ROUNDS = 32, 10
Record = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A requested value of a property, and the guidance towards it."""

    name: str
    value: float
    strength: float
    form: str
    guidance: Any
    n: int  # samples


def requests() -> Iterator[tuple[str, float]]:
    """Every property with every requested value."""
    for name, values in TARGETS.items():
        for value in values:
            yield name, value


def guidance_parser(doc: str | None) -> ArgumentParser:
    """The options of both studies."""
    parser = study_parser(doc)
    parser.add_argument("--work", type=Path, required=True, help="a folder of finished settings")
    parser.add_argument("--n", type=int, default=128, help="samples per setting")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def draw(trained: Any, n: int, seed: int, guidance: Any = ()) -> Record:
    start = time.perf_counter()
    out = trained.generate(
        cwdfm.Euler(),
        n=n,
        steps=STEPS,
        seed=seed,
        grid="kappa",
        resample=cwdfm.Resample(ROUNDS),
        guidance=guidance,
    )
    seconds = time.perf_counter() - start
    return {
        "texts": out.texts,
        "evaluations": float(out.evaluations.double().mean()),
        "seconds": seconds / n,
    }


def scores(texts: Sequence[str], name: str, value: float) -> Record:
    """Validity, the distance of the property from the request, and diversity of valid samples."""
    found = Descriptors.of(texts, filters=False)
    n = len(found)
    counts = {"samples": len(texts), "valid": n / len(texts)}
    if n < 2:
        return counts
    obtained = found.properties[name]
    errors = np.abs(obtained - value)
    _, similarity, _ = similarities(found.fingerprints, found.fingerprints)
    return counts | {
        "unique": len(set(found.smiles)) / n,
        "obtained": float(obtained.mean()),
        "error": float(errors.mean()),
        "standard_error": float(errors.std(ddof=1) / math.sqrt(n)),
        "diversity": 1 - float(similarity.mean()),
    }


def closest(texts: Sequence[str], draws: int, name: str, value: float) -> list[str]:
    """Of each `draws` consecutive texts, the valid one closest to the request, or the first."""

    def distance(text: str) -> float:
        if canonical(text) is None:
            return math.inf
        return abs(PROPERTIES[name](parse(text)) - value)

    groups = (texts[i : i + draws] for i in range(0, len(texts) - draws + 1, draws))
    return [min(group, key=distance) for group in groups]


def kept(path: Path, make: Callable[[], Record]) -> Record:
    """The content of a JSON file, which is written first if it does not exist."""
    if not path.exists():
        write_json(path, make())
    found: Record = json.loads(path.read_text())
    return found


def unguided(pool: Mapping[str, Any], n: int) -> list[Record]:
    """The rows of samples without guidance, and of rejection sampling from them."""
    rows = []
    for name, value in requests():
        for draws in (1, *DRAWS):
            texts = closest(pool["texts"][: n * draws], draws, name, value)
            row = {"property": name, "requested": value, "draws": draws}
            cost = {key: draws * pool[key] for key in ("evaluations", "seconds")}
            rows.append(row | cost | scores(texts, name, value))
    return rows


def compare(trained: Any, settings: Iterable[Setting], options: Namespace, **config: Any) -> None:
    """Measure every setting, and rejection sampling beside them; finished settings are kept."""
    work, n, seed = options.work, options.n, options.seed
    work.mkdir(parents=True, exist_ok=True)
    pool = kept(work / "unguided.json", partial(draw, trained, n * max(DRAWS), seed))
    rows = unguided(pool, n)
    for each in settings:
        name, value = each.name, each.value
        path = work / f"{name}-{value:g}-{each.strength:g}-{each.form}.json"
        found = kept(path, partial(draw, trained, each.n, seed, each.guidance))
        row = {"property": name, "requested": value, "strength": each.strength, "form": each.form}
        cost = {key: found[key] for key in ("evaluations", "seconds")}
        rows.append(row | cost | scores(found["texts"], name, value))
        print(rows[-1], flush=True)
    config |= {"n": n, "seed": seed, "steps": STEPS, "rounds": ROUNDS}
    save(options.out, config=config, rows=rows)
