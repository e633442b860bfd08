"""What jobs at small scale took this project itself: a summary of its results, in the package.

`python -m experiments report` writes it from results/, of which an installed package has nothing.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("measured.json")


@dataclass(frozen=True)
class Measured:
    """GPU minutes: of seconds in which n jobs shared a GPU each job has 1 / n."""

    gpu: str
    at_once: int  # jobs on it, at most
    runs: dict[str, dict[str, float]]  # of the median training, by corpus and network
    experiments: dict[str, float]  # of all jobs, of those that are complete
    step: float  # microseconds a token and solver step, by the paper's network; at most


@cache
def measured() -> Measured:
    """What is known."""
    return Measured(**json.loads(FILE.read_text()))
