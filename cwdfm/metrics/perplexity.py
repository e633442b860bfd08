"""Generative perplexity: the perplexity of samples under an evaluator LM.

Conventions differ between code bases. Each is an option, and the result records it:

- evaluator: the model, its dtype, its context, and the overlap of windows in longer texts;
- retokenized: whether the texts are encoded with the tokenizer of the evaluator LM. The sampler's
  token ids can be scored directly only if both have the same vocabulary;
- average: "corpus" is exp(total nats / total tokens); "sample" is the mean over samples of
  exp(nats / tokens), which a single bad sample can dominate;
- first_token: "skip" or "start" (see `LoadedEvaluatorLM.score`);
- after_end: "keep" scores the whole sample, end tokens included; "cut" scores the tokens before the
  first end token. End tokens at the beginning of a sample are skipped, because GPT-2 uses the same
  token for start and end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import dropwhile, takewhile
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.errors import InputError, check_choice, check_strings, check_tokens, describe
from cwdfm.metrics.evaluator import FirstToken, LoadedEvaluatorLM
from cwdfm.metrics.folds import Estimate, fold_slices

Average = Literal["corpus", "sample"]
AfterEnd = Literal["keep", "cut"]
END = "<|endoftext|>"


@dataclass(frozen=True)
class Perplexity:
    """Generative perplexity and its conventions.

    `unscored` counts the samples without a token to score (empty, or a single first token); they
    are excluded from all averages.
    """

    perplexity: Estimate
    samples: int
    unscored: int
    tokens: int
    evaluator: dict[str, Any]
    retokenized: bool
    average: Average
    first_token: FirstToken
    after_end: AfterEnd
    end: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"perplexity": self.perplexity.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Perplexity":
        return cls(**data | {"perplexity": Estimate.from_json(data["perplexity"])})


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
    """Compute the perplexity of samples under an evaluator LM, over all samples and per fold.

    `samples` are texts, or the sampler's token ids [B, N] together with its `vocabulary`, which
    must equal that of the evaluator LM. `end` is the end token in texts and vocabulary. If the
    evaluator LM does not have this token, it is replaced by the evaluator's own end token.
    """
    check_choice("average", average, ("corpus", "sample"))
    check_choice("after_end", after_end, ("keep", "cut"))
    if isinstance(samples, Tensor):
        sequences = _own_tokens(samples, evaluator, vocabulary, after_end, end)
    else:
        check_strings("samples", samples)
        sequences = _retokenize(samples, evaluator, after_end, end)
    slices = fold_slices(len(sequences), folds)
    nats_S, count_S = evaluator.score(sequences, first_token)
    if not count_S.any():
        raise InputError(
            f"none of the {len(sequences)} samples has a token to score: they are empty"
            + (f", or begin with {end!r}" if after_end == "cut" else "")
            + "; check the decoding, or use first_token='start' for samples of one token",
            fields=("first_token",),
        )
    empty = [k for k, s in enumerate(slices) if not count_S[s].any()]
    if empty:
        raise InputError(
            f"fold {empty[0] + 1} of {folds} has no token to score: its samples are empty; "
            f"use fewer folds, or check the samples"
        )
    value = _average(nats_S, count_S, average)
    parts = tuple(_average(nats_S[s], count_S[s], average) for s in slices)
    return Perplexity(
        perplexity=Estimate(value, parts),
        samples=len(sequences),
        unscored=int((count_S == 0).sum()),
        tokens=int(count_S.sum()),
        evaluator=evaluator.conventions(),
        retokenized=not isinstance(samples, Tensor),
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


def _retokenize(
    texts: Sequence[str], evaluator: LoadedEvaluatorLM, after_end: AfterEnd, end: str
) -> list[list[int]]:
    if after_end == "cut":
        return evaluator.encode([cut_text(text, end) for text in texts])
    eos = evaluator.loaded.tokenizer.eos_token
    if end and end not in evaluator.vocabulary() and eos is not None:
        texts = [text.replace(end, eos) for text in texts]
    return evaluator.encode(texts)


def cut_text(text: str, end: str = END) -> str:
    """The text before its first end token, after removing end tokens at its beginning."""
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
            f"token ids can be scored only if sampler and evaluator LM have the same vocabulary: "
            f"pass vocabulary={{token: id}}, got {describe(vocabulary)}, or decode them to texts"
        )
    _check_same_vocabulary(vocabulary, evaluator)
    check_tokens("samples", tokens_BN, max(vocabulary.values()) + 1)
    sequences: list[list[int]] = tokens_BN.tolist()
    if after_end == "keep":
        return sequences
    if end not in vocabulary:
        raise InputError(
            f"after_end='cut' needs the end token, and {end!r} is not in the vocabulary; use "
            f"after_end='keep', or pass the end token of the vocabulary as end='...'",
            fields=("after_end", "end"),
        )
    is_end = vocabulary[end].__eq__
    return [list(takewhile(lambda i: not is_end(i), dropwhile(is_end, ids))) for ids in sequences]


def _check_same_vocabulary(vocabulary: Mapping[str, int], evaluator: LoadedEvaluatorLM) -> None:
    theirs = evaluator.vocabulary()
    differ = sorted(t for t in vocabulary.keys() | theirs if vocabulary.get(t) != theirs.get(t))
    if differ:
        raise InputError(
            f"the vocabulary of the samples has {len(vocabulary):,} tokens, that of the evaluator "
            f"LM {evaluator.config.model} has {len(theirs):,}, and {len(differ):,} tokens differ: "
            f"the id of {differ[0]!r} is {vocabulary.get(differ[0])} in the first and "
            f"{theirs.get(differ[0])} in the second. Pass decoded texts, which are retokenized, or "
            f"use an evaluator LM with the same vocabulary"
        )
