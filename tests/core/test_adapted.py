"""Adapted networks: samples equal those of the same network with this library's ids."""

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cwdfm
from tests.support.models import SmallSplitModel

OURS = ["a", "b", "c", "d", "pad", "mask"]
THEIRS = ["a", "mask", "pad", "d", "b", "c"]
KEYS = torch.randn(len(OURS), len(OURS), generator=torch.Generator().manual_seed(0)).double() * 0.6


def answer(words: list[list[str]], order: list[str]) -> Tensor:
    """Logits [B, N, 6] of words given their neighbors, in a given order of the vocabulary."""
    place = {word: i for i, word in enumerate(OURS)}
    x = torch.tensor([[place[word] for word in row] for row in words])
    return (KEYS[x] + KEYS[x.roll(1, dims=1)])[..., [place[word] for word in order]]


class Network(nn.Module):
    """An external network: takes tokens only and returns an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.9)  # disabled in sampling

    def forward(self, tokens: Tensor) -> SimpleNamespace:
        words = [[THEIRS[i] for i in row] for row in tokens.tolist()]
        return SimpleNamespace(logits=self.dropout(answer(words, THEIRS)))


def ours(x: Tensor, t: Tensor) -> Tensor:
    logits = answer([[OURS[i] for i in row] for row in x.tolist()], OURS)
    logits[..., OURS.index("pad")] = -torch.inf
    return logits


def adapted() -> cwdfm.Adapted:
    mask, pad = THEIRS.index("mask"), THEIRS.index("pad")
    return cwdfm.Adapted(Network(), num_tokens=6, mask_id=mask, never=[pad])


def test_swap_moves_the_mask_to_the_end() -> None:
    ids = torch.arange(6)
    assert [THEIRS[i] for i in adapted().swap(ids)] == ["a", "c", "pad", "d", "b", "mask"]
    assert torch.equal(adapted().swap(adapted().swap(ids)), ids)
    assert adapted().source.mask_id == 5


@pytest.mark.parametrize("weight", [None, cwdfm.Neighbor(1, 4.0), cwdfm.Entropy(2.0)])
def test_samples_follow_the_law_of_the_network(weight: cwdfm.Weight | None) -> None:
    model, solver = adapted(), cwdfm.Euler(weight=weight)
    n = 4000
    given, own = (
        torch.tensor([names.index(word) for word in ("d", "mask", "mask", "b")])
        for names in (THEIRS, OURS)
    )

    def sampled(network: cwdfm.Model, prompt: Tensor, seed: int) -> cwdfm.Samples:
        flow = (network, cwdfm.MaskSource(5), cwdfm.Linear(), solver)
        return cwdfm.sample(*flow, shape=(n, 4), steps=4, prompt=prompt, seed=seed)

    theirs, direct = sampled(model, model.swap(given), 0), sampled(ours, own, 1)
    counts = torch.zeros(2, 25)
    for row, tokens, names in ((0, model.swap(theirs.tokens), THEIRS), (1, direct.tokens, OURS)):
        assert {(names[a], names[d]) for a, _, _, d in tokens.tolist()} == {("d", "b")}
        for _, b, c, _ in tokens.tolist():
            counts[row, 5 * OURS.index(names[b]) + OURS.index(names[c])] += 1
    # Two samples of one law: cells within five deviations, a false alarm in 20,000 tests.
    spread = counts.sum(0).sqrt().clamp(min=1)
    assert bool(((counts[0] - counts[1]).abs() < 5 * spread).all())
    assert int((counts.sum(0) > 0).sum()) == 16  # four words at two positions, and no padding


def test_banned_ids_may_be_the_last_or_the_mask() -> None:
    """Exactly the banned id gets -inf, also if it is one of the swapped ids."""
    logits = torch.arange(6.0).repeat(1, 2, 1)
    x, t = torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1)
    for mask in range(6):
        for never in range(6):
            model = cwdfm.Adapted(lambda _: logits, num_tokens=6, mask_id=mask, never=[never])
            found = model(x, t)[0, 0, model.swap(torch.arange(6))]  # in the network's ids
            drawn = [i for i in range(6) if i != mask]
            expected = [-torch.inf if i == never else float(i) for i in drawn]
            assert found[drawn].tolist() == expected, (mask, never)
    assert torch.equal(logits[0, 0], torch.arange(6.0))  # not modified in place


def test_training_modes_are_restored() -> None:
    """For each submodule: a frozen one stays frozen while the rest trains."""
    for whole, part in product((True, False), repeat=2):
        network = Network().train(whole)
        network.dropout.train(part)
        draw(cwdfm.Adapted(network, num_tokens=6, mask_id=1))
        assert (network.training, network.dropout.training) == (whole, part)


def draw(model: cwdfm.Model) -> None:
    source, shape = cwdfm.MaskSource(5), (2, 4)
    cwdfm.sample(model, source, cwdfm.Linear(), cwdfm.Euler(), shape=shape, steps=2)


def test_error_messages() -> None:
    def adapt(network: Any = None, mask_id: int = 1, num_tokens: int = 6, never: Any = ()) -> None:
        answers = (lambda x: network(Network()(x).logits)) if network else Network()
        draw(cwdfm.Adapted(answers, num_tokens=num_tokens, mask_id=mask_id, never=never))

    untyped: Any = cwdfm
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: adapt(mask_id=6), r"mask_id .*6.*0\.\.5"),
        (lambda: adapt(num_tokens=2), "num_tokens must be an integer >= 3"),
        (lambda: adapt(never=[9]), r"never .*9"),
        (lambda: adapt(lambda z: z.softmax(-1), never=[2]), "look like probabilities"),
        (lambda: adapt(lambda z: torch.eye(6).expand(2, 4, 6, 6)[..., 0, :]), "probabilities"),
        (lambda: adapt(lambda z: z.long()), r"floating logits of shape .*int64"),
        (lambda: adapt(lambda z: z[..., :3]), r"shape \(2, 4, 6\).*shape \(2, 4, 3\)"),
        (lambda: untyped.generate(Network(), n=1, steps=1), r"a Network; .*use cwdfm\.sample"),
        (lambda: untyped.generate("folder", prompts=["a"]), r"a str; .*use cwdfm\.sample"),
        (lambda: draw(lambda x, t: Network()(x)), r"got a SimpleNamespace; return its \.logits"),
    ]
    for act, message in cases:
        with pytest.raises(cwdfm.InputError, match=message):
            act()
    with pytest.raises(TypeError) as caught:
        draw(Network())  # which has no time argument
    assert "shape (2, 4) on cpu, ids up to 5 (" in caught.value.__notes__[0]
    assert "cwdfm.Adapted" in caught.value.__notes__[0]


def test_errors_in_a_split_model_describe_the_call() -> None:
    """A mask source has one id more than the data: an embedding of 5 rows has none for id 5."""
    with pytest.raises(IndexError) as caught:
        draw(SmallSplitModel(5))
    assert "ids up to 5 (" in caught.value.__notes__[0]


class Rounded(nn.Module):
    """A split model whose head adds `error` times the largest logit to logits that are zero."""

    def __init__(self, dtype: torch.dtype, error: float) -> None:
        super().__init__()
        row = torch.tensor([20.0, 0.0, -20.0, 0.0, 10.0, 0.0])
        self.table = nn.Parameter(row.expand(6, 6).to(dtype))
        self.error = error

    def trunk(self, x: Tensor, t: Tensor) -> Tensor:
        return self.table[x]

    def head(self, hidden: Tensor) -> Tensor:
        return hidden + self.error * 20 * (torch.arange(6) % 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.table[x]


@pytest.mark.parametrize(
    ("dtype", "error", "accepted"),
    [
        (torch.float32, 0.0005, True),
        (torch.float32, 0.005, False),
        (torch.bfloat16, 0.005, True),  # as large as rounding of the largest logits
        (torch.bfloat16, 0.5, False),
    ],
)
def test_trunk_and_head_may_differ_from_the_model_by_rounding(
    dtype: torch.dtype, error: float, accepted: bool
) -> None:
    model = Rounded(dtype, error)
    if accepted:
        draw(model)
        return
    with pytest.raises(cwdfm.InputError, match="samplers call trunk and head"):
        draw(model)
