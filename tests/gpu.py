"""Marks of the tests that compile for a GPU."""

from importlib.util import find_spec

import pytest
import torch

COMPILED = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # the compiler has advice to give
    pytest.mark.skipif(
        not torch.cuda.is_available() or find_spec("triton") is None,
        reason="no CUDA device, or no Triton",
    ),
]
