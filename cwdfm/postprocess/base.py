"""The postprocessing interface: improve finished samples of a flow."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TypedDict, Unpack

from torch import Tensor

from cwdfm.errors import InputError, check_tokens
from cwdfm.model.predict import model_device
from cwdfm.model.protocol import Model
from cwdfm.ops.random import check_seed, sample_index
from cwdfm.schedule import Schedule, Spacing, check_schedule
from cwdfm.solver.base import Solver, fixed_tokens
from cwdfm.solver.sample import Progress, Samples
from cwdfm.source import Source, check_source


class SampleOptions(TypedDict, total=False):
    """Options of all postprocessing, with the defaults of `cwdfm.sample`."""

    seed: int
    fixed: Tensor | None  # [B, N] or [N]: tokens to keep
    index: Tensor | None  # [B]: global sample numbers
    batch_size: int | None
    progress: Progress | None


class Postprocess(ABC):
    """A postprocessing step. Subclasses are frozen dataclasses."""

    @property
    @abstractmethod
    def progress_steps(self) -> int:
        """The number of times that `progress` counts each sequence."""

    def check(self, solver: Solver) -> None:  # noqa: B027 (most steps support all solvers)
        """Raise an InputError if samples of this solver are not supported."""

    @abstractmethod
    def apply(
        self,
        model: Model,
        source: Source,
        schedule: Schedule,
        solver: Solver,
        grid: Spacing,
        tokens: Tensor,
        **options: Unpack[SampleOptions],
    ) -> Samples:
        """Improve `tokens` [B, N], which `solver` and `grid` generated.

        The returned statistics cover this step alone.
        """


def check_noise_fraction(value: float, default: float) -> None:
    """Raise an InputError unless the value is a fraction of tokens in [1e-6, 1]."""
    if not isinstance(value, int | float) or not 1e-6 <= value <= 1:
        raise InputError(
            f"noise_fraction must be a fraction of the tokens, between 1e-6 and 1, got {value!r}; "
            f"try {default}",
            fields=("noise_fraction",),
        )


def check_samples(
    model: Model,
    source: Source,
    schedule: Schedule,
    tokens: Tensor | Samples,
    options: SampleOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Check finished samples and move them to the model's device.

    `fixed` defaults to the prompt tokens of `Samples`. Returns the tokens [B, N], the mask of fixed
    tokens [B, N] and the sample numbers [B].
    """
    fixed = options.get("fixed")
    if isinstance(tokens, Samples):
        fixed = tokens.fixed if fixed is None else fixed
        tokens = tokens.tokens
    check_source(source)
    check_schedule(schedule)
    check_seed(options.get("seed", 0))
    check_tokens("tokens", tokens, source.vocab_size)
    tokens = tokens.to(model_device(model) or tokens.device)
    index_B = sample_index(options.get("index"), len(tokens), tokens.device)
    return tokens, fixed_tokens(source, tokens, fixed), index_B


def describe_like(result: Samples, original: Tensor | Samples) -> Samples:
    """Copy the prompt mask and the decoder of the original samples to the result."""
    if not isinstance(original, Samples):
        return result
    return replace(result, fixed=original.fixed, decode=original.decode)


def combine(first: Samples, second: Samples) -> Samples:
    """The tokens of the second stage, with the summed statistics of both stages."""
    names = ("updates", "loops", "evaluations", "logit_evaluations")
    total = {name: getattr(first, name) + getattr(second, name) for name in names}
    return replace(first, tokens=second.tokens, **total)
