"""Quality of float8: training in bfloat16 and in float8, and sampling in float8.

    python -m experiments.studies.float8_quality --out float8_quality.json

A small network learns text as bytes (the help pages of Python, which need no download) in both
precisions with three seeds. The held-out losses are those of the averaged weights, computed in
bfloat16. For sampling, the networks trained in bfloat16 are frozen in float8: the record has their
held-out losses, the share of equal tokens and the entropy of samples drawn with the same seeds.
Targets: the loss after training in float8 is within 0.5% of bfloat16 in the mean of the seeds, and
so is the loss of the frozen networks. A quick check with float8 emulated is

    CWDFM_FUSED=on python -m experiments.studies.float8_quality --out q.json --device cpu \\
        --steps 4 --model debug --batch-size 4 --samples 2 --rows 8 --seeds 1 --no-compile
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cwdfm
from cwdfm.data import TokenData
from cwdfm.data.loader import load
from cwdfm.device import find_device
from cwdfm.files import write_json
from cwdfm.model.float8 import freeze_in_float8
from cwdfm.model.transformer import DiT
from cwdfm.pretrained import Pretrained
from cwdfm.provenance import provenance
from cwdfm.train.config import TrainConfig
from cwdfm.train.run import Run
from cwdfm.train.validation import validation_loss

LIMIT = 0.005  # largest relative increase of the loss
LENGTH, SAMPLING_STEPS = 256, 64


def config_of(options: argparse.Namespace, precision: str, seed: int) -> TrainConfig:
    return TrainConfig.from_flat(
        data="python-topics",
        tokenizer="bytes",
        length=LENGTH,
        source=options.source,
        model=options.model,
        dropout=0.1,
        steps=options.steps,
        batch_size=options.batch_size,
        learning_rate=1e-3,
        min_learning_rate=1e-5,
        warmup=max(1, options.steps // 20),
        ema=0.99,
        validation_rows=options.rows,
        compile=options.compile,
        precision=precision,
        seed=seed,
    )


def train(config: TrainConfig, data: TokenData, device: torch.device) -> tuple[Run, float]:
    """A finished run, and its seconds."""
    run = Run(config, data, Path(tempfile.gettempdir()), device)
    start = time.perf_counter()
    for _ in range(config.optimizer.steps):
        loss = run.train_step()
    float(loss)  # waits for the device
    return run, time.perf_counter() - start


def draw(run: Run, trained: Pretrained, samples: int) -> Tensor:
    with run.precision():
        return cwdfm.generate(trained, n=samples, steps=SAMPLING_STEPS, seed=0).tokens


def entropy(tokens: Tensor) -> float:
    """The entropy of the bytes of all samples, in bits."""
    share = tokens.flatten().bincount().double() / tokens.numel()
    return float(-torch.special.xlogy(share, share).sum() / torch.log(torch.tensor(2.0)))


def frozen(run: Run, samples: int) -> dict[str, float]:
    """The averaged network in bfloat16 and frozen in float8."""
    trained = run.averaged()
    before, tokens = validation_loss(run, trained), draw(run, trained, samples)
    assert isinstance(trained.model, DiT)
    freeze_in_float8(trained.model, run.device)
    after, other = validation_loss(run, trained), draw(run, trained, samples)
    return {
        "loss": before,
        "loss_in_float8": after,
        "equal_tokens": float((tokens == other).double().mean()),
        "entropy": entropy(tokens),
        "entropy_in_float8": entropy(other),
    }


def compare(options: argparse.Namespace, seed: int, device: torch.device) -> dict[str, Any]:
    """Both trainings of a seed; the sampler uses the network trained in bfloat16."""
    row: dict[str, Any] = {"seed": seed}
    data = load("python-topics", length=LENGTH, tokenizer="bytes")
    for precision in ("bfloat16", "float8"):
        run, seconds = train(config_of(options, precision, seed), data, device)
        row[precision] = {"loss": validation_loss(run, run.averaged()), "seconds": seconds}
        if precision == "bfloat16":
            row["sampling"] = frozen(run, options.samples)
        torch.compiler.reset()
    print(row, flush=True)
    return row


def increase(pairs: list[tuple[float, float]]) -> float:
    """The relative increase of the mean loss from the first precision to the second."""
    before, after = (statistics.fmean(losses) for losses in zip(*pairs, strict=True))
    return after / before - 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Quality of float8.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", default="17m")
    parser.add_argument("--source", default="mask")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rows", type=int, default=256, help="held-out sequences")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device = find_device(options.device)
    rows = [compare(options, seed, device) for seed in range(options.seeds)]
    training = increase([(row["bfloat16"]["loss"], row["float8"]["loss"]) for row in rows])
    sampling = increase(
        [(row["sampling"]["loss"], row["sampling"]["loss_in_float8"]) for row in rows]
    )
    targets = {
        f"training in float8 changes the loss by {100 * training:+.2f}%, at most 0.5%": training
        <= LIMIT,
        f"sampling in float8 changes the loss by {100 * sampling:+.2f}%, at most 0.5%": sampling
        <= LIMIT,
    }
    config = {k: str(v) if k == "out" else v for k, v in vars(options).items()}
    write_json(options.out, provenance() | {"config": config, "rows": rows, "claims": targets})
    for target, met in targets.items():
        print(f"{'met' if met else 'MISSED'}: {target}")


if __name__ == "__main__":
    main()
