"""What is made one ahead: the right thing for each key, whatever was started."""

import pytest
import torch

from cwdfm.train.prefetch import Ahead

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_takes_what_belongs_to_the_key_whatever_was_started(device: str) -> None:
    ahead: Ahead[int, torch.Tensor]
    ahead = Ahead(lambda key: torch.full((3,), key, device=device), torch.device(device))
    found = []
    for key, started in [(1, 2), (2, 9), (3, 4), (4, 4), (4, 5)]:
        found.append(ahead.take(key))
        ahead.start(started)
    assert [int(x[0]) for x in found] == [1, 2, 3, 4, 4]


@pytest.mark.gpu
def test_memory_in_use_is_not_given_to_the_next() -> None:
    """The device is busy for long before it reads what it was given, and by then more was made."""
    device = torch.device("cuda")
    ahead: Ahead[int, torch.Tensor]
    ahead = Ahead(lambda key: torch.full((2**20,), key, device=device), device)
    square = torch.randn(4096, 4096, device=device)
    sums = []
    for key in range(50):
        made = ahead.take(key)
        for _ in range(4):
            square = torch.nn.functional.normalize(square @ square)
        sums.append(made.sum())
        ahead.release(made)
        del made
        ahead.start(key + 1)
    assert [int(x) for x in sums] == [key * 2**20 for key in range(50)]
