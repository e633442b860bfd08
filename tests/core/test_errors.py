"""Invalid input raises an InputError that names the facts; unusual input has a defined result."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.baselines.sedd import SEDD
from cwdfm.method import Flow, Method
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.train.config import TrainConfig
from tests.support.models import SmallModel, SmallSplitModel

untyped: Any = cwdfm  # for arguments of the wrong type
SCHEDULE = cwdfm.Polynomial(2.0)
MASK, UNIFORM = cwdfm.MaskSource(5), cwdfm.UniformSource(5)
X = torch.zeros(3, 8, dtype=torch.int64)
T = torch.full((3,), 0.5)
PATH = cwdfm.MixturePath(MASK, SCHEDULE)
NOTHING = torch.zeros(3, 8, dtype=torch.bool)


def sample(model: Any = None, source: cwdfm.Source = MASK, **options: Any) -> cwdfm.Samples:
    settings: dict[str, Any] = {"shape": (3, 8), "steps": 4, **options}
    solver = settings.pop("solver", cwdfm.Euler())
    return cwdfm.sample(
        model or SmallModel(source.num_tokens), source, SCHEDULE, solver, **settings
    )


def constant(value: float) -> Callable[[Tensor, Tensor], Tensor]:
    def model(x_t: Tensor, t: Tensor) -> Tensor:
        logits = torch.zeros(*x_t.shape, 6)
        logits[..., 2] = value
        return logits

    return model


class BadHead(SmallSplitModel):
    def head(self, hidden: Tensor) -> Tensor:
        return hidden[..., :3]

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x_t, t))


class BadTrunk(SmallSplitModel):
    def trunk(self, x_t: Tensor, t: Tensor) -> Tensor:
        return super().trunk(x_t, t)[:, :-1]

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.head(self.trunk(x_t, t))


class HeadOfTrunkDiffers(SmallSplitModel):
    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return 5 * super().forward(x_t, t)


class SmallModelBehindDropout(SmallModel):
    def __init__(self) -> None:
        super().__init__(6)

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        return torch.nn.functional.dropout(super().forward(x_t, t), 0.5, self.training)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "wrong-shape": (lambda: PATH.sample(X[0], T), r"\[batch, length\].*shape \(8,\).*x_1\[None\]"),
    "wrong-dtype": (lambda: PATH.sample(X.int(), T), r"int64.*torch.int32.*x_1\.long\(\)"),
    "empty-batch": (lambda: PATH.sample(X[:0], T[:0]), "empty.*at least one"),
    "id-too-large": (lambda: PATH.sample(X + 7, T), r"from 7 to 7, allowed are 0\.\.4"),
    "negative-id": (lambda: PATH.sample(X - 1, T), r"from -1 to -1, allowed are 0\.\.4"),
    "mask-id-in-data": (lambda: PATH.sample(X + 5, T), r"from 5 to 5, allowed are 0\.\.4"),
    "time-above-one": (lambda: PATH.sample(X, T * 3), r"\[0, 1\].*1\.5"),
    "time-negative": (lambda: PATH.sample(X, -T), r"\[0, 1\].*-0\.5"),
    "time-nan": (lambda: PATH.sample(X, T * torch.nan), r"\[0, 1\].*nan"),
    "time-wrong-shape": (lambda: PATH.sample(X, T[:2]), r"shape \(3,\).*\(2,\)"),
    "no-steps": (lambda: sample(steps=0), "steps must be an integer >= 1, got 0"),
    "grid-standing-still": (
        lambda: sample(steps=3, grid=torch.tensor([0.0, 0.5, 0.5, 1.0])),
        "increase strictly from 0 to 1",
    ),
    "grid-beginning-late": (
        lambda: sample(steps=2, grid=torch.tensor([0.1, 0.5, 1.0])),
        "increase strictly from 0 to 1",
    ),
    "grid-ending-early": (
        lambda: sample(steps=2, grid=torch.tensor([0.0, 0.5, 0.9])),
        "increase strictly from 0 to 1",
    ),
    "grid-wrong-length": (
        lambda: sample(steps=3, grid=torch.tensor([0.0, 0.5, 1.0])),
        r"3 steps.*shape \(4,\)",
    ),
    "grid-unknown": (lambda: sample(grid="log"), "one of 't', 'kappa', got 'log'"),
    "step-backwards": (
        lambda: cwdfm.Euler().step(
            SmallModel(6), MASK, SCHEDULE, cwdfm.Euler().init(MASK, torch.arange(2), 8), 0.5, 0.4
        ),
        "0 <= t < t_next <= 1, got t=0.5, t_next=0.4",
    ),
    "sample-shape": (lambda: sample(shape=(3, 0)), r"\(number of samples, length\).*\(3, 0\)"),
    "batch-size-zero": (lambda: sample(batch_size=0), "batch_size must be an integer >= 1, got 0"),
    "nan-logits": (lambda: sample(constant(torch.nan)), "NaN.*rows.*Check the model"),
    "infinite-logits": (lambda: sample(constant(torch.inf)), r"\+inf.*must be finite"),
    "all-minus-infinity": (
        lambda: sample(lambda x, t: torch.full((*x.shape, 6), -torch.inf)),
        "all -inf in 7 of 7 rows",
    ),
    "model-wrong-shape": (
        lambda: sample(lambda x, t: torch.zeros(*x.shape, 5)),
        r"shape \(3, 8, 6\).*num_tokens.*\(3, 8, 5\)",
    ),
    "trained-for-model": (
        lambda: sample(cwdfm.load("qm9-mask-small")),
        r"\(x_t, t\) -> logits, got a Pretrained; .*\.model, or use cwdfm\.generate",
    ),
    "model-by-name": (lambda: sample("qm9-mask-small"), "got a str; .*module or function"),
    "network-by-name": (
        lambda: untyped.Adapted("bert", num_tokens=9, mask_id=0),
        "network must be a module or function from tokens to logits, got 'bert'; load it first",
    ),
    "sample-device": (lambda: sample(device="gpu0"), "device must be .*got 'gpu0' "),
    "prompt-of-ids": (
        lambda: untyped.generate(cwdfm.load("qm9-mask-small"), n=1, steps=1, prompt=[3]),
        r"prompt must be a str such as 'CC', got \[3\]",
    ),
    "head-of-trunk-differs": (
        lambda: sample(HeadOfTrunkDiffers(6)),
        r"head\(trunk\(x, t\)\) is not model",
    ),
    "prompt-as-list": (lambda: sample(prompt=[1] * 8), "prompt must be a tensor.*got list"),
    "index-as-list": (lambda: sample(index=[1, 2, 3]), "index must be an int64 tensor.*got list"),
    "negative-index": (lambda: sample(index=torch.arange(3) - 1), "not be negative, got -1"),
    "negative-path-index": (
        lambda: PATH.sample(X, T, index=torch.arange(3) - 1),
        "not be negative, got -1",
    ),
    "grid-as-list": (lambda: sample(grid=[0.0, 1.0]), "'t', 'kappa' or a tensor of times"),
    "shape-as-number": (lambda: sample(shape=8), r"\(number of samples, length\).*got 8"),
    "solver-missing": (lambda: sample(solver=None), r"a Solver such as Euler\(\), got None"),
    "class-for-object": (
        lambda: untyped.MixturePath(MASK, cwdfm.Linear),
        r"schedule must be a Schedule such as Polynomial\(2\.0\)",
    ),
    "schedule-beyond-one": (lambda: SCHEDULE.kappa(1.5), r"lie in \[0, 1\], got 1\.5"),
    "grid-not-a-pair": (lambda: untyped.Neighbor(1, grid=(8,)), r"tuple \(height, width\)"),
    "sum-of-nothing": (lambda: cwdfm.Sum(()), "a tuple of weights"),
    "path-weight": (
        lambda: untyped.ContextPath(MASK, SCHEDULE, "neighbor"),
        "must be a Weight such",
    ),
    "bound-without-path-weight": (
        lambda: cwdfm.NELBO()(
            torch.zeros(3, 8, 6),
            cwdfm.ContextPath(MASK, SCHEDULE, cwdfm.Neighbor(1, 1.0)).sample(X, T),
            SCHEDULE,
        ),
        r"path has weight=Neighbor.*loss has weight=None",
    ),
    "nelbo-of-all-with-weight": (
        lambda: cwdfm.NELBO("all", cwdfm.Neighbor(1, 1.0)),
        "does not support a weight: alpha is 0 on revealed",
    ),
    "bregman-weight-uniform": (
        lambda: cwdfm.Bregman(weight=cwdfm.Neighbor(1, 1.0))(
            torch.zeros(3, 8, 5),
            cwdfm.ContextPath(UNIFORM, SCHEDULE, cwdfm.Neighbor(1, 1.0)).sample(X, T),
            SCHEDULE,
        ),
        "Bregman with a weight requires a mask source",
    ),
    "target-all-zero": (
        lambda: cwdfm.ExactPosterior(torch.zeros(5, 5), MASK, SCHEDULE),
        "non-negative probabilities",
    ),
    "path-swapped": (
        lambda: untyped.MixturePath(SCHEDULE, MASK),
        "source must be a Source such as MaskSource",
    ),
    "elbo-swapped": (
        lambda: untyped.elbo(SmallModel(6), SCHEDULE, MASK, X),
        "source must be a Source such as MaskSource",
    ),
    "no-samples": (
        lambda: cwdfm.Euler().init(MASK, X[:0, 0], 4),
        "the number of samples must be an integer >= 1, got 0",
    ),
    "mask-no-tensor": (
        lambda: untyped.Neighbor()([[True, False]]),
        "revealed must be a bool tensor .*got list",
    ),
    "target-infinite": (
        lambda: cwdfm.ExactPosterior(torch.full((5, 5), torch.inf), MASK, SCHEDULE),
        "non-negative probabilities.* sums to inf",
    ),
    "head-wrong-shape": (lambda: sample(BadHead(6)), r"model\.head.*, 6\)"),
    "trunk-wrong-shape": (lambda: sample(BadTrunk(6)), r"model\.trunk.*, 8, width\]"),
    "probabilities-for-logits": (
        lambda: sample(lambda x, t: torch.full((*x.shape, 6), 1 / 6)),
        r"look like probabilities.*p\.log\(\)",
    ),
    "loss-wrong-logits": (
        lambda: cwdfm.CrossEntropy()(torch.zeros(3, 8, 5), PATH.sample(X, T), SCHEDULE),
        r"shape \(3, 8, 6\), or \(.*, 6\) .*\(3, 8, 5\)",
    ),
    "all-fixed": (lambda: sample(prompt=X, fixed=~NOTHING), "all positions are fixed.*free some"),
    "prompt-wrong-length": (
        lambda: sample(prompt=X[0, :5]),
        r"shape \(3, 8\) or \(8,\), got .*\(5,\).*pad it",
    ),
    "prompt-without-fixed": (
        lambda: sample(source=UNIFORM, prompt=X),
        "UniformSource.*pass fixed=",
    ),
    "fixed-without-prompt": (lambda: sample(fixed=NOTHING), "pass prompt="),
    "fixed-mask-id": (lambda: sample(prompt=X + 5, fixed=~NOTHING), "mask id at a fixed position"),
    "radius-zero": (lambda: cwdfm.Neighbor(0), "radius must be an integer >= 1, got 0"),
    "radius-too-large": (
        lambda: cwdfm.Neighbor(4)(NOTHING),
        r"radius 4 is too large for 8.*below 8/2, or boundary='cut'",
    ),
    "weight-of-no-numbers": (
        lambda: cwdfm.Entropy()(NOTHING, torch.full((3, 8, 5), torch.nan)),
        "must be finite",
    ),
    "grid-mismatch": (
        lambda: cwdfm.Neighbor(1, grid=(3, 3))(NOTHING),
        r"\(3, 3\) has 9 cells.*length 8",
    ),
    "bad-boundary": (
        lambda: untyped.Neighbor(1, boundary="mirror"),
        "one of 'circular', 'cut', got 'mirror'",
    ),
    "infinite-scale": (
        lambda: cwdfm.Neighbor(1, float("inf")),
        "scale must be a number between -1e6 and 1e6, got inf",
    ),
    "weight-without-logits": (lambda: cwdfm.Entropy(6.0)(NOTHING), "needs the model's logits"),
    "entropy-in-path": (
        lambda: cwdfm.ContextPath(MASK, SCHEDULE, cwdfm.Entropy(6.0)),
        "cannot use Entropy.*Neighbor, Distance",
    ),
    "weighted-elbo-uniform": (
        lambda: cwdfm.elbo(SmallModel(5), UNIFORM, SCHEDULE, X, weight=cwdfm.Neighbor(1, 1.0)),
        "use a mask source",
    ),
    "bregman-masked-uniform": (
        lambda: cwdfm.Bregman("masked")(
            torch.zeros(3, 8, 5), cwdfm.MixturePath(UNIFORM, SCHEDULE).sample(X, T), SCHEDULE
        ),
        "requires a mask source.*coordinates='all'",
    ),
    "elbo-one-draw": (
        lambda: cwdfm.elbo(SmallModel(6), MASK, SCHEDULE, X, draws=1),
        "draws must be an integer >= 2, got 1",
    ),
    "vocab-too-small": (lambda: cwdfm.MaskSource(1), "vocab_size.*without the mask.*>= 2, got 1"),
    "power-below-one": (lambda: cwdfm.Polynomial(0.5), "power must be .*from 1 to 1e6, got 0.5"),
    "negative-corrector": (lambda: cwdfm.Corrector(-1.0), "rates negative"),
    "zero-temperature": (lambda: cwdfm.Euler(temperature=0.0), "temperature.*1e-6 to 1e6, got 0.0"),
    "top-p-zero": (lambda: cwdfm.Euler(top_p=0.0), "top_p must be .*from 1e-6 to 1, got 0.0"),
    "top-p-tiny": (lambda: cwdfm.Euler(top_p=1e-46), "from 1e-6 to 1, got 1e-46"),
    "half-precision-draws": (
        lambda: cwdfm.Euler(dtype=torch.float16),
        "torch.float64 or torch.float32, got torch.float16",
    ),
    "bad-hazard": (
        lambda: untyped.Euler(hazard="exact"),
        "one of 'euler', 'integrated', got 'exact'",
    ),
    "counted-as-text": (
        lambda: untyped.Euler(weight=cwdfm.Neighbor(1, 2.0), counted="no"),
        "counted must be True or False, got 'no'",
    ),
    "recipe-compile-as-text": (
        lambda: TrainConfig.from_flat(compile="no"),
        "compile must be True or False, got 'no'",
    ),
    "not-a-weight": (
        lambda: untyped.Euler(weight="neighbor"),
        "context weight or None, got 'neighbor'",
    ),
    "generate-length-zero": (
        lambda: cwdfm.generate(cwdfm.load("qm9-uniform-small"), n=1, steps=1, length=0),
        "length must be an integer >= 1, got 0",
    ),
    "generate-batch-size-zero": (
        lambda: cwdfm.generate(cwdfm.load("qm9-uniform-small"), n=1, steps=1, batch_size=0),
        "batch_size must be an integer >= 1, got 0",
    ),
    "device-unknown": (
        lambda: cwdfm.load("qm9-uniform-small", device="gpu0"),
        "device must be auto, cpu, cuda or cuda:NUMBER, got 'gpu0'",
    ),
    "network-in-parts": (
        lambda: DiTConfig(num_tokens=5, depth=1.5),  # type: ignore[arg-type]
        "depth must be an integer >= 1, got 1.5",
    ),
    "recipe-precision": (
        lambda: TrainConfig.from_flat(precision="bf16"),
        "one of 'float32', 'bfloat16', got 'bf16'",
    ),
    "recipe-parallel": (
        lambda: TrainConfig.from_flat(parallel="deepspeed"),
        "one of 'ddp', 'fsdp', got 'deepspeed'",
    ),
    "bad-seed": (lambda: sample(seed=-1), r"0\.\.2\^64-1, got -1"),
    "index-wrong-shape": (lambda: sample(index=torch.arange(2)), r"shape \(3,\).*\(2,\)"),
    "stratified-index": (
        lambda: cwdfm.stratified_times(0, 0, torch.tensor([4]), 4),
        r"positions 0\.\.3",
    ),
    "target-wrong-shape": (
        lambda: cwdfm.ExactPosterior(torch.ones(5, 4), MASK, SCHEDULE),
        r"axis of size 5.*\(5, 4\)",
    ),
}


@pytest.mark.parametrize("row", REFUSED)
def test_invalid_input(row: str) -> None:
    act, message = REFUSED[row]
    with pytest.raises(cwdfm.InputError, match=f"(?s){message}"):
        act()


METHODS: list[Method] = [
    Flow(MASK, SCHEDULE),
    SEDD(5),
    Autoregressive(5),
    BlockDiffusion(MASK, SCHEDULE, 4),
]
UNSCORABLE: dict[str, tuple[dict[str, Any], str]] = {
    "tokens-as-list": ({"x_1": [[0, 1]]}, "x_1 must be an int64 tensor"),
    "mask-id": ({"x_1": X + 5}, "x_1 contains ids from 5 to 5"),
    "batch-size-zero": ({"batch_size": 0}, "batch_size must be an integer >= 1"),
    "fixed-as-list": ({"fixed": [1]}, r"fixed must be a bool tensor of shape \(3, 8\), got list"),
    "fixed-as-numbers": ({"fixed": X}, "fixed must be a bool tensor"),
    "fixed-one-row": ({"fixed": NOTHING[0]}, "fixed must be a bool tensor"),
    "all-fixed": ({"fixed": ~NOTHING}, "all positions are fixed"),
}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("row", UNSCORABLE)
def test_every_likelihood_rejects_invalid_input(method: Method, row: str) -> None:
    config = DiTConfig(method.num_tokens, width=8, depth=1, heads=1, conditioning=8)
    arguments, message = UNSCORABLE[row]
    with pytest.raises(cwdfm.InputError, match=message):
        method.likelihood(DiT(method.network(config)), **{"x_1": X, **arguments})


def nothing_masked() -> None:
    batch = cwdfm.MixturePath(MASK, SCHEDULE).sample(X, torch.ones(3))
    logits = torch.zeros(3, 8, 6)
    assert float(cwdfm.Neighbor(1, 4.0)(batch.revealed).sum()) == 0
    assert float(cwdfm.NELBO()(logits, batch, SCHEDULE)) == 0
    assert float(cwdfm.CrossEntropy("masked")(logits, batch, SCHEDULE)) == 0
    assert float(cwdfm.CrossEntropy("masked")(logits[batch.revealed][:0], batch, SCHEDULE)) == 0
    loss = cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(1, 1.0))(logits, batch, SCHEDULE)
    assert bool(torch.isfinite(loss))


def some_sequences_fixed() -> None:
    fixed = NOTHING.clone()
    fixed[1] = True
    out = sample(prompt=X + 3, fixed=fixed, batch_size=1)
    assert out.tokens[1].tolist() == [3] * 8
    assert int(out.evaluations[1]) == 0


def nan_logits_in_a_loss() -> None:
    logits = torch.full((3, 8, 6), torch.nan)
    assert bool(cwdfm.CrossEntropy()(logits, PATH.sample(X, T), SCHEDULE).isnan())


def model_in_training_mode() -> None:
    model = torch.nn.Sequential(SmallModelBehindDropout())
    first, second = sample(model[0]), sample(model[0])
    assert torch.equal(first.tokens, second.tokens)
    assert model.training


def half_precision_defaults() -> None:
    solver = cwdfm.Euler(weight=cwdfm.Neighbor(1, 0.7), corrector=cwdfm.Corrector())
    usual = sample(source=UNIFORM, solver=solver).tokens
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(sample(source=UNIFORM, solver=solver).tokens, usual)
    finally:
        torch.set_default_dtype(before)


def postprocessed_and_all_fixed() -> None:
    arguments = (SmallModel(6), MASK, SCHEDULE)
    refined = cwdfm.refine(*arguments, cwdfm.Euler(), X, fixed=~NOTHING)
    for found in (refined, cwdfm.resample(*arguments, X, fixed=~NOTHING)):
        assert torch.equal(found.tokens, X)
        assert int(found.evaluations.sum()) == 0


HANDLED: dict[str, Callable[[], None]] = {
    "nan-logits-in-a-loss": nan_logits_in_a_loss,
    "model-in-training-mode": model_in_training_mode,
    "half-precision-defaults": half_precision_defaults,
    "nothing-masked": nothing_masked,
    "some-sequences-fixed": some_sequences_fixed,
    "postprocessed-and-all-fixed": postprocessed_and_all_fixed,
}


@pytest.mark.parametrize("row", HANDLED)
def test_unusual_input(row: str) -> None:
    HANDLED[row]()
