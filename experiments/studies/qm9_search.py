"""Which sampler gives the most valid molecules, and at what cost in novel ones.

    python -m experiments.studies.qm9_search sample --models qm9-uniform-small RUN --work DIR   # on a GPU
    python -m experiments.studies.qm9_search score --work DIR --out results/qm9_search.json     # with RDKit

One setting is varied at a time from Neighbor weights with 256 steps, then those that pull in
opposite directions together: temperature, which makes novel molecules, against the corrector and
steps, which make valid ones. `--what refine` asks what a few rounds of refining are worth beside as
many steps, `--what mend` how far mending goes from few steps and hot ones. All that is with another
seed than the one results are reported with, which is 0: `--what best --seed 0 --n 2048`. `--what
hot` begins with hot steps and mends with care. Every sample's plausibility is kept, and `score`
tells what accepting the more plausible ones would give, and by which bar.

Models that know little by heart should make more novel molecules: trained in several spellings of
each (`cwdfm prepare qm9 --spellings 8 --out qm9-8.npz`), and looked at on the way.

    python -m experiments.studies.qm9_search train --data qm9-8.npz --steps 8000 --keep 4000 --models DIR
    python -m experiments.studies.qm9_search sample --models DIR/model --what spelled --work SAMPLES
    python -m experiments.studies.qm9_search score --work SAMPLES --training DIR/training.json --out FILE

A single sampler is named by what differs from the usual one: `--setting steps=64,mend=80`.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import cwdfm
from cwdfm import data
from cwdfm.files import write_json
from cwdfm.generation import fitting_batch, generate, given
from cwdfm.metrics.molecule import CanonicalSet, score_molecules
from cwdfm.provenance import provenance
from cwdfm.train.loop import fit
from cwdfm.train.recipes import RECIPES
from cwdfm.train.run import Run
from experiments.jobs import Snapshots
from experiments.studies.qm9_settings import WHAT, Setting

SAMPLES, SEED = 1024, 100  # unless others are asked for
KEPT = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)  # shares that are accepted at once


def train(place: str, steps: int, keep: tuple[int, ...], folder: Path, seed: int) -> None:
    """A model of 17M with a uniform source, and what it was after some steps; a record of it."""
    recipe = replace(
        RECIPES["qm9-small"](),
        data=place,
        model="17m",
        steps=steps,
        warmup=steps // 10,
        ema=0.999,
        validate_every=2000,
        elbo_rows=0,
        previews=0,
        seed=seed,
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens = data.load(place, length=recipe.length)
    run = Run(recipe, tokens, folder / "run", device)
    run.resume()
    if stopped := fit(run, [Snapshots(run, keep, folder)]):
        sys.exit(128 + stopped)  # a checkpoint is there
    run.averaged().save_pretrained(folder / "model")
    models = ["model", *(f"model-{step}" for step in keep)]
    found = {
        "config": asdict(recipe),
        "data": tokens.fingerprint,
        "weights": {name: cwdfm.load(folder / name).fingerprint() for name in models},
        "metrics": list(map(json.loads, (folder / "run" / "metrics.jsonl").open())),
    }
    write_json(folder / "training.json", provenance() | found)


def draw(
    models: list[str],
    what: Iterable[Setting],
    work: Path,
    n: int,
    seed: int,
    most: int,
    budget: float,
) -> None:
    """Samples of every model and setting that is not there yet, until the time is up."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    start = time.perf_counter()
    for name in models:
        trained = cwdfm.load(name, device)
        trained.model.capture_trunk()
        for setting in (setting for setting in what if setting.steps <= most):
            usual = asdict(Setting())
            changed = {k: v for k, v in asdict(setting).items() if v != usual[k]}
            said = "-".join(f"{name}-{value}" for name, value in changed.items()) or "usual"
            path = work / f"{trained.fingerprint()[:8]}-{n}-{seed}-{said}.json"
            if path.exists():
                continue
            if time.perf_counter() - start > budget:
                print("the time is up")
                return
            found = drawn(trained, setting, n, seed)
            write_json(path, provenance() | {"model": name} | found)
            print(f"{path.stem}: {found['seconds']:.1f} s", flush=True)


def drawn(trained: cwdfm.Pretrained, setting: Setting, n: int, seed: int) -> dict[str, Any]:
    """Samples by one setting, with their plausibility and what they took."""
    device = next(trained.model.parameters()).device
    begun = time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        out = generate(
            trained,
            setting.choice().build(trained.method),
            n=n,
            steps=setting.steps,
            seed=seed,
            refine=setting.refine(),
            mend=setting.mending(),
            accept=setting.acceptance(),
        )
        seconds = time.perf_counter() - begun
        plausible = cwdfm.plausibility(
            trained.model,
            trained.source,
            trained.schedule,
            out.tokens,
            seed=seed,
            fixed=given(trained)[1],
            batch_size=fitting_batch(trained),
        )
    return {
        "weights": trained.fingerprint(),
        "samples": n,
        "seed": seed,
        "setting": asdict(setting),
        "seconds": seconds,
        "evaluations": float(out.evaluations.double().mean()),
        "plausibility": plausible.tolist(),
        "texts": [trained.tokenizer.decode(row) for row in out.tokens.tolist()],
    }


def counts(texts: list[str], training: CanonicalSet, fold: int = SAMPLES) -> dict[str, float]:
    """Of so many, or of all if they are fewer: the mean over folds."""
    scores = score_molecules(texts, training, fold_size=fold).to_json()
    return {name: scores[name]["mean"] for name in ("valid", "unique", "novel")}


def accepting(
    texts: list[str], plausible: list[float], training: CanonicalSet
) -> Iterator[dict[str, float]]:
    """What the counts of 1,024 would be, were the least plausible drawn again until they are more.

    Those left make folds of one size, and their counts are scaled up: where folds are smaller, a
    little too many are unique and novel.
    """
    order = sorted(range(len(texts)), key=lambda i: -plausible[i])
    for share in KEPT:
        kept = order[: round(share * len(texts))]
        fold = len(kept) // math.ceil(len(kept) / SAMPLES)
        found = counts([texts[i] for i in sorted(kept)], training, fold)
        scaled = {name: value * SAMPLES / fold for name, value in found.items()}
        yield {"share": share, "least": plausible[kept[-1]]} | scaled


def score(work: Path, out: Path, record: Path | None) -> None:
    """Count what is valid, unique and novel; with the record of the models' training."""
    training = CanonicalSet(data.load("qm9").texts("train"))
    rows = []
    for path in sorted(work.glob("*.json")):
        found = json.loads(path.read_text())
        texts, plausible = found.pop("texts"), found.pop("plausibility", None)
        row = found | counts(texts, training)
        if plausible and not row["setting"]["accept"]:
            row["accepting"] = list(accepting(texts, plausible, training))
        rows.append(row)
    seeds = {row["seed"] for row in rows}
    assert len(seeds) <= 1, f"samples of several seeds in {work}: {sorted(seeds)}"
    trained = json.loads(record.read_text()) if record else None
    if trained is not None:
        strange = {row["weights"] for row in rows} - set(trained["weights"].values())
        assert not strange, f"samples in {work} of models that {record} does not know: {strange}"
    rows.sort(key=lambda row: -row["valid"])
    for row in rows:
        what = " ".join(str(value) for value in row["setting"].values())
        print(f"{row['model']:20} {what:34} {row['valid']:7.1f} {row['novel']:7.1f}")
    write_json(out, provenance() | {"config": {}, "training": trained, "rows": rows})


def named(text: str) -> Setting:
    """By what differs from the usual one."""
    pairs = dict(part.split("=") for part in text.split(","))
    values: dict[str, Any] = {k: v if k == "solver" else json.loads(v) for k, v in pairs.items()}
    try:
        return Setting(**values)
    except TypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> None:
    parser = argparse.ArgumentParser(description="Search for the best sampler of molecules.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    training = verbs.add_parser("train")
    training.add_argument("--data", required=True)
    training.add_argument("--steps", type=int, default=8000)
    training.add_argument("--keep", type=int, nargs="*", default=[])
    training.add_argument("--models", type=Path, required=True, help="folder for them")
    training.add_argument("--seed", type=int, default=0)
    sample = verbs.add_parser("sample")
    sample.add_argument("--models", nargs="+", required=True)
    sample.add_argument("--work", type=Path, required=True)
    what = sample.add_mutually_exclusive_group()
    what.add_argument("--what", choices=list(WHAT), default="search")
    what.add_argument("--setting", type=named, nargs="+", help="name=value,name=value,...")
    sample.add_argument("--n", type=int, default=SAMPLES)
    sample.add_argument("--seed", type=int, default=SEED)
    sample.add_argument("--most", type=int, default=1024, help="leave out settings of more steps")
    sample.add_argument("--budget", type=float, default=600.0, help="seconds")
    scoring = verbs.add_parser("score")
    scoring.add_argument("--work", type=Path, required=True)
    scoring.add_argument("--training", type=Path, help="the record that `train` left")
    scoring.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.verb == "train":
        train(options.data, options.steps, tuple(options.keep), options.models, options.seed)
    elif options.verb == "sample":
        options.work.mkdir(parents=True, exist_ok=True)
        chosen = options.setting or list(WHAT[options.what]())
        sizes = (options.n, options.seed, options.most, options.budget)
        draw(options.models, chosen, options.work, *sizes)
    else:
        score(options.work, options.out, options.training)


if __name__ == "__main__":
    main()
