"""Calls of the public API with valid arguments, and values to put in their place."""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

import cwdfm
from cwdfm.data.fragments import Linker, Scaffold
from cwdfm.errors import MAX_STEPS
from cwdfm.schedule import Spacing
from tests.support.models import SmallModel

VOCAB, BATCH, LENGTH = 5, 3, 8
SOURCES = (cwdfm.MaskSource(VOCAB), cwdfm.UniformSource(VOCAB))
SCHEDULES = (cwdfm.Polynomial(2.0), cwdfm.Linear(), cwdfm.Cosine())
X = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % VOCAB
T = torch.tensor([0.0, 0.4, 1.0])
REVEALED = X % 2 == 0

# Values of every kind that a user may pass by mistake.
JUNK: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 7, 10**6, sys.maxsize, 2**64, -(2**70),
    0.0, -0.0, 0.5, 1.0, 1.5, -2.5, 1e-9, 1e30, -1e308, math.nan, math.inf, -math.inf, 1j,
    "", "t", "euler", "neighbor", "\ud800", "a" * 300, b"bytes",
    (), (0, 8), (3,), (3, 8), (3, 8, 2), (3, "8"), (3.0, 8.0), [], [1, 2, 3], {}, {"a": 1}, set(),
    object(), object, int, cwdfm.Euler, cwdfm.Neighbor, len, lambda *_: None, lambda x: x,
    cwdfm.Euler(), cwdfm.Neighbor(), cwdfm.Entropy(), cwdfm.Linear(), cwdfm.MaskSource(5),
    cwdfm.UniformSource(9), cwdfm.Refine(), cwdfm.Resample(), cwdfm.Reject(0.5),
    cwdfm.CrossEntropy(),
    np.int64(3), np.float64(0.5), np.zeros((3, 8), dtype=np.int64), torch.float16, torch.int64,
    torch.device("cpu"), torch.device("meta"),
    torch.tensor(1), torch.tensor(0.5), torch.tensor([]), torch.zeros(3), torch.zeros(3, 8), X,
    X.int(), X.bool(), X[0], X[:0], X + 99, X - 99, X[:2], X[:, :5], X[..., None], X.float(),
    X.to_sparse(), T, T.half(), T * math.nan, T - 2, T.long(), REVEALED, ~REVEALED,
    torch.ones_like(REVEALED),
    torch.zeros(3, 8, 6), torch.zeros(3, 8, 5), torch.zeros(2, 6),
    torch.zeros(3, 8, 6, dtype=torch.complex64), torch.linspace(0, 1, 5), torch.linspace(1, 0, 5),
    torch.empty(3, 8, device="meta"), torch.nn.Linear(2, 2),
)  # fmt: skip


WORK = ("n", "steps", "draws", "max_tries", "resolution", "times")
USER_FUNCTIONS = ("model", "network", "predictor", "callback", "progress")


@dataclass(frozen=True)
class Call:
    """A function, its valid arguments by name, and a check of what it returns."""

    function: Callable[..., Any]
    arguments: Mapping[str, tuple[Any, ...]]
    check: Callable[[Any, Mapping[str, Any]], None]

    def accepts(self, name: str, value: Any) -> bool:
        """Whether a value may replace an argument.

        Errors of users' functions are their own, and a million steps take as long as they take.
        """
        long = name in WORK and isinstance(value, int) and 1000 < value <= MAX_STEPS
        return not long and not (name in USER_FUNCTIONS and callable(value))


def finite(result: Any, arguments: Mapping[str, Any]) -> None:
    values = result if isinstance(result, Tensor) else torch.tensor(float(result))
    assert bool(torch.isfinite(values).all()), result


def anything(result: Any, arguments: Mapping[str, Any]) -> None:
    """An object that validates its fields; other calls use it."""


def data_tokens(result: cwdfm.Samples, arguments: Mapping[str, Any]) -> None:
    tokens = result.tokens
    assert tokens.dtype == torch.int64
    assert tokens.dim() == 2
    low, high = (int(x) for x in tokens.aminmax())
    assert low >= 0
    assert high < 40  # the largest vocabulary of these calls
    assert int(result.updates.min()) >= 0


def path_sample(result: cwdfm.PathSample, arguments: Mapping[str, Any]) -> None:
    source = result.source
    assert torch.equal(result.x_t, torch.where(result.revealed, result.x_1, result.x_0))
    assert int(result.x_t.max()) < source.num_tokens
    assert int(result.x_t.min()) >= 0


def bound(result: cwdfm.Bound, arguments: Mapping[str, Any]) -> None:
    assert result.nats_per_token >= 0
    assert not math.isnan(result.standard_error)


def alpha(result: Tensor, arguments: Mapping[str, Any]) -> None:
    assert bool((result >= 0).all())
    masked = (~arguments["revealed_BN"]).sum(1)
    torch.testing.assert_close(result.sum(1), masked.double())


@cache
def model() -> SmallModel:
    torch.manual_seed(0)
    return SmallModel(VOCAB + 1).eval()


def flow_model(x_t: Tensor, t: Tensor) -> Tensor:
    """Logits for the mask source of this module, or for its uniform source."""
    logits: Tensor = model()(x_t, t)
    return logits


MASK, LINEAR = SOURCES[0], SCHEDULES[1]
PATH = cwdfm.MixturePath(MASK, LINEAR)
BATCH_OF_PATH = PATH.sample(X, T * 0.9)
LOGITS = torch.linspace(-1, 1, BATCH * LENGTH * 6).reshape(BATCH, LENGTH, 6)
SOLVERS = (
    cwdfm.Euler(),
    cwdfm.Euler(cwdfm.Neighbor(1, 2.0), "integrated"),
    cwdfm.Euler(cwdfm.Entropy(), counted=True),
    cwdfm.Euler(corrector=cwdfm.Corrector()),
    cwdfm.FirstHitting(),
    cwdfm.TopK(),
    cwdfm.EntropyBound(0.5),
    cwdfm.EntropyPace(),
    cwdfm.KLASS(),
    cwdfm.Threshold(0.5),
    cwdfm.PathPlanning(),
    cwdfm.Edit(cwdfm.Threshold(0.5), 0.5),
    cwdfm.ThetaRK2(),
    cwdfm.ThetaTrapezoidal(weight=cwdfm.Neighbor(1, 2.0)),
    cwdfm.Gibbs(cwdfm.Euler()),
    cwdfm.Euler(hazard="integrated", corrector=cwdfm.Remask()),
)
WEIGHTS = (cwdfm.Neighbor(2, 1.0), cwdfm.Distance(), cwdfm.NeighborShare(), cwdfm.Entropy())
FLOW = {"model": (flow_model,), "source": (MASK,), "schedule": SCHEDULES}
SAMPLE = {"seed": (0, 2**64 - 1), "index": (None, torch.tensor([4, 0, 9])), "batch_size": (None, 2)}
PROMPT = torch.tensor([1, 2, 5, 5, 5, 5, 5, 3])


def fields(**values: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    return values


def class_calls() -> dict[str, Call]:
    boundary = ("auto", "circular", "cut")
    draw = fields(temperature=(1.0, 0, 0.5), top_p=(1.0, 0.5), dtype=(torch.float64, torch.float32))
    weight = (None, *WEIGHTS)
    arguments: dict[str, dict[str, tuple[Any, ...]]] = {
        "MaskSource": fields(vocab_size=(2, 30)),
        "UniformSource": fields(vocab_size=(2, 30)),
        "Polynomial": fields(power=(1, 2.0)),
        "Neighbor": fields(
            radius=(1, 3), scale=(1.0, -2), boundary=boundary, grid=(None, (2, 4))
        ),
        "NeighborShare": fields(radius=(1, 2), boundary=boundary),
        "Distance": fields(scale=(1.0, 3), radius=(1, 16), boundary=boundary),
        "Entropy": fields(beta=(1.0, -1)),
        "Confidence": fields(scale=(1.0, 4)),
        "Margin": fields(scale=(1.0, 4)),
        "Sum": fields(terms=((cwdfm.Neighbor(), cwdfm.Entropy()),)),
        "Corrector": fields(scale=(1.0,), a=(0.5, 0), b=(0.5,)),
        "Euler": fields(
            weight=weight, hazard=("euler", "integrated"), counted=(False,),
            corrector=(None, cwdfm.Corrector()), **draw,
        ),
        "FirstHitting": fields(weight=weight, **draw),
        "TopK": fields(score=("confidence", "margin", "entropy"), distance=(0, 2), **draw),
        "EntropyBound": fields(gamma=(0, 0.5), error=("entropy", "margin"), **draw),
        "EntropyPace": fields(pace=(0.3, 2), distance=(0, 2), **draw),
        "KLASS": fields(threshold=(0.9,), kl=(0.01,), history=(2,), **draw),
        "Threshold": fields(threshold=(0.9,), **draw),
        "Edit": fields(solver=SOLVERS[5:7], edit_threshold=(0.9, 0), post_steps=(0, 4)),
        "PathPlanning": fields(eta=(1.0,), **draw),
        "ThetaRK2": fields(theta=(0.5,), weight=weight, **draw),
        "ThetaTrapezoidal": fields(theta=(0.5,), weight=weight, **draw),
        "Remask": fields(
            rule=("cap", "rescale", "confidence"), eta=(0.02,), loop=(None, (0.2, 0.7, 0.5))
        ),
        "Gibbs": fields(
            solver=SOLVERS[:1], tokens=(1,), select=("random", "unlikely"), begin=(0.0, 0.5)
        ),
        "ClassifierFreeGuidance": fields(condition=({"logp": 2.5},), strength=(1.0, 2.0)),
        "PredictorGuidance": fields(
            predictor=(len,), strength=(1.0, 0), form=("exact", "taylor")
        ),
        "Learned": fields(coefficients=((0.1, 1.0, 0.5, 0.2),), scale=(1.0,)),
        "CalibratedEntropy": fields(temperature=(0.5, 2.0), beta=(1.0,)),
        "Recommendation": fields(
            name=("euler",), steps=(4,), grid=("t",), settings=((),), resample=(None,)
        ),
        "CrossEntropy": fields(coordinates=("all", "masked")),
        "NELBO": fields(coordinates=("masked",), weight=(None, WEIGHTS[0])),
        "Bregman": fields(coordinates=("all", "masked"), weight=(None, WEIGHTS[0])),
        "ScaledCrossEntropy": fields(weight=WEIGHTS, revealed=("one", "zero", "joint", "raw")),
        "MixturePath": fields(source=SOURCES, schedule=SCHEDULES),
        "ContextPath": fields(source=SOURCES, schedule=SCHEDULES, weight=WEIGHTS[:3]),
        "Refine": fields(rounds=(1,), noise_fraction=(0.5,), steps=(2,), temperature=(None, 0.5)),
        "Resample": fields(
            rounds=(2,), noise_fraction=(None, 0.5), threshold=(None, 0.8),
            temperature=(None, 0.5), top_p=(None, 0.9), tokens_per_round=(1, 3),
        ),
        "Reject": fields(threshold=(0.0, 0.9), max_tries=(2,), noise_fraction=(None, 0.1)),
        "ExactPosterior": fields(target=(torch.ones(5, 5),), source=SOURCES, schedule=SCHEDULES),
        "Start": fields(tokens=(X,), t=(0.5,)),
        "Adapted": fields(network=(len,), num_tokens=(6,), mask_id=(0, 5), never=((), [1, 2])),
    }  # fmt: skip
    return {name: Call(getattr(cwdfm, name), each, anything) for name, each in arguments.items()}


def works(solver: Any, arguments: Mapping[str, Any]) -> None:
    samples = cwdfm.sample(flow_model, MASK, LINEAR, solver, shape=(3, 8), steps=2)
    data_tokens(samples, arguments)


def function_calls() -> dict[str, Call]:
    sampled = fields(
        **FLOW, solver=SOLVERS, shape=((3, 8), [3, 8]), steps=(1, 4),
        grid=get_args(Spacing), prompt=(None, PROMPT), fixed=(None,), start=(None,),
        record=(0, 2), callback=(None, lambda state, info: None), progress=(None, lambda k: None),
        device=(None, "cpu"), **SAMPLE,
    )  # fmt: skip
    improved = fields(**FLOW, tokens=(X,), fixed=(None, REVEALED), **SAMPLE)
    return {
        "sample": Call(cwdfm.sample, sampled, data_tokens),
        "refine": Call(
            cwdfm.refine,
            improved | fields(solver=SOLVERS, config=(None, cwdfm.Refine(1, 0.5, 2)), grid=("t",),
                              weight=(None, WEIGHTS[0])),
            data_tokens,
        ),
        "resample": Call(
            cwdfm.resample, improved | fields(config=(None, cwdfm.Resample(2))), data_tokens
        ),
        "plausibility": Call(
            cwdfm.plausibility, improved | fields(noise_fraction=(None, 0.5)), finite
        ),
        "elbo": Call(
            cwdfm.elbo,
            fields(**FLOW, x_1=(X,), weight=(None, *WEIGHTS[:3]), seed=(0, 5), draws=(2, 3),
                   fixed=(None, REVEALED), index=(None,), batch_size=(2, 256)),
            bound,
        ),
        "time_grid": Call(
            cwdfm.time_grid,
            fields(schedule=SCHEDULES, steps=(1, 4), spacing=get_args(Spacing), first=(0.0, 0.5)),
            finite,
        ),
        "stratified_times": Call(
            cwdfm.stratified_times,
            fields(seed=(0,), step=(0, 9), index_B=(torch.arange(3),), total=(3, 8)),
            finite,
        ),
        "path_for": Call(
            cwdfm.path_for,
            fields(source=SOURCES, schedule=SCHEDULES, weight=(None, *WEIGHTS[:3])),
            lambda path, arguments: path_sample(path.sample(X, T), arguments),
        ),
        "fit_confidence": Call(
            cwdfm.fit_confidence,
            FLOW | fields(tokens=(X,), times=(2,), scale=(1.0,), seed=(0,)),
            lambda weight, arguments: works(cwdfm.Euler(weight), arguments),
        ),
        "fit_temperature": Call(
            cwdfm.fit_temperature,
            FLOW | fields(tokens=(X,), times=(2,), beta=(1.0,), seed=(0,)),
            lambda weight, arguments: works(cwdfm.Euler(weight), arguments),
        ),
        "jump_your_steps": Call(
            cwdfm.jump_your_steps,
            FLOW | fields(tokens=(X,), steps=(2,), resolution=(8,), seed=(0,)),
            finite,
        ),
        "closest_to_data": Call(
            cwdfm.closest_to_data,
            fields(model=FLOW["model"], path=(PATH,), data=(X,), draws=({"a": X, "b": X},),
                   fixed=(None, REVEALED)),
            anything,
        ),
        "recommend": Call(
            cwdfm.recommend,
            fields(
                model=(cwdfm.load("qm9-mask-small"),),
                evaluations=(4, 32),
                faithful=(False, True),
                data=(None, torch.ones(2, 32, dtype=torch.int64)),
            ),
            anything,
        ),
        "make_solver": Call(cwdfm.make_solver, fields(name=("neighbor", "euler")), works),
        "load": Call(
            cwdfm.load, fields(name_or_folder=("qm9-mask-small",), device=("cpu",)), anything
        ),
    }  # fmt: skip


def method_calls() -> dict[str, Call]:
    """Methods of valid objects."""
    calls = {}
    for path in (PATH, cwdfm.ContextPath(SOURCES[1], LINEAR, WEIGHTS[0])):
        calls[f"{type(path).__name__}.sample"] = Call(
            path.sample,
            fields(x_1=(X,), t=(T,), seed=(0, 5), step=(0, 7), index=(None, torch.arange(3)),
                   fixed=(None, REVEALED)),
            path_sample,
        )  # fmt: skip
    for weight in WEIGHTS:
        arguments = fields(revealed_BN=(REVEALED,), logits=(LOGITS,), source=(MASK,))
        calls[f"{type(weight).__name__}()"] = Call(weight, arguments, alpha)
    for loss in (cwdfm.CrossEntropy(), cwdfm.NELBO(), cwdfm.Bregman(),
                 cwdfm.ScaledCrossEntropy(WEIGHTS[0], "raw")):  # fmt: skip
        arguments = fields(logits=(LOGITS,), batch=(BATCH_OF_PATH,), schedule=(LINEAR,))
        calls[f"{type(loss).__name__}()"] = Call(loss, arguments, finite)
    for schedule in SCHEDULES:
        for name in ("kappa", "kappa_dot", "survival", "inverse"):
            argument = "kappa" if name == "inverse" else "t"
            calls[f"{type(schedule).__name__}.{name}"] = Call(
                getattr(schedule, name), {argument: (0.0, 0.5, 1, T)}, anything
            )
    solver = cwdfm.Euler()
    calls["init"] = Call(
        solver.init,
        fields(source=(MASK,), index_B=(torch.arange(3),), length=(8,), seed=(0,),
               prompt=(None, PROMPT), fixed=(None,)),
        anything,
    )  # fmt: skip
    state = solver.init(MASK, torch.arange(3), LENGTH)
    calls["step"] = Call(
        solver.step, fields(**FLOW, state=(state,), t=(0.0, 0.5), t_next=(0.6, 1.0)), anything
    )
    trained = cwdfm.load("qm9-mask-small")
    calls["generate"] = Call(
        trained.generate,
        fields(solver=(None, "neighbor"), n=(1,), steps=(1,), temperature=(None, 0, 0.5), seed=(0,),
               grid=("t",), length=(None, 12), prompt=(None, "CC"), template=(None,),
               refine=(None,), resample=(None, cwdfm.Resample(1)),
               reject=(None, cwdfm.Reject(0.1, 1)), index=(None,), batch_size=(None, 1),
               evaluations=(None, None, 4), record=(0, 1), progress=(None,)),
        data_tokens,
    )  # fmt: skip
    for fragment, given in (
        (Scaffold, fields(smiles=("c1ccccc1", "C(*)O"), most=(1, 3))),
        (Linker, fields(first=("C",), second=("O", "N*"))),
    ):
        calls[f"generate {fragment.__name__}"] = Call(
            lambda kind=fragment, **given: trained.generate(fragment=kind(**given), n=1, steps=1),
            given,
            data_tokens,
        )
    calls["likelihood"] = Call(
        trained.likelihood,
        fields(texts=(["CCO", "C"],), weight=(None,), draws=(2,), seed=(0,), batch_size=(2,)),
        lambda result, arguments: finite(result.nats_per_token, arguments),
    )
    return calls


@cache
def calls() -> dict[str, Call]:
    return class_calls() | function_calls() | method_calls()
