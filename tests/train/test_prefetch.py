"""Prefetching: each key gets its own item, whatever was prefetched."""

import pytest
import torch

from cwdfm.train.batches import Prefetch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_get_returns_the_item_of_its_key_whatever_was_started(device: str) -> None:
    prefetch: Prefetch[int, torch.Tensor]
    prefetch = Prefetch(lambda key: torch.full((3,), key, device=device), torch.device(device))
    found = []
    for key, started in [(1, 2), (2, 9), (3, 4), (4, 4), (4, 5)]:
        found.append(prefetch.get(key))
        prefetch.start(started)
    assert [int(x[0]) for x in found] == [1, 2, 3, 4, 4]


@pytest.mark.gpu
def test_memory_in_use_is_not_reused() -> None:
    """The device is busy long before it reads an item, and by then the next one exists."""
    device = torch.device("cuda")
    prefetch: Prefetch[int, torch.Tensor]
    prefetch = Prefetch(lambda key: torch.full((2**20,), key, device=device), device)
    square = torch.randn(4096, 4096, device=device)
    sums = []
    for key in range(50):
        item = prefetch.get(key)
        for _ in range(4):
            square = torch.nn.functional.normalize(square @ square)
        sums.append(item.sum())
        prefetch.release(item)
        del item
        prefetch.start(key + 1)
    assert [int(x) for x in sums] == [key * 2**20 for key in range(50)]
