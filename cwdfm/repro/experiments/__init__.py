"""The paper's tables and figures."""

from cwdfm.repro.experiment import Experiment
from cwdfm.repro.experiments import baselines, steps, training

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("baselines", "main table: flows beside AR, BD3LM, SEDD, MDLM", baselines.plan),
        Experiment("losses", "table: CE, NELBO, Bregman, SCE", training.losses),
        Experiment("paths", "table: mixture and context-weighted path", training.paths),
        *(
            Experiment(
                f"steps-{corpus}-{source}",
                f"figure: quality against steps, {corpus}, {source} source",
                steps.plan_of(corpus, source),
            )
            for corpus, source in steps.BEST
        ),
        Experiment("scales", "table: the scale of the context-weighted path", training.scales),
    )
}
