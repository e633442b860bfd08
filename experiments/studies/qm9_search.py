"""Search for samplers with many valid and novel molecules.

    python -m experiments.studies.qm9_search sample --models qm9-uniform-small --work DIR \
        --setting solver=euler,steps=64,resample_rounds=80
    python -m experiments.studies.qm9_search score --work DIR --out qm9_search.json

`--setting` names a sampler by the fields of `Setting` that differ from their defaults.
`--settings-of RECORD` repeats the samplers of a recorded search, for example `qm9_mend`. Searches
use seed 100; final results use `--seed 0`. `score` needs RDKit. It also computes the counts after
rejecting the least plausible samples.

Models that memorize less should give more novel molecules. `train` trains a model on several
randomized SMILES per molecule (see `cwdfm prepare qm9 --help`):

    python -m experiments.studies.qm9_search train --data qm9-24.npz --steps 12000 --models DIR
    python -m experiments.studies.qm9_search sample --models DIR/model --settings-of qm9_spelled24 \
        --work SAMPLES
    python -m experiments.studies.qm9_search score --work SAMPLES --training DIR/training.json \
        --out qm9_spelled24.json

The record contains the counts of every fold. `score --samples FILE.tgz` archives the samples (0.1
MB per setting), and `--training` accepts the records of several trainings, one per seed.
"""

import argparse
import json
import math
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import cwdfm
from cwdfm import data
from cwdfm.data.smiles import CanonicalSet
from cwdfm.generation import generate
from cwdfm.metrics.molecule import score_molecules
from cwdfm.postprocess.refine import Refine
from cwdfm.postprocess.reject import Reject
from cwdfm.postprocess.resample import Resample
from cwdfm.solver_config import Name
from cwdfm.train.loop import fit
from cwdfm.train.recipes import RECIPES
from cwdfm.train.run import Run
from cwdfm.trained import auto_batch_size, prompt_tokens
from experiments.results import record
from experiments.solver_choice import SolverChoice
from experiments.studies.command import save
from experiments.studies.molecule_tables import setting_of
from experiments.tasks.score import molecule_counts
from experiments.tasks.train import Snapshots

SAMPLES, SEED = 1024, 100
KEPT = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)  # shares of samples that rejection keeps


@dataclass(frozen=True)
class Setting:
    """A sampler with its post-processing. Results record its fields."""

    solver: Name = "neighbor"
    radius: int = 1
    scale: float = 4.0
    beta: float = 6.0
    corrector: float = 0.0
    temperature: float = 1.0
    steps: int = 256
    rounds: int = 0  # of refinement, 6 steps each
    share: float = 0.1  # of the tokens that a round of refinement noises
    cold: float = 1.0  # temperature of refinement
    resample_rounds: int = 0  # at most
    noise: float = 0.5  # noise fraction that resampling is conditioned on
    trust: float = 0.8  # probability above which resampling keeps a token
    again: float = 1.0  # temperature of resampling
    accept: float = 0.0  # plausibility below which a sample is rejected
    tries: int = 8  # maximum draws per sample
    glance: float | None = None  # noise fraction that plausibility is conditioned on

    def choice(self) -> SolverChoice:
        names = ("solver", "radius", "scale", "beta", "corrector", "temperature")
        return SolverChoice(**{name: getattr(self, name) for name in names})

    def refine(self) -> Refine | None:
        return Refine(self.rounds, self.share, temperature=self.cold) if self.rounds else None

    def resample(self) -> Resample | None:
        if not self.resample_rounds:
            return None
        return Resample(self.resample_rounds, self.noise, self.trust, self.again)

    def reject(self) -> Reject | None:
        return Reject(self.accept, self.tries, self.glance) if self.accept else None


def train(place: str, steps: int, keep: tuple[int, ...], folder: Path, seed: int) -> None:
    """Train a 17M model with a uniform source; keep snapshots and a record of the training."""
    config = RECIPES["qm9-small"]().updated(
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
    tokens = data.load(place, length=config.data.length)
    run = Run(config, tokens, folder / "run", device)
    run.resume()
    if stopped := fit(run, [Snapshots(run, keep, folder)]):
        sys.exit(128 + stopped)
    run.averaged().save_pretrained(folder / "model")
    models = ["model", *(f"model-{step}" for step in keep)]
    found = {
        "config": config.flat(),
        "data": tokens.fingerprint,
        "weights": {name: cwdfm.load(folder / name).fingerprint() for name in models},
        "metrics": list(map(json.loads, (folder / "run" / "metrics.jsonl").open())),
    }
    save(folder / "training.json", **found)


def draw(models: list[str], settings: Iterable[Setting], work: Path, n: int, seed: int) -> None:
    """Draw samples for every model and setting whose file does not exist yet."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name in models:
        trained = cwdfm.load(name, device)
        trained.model.capture_trunk()
        for setting in settings:
            default = asdict(Setting())
            changed = {k: v for k, v in asdict(setting).items() if v != default[k]}
            label = "-".join(f"{k}-{v}" for k, v in changed.items()) or "default"
            path = work / f"{trained.fingerprint()[:8]}-{n}-{seed}-{label}.json"
            if not path.exists():
                found = sample(trained, setting, n, seed)
                save(path, model=name, **found)
                print(f"{path.stem}: {found['seconds']:.1f} s", flush=True)


def sample(trained: cwdfm.Pretrained, setting: Setting, n: int, seed: int) -> dict[str, Any]:
    """Samples of one setting, with their plausibility and their cost."""
    device = next(trained.model.parameters()).device
    start = time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        out = generate(
            trained,
            setting.choice().build(trained.method),
            n=n,
            steps=setting.steps,
            seed=seed,
            refine=setting.refine(),
            resample=setting.resample(),
            reject=setting.reject(),
        )
        seconds = time.perf_counter() - start
        plausible = cwdfm.plausibility(
            trained.model,
            trained.source,
            trained.schedule,
            out.tokens,
            seed=seed,
            fixed=prompt_tokens(trained)[1],
            batch_size=auto_batch_size(trained),
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


def accepting(
    texts: list[str], plausible: list[float], training: CanonicalSet
) -> Iterator[dict[str, float]]:
    """Counts per 1,024 samples if the least plausible samples were rejected.

    The remaining samples form folds of equal size, and counts are scaled to 1,024. With smaller
    folds the unique and novel counts are slightly too high.
    """
    order = sorted(range(len(texts)), key=lambda i: -plausible[i])
    for share in KEPT:
        kept = order[: round(share * len(texts))]
        fold = len(kept) // math.ceil(len(kept) / SAMPLES)
        found = molecule_counts([texts[i] for i in sorted(kept)], training, fold)
        yield {"share": share, "least": plausible[kept[-1]]} | found


def fold_counts(texts: list[str], training: CanonicalSet) -> dict[str, list[int]]:
    """Valid, unique and novel molecules of every fold of 1,024 samples."""
    scores = score_molecules(texts, training, fold_size=SAMPLES).to_json()
    return {name: scores[name]["counts"] for name in ("valid", "unique", "novel")}


def score(work: Path, out: Path, trained: Sequence[Path], samples: Path | None) -> None:
    """Score all samples in a folder; include the records of the models' trainings."""
    training = CanonicalSet(data.load("qm9").texts("train"))
    rows = []
    for path in sorted(work.glob("*.json")):
        found = json.loads(path.read_text())
        texts, plausible = found.pop("texts"), found.pop("plausibility", None)
        row = (
            found
            | molecule_counts(texts, training, SAMPLES)
            | {"folds": fold_counts(texts, training)}
        )
        if plausible and not row["setting"]["accept"]:
            row["accepting"] = list(accepting(texts, plausible, training))
        rows.append(row)
    seeds = {row["seed"] for row in rows}
    assert len(seeds) <= 1, f"{work} has samples of several seeds: {sorted(seeds)}"
    made = [json.loads(path.read_text()) for path in trained]
    seed_of = {w: each["config"]["seed"] for each in made for w in each["weights"].values()}
    if made:
        unknown = {row["weights"] for row in rows} - seed_of.keys()
        assert not unknown, f"{work} has samples of models without a record: {unknown}"
        rows = [row | {"training_seed": seed_of[row["weights"]]} for row in rows]
    rows.sort(key=lambda row: -row["valid"])
    for row in rows:
        print(f"{row['model']:20} {row['valid']:7.1f} {row['novel']:7.1f} {row['setting']}")
    save(out, config={}, training=made, rows=rows)
    if samples is not None:
        with tarfile.open(samples, "w:gz") as archive:
            for path in sorted(work.glob("*.json")):
                archive.add(path, path.name)


def parse_setting(text: str) -> Setting:
    """A setting from `name=value,name=value`."""
    pairs = dict(part.split("=") for part in text.split(","))
    values: dict[str, Any] = {k: v if k == "solver" else json.loads(v) for k, v in pairs.items()}
    try:
        return Setting(**values)
    except TypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def settings_of(name: str) -> list[Setting]:
    """The settings of a recorded search."""
    return list(dict.fromkeys(Setting(**setting_of(row)) for row in record(name)["rows"]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Search for samplers of molecules.")
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("--data", required=True)
    training.add_argument("--steps", type=int, default=8000)
    training.add_argument("--keep", type=int, nargs="*", default=[], help="steps to snapshot")
    training.add_argument("--models", type=Path, required=True, help="output folder")
    training.add_argument("--seed", type=int, default=0)
    sampling = commands.add_parser("sample")
    sampling.add_argument("--models", nargs="+", required=True)
    sampling.add_argument("--work", type=Path, required=True, help="folder of the samples")
    which = sampling.add_mutually_exclusive_group(required=True)
    which.add_argument("--setting", type=parse_setting, nargs="+", help="name=value,name=value")
    which.add_argument("--settings-of", type=settings_of, help="a recorded search")
    sampling.add_argument("--n", type=int, default=SAMPLES)
    sampling.add_argument("--seed", type=int, default=SEED)
    scoring = commands.add_parser("score")
    scoring.add_argument("--work", type=Path, required=True, help="folder of the samples")
    scoring.add_argument("--training", type=Path, nargs="*", default=[], help="their training.json")
    scoring.add_argument("--samples", type=Path, help="archive to keep the samples in, a .tgz")
    scoring.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "train":
        train(options.data, options.steps, tuple(options.keep), options.models, options.seed)
    elif options.command == "sample":
        options.work.mkdir(parents=True, exist_ok=True)
        chosen = options.setting or options.settings_of
        draw(options.models, chosen, options.work, options.n, options.seed)
    else:
        score(options.work, options.out, options.training, options.samples)


if __name__ == "__main__":
    main()
