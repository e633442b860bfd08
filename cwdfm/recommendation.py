"""The recommended sampler for a number of model evaluations."""

from dataclasses import dataclass
from typing import Any

from cwdfm.errors import InputError, check_bool, check_integer
from cwdfm.method.base import Method
from cwdfm.method.flow import Flow
from cwdfm.postprocess import Resample
from cwdfm.schedule import Spacing
from cwdfm.solver_config import make_solver

GROUPS = 8  # evaluations of a round of resampling with a mask source; one with a uniform source
STAGES = {"theta-trapezoidal": 2}  # evaluations per step but the last, which has one
SMALL_VOCABULARY = 256  # resampling was measured on molecules; it narrows the variety of text


@dataclass(frozen=True)
class Recommendation:
    """A sampler, by its name on the command line, with the settings that determine its cost.

    cwdfm.generate(trained, **recommendation.options)
    """

    name: str  # of the solver
    steps: int
    grid: Spacing = "t"
    settings: tuple[tuple[str, Any], ...] = ()  # options of the solver
    resample: Resample | None = None

    @property
    def solver(self) -> Any:
        """The solver itself."""
        return make_solver(self.name, **dict(self.settings))

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `generate`."""
        names = ("solver", "steps", "grid", "resample")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Rule:
    """The sampler from a number of evaluations on, until the next rule."""

    evaluations: int
    solver: str = "ancestral"
    settings: tuple[tuple[str, Any], ...] = ()
    resampling: float = 0.0  # share of the evaluations


# One row per measured budget at which the choice changes (docs/results/frontier.md). "faithful"
# rules keep the distribution of the model: temperature 1, and no correction that favors likely
# tokens.
RULES: dict[str, tuple[Rule, ...]] = {
    # Coarse steps draw several tokens at once; a low temperature makes them fit more often. With
    # more evaluations, only tokens that hardly depend on each other are drawn at once.
    "molecules, mask": (
        Rule(1, settings=(("temperature", 0.7),)),
        Rule(16, "entropy-bound", (("gamma", 0.5),)),
        Rule(24, "entropy-bound", (("gamma", 0.15),)),
        Rule(32, "entropy-bound", (("gamma", 0.05),)),
    ),
    # Resampling repairs the errors of a few coarse steps, at the expense of novelty.
    "molecules, uniform": (Rule(1), Rule(2, resampling=1 / 2), Rule(16, resampling=1 / 4)),
    "text, mask": (Rule(1),),
    "text, uniform": (Rule(1),),
    "faithful, mask": (Rule(1, "margin"),),  # and one token per evaluation if there are enough
    "faithful, uniform": (Rule(1),),
}


def recommend(model: Any, evaluations: int = 32, *, faithful: bool = False) -> Recommendation:
    """The sampler to use for at most this many model evaluations per sample.

    Args:
        model: A model returned by `cwdfm.load`.
        evaluations: The budget.
        faithful: Keep the distribution of the model as well as possible. The default prefers
            samples of high quality: most valid molecules, at no less novelty than Euler's.

    The choices for flows are the rows of `RULES`, by the kind of data and the source. Methods other
    than flows use their own solver.
    """
    method = getattr(model, "method", None)
    if not isinstance(method, Method):
        raise InputError(
            f"recommend requires a model returned by cwdfm.load, got a {type(model).__name__}"
        )
    check_bool("faithful", faithful)
    return recommend_for(method, evaluations, model.length, faithful=faithful)


def recommend_for(
    method: Method, evaluations: int, length: int, *, faithful: bool = False
) -> Recommendation:
    """The sampler for a method and sequences of this length."""
    check_integer("evaluations", evaluations)
    if not isinstance(method, Flow):
        # A block diffusion model evaluates every block but the last once more, for its cache.
        blocks = length // (method.causal_block or length)
        return Recommendation(method.default_solver, max(1, evaluations - blocks + 1))
    small, masked = method.source.vocab_size <= SMALL_VOCABULARY, method.source.marks_noise
    data = "faithful" if faithful else "molecules" if small else "text"
    rules = RULES[f"{data}, {'mask' if masked else 'uniform'}"]
    rule = next(each for each in reversed(rules) if each.evaluations <= evaluations)
    if faithful and masked and evaluations >= length:
        return Recommendation("first-hitting", length)  # exact: one token per evaluation
    cost = GROUPS if masked else 1
    rounds = int(rule.resampling * evaluations) // cost
    resample = None
    if rounds:
        noise_fraction = 1 / GROUPS if masked else None
        resample = Resample(rounds, noise_fraction, tokens_per_round=max(1, length // 8))
    stages = STAGES.get(rule.solver, 1)
    steps = (evaluations - cost * rounds + stages - 1) // stages
    return Recommendation(rule.solver, steps, "kappa", rule.settings, resample)
