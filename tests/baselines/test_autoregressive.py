"""Autoregressive models: exact likelihoods, the distribution of samples, input errors.

Tests of a distribution have a false-alarm rate of 1e-6 (`tests.support.stats`).
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive, LeftToRight, NextToken
from cwdfm.likelihood.bound import Bound
from cwdfm.method.base import DataBatch, SampleRequest
from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.ops import dispatch
from cwdfm.ops.categorical import nucleus
from cwdfm.ops.head_draw import head_draw
from tests.support.cases import slow
from tests.support.gpu import COMPILED
from tests.support.kernels import interpreted, perturbed
from tests.support.stats import assert_differs, assert_follows, histogram

VOCAB, LENGTH = 7, 9
METHOD = Autoregressive(VOCAB)
SMALL = DiTConfig(num_tokens=1, width=16, depth=2, heads=2, dropout=0.1)


def network(method: Autoregressive = METHOD, scale: float = 0.3, **changes: Any) -> DiT:
    """A float64 model with random weights, whose predictions are far from uniform."""
    return perturbed(replace(method.network(SMALL), **changes), scale).double()


def rows(count: int, length: int = LENGTH, vocab: int = VOCAB) -> Tensor:
    return torch.randint(0, vocab, (count, length), generator=torch.manual_seed(1))


def loss(model: DiT, x_1: Tensor, fixed: Tensor | None = None, vocab: int = VOCAB) -> Tensor:
    fixed = torch.zeros_like(x_1, dtype=torch.bool) if fixed is None else fixed
    t, index = torch.zeros(len(x_1)), torch.arange(len(x_1))
    return NextToken(vocab)(model, DataBatch(x_1, t, fixed, index, seed=0, step=0))


def draw(model: DiT, solver: Any = None, **changes: Any) -> cwdfm.Samples:
    return METHOD.sample(
        model, solver, SampleRequest(**{"shape": (12, LENGTH), "steps": 3, **changes})
    )


def brute(model: DiT, x_1: Tensor, vocab: int = VOCAB) -> Tensor:
    """log p(x_k | x_<k) [B, N], each from a separate call on its prefix."""
    terms = []
    for k in range(x_1.shape[1]):
        start = torch.full((len(x_1), 1), vocab)
        logits = model(torch.cat([start, x_1[:, :k]], 1), torch.zeros(len(x_1)))[:, -1, :vocab]
        terms.append(logits.log_softmax(-1).gather(1, x_1[:, k : k + 1])[:, 0])
    return torch.stack(terms, 1)


# --- likelihood and loss ---


def test_likelihood_is_the_product_over_prefixes() -> None:
    model, x_1 = network().eval(), rows(10)
    expected = -brute(model, x_1).sum(1).detach()
    bound = METHOD.likelihood(model.train(), x_1, batch_size=4)
    torch.testing.assert_close(bound.nats_B, expected, rtol=0, atol=1e-10)
    assert bound.exact
    assert bound.standard_error == 0
    assert bound.tokens == 10 * LENGTH
    assert bound.nats_per_token == pytest.approx(float(expected.sum()) / bound.tokens, abs=1e-12)
    assert model.training, "the mode was not put back"
    assert not Bound(1.0, 0.1, expected, 10).exact


def test_likelihood_is_conditioned_on_the_prompt() -> None:
    model, x_1 = network().eval(), rows(4)
    fixed = torch.arange(LENGTH) < torch.tensor([0, 1, 5, LENGTH])[:, None]
    terms = brute(model, x_1).detach().masked_fill(fixed, 0.0)
    bound = METHOD.likelihood(model, x_1, fixed=fixed, batch_size=1)
    torch.testing.assert_close(bound.nats_B, -terms.sum(1), rtol=0, atol=1e-10)
    assert bound.tokens == int((~fixed).sum())
    # a different fixed token changes the likelihood of the rest
    other = x_1.clone()
    other[2, 0] = (other[2, 0] + 1) % VOCAB
    assert METHOD.likelihood(model, other, fixed=fixed).nats_B[2] != bound.nats_B[2]
    assert loss(model, x_1, fixed).item() == pytest.approx(bound.nats_per_token, abs=1e-12)


def test_loss_is_the_mean_likelihood_with_the_same_gradient() -> None:
    model, x_1 = network().eval(), rows(6)
    value = loss(model, x_1)
    assert value.item() == pytest.approx(METHOD.likelihood(model, x_1).nats_per_token, abs=1e-12)
    parameters = list(model.parameters())
    plain = torch.autograd.grad(-brute(model, x_1).mean(), parameters)
    for one, other in zip(torch.autograd.grad(value, parameters), plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_initial_loss_is_log_v_without_the_start_token() -> None:
    model = DiT(METHOD.network(SMALL))
    assert model.config.num_tokens == VOCAB + 1
    assert loss(model, rows(5)).item() == pytest.approx(math.log(VOCAB), abs=1e-6)
    with torch.no_grad():
        model.readout.bias[VOCAB] = 50.0
    assert loss(model, rows(5)).item() == pytest.approx(math.log(VOCAB), abs=1e-6)
    bound = METHOD.likelihood(model, rows(5))
    assert bound.nats_per_token == pytest.approx(math.log(VOCAB), abs=1e-6)
    assert int(draw(model).tokens.max()) < VOCAB
    assert int(draw(model, LeftToRight(top_p=0.9, cached=False)).tokens.max()) < VOCAB


def test_network_config() -> None:
    config = METHOD.network(preset("debug", 99))
    assert (config.num_tokens, config.attention, config.time) == (VOCAB + 1, "causal", "none")
    assert METHOD.num_tokens == VOCAB + 1


def test_training_lowers_the_loss() -> None:
    """Sequences that count up: the first token is random and determines the rest."""
    torch.manual_seed(0)
    model = DiT(METHOD.network(preset("debug", 1)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = torch.arange(VOCAB).repeat(4)
    x_1 = (first[:, None] + torch.arange(LENGTH)) % VOCAB
    for _ in range(60):
        optimiser.zero_grad()
        loss(model, x_1).backward()
        optimiser.step()
    entropy = math.log(VOCAB) / LENGTH
    trained = METHOD.likelihood(model, x_1).nats_per_token
    assert entropy - 1e-6 < trained < entropy + 0.1
    tokens = draw(model, shape=(50, LENGTH)).tokens
    assert float(((tokens[:, 1:] - tokens[:, :-1]) % VOCAB == 1).double().mean()) > 0.9


def test_agrees_with_gpt_neox() -> None:
    """An independent implementation with the same weights computes the same function."""
    import transformers

    library: Any = transformers

    model, x_1 = network(width=32, depth=3, heads=4), rows(6, 20)
    with torch.no_grad():
        model.readout.bias.zero_()
    config = library.GPTNeoXConfig(
        vocab_size=VOCAB + 1,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_act="gelu_pytorch_tanh",
        use_parallel_residual=False,
        attention_bias=False,
        rotary_pct=1.0,
    )
    twin = library.GPTNeoXForCausalLM(config).double().eval()
    state = {
        "embed_in.weight": model.embedding,
        "final_layer_norm.weight": model.norm.weight,
        "final_layer_norm.bias": torch.zeros(32),
    }
    for i, block in enumerate(model.blocks):
        at = f"layers.{i}."
        qkv = block.get_parameter("qkv.weight")
        # our rows are (q, k, v) x heads, theirs are heads x (q, k, v)
        state[at + "attention.query_key_value.weight"] = (
            qkv.view(3, 4, 8, 32).transpose(0, 1).reshape(96, 32)
        )
        state[at + "attention.dense.weight"] = block.get_parameter("out.weight")
        for here, there in (("norm1", "input_layernorm"), ("norm2", "post_attention_layernorm")):
            state[at + f"{there}.weight"] = block.get_parameter(f"{here}.weight")
            state[at + f"{there}.bias"] = torch.zeros(32)
        for here, there in (("up", "dense_h_to_4h"), ("down", "dense_4h_to_h")):
            for kind in ("weight", "bias"):
                state[at + f"mlp.{there}.{kind}"] = block.get_parameter(f"{here}.{kind}")
    twin.gpt_neox.load_state_dict({name: value.detach() for name, value in state.items()})
    twin.get_output_embeddings().weight.data.copy_(model.readout.weight.data)

    model.eval()
    read = torch.cat([torch.full((6, 1), VOCAB), x_1[:, :-1]], 1)
    with torch.no_grad():
        theirs = twin(input_ids=read, use_cache=False).logits
        torch.testing.assert_close(model(read, torch.zeros(6)), theirs, rtol=0, atol=1e-9)
    log_p = theirs[..., :VOCAB].log_softmax(-1).gather(-1, x_1[..., None])[..., 0]
    bound = METHOD.likelihood(model, x_1)
    torch.testing.assert_close(bound.nats_B, -log_p.sum(1), rtol=0, atol=1e-9)
    # control: parallel residuals are a different function
    twin.config.use_parallel_residual = True
    for layer in twin.gpt_neox.layers:
        layer.use_parallel_residual = True
    with torch.no_grad():
        other = twin(input_ids=read, use_cache=False).logits
    assert float((other - theirs).abs().max()) > 0.1


# --- samples ---

TINY = Autoregressive(3)
SEQUENCES = torch.tensor(list(itertools.product(range(3), repeat=3)))


def tiny(solver: LeftToRight | None = None, count: int = 10_000, **changes: Any) -> Any:
    asked = SampleRequest(
        **{"shape": (count, 3), "steps": 1, "batch_size": 3_000, "seed": 3, **changes}
    )
    return histogram(TINY.sample(network(TINY), solver, asked).tokens, 3)


def tiny_law(temperature: float = 1.0, top_p: float = 1.0) -> Any:
    """All 27 probabilities, by brute force from the logits of each prefix."""
    model = network(TINY).eval()
    law = torch.ones(27, dtype=torch.float64)
    for k in range(3):
        read = torch.cat([torch.full((27, 1), 3), SEQUENCES[:, :k]], 1)
        with torch.no_grad():
            p = (model(read, torch.zeros(27))[:, -1, :3] / temperature).softmax(-1)
        p = p * nucleus(p, top_p) if top_p < 1 else p
        law *= (p / p.sum(-1, keepdim=True)).gather(1, SEQUENCES[:, k : k + 1])[:, 0]
    return law.numpy()


def test_samples_follow_the_exact_distribution() -> None:
    exact = np.exp(-TINY.likelihood(network(TINY), SEQUENCES).nats_B.numpy())
    assert exact.sum() == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(exact, tiny_law(), rtol=0, atol=1e-12)
    counts = tiny()
    assert_follows(counts, exact)
    assert_follows(tiny(LeftToRight(cached=False)), exact)
    assert_differs(counts, np.full(27, 1 / 27))


@pytest.mark.parametrize(("temperature", "top_p"), [(0.6, 1.0), (1.5, 1.0), (1.0, 0.7), (1.3, 0.8)])
def test_temperature_and_nucleus(temperature: float, top_p: float) -> None:
    counts = tiny(LeftToRight(temperature=temperature, top_p=top_p))
    assert_follows(counts, tiny_law(temperature, top_p))
    assert_differs(counts, tiny_law())


def test_prompt_gives_the_conditional_distribution() -> None:
    prompt, fixed = torch.tensor([2, 0, 0]), torch.tensor([True, False, False])
    counts = tiny(prompt=prompt, fixed=fixed)
    exact = np.exp(-TINY.likelihood(network(TINY), SEQUENCES).nats_B.numpy())
    exact[:18] = 0
    assert_follows(counts, exact / exact.sum())
    # with a banned token: the distribution of the others, renormalized token by token
    law = tiny_law()
    banned = tiny(banned_tokens=(1,))
    assert_differs(banned, law)
    assert banned[(SEQUENCES == 1).any(1).numpy()].sum() == 0


# Twelve prompts, from no tokens to a whole sequence.
PROMPT = rows(12)
FIXED = torch.arange(LENGTH) < torch.tensor([2, 3, 5, 2, 9, 4] * 2)[:, None]
GIVEN: tuple[dict[str, Any], ...] = ({}, {"prompt": PROMPT, "fixed": FIXED})


HALF = LeftToRight(temperature=0.7, top_p=0.8, dtype=torch.float32)


@pytest.mark.parametrize("solver", [HALF, slow(LeftToRight())], ids=str)
def test_samples_do_not_depend_on_cache_and_batch_size(solver: LeftToRight) -> None:
    model = network()
    plain = replace(solver, cached=False)
    for given in GIVEN:
        out = draw(model, solver, **given)
        assert torch.equal(out.tokens, draw(model, plain, **given).tokens)
        for size in (1, 5):
            part = draw(model, solver, batch_size=size, **given)
            assert torch.equal(out.tokens, part.tokens)
            assert torch.equal(out.evaluations, part.evaluations)
        assert not torch.equal(out.tokens, draw(model, solver, seed=1, **given).tokens)
    few = draw(model, solver, shape=(3, LENGTH), index=torch.tensor([4, 0, 11])).tokens
    assert torch.equal(few, draw(model, solver).tokens[[4, 0, 11]])
    assert model.training


def test_prompts_are_kept_and_evaluations_counted() -> None:
    prompt, fixed = PROMPT, FIXED
    out = draw(network(), prompt=prompt, fixed=fixed)
    assert torch.equal(out.tokens[fixed], prompt[fixed])
    assert torch.equal(out.updates, (~fixed).int())
    assert int(out.loops.sum()) == 0
    assert torch.equal(out.evaluations, (~fixed).sum(1))
    assert out.logit_evaluations == int((~fixed).sum())
    # the start token marks free positions
    marked = torch.where(fixed, prompt, VOCAB)
    assert torch.equal(draw(network(), prompt=marked).tokens, out.tokens)


def test_cache_evaluates_every_token_once_and_a_prompt_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, calls = network(), []
    trunk = model.trunk

    def counted(x: Tensor, *rest: Any) -> Tensor:
        calls.append(x.shape[1])
        return trunk(x, *rest)

    monkeypatch.setattr(model, "trunk", counted)
    draw(model, prompt=rows(1)[0], fixed=torch.arange(LENGTH) < 4)
    assert calls == [5, 1, 1, 1, 1]


@pytest.mark.parametrize("steps", [1, 4, 9, 100])
def test_progress_adds_up_to_the_requested_steps(steps: int) -> None:
    for given in GIVEN:
        ticks: list[int] = []
        draw(network(), steps=steps, progress=ticks.append, batch_size=5, **given)
        assert sum(ticks) == 12 * steps
        assert min(ticks) > 0


def test_length_is_limited_by_learned_positions() -> None:
    assert draw(network(), shape=(2, 50)).tokens.shape == (2, 50)
    learned = network(positions=LENGTH)
    assert torch.equal(draw(learned).tokens, draw(learned, LeftToRight(cached=False)).tokens)
    METHOD.likelihood(learned, rows(2))
    for call in (
        lambda: draw(learned, shape=(2, LENGTH + 1)),
        lambda: METHOD.likelihood(learned, rows(2, LENGTH + 1)),
    ):
        with pytest.raises(cwdfm.InputError, match=r"9 learned positions.* 10 tokens"):
            call()


def test_compiled_model_is_not_recompiled_for_every_token() -> None:
    model = network()
    expected = draw(model).tokens
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    for block in model.blocks:
        block.forward = torch.compile(block.forward, backend=backend)
    assert torch.equal(draw(model).tokens, expected)
    assert not graphs


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=interpreted), pytest.param("cuda", marks=COMPILED)]
)
def test_fused_draws_equal_unfused_draws(
    device: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A float32 model with 72 free tokens: a draw within rounding of a boundary is unlikely."""
    if device == "cpu":
        request.getfixturevalue("plain_norms")
        request.getfixturevalue("plain_rotations")
    model = network().float().to(device)
    calls = []

    def counted(hidden: Tensor, *rest: Any, **options: Any) -> Any:
        calls.append(len(hidden))
        return head_draw(hidden, *rest, **options)

    monkeypatch.setattr("cwdfm.baselines.autoregressive.head_draw", counted)
    solvers = (LeftToRight(), LeftToRight(temperature=0.7), LeftToRight(cached=False))
    every = list(itertools.product(GIVEN, solvers))
    for given, solver in every[:: 1 if device == "cuda" else 5]:  # the interpreter is slow
        monkeypatch.setattr(dispatch, "MODE", "on")
        calls.clear()
        fused = draw(model, solver, **given).tokens
        assert len(calls) == LENGTH - (2 if given else 0)
        monkeypatch.setattr(dispatch, "MODE", "off")
        assert torch.equal(fused, draw(model, solver, **given).tokens)
    monkeypatch.setattr(dispatch, "MODE", "on")
    calls.clear()
    draw(model, LeftToRight(top_p=0.9))
    draw(model, banned_tokens=(1,))
    assert not calls


# --- input errors ---


def test_fixed_tokens_must_be_a_prefix() -> None:
    fixed = torch.zeros(LENGTH, dtype=torch.bool)
    fixed[[0, 1, 4]] = True
    with pytest.raises(cwdfm.InputError, match=r"position 4 of sequence 0 is fixed and position 3"):
        draw(network(), prompt=rows(1)[0], fixed=fixed)
    with pytest.raises(cwdfm.InputError, match="position 4 of sequence 0"):
        METHOD.likelihood(network(), rows(3), fixed=fixed.expand(3, -1))


@pytest.mark.parametrize("solver", [cwdfm.Euler(), cwdfm.Euler(weight=cwdfm.Neighbor(1, 4.0))])
def test_other_solvers_are_rejected(solver: cwdfm.Solver) -> None:
    with pytest.raises(
        cwdfm.InputError,
        match=r"Euler.* cannot sample from Autoregressive: .*no rates.*use LeftToRight\(\)",
    ):
        draw(network(), solver)


def test_bad_input() -> None:
    model = network()
    whole = torch.ones(LENGTH, dtype=torch.bool)
    calls: dict[str, Callable[[], object]] = {
        "temperature": lambda: LeftToRight(temperature=-1.0),
        "top_p": lambda: LeftToRight(top_p=1.5),
        "dtype": lambda: LeftToRight(dtype=torch.float16),
        "vocab_size": lambda: Autoregressive(1),
        "data tokens .*got 0": lambda: NextToken(0),
        "needs causal attention, got attention='full'": lambda: draw(network(attention="full")),
        "causal attention": lambda: METHOD.likelihood(network(attention="full"), rows(2)),
        "batch_size": lambda: draw(model, batch_size=0),
        "length must": lambda: draw(model, shape=(3, 0)),
        "all positions are fixed": lambda: draw(model, prompt=rows(1)[0], fixed=whole),
        "seed": lambda: draw(model, seed=-1),
        "all -inf": lambda: draw(model, banned_tokens=tuple(range(VOCAB))),
        "a cache needs a DiT": lambda: METHOD.sample(
            torch.nn.Linear(1, 1), None, SampleRequest(shape=(1, 2), steps=1)
        ),
    }
    for match, call in calls.items():
        with pytest.raises(cwdfm.InputError, match=match):
            call()


class Bigram(torch.nn.Module):
    """A model that is not a transformer."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.randn(VOCAB + 1, VOCAB + 1, generator=torch.manual_seed(0))
        self.table = torch.nn.Parameter(table.double())

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return F.embedding(x, self.table)


def test_any_callable_works_without_a_cache() -> None:
    model = Bigram()
    asked = SampleRequest(shape=(5, LENGTH), steps=1)
    tokens = METHOD.sample(model, LeftToRight(cached=False, temperature=1e-6), asked).tokens
    step = model.table[:, :VOCAB].argmax(-1)
    assert torch.equal(tokens[:, 0], step[VOCAB].expand(5))
    assert torch.equal(tokens[:, 1:], step[tokens[:, :-1]])
    assert METHOD.likelihood(model, tokens).exact
