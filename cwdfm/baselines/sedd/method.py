"""SEDD as a method: its network, sampling and likelihood."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Unpack

from torch import Tensor, nn

from cwdfm.baselines.sedd.graph import Absorb, Graph, Uniform
from cwdfm.baselines.sedd.likelihood import score_terms
from cwdfm.baselines.sedd.noise import Geometric, LogLinear, Noise
from cwdfm.baselines.sedd.solver import Analytic, ReverseChain, ScoreSolver
from cwdfm.errors import InputError, check_choice
from cwdfm.likelihood.bound import Bound, LikelihoodOptions, estimate_bound
from cwdfm.method.base import Method, SampleRequest, unsupported_solver
from cwdfm.schedule import Linear, Spacing, time_grid
from cwdfm.solver import Samples, sample

ALLOWED = "Analytic() or ScoreEuler() (solver analytic or score-euler)"
REASON = (
    "its network outputs scores, unnormalized ratios of probabilities, and not the p_{1|t} that "
    "the solvers and context weights of flows need"
)


@dataclass(frozen=True)
class SEDD(Method):
    """A network of log-scores, with the graph and the noise that it was trained for.

    - `graph`: "absorb", into a mask id after the data tokens, or "uniform".
    - `noise`: "loglinear", with `epsilon`, or "geometric", from `sigma_min` to `sigma_max`.
    """

    default_solver = "analytic"

    vocab_size: int
    graph: Literal["absorb", "uniform"] = "absorb"
    noise: Literal["loglinear", "geometric"] = "loglinear"
    epsilon: float = 1e-3
    sigma_min: float = 1e-4
    sigma_max: float = 20.0

    def __post_init__(self) -> None:
        check_choice("graph", self.graph, ("absorb", "uniform"))
        check_choice("noise", self.noise, ("loglinear", "geometric"))
        _ = self.forward_graph.source, self.noise_process  # these check their own fields

    @property
    def forward_graph(self) -> Graph:
        """The forward chain of a token."""
        return (Absorb if self.graph == "absorb" else Uniform)(self.vocab_size)

    @property
    def noise_process(self) -> Noise:
        """The noise schedule."""
        if self.noise == "loglinear":
            return LogLinear(self.epsilon)
        return Geometric(self.sigma_min, self.sigma_max)

    @property
    def num_tokens(self) -> int:
        return self.forward_graph.source.num_tokens

    def sample(self, model: nn.Module, solver: object, request: SampleRequest) -> Samples:
        """Sample sequences. The grids "kappa" and "sqrt" use exp(-sigma) instead of kappa."""
        rule = Analytic() if solver is None else solver
        if not isinstance(rule, ScoreSolver):
            unsupported_solver(self, solver, ALLOWED, REASON)
        if not set(request.banned_tokens) < set(range(self.vocab_size)):
            raise InputError(
                f"banned_tokens must contain some, but not all, of the data tokens "
                f"0..{self.vocab_size - 1}, got {request.banned_tokens}"
            )
        graph, noise = self.forward_graph, self.noise_process
        chain = ReverseChain(rule, graph, noise, request.banned_tokens)
        request = replace(request, grid=score_grid(noise, request.steps, request.grid))
        # The schedule is not used: the solver has its own noise schedule.
        return sample(model, graph.source, Linear(), chain, **request.loop_options)

    def likelihood(
        self, model: nn.Module, x_1: Tensor, **options: Unpack[LikelihoodOptions]
    ) -> Bound:
        terms = partial(score_terms, model, self.forward_graph, self.noise_process)
        return estimate_bound(model, x_1, terms, self.vocab_size, **options)


def score_grid(noise: Noise, steps: int, spacing: Spacing | Tensor) -> Tensor:
    """The grid of times t = 1 - s: uniform in s for "t", with exp(-sigma(s)) as kappa otherwise."""
    grid = time_grid(Linear(), steps, spacing)
    if not isinstance(spacing, str) or spacing == "t":
        return grid
    first, last = (math.exp(-noise.sigma_at(s)) for s in (1.0, 0.0))
    grid = 1 - noise.inverse(-(first + (last - first) * grid).log())
    grid[0], grid[-1] = 0.0, 1.0  # free of the rounding of the inverse
    return grid
