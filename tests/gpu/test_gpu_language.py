"""On a CUDA device: text generation, with steps replayed as CUDA graphs, gives the CPU's tokens.

Run there with `pytest -m gpu tests/gpu/test_gpu_language.py`.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
from cwdfm.language.session import ColumnSession
from cwdfm.ops.cuda_graph import GraphedFunction
from tests.support.gpu import COMPILED
from tests.support.language import FAMILIES

pytestmark = COMPILED
PROMPTS = ["the cat sat", "a big old dog ran in the red house on the", "moon"]


@pytest.mark.parametrize("solver", [None, cwdfm.Euler(weight=cwdfm.Entropy(1.0))])
@pytest.mark.parametrize(
    ("family", "cache"),
    [
        ("llada", "none"),
        ("llada", "prefix"),
        ("llada", "dual"),
        ("llada", "prompt"),
        ("dream", "dual"),
        ("dream", "prompt"),
        ("sdar", None),
    ],
)
def test_tokens_equal_the_cpu(
    family: str, cache: Any, solver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FAMILIES[family][0](tmp_path)[0]
    options: dict[str, Any] = {"prompts": PROMPTS, "max_new_tokens": 32, "solver": solver}
    if family != "sdar":
        options["block_length"] = 16
    sessions: list[GraphedFunction] = []

    class Watched(GraphedFunction):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            sessions.append(self)

    expected = cwdfm.generate(cwdfm.load(folder), cache=cache, **options)
    monkeypatch.setattr(f"{ColumnSession.__module__}.GraphedFunction", Watched)
    found = cwdfm.generate(cwdfm.load(folder, "cuda"), cache=cache, **options)
    assert found.tokens == expected.tokens
    assert torch.equal(found.evaluations, expected.evaluations)
    assert any(each.graphs for each in sessions)
