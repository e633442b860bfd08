"""The independent sampler of `qm9_causes` against the exact law of a small chain."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import experiments.studies.qm9_causes as causes
from cwdfm.weight import Neighbor
from tests.support.chains import exact_law, model_of, source_of
from tests.support.exact import Chain, correlated_target, neighbor
from tests.support.stats import assert_differs, assert_follows, histogram

STEPS = 5


@pytest.mark.parametrize("weighted", [False, True], ids=["Euler", "Neighbor"])
@pytest.mark.parametrize("name", causes.WALKS)
def test_samples_follow_the_exact_law(
    name: str, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an exact model no change alters the law of the samples."""
    monkeypatch.setattr(causes, "prompt_tokens", lambda _: (None, None))
    chain = Chain(correlated_target(2, 5, seed=1), True, neighbor(1, 4.0) if weighted else None)
    trained: Any = SimpleNamespace(model=model_of(chain), source=source_of(chain), length=5)
    weight = Neighbor(1, 4.0) if weighted else None
    # Rounded logits change the law slightly, by less than this many samples can detect.
    n = 5_000 if name == "logits in bfloat16" else 120_000
    last, end = causes.walk(trained, causes.WALKS[name], weight, n, STEPS)
    assert_follows(histogram(end, 2), exact_law(chain, np.linspace(0, 1, STEPS + 1)))
    if n > 5_000:
        other = Chain(chain.target, True, None if weighted else neighbor(1, 4.0))
        assert_differs(histogram(end, 2), exact_law(other, np.linspace(0, 1, STEPS + 1)))
    kept = (last == end) | (last == trained.source.mask_id)
    assert kept.all()  # an exact model reproduces revealed tokens
