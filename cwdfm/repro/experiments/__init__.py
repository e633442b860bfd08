"""The paper's tables and figures."""

from cwdfm.repro.experiment import Experiment
from cwdfm.repro.experiments import baselines

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("baselines", "main table: flows beside AR, BD3LM, SEDD, MDLM", baselines.plan),
    )
}
