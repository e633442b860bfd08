"""A second evaluator of text from a different model family, and overlap with training text."""

import importlib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from cwdfm.metrics.overlap import ngram_overlap
from cwdfm.sample_file import read_samples
from experiments.store import Store
from experiments.tasks.base import Resources, Result, Task, Unavailable
from experiments.tasks.sample import SAMPLES, HeldOut, Sample
from experiments.tasks.train import load_corpus

WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|[^\sa-z]+")
# log p(word | the two words before it, the nearest first), in nats; -inf for unknown words.
LogProb = Callable[[list[str]], float]


@dataclass(frozen=True)
class Trigram(Task):
    """Perplexity per word under CMU Sphinx's trigram model of US English.

    The model comes with the package `pocketsphinx`. Its vocabulary has neither punctuation nor
    digits; like unknown words, they end the context. The fraction of unknown words is reported too.
    """

    samples: Sample | HeldOut

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        log_prob = load_trigram()
        found = read_samples(store.folder(self.samples) / SAMPLES)
        return word_perplexity(found.texts, log_prob)


def word_perplexity(texts: Iterable[str], log_prob: LogProb) -> dict[str, float | int]:
    """exp of the mean NLL of known words, and the fraction of unknown ones."""
    total, known, unknown = 0.0, 0, 0
    for text in texts:
        before: list[str] = []  # the nearest first
        for word in WORD.findall(text.lower()):
            if not word[0].isalpha():  # punctuation and numbers
                before = []
                continue
            score = log_prob([word, *before])
            if score == -math.inf:
                unknown += 1
                before = []
                continue
            total, known = total - score, known + 1
            before = [word, *before[:1]]
    perplexity = math.exp(total / known) if known else math.nan
    return {"perplexity": perplexity, "words": known, "unknown": unknown / max(1, known + unknown)}


@lru_cache(maxsize=1)
def load_trigram() -> LogProb:
    """The trigram model of the package pocketsphinx."""
    try:
        package = importlib.import_module("pocketsphinx")
    except ImportError as error:
        raise Unavailable("requires pocketsphinx: pip install --no-deps pocketsphinx") from error
    numbers = package.LogMath()
    path = Path(str(package.__file__)).parent / "model" / "en-us" / "en-us.lm.bin"
    model = package.NGramModel(package.Config(), numbers, str(path))
    zero = numbers.get_zero()

    def log_prob(words: list[str]) -> float:
        score = model.prob(words)
        return -math.inf if score <= zero else float(numbers.log_to_ln(score))

    return log_prob


@dataclass(frozen=True)
class Overlap(Task):
    """The fraction of n-grams of the samples that occur in the training text."""

    samples: Sample | HeldOut

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        data = load_corpus("text", self.samples.length, store, resources)
        tokens = np.array(read_samples(store.folder(self.samples) / SAMPLES).tokens)
        return ngram_overlap(tokens, data.train, folds=min(5, len(tokens))).to_json()
