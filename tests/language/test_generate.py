"""Generation with language models against plain loops over uncached networks of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cwdfm
from tests.support.cases import slow
from tests.support.edits import Tokens, published_edits
from tests.support.exact import Array
from tests.support.language import EOS, FAMILIES, MASK, block_mask, reference_logits

PROMPTS = ["the cat sat", "a big old dog ran in the red house on the", "moon"]
COUNT = 26  # ids of the tokenizer


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: Any, tmp_path_factory: Any) -> Any:
    write, facts = FAMILIES[request.param]
    folder, network = write(tmp_path_factory.mktemp(request.param))
    return cwdfm.load(folder), network, facts


def blocks_of(
    ids: list[int], new: int, length: int, facts: dict[str, Any]
) -> tuple[Tensor, list[slice]]:
    """The prompt followed by masks [N], and the blocks to generate."""
    block = facts.get("block")
    start = len(ids) if block is None else len(ids) - len(ids) % block
    total = len(ids) + new if block is None else -(-(len(ids) + new) // block) * block
    starts = range(start, total, block or length)
    blocks = [slice(first, min(first + (block or length), total)) for first in starts]
    return torch.tensor([*ids, *[MASK] * (total - len(ids))]), blocks


def logits_of(network: nn.Module, x: Tensor, block: slice, facts: dict[str, Any]) -> Tensor:
    """Logits [L, V] of a block, by a full forward pass."""
    seen = x if facts.get("block") is None else x[: block.stop]
    logits = reference_logits(network, seen[None], **facts)[0, block]
    logits[:, COUNT:] = -torch.inf
    logits[:, MASK] = -torch.inf
    return logits


def published(
    network: nn.Module, ids: list[int], new: int, length: int, facts: dict[str, Any], steps: int = 1
) -> list[int]:
    """Generate one text as the authors do: reveal the most confident tokens of a block.

    `steps` tokens are revealed at once.
    """
    x, blocks = blocks_of(ids, new, length, facts)
    for block in blocks:
        while bool((x[block] == MASK).any()):
            confidence, token = logits_of(network, x, block, facts).softmax(-1).max(-1)
            confidence = confidence.masked_fill(x[block] != MASK, -1)
            best = confidence.topk(min(steps, int((confidence >= 0).sum()))).indices
            x[block.start + best] = token[best]
    return x[len(ids) : len(ids) + new].tolist()


def edited(
    network: nn.Module,
    ids: list[int],
    new: int,
    length: int,
    facts: dict[str, Any],
    thresholds: tuple[float, float],
    post_steps: int,
) -> tuple[list[int], int]:
    """Generate one text as LLaDA2.1's authors do, and count the forward passes."""
    (x, blocks), evaluations = blocks_of(ids, new, length, facts), 0
    editable = np.arange(len(x)) >= len(ids)
    for block in blocks:

        def logits(x_L: Tokens, block: slice = block) -> Array:
            x[block] = torch.from_numpy(x_L)
            return logits_of(network, x, block, facts).double().numpy()

        start, free = x[block].numpy().copy(), editable[block]
        found, count = published_edits(logits, start, MASK, thresholds, post_steps, editable=free)
        x[block] = torch.from_numpy(found)
        evaluations += count
    return x[len(ids) : len(ids) + new].tolist(), evaluations


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
        mask = block_mask(12, facts["block"])
        hidden = model.network.hidden(ids, torch.arange(12).expand(3, -1), mask, None)
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


@pytest.mark.parametrize("thresholds", [(0.5, 0.0), (0.3, 0.15), slow((0.15, 0.3))])
def test_edits_equal_the_published_algorithm(family: Any, thresholds: tuple[float, float]) -> None:
    model, network, facts = family
    solver = cwdfm.Edit(cwdfm.Threshold(thresholds[0], temperature=0.0), thresholds[1], 5)
    options: dict[str, Any] = {"max_new_tokens": 12, "block_length": facts.get("block") or 6}
    out = model.generate(solver, prompts=PROMPTS, stop=[], **options)
    expected = [
        edited(network, encode(model, text), 12, 6, facts, thresholds, 5) for text in PROMPTS
    ]
    assert out.tokens == [tokens for tokens, _ in expected]
    blocks = 0  # a cache costs one more evaluation per block but the last
    if facts.get("block") is not None:
        blocks = -(-(len(PROMPTS[0].split()) % 4 + 12) // 4) - 1
    assert out.evaluations[0] == expected[0][1] + blocks
    if thresholds[1] == 0:
        plain = model.generate(solver.solver, prompts=PROMPTS, stop=[], **options)
        assert plain.tokens != out.tokens


@pytest.mark.parametrize(
    "solver",
    [
        cwdfm.TopK("margin", temperature=0.7),
        slow(cwdfm.EntropyBound(0.5)),
        slow(cwdfm.EntropyPace(temperature=0.7)),
        slow(cwdfm.TopK("random", distance=2)),
        slow(cwdfm.Euler()),
        cwdfm.Euler(weight=cwdfm.Neighbor(radius=3, scale=2.0)),
        slow(cwdfm.Euler(weight=cwdfm.Entropy(2.0))),
        cwdfm.FirstHitting(),
        cwdfm.Edit(cwdfm.Threshold(0.5, temperature=0.7), 0.5, 3),
        slow(cwdfm.Edit(cwdfm.Euler(weight=cwdfm.Neighbor(radius=3, scale=2.0)), 0.3)),
        cwdfm.Gibbs(cwdfm.Euler(weight=cwdfm.Neighbor(radius=3, scale=2.0))),
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


@pytest.fixture(scope="module")
def llada(tmp_path_factory: Any) -> cwdfm.LanguageModel:
    model: cwdfm.LanguageModel = cwdfm.load(FAMILIES["llada"][0](tmp_path_factory.mktemp("l"))[0])
    return model


def certain(ids: list[int]) -> Any:
    """A constraint that leaves one token at each position, the stop token at the last ones."""

    def constraint(logits: Tensor, number: Tensor, position: Tensor) -> Tensor:
        wanted = torch.tensor(ids)[position]
        return torch.full_like(logits, -torch.inf).scatter(1, wanted[:, None], 0.0)

    return constraint


def test_constraints_decide_every_token(llada: cwdfm.LanguageModel) -> None:
    ids = [7, 8, 9, 10, 11, 12]
    out = llada.generate(
        prompts=PROMPTS, max_new_tokens=6, constraint=certain(ids), block_length=4, stop=[]
    )
    assert out.tokens == [ids] * 3
    assert out.texts == ["cat dog sat ran on mat"] * 3
    never = list(range(8, COUNT))
    out = llada.generate(prompts=PROMPTS, max_new_tokens=6, never=never, stop=[])
    assert {token for row in out.tokens for token in row} <= {0, 2, 3, 4, 5, 6, 7}


def test_stop_tokens_end_a_text_and_cost_nothing_after(llada: cwdfm.LanguageModel) -> None:
    ids = [7, 8, EOS, 10, 11, 12, 13, 14]
    options: dict[str, Any] = {"prompts": PROMPTS, "max_new_tokens": 8, "block_length": 4}
    out = llada.generate(constraint=certain(ids), hold_stop=False, **options)
    assert out.tokens == [[7, 8]] * 3
    assert out.evaluations.tolist() == [4, 4, 4]  # the second block is not generated
    ids = [7, 8, 9, 10, 11, 12, 13, 14]
    text = llada.generate(constraint=certain(ids), stop=["sat"], **options)
    assert text.texts == ["cat dog "] * 3
    assert text.tokens == [[7, 8]] * 3
    assert text.new_tokens.tolist() == [2, 2, 2]
    assert text.evaluations.tolist() == [4, 4, 4]
    ids = [7, 8, EOS, 10, 9, 12, 13, 14]  # the model's end tokens stay in use
    text = llada.generate(constraint=certain(ids), stop=["sat"], hold_stop=False, **options)
    assert text.tokens == [[7, 8]] * 3


def test_held_stop_tokens_wait_for_the_text_before_them(llada: cwdfm.LanguageModel) -> None:
    """A model that is certain of the end everywhere, and prefers the last positions."""

    def flood(logits: Tensor, number: Tensor, position: Tensor) -> Tensor:
        logits = torch.zeros_like(logits)
        logits[:, EOS] += 5.0 + position
        return logits

    options: dict[str, Any] = {"prompts": ["the cat"], "max_new_tokens": 8, "constraint": flood}
    held = llada.generate(**options)
    assert held.evaluations.tolist() == [1]  # the first open position ends the text
    assert held.tokens == [[]]
    seen: list[str] = []
    free = llada.generate(hold_stop=False, callback=lambda t: seen.append(t[0]), **options)
    assert free.evaluations.tolist() == [8]
    assert [text.count("\u2591") for text in seen][:2] == [7, 6]  # from the end


def test_edits_keep_the_end_of_a_text(llada: cwdfm.LanguageModel) -> None:
    """An end token is neither edited away nor put after an open position."""
    options: dict[str, Any] = {"prompts": PROMPTS, "max_new_tokens": 8, "block_length": 8}
    solver = cwdfm.Edit(cwdfm.Threshold(0.9, temperature=0.0), 0.0)
    ids = [7, 8, EOS, 10, 11, 12, 13, 14]
    out = llada.generate(solver, constraint=certain(ids), **options)
    assert out.tokens == [[7, 8]] * 3
    assert out.evaluations.tolist() == [2, 2, 2]  # one reveals everything, one changes nothing

    def flood(logits: Tensor, number: Tensor, position: Tensor) -> Tensor:
        """The end from the second position on, with little confidence at the first."""
        logits = torch.zeros_like(logits)
        logits[:, EOS] = torch.where(position == 0, 0.0, 9.0)
        logits[:, 7] = torch.where(position == 0, 1.0, 8.0)
        return logits

    seen: list[str] = []
    out = llada.generate(
        solver, constraint=flood, callback=lambda texts: seen.append(texts[2]), **options
    )
    assert seen[0] == "\u2591" + " ".join(["cat"] * 7)  # the end is not drawn there yet
    assert out.tokens == [[7]] * 3  # but takes the place of a revealed token later


@pytest.mark.parametrize("draws", [{"temperature": 0.5}, {"top_p": 0.3}])
def test_draw_options_reach_the_solver_inside(
    llada: cwdfm.LanguageModel, draws: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"prompts": PROMPTS, "max_new_tokens": 6}
    for wrap in (cwdfm.Edit, cwdfm.Gibbs):
        found = llada.generate(wrap(cwdfm.Euler()), **draws, **options)
        expected = llada.generate(wrap(cwdfm.Euler(**draws)), **options)
        assert found.tokens == expected.tokens


def test_callbacks_see_the_text_grow(llada: cwdfm.LanguageModel) -> None:
    seen: list[list[str]] = []
    out = llada.generate(
        prompts=PROMPTS, max_new_tokens=6, block_length=3, stop=[], callback=seen.append
    )
    assert len(seen) == 6
    assert seen[-1] == out.texts
    for number in range(3):
        opened = [texts[number].count("\u2591") for texts in seen]
        assert opened == [5, 4, 3, 2, 1, 0]
    assert out.tokens_per_forward.tolist() == [1.0] * 3


def test_a_threshold_reveals_all_confident_tokens(llada: cwdfm.LanguageModel) -> None:
    options: dict[str, Any] = {"prompts": PROMPTS, "max_new_tokens": 8, "stop": []}
    fast = llada.generate(threshold=1e-9, **options)
    assert fast.evaluations.tolist() == [1, 1, 1]
    assert fast.tokens_per_forward.tolist() == [8.0] * 3
    slow = llada.generate(threshold=1.0, **options)
    assert slow.tokens == llada.generate(**options).tokens


def test_approximate_caches_are_close_and_exact_for_one_step(llada: cwdfm.LanguageModel) -> None:
    from cwdfm.language.results import agreement

    prompts = [*PROMPTS, "the old bird sat in the tree", "fish"]
    options: dict[str, Any] = {"prompts": prompts, "max_new_tokens": 16, "block_length": 4}
    options["stop"] = []
    exact = llada.generate(**options)
    for cache in ("prefix", "dual", "prompt"):
        found = llada.generate(cache=cache, **options)
        shares = [a[0] == b[0] for a, b in zip(found.tokens, exact.tokens, strict=True)]
        assert 0.1 < agreement(found, exact) < 1.0, cache
        assert sum(shares) >= 2, cache
        # With one step per block every evaluation is complete, except that of the prompt.
        once = llada.generate(cache=cache, steps=4, **options)
        equal = once.tokens == llada.generate(steps=4, **options).tokens
        assert equal == (cache != "prompt"), cache
    assert agreement(exact, exact) == 1.0


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["prefix", "dual", "prompt"])
def test_caches_are_exact_for_a_single_layer(name: str, cache: Any, tmp_path: Path) -> None:
    """The keys and values of a first layer depend on single tokens, which are those of the cache
    or are evaluated again."""
    model = cwdfm.load(FAMILIES[name][0](tmp_path)[0])
    decoder: Any = model.network.decoder
    decoder.layers = decoder.layers[:1]
    options: dict[str, Any] = {"prompts": PROMPTS, "max_new_tokens": 16, "block_length": 4}
    options["stop"] = []
    assert model.generate(cache=cache, **options).tokens == model.generate(**options).tokens


def test_chat_templates_format_messages(llada: cwdfm.LanguageModel) -> None:
    messages = [[{"role": "cat", "content": "sat on"}], [{"role": "dog", "content": "ran"}]]
    chat = llada.generate(messages=messages, max_new_tokens=4)
    plain = llada.generate(prompts=["cat sat on the", "dog ran the"], max_new_tokens=4)
    assert chat.tokens == plain.tokens


def test_bad_input_is_explained(llada: cwdfm.LanguageModel) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "one of prompts"),
        ({"solver": "the cat"}, "solver.*the cat"),
        ({"prompt": "the"}, "'prompt'.*'prompts'"),
        ({"prompts": ["the"], "max_length": 8}, "'max_length'.*max_new_tokens"),
        ({"templates": ["the [1]"], "stop": ["cat"]}, "stop.*templates"),
        ({"prompts": ["the"], "templates": ["a [1]"]}, "prompts and templates"),
        ({"prompts": "the"}, "prompts"),
        ({"prompts": []}, "empty"),
        ({"prompts": ["the", ""]}, "prompt 2 of 2.*empty"),
        ({"prompts": ["the " * 120], "max_new_tokens": 20}, "120 tokens.*128"),
        ({"prompts": ["the <mask>"]}, "mask"),
        ({"templates": ["the cat"]}, "no holes"),
        ({"messages": [{"role": "user", "content": "a"}]}, "conversations"),
        ({"messages": [[{"role": "user"}]]}, r"messages\[0\].*conversation"),
        ({"prompts": ["the"], "max_new_tokens": 0}, "max_new_tokens"),
        ({"prompts": ["the"], "block_length": 0}, "block_length"),
        ({"prompts": ["the"], "cache": "exact"}, "'none', 'prefix', 'dual', 'prompt'"),
        ({"prompts": ["the"], "cache": "all"}, "cache"),
        ({"prompts": ["the"], "stop": "the"}, "stop"),
        ({"prompts": ["the"], "stop": [999]}, "0..25"),
        ({"prompts": ["the"], "never": [-1]}, "never"),
        ({"prompts": ["the"], "solver": "neighbour"}, "neighbor"),
        ({"prompts": ["the"], "solver": "euler", "threshold": 0.9}, "threshold"),
        ({"prompts": ["the"], "solver": "left-to-right"}, "LeftToRight.*not a solver of flows"),
        ({"prompts": ["the"], "threshold": 2.0}, "threshold"),
        ({"prompts": ["the"], "solver": cwdfm.TopK(cwdfm.Neighbor())}, "does not support blocks"),
        ({"prompts": ["the"], "constraint": 3}, "constraint"),
        ({"prompts": ["the"], "steps": 0}, "steps"),
        ({"prompts": ["the"], "never": [True]}, "never.*0..25"),
        ({"prompts": ["the"], "never": range(26)}, "never.*all"),
        ({"prompts": ["\ud800"]}, "surrogate"),
        ({"messages": [[{"role": "user", "content": None}]]}, "conversation"),
        ({"prompts": ["the"], "constraint": lambda *_: None}, "constraint.*None"),
        ({"prompts": ["the"], "constraint": lambda x, n, i: x[:, :3]}, "constraint.*, 3"),
        ({"prompts": ["the"], "constraint": lambda x, n, i: x.softmax(-1)}, "probabilities"),
        ({"prompts": ["the"], "constraint": lambda x, n, i: x - torch.inf}, "-inf.*constraint"),
    ]
    for options, facts in wrong:
        with pytest.raises(cwdfm.InputError, match=facts):
            llada.generate(**{"max_new_tokens": 8, **options})
