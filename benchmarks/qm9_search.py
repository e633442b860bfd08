"""Which sampler gives the most valid molecules, and at what cost in novel ones.

    python -m benchmarks.qm9_search sample --models qm9-uniform-small RUN --work DIR   # on a GPU
    python -m benchmarks.qm9_search score --work DIR --out results/qm9_search.json     # with RDKit

One setting is varied at a time from Neighbor weights with 256 steps, then those that pull in
opposite directions together: temperature, which makes novel molecules, against the corrector and
steps, which make valid ones. `--what refine` asks what a few rounds of refining are worth beside as
many steps, `--what mend` how far mending goes from few steps and hot ones. All that is with another
seed than the one results are reported with, which is 0: `--what best --seed 0 --n 2048`. `--what
hot` begins with hot steps and mends with care. Every sample's plausibility is kept, and `score`
tells what accepting the more plausible ones would give, and by which bar.

Models that know little by heart should make more novel molecules: trained in several spellings of
each (`cwdfm prepare qm9 --spellings 8 --out qm9-8.npz`), and looked at on the way.

    python -m benchmarks.qm9_search train --data qm9-8.npz --steps 8000 --keep 4000 --models DIR
    python -m benchmarks.qm9_search sample --models DIR/model --what spelled --work SAMPLES
"""

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import torch

import cwdfm
from cwdfm import data
from cwdfm.generation import fitting_batch, generate, given
from cwdfm.method.choice import Name, SolverChoice
from cwdfm.metric import CanonicalSet, score_molecules
from cwdfm.provenance import provenance, write_json
from cwdfm.repro.jobs import Snapshots
from cwdfm.solver import Accept, Mend, Refine
from cwdfm.train.loop import fit
from cwdfm.train.recipes import RECIPES
from cwdfm.train.run import Run

SAMPLES, SEED = 1024, 100  # unless others are asked for
KEPT = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)  # shares that are accepted at once


@dataclass(frozen=True)
class Setting:
    """A sampler."""

    solver: Name = "neighbor"
    radius: int = 1
    scale: float = 4.0
    beta: float = 6.0
    corrector: float = 0.0
    temperature: float = 1.0
    steps: int = 256
    rounds: int = 0  # of refining, 6 steps each
    share: float = 0.1
    cold: float = 1.0  # temperature there
    mend: int = 0  # rounds of mending, at most
    noise: float = 0.5  # share of the tokens that is taken for noise there
    trust: float = 0.8
    again: float = 1.0  # temperature there
    accept: float = 0.0  # least plausibility
    tries: int = 8

    def choice(self) -> SolverChoice:
        return SolverChoice(
            solver=self.solver,
            radius=self.radius,
            scale=self.scale,
            beta=self.beta,
            corrector=self.corrector,
            temperature=self.temperature,
        )

    def refine(self) -> Refine | None:
        if self.rounds == 0:
            return None
        return Refine(self.rounds, self.share, temperature=self.cold)

    def mending(self) -> Mend | None:
        if self.mend == 0:
            return None
        return Mend(self.mend, self.noise, self.trust, self.again)

    def acceptance(self) -> Accept | None:
        return Accept(self.accept, self.tries) if self.accept else None


def settings() -> Iterator[Setting]:
    """Each once."""
    single = [
        Setting(),
        Setting(solver="euler"),
        *(Setting(steps=steps) for steps in (64, 512, 1024)),
        *(Setting(solver="euler", steps=steps) for steps in (512, 1024)),
        *(Setting(scale=scale) for scale in (1.0, 2.0, 6.0, 8.0)),
        *(Setting(radius=radius, scale=2.0) for radius in (2, 3)),
        *(Setting(corrector=scale) for scale in (0.5, 1.0, 2.0, 5.0)),
        *(Setting(temperature=t) for t in (0.8, 0.9, 1.1, 1.2, 1.3)),
    ]
    # The paper's rule against counted jumps, from few steps to many.
    weighted: tuple[Name, ...] = (
        "neighbor",
        "neighbor-counted",
        "entropy",
        "entropy-counted",
        "euler",
    )
    single += [
        Setting(solver=solver, beta=beta, steps=steps)
        for solver, steps in product(weighted, (16, 32, 64, 128, 256))
        for beta in ((1.5, 6.0) if solver.startswith("entropy") else (6.0,))
    ]
    both: tuple[Name, ...] = ("neighbor", "euler")
    pairs = product(both, (1.1, 1.2, 1.3, 1.5), (1.0, 3.0, 10.0), (256, 1024))
    mixed = [
        Setting(solver=solver, temperature=t, corrector=scale, steps=steps)
        for solver, t, scale, steps in pairs
    ]
    yield from dict.fromkeys([*single, *mixed])


def refinements() -> Iterator[Setting]:
    """Rounds of refining against steps, plain, hot before and cold in them."""
    for steps in (32, 64, 128):
        yield Setting(solver="euler", steps=steps)
        for rounds in (2, 6):
            for cold in (1.0, 0.5):
                yield Setting(solver="euler", steps=steps, rounds=rounds, cold=cold)
    for hot, cold, share in product((1.2, 1.5), (0.5, 0.8), (0.1, 0.3)):
        for rounds in (2, 6):
            yield Setting(
                solver="euler", steps=64, temperature=hot, rounds=rounds, share=share, cold=cold
            )


def mends() -> Iterator[Setting]:
    """From few steps to many, then from hot ones, with more trust and with less."""
    for steps in (8, 16, 32, 64):
        yield Setting(solver="euler", steps=steps)
        for trust in (0.5, 0.8):
            yield Setting(solver="euler", steps=steps, mend=80, trust=trust)
    for hot in (1.5, 2.0):
        yield Setting(solver="euler", steps=64, temperature=hot)
        for again, noise in product((0.3, 0.5), (0.3, 0.5)):
            yield Setting(
                solver="euler", steps=64, temperature=hot, mend=80, noise=noise, again=again
            )


def mends_of_masks() -> Iterator[Setting]:
    """The same with a mask source, where a round costs 1 / noise evaluations."""
    for steps in (16, 64):
        yield Setting(solver="euler", steps=steps)
        for noise, trust in ((0.125, 0.02), (0.125, 0.05), (0.0625, 0.05)):
            yield Setting(solver="euler", steps=steps, mend=10, noise=noise, trust=trust)


def best() -> Iterator[Setting]:
    """What the searches chose, with a uniform source: few steps, then mended."""
    for steps in (8, 16, 64):
        yield Setting(solver="euler", steps=steps)
        yield Setting(solver="euler", steps=steps, mend=80)


def best_of_masks() -> Iterator[Setting]:
    """The same with a mask source."""
    for steps in (16, 64):
        yield Setting(solver="euler", steps=steps)
        yield Setting(solver="euler", steps=steps, mend=10, noise=0.125, trust=0.02)


def spelled() -> Iterator[Setting]:
    """Mending for models that doubt less: with less noise, and less trust."""
    for steps in (64, 128):
        yield Setting(solver="euler", steps=steps)
    yield Setting(steps=128)
    yield Setting(steps=512)
    for steps, noise, trust in (
        *((64, 0.5, trust) for trust in (0.8, 0.5, 0.3)),
        *((64, 0.25, trust) for trust in (0.8, 0.5)),
        *((64, 0.1, trust) for trust in (0.8, 0.5)),
        (16, 0.5, 0.8),
        (16, 0.25, 0.8),
    ):
        yield Setting(solver="euler", steps=steps, mend=80, noise=noise, trust=trust)
    for noise, trust in ((0.5, 0.8), (0.25, 0.8), (0.25, 0.5)):
        yield Setting(steps=128, mend=80, noise=noise, trust=trust)
    for noise in (0.5, 0.25):
        yield Setting(
            solver="euler", steps=64, temperature=1.2, mend=80, noise=noise, trust=0.8, again=0.5
        )


def careful() -> Iterator[Setting]:
    """Many steps, then little noise, much trust asked for, and cold draws."""
    yield Setting(solver="euler", steps=512)
    for noise, trust, again in product((0.05, 0.1, 0.2), (0.9, 0.95, 0.99), (0.3, 0.5)):
        yield Setting(solver="euler", steps=512, mend=80, noise=noise, trust=trust, again=again)
    for mend, steps in ((200, 512), (80, 1024), (200, 1024)):
        yield Setting(solver="euler", steps=steps, mend=mend, noise=0.1, trust=0.95, again=0.5)


def hot() -> Iterator[Setting]:
    """Hot steps for novel molecules, then a bar or careful mending for valid ones."""
    for steps, heat in product((64, 256), (1.0, 1.2, 1.4, 1.7)):
        yield Setting(solver="euler", steps=steps, temperature=heat)
        for noise, trust, again in ((0.1, 0.95, 0.5), (0.25, 0.9, 0.5), (0.25, 0.8, 0.5)):
            yield Setting(
                solver="euler",
                steps=steps,
                temperature=heat,
                mend=80,
                noise=noise,
                trust=trust,
                again=again,
            )


def best_spelled() -> Iterator[Setting]:
    """What was chosen for a model in several spellings: careful mending, a bar instead, both."""
    careful = Setting(solver="euler", mend=80, noise=0.1, trust=0.95, again=0.5)
    yield replace(careful, steps=512)
    yield Setting(solver="euler", steps=256, temperature=1.5, accept=0.9992)
    yield replace(careful, steps=64, temperature=1.3, accept=0.9985)


WHAT = {
    "search": settings,
    "refine": refinements,
    "mend": mends,
    "mend-mask": mends_of_masks,
    "spelled": spelled,
    "careful": careful,
    "hot": hot,
    "best": best,
    "best-mask": best_of_masks,
    "best-spelled": best_spelled,
}


def train(place: str, steps: int, keep: tuple[int, ...], folder: Path) -> None:
    """A model of 17M with a uniform source, and what it was after some steps."""
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
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run = Run(recipe, data.load(place, length=recipe.length), folder / "run", device)
    run.resume()
    fit(run, [Snapshots(run, keep, folder)])
    if run.step < recipe.steps:
        raise KeyboardInterrupt  # told to stop; a checkpoint is there
    run.averaged().save_pretrained(folder / "model")


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
    half = device.type == "cuda"
    start = time.perf_counter()
    for name in models:
        trained = cwdfm.load(name, device)
        trained.model.record_trunk()
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
            begun = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                solver = setting.choice().build(trained.method)
                out = generate(
                    trained,
                    solver,
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
            texts = [trained.tokenizer.decode(row) for row in out.tokens.tolist()]
            found = {
                "model": name,
                "weights": trained.fingerprint(),
                "samples": n,
                "seed": seed,
                "setting": asdict(setting),
                "seconds": seconds,
                "evaluations": float(out.evaluations.double().mean()),
                "plausibility": plausible.tolist(),
                "texts": texts,
            }
            write_json(path, provenance() | found)
            print(f"{path.stem}: {found['seconds']:.1f} s", flush=True)


def counts(texts: list[str], training: CanonicalSet) -> dict[str, float]:
    """Of 1,024, or of all if they are fewer: the mean over folds."""
    scores = score_molecules(texts, training).to_json()
    return {name: scores[name]["mean"] for name in ("valid", "unique", "novel")}


def accepting(
    texts: list[str], plausible: list[float], training: CanonicalSet
) -> Iterator[dict[str, float]]:
    """What the counts of 1,024 would be, were the least plausible drawn again until they are more.

    Where fewer are left, their counts are scaled up: a little too many are unique and novel then.
    """
    order = sorted(range(len(texts)), key=lambda i: -plausible[i])
    for share in KEPT:
        kept = order[: round(share * len(texts))]
        found = counts([texts[i] for i in sorted(kept)], training)
        most = 1024 / min(1024, len(kept))
        scaled = {name: value * most for name, value in found.items()}
        yield {"share": share, "least": plausible[kept[-1]]} | scaled


def score(work: Path, out: Path) -> None:
    """Count what is valid, unique and novel."""
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
    rows.sort(key=lambda row: -row["valid"])
    for row in rows:
        what = " ".join(str(value) for value in row["setting"].values())
        print(f"{row['model']:20} {what:34} {row['valid']:7.1f} {row['novel']:7.1f}")
    write_json(out, provenance() | {"config": {}, "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description="Search for the best sampler of molecules.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    training = verbs.add_parser("train")
    training.add_argument("--data", required=True)
    training.add_argument("--steps", type=int, default=8000)
    training.add_argument("--keep", type=int, nargs="*", default=[])
    training.add_argument("--models", type=Path, required=True, help="folder for them")
    sample = verbs.add_parser("sample")
    sample.add_argument("--models", nargs="+", required=True)
    sample.add_argument("--work", type=Path, required=True)
    sample.add_argument("--what", choices=list(WHAT), default="search")
    sample.add_argument("--n", type=int, default=SAMPLES)
    sample.add_argument("--seed", type=int, default=SEED)
    sample.add_argument("--most", type=int, default=1024, help="leave out settings of more steps")
    sample.add_argument("--budget", type=float, default=600.0, help="seconds")
    scoring = verbs.add_parser("score")
    scoring.add_argument("--work", type=Path, required=True)
    scoring.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.verb == "train":
        train(options.data, options.steps, tuple(options.keep), options.models)
    elif options.verb == "sample":
        options.work.mkdir(parents=True, exist_ok=True)
        what = list(WHAT[options.what]())
        sizes = (options.n, options.seed, options.most, options.budget)
        draw(options.models, what, options.work, *sizes)
    else:
        score(options.work, options.out)


if __name__ == "__main__":
    main()
