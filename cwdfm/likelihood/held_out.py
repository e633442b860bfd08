"""The likelihood of held-out sequences under a trained model."""

from pathlib import Path

from cwdfm.data import CORPORA, TokenData
from cwdfm.data import load as load_tokens
from cwdfm.data.text import is_prepared
from cwdfm.data.text.pack import held_out_fill
from cwdfm.errors import InputError
from cwdfm.generation import fitting_batch, given
from cwdfm.likelihood.dataset import SplitBound, bound_split
from cwdfm.pretrained import Pretrained
from cwdfm.weight import Weight


def held_out(trained: Pretrained, name: str, part: str | None = None) -> TokenData:
    """Data in the model's own tokens and length, with something held out."""
    tokenizer = trained.tokenizer
    own = () if is_prepared(Path(name)) or name not in CORPORA else CORPORA[name].part_names
    if part is None and "valid" in own:
        part = "valid"  # the same windows, without a look at what is to train on
    try:
        data = load_tokens(name, length=trained.length, tokenizer=tokenizer, part=part)
    except InputError as error:
        raise InputError(
            f"{name!r} cannot be read with length {trained.length}, as a model of "
            f"{tokenizer.kind} tokens needs it: {error} (here length and tokenizer are the model's)"
        ) from error
    if not len(data.valid):
        raise InputError(
            f"{name!r} holds nothing out; give more data, or for text of one's own --part all"
        )
    return data


def bound(
    trained: Pretrained,
    data: TokenData,
    *,
    weight: Weight | None = None,
    rows: int | None = None,
    draws: int = 16,
    seed: int = 0,
    batch_size: int | None = None,
) -> SplitBound:
    """The bound over the held-out sequences, or over so many `rows` of them.

    With a `weight`, of the flow's weighted chain. What is given or only fills up does not count.
    """
    return bound_split(
        trained.method if weight is None else trained.flow,
        trained.model,
        data.valid,
        limit=rows,
        fixed=given(trained)[1],
        filled=held_out_fill(data),
        weight=weight,
        draws=draws,
        seed=seed,
        batch_size=fitting_batch(trained) if batch_size is None else batch_size,
    )
