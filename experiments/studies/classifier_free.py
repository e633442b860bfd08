"""Classifier-free guidance on MOSES: the requested property against the strength of guidance.

    python -m experiments.studies.classifier_free --model MODEL --out classifier_free.json --work DIR

MODEL was trained with the conditions logp and qed. A strength other than 1 evaluates the network
twice per step. Results of each setting are kept in DIR; repeat the command to resume.
"""

import argparse
from functools import partial
from itertools import product
from pathlib import Path

import cwdfm
from cwdfm.files import write_json
from cwdfm.provenance import provenance
from experiments.studies.guidance import (
    DRAWS,
    ROUNDS,
    STEPS,
    STRENGTHS,
    draw,
    guided,
    kept,
    requests,
    unguided,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Guide a model of MOSES by its conditions.")
    parser.add_argument("--model", required=True, help="a model with the conditions logp and qed")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--work", type=Path, required=True, help="a folder of finished settings")
    parser.add_argument("--n", type=int, default=128, help="samples per setting")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    trained, n = cwdfm.load(options.model), options.n
    make = partial(draw, trained, n * max(DRAWS), options.seed)
    rows = unguided(kept(options.work / "unguided.json", make), n)
    for (name, value), strength in product(requests(), STRENGTHS):
        guidance = cwdfm.ClassifierFreeGuidance({name.lower(): value}, strength)
        path = options.work / f"{name}-{value:g}-{strength:g}.json"
        make = partial(draw, trained, n, options.seed, guidance)
        rows.append(guided(path, make, name, value, strength, "classifier-free"))
    config = {
        "model": trained.card,
        "n": n,
        "seed": options.seed,
        "steps": STEPS,
        "rounds": ROUNDS,
    }
    write_json(options.out, provenance() | {"config": config, "rows": rows})


if __name__ == "__main__":
    main()
