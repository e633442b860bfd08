"""Generative perplexity: how likely an evaluator finds the samples.

The conventions, since they differ between repositories; each is an option, and the result says
which were used:

- evaluator: the model, its dtype, its context and how longer texts are cut into windows;
- retokenised: texts are encoded by the evaluator's own tokenizer. Token ids are taken as they are
  only where sampler and evaluator share one vocabulary;
- average: "corpus" is exp(total nats / total tokens), "sample" the mean over samples of
  exp(nats / tokens), in which a single bad sample can outweigh all others;
- first_token: "skip" or "start" (see `LoadedEvaluatorLM.score`);
- after_end: "keep" scores the whole of a sample, end tokens included; "cut" scores the tokens
  before the first end token. End tokens that open a sample begin it, and end nothing: GPT-2 has one
  token for both.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.errors import InputError, check_choice, check_tokens, describe
from cwdfm.metrics.evaluator import FirstToken, LoadedEvaluatorLM
from cwdfm.metrics.folds import Estimate, fold_slices

Average = Literal["corpus", "sample"]
AfterEnd = Literal["keep", "cut"]
END = "<|endoftext|>"


@dataclass(frozen=True)
class Perplexity:
    """Generative perplexity with its conventions.

    `unscored` samples had no token to score (empty, or a lone first token) and are in no average.
    """

    perplexity: Estimate
    samples: int
    unscored: int
    tokens: int
    evaluator: dict[str, Any]
    retokenised: bool
    average: Average
    first_token: FirstToken
    after_end: AfterEnd
    end: str

    def __str__(self) -> str:
        how = "retokenised" if self.retokenised else "own tokens"
        return (
            f"generative perplexity {self.perplexity} ({self.evaluator['model']} in "
            f"{self.evaluator['dtype']}, {how}, {self.average} average, {self.samples:,} samples, "
            f"{self.tokens:,} tokens)"
        )

    def to_json(self) -> dict[str, Any]:
        """A plain dict: the value, its folds, and all conventions."""
        return {
            "perplexity": self.perplexity.to_json(),
            "samples": self.samples,
            "unscored": self.unscored,
            "tokens": self.tokens,
            "evaluator": dict(self.evaluator),
            "retokenised": self.retokenised,
            "average": self.average,
            "first_token": self.first_token,
            "after_end": self.after_end,
            "end": self.end,
        }


def generative_perplexity(
    samples: Sequence[str] | Tensor,
    evaluator: LoadedEvaluatorLM,
    *,
    average: Average = "corpus",
    first_token: FirstToken = "skip",
    after_end: AfterEnd = "keep",
    end: str = END,
    folds: int = 5,
    vocabulary: Mapping[str, int] | None = None,
) -> Perplexity:
    """Perplexity of samples under an evaluator, over all of them and in folds of consecutive ones.

    `samples` are texts, to be retokenised, or the sampler's token ids [B, N] with its `vocabulary`,
    which must be the evaluator's. `end` is how the end token is spelt in both; an evaluator
    that does not know it sees its own end token in its place.
    """
    check_choice("average", average, ("corpus", "sample"))
    check_choice("after_end", after_end, ("keep", "cut"))
    if isinstance(samples, Tensor):
        sequences = _own_tokens(samples, evaluator, vocabulary, after_end, end)
    else:
        check_strings("samples", samples)
        sequences = _retokenised(samples, evaluator, after_end, end)
    slices = fold_slices(len(sequences), folds)
    nats_S, count_S = evaluator.score(sequences, first_token)
    if not count_S.any():
        raise InputError(
            f"none of the {len(sequences)} samples has a token to score: they are empty"
            + (f", or begin with {end!r}" if after_end == "cut" else "")
            + "; check how they were decoded, or use first_token='start' for one-token samples"
        )
    empty = [k for k, s in enumerate(slices) if not count_S[s].any()]
    if empty:
        raise InputError(
            f"fold {empty[0] + 1} of {folds} has no token to score: its samples are empty; "
            f"use fewer folds, or look at the samples"
        )
    value = _average(nats_S, count_S, average)
    parts = tuple(_average(nats_S[s], count_S[s], average) for s in slices)
    return Perplexity(
        perplexity=Estimate(value, parts),
        samples=len(sequences),
        unscored=int((count_S == 0).sum()),
        tokens=int(count_S.sum()),
        evaluator=evaluator.conventions(),
        retokenised=not isinstance(samples, Tensor),
        average=average,
        first_token=first_token,
        after_end=after_end,
        end=end,
    )


def _average(nats_S: NDArray[np.float64], count_S: NDArray[np.int64], average: Average) -> float:
    if average == "corpus":
        return float(np.exp(nats_S.sum() / count_S.sum()))
    scored_S = count_S > 0
    return float(np.exp(nats_S[scored_S] / count_S[scored_S]).mean())


def _retokenised(
    texts: Sequence[str], evaluator: LoadedEvaluatorLM, after_end: AfterEnd, end: str
) -> list[list[int]]:
    if after_end == "cut":
        return evaluator.encode([cut_text(text, end) for text in texts])
    own = evaluator.loaded.tokenizer.eos_token
    if end and end not in evaluator.vocabulary() and own is not None:
        texts = [text.replace(end, own) for text in texts]
    return evaluator.encode(texts)


def cut_text(text: str, end: str = END) -> str:
    """The text before its first end token; end tokens that open it are passed over."""
    if not end:
        return text
    while text.startswith(end):
        text = text.removeprefix(end)
    return text.split(end, 1)[0]


def _own_tokens(
    tokens_BN: Tensor,
    evaluator: LoadedEvaluatorLM,
    vocabulary: Mapping[str, int] | None,
    after_end: AfterEnd,
    end: str,
) -> list[list[int]]:
    if not isinstance(vocabulary, Mapping):
        raise InputError(
            f"token ids can only be scored if the evaluator has the same vocabulary: pass "
            f"vocabulary={{token: id}}, got {describe(vocabulary)}, or decode them to texts"
        )
    check_same_vocabulary(vocabulary, evaluator)
    check_tokens("samples", tokens_BN, max(vocabulary.values()) + 1)
    sequences: list[list[int]] = tokens_BN.tolist()
    if after_end == "keep":
        return sequences
    if end not in vocabulary:
        raise InputError(
            f"after_end='cut' needs the end token, and {end!r} is not in the vocabulary; use "
            f"after_end='keep', or give its spelling as end='...'"
        )
    return [_cut_ids(ids, vocabulary[end]) for ids in sequences]


def _cut_ids(ids: list[int], end_id: int) -> list[int]:
    begin = next((k for k, token in enumerate(ids) if token != end_id), len(ids))
    stop = next((k for k in range(begin, len(ids)) if ids[k] == end_id), len(ids))
    return ids[begin:stop]


def check_same_vocabulary(vocabulary: Mapping[str, int], evaluator: LoadedEvaluatorLM) -> None:
    """Refuse a vocabulary that is not the evaluator LM's, id for id."""
    theirs = evaluator.vocabulary()
    apart = sorted(t for t in vocabulary.keys() | theirs if vocabulary.get(t) != theirs.get(t))
    if apart:
        raise InputError(
            f"the samples' vocabulary has {len(vocabulary):,} tokens, that of the evaluator "
            f"{evaluator.config.model} {len(theirs):,}, and {len(apart):,} differ: {apart[0]!r} is "
            f"{vocabulary.get(apart[0])} here and {theirs.get(apart[0])} there. Decode the samples "
            f"and pass texts, which are retokenised, or use an evaluator with the same vocabulary"
        )


def check_strings(name: str, texts: Collection[str]) -> None:
    """Refuse anything but a filled sequence of strings."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InputError(f"{name} must be a list of texts, got {describe(texts)}")
    if not texts:
        raise InputError(f"{name} is empty; give at least one text")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"{name} must hold texts, got {describe(text)}; decode tokens first")
