"""The methods of a trained model, against the functions and tensors that they stand for."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.data.text.row_tokenizer import RowTokenizer
from cwdfm.data.text.tokenizer import ByteTokenizer
from cwdfm.likelihood.bound import Bound
from cwdfm.method import Flow
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.pretrained.model import Pretrained, load_trained

MOLECULES = ["CCO", "c1ccccc1", "CC(=O)N"]


@pytest.fixture(scope="module")
def molecules() -> Pretrained:
    return load_trained("qm9-mask-small")


@pytest.fixture(scope="module")
def texts() -> Pretrained:
    torch.manual_seed(0)
    source = cwdfm.MaskSource(ByteTokenizer().vocab_size)
    network = DiT(DiTConfig(source.num_tokens, width=16, depth=1, heads=2, conditioning=8)).eval()
    torch.nn.init.normal_(network.readout.weight)
    return Pretrained(network, Flow(source, cwdfm.Linear()), ByteTokenizer(), length=8)


def test_generate_by_method_name_and_default(molecules: Pretrained) -> None:
    by_name = molecules.generate("neighbor", n=3, steps=8)
    solver = cwdfm.Euler(cwdfm.Neighbor(1, 4.0))
    by_object = cwdfm.generate(molecules, solver, n=3, steps=8)
    assert torch.equal(by_name.tokens, by_object.tokens)
    assert by_name.texts == [molecules.tokenizer.decode(row) for row in by_name.tokens.tolist()]
    assert molecules.generate(steps=1).tokens.shape == (16, molecules.length)
    assert molecules.to("cpu") is molecules
    template = molecules.generate(n=2, steps=2, template="c1ccccc1**")
    assert template.fixed is not None
    assert (~template.fixed).sum(1).tolist() == [2, 2]


def test_the_least_random_draws_are_the_mode(texts: Pretrained) -> None:
    """With one step every token is the most likely one of the fully masked sequence."""
    source = texts.source
    noise = torch.full((1, 8), source.num_tokens - 1)
    with torch.no_grad():
        logits = texts.model(noise, torch.zeros(1))[..., : source.vocab_size]
    for solver in (None, "confidence", cwdfm.Euler(top_p=0.5)):
        for draws in ({"temperature": 0}, {"top_p": 1e-6}):
            out = texts.generate(solver, n=4, steps=1, seed=5, **draws)
            assert torch.equal(out.tokens, logits.argmax(-1).expand(4, 8))


def test_a_list_of_prompts_gives_one_sample_each(molecules: Pretrained) -> None:
    prompts = ["CC", "c1ccccc1", "N"]
    out = molecules.generate("neighbor", prompt=prompts, steps=8, batch_size=2)
    for i, prompt in enumerate(prompts):
        index = torch.tensor([i])
        alone = molecules.generate("neighbor", prompt=prompt, steps=8, n=1, index=index)
        assert torch.equal(alone.tokens[0], out.tokens[i])


def test_likelihood_of_molecules_is_the_bound_of_packed_tokens(molecules: Pretrained) -> None:
    words: Any = molecules.tokenizer
    x_1 = torch.tensor([words.pack(words.encode(text), molecules.length) for text in MOLECULES])
    found = molecules.likelihood(MOLECULES, draws=8, seed=3)
    assert math.isclose(found.nats_per_token, bound(molecules, x_1).nats_per_token, rel_tol=1e-6)
    assert (found.sequences, found.tokens) == (3, 3 * (molecules.length - 1))
    with pytest.warns(UserWarning, match="trained on sequences of 32"):
        bound(molecules, x_1[:, 1:12])


def bound(trained: Pretrained, x_1: Tensor) -> Bound:
    fixed = torch.zeros_like(x_1, dtype=torch.bool)
    fixed[:, 0] = trained.fix_first
    network = (trained.model, trained.source, trained.schedule)
    return cwdfm.elbo(*network, x_1, draws=8, seed=3, fixed=fixed)


def test_likelihood_of_texts_is_that_of_one_stream(texts: Pretrained) -> None:
    """Eleven bytes and the end of text fill 12 of 16 places; the others are given."""
    end = ByteTokenizer().eos_id
    stream = [*b"hello ", *b"world", end]
    rows, padding = texts.tokenizer.layout(["hello world"], 8)
    assert rows == [stream[:8], stream[8:] + [end] * 4]
    assert padding == 4
    x_1 = torch.tensor(rows)
    fixed = torch.zeros_like(x_1, dtype=torch.bool)
    fixed[1, 4:] = True
    network = (texts.model, texts.source, texts.schedule)
    expected = cwdfm.elbo(*network, x_1, draws=8, seed=3, fixed=fixed)
    found = texts.likelihood(["hello world"], draws=8, seed=3)
    assert math.isclose(found.nats_per_token, expected.nats_per_token, rel_tol=1e-6)
    assert found.tokens == 12


def test_rows_have_a_sequence_each() -> None:
    words = RowTokenizer(ByteTokenizer())
    end = words.eos_id
    assert words.layout(["ab", "c"], 4) == ([[*b"ab", end, end], [*b"c", end, end, end]], 0)
    with pytest.raises(cwdfm.InputError):
        words.layout(["abcd"], 4)


def test_wrong_arguments(molecules: Pretrained) -> None:
    untyped: Any = molecules
    source: Any = molecules.source
    untyped_words: Any = SimpleNamespace(encode=list, decode="".join, vocab_size=5)
    for call in (
        lambda: untyped.generate("nieghbor", n=1, steps=1),
        lambda: untyped.generate(n=0),
        lambda: untyped.generate(steps="many"),
        lambda: untyped.generate(n=1, steps=1, temperature=-1),
        lambda: untyped.generate(n=1, steps=1, temperature=True),
        lambda: untyped.generate(n=1, steps=1, max_new_tokens=4),
        lambda: untyped.generate(n=3, steps=1, prompt=["C", "N"]),
        lambda: untyped.generate(steps=1, prompt=[]),
        lambda: untyped.generate(steps=1, prompt=5),
        lambda: untyped.generate("neighbor", n=1, steps=1, radius=2),
        lambda: replace(molecules, tokenizer=untyped_words),
        lambda: replace(molecules, tokenizer=ByteTokenizer()),
        lambda: replace(molecules, method=source),
        lambda: untyped.likelihood("CCO"),
        lambda: untyped.likelihood([]),
        lambda: untyped.likelihood(["C" * 99]),
        lambda: untyped.to("gpu"),
        lambda: untyped.save_pretrained("unused", dtype=torch.int8),
        lambda: cwdfm.make_solver("neighbor", beta=3.0),
        lambda: cwdfm.sample(molecules.model, molecules.source, molecules.schedule, cwdfm.Euler(),
                             shape=(1, 4), steps=1).texts,
    ):  # fmt: skip
        with pytest.raises(cwdfm.InputError):
            call()
