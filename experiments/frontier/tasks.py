"""What the samplers are compared on: exact targets, molecules and text.

A task draws samples, scores them, and chooses among the candidates of a family. Scoring runs in
other processes where it is slow.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import cwdfm
from cwdfm.metrics.distribution import distribution_scores
from cwdfm.metrics.evaluator import LoadedEvaluatorLM
from cwdfm.metrics.molecule import CanonicalSet, score_molecules
from cwdfm.metrics.perplexity import generative_perplexity
from cwdfm.metrics.reference_statistics import ReferenceStatistics
from cwdfm.metrics.text import sample_entropies
from cwdfm.recommend import Recommendation as Sampler

SCHEDULE = cwdfm.Polynomial(2.0)
VOCAB, LENGTH = 2, 8  # of the exact targets
Scores = dict[str, float]
Candidates = Sequence[tuple[Sampler, Scores]]


@dataclass
class Task(ABC):
    """A model, and what its samples are judged by."""

    name: str
    masked: bool
    length: int
    samples: int
    reference: Scores | None = None  # of Euler with the largest budget; set before the search

    @abstractmethod
    def draw(self, sampler: Sampler, seed: int) -> tuple[Callable[[], Scores], float]:
        """Samples, as a function that scores them, and the evaluations per sample."""

    @abstractmethod
    def choose(self, tried: Candidates) -> list[Sampler]:
        """The best candidate; several if the result is interpolated between them."""

    def combine(self, scores: Sequence[Scores]) -> Scores:
        """The result of the chosen samplers."""
        return scores[0]


@dataclass
class Exact(Task):
    """A ring of tokens that tend to agree with their neighbors; the error is total variation."""

    device: str = "cpu"

    def __post_init__(self) -> None:
        source = (cwdfm.MaskSource if self.masked else cwdfm.UniformSource)(VOCAB)
        states = torch.cartesian_prod(*[torch.arange(VOCAB)] * LENGTH)
        energy = 1.5 * (states == states.roll(-1, 1)).sum(1) + 0.3 * (states == 0).sum(1)
        self.target = energy.double().softmax(0)
        exact = cwdfm.ExactPosterior(self.target.reshape((VOCAB,) * LENGTH), source, SCHEDULE)
        self.flow = (exact, source, SCHEDULE)

    def draw(self, sampler: Sampler, seed: int) -> tuple[Callable[[], Scores], float]:
        out = cwdfm.sample(
            *self.flow,
            sampler.solver,
            shape=(self.samples, LENGTH),
            steps=sampler.steps,
            grid=sampler.grid,
            seed=seed,
            device=self.device,
        )
        evaluations = float(out.evaluations.double().mean())
        if sampler.resample is not None:
            out = cwdfm.resample(*self.flow, out, sampler.resample, seed=seed)
            evaluations += float(out.evaluations.double().mean())
        return partial(total_variation, out.tokens.cpu(), self.target), evaluations

    def choose(self, tried: Candidates) -> list[Sampler]:
        return [min(tried, key=lambda each: each[1]["total variation"])[0]]


def total_variation(tokens_BN: Tensor, target: Tensor) -> Scores:
    """Between the samples and the target [VOCAB^LENGTH]."""
    code = (tokens_BN * VOCAB ** torch.arange(LENGTH - 1, -1, -1)).sum(1)
    share = torch.bincount(code, minlength=len(target)) / len(tokens_BN)
    return {"total variation": float((share - target).abs().sum()) / 2}


@dataclass
class Molecules(Task):
    """A model of molecules. The most unique molecules win, if as many are novel as with Euler."""

    trained: Any = None
    training: CanonicalSet = field(default_factory=lambda: CanonicalSet([]))
    statistics: ReferenceStatistics | None = None  # for FCD

    def draw(self, sampler: Sampler, seed: int) -> tuple[Callable[[], Scores], float]:
        out = cwdfm.generate(self.trained, n=self.samples, seed=seed, **sampler.options)
        score = partial(molecule_scores, out.texts, self.training, self.statistics)
        return score, float(out.evaluations.double().mean())

    def choose(self, tried: Candidates) -> list[Sampler]:
        def quality(each: tuple[Sampler, Scores]) -> tuple[bool, float]:
            scores = each[1]
            # Two standard errors of a count below that of Euler.
            floor = 0.0 if self.reference is None else self.reference["novel"]
            floor -= 2 * math.sqrt(floor * 1024 / self.samples)
            enough = scores["novel"] >= floor
            return enough, scores["unique" if enough else "novel"]

        return [max(tried, key=quality)[0]]


def molecule_scores(
    texts: list[str], training: CanonicalSet, statistics: ReferenceStatistics | None
) -> Scores:
    """Valid, unique and novel molecules of 1,024 samples, and FCD with a reference."""
    found = score_molecules(texts, training, fold_size=len(texts)).to_json()
    names = ("valid", "unique", "novel")
    scores = {name: found[name]["mean"] * 1024 / len(texts) for name in names}
    if statistics is not None:
        compared = distribution_scores(texts, {"Test": statistics}, replicates=0).scores
        scores["FCD"] = compared["FCD/Test"][0]
    return scores


@dataclass
class Text(Task):
    """A model of text: perplexity under evaluator LMs at the unigram entropy of Euler's samples.

    A lower temperature lowers perplexity and entropy, so perplexities are compared at one entropy:
    log-perplexities at two temperatures are interpolated. If all candidates have less entropy, or
    all have more, the nearest one is the result, with its own entropy.
    """

    trained: Any = None
    evaluators: Sequence[LoadedEvaluatorLM] = ()  # the first one chooses

    def draw(self, sampler: Sampler, seed: int) -> tuple[Callable[[], Scores], float]:
        out = cwdfm.generate(self.trained, n=self.samples, seed=seed, **sampler.options)
        scores = {"entropy": float(sample_entropies(out.tokens.cpu().numpy()).mean())}
        for k, evaluator in enumerate(self.evaluators):
            found = generative_perplexity(out.texts, evaluator)
            scores[f"perplexity {k + 1}"] = found.perplexity.value
        return lambda: scores, float(out.evaluations.double().mean())

    def choose(self, tried: Candidates) -> list[Sampler]:
        variants: dict[Sampler, list[tuple[Sampler, Scores]]] = {}
        for sampler, scores in tried:
            settings = tuple(pair for pair in sampler.settings if pair[0] != "temperature")
            variants.setdefault(replace(sampler, settings=settings), []).append((sampler, scores))
        brackets = map(self._bracket, variants.values())
        best = min(brackets, key=lambda b: self.combine([s for _, s in b])["perplexity 1"])
        return [sampler for sampler, _ in best]

    def _bracket(self, tried: Candidates) -> Candidates:
        """The two candidates with the nearest entropies below and above, or the nearest one."""
        entropy = self._entropy(tried[0][1])
        ordered = sorted(tried, key=lambda each: each[1]["entropy"])
        above = sum(each[1]["entropy"] < entropy for each in ordered)
        return ordered[max(0, above - 1) : above + 1]

    def _entropy(self, default: Scores) -> float:
        return (default if self.reference is None else self.reference)["entropy"]

    def combine(self, scores: Sequence[Scores]) -> Scores:
        known = sorted(scores, key=lambda each: each["entropy"])
        entropies = [each["entropy"] for each in known]
        at = float(np.clip(self._entropy(known[-1]), entropies[0], entropies[-1]))
        logs = {k: [math.log(each[k]) for each in known] for k in known[0] if k != "entropy"}
        found = {k: math.exp(np.interp(at, entropies, values)) for k, values in logs.items()}
        return {"entropy": at} | found
