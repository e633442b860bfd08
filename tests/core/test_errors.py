"""Invalid input raises an InputError that names the facts; unusual input has a defined result."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.baselines.gidd import GIDD
from cwdfm.baselines.sedd import SEDD
from cwdfm.method import Flow, Method
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.path import path_for
from cwdfm.train.config import TrainConfig
from tests.support.models import SmallModel, SmallSplitModel, constant

untyped: Any = cwdfm  # for arguments of the wrong type
configured: Any = DiTConfig
SCHEDULE = cwdfm.Polynomial(2.0)
MASK, UNIFORM = cwdfm.MaskSource(5), cwdfm.UniformSource(5)
X = torch.zeros(3, 8, dtype=torch.int64)
T = torch.full((3,), 0.5)
PATH = cwdfm.MixturePath(MASK, SCHEDULE)
NOTHING = torch.zeros(3, 8, dtype=torch.bool)
NEAR = cwdfm.Neighbor(1, 1.0)
MOLECULES = "qm9-mask-small"


def sample(model: Any = None, source: cwdfm.Source = MASK, **options: Any) -> cwdfm.Samples:
    settings: dict[str, Any] = {"shape": (3, 8), "steps": 4, **options}
    solver = settings.pop("solver", cwdfm.Euler())
    return cwdfm.sample(
        model or SmallModel(source.num_tokens), source, SCHEDULE, solver, **settings
    )


def with_logit(value: float) -> cwdfm.Model:
    return constant(torch.tensor([0.0, 0.0, value, 0.0, 0.0, 0.0]))


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


def on_grid(*times: float) -> cwdfm.Samples:
    return sample(steps=len(times) - 1, grid=torch.tensor(times))


def filled(value: float, width: int = 6) -> cwdfm.Samples:
    return sample(lambda x, t: torch.full((*x.shape, width), value))


def generate(**options: Any) -> cwdfm.Samples:
    samples: cwdfm.Samples = cwdfm.generate(cwdfm.load(MOLECULES), n=1, steps=1, **options)
    return samples


def loss_of(loss: cwdfm.Loss, source: cwdfm.Source, weight: Any = None, width: int = 0) -> Tensor:
    batch = path_for(source, SCHEDULE, weight).sample(X, T)
    return loss(torch.zeros(3, 8, width or source.num_tokens), batch, SCHEDULE)


def elbo(source: cwdfm.Source = MASK, schedule: Any = SCHEDULE, **options: Any) -> object:
    return cwdfm.elbo(SmallModel(6), source, schedule, X, **options)


INVALID: list[tuple[Callable[[], object], str]] = [
    (lambda: PATH.sample(X[0], T), r"\[batch, length\].*shape \(8,\).*x_1\[None\]"),
    (lambda: PATH.sample(X.int(), T), r"int64.*torch.int32.*x_1\.long\(\)"),
    (lambda: PATH.sample(X[:0], T[:0]), "empty.*at least one"),
    (lambda: PATH.sample(X + 7, T), r"from 7 to 7, allowed are 0\.\.4"),
    (lambda: PATH.sample(X - 1, T), r"from -1 to -1, allowed are 0\.\.4"),
    (lambda: PATH.sample(X + 5, T), r"from 5 to 5, allowed are 0\.\.4"),
    (lambda: PATH.sample(X, T * 3), r"\[0, 1\].*1\.5"),
    (lambda: PATH.sample(X, -T), r"\[0, 1\].*-0\.5"),
    (lambda: PATH.sample(X, T * torch.nan), r"\[0, 1\].*nan"),
    (lambda: PATH.sample(X, T[:2]), r"shape \(3,\).*\(2,\)"),
    (lambda: sample(steps=0), "steps must be an integer >= 1, got 0"),
    (lambda: on_grid(0.0, 0.5, 0.5, 1.0), "increase strictly from 0 to 1"),
    (lambda: on_grid(0.1, 0.5, 1.0), "increase strictly from 0 to 1"),
    (lambda: on_grid(0.0, 0.5, 0.9), "increase strictly from 0 to 1"),
    (lambda: sample(steps=3, grid=torch.tensor([0.0, 0.5, 1.0])), r"3 steps.*shape \(4,\)"),
    (lambda: sample(grid="log"), "'t', 'kappa', 'sqrt' or a tensor of times, got 'log'"),
    (
        lambda: cwdfm.Euler().init(cwdfm.MaskSource(5), torch.arange(3), 10**9),
        "length must be an integer <= 1,000,000",
    ),
    (lambda: sample(shape=(3, 0)), r"\(number of samples, length\).*\(3, 0\)"),
    (lambda: sample(batch_size=0), "batch_size must be an integer >= 1, got 0"),
    (lambda: sample(with_logit(torch.nan)), "NaN.*rows.*Check the model"),
    (lambda: sample(with_logit(torch.inf)), r"\+inf.*must be finite"),
    (lambda: filled(-torch.inf), "all -inf in 7 of 7 rows"),
    (lambda: filled(0.0, width=5), r"shape \(3, 8, 6\).*num_tokens.*\(3, 8, 5\)"),
    (lambda: sample(cwdfm.load(MOLECULES)), r"got a Pretrained; .*\.model.*cwdfm\.generate"),
    (lambda: sample(MOLECULES), "got a str; .*module or function"),
    (lambda: untyped.Adapted("bert", num_tokens=9, mask_id=0), "module or function.*got 'bert'"),
    (lambda: sample(device="gpu0"), "device must be .*got 'gpu0' "),
    (lambda: generate(prompt=[3]), "prompt must contain strings, got int 3"),
    (lambda: generate(prompt=3), "prompt must be a string or a list, got int 3"),
    (lambda: sample(HeadOfTrunkDiffers(6)), r"head\(trunk\(x, t\)\) differs from model"),
    (lambda: sample(prompt=[1] * 8), "prompt must be a tensor.*got list"),
    (lambda: sample(index=[1, 2, 3]), "index must be an int64 tensor.*got list"),
    (lambda: sample(index=torch.arange(3) - 1), "not be negative, got -1"),
    (lambda: PATH.sample(X, T, index=torch.arange(3) - 1), "not be negative, got -1"),
    (lambda: sample(grid=[0.0, 1.0]), "'t', 'kappa', 'sqrt' or a tensor of times"),
    (lambda: sample(shape=8), r"\(number of samples, length\).*got 8"),
    (lambda: sample(solver=None), r"a Solver such as Euler\(\), got None"),
    (lambda: untyped.MixturePath(MASK, cwdfm.Linear), r"a Schedule such as Polynomial\(2\.0\)"),
    (lambda: SCHEDULE.kappa(1.5), r"in \[0, 1\].*got float 1\.5"),
    (lambda: untyped.Neighbor(1, grid=(8,)), r"tuple \(height, width\)"),
    (lambda: cwdfm.Sum(()), "a tuple of weights"),
    (lambda: untyped.ContextPath(MASK, SCHEDULE, "neighbor"), "must be a Weight such"),
    (lambda: loss_of(cwdfm.NELBO(), MASK, NEAR), "path has weight=Neighbor.*loss has weight=None"),
    (lambda: cwdfm.NELBO("all", NEAR), "does not support a weight: alpha is 0 on revealed"),
    (lambda: loss_of(cwdfm.Bregman(weight=NEAR), UNIFORM, NEAR), "weight requires a mask source"),
    (lambda: cwdfm.ExactPosterior(torch.zeros(5, 5), MASK, SCHEDULE), "non-negative probabilities"),
    (lambda: untyped.MixturePath(SCHEDULE, MASK), "source must be a Source such as MaskSource"),
    (lambda: elbo(untyped.Linear(), MASK), "source must be a Source such as MaskSource"),
    (lambda: cwdfm.Euler().init(MASK, X[:0, 0], 4), "number of samples .* integer >= 1, got 0"),
    (lambda: untyped.Neighbor()([[True, False]]), "revealed must be a bool tensor .*got list"),
    (lambda: cwdfm.ExactPosterior(torch.full((5, 5), torch.inf), MASK, SCHEDULE), "sums to inf"),
    (lambda: sample(BadHead(6)), r"model\.head.*, 6\)"),
    (lambda: sample(BadTrunk(6)), r"model\.trunk.*, 8, width\]"),
    (lambda: filled(1 / 6), r"look like probabilities.*p\.log\(\)"),
    (
        lambda: loss_of(cwdfm.CrossEntropy(), MASK, width=5),
        r"shape \(3, 8, 6\), or \(.*, 6\) .*\(3, 8, 5\)",
    ),
    (
        lambda: cwdfm.NELBO()(torch.zeros(3, 8, 6), PATH.sample(X, T), cwdfm.Cosine()),
        "loss is called with Cosine",
    ),
    (lambda: sample(prompt=X, fixed=~NOTHING), "all positions are fixed.*free some"),
    (lambda: sample(prompt=X[0, :5]), r"shape \(3, 8\) or \(8,\), got .*\(5,\).*pad it"),
    (lambda: sample(source=UNIFORM, prompt=X), "UniformSource.*pass fixed="),
    (lambda: sample(fixed=NOTHING), "pass prompt="),
    (lambda: sample(prompt=X + 5, fixed=~NOTHING), "mask id at a fixed position"),
    (lambda: cwdfm.Neighbor(0), "radius must be an integer >= 1, got 0"),
    (lambda: untyped.Neighbor(np.int64(1)), r"radius must be an integer.*int64.*item\(\)"),
    (lambda: untyped.Neighbor(1, np.float32(2)), r"scale must be a number.*item\(\)"),
    (lambda: untyped.Polynomial(torch.tensor(2.0)), r"power must be a number.*item\(\)"),
    (lambda: sample(seed=np.int64(1)), r"seed must be an integer.*item\(\)"),
    (lambda: cwdfm.Neighbor(4)(NOTHING), "radius 4 .*too large for 8.*below 8/2, .*boundary='cut'"),
    (lambda: cwdfm.Entropy()(NOTHING, torch.full((3, 8, 5), torch.nan)), "must be finite"),
    (lambda: cwdfm.Neighbor(1, grid=(3, 3))(NOTHING), r"\(3, 3\) has 9 cells.*length 8"),
    (
        lambda: untyped.Neighbor(1, boundary="mirror"),
        "one of 'auto', 'circular', 'cut', got 'mirror'",
    ),
    (lambda: cwdfm.Neighbor(1, torch.inf), "scale must be .*between -1e6 and 1e6, got inf"),
    (lambda: cwdfm.Entropy(6.0)(NOTHING), "needs the model's logits"),
    (lambda: path_for(MASK, SCHEDULE, cwdfm.Entropy(6.0)), "cannot use Entropy.*Neighbor"),
    (lambda: elbo(UNIFORM, weight=NEAR), "use a mask source"),
    (
        lambda: loss_of(cwdfm.Bregman("masked"), UNIFORM),
        "requires a mask source.*coordinates='all'",
    ),
    (lambda: elbo(draws=1), "draws must be an integer >= 2, got 1"),
    (lambda: cwdfm.MaskSource(1), "vocab_size.*without the mask.*>= 2, got 1"),
    (lambda: cwdfm.Polynomial(0.5), "power must be .*from 1 to 1e6, got 0.5"),
    (lambda: cwdfm.Corrector(-1.0), "rates negative"),
    (lambda: cwdfm.Euler(temperature=1e-9), "temperature.*1e-6 to 1e6, got 1e-09"),
    (lambda: cwdfm.Euler(top_p=0.0), "top_p must be .*from 1e-6 to 1, got 0.0"),
    (lambda: cwdfm.Euler(top_p=1e-46), "from 1e-6 to 1, got 1e-46"),
    (lambda: cwdfm.Euler(dtype=torch.float16), "torch.float64 or torch.float32, got torch.float16"),
    (lambda: untyped.TopK("best"), "score must be one of 'confidence', 'margin', 'entropy'"),
    (lambda: cwdfm.TopK(temperature=-1.0), "temperature must be .*, got -1.0"),
    (lambda: cwdfm.TopK(top_p=0.0), "top_p must be .*, got 0.0"),
    (lambda: cwdfm.EntropyBound(True), "gamma must be a number >= 0.*got True"),
    (lambda: cwdfm.EntropyBound(-0.1), "gamma must be a number >= 0.*got -0.1"),
    (lambda: cwdfm.EntropyBound(torch.nan), "gamma must be a number >= 0.*got nan"),
    (lambda: cwdfm.EntropyPace(0), "pace must be .* > 0, got 0"),
    (lambda: cwdfm.EntropyPace(torch.nan), "pace must be .* > 0, got nan"),
    (lambda: cwdfm.EntropyPace(distance=-1), "distance must be an integer >= 0, got -1"),
    (lambda: untyped.TopK(distance=1.5), "distance must be an integer >= 0, got 1.5"),
    (lambda: cwdfm.EntropyBound(1.0, temperature=-1.0), "temperature must be .*, got -1.0"),
    (lambda: untyped.EntropyBound(1.0, "loss"), "error must be one of .*, got 'loss'"),
    (lambda: untyped.FirstHitting(1.0), "weight must be a context weight or None, got 1.0"),
    (lambda: cwdfm.FirstHitting(top_p=2.0), "top_p must be .*, got 2.0"),
    (lambda: untyped.Euler(hazard="exact"), "one of 'euler', 'integrated', got 'exact'"),
    (lambda: untyped.Euler(NEAR, counted="no"), "counted must be True or False, got 'no'"),
    (lambda: TrainConfig.from_flat(compile="no"), "compile must be True or False, got 'no'"),
    (lambda: untyped.Euler(weight="neighbor"), "context weight or None, got 'neighbor'"),
    (lambda: generate(length=0), "length must be an integer >= 1, got 0"),
    (lambda: generate(batch_size=0), "batch_size must be an integer >= 1, got 0"),
    (lambda: cwdfm.load(MOLECULES, device="gpu0"), "cpu, cuda or cuda:NUMBER, got 'gpu0'"),
    (lambda: configured(5, depth=1.5), "depth must be an integer >= 1, got 1.5"),
    (lambda: TrainConfig.from_flat(precision="bf16"), "'float32', 'bfloat16', .*got 'bf16'"),
    (lambda: TrainConfig.from_flat(parallel="deepspeed"), "one of 'ddp', 'fsdp', got 'deepspeed'"),
    (lambda: sample(seed=-1), r"0\.\.2\^64-1, got -1"),
    (lambda: sample(index=torch.arange(2)), r"shape \(3,\).*\(2,\)"),
    (lambda: cwdfm.stratified_times(0, 0, torch.tensor([4]), 4), r"positions 0\.\.3"),
    (lambda: cwdfm.ExactPosterior(torch.ones(5, 4), MASK, SCHEDULE), r"axis of size 5.*\(5, 4\)"),
]


@pytest.mark.parametrize(("act", "message"), INVALID, ids=[message for _, message in INVALID])
def test_invalid_input(act: Callable[[], object], message: str) -> None:
    with pytest.raises(cwdfm.InputError, match=f"(?s){message}"):
        act()


METHODS: list[Method] = [
    Flow(MASK, SCHEDULE),
    SEDD(5),
    GIDD(5, 0.2),
    Autoregressive(5),
    BlockDiffusion(MASK, SCHEDULE, 4),
]
INVALID_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "tokens-as-list": ({"x_1": [[0, 1]]}, "x_1 must be an int64 tensor"),
    "mask-id": ({"x_1": X + 5}, "x_1 contains ids from 5 to 5"),
    "batch-size-zero": ({"batch_size": 0}, "batch_size must be an integer >= 1"),
    "fixed-as-list": ({"fixed": [1]}, r"fixed must be a bool tensor of shape \(3, 8\), got list"),
    "fixed-as-numbers": ({"fixed": X}, "fixed must be a bool tensor"),
    "fixed-one-row": ({"fixed": NOTHING[0]}, "fixed must be a bool tensor"),
    "all-fixed": ({"fixed": ~NOTHING}, "all positions are fixed"),
}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("row", INVALID_ARGUMENTS)
def test_every_likelihood_rejects_invalid_input(method: Method, row: str) -> None:
    config = DiTConfig(method.num_tokens, width=8, depth=1, heads=1, conditioning=8)
    arguments, message = INVALID_ARGUMENTS[row]
    with pytest.raises(cwdfm.InputError, match=message):
        method.likelihood(DiT(method.network(config)), **{"x_1": X, **arguments})


def test_nothing_masked() -> None:
    batch = cwdfm.MixturePath(MASK, SCHEDULE).sample(X, torch.ones(3))
    logits = torch.zeros(3, 8, 6)
    assert float(cwdfm.Neighbor(1, 4.0)(batch.revealed).sum()) == 0
    assert float(cwdfm.NELBO()(logits, batch, SCHEDULE)) == 0
    assert float(cwdfm.CrossEntropy("masked")(logits, batch, SCHEDULE)) == 0
    assert float(cwdfm.CrossEntropy("masked")(logits[batch.revealed][:0], batch, SCHEDULE)) == 0
    loss = cwdfm.ScaledCrossEntropy(cwdfm.Neighbor(1, 1.0))(logits, batch, SCHEDULE)
    assert bool(torch.isfinite(loss))


def test_nan_logits_in_a_loss() -> None:
    logits = torch.full((3, 8, 6), torch.nan)
    assert bool(cwdfm.CrossEntropy()(logits, PATH.sample(X, T), SCHEDULE).isnan())


def test_half_precision_defaults() -> None:
    solver = cwdfm.Euler(weight=cwdfm.Neighbor(1, 0.7), corrector=cwdfm.Corrector())
    model = SmallModel(UNIFORM.num_tokens)
    usual = sample(model, source=UNIFORM, solver=solver).tokens
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(sample(model, source=UNIFORM, solver=solver).tokens, usual)
    finally:
        torch.set_default_dtype(before)
