"""Deferred checks of logits and of value ranges."""

import pytest
import torch
from torch import Tensor

from cwdfm.errors import InputError
from cwdfm.ops import host_copy
from cwdfm.ops.host_copy import RangeChecks, check_rows, deferred_checks

GOOD, BAD = torch.zeros(3, dtype=torch.bool), torch.tensor([False, True, False])


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies complete only when waited for, as from a GPU."""

    class Late(host_copy.HostCopy):
        def __init__(self, x: Tensor) -> None:
            super().__init__(x)
            self.waited = False

        @property
        def ready(self) -> bool:
            return self.waited

        @property
        def value(self) -> Tensor:
            self.waited = True
            return super().value

    monkeypatch.setattr(host_copy, "HostCopy", Late)


def test_a_completed_copy_is_checked_immediately() -> None:
    with deferred_checks(), pytest.raises(InputError, match="in 1 of 3 rows"):
        check_rows(BAD)


@pytest.mark.usefixtures("late")
def test_outside_the_context_the_check_waits() -> None:
    check_rows(GOOD)
    with pytest.raises(InputError, match="in 1 of 3 rows"):
        check_rows(BAD)
    check_rows(GOOD)  # nothing is left pending


def check_all(*bad: Tensor, then: type[Exception] | None = None) -> int:
    """Check rows inside `deferred_checks`; the number of checks that returned."""
    count = 0
    with deferred_checks():
        for rows in bad:
            check_rows(rows)
            count += 1
        if then is not None:
            raise then
    return count


@pytest.mark.usefixtures("late")
def test_inside_the_context_the_check_is_deferred() -> None:
    assert check_all(GOOD, GOOD) == 2
    with pytest.raises(InputError, match="in 1 of 3 rows"):
        check_all(BAD, GOOD)
    check_rows(GOOD)  # nothing is left pending


@pytest.mark.usefixtures("late")
def test_a_pending_check_does_not_hide_another_error() -> None:
    with pytest.raises(ZeroDivisionError):
        check_all(BAD, then=ZeroDivisionError)
    check_rows(GOOD)


@pytest.mark.usefixtures("late")
def test_a_failing_inner_context_leaves_the_outer_checks_pending() -> None:
    def outer() -> None:
        with deferred_checks():
            check_rows(BAD)
            with pytest.raises(ZeroDivisionError):
                check_all(GOOD, then=ZeroDivisionError)

    with pytest.raises(InputError, match="in 1 of 3 rows"):
        outer()


@pytest.mark.parametrize(
    ("x", "low", "high"),
    [
        (torch.tensor([[3, -1], [7, 0]]), -1, 7),
        (torch.tensor([0.5, -1.0, 7.0]), -1.0, 7.0),
        (torch.ones(3, requires_grad=True), 1.0, 1.0),
        (torch.tensor([0.5, torch.nan, 1.0]), torch.nan, torch.nan),
    ],
)
def test_range_is_minimum_and_maximum(x: Tensor, low: float, high: float) -> None:
    """Found immediately on a CPU."""
    seen: list[float] = []
    checks = RangeChecks(x.device)
    checks.add(x, lambda *bounds: seen.extend(bounds))
    assert repr(seen) == repr([low, high])
    checks.wait()
    assert len(seen) == 2
