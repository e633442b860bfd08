"""One thread a worker: tensors and matrices are small, and the workers already fill the cores.

Said before torch and numpy are imported, so that OpenBLAS hears it too: two threads make it ten
times slower at 16 x 16 matrices. The processes that tests start hear it as well.
"""

import os

import pytest

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")


@pytest.fixture
def plain_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms without their kernel, which would take most of the time in Triton's interpreter.

    For tests of other kernels in whole transformers; tests/test_adaptive_norm.py has its own.
    """
    monkeypatch.setattr("cwdfm.kernel.adaptive_norm.fused_norm", lambda _: False)
