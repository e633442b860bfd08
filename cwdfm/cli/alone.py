"""One run at a time where files are written."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from cwdfm.distributed import from_first, rank
from cwdfm.errors import InputError
from cwdfm.lock import held


@contextmanager
def alone_in(folder: Path, other: str) -> Iterator[None]:
    """Refuse a folder whose lock another run has, telling what that `other` one does."""
    with held(folder) if rank() == 0 else nullcontext(True) as mine:
        if not from_first(mine):
            raise InputError(f"{other}; wait until it is done, or give another --out")
        yield
