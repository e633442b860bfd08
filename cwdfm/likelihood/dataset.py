"""Test perplexity: the likelihood of a dataset's held-out sequences under a trained model.

Shapes: R sequences, B sequences per batch, N length, n <= N length of a prefix.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cwdfm.data import CORPORA, TokenData, is_prepared
from cwdfm.data import load as load_data
from cwdfm.data.text.pack import held_out_padding
from cwdfm.errors import InputError, check_integer, check_mask, check_strings, describe
from cwdfm.likelihood.bound import NegativeLogLikelihood
from cwdfm.method import Method
from cwdfm.method.flow import flow_of
from cwdfm.metrics.folds import ratio
from cwdfm.model.predict import model_device
from cwdfm.trained import Trained, auto_batch_size, prompt_tokens
from cwdfm.weight import Weight


@dataclass(frozen=True)
class DatasetLikelihood(NegativeLogLikelihood):
    """The negative log-likelihood of a dataset in nats per free token, or a bound on it.

    - `standard_error`: the standard error over sequences and noise, from the spread of the
      per-sequence estimates: how much the result varies between samples of sequences. None for a
      single sequence.
    - `noise_error`: the standard error over times and noise only: how much the result varies
      between seeds for the same sequences. It is one component of `standard_error`, so it is
      usually smaller. With few draws it may be overestimated; see `stratified_variance`.
    - `exact`: whether this is the negative log-likelihood itself and not a bound.
    """

    standard_error: float | None
    noise_error: float
    sequences: int
    of: int  # sequences in the split, of which `sequences` were evaluated
    tokens: int
    draws: int
    seed: int
    exact: bool = False

    @property
    def perplexity_error(self) -> float | None:
        """The standard error of the perplexity, by the delta method."""
        return None if self.standard_error is None else self.perplexity * self.standard_error

    def __str__(self) -> str:
        error = "" if self.perplexity_error is None else f" ± {self.perplexity_error:.2g}"
        bound = "" if self.exact else "at most "
        return (
            f"perplexity {bound}{self.perplexity:.4g}{error} ({self.bits_per_token:.4f} bits per "
            f"token, {self.sequences:,} of {self.of:,} sequences "
            f"({self.sequences / self.of:.1%}), {self.tokens:,} tokens)"
        )

    def to_json(self) -> dict[str, Any]:
        """All values, including the derived ones."""
        return {
            "perplexity": self.perplexity,
            "perplexity_error": self.perplexity_error,
            "bits_per_token": self.bits_per_token,
            **asdict(self),
        }


def load_held_out(trained: Trained, name: str, part: str | None = None) -> TokenData:
    """Load a dataset with the model's tokenizer and length; it must have held-out sequences."""
    tokenizer = trained.tokenizer
    is_corpus = name in CORPORA and not is_prepared(Path(name))
    if part is None and is_corpus and "valid" in CORPORA[name].part_names:
        part = "valid"  # the same sequences, without reading the training split
    try:
        data = load_data(name, length=trained.length, tokenizer=tokenizer, part=part)
    except InputError as error:
        raise InputError(
            f"{name!r} cannot be read with length {trained.length} and {tokenizer.kind} tokens, "
            f"which are the model's: {error}",
            fields=error.fields,
        ) from error
    if not len(data.valid):
        raise InputError(
            f"{name!r} has no held-out sequences; use a larger dataset, or part='all' for your own "
            f"text",
            fields=("part",),
        )
    return data


def held_out_likelihood(
    trained: Trained, data: TokenData, *, weight: Weight | None = None, **options: Any
) -> DatasetLikelihood:
    """The likelihood of the held-out sequences of `data`; see `dataset_likelihood` for options.

    With a `weight`, it is the likelihood under the flow's context-weighted chain. The padding of
    the last text window, and a first token that is fixed in training, do not count. The default
    `batch_size` depends on the available memory.
    """
    return _likelihood(trained, data.valid, held_out_padding(data), weight, **options)


def text_likelihood(
    trained: Trained, texts: Sequence[str], *, weight: Weight | None = None, **options: Any
) -> DatasetLikelihood:
    """The likelihood of texts, laid out as in training: see `Tokenizer.layout`.

    See `held_out_likelihood` for the options.
    """
    check_strings("texts", texts)
    rows, padding = trained.tokenizer.layout(texts, trained.length)
    place = (len(rows) - 1, padding) if padding else None
    return _likelihood(trained, torch.tensor(rows), place, weight, **options)


def _likelihood(
    trained: Trained,
    sequences: Tensor | NDArray[Any],
    padding: tuple[int, int] | None,
    weight: Weight | None,
    *,
    batch_size: int | None = None,
    **options: Any,
) -> DatasetLikelihood:
    return dataset_likelihood(
        trained.method if weight is None else flow_of(trained.method),
        trained.model,
        sequences,
        fixed=prompt_tokens(trained)[1],
        padding=padding,
        weight=weight,
        batch_size=auto_batch_size(trained) if batch_size is None else batch_size,
        **options,
    )


def dataset_likelihood(
    method: Method,
    model: Any,
    sequences: Tensor | NDArray[Any],
    *,
    limit: int | None = None,
    fixed: Tensor | None = None,
    padding: tuple[int, int] | None = None,
    weight: Weight | None = None,
    draws: int = 16,
    seed: int = 0,
    batch_size: int = 64,
) -> DatasetLikelihood:
    """The method's likelihood of token ids [R, N], such as a memory-mapped array.

    - `limit`: evaluate this many sequences, evenly spaced. Their estimates are the same as without
      a limit.
    - `fixed` [N]: positions to condition on in every sequence.
    - `padding`: (sequence, count): the one sequence that ends in padding, and the number of padding
      tokens. They do not count.
    - `weight`: the context weight of a flow; see `elbo`.

    Sequences are read one batch at a time. The result does not depend on `batch_size`.
    """
    _check_sequences(sequences)
    check_integer("batch_size", batch_size)
    check_integer("limit", len(sequences) if limit is None else limit)
    fixed_N = torch.zeros(sequences.shape[1], dtype=torch.bool) if fixed is None else fixed
    check_mask("fixed", fixed_N, (sequences.shape[1],))
    count = min(len(sequences), limit or len(sequences))
    index_R = torch.arange(count) * len(sequences) // count
    device = model_device(model) or torch.device("cpu")
    options: dict[str, Any] = {"seed": seed, "draws": draws, "batch_size": batch_size}
    options |= {} if weight is None else {"weight": weight}
    nats_R, tokens_R = torch.zeros(2, count, dtype=torch.float64)
    variance = 0.0
    for row_B, fixed_n in _terms(method, index_R, fixed_N.cpu(), padding, batch_size):
        index_B = index_R[row_B]
        x_1 = _read(sequences, index_B)[:, : len(fixed_n)].to(device)
        fixed_Bn = fixed_n.to(device).expand(x_1.shape)
        bound = method.likelihood(model, x_1, fixed=fixed_Bn, index=index_B.to(device), **options)
        nats_R[row_B] += bound.nats_B.cpu()
        tokens_R[row_B] += int((~fixed_n).sum())
        variance += (bound.standard_error * bound.tokens) ** 2
    mean, error = ratio(nats_R, tokens_R)
    total = int(tokens_R.sum())
    return DatasetLikelihood(
        nats_per_token=mean,
        standard_error=error,
        noise_error=math.sqrt(variance) / total,
        sequences=count,
        of=len(sequences),
        tokens=total,
        draws=draws,
        seed=seed,
        exact=method.exact,
    )


def _terms(
    method: Method,
    index_R: Tensor,
    fixed_N: Tensor,
    padding: tuple[int, int] | None,
    batch_size: int,
) -> list[tuple[Tensor, Tensor]]:
    """The batches whose likelihoods are added: rows [B] of index_R, with fixed tokens [n]."""
    padded, pad_count = padding or (-1, 0)
    full_R, padded_R = (index_R != padded).nonzero()[:, 0], (index_R == padded).nonzero()[:, 0]
    terms = [(row_B, fixed_N) for row_B in full_R.split(batch_size)]
    terms += [(padded_R, fixed_n) for fixed_n in without_padding(method, fixed_N, pad_count)]
    return [(row_B, fixed_n) for row_B, fixed_n in terms if len(row_B)]


def _check_sequences(sequences: Tensor | NDArray[Any]) -> None:
    is_integer = isinstance(sequences, np.ndarray) and sequences.dtype.kind in "iu"
    is_integer |= isinstance(sequences, Tensor) and not sequences.is_floating_point()
    if not is_integer or sequences.ndim != 2 or 0 in sequences.shape:
        raise InputError(
            f"sequences must be token ids [sequences, length], not empty, got {describe(sequences)}"
        )


def without_padding(method: Method, fixed_N: Tensor, pad_count: int) -> list[Tensor]:
    """Masks [n] of fixed tokens whose likelihoods add up to that without the last `pad_count`.

    Each mask stands for the likelihood of the sequence's first n tokens. A bidirectional method
    conditions on the padding. A method that generates blocks from left to right scores a block
    without those after it, so complete blocks of text are scored as they are, and the block in
    which the text ends is conditioned on its padding and on the blocks before it.
    """
    length, block = len(fixed_N), method.causal_block
    position_N, end = torch.arange(length), length - pad_count
    if block is None:
        return [fixed_N | (position_N >= end)]
    complete = end // block * block
    last_N = fixed_N | (position_N < complete) | (position_N >= end)
    terms = [fixed_N[:complete], last_N[: complete + block]]
    return [fixed_n for fixed_n in terms if not bool(fixed_n.all())]


def _read(sequences: Tensor | NDArray[Any], index_B: Tensor) -> Tensor:
    if isinstance(sequences, Tensor):
        return sequences[index_B.to(sequences.device)].long()
    return torch.from_numpy(sequences[index_B.numpy()].astype(np.int64))
