"""The categorical sampler: its law, its nucleus, its precision."""

import numpy as np
import pytest
import torch
from scipy import stats

from cwdfm.ops import categorical
from cwdfm.ops.categorical import nucleus, sample_categorical
from cwdfm.ops.random import Purpose, uniform
from tests.support.cases import slow
from tests.support.stats import assert_follows


def draw(logits: torch.Tensor, n: int, **settings: float) -> np.ndarray:
    u = uniform(0, Purpose.PROPOSAL, torch.arange(n), 0, torch.zeros(n, dtype=torch.int64))
    ids = sample_categorical(logits.expand(n, -1), u, **settings)  # type: ignore[arg-type]
    return np.bincount(ids.numpy(), minlength=len(logits))


def test_law_temperature_and_excluded_tokens() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, -torch.inf, 0.0])
    for temperature in (0.5, 1.0, 2.0):
        p = (logits.double() / temperature).softmax(0).numpy()
        assert_follows(draw(logits, 200_000, temperature=temperature), p)


def test_nucleus_keeps_the_crossing_token() -> None:
    p = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    assert nucleus(p, 0.69).tolist() == [[False, True, False, True], [True, True, True, False]]
    assert nucleus(p, 0.71).tolist() == [[False, True, True, True], [True, True, True, False]]
    assert nucleus(p, 1e-9).sum(1).tolist() == [1, 1]
    # masses need not be normalized
    assert torch.equal(nucleus(p * 17, 0.69), nucleus(p, 0.69))
    law = np.array([0, 0.4, 0, 0.3]) / 0.7
    assert_follows(draw(p[0].log(), 100_000, top_p=0.69), law)


def by_definition(p: torch.Tensor, top_p: float) -> torch.Tensor:
    """Sort everything; keep a token if less than top_p of the total precedes it."""
    masses, order = p.sort(dim=-1, descending=True, stable=True)
    reached = masses.cumsum(dim=-1)
    return torch.zeros(p.shape, dtype=torch.bool).scatter(
        -1, order, reached - masses < top_p * reached[:, -1:]
    )


def masses(kind: str, vocab: int) -> torch.Tensor:
    g = torch.manual_seed(vocab)
    z = torch.randn(12, vocab, generator=g) * torch.logspace(-2, 1.3, 12)[:, None]
    if kind == "ties":
        z = (z * 4).round() / 4
    elif kind == "half precision":
        z = z.bfloat16().float()
    elif kind == "excluded":
        z[torch.rand(z.shape, generator=g) < 0.7] = -torch.inf
        z[:, 0] = 0.0
    elif kind == "equal":
        z = torch.zeros_like(z)
    elif kind == "alone":
        z = torch.full_like(z, -torch.inf)
        z[torch.arange(12), torch.arange(12) % vocab] = 0.0
    elif kind == "powers of two":  # all sums are exact, so some equal the limit
        return 2.0 ** -torch.randint(0, 12, z.shape, generator=g)
    return (z - z.amax(-1, keepdim=True)).exp()


KINDS = ["normal", "ties", "half precision", "excluded", "equal", "powers of two", "alone"]
TOP_P = [1e-9, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.999, 1 - 1e-6, 1 - 1e-7, 1 - 1e-12]


@pytest.mark.parametrize("vocab", [2, 3, 700, 1025, slow(5_000)])
@pytest.mark.parametrize("kind", KINDS)
def test_nucleus_matches_the_sorted_one(kind: str, vocab: int) -> None:
    p = masses(kind, vocab)
    for top_p in TOP_P:
        for scaled in (p, p * 17, p * 1e30, p * 1e-30, p.double()):
            assert torch.equal(nucleus(scaled, top_p), by_definition(scaled, top_p)), top_p


def test_nucleus_matches_the_sorted_one_where_rounding_decides() -> None:
    """top_p equals the mass of the first k tokens up to a bit or two, so whether the next belongs
    to them depends on the order in which float64 masses are summed."""
    p = masses("normal", 1_025).double()[:1]
    share = p[0].sort(descending=True).values.cumsum(0) / p.sum()
    for k in range(0, 1_000, 10):
        for bit in (-1, 0, 1):
            top_p = float(share[k]) * (1 + bit * 2.0**-52)
            assert torch.equal(nucleus(p, top_p), by_definition(p, top_p))


def test_nucleus_of_invalid_masses_matches_the_sorted_one() -> None:
    p = masses("normal", 5_000)
    p[0, 7], p[1, 7], p[2], p[3, 7] = torch.nan, torch.inf, 0.0, -torch.nan
    p[4, 1::2] = -0.0
    for top_p in TOP_P:
        assert torch.equal(nucleus(p, top_p), by_definition(p, top_p))
        assert torch.equal(nucleus(p[:0], top_p), by_definition(p[:0], top_p))


def test_nucleus_rarely_sorts_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2's vocabulary in several chunks, with peaked and flat rows."""
    whole: list[int] = []
    plain = categorical._nucleus_by_sort

    def counted(p: torch.Tensor, top_p: float) -> torch.Tensor:
        whole.append(len(p))
        return plain(p, top_p)

    monkeypatch.setattr(categorical, "_nucleus_by_sort", counted)
    g = torch.manual_seed(0)
    z = torch.randn(64, 50_257, generator=g) * torch.logspace(-1, 1, 64)[:, None]
    p = (z - z.amax(-1, keepdim=True)).exp()
    for top_p in (0.5, 0.9, 0.99):
        assert torch.equal(nucleus(p, top_p), by_definition(p, top_p))
    assert sum(whole) < 10


def test_float64_reaches_tails_that_float32_cuts_off() -> None:
    """u near 1 - 2^-30 must reach a token of mass 2^-29; a float32 uniform cannot."""
    logits = torch.tensor([[0.0, -29 * np.log(2.0)]], dtype=torch.float64)
    u = torch.tensor([1 - 2.0**-31], dtype=torch.float64)
    assert sample_categorical(logits, u).tolist() == [1]
    assert sample_categorical(logits, u, dtype=torch.float32).tolist() == [0]


def test_ends_of_the_unit_interval_stay_in_the_support() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    for u, expected in [(0.0, 1), (1 - 2.0**-53, 2)]:
        for dtype in (torch.float32, torch.float64):
            draw_u = torch.tensor([u], dtype=torch.float64)
            assert sample_categorical(logits, draw_u, dtype=dtype).tolist() == [expected]


def test_large_vocabulary_against_multinomial_law() -> None:
    logits = torch.randn(50_257, generator=torch.manual_seed(0)) * 3
    draws = 1_000
    counts = draw(logits, draws)
    p = logits.double().softmax(0).numpy()
    top = np.argsort(-p)[:50]
    assert_follows(
        np.append(counts[top], draws - counts[top].sum()), np.append(p[top], 1 - p[top].sum())
    )
    assert stats.entropy(counts / draws) > 0


def test_tiny_temperature_is_greedy_and_finite() -> None:
    logits = torch.tensor([100.0, 101.0, -100.0])
    assert draw(logits, 1000, temperature=1e-4).tolist() == [0, 1000, 0]
