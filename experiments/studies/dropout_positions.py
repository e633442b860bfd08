"""Dropout reveals positions to a transformer with rotary embeddings.

    python -m experiments.studies.dropout_positions --out dropout_positions.json

The input is always fully masked and the target of each token is its position, so without knowledge
of positions the best loss is log N. Rotary embeddings encode only relative positions, and all
tokens of a constant sequence get the same prediction. Dropout breaks this symmetry in training
mode: each position gets a different random vector, from which the network can infer its position.
"""

import math

import torch
from torch.nn.functional import cross_entropy

from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT
from experiments.studies.command import save, study_parser

LENGTH, BATCH, STEPS, EVALUATIONS = 16, 16, 1000, 32


def losses(dropout: float, positions: int, seed: int) -> dict[str, float]:
    """Train, then return the loss in training mode and in evaluation mode, in nats per token."""
    torch.manual_seed(seed)
    model = DiT(preset("debug", LENGTH + 1, dropout=dropout, positions=positions))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    x_BN, t_B = torch.full((BATCH, LENGTH), LENGTH), torch.zeros(BATCH)
    target = torch.arange(LENGTH).repeat(BATCH)

    def loss() -> torch.Tensor:
        return cross_entropy(model(x_BN, t_B)[..., :LENGTH].flatten(0, 1), target)

    for _ in range(STEPS):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    found = {}
    with torch.no_grad():
        for mode, training in (("training", True), ("evaluation", False)):
            model.train(training)
            found[mode] = sum(loss().item() for _ in range(EVALUATIONS)) / EVALUATIONS
    return found


def main() -> None:
    out = study_parser(__doc__).parse_args().out
    rows = []
    for positions in (0, LENGTH):
        for dropout in (0.0, 0.1):
            for seed in range(3):
                row = {"positions": "learned" if positions else "rotary", "dropout": dropout}
                rows.append({**row, "seed": seed, **losses(dropout, positions, seed)})
                print(rows[-1], flush=True)
    config = {"length": LENGTH, "batch_size": BATCH, "steps": STEPS, "log_length": math.log(LENGTH)}
    save(out, config=config, rows=rows)


if __name__ == "__main__":
    main()
