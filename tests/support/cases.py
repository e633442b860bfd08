"""Cases of parametrized tests that run with the slow tests only."""

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case that repeats, with other values, what the cases before it test."""
    return pytest.param(*values, marks=pytest.mark.slow)
