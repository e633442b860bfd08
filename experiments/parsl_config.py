"""The Parsl configuration: workers on this machine, or a configuration file."""

import math
import os
import shlex
import sys
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Any

import torch

from cwdfm.cli.options import cores
from cwdfm.errors import InputError

if TYPE_CHECKING:
    from parsl import Config

RETRIES = 3  # retries of a task whose worker died or ran out of memory
_WORKERS = "parsl.executors.high_throughput.process_worker_pool"


def make_config(workers: int, file: Path | None, run_dir: Path) -> "Config":
    """The configuration in `file`, or local workers, with retries as in `retry_cost`."""
    config = read_config(file) if file else local_config(workers)
    config.run_dir = str(run_dir.absolute())
    config.retries = config.retries or RETRIES
    config.retry_handler = config.retry_handler or retry_cost
    return config


def local_config(workers: int) -> "Config":
    """Worker processes on this machine. They share its GPUs: see `engine.worker_device`."""
    from parsl import Config, HighThroughputExecutor
    from parsl.executors.high_throughput import executor
    from parsl.launchers import SimpleLauncher
    from parsl.providers import LocalProvider

    # Start Parsl's programs with this interpreter, since its folder may not be on the PATH.
    launch = executor.DEFAULT_LAUNCH_CMD.removeprefix("process_worker_pool.py")
    pool = HighThroughputExecutor(
        label="local",
        address="127.0.0.1",
        max_workers_per_node=workers,
        cores_per_worker=1e-6,  # the number of workers does not depend on the cores
        heartbeat_period=2,
        heartbeat_threshold=10,
        encrypted=False,
        provider=LocalProvider(
            init_blocks=1, max_blocks=1, launcher=SimpleLauncher(), worker_init=environment(workers)
        ),
        launch_cmd=f"{shlex.quote(sys.executable)} -m {_WORKERS}{launch}",
        interchange_launch_cmd=[sys.executable, str(Path(__file__).with_name("interchange.py"))],
    )
    return Config(executors=[pool], strategy="none", initialize_logging=False)


def environment(workers: int) -> str:
    """Shell commands that let workers import our modules, and share the cores of a CPU."""
    path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    lines = [f"export PYTHONPATH={shlex.quote(path)}"]
    if not torch.cuda.is_available() and "OMP_NUM_THREADS" not in os.environ:
        lines.append(f"export OMP_NUM_THREADS={max(1, cores() // workers)}")
    return "\n".join(lines)


def read_config(file: Path) -> "Config":
    """The Parsl configuration that a Python file assigns to `config`."""
    from parsl import Config

    if not file.is_file():
        raise InputError(f"--config {file}: no such file; see experiments/configs for examples")
    try:
        config: Any = run_path(str(file)).get("config")
    except Exception as error:
        raise InputError(f"--config {file}: {type(error).__name__}: {error}") from error
    if not isinstance(config, Config):
        raise InputError(
            f"--config {file} must assign a parsl.Config to `config`, got {type(config).__name__}; "
            f"see experiments/configs for examples"
        )
    return config


def retry_cost(error: Exception, record: object) -> float:
    """Parsl's cost of a retry: 1 if the worker died or ran out of memory, else above the limit."""
    from parsl.executors.high_throughput.errors import ManagerLost, WorkerLost

    return 1.0 if isinstance(error, ManagerLost | WorkerLost | torch.OutOfMemoryError) else math.inf
