"""Run the experiments on a SLURM cluster: `python -m experiments run ... --config FILE`.

Copy this file and change the names of the partition and the account. The output folder must be on a
file system shared by all nodes.
"""

from parsl import Config, HighThroughputExecutor
from parsl.addresses import address_by_hostname
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider

WORKERS_PER_GPU = 4  # small models share a GPU
GPUS_PER_NODE = 4

config = Config(
    executors=[
        HighThroughputExecutor(
            label="slurm",
            address=address_by_hostname(),
            max_workers_per_node=WORKERS_PER_GPU * GPUS_PER_NODE,
            cores_per_worker=1e-6,  # the number of workers does not depend on the cores
            provider=SlurmProvider(
                partition="gpu",
                account="my-account",
                nodes_per_block=1,
                min_blocks=0,
                max_blocks=4,  # up to four nodes at a time
                walltime="04:00:00",
                scheduler_options=f"#SBATCH --gpus-per-node={GPUS_PER_NODE}",
                worker_init="cd $SLURM_SUBMIT_DIR; source .venv/bin/activate; "
                "export PYTHONPATH=$SLURM_SUBMIT_DIR",
                launcher=SrunLauncher(),
            ),
        )
    ]
)
