"""All experiments by name, in the order of `run all`."""

from collections.abc import Iterator

from experiments import paper
from experiments.catalog import (
    ablations,
    baselines,
    controls,
    curves,
    headline,
    locality,
    perplexity,
    solvers,
    training,
    tuned,
    variety,
)
from experiments.experiment import Experiment
from experiments.scale import CORPORA

# Quality against steps, by corpus and source.
STEPS = {
    ("text", "uniform"): "nfe_vs_quality_uniform",
    ("text", "mask"): "nfe_vs_quality_mask",
    ("molecules", "uniform"): "nfe_vs_quality_qm9_uniform",
    ("molecules", "mask"): "nfe_vs_quality_qm9_mask",
}


def _training() -> Iterator[Experiment]:
    yield Experiment(
        "baselines",
        "main table: AR, BD3LM, SEDD, MDLM and flows",
        baselines.plan,
        paper.table("baselines"),
    )
    yield Experiment(
        "losses",
        "table: CE, NELBO, Bregman, SCE",
        training.losses,
        paper.table("loss_functions"),
    )
    yield Experiment(
        "paths",
        "table: mixture and context-weighted path",
        training.paths,
        paper.table("path_ablation"),
    )
    yield Experiment("curves", "figures: every loss and path, every solver, QM9", curves.plan)
    yield Experiment("headline", "figure: the paper's own setting, mask source, QM9", headline.plan)
    yield Experiment(
        "scales",
        "table: scale of the context-weighted path",
        training.scales,
        paper.table("abl_cwdfm"),
    )
    yield Experiment("perplexity", "table: test perplexity", perplexity.plan, paper.table("elbo"))


def _settings() -> Iterator[Experiment]:
    yield Experiment(
        "radius",
        "figure: radius of the loss's weights",
        ablations.radius,
        paper.figure("vicinity_size_abl"),
    )
    yield Experiment("revealed", "table: weight of revealed tokens in SCE", ablations.revealed)
    yield Experiment("readings", "table: interpretations of the loss, QM9", ablations.readings)
    yield Experiment("scaled-text", "table: settings of SCE, text", ablations.scaled)
    for corpus in CORPORA:
        yield Experiment(
            f"tokens-{corpus}",
            f"table: loss of masked tokens or of all tokens, {corpus}, mask source",
            ablations.counting(corpus),
        )
    for source in training.SOURCES:
        yield Experiment(
            f"sweep-training-{source}",
            f"table: settings of the loss and the path, molecules, {source} source",
            ablations.sweep(source),
        )
    for corpus, what in (("molecules", "losses and paths"), ("text", "losses")):
        yield Experiment(
            f"tuned-losses-{corpus}",
            f"table: {what} with tuned settings, three runs, {corpus}",
            tuned.tuned(corpus),
        )
    yield Experiment(
        "dynamics",
        "figure: quality during training, CE and SCE",
        ablations.dynamics,
        paper.figure("training_dynamics"),
    )


def _solvers() -> Iterator[Experiment]:
    for corpus, source in paper.BEST:
        end = f"{corpus}-{source}"
        where = f"{corpus}, {source} source"
        yield Experiment(
            f"steps-{end}",
            f"figure: quality against steps, {where}",
            solvers.steps(corpus, source),
            paper.figure(STEPS[corpus, source]),
        )
        yield Experiment(
            f"sweep-{end}",
            f"table: solver settings, {where}",
            solvers.sweep(corpus, source),
            paper.table("nw_hyperparams"),
        )
        if corpus == "text":
            yield Experiment(
                f"tuned-{end}",
                f"figure: quality against steps with tuned settings, {where}",
                solvers.tuned(source),
            )


def _controls() -> Iterator[Experiment]:
    yield Experiment(
        "entropy-shares",
        "table: Entropy weights of normalized entropies, text",
        controls.shares,
    )
    for corpus in CORPORA:
        yield Experiment(
            f"weights-{corpus}",
            f"table: interpretations of the weights, {corpus}",
            controls.weights(corpus),
        )
    yield Experiment(
        "scaled-solvers",
        "table: solvers of models trained by SCE, text",
        controls.after_scaled,
    )
    yield Experiment("nucleus", "table: CE and SCE with a nucleus, text", controls.nucleus)
    yield Experiment(
        "variety",
        "figure: quality of solvers at equal entropy of samples, by temperature, text",
        variety.variety("text"),
    )
    yield Experiment(
        "variety-molecules",
        "figure: quality of solvers at equal novelty of samples, by temperature, QM9",
        variety.variety("molecules"),
    )
    yield Experiment(
        "corrector",
        "figure: predictor-corrector with and without Neighbor weights",
        solvers.corrector("text", "uniform"),
        paper.figure("corrector_uniform_nw"),
    )
    yield Experiment(
        "corrector-powers",
        "table: exponents of the corrector, text, uniform source",
        controls.corrector_powers,
    )
    yield Experiment(
        "path-solvers",
        "table: solver settings of models trained on a context path, QM9",
        controls.path_solvers("molecules"),
    )
    yield Experiment(
        "path-solvers-text",
        "table: solver settings of models trained on a context path, text",
        controls.path_solvers("text"),
    )
    yield Experiment(
        "few-data", "table: subsets of the training data, mask source, QM9", controls.few_data
    )
    yield Experiment(
        "positions", "table: position embeddings, mask source, QM9", controls.positions
    )


def _context() -> Iterator[Experiment]:
    yield Experiment(
        "context",
        "figures: entropy and NLL against context",
        locality.context,
        paper.figure("entropy_nll_boxplot", "entropy_nll_dist"),
    )
    yield Experiment(
        "updates",
        "updates per token and loops",
        locality.updates,
        paper.figure("token_corrections"),
    )


EXPERIMENTS = {
    experiment.name: experiment
    for group in (_training, _settings, _solvers, _controls, _context)
    for experiment in group()
}
