"""The recommended sampler for a budget of model evaluations."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from cwdfm.errors import InputError, check_bool, check_integer, check_tokens
from cwdfm.method.base import Method, SampleRequest
from cwdfm.method.flow import Flow
from cwdfm.path import MixturePath
from cwdfm.postprocess import Resample
from cwdfm.schedule import Schedule, Spacing
from cwdfm.solver.jump_your_steps import jump_your_steps
from cwdfm.solver.match_data import closest_to_data
from cwdfm.solver.sample import Samples
from cwdfm.solver_config import make_solver

Times = tuple[float, ...]  # a time grid

FITTED = 2  # evaluations per token below which a sampler is fitted, with a uniform source
MIN_RESOLUTION = 64  # candidate times of a fitted grid
GRID_DATA, FIT_DATA = 64, 512  # sequences that fit a grid, and that choose between samplers
FIT_BATCH = 64  # sequences drawn together to choose between samplers
TEMPERATURES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)  # of the samplers to choose from
GIBBS_TOKENS = 32  # a Gibbs step redraws one token in this many
SMALL_VOCABULARY = 256  # up to here, the rules for molecules apply; above, those for text


@dataclass(frozen=True)
class Recommendation:
    """A solver, by its name on the command line, with its settings, steps, grid and resampling.

    Use it as `cwdfm.generate(trained, **recommendation.options)`.
    """

    name: str  # of the solver
    steps: int
    grid: Spacing = "t"
    settings: tuple[tuple[str, Any], ...] = ()  # options of the solver
    resample: Resample | None = None
    times: Times | None = None  # a grid fitted to the model, instead of `grid`

    @property
    def solver(self) -> Any:
        """The solver itself."""
        return make_solver(self.name, **dict(self.settings))

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments for `generate`."""
        names = ("solver", "steps", "grid", "resample")
        found = {name: getattr(self, name) for name in names}
        if self.times is not None:
            found["grid"] = torch.tensor(self.times, dtype=torch.float64)
        return found


@dataclass(frozen=True)
class Rule:
    """The sampler to use from this number of evaluations per token up to that of the next rule."""

    per_token: float = 0.0  # the smallest number of evaluations per token that the rule applies to
    solver: str = "ancestral"
    settings: tuple[tuple[str, Any], ...] = ()
    resampling: float = 0.0  # fraction of the evaluations spent on resampling; uniform source only
    grid: Spacing = "kappa"


UNLIKELY = (("select", "unlikely"), ("begin", 0.3))  # settings of Gibbs steps
# One row per measured budget at which the choice changes (docs/results/frontier.md).
RULES: dict[str, tuple[Rule, ...]] = {
    # Coarse steps draw several tokens at once. Those that are apart depend on each other less, and
    # at a low temperature they are more often compatible. With more evaluations, only nearly
    # independent tokens are drawn at once.
    "molecules, mask": (
        Rule(0, "entropy-pace", (("pace", 1.0), ("distance", 2), ("temperature", 0.7))),
        Rule(1 / 4, "entropy-pace", (("pace", 0.8), ("distance", 3), ("temperature", 0.8))),
        Rule(1 / 2, "entropy-pace", (("pace", 0.3), ("distance", 2))),
        Rule(3 / 4, "entropy-bound", (("gamma", 0.15),)),
        Rule(1, "entropy-bound", (("gamma", 0.05),)),
    ),
    # Resampling corrects the errors of a few coarse steps, at the expense of novelty, and so does
    # an entropy bound. With many evaluations the steps make few errors to begin with.
    "molecules, uniform": (
        Rule(),
        Rule(1 / 16, resampling=1 / 2),
        Rule(1 / 2, resampling=3 / 8, grid="sqrt"),
        Rule(1, "entropy-bound", (("gamma", 1.0),)),
        Rule(8, resampling=1 / 2),
    ),
    # Adjacent tokens depend on each other most. With few steps the tokens of a step are therefore
    # as far apart as possible; with one step per token, the most certain ones come first.
    "text, mask": (
        Rule(0, "random-order"),
        Rule(1 / 4, "margin", (("distance", 3),)),
        Rule(1, "entropy-bound", (("gamma", 1 / 16),)),
        Rule(2, "entropy-bound", (("gamma", 1 / 32),)),
    ),
    # With few steps most tokens are drawn independently in any case; drawing more of them at once
    # in the first steps leaves more steps to the others. With more steps, Gibbs steps and
    # resampling repair tokens that became unlikely.
    "text, uniform": (
        Rule(grid="sqrt"),
        Rule(1 / 10, resampling=1 / 2, grid="sqrt"),
        Rule(1 / 5, "gibbs", UNLIKELY, resampling=1 / 3),
        Rule(3 / 4, "gibbs", UNLIKELY),
        Rule(3 / 2, "gibbs", UNLIKELY, resampling=1 / 3),
    ),
}


def recommend(
    model: Any,
    evaluations: int = 32,
    *,
    faithful: bool = False,
    data: Tensor | Samples | None = None,
) -> Recommendation:
    """The sampler to use for at most this many model evaluations per sample.

    Args:
        model: A model returned by `cwdfm.load`.
        evaluations: The budget.
        faithful: Follow the model's distribution as closely as possible, as measured on small exact
            targets. The default prefers sample quality: the most valid molecules among samplers at
            least as novel as Euler.
        data: With `faithful`, held-out data [B, N], or samples of the model from many steps; a few
            hundred sequences. If there are too few evaluations to be exact, the sampler is then
            chosen whose samples resemble them most (see `closest_to_data`). This takes about 250
            evaluations of every sequence: minutes on a CPU, even for a small network.

    For flows, `RULES` has one list of choices per data type and source. Other methods use their own
    solver.
    """
    method = getattr(model, "method", None)
    if not isinstance(method, Method):
        raise InputError(
            f"recommend requires a model returned by cwdfm.load, got a {type(model).__name__}"
        )
    check_bool("faithful", faithful)
    fit = None
    if data is not None:
        if not (faithful and isinstance(method, Flow)):
            raise InputError("data is used only for a flow with faithful=True; omit it")
        tokens, fixed = (data.tokens, data.fixed) if isinstance(data, Samples) else (data, None)
        check_tokens("data", tokens, method.source.vocab_size)
        if fixed is None and model.fix_first:
            fixed = torch.arange(tokens.shape[-1]) == 0
        fit = DataFit(model.model, method, tokens, fixed)
    return recommend_for(method, evaluations, model.length, faithful=faithful, fit=fit)


@dataclass(frozen=True, eq=False)
class DataFit:
    """Fits samplers of a flow to data [B, N]; `fixed` tokens, [B, N] or [N], are given."""

    model: Any
    flow: Flow
    tokens: Tensor
    fixed: Tensor | None = None

    def times(self, steps: int) -> Times:
        """The grid of `jump_your_steps`."""
        network = (self.model, self.flow.source, self.flow.schedule)
        tokens, fixed = self._first(GRID_DATA)
        resolution = max(MIN_RESOLUTION, 2 * steps)
        grid = jump_your_steps(*network, tokens, steps, fixed=fixed, resolution=resolution)
        return tuple(grid.tolist())

    def closest(self, candidates: Iterator[Recommendation]) -> Recommendation:
        """The candidate whose samples resemble the data most."""
        path = MixturePath(self.flow.source, self.flow.schedule)
        tokens, fixed = self._first(FIT_DATA)

        def draw(candidate: Recommendation) -> Tensor:
            options = candidate.options
            request = SampleRequest(
                shape=(len(tokens), tokens.shape[1]),
                steps=candidate.steps,
                grid=options["grid"],
                prompt=None if fixed is None else tokens,
                fixed=fixed,
                batch_size=FIT_BATCH,
            )
            return self.flow.sample(self.model, candidate.solver, request).tokens

        draws = ((candidate, draw(candidate)) for candidate in candidates)
        return closest_to_data(self.model, path, tokens, draws, fixed)

    def _first(self, count: int) -> tuple[Tensor, Tensor | None]:
        """The first sequences and their fixed tokens."""
        fixed = self.fixed
        if fixed is not None and fixed.dim() == 2:
            fixed = fixed[:count]
        return self.tokens[:count], fixed


def recommend_for(
    method: Method,
    evaluations: int,
    length: int,
    *,
    faithful: bool = False,
    fit: DataFit | None = None,
) -> Recommendation:
    """The sampler for a method and sequences of this length; `fit` chooses a faithful one."""
    check_integer("evaluations", evaluations)
    if not isinstance(method, Flow):
        # A block diffusion model evaluates every block but the last once more to cache it.
        blocks = length // (method.causal_block or length)
        return Recommendation(method.default_solver, max(1, evaluations - blocks + 1))
    small, masked = method.source.vocab_size <= SMALL_VOCABULARY, method.source.marks_noise
    if faithful:
        return _faithful(evaluations, length, masked, fit)
    rules = RULES[f"{'molecules' if small else 'text'}, {'mask' if masked else 'uniform'}"]
    rule = next(rule for rule in reversed(rules) if rule.per_token * length <= evaluations)
    rounds, resample = int(rule.resampling * evaluations), None
    if rounds:
        resample = Resample(rounds, tokens_per_round=max(1, length // 8))
    steps, settings = evaluations - rounds, rule.settings
    if rule.solver == "gibbs":
        steps = gibbs_steps(steps, method.schedule, **dict(settings))
        settings = (*settings, ("tokens", max(1, length // GIBBS_TOKENS)))
    elif masked:
        steps = min(steps, length)  # a step reveals at least one token
        if rule.solver == "random-order":
            settings = (("distance", widest_distance(steps)),)
    return Recommendation(rule.solver, steps, rule.grid, settings, resample)


def widest_distance(steps: int) -> int:
    """The distance that a random order can keep between the tokens of each of this many steps.

    Tokens at random places, more than d apart, fill about 3 / (4 (d + 1)) of a sequence.
    """
    return max(0, 3 * steps // 4 - 1)


def gibbs_steps(evaluations: int, schedule: Schedule, begin: float = 0.0, **_: Any) -> int:
    """The number of Gibbs steps for at most this many evaluations.

    After time `begin` every step but the last has a second evaluation.
    """
    start = float(schedule.kappa(begin))

    def cost(steps: int) -> int:
        return steps + sum(k / steps >= start for k in range(1, steps))

    return max(steps for steps in range(1, evaluations + 1) if cost(steps) <= evaluations)


def _faithful(evaluations: int, length: int, masked: bool, fit: DataFit | None) -> Recommendation:
    """The sampler that stays closest to the model's distribution."""
    if masked and evaluations >= length:
        return Recommendation("first-hitting", length)  # exact: one token per evaluation
    if fit is not None and evaluations < FITTED * length:
        return fit.closest(_candidates(evaluations, masked, fit))
    if masked:
        # Tokens that are drawn at once lose their dependence, most of all if they are close. A
        # lower temperature makes up for part of it; below 0.9 it costs more where tokens are
        # independent (docs/results/frontier.md).
        settings = (("temperature", 0.9), ("distance", widest_distance(evaluations)))
        return Recommendation("random-order", evaluations, "kappa", settings)
    return Recommendation("ancestral", evaluations, "kappa")


def _candidates(evaluations: int, masked: bool, fit: DataFit) -> Iterator[Recommendation]:
    """Samplers for too few evaluations to be exact; which one is closest depends on the data."""
    if masked:
        distances = dict.fromkeys((widest_distance(evaluations), 0))
        for distance, temperature in product(distances, TEMPERATURES):
            settings = (("temperature", temperature), ("distance", distance))
            yield Recommendation("random-order", evaluations, "kappa", settings)
        return
    times = fit.times(evaluations)
    for temperature in TEMPERATURES:
        cooler = (("temperature", temperature),)
        yield Recommendation("ancestral", evaluations, "kappa", cooler, times=times)
        yield Recommendation("ancestral", evaluations, "kappa", cooler)
        yield Recommendation("euler", evaluations, "kappa", cooler)
