"""Logits in doubt: refused by whoever asked for them, later where that may be, never forgotten."""

import pytest
import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.ops import host_copy as told
from cwdfm.ops.host_copy import RangeChecks, doubt, doubting

GOOD, BAD = torch.zeros(3, dtype=torch.bool), torch.tensor([False, True, False])


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a GPU: nothing is there before it is waited for."""

    class Late(told.Told):
        def __init__(self, x: Tensor) -> None:
            super().__init__(x)
            self.waited = False

        @property
        def arrived(self) -> bool:
            return self.waited

        @property
        def value(self) -> Tensor:
            self.waited = True
            return super().value

    monkeypatch.setattr(told, "Told", Late)


def test_what_is_there_is_refused_at_once() -> None:
    with doubting(), pytest.raises(InputError, match="in 1 of 3 rows"):
        doubt(BAD)


@pytest.mark.usefixtures("late")
def test_by_itself_it_waits() -> None:
    doubt(GOOD)
    with pytest.raises(InputError, match="in 1 of 3 rows"):
        doubt(BAD)
    doubt(GOOD)  # and nothing is left over


def ask(*bad: Tensor, then: type[Exception] | None = None) -> int:
    """Draw where logits may be in doubt; how often it went on."""
    went = 0
    with doubting():
        for rows in bad:
            doubt(rows)
            went += 1
        if then is not None:
            raise then
    return went


@pytest.mark.usefixtures("late")
def test_later_where_that_may_be() -> None:
    assert ask(GOOD, GOOD) == 2
    with pytest.raises(InputError, match="in 1 of 3 rows"):
        ask(BAD, GOOD)
    doubt(GOOD)  # and nothing is left over


@pytest.mark.usefixtures("late")
def test_an_error_is_not_hidden_by_a_doubt() -> None:
    with pytest.raises(ZeroDivisionError):
        ask(BAD, then=ZeroDivisionError)
    doubt(GOOD)


@pytest.mark.usefixtures("late")
def test_what_fails_within_does_not_settle_what_is_around() -> None:
    def around() -> None:
        with doubting():
            doubt(BAD)
            with pytest.raises(ZeroDivisionError):
                ask(GOOD, then=ZeroDivisionError)

    with pytest.raises(InputError, match="in 1 of 3 rows"):
        around()


@pytest.mark.parametrize("x", [torch.tensor([[3, -1], [7, 0]]), torch.tensor([0.5, -1.0, 7.0])])
def test_a_range_is_its_least_and_greatest(x: Tensor) -> None:
    seen: list[tuple[float, float]] = []
    RangeChecks(x.device).add(x, lambda low, high: seen.append((low, high)))
    assert seen == [(-1, 7)]  # at once, on a CPU
    assert type(seen[0][0]) is type(x.flatten()[0].item())


def test_a_range_with_nan_is_nan() -> None:
    seen: list[float] = []
    x = torch.tensor([0.5, torch.nan, 1.0])
    RangeChecks(x.device).add(x, lambda low, high: seen.extend((low, high)))
    assert all(value != value for value in seen)
    assert len(seen) == 2


def test_a_range_of_what_needs_gradients() -> None:
    seen: list[float] = []
    checks = RangeChecks(torch.device("cpu"))
    checks.add(torch.ones(3, requires_grad=True), lambda low, high: seen.extend((low, high)))
    checks.launch()
    checks.settle()
    assert seen == [1, 1]
