"""Test which details of a sampler could explain a low count of valid molecules.

    python -m experiments.studies.qm9_causes --out qm9_causes.json

The paper reports 135 valid molecules of 1,024 with a mask source, where our models give several
times as many. This study samples from the bundled model with a plain sampler, independent of the
library's solvers, and changes one detail at a time: carry-over, the last step, precision, or
decoding.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import cwdfm
from cwdfm import data
from cwdfm.data.smiles import CanonicalSet
from cwdfm.pretrained import Pretrained
from cwdfm.trained import prompt_tokens
from cwdfm.weight import Neighbor
from experiments.studies.command import save, study_parser
from experiments.tasks.score import molecule_counts

MODEL, SAMPLES, STEPS, SEED = "qm9-mask-small", 1024, 64, 0
WEIGHTS = {"Euler": None, "Neighbor": Neighbor(radius=1, scale=4.0)}


@dataclass(frozen=True)
class Walk:
    """A sampler; the defaults are those of the library."""

    carry: bool = True  # keep revealed tokens; otherwise redraw them at the rate lambda, and all of
    # them in the last step
    draws: torch.dtype = torch.float64  # of uniforms and probabilities
    logits: torch.dtype = torch.float32
    gumbel: bool = False  # Gumbel-max instead of an inverse transform

    def draw(self, logits_ANV: Tensor, v_AN: Tensor, random: torch.Generator) -> Tensor:
        """Draw tokens [A, N] from logits, with the given uniforms or with Gumbel noise."""
        logits_ANV = logits_ANV.to(self.logits).to(self.draws)
        if self.gumbel:
            noise_ANV = torch.rand(logits_ANV.shape, generator=random, dtype=self.draws)
            return (logits_ANV - (-noise_ANV.log()).log()).argmax(-1)
        cdf_ANV = logits_ANV.softmax(-1).cumsum(-1)
        below_ANV = cdf_ANV <= v_AN[..., None].to(self.draws)
        return below_ANV.sum(-1).clamp(max=logits_ANV.shape[-1] - 1)


WALKS = {
    "library defaults": Walk(),
    "no carry-over": Walk(carry=False),
    "draws in float32": Walk(draws=torch.float32),
    "Gumbel draws in float32": Walk(draws=torch.float32, gumbel=True),
    "logits in bfloat16": Walk(logits=torch.bfloat16),
}


@torch.no_grad()
def walk(
    trained: Pretrained, how: Walk, weight: Neighbor | None, n: int, steps: int
) -> tuple[Tensor, Tensor]:
    """Tokens [n, N] before and after the last step, which reveals all remaining masks.

    The rate of a masked token is alpha lambda with lambda = kappa' / (1 - kappa), kappa = t^2, and
    alpha = 1 without a weight. It jumps within dt with probability 1 - exp(-alpha lambda dt).
    """
    random = torch.Generator().manual_seed(SEED)
    mask_id = trained.source.num_tokens - 1
    tokens, fixed = prompt_tokens(trained)
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
        some_A = jumps_BN.any(1).nonzero()[:, 0]  # only these sequences need the model
        logits_ANV = trained.model(x_BN[some_A], torch.full((len(some_A),), t))[..., :mask_id]
        drawn_AN = how.draw(logits_ANV, v_BN[some_A], random)
        last_BN = x_BN
        x_BN = x_BN.index_copy(0, some_A, torch.where(jumps_BN[some_A], drawn_AN, x_BN[some_A]))
    return last_BN, x_BN


def texts(trained: Pretrained, tokens_BN: Tensor, *, ends: bool = True) -> list[str]:
    """Decode SMILES without masks; if `ends` is false, also without end tokens."""
    left_out = {trained.source.num_tokens - 1}
    if not ends:
        left_out.add(trained.tokenizer.eos_id)
    rows = ([i for i in row if i not in left_out] for row in tokens_BN.tolist())
    return [trained.tokenizer.decode(row) for row in rows]


def rows(n: int, steps: int) -> Iterator[dict[str, str | float]]:
    """Count molecules for each solver and each change."""
    trained = cwdfm.load(MODEL, torch.device("cpu"))
    training = CanonicalSet(data.load("qm9").texts("train"))
    for (solver, weight), (name, how) in (
        (solver, walk) for solver in WEIGHTS.items() for walk in WALKS.items()
    ):
        last, end = walk(trained, how, weight, n, steps)
        found = {name: texts(trained, end)}
        if how == Walk():
            found["no last step, masks dropped"] = texts(trained, last)
            found["end tokens ignored"] = texts(trained, end, ends=False)
        for change, drawn in found.items():
            row: dict[str, str | float] = {"solver": solver, "change": change}
            row |= molecule_counts(drawn, training, SAMPLES)
            print(row, flush=True)
            yield row


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--n", type=int, default=SAMPLES)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    config = {"model": MODEL, "samples": options.n, "steps": options.steps, "seed": SEED}
    found = list(rows(options.n, options.steps))
    save(options.out, config=config, rows=found)


if __name__ == "__main__":
    main()
