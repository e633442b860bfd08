"""What of a sampler could explain that others count far fewer valid molecules than we do.

    python -m experiments.studies.qm9_causes --out results/qm9_causes.json

The paper has 135 valid molecules of 1,024 with a mask source where our models have several times as
many. Here is a plain walk of the chain, written down apart from the library's solvers, in which one
thing at a time is done otherwise: carry-over, the last step, precision, and what padding leaves.
The model is the one in the box.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import cwdfm
from cwdfm import data
from cwdfm.files import write_json
from cwdfm.generation import given
from cwdfm.metrics.molecule import CanonicalSet
from cwdfm.pretrained import Pretrained
from cwdfm.provenance import provenance
from cwdfm.weight import Neighbor
from experiments.studies.qm9_search import counts

MODEL, SAMPLES, STEPS, SEED = "qm9-mask-small", 1024, 64, 0
WEIGHTS = {"Euler": None, "Neighbor": Neighbor(radius=1, scale=4.0)}


@dataclass(frozen=True)
class Walk:
    """What is done otherwise."""

    carry: bool = True  # a revealed token stays; else it is drawn again at the rate lambda, and all
    # are in the last step
    draws: torch.dtype = torch.float64  # of uniforms and masses
    logits: torch.dtype = torch.float32
    gumbel: bool = False  # the largest of logits and Gumbel noise, instead of an inverse transform

    def draw(self, logits_ANV: Tensor, v_AN: Tensor, random: torch.Generator) -> Tensor:
        """Tokens [A, N] by logits, from uniforms or with noise of their own."""
        logits_ANV = logits_ANV.to(self.logits).to(self.draws)
        if self.gumbel:
            noise_ANV = torch.rand(logits_ANV.shape, generator=random, dtype=self.draws)
            return (logits_ANV - (-noise_ANV.log()).log()).argmax(-1)
        cdf_ANV = logits_ANV.softmax(-1).cumsum(-1)
        below_ANV = cdf_ANV <= v_AN[..., None].to(self.draws)
        return below_ANV.sum(-1).clamp(max=logits_ANV.shape[-1] - 1)


WALKS = {
    "as here": Walk(),
    "no carry-over": Walk(carry=False),
    "draws in float32": Walk(draws=torch.float32),
    "Gumbel draws in float32": Walk(draws=torch.float32, gumbel=True),
    "logits in bfloat16": Walk(logits=torch.bfloat16),
}


@torch.no_grad()
def walk(
    trained: Pretrained, how: Walk, weight: Neighbor | None, n: int, steps: int
) -> tuple[Tensor, Tensor]:
    """Tokens [n, N] before and after the last step, in which all that is masked is revealed.

    Rate lambda = kappa' / (1 - kappa) for every masked token, kappa = t^2, and alpha times that
    with a weight; a jump in dt has probability 1 - exp(-alpha lambda dt).
    """
    random = torch.Generator().manual_seed(SEED)
    mask_id = trained.source.num_tokens - 1
    tokens, fixed = given(trained)
    x_BN = torch.full((n, trained.length), mask_id)
    fixed_N = torch.zeros(trained.length, dtype=torch.bool) if fixed is None else fixed
    if tokens is not None:
        x_BN = torch.where(fixed_N, tokens, x_BN)
    last_BN = x_BN
    for k in range(steps):
        t = k / steps
        masked_BN = x_BN == mask_id
        rate_BN = torch.full(x_BN.shape, 2 * t / (1 - t * t) / steps, dtype=torch.float64)
        if weight is not None:  # 0 on revealed coordinates
            rate_BN = rate_BN * torch.where(masked_BN, weight(~masked_BN), 1.0)
        if k + 1 == steps:
            rate_BN = torch.full_like(rate_BN, torch.inf)
        u_BN = torch.rand(x_BN.shape, generator=random, dtype=torch.float64)
        v_BN = torch.rand(x_BN.shape, generator=random, dtype=torch.float64)
        jumps_BN = (u_BN < -torch.expm1(-rate_BN)) & ~fixed_N
        if how.carry:
            jumps_BN &= masked_BN
        some_A = jumps_BN.any(1).nonzero()[:, 0]  # no others need the model
        logits_ANV = trained.model(x_BN[some_A], torch.full((len(some_A),), t))[..., :mask_id]
        drawn_AN = how.draw(logits_ANV, v_BN[some_A], random)
        last_BN = x_BN
        x_BN = x_BN.index_copy(0, some_A, torch.where(jumps_BN[some_A], drawn_AN, x_BN[some_A]))
    return last_BN, x_BN


def texts(trained: Pretrained, tokens_BN: Tensor, *, ends: bool = True) -> list[str]:
    """Molecules; masks leave no trace, and without `ends` an end token neither."""
    left_out = {trained.source.num_tokens - 1}
    if not ends:
        left_out.add(trained.tokenizer.eos_id)
    rows = ([i for i in row if i not in left_out] for row in tokens_BN.tolist())
    return [trained.tokenizer.decode(row) for row in rows]


def rows(n: int, steps: int) -> Iterator[dict[str, str | float]]:
    """Counts for each solver and change."""
    trained = cwdfm.load(MODEL, torch.device("cpu"))
    training = CanonicalSet(data.load("qm9").texts("train"))
    for (solver, weight), (name, how) in (
        (solver, walk) for solver in WEIGHTS.items() for walk in WALKS.items()
    ):
        last, end = walk(trained, how, weight, n, steps)
        found = {name: texts(trained, end)}
        if how == Walk():
            found["no last step: masks are left out"] = texts(trained, last)
            found["text behind the end token counts"] = texts(trained, end, ends=False)
        for change, drawn in found.items():
            row: dict[str, str | float] = {"solver": solver, "change": change}
            row |= counts(drawn, training)
            print(row, flush=True)
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description="What of a sampler changes the counts.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--n", type=int, default=SAMPLES)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    config = {"model": MODEL, "samples": options.n, "steps": options.steps, "seed": SEED}
    found = list(rows(options.n, options.steps))
    write_json(options.out, provenance() | {"config": config, "rows": found})


if __name__ == "__main__":
    main()
