"""The tasks on which samplers are compared: exact targets, molecules and text.

A task draws samples, scores them, and chooses among the candidates of a family. Drawing and scoring
are separate, because they may run on different machines.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import cwdfm
from cwdfm import data
from cwdfm.data.smiles import CanonicalSet
from cwdfm.method.base import SampleRequest
from cwdfm.method.flow import Flow
from cwdfm.metrics.chemnet import Moments, activations
from cwdfm.metrics.text import sample_entropies
from cwdfm.solver import Samples
from experiments.frontier.evaluators import Evaluator, load_evaluator
from experiments.frontier.families import SCHEDULE, TEMPERATURES, Sampler
from experiments.tasks.score import molecule_counts

VOCAB, LENGTH = 2, 8  # of the exact targets
COUNTS = ("valid", "unique", "novel")
SLOPE = 1.0  # typical change of the entropy of text with the temperature
MARGIN = 0.03  # distance from the requested entropy that the search aims at
CLOSE = 0.01  # distance that may be the chance of a seed
MAX_CHANGE = 0.5  # of the temperature in one try
HELD_OUT = 256  # sequences that measure the confidence and the grid of a model
Tokens = NDArray[np.int64]
Scores = dict[str, float]
Candidates = Sequence[tuple[Sampler, Scores]]


@dataclass
class Task(ABC):
    """A model, and the scores by which its samples are compared."""

    temperatures: ClassVar[Sequence[float]] = TEMPERATURES  # of the first candidates of a family
    name: str
    masked: bool
    length: int
    samples: int  # per draw
    reference: Scores | None = None  # of Euler with 256 evaluations; set before the search

    @property
    @abstractmethod
    def flow(self) -> tuple[Any, cwdfm.Source, cwdfm.Schedule]:
        """The model, its source and its schedule."""

    @property
    def given(self) -> Tensor | None:
        """The mask [N] of tokens that are always given."""
        return None

    @abstractmethod
    def held_out(self) -> Tensor | None:
        """Sequences [B, N] that the model was not trained on, if there are any."""

    @abstractmethod
    def draw(self, sampler: Sampler, seed: int) -> Samples:
        """Draw samples with this seed."""

    @property
    def can_score(self) -> bool:
        """Whether the packages and models that `score` needs are available."""
        return True

    @abstractmethod
    def score_names(self, *, final: bool) -> tuple[str, ...]:
        """The names of the scores."""

    @abstractmethod
    def score(self, tokens: Tokens, *, final: bool) -> Scores:
        """Score samples; some scores are computed only for `final` samples, not in the search."""

    @abstractmethod
    def choose(self, tried: Candidates) -> list[Sampler]:
        """Choose the best candidate, or several to interpolate between."""

    def further(self, tried: Candidates) -> Sampler | None:
        """Another candidate, given the scores of the first ones; None if there is none."""
        return None

    def combine(self, scores: Sequence[Scores]) -> Scores:
        """The result of the chosen samplers."""
        return scores[0]


class Tabulated:
    """The exact posterior, cached for every state and time, since samplers share their times."""

    def __init__(self, exact: cwdfm.ExactPosterior) -> None:
        self.exact, self.base = exact, exact.source.num_tokens
        self.states = torch.cartesian_prod(*[torch.arange(self.base)] * LENGTH)
        self.table = cache(self._table)

    def _table(self, t: float) -> Tensor:
        """The logits of all states at a time, [S, LENGTH, num_tokens]."""
        return self.exact(self.states, torch.full((len(self.states),), t))

    def __call__(self, x_t: Tensor, t: Tensor) -> Tensor:
        code_B = number(x_t, self.base)
        times, which_B = torch.unique(t, return_inverse=True)
        if self.exact.source.marks_noise:  # the posterior does not depend on the time
            times, which_B = times[:1] * 0, torch.zeros_like(which_B)
        if len(times) == 1:
            return self.table(float(times[0]))[code_B]
        tables = torch.stack([self.table(each) for each in times.tolist()])
        return tables[which_B, code_B]


def number(tokens_BN: Tensor, base: int) -> Tensor:
    """The number of each sequence, [B], with these tokens as digits."""
    return (tokens_BN * base ** torch.arange(LENGTH - 1, -1, -1)).sum(1)


@dataclass
class Exact(Task):
    """A ring of tokens that tend to agree with their neighbors, scored by total variation."""

    @cached_property
    def states(self) -> Tensor:
        """All sequences, [VOCAB^LENGTH, LENGTH]."""
        return torch.cartesian_prod(*[torch.arange(VOCAB)] * LENGTH)

    @cached_property
    def target(self) -> Tensor:
        agree = (self.states == self.states.roll(-1, 1)).sum(1)
        return (1.5 * agree + 0.3 * (self.states == 0).sum(1)).double().softmax(0)

    @cached_property
    def orbits(self) -> Tensor:
        """The class of every sequence up to rotation and reflection.

        Target and samplers are symmetric, so no information is lost, and the frequencies of classes
        have a smaller sampling error than the frequencies of sequences.
        """
        turned = [each.roll(k, 1) for each in (self.states, self.states.flip(1)) for k in range(8)]
        first = torch.stack([number(each, VOCAB) for each in turned]).amin(0)
        classes: Tensor = first.unique(return_inverse=True)[1]
        return classes

    @cached_property
    def flow(self) -> tuple[Any, cwdfm.Source, cwdfm.Schedule]:
        source = (cwdfm.MaskSource if self.masked else cwdfm.UniformSource)(VOCAB)
        exact = cwdfm.ExactPosterior(self.target.reshape((VOCAB,) * LENGTH), source, SCHEDULE)
        return Tabulated(exact), source, SCHEDULE

    def held_out(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        chosen = torch.multinomial(self.target, 8 * HELD_OUT, True, generator=generator)
        return self.states[chosen]

    def draw(self, sampler: Sampler, seed: int) -> Samples:
        model, source, schedule = self.flow
        request = SampleRequest(
            shape=(self.samples, LENGTH),
            steps=sampler.steps,
            seed=seed,
            grid=sampler.options["grid"],
            postprocess=tuple(p for p in (sampler.refine, sampler.resample) if p is not None),
            reject=sampler.reject,
        )
        return Flow(source, schedule).sample(model, sampler.solver, request)

    def score_names(self, *, final: bool) -> tuple[str, ...]:
        return ("total variation",)

    def score(self, tokens: Tokens, *, final: bool) -> Scores:
        drawn = torch.bincount(number(torch.from_numpy(tokens), VOCAB), minlength=len(self.target))
        difference = drawn / len(tokens) - self.target
        classes = torch.zeros(int(self.orbits.max()) + 1, dtype=torch.float64)
        classes.index_add_(0, self.orbits, difference)
        return {"total variation": float(classes.abs().sum()) / 2}

    def choose(self, tried: Candidates) -> list[Sampler]:
        return [min(tried, key=lambda each: each[1]["total variation"])[0]]


@dataclass
class Trained(Task):
    """A trained model."""

    trained: Any = None
    data: str | None = None  # its data: a name, or a prepared file
    autocast: bool = False  # matrix products in bfloat16

    @property
    def flow(self) -> tuple[Any, cwdfm.Source, cwdfm.Schedule]:
        return self.trained.model, self.trained.source, self.trained.schedule

    @property
    def given(self) -> Tensor | None:
        return torch.arange(self.length) == 0 if self.trained.fix_first else None

    def held_out(self) -> Tensor | None:
        if self.data is None:
            return None
        valid = data.load(self.data, length=self.length).valid[:HELD_OUT]
        return torch.from_numpy(np.array(valid, dtype=np.int64))

    def draw(self, sampler: Sampler, seed: int) -> Samples:
        device = next(self.trained.model.parameters()).device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.autocast):
            found: Samples = cwdfm.generate(
                self.trained, n=self.samples, seed=seed, **sampler.options
            )
        return found

    def texts(self, tokens: Tokens) -> list[str]:
        return [self.trained.tokenizer.decode(row) for row in tokens.tolist()]


@dataclass
class Molecules(Trained):
    """A model of molecules. Most unique molecules win, if novelty is not below Euler's."""

    fcd: bool = False

    @cached_property
    def training(self) -> CanonicalSet:
        assert self.data is not None
        return CanonicalSet(data.load(self.data).texts("train"))

    @cached_property
    def reference_moments(self) -> Moments:
        """ChemNet's activations of the held-out molecules."""
        assert self.data is not None
        return Moments.of(activations(data.load(self.data).texts("valid")))

    @property
    def can_score(self) -> bool:
        return find_spec("rdkit") is not None

    def score_names(self, *, final: bool) -> tuple[str, ...]:
        return (*COUNTS, "FCD") if self.fcd and final else COUNTS

    def score(self, tokens: Tokens, *, final: bool) -> Scores:
        """Valid, unique and novel molecules of 1,024 samples, and FCD."""
        texts = self.texts(tokens)
        scores = molecule_counts(texts, self.training, len(texts))
        if self.fcd and final:
            valid = [molecule for molecule in map(data.canonical, texts) if molecule]
            if len(valid) > 1:
                found = Moments.of(activations(valid))
                scores["FCD"] = found.distance(self.reference_moments)
        return scores

    def choose(self, tried: Candidates) -> list[Sampler]:
        def quality(each: tuple[Sampler, Scores]) -> tuple[bool, float]:
            scores = each[1]
            # Two standard errors of a count below that of Euler.
            floor = 0.0 if self.reference is None else self.reference["novel"]
            floor -= 2 * math.sqrt(floor * 1024 / self.samples)
            enough = scores["novel"] >= floor
            return enough, scores["unique" if enough else "novel"]

        return [max(tried, key=quality)[0]]


@dataclass
class Text(Trained):
    """A model of text: perplexity under evaluator LMs at the unigram entropy of Euler's samples.

    A lower temperature lowers perplexity and entropy, so perplexities are compared at one entropy.
    The search adapts the temperature of every sampler until its entropies lie close to that of the
    reference, on both sides, and interpolates the log-perplexities. If it finds less entropy only,
    or more, the nearest candidate is the result, with its own entropy.
    """

    temperatures = (1.0,)
    evaluator_names: Sequence[str] = ()  # the first one chooses
    device: str = "cpu"

    @cached_property
    def evaluators(self) -> list[Evaluator]:
        return [load_evaluator(name, self.device) for name in self.evaluator_names]

    @property
    def can_score(self) -> bool:
        return bool(self.evaluator_names)

    def score_names(self, *, final: bool) -> tuple[str, ...]:
        count = len(self.evaluator_names) if final else 1
        return ("entropy", *(f"perplexity {k + 1}" for k in range(count)))

    def score(self, tokens: Tokens, *, final: bool) -> Scores:
        scores = {"entropy": float(sample_entropies(tokens).mean())}
        used = self.evaluators if final else self.evaluators[:1]
        for k, evaluator in enumerate(used, start=1):
            scores[f"perplexity {k}"] = evaluator(tokens, self.texts)
        return scores

    def further(self, tried: Candidates) -> Sampler | None:
        """The variant with the fewest tries, at the next temperature of the search."""
        for variant, same in sorted(variants(tried).items(), key=lambda each: len(each[1])):
            known = {sampler.temperature: scores["entropy"] for sampler, scores in same}
            temperature = next_temperature(known, self._entropy(same[0][1]))
            if temperature is not None:
                return variant.at(temperature)
        return None

    def choose(self, tried: Candidates) -> list[Sampler]:
        brackets = map(self._bracket, variants(tried).values())
        best = min(brackets, key=lambda b: self.combine([s for _, s in b])["perplexity 1"])
        return [sampler for sampler, _ in best]

    def _bracket(self, tried: Candidates) -> Candidates:
        """The two candidates with the nearest entropies below and above, or the nearest one."""
        entropy = self._entropy(tried[0][1])
        ordered = sorted(tried, key=lambda each: by_entropy(each[1]))
        below = [each for each in ordered if by_entropy(each[1]) <= entropy - CLOSE]
        above = [each for each in ordered if by_entropy(each[1]) >= entropy + CLOSE]
        if below and above:
            return [below[-1], above[0]]
        return [min(tried, key=lambda each: abs(by_entropy(each[1]) - entropy))]

    def _entropy(self, default: Scores) -> float:
        return by_entropy(default if self.reference is None else self.reference)

    def combine(self, scores: Sequence[Scores]) -> Scores:
        """Interpolate between two draws, or extrapolate a little if another seed moved both."""
        low, high = min(scores, key=by_entropy), max(scores, key=by_entropy)
        width = by_entropy(high) - by_entropy(low)
        reach = MARGIN if width >= CLOSE else 0.0
        least, most = by_entropy(low) - reach, by_entropy(high) + reach
        at = min(max(self._entropy(high), least), most)
        share = (at - by_entropy(low)) / width if width else 0.0
        found = {
            name: math.exp(math.log(low[name]) + share * math.log(high[name] / low[name]))
            for name in low
            if name != "entropy"
        }
        return {"entropy": at} | found


def by_entropy(scores: Scores) -> float:
    return scores["entropy"]


def variants(tried: Candidates) -> dict[Sampler, list[tuple[Sampler, Scores]]]:
    """Candidates by what they are apart from their temperature."""
    found: dict[Sampler, list[tuple[Sampler, Scores]]] = {}
    for sampler, scores in tried:
        found.setdefault(sampler.at(1.0), []).append((sampler, scores))
    return found


def next_temperature(known: dict[float, float], entropy: float) -> float | None:
    """The temperature to try after those with known entropies; None if the search is finished.

    The search ends when there are entropies on both sides of the requested one, not much further
    than MARGIN away. Closer than CLOSE does not count, because another seed may move it to the
    other side.
    """
    below = [(t, each) for t, each in known.items() if each <= entropy - CLOSE]
    above = [(t, each) for t, each in known.items() if each >= entropy + CLOSE]
    if below and above:
        (t_low, low), (t_high, high) = max(below, key=itemgetter(1)), min(above, key=itemgetter(1))
        if high - low <= 3 * MARGIN:
            return None
        aim = entropy + (MARGIN if high - entropy > entropy - low else -MARGIN)
        found = t_low + (t_high - t_low) * (aim - low) / (high - low)
    else:
        aim = entropy + (-MARGIN if above else MARGIN)
        nearest = sorted(known.items(), key=lambda each: abs(each[1] - aim))[:2]
        t_near, near = nearest[0]
        slope = SLOPE
        if len(nearest) == 2:
            slope = max((near - nearest[1][1]) / (t_near - nearest[1][0]), SLOPE / 4)
        found = t_near + min(max((aim - near) / slope, -MAX_CHANGE), MAX_CHANGE)
    found = round(max(found, 0.2), 3)
    return None if found in known else found
