"""Call the public API with random arguments, many of them invalid, and record the outcomes.

python -m experiments.studies.api_calls --calls 10000 --out api_calls.json

Each call must end in time, and raise InputError (recorded as "refused") or return a valid result ("valid"). The
calls are generated as in `tests/core/test_api.py`; the first that fails is shrunk and recorded.
"""

import signal
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded

from experiments.studies.command import save, study_parser
from tests.core.test_api import call_with_arguments, outcome

LIMIT = 600  # seconds after which a call counts as hanging


def _hang(*_: object) -> None:
    raise TimeoutError(f"a call takes more than {LIMIT} seconds")


def run(seed: int, calls: int) -> tuple[Counter[str], list[str]]:
    """Make calls and count their outcomes; the defects are descriptions."""
    outcomes: Counter[str] = Counter()

    @seeded(seed)
    @settings(
        max_examples=calls,
        deadline=None,  # would fail slow calls on a busy machine
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(call_with_arguments())
    def called(drawn: object) -> None:
        signal.alarm(LIMIT)
        outcomes[outcome(drawn)] += 1  # type: ignore[arg-type]
        signal.alarm(0)
        if outcomes.total() % 500 == 0:
            print(f"seed {seed}: {outcomes.total():,} calls", flush=True)

    signal.signal(signal.SIGALRM, _hang)
    try:
        called()
    except Exception:
        return outcomes, [traceback.format_exc()]
    return outcomes, []


def main() -> int:
    parser = study_parser(__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="each with its own seed")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.processes)
    share = -(-options.calls // options.processes)
    start = time.perf_counter()
    with ProcessPoolExecutor(options.processes) as pool:
        results = list(pool.map(run, seeds, [share] * len(seeds)))
    outcomes = sum((counts for counts, _ in results), Counter[str]())
    defects = [text for _, texts in results for text in texts]
    config = {"calls": options.calls, "seed": options.seed, "processes": options.processes}
    seconds = time.perf_counter() - start
    save(options.out, config=config, outcomes=outcomes, defects=defects, seconds=seconds)
    print(f"{dict(outcomes)}, {len(defects)} defects; wrote {options.out}")
    return int(bool(defects))


if __name__ == "__main__":
    sys.exit(main())
