"""Generation with language models against plain loops over uncached networks of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cwdfm
from tests.support.language import FAMILIES, MASK, reference_logits

PROMPTS = ["the cat sat", "a big old dog ran in the red house on the", "moon"]
COUNT = 26  # ids of the tokenizer


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: Any, tmp_path_factory: Any) -> Any:
    write, facts = FAMILIES[request.param]
    folder, network = write(tmp_path_factory.mktemp(request.param))
    return cwdfm.load(folder), network, facts


def published(
    network: nn.Module, ids: list[int], new: int, length: int, facts: dict[str, Any], steps: int = 1
) -> list[int]:
    """Generate one text as the authors do: reveal the most confident tokens of a block.

    Full forward passes; `steps` tokens are revealed at once.
    """
    block = facts.get("block")
    start = len(ids) if block is None else len(ids) - len(ids) % block
    total = len(ids) + new if block is None else -(-(len(ids) + new) // block) * block
    length = block or length
    x = torch.tensor([[*ids, *[MASK] * (total - len(ids))]])
    for first in range(start, total, length):
        last = min(first + length, total)
        while bool((x[:, first:last] == MASK).any()):
            seen = x if block is None else x[:, :last]
            logits = reference_logits(network, seen, **facts)[0, first:last]
            logits[:, COUNT:] = -torch.inf
            logits[:, MASK] = -torch.inf
            confidence, token = logits.softmax(-1).max(-1)
            confidence = confidence.masked_fill(x[0, first:last] != MASK, -1)
            best = confidence.topk(min(steps, int((confidence >= 0).sum()))).indices
            x[0, first + best] = token[best]
    return x[0, len(ids) : len(ids) + new].tolist()


def encode(model: cwdfm.LanguageModel, text: str) -> list[int]:
    ids: list[int] = model.tokenizer(text)["input_ids"]
    return ids


def test_logits_equal_transformers(family: Any) -> None:
    model, network, facts = family
    ids = torch.randint(0, COUNT, (3, 12), generator=torch.Generator().manual_seed(0))
    expected = reference_logits(network, ids, **facts)
    if facts.get("block") is None:
        flow = model.flow_model()
        found = flow(model.swap(ids), torch.zeros(3))
        found[..., MASK] = expected[..., MASK]  # the mask is not predicted
        torch.testing.assert_close(found[..., :COUNT], expected[..., :COUNT], rtol=0, atol=1e-4)
    else:
        block, place = facts["block"], torch.arange(12)
        mask = (place[:, None] // block >= place // block)[None, None]
        hidden = model.network.hidden(ids, place.expand(3, -1), mask, None)
        torch.testing.assert_close(model.network.logits(hidden), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("length", "steps"), [(4, 1), (3, 1), (8, 2)])
def test_tokens_equal_the_published_algorithm(family: Any, length: int, steps: int) -> None:
    model, network, facts = family
    new = 8 if facts.get("block") is None else 9
    length = facts.get("block") or length
    out = model.generate(
        prompts=PROMPTS, max_new_tokens=new, block_length=length, steps=new // steps, stop=[]
    )
    if new % steps == 0 and length % steps == 0:
        expected = [
            published(network, encode(model, text), new, length, facts, steps) for text in PROMPTS
        ]
        assert out.tokens == expected


@pytest.mark.parametrize(
    "solver",
    [
        cwdfm.TopK("margin", temperature=0.7),
        cwdfm.EntropyBound(0.5),
        cwdfm.Euler(),
        cwdfm.Euler(weight=cwdfm.Neighbor(radius=3, scale=2.0)),
        cwdfm.Euler(weight=cwdfm.Entropy(2.0)),
        cwdfm.FirstHitting(),
    ],
)
def test_a_text_does_not_depend_on_its_batch(family: Any, solver: cwdfm.Solver) -> None:
    model, _, _ = family
    options: dict[str, Any] = {"max_new_tokens": 7, "solver": solver, "seed": 3}
    together = model.generate(prompts=PROMPTS, **options)
    for number, text in enumerate(PROMPTS):
        alone = model.generate(prompts=[text], index=torch.tensor([number]), **options)
        assert alone.tokens == [together.tokens[number]]
        assert alone.evaluations == together.evaluations[number]
    assert len({tuple(row) for row in together.tokens}) > 1
    assert not any(MASK in row for row in together.tokens)


def test_exact_cache_does_not_change_tokens(tmp_path: Path) -> None:
    write, _ = FAMILIES["sdar"]
    model = cwdfm.load(write(tmp_path)[0])
    solver = cwdfm.Euler(weight=cwdfm.Entropy(1.0))
    options: dict[str, Any] = {"prompts": PROMPTS, "max_new_tokens": 18, "solver": solver}
    assert model.generate(**options).tokens == model.generate(cache="none", **options).tokens
