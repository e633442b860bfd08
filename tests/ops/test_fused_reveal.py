"""Algorithm 1's kernels in Triton's interpreter reveal exactly what the CPU loop reveals.

Run where Triton can be imported: TRITON_INTERPRET=1 pytest this file.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.ops import reveal as launch
from cwdfm.path import algorithm1
from tests.support.cases import slow
from tests.support.kernels import in_both_modes, interpreted

pytestmark = interpreted
LENGTH = 12
WEIGHTS = [
    cwdfm.Neighbor(1, 1.0),
    cwdfm.Neighbor(2, -0.7),
    cwdfm.Neighbor(3, 0.5, "cut"),
    cwdfm.Neighbor(3, 1.0),  # 7 buckets: in registers, like all above
    cwdfm.Neighbor(4, 0.4, "cut"),  # 9 buckets: two chunks, one place unused
    cwdfm.Neighbor(5, 0.3),
    cwdfm.Neighbor(10, -0.2, "cut"),  # the window is longer than the sequence
    cwdfm.Neighbor(1, 1.0, "cut", (3, 4)),
    cwdfm.Neighbor(1, -2.0, "circular", (3, 4)),
    cwdfm.Neighbor(1, 300.0),  # ratios that underflow
    cwdfm.Neighbor(2, -300.0),
]


@pytest.fixture(autouse=True)
def one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sequences in one warp, which the interpreter runs faster than several."""
    monkeypatch.setattr(launch, "PROGRAMS", 1)


def check(weight: cwdfm.Neighbor, start: Tensor, count: Tensor, u: Tensor) -> None:
    before = start.clone()
    tables = algorithm1._tables(weight, start.shape[1], torch.device("cpu"))
    found = launch.reveal(start, count, u, *tables, ascending=weight.scale >= 0)
    assert found.dtype == torch.bool
    assert torch.equal(found, algorithm1.reveal_in_order(weight, start, count, u))
    assert torch.equal((found & ~start).sum(1), count)
    assert torch.equal(start, before)


def example(batch: int, length: int, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """About a fraction `share` of each sequence is revealed; 0 to all draws remain."""
    g = torch.manual_seed(0)
    start = torch.rand(batch, length, generator=g) < share
    masked = (~start).sum(1)
    count = (torch.rand(batch, generator=g, dtype=torch.float64) * (masked + 1)).long()
    count[0], count[-1] = 0, masked[-1]
    return start, count, torch.rand(batch, length, generator=g, dtype=torch.float64)


@pytest.mark.parametrize(
    "weight",
    [
        *WEIGHTS[:1],
        *map(slow, WEIGHTS[1:4:2]),
        *WEIGHTS[2:3],
        *WEIGHTS[4:6],
        slow(WEIGHTS[6]),
        *WEIGHTS[7:],
    ],
    ids=str,
)
def test_any_weight(weight: cwdfm.Neighbor) -> None:
    check(weight, *example(3, LENGTH, 0.2))


@pytest.mark.parametrize(("batch", "programs"), [(1, 1024), (3, 1024), (7, 3), slow(34, 1)])
def test_any_share_of_sequences_and_warps(
    batch: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "PROGRAMS", programs)
    check(cwdfm.Neighbor(1, 1.5), *example(batch, LENGTH, 0.3))


@pytest.mark.parametrize("few", [0, 15])
@pytest.mark.parametrize("radius", [1, slow(4)])
def test_both_kernels(few: int, radius: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long runs, in which neighbors are or become the last of their bucket."""
    monkeypatch.setattr(launch, "MAX_REGISTER_BUCKETS", few)
    for scale in (1.0, -0.5):
        start, _, u = example(2, 12, 0.0)
        check(cwdfm.Neighbor(radius, scale), start, torch.tensor([12, 8]), u)


def test_all_masked_all_revealed_and_no_draws() -> None:
    weight = cwdfm.Neighbor(1, 1.0)
    start, _, u = example(4, LENGTH, 0.0)
    check(weight, start, torch.full((4,), LENGTH), u)
    check(weight, start, torch.zeros(4, dtype=torch.int64), u)
    check(weight, ~start, torch.zeros(4, dtype=torch.int64), u)
    check(weight, start[:0], torch.zeros(0, dtype=torch.int64), u[:0])


def test_rounding_at_the_end_of_the_masses() -> None:
    """The largest and smallest u, which could select a bucket or member past the last."""
    start, _, u = example(2, LENGTH, 0.0)
    u[0], u[1] = 1 - 2.0**-53, 0.0
    for weight in (cwdfm.Neighbor(2, 0.1), cwdfm.Neighbor(2, -0.1)):
        check(weight, start, torch.full((2,), LENGTH), u)


def rounded_past_the_ninth() -> tuple[float, torch.Tensor]:
    """A scale and a u inside the mass of nine members that rounds to a place past the ninth.

    Which scales have one depends on the last bit of exp, in which machines differ.
    """
    zero = torch.tensor(0.0, dtype=torch.float64)
    for hundredths in range(1, 500):
        unit = torch.tensor(-hundredths / 100, dtype=torch.float64).exp()
        u = torch.nextafter(9 * unit / (9 * unit + 2), zero)
        target = u * (9 * unit + 2)
        if target < 9 * unit and target / unit == 9:
            return hundredths / 100, u
    raise AssertionError("no scale rounds so")


@pytest.mark.parametrize("few", [0, 15])
def test_rounding_at_the_end_of_a_bucket(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the nine without a revealed neighbor, the last is drawn and not the next place."""
    monkeypatch.setattr(launch, "MAX_REGISTER_BUCKETS", few)
    scale, u = rounded_past_the_ninth()
    weight, start = cwdfm.Neighbor(1, scale), torch.arange(LENGTH)[None] == 0
    check(weight, start, torch.tensor([1]), u.expand(1, LENGTH))
    found = algorithm1.reveal_in_order(weight, start, torch.tensor([1]), u.expand(1, LENGTH))
    assert not found[0, [1, LENGTH - 1]].any(), "these two have a neighbor"


def test_tensors_that_are_not_contiguous() -> None:
    start, count, u = example(5, LENGTH, 0.2)
    wide = torch.cat([u, u], dim=1)
    check(cwdfm.Neighbor(1, 1.0), start.T.contiguous().T, count.repeat_interleave(2)[::2], wide)
    check(cwdfm.Neighbor(1, 1.0), start, count, u[:, : int(count.max())])


@pytest.mark.parametrize(
    "length", [launch.BLOCK + 100, launch.MAX_INT32_COORDINATES + 1, 2**15 + 1]
)
def test_long_sequences(length: int) -> None:
    """Sorted in several blocks; with 32-bit, 16-bit, and again 32-bit words."""
    start, count, u = example(1, length, 0.998)
    check(cwdfm.Neighbor(1, 1.0, "cut"), start, count.clamp(max=8), u)


@pytest.mark.parametrize("weight", WEIGHTS[1:8:3], ids=str)
def test_narrow_words(weight: cwdfm.Neighbor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MAX_INT32_COORDINATES", 0)
    check(weight, *example(3, LENGTH, 0.2))


def test_more_than_255_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MAX_INT32_COORDINATES", 0)
    start, _, u = example(1, LENGTH, 0.4)
    check(cwdfm.Neighbor(64, 0.1, "cut"), start, torch.tensor([2]), u)


@pytest.mark.parametrize(
    ("length", "with_fixed", "with_index", "dtype"),
    [  # every pair of settings
        slow(1, True, True, torch.float32),
        slow(1, False, False, torch.float64),
        (LENGTH, False, True, torch.float64),
        (LENGTH, True, False, torch.float32),
        (launch.BLOCK + 3, True, True, torch.float64),
        slow(launch.BLOCK + 3, False, False, torch.float32),
    ],
)
def test_counts_and_uniforms_drawn_by_the_kernel(
    length: int, with_fixed: bool, with_index: bool, dtype: torch.dtype
) -> None:
    """Including invalid values, which are rejected only later."""
    kappa = torch.tensor([0.0, 0.3, 1.0, -1.0, 2.0, torch.nan, 0.7], dtype=dtype)
    if length > LENGTH:
        kappa = kappa.clamp(max=0.01)  # fewer draws
    index = torch.tensor([0, 1, 2**32 - 1, 2**32, 2**40 + 7, 2**63 - 1, -3])
    fixed = torch.rand(len(kappa), length, generator=torch.manual_seed(0)) < 0.2
    given: dict[str, Any] = {
        "index": index if with_index else None,
        "fixed": fixed if with_fixed else None,
    }
    weight = cwdfm.Neighbor(1, 1.0, "cut")
    for seed, step in ((0, 0), (2**64 - 1, 2**32 - 1)):
        given |= {"seed": seed, "step": step}
        plain, found = in_both_modes(
            partial(algorithm1.reveal_drawn, weight, kappa, length, **given)
        )
        assert found.dtype == torch.bool
        assert torch.equal(found, plain)


@pytest.mark.parametrize("weight", [*WEIGHTS[:6:2], *map(slow, WEIGHTS[6::2])], ids=str)
def test_drawn_for_any_weight(weight: cwdfm.Neighbor) -> None:
    kappa = torch.tensor([0.5, 0.9, 0.2], dtype=torch.float64).repeat_interleave(2)[::2]
    for kappa_B in (kappa, kappa[:0]):
        given: dict[str, Any] = {"seed": 7, "step": 1, "index": None, "fixed": None}
        draw = partial(algorithm1.reveal_drawn, weight, kappa_B, LENGTH, **given)
        plain, found = in_both_modes(draw)
        assert found.dtype == torch.bool
        assert torch.equal(found, plain)


def test_paths_use_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sequence in a program of its own."""
    monkeypatch.setattr(launch, "PROGRAMS", 1024)
    weight = cwdfm.Neighbor(1, 1.0, "cut")
    path = cwdfm.ContextPath(cwdfm.MaskSource(7), cwdfm.Polynomial(2.0), weight)
    x_1, t = torch.zeros(5, LENGTH, dtype=torch.int64), torch.linspace(0, 1, 5)
    plain, found = in_both_modes(lambda: path.sample(x_1, t, seed=3))
    assert torch.equal(plain.x_t, found.x_t)
    assert torch.equal(plain.revealed, found.revealed)
