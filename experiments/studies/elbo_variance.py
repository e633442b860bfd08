"""Variance of the likelihood bound with times uniform in kappa and in v = sqrt(1 - kappa).

    python -m experiments.studies.elbo_variance --out elbo_variance.json

The model is the exact posterior of a small target with a mask source, where the bound is tight, so
the true value is known. Both estimators use the same number of draws, with 400 seeds each. Coverage
is the fraction of seeds for which the true value is within two reported standard errors; it should
be 95%.
"""

import math

import torch
from torch import Tensor

import cwdfm
from cwdfm.ops.random import Purpose, uniform_BN
from experiments.studies.command import save, study_parser

SCHEDULE = cwdfm.Polynomial(2.0)
SOURCE = cwdfm.MaskSource(3)
DRAWS, SEEDS, LENGTH, COPIES, KAPPA_END = 8, 400, 4, 2, 1 - 1e-3


def over_kappa(
    model: cwdfm.Model, x_1: Tensor, seed: int, strata_DB: Tensor
) -> tuple[float, float]:
    """The bound and its standard error with stratified times uniform in kappa."""
    path = cwdfm.MixturePath(SOURCE, SCHEDULE)
    estimates = []
    for d, u_B in enumerate(strata_DB):
        kappa_B = KAPPA_END * (d + u_B) / DRAWS
        batch = path.sample(x_1, SCHEDULE.inverse(kappa_B), seed=seed, step=d)
        ce_BN = cwdfm.CrossEntropy("masked")(
            model(batch.x_t, batch.t), batch, SCHEDULE, per_token=True
        )
        estimates.append(KAPPA_END * ce_BN.sum(1) / (1 - kappa_B))
    value_DB = torch.stack(estimates)
    error = float((value_DB.var(0) / DRAWS).sum().sqrt())
    return float(value_DB.mean(0).sum()) / x_1.numel(), error / x_1.numel()


def summary(estimates: list[tuple[float, float]], truth: float) -> dict[str, float]:
    n = len(estimates)
    return {
        "rmse": math.sqrt(sum((value - truth) ** 2 for value, _ in estimates) / n),
        "mean_standard_error": sum(error for _, error in estimates) / n,
        "coverage_two_standard_errors": sum(
            abs(value - truth) < 2 * error for value, error in estimates
        )
        / n,
    }


def main() -> None:
    out = study_parser(__doc__).parse_args().out
    target = torch.rand((3,) * LENGTH, generator=torch.manual_seed(0), dtype=torch.float64) ** 3
    model = cwdfm.ExactPosterior(target, SOURCE, SCHEDULE)
    x_1 = model.states_SN.repeat(COPIES, 1)
    truth = float(-model.probabilities_S.log().mean()) / LENGTH
    index = torch.arange(len(x_1))
    over_v, over_k = [], []
    for seed in range(SEEDS):
        bound = cwdfm.elbo(model, SOURCE, SCHEDULE, x_1, seed=seed, draws=DRAWS)
        over_v.append((bound.nats_per_token, bound.standard_error))
        strata_DB = uniform_BN(seed, Purpose.TIME, index, 0, DRAWS).T
        over_k.append(over_kappa(model, x_1, seed, strata_DB))
    rows = {"kappa": summary(over_k, truth), "sqrt(1 - kappa)": summary(over_v, truth)}
    print(f"{'uniform in':16} {'rmse':>8} {'reported':>9} {'coverage':>9}")
    for name, row in rows.items():
        rmse, reported, coverage = row.values()
        print(f"{name:16} {rmse:8.4f} {reported:9.4f} {coverage:9.1%}")
    config = {"draws": DRAWS, "seeds": SEEDS, "sequences": len(x_1), "length": LENGTH, "vocab": 3}
    save(out, config=config, truth_nats=truth, rows=rows)


if __name__ == "__main__":
    main()
