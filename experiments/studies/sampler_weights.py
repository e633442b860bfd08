"""The effect of weights fitted to a model's errors, and of weighted correctors, on samples.

    python -m experiments.studies.sampler_weights --out sampler_weights.json

Confidence and temperature are fitted to the first half of some held-out molecules. The second half
measures how well the model and the fitted confidence are calibrated. All samplers have
the same number of evaluations.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import cwdfm
from cwdfm import data
from cwdfm.data.smiles import CanonicalSet
from cwdfm.solver.fit_confidence import held_out_predictions
from experiments.studies.command import save, study_parser
from experiments.tasks.score import molecule_counts

MODELS = ("qm9-mask-small", "qm9-uniform-small")
TIMES, BINS = 16, 10


def calibration(trained: Any, tokens: Tensor) -> tuple[dict[str, Any], cwdfm.Learned, float]:
    """The expected and the actual accuracy of draws, and the fitted weights."""
    flow = (trained.model, trained.source, trained.schedule)
    fitted, held_out = tokens.chunk(2)
    fixed = torch.arange(tokens.shape[1]) == 0 if trained.fix_first else None
    learned = cwdfm.fit_confidence(*flow, fitted, fixed=fixed, times=TIMES)
    heat = cwdfm.fit_temperature(*flow, fitted, fixed=fixed, times=TIMES).temperature
    held_out_at = partial(held_out_predictions, *flow, held_out, fixed, times=TIMES, seed=1)
    own, confidence, right = [], [], []
    for logits_kV, x_1_k in held_out_at(masked_only=True):
        p_kV = logits_kV.double().softmax(-1)
        own.append(p_kV.square().sum(-1))
        confidence.append(learned.prediction_score(logits_kV).exp())
        right.append(p_kV.gather(1, x_1_k[:, None])[:, 0])
    truth = torch.cat(right)
    losses = {}
    for name, temperature in (("model", 1.0), ("calibrated", heat)):
        found = [
            torch.nn.functional.cross_entropy(logits_kV.double() / temperature, x_1_k)
            for logits_kV, x_1_k in held_out_at(masked_only=False)
        ]
        losses[name] = float(torch.stack(found).mean())
    row = {
        "temperature": heat,
        "coefficients": learned.coefficients,
        "loss": losses,
        "right": float(truth.mean()),
        "expected": {
            "model": float(torch.cat(own).mean()),
            "learned": float(torch.cat(confidence).mean()),
        },
        "error": {
            "model": calibration_error(torch.cat(own), truth),
            "learned": calibration_error(torch.cat(confidence), truth),
        },
    }
    return row, learned, heat


def calibration_error(expected: Tensor, right: Tensor) -> float:
    """The mean difference of both, in equally large bins of the expected accuracy."""
    bins = [b for b in expected.argsort().chunk(BINS) if len(b)]
    gaps = [abs(float(expected[b].mean() - right[b].mean())) * len(b) for b in bins]
    return sum(gaps) / len(expected)


def samplers(trained: Any, learned: cwdfm.Learned, heat: float) -> dict[str, cwdfm.Euler]:
    """The chains without a weight, with every weight, and with weighted correctors."""
    plain = cwdfm.Euler(hazard="integrated")
    found = {
        "ancestral": plain,
        "Entropy, counted": replace(plain, weight=cwdfm.Entropy(1.0), counted=True),
        "calibrated entropy, counted": replace(
            plain, weight=cwdfm.CalibratedEntropy(heat, 1.0), counted=True
        ),
        "learned confidence, counted": replace(plain, weight=learned, counted=True),
    }
    if trained.source.marks_noise:
        return found
    found["Entropy"] = replace(plain, weight=cwdfm.Entropy(1.0))
    for scale in (4.0, 16.0):
        found[f"corrector, scale {scale:g}"] = replace(plain, corrector=cwdfm.Corrector(scale))
        weighted = cwdfm.Corrector(scale, weight=cwdfm.Entropy(1.0))
        found[f"weighted corrector, scale {scale:g}"] = replace(plain, corrector=weighted)
    return found


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--held-out", type=int, default=256, help="molecules")
    options = parser.parse_args()
    molecules = data.load("qm9")
    training = CanonicalSet(molecules.texts("train"))
    tokens = torch.from_numpy(molecules.valid[: options.held_out].astype("int64"))
    found: dict[str, Any] = {"calibration": [], "samples": []}
    names = ("samples", "steps", "seed", "held_out")
    found["config"] = {name: getattr(options, name) for name in names}
    for name in MODELS:
        trained = cwdfm.load(name)
        row, learned, heat = calibration(trained, tokens)
        found["calibration"].append({"model": name, **row})
        print(found["calibration"][-1], flush=True)
        for label, solver in samplers(trained, learned, heat).items():
            sizes = {"n": options.samples, "steps": options.steps, "grid": "kappa"}
            out = trained.generate(solver, **sizes, seed=options.seed)
            counts = molecule_counts(out.texts, training, options.samples)
            evaluations = float(out.evaluations.double().mean())
            found["samples"].append(
                {"model": name, "sampler": label, "evaluations": evaluations, **counts}
            )
            print(found["samples"][-1], flush=True)
        save(options.out, **found)


if __name__ == "__main__":
    main()
