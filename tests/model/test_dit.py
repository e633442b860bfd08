"""The transformer: exact parameter counts, initial loss, positions, time and attention."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend

import cwdfm
from cwdfm.model import attention
from cwdfm.model.attention import (
    SHORT,
    BlockDiffusionAttention,
    CachedAttention,
    CausalAttention,
    FullAttention,
    KVCache,
)
from cwdfm.model.conditions import ScalarEmbedding
from cwdfm.model.predict import is_split
from cwdfm.model.presets import SIZES, preset
from cwdfm.model.transformer import DiT, DiTConfig
from cwdfm.ops.attention import rotary, rotate
from tests.support import kernels


def parameters(config: DiTConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in DiT(config).parameters())


@pytest.mark.parametrize(
    ("num_tokens", "count"), [(50_258, 169_627_218), (50_257, 169_625_681), (40, 92_442_152)]
)
def test_the_paper_s_parameter_counts(num_tokens: int, count: int) -> None:
    assert parameters(preset("base", num_tokens)) == count


def test_autoregressive_model_has_162_million_weights() -> None:
    ends = 50_258 * (2 * 768 + 1) + 768  # embedding, head with its bias, last norm
    block = 12 * 768 * 768 + 3072 + 3 * 768  # attention and MLP matrices, MLP biases, two norms
    assert ends + 12 * block == 162_246_482
    assert parameters(DiTConfig(50_258, time="none", attention="causal")) == 162_246_482


@pytest.mark.parametrize(
    ("name", "low", "high"), [("4m", 3.4, 4.2), ("17m", 16, 18), ("40m", 39, 44)]
)
def test_smaller_presets(name: str, low: float, high: float) -> None:
    assert low * 1e6 < parameters(preset(name, 34)) < high * 1e6
    assert set(SIZES) == {"debug", "4m", "17m", "40m", "base"}


def perturbed(config: DiTConfig, scale: float = 0.1) -> DiT:
    return kernels.perturbed(config, scale).eval()


SMALL = DiTConfig(num_tokens=11, width=32, depth=2, heads=2, conditioning=16)


def test_first_loss_is_log_v() -> None:
    source, schedule = cwdfm.UniformSource(11), cwdfm.Polynomial(2.0)
    x_1 = torch.randint(0, 11, (8, 12), generator=torch.manual_seed(0))
    batch = cwdfm.MixturePath(source, schedule).sample(x_1, torch.rand(8))
    loss = cwdfm.CrossEntropy()(DiT(SMALL)(batch.x_t, batch.t), batch, schedule)
    assert loss.item() == pytest.approx(math.log(11), abs=1e-6)


def test_head_of_trunk_equals_forward() -> None:
    model = perturbed(SMALL)
    x, t = torch.randint(0, 11, (3, 12)), torch.rand(3)
    assert is_split(model)
    torch.testing.assert_close(model.head(model.trunk(x, t)), model(x, t))
    assert not torch.allclose(model(x, t), model(x, t * 0))  # it depends on the time


def test_time_embedding_has_128_frequencies() -> None:
    """cos and sin of t 10000^(-k / 128), as in MDLM."""
    embedding, features = ScalarEmbedding(4), list[Tensor]()
    embedding.first.register_forward_pre_hook(lambda _, args: features.append(args[0]))
    t = torch.tensor([0.0, 0.3, 1.0])
    embedding(t)
    angle = t.double()[:, None] / 10000.0 ** (torch.arange(128, dtype=torch.float64) / 128)
    torch.testing.assert_close(features[0].double(), torch.cat([angle.cos(), angle.sin()], dim=1))


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("layer", ["out", "down"])
def test_dropout_on_every_residual_branch_in_training_only(block: int, layer: str) -> None:
    """For networks in which a single layer contributes to the residual stream."""
    model = perturbed(replace(SMALL, dropout=0.5))
    for name, parameter in model.named_parameters():
        if {"out", "down"} & {*name.split(".")} and not name.startswith(f"blocks.{block}.{layer}."):
            torch.nn.init.zeros_(parameter)
    x, t = torch.randint(0, 11, (3, 12)), torch.rand(3)
    for mode in (True, False):
        first, second = (model.train(mode).trunk(x, t) for _ in range(2))
        assert torch.equal(first, second) is not mode


@pytest.mark.parametrize(
    "pattern",
    [FullAttention(), CausalAttention(), BlockDiffusionAttention(4), CachedAttention(KVCache(20))],
)
def test_sequence_length_is_one_more_than_the_last_position(
    pattern: attention.AttentionPattern,
) -> None:
    if isinstance(pattern, CachedAttention):
        pattern.cache.start = 5
    assert pattern.sequence_length(8) == int(pattern.position_ids(8, torch.device("cpu")).max()) + 1


@torch.no_grad()
def test_noised_and_clean_tokens_share_learned_positions() -> None:
    model = DiT(replace(SMALL, attention="block", block=4, positions=12))
    assert model(torch.zeros(1, 24, dtype=torch.int64), torch.zeros(1)).shape == (1, 24, 11)
    with pytest.raises(cwdfm.InputError, match=r"12 learned positions.*length 16"):
        model(torch.zeros(1, 32, dtype=torch.int64), torch.zeros(1))


def test_rotation_preserves_norms_and_depends_on_differences_only() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 8)
    rotation = rotary(torch.arange(50), 8)
    spread = rotate(q.expand(50, 8), rotation)
    torch.testing.assert_close(spread.norm(dim=-1), q.norm().expand(50))
    scores = spread @ rotate(k.expand(50, 8), rotation).T
    for offset in (1, 7):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4, rtol=1e-4)


def test_only_learned_positions_break_the_symmetry_of_a_masked_sequence() -> None:
    """With rotary embeddings all positions of a constant sequence have equal outputs."""
    x, t = torch.full((1, 12), 10), torch.zeros(1)
    alike = perturbed(SMALL)(x, t)[0]
    torch.testing.assert_close(alike, alike[:1].expand_as(alike), atol=1e-4, rtol=1e-4)
    different = perturbed(replace(SMALL, positions=12))(x, t)[0]
    assert (different - different[:1]).abs().amax().item() > 0.1


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, time="none", positions=12)], ids=str)
def test_half_precision_without_autocast(config: DiTConfig) -> None:
    """A bfloat16 model matches the float32 model up to rounding."""
    x, t = torch.randint(0, 11, (3, 12), generator=torch.manual_seed(0)), torch.rand(3)
    with torch.no_grad():
        full = perturbed(config).trunk(x, t)
        half = perturbed(config).to(torch.bfloat16).trunk(x, t)
    assert half.dtype == torch.bfloat16
    assert float((half - full).norm()) < 0.03 * float(full.norm())


def test_short_sequences_on_a_gpu_use_the_memory_efficient_kernel() -> None:
    with FakeTensorMode():

        def short(length: int, width: int, dtype: torch.dtype, device: str = "cuda") -> bool:
            return attention._is_short(torch.empty(2, 2, length, width, dtype=dtype, device=device))

        assert short(SHORT, 64, torch.bfloat16)
        assert not short(SHORT + 1, 64, torch.bfloat16)
        assert not short(SHORT, 12, torch.bfloat16)  # not supported by that kernel
        assert short(SHORT, 12, torch.float32)
        assert not short(SHORT, 64, torch.bfloat16, "cpu")


@pytest.mark.parametrize("pattern", [FullAttention(), CausalAttention()], ids=str)
def test_memory_efficient_kernel_matches_the_default(
    pattern: attention.AttentionPattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager, and compiled without a graph break; other calls keep their backends."""
    qkv = torch.randn(3, 2, 4, 9, 8, generator=torch.manual_seed(0))
    mix = pattern.attention_fn(0, 9, qkv.device)
    plain, before = mix(*qkv), enabled()
    inside: list[set[SDPBackend]] = []
    attend: Callable[..., Tensor] = F.scaled_dot_product_attention

    def watched(*args: Tensor, **options: Any) -> Tensor:
        inside.append(enabled())
        return attend(*args, **options)

    monkeypatch.setattr(attention, "_is_short", lambda q: True)
    compiled = torch.compile(mix, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*qkv), plain)
    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    torch.testing.assert_close(mix(*qkv), plain)
    assert inside == [{SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH}]
    assert enabled() == before > inside[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside the compiler
def test_all_graphs_of_a_sampler_stay_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 per block: first or later, eager or captured, for three batch sizes."""
    from torch._dynamo import config
    from torch._dynamo.testing import CompileCounterWithBackend

    model = perturbed(replace(SMALL, time="none"))  # less to compile
    x = torch.randint(0, 11, (8, 12), generator=torch.manual_seed(0))
    counter, real = CompileCounterWithBackend("eager"), torch.compile
    # A dynamic-shape graph would do as well as one for the second size, but compiles more slowly.
    compiler = partial(real, backend=counter, fullgraph=True, dynamic=False)
    monkeypatch.setattr(torch, "compile", compiler)

    def ask(size: int, keeps: bool) -> Tensor:
        # During capture autocast does not cache casts, and compiled code guards on that.
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=keeps):
            return model.trunk(x[:size], torch.full((size,), 0.3))

    arguments = [(size, keeps) for size in (8, 6, 1) for keeps in (True, False)]
    plain = [ask(*how) for how in arguments]
    with config.patch(recompile_limit=8):  # PyTorch's default; restored afterwards
        model.compile_trunk(by_block=True)
        for how, expected in zip(arguments * 2, plain * 2, strict=True):
            assert torch.equal(ask(*how), expected)
        assert counter.frame_count == 12
    with config.patch(recompile_limit=500):
        model.compile_trunk(by_block=True)
        assert config.recompile_limit == 500


def enabled() -> set[SDPBackend]:
    """The enabled attention backends."""
    cuda = torch.backends.cuda
    kinds = {
        SDPBackend.FLASH_ATTENTION: cuda.flash_sdp_enabled(),
        SDPBackend.EFFICIENT_ATTENTION: cuda.mem_efficient_sdp_enabled(),
        SDPBackend.CUDNN_ATTENTION: cuda.cudnn_sdp_enabled(),
        SDPBackend.MATH: cuda.math_sdp_enabled(),
    }
    return {kind for kind, on in kinds.items() if on}


def test_bad_configurations() -> None:
    sizes = ("num_tokens", "width", "depth", "heads", "conditioning", "mlp_ratio")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"width": 30, "heads": 4}, "width 30 with 4 heads"),
        ({"dropout": 1.0}, "dropout"),
        *(({"positions": wrong}, "positions must be an integer >= 0") for wrong in (-1, 8.5, True)),
        *(
            ({name: wrong}, f"{name}.*>= 1, got {wrong}")
            for name in sizes
            for wrong in (0, 1.5, True)
        ),
    ]
    for changes, message in cases:
        with pytest.raises(cwdfm.InputError, match=message):
            replace(SMALL, **changes)
    with pytest.raises(cwdfm.InputError, match="'debug', '4m', '17m', '40m', 'base', got '5m'"):
        preset("5m", 40)
    short = DiT(replace(SMALL, positions=8))
    with pytest.raises(cwdfm.InputError, match=r"8 learned positions.*length 12"):
        short(torch.zeros(1, 12, dtype=torch.int64), torch.zeros(1))


@pytest.mark.parametrize("time", ["given", "zero", "none"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
@torch.no_grad()
def test_two_stage_trunk(time: str, share: float) -> None:
    """At few, most or no coordinates; each sequence at a different time; of one block or two."""
    config = DiTConfig(7, width=16, heads=2, conditioning=8, time=time)  # type: ignore[arg-type]
    for depth in (1, 2):
        model = perturbed(replace(config, depth=depth), 0.3)
        x, t = torch.randint(7, (5, 9)), torch.rand(5)
        place = (torch.rand(x.numel()) < share).nonzero()[:, 0]
        found = model.second_stage(model.first_stage(x, t), place)
        assert found.shape == (len(place), 16)
        whole = model.trunk(x, t).flatten(0, 1)[place]
        torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)


class Silent(DiT):
    """Overrides the trunk."""

    def trunk(self, x_t: Tensor, t: Tensor, attention: Any = None) -> Tensor:
        return super().trunk(x_t, t, attention) * 0


@torch.no_grad()
def test_a_modified_trunk_is_not_split_into_stages() -> None:
    """An overridden trunk, or one with a hook on its last block, is called as a whole."""
    plain = perturbed(DiTConfig(7, width=16, depth=2, heads=2), 0.5)
    silent = Silent(plain.config).eval()
    silent.load_state_dict(plain.state_dict())
    assert plain.two_stage
    assert not silent.two_stage
    arguments = (cwdfm.UniformSource(7), cwdfm.Linear(), cwdfm.Euler())
    shape: dict[str, Any] = {"shape": (20, 9), "steps": 6}
    found = [cwdfm.sample(model, *arguments, **shape).tokens for model in (plain, silent)]
    own = cwdfm.sample(lambda x, t: silent(x, t), *arguments, **shape).tokens
    assert torch.equal(found[1], own)
    assert not torch.equal(found[0], own)
    plain.blocks[-1].register_forward_hook(lambda module, args, out: (out[0] * 0, out[1]))
    assert not plain.two_stage
    hooked = cwdfm.sample(plain, *arguments, **shape).tokens
    assert torch.equal(hooked, cwdfm.sample(lambda x, t: plain(x, t), *arguments, **shape).tokens)


@torch.no_grad()
def test_stages_that_differ_from_the_trunk_are_rejected() -> None:
    class Wrong(DiT):
        def second_stage(self, state: Any, flat_K: Tensor) -> Tensor:
            return super().second_stage(state, flat_K) + 1

    model = Wrong(DiTConfig(7, width=16, depth=2, heads=2)).eval()
    arguments = (cwdfm.UniformSource(7), cwdfm.Linear(), cwdfm.Euler())
    with pytest.raises(cwdfm.InputError, match="set two_stage to False"):
        cwdfm.sample(model, *arguments, shape=(2, 9), steps=3)
