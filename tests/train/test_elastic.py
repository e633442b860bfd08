"""A process that dies under torchrun on two machines: the job resumes from its last checkpoint."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cwdfm
from cwdfm.config import flatten
from cwdfm.train import run as run_module
from cwdfm.train.checkpoint import load_latest
from cwdfm.train.config import TrainConfig
from cwdfm.train.loop import fit
from cwdfm.train.run import Run
from tests.support.train_elastic import MARK
from tests.support.train_script import counting, make_run, recipe

ROOT = Path(__file__).parents[2]
FLAGS = (
    "--model debug --length 16 --steps 30 --batch-size 16 --checkpoint-every 7 --log-every 10 "
    "--validate-every 30 --elbo-rows 0 --previews 0 --dropout 0 --no-tensorboard --device cpu"
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


@pytest.mark.slow
def test_killed_process_restarts_from_the_last_checkpoint(tmp_path: Path) -> None:
    """Two agents of one process each; the weights are those of one process that was not killed."""
    data = replace(counting(), source={"length": 16}, report={"kept": 60, "read": 60})
    data.save(tmp_path / "data.npz")
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--max-restarts=1", "--rdzv-backend=c10d", "--rdzv-id=elastic"]
    command += [f"--rdzv-endpoint=localhost:{free_port()}", "-m", "--"]
    command += ["tests.support.train_elastic", "train", "qm9-debug", "--out", str(tmp_path / "run")]
    command += ["--data", str(tmp_path / "data.npz"), *FLAGS.split()]
    agents = [
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    try:
        outputs = [agent.communicate(timeout=1200) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert (tmp_path / MARK).exists()  # a process was killed
    assert sum(out.count(b"resuming from step 21") for out, _ in outputs) == 1

    settings = json.loads((tmp_path / "run" / "recipe.json").read_text())["config"]
    config = TrainConfig.from_flat(**flatten(settings))
    alone = Run(config, counting(), tmp_path / "alone", torch.device("cpu"))
    fit(alone)
    found, expected = (load_latest(tmp_path / k / "checkpoints") for k in ("run", "alone"))
    assert found is not None
    assert expected is not None
    assert found[2]["step"] == expected[2]["step"] == 30
    for name, value in expected[1].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-3, atol=1e-5, msg=name)
    log = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == [10, 20, 30]


def test_machines_must_share_the_output_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "gather", lambda step: [step, 21])  # another machine's folder
    with pytest.raises(cwdfm.InputError, match=r"None, 21.*share"):
        make_run(tmp_path, recipe()).resume()
