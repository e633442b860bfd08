"""The recommended sampler for a number of model evaluations."""

from dataclasses import dataclass
from typing import Any

from cwdfm.errors import InputError, check_integer
from cwdfm.method.base import Method
from cwdfm.method.flow import Flow
from cwdfm.postprocess import Resample
from cwdfm.schedule import Spacing
from cwdfm.solver_config import make_solver

GROUPS = 8  # evaluations of a round of resampling with a mask source; one with a uniform source
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


def recommend(model: Any, evaluations: int = 32) -> Recommendation:
    """The sampler to use for at most this many model evaluations per sample.

    Args:
        model: A model returned by `cwdfm.load`.
        evaluations: The budget.

    The choices for flows come from trials with the bundled models of QM9, for budgets of 8 to 32
    evaluations; others are extrapolated (see docs/results/frontier.md). A flow with a small
    vocabulary divides its budget between steps and resampling, which repairs the errors of coarse
    steps. Text was not measured: it gets plain steps. Other methods use their own solver.
    """
    method = getattr(model, "method", None)
    if not isinstance(method, Method):
        raise InputError(
            f"recommend requires a model returned by cwdfm.load, got a {type(model).__name__}"
        )
    return recommend_for(method, evaluations, model.length)


def recommend_for(method: Method, evaluations: int, length: int) -> Recommendation:
    """The sampler for a method and sequences of this length."""
    check_integer("evaluations", evaluations)
    if not isinstance(method, Flow):
        # A block diffusion model evaluates every block but the last once more, for its cache.
        blocks = length // (method.causal_block or length)
        return Recommendation(method.default_solver, max(1, evaluations - blocks + 1))
    if method.source.vocab_size > SMALL_VOCABULARY:
        return Recommendation("ancestral", evaluations, "kappa")
    tokens = max(1, length // 8)
    if not method.source.marks_noise:
        # Half of a small budget and a quarter of a large one repairs the errors of the steps.
        rounds = max(min(4, evaluations // 2), evaluations // 4)
        resample = Resample(rounds, tokens_per_round=tokens) if rounds else None
        return Recommendation("ancestral", evaluations - rounds, "kappa", resample=resample)
    if evaluations >= 8 * GROUPS:
        rounds = evaluations // (2 * GROUPS)
        resample = Resample(rounds, noise_fraction=1 / GROUPS, tokens_per_round=tokens)
        return Recommendation("ancestral", evaluations - GROUPS * rounds, "kappa", (), resample)
    # Coarse steps draw several tokens at once; a low temperature makes them fit more often.
    return Recommendation("ancestral", evaluations, "kappa", (("temperature", 0.7),))
