"""All experiments by name, in the order of `run all`."""

from collections.abc import Iterator

from experiments.catalog import (
    ablations,
    baselines,
    controls,
    curves,
    headline,
    leak,
    locality,
    perplexity,
    solvers,
    text_plan,
    training,
    tuned,
    variety,
)
from experiments.experiment import Experiment
from experiments.paper import BEST
from experiments.scale import CORPORA

# The figures of quality against steps, by corpus and source.
STEPS = {
    ("text", "uniform"): "Figure 3",
    ("text", "mask"): "Figure 7",
    ("molecules", "uniform"): "Figure 8",
    ("molecules", "mask"): "Figure 4",
}


def _training() -> Iterator[Experiment]:
    yield Experiment("baselines", "AR, BD3LM, SEDD, MDLM and flows", baselines.plan, "Table 1")
    yield Experiment("losses", "CE, NELBO, Bregman, SCE", training.losses, "Table 2")
    yield Experiment("paths", "mixture and context-weighted path", training.paths, "Table 3")
    yield Experiment("curves", "every loss and path, every solver, QM9", curves.plan)
    yield Experiment("headline", "the paper's own setting, mask source, QM9", headline.plan)
    title = "the paper's own setting, half of its training, QM9"
    yield Experiment("headline-long", title, headline.long, estimate=70)
    yield Experiment("scales", "scale of the context-weighted path", training.scales, "Table 7")
    yield Experiment("perplexity", "test perplexity", perplexity.plan, "Table 6")


def _settings() -> Iterator[Experiment]:
    yield Experiment("radius", "radius of the loss's weights", ablations.radius, "Figure 9")
    yield Experiment("revealed", "weight of revealed tokens in SCE", ablations.revealed)
    yield Experiment("readings", "interpretations of the loss, QM9", ablations.readings)
    yield Experiment("scaled-text", "settings of SCE, text", ablations.scaled)
    title = "likelihood bound of every reading of SCE, text"
    yield Experiment("sce-readings", title, text_plan.readings, estimate=22)
    for name, minutes in (("94M", 15), ("170M", 19)):
        title = f"CE and SCE, Euler and Neighbor, {name}, larger corpus"
        plan = text_plan.larger(name)
        yield Experiment(f"larger-{name.lower()}", title, plan, estimate=minutes)
    for corpus in CORPORA:
        title = f"loss of masked tokens or of all tokens, {corpus}, mask source"
        yield Experiment(f"tokens-{corpus}", title, ablations.counting(corpus))
    for source in training.SOURCES:
        title = f"settings of the loss and the path, molecules, {source} source"
        yield Experiment(f"sweep-training-{source}", title, ablations.sweep(source))
    for corpus, what in (("molecules", "losses and paths"), ("text", "losses")):
        title = f"{what} with tuned settings, three runs, {corpus}"
        yield Experiment(f"tuned-losses-{corpus}", title, tuned.tuned(corpus))
    title = "quality during training, CE and SCE"
    yield Experiment("dynamics", title, ablations.dynamics, "Figure 10")


def _solvers() -> Iterator[Experiment]:
    for corpus, source in BEST:
        end, where = f"{corpus}-{source}", f"{corpus}, {source} source"
        title, plan = f"quality against steps, {where}", solvers.steps(corpus, source)
        yield Experiment(f"steps-{end}", title, plan, STEPS[corpus, source])
        title = f"solver settings, {where}"
        yield Experiment(f"sweep-{end}", title, solvers.sweep(corpus, source), "Table 5")
        if corpus == "text":
            title = f"quality against steps with tuned settings, {where}"
            yield Experiment(f"tuned-{end}", title, solvers.tuned(source))


def _controls() -> Iterator[Experiment]:
    title = "Entropy weights of normalized entropies, text"
    yield Experiment("entropy-shares", title, controls.shares)
    for corpus in CORPORA:
        title = f"interpretations of the weights, {corpus}"
        yield Experiment(f"weights-{corpus}", title, controls.weights(corpus))
    title = "solvers of models trained by SCE, text"
    yield Experiment("scaled-solvers", title, controls.after_scaled)
    yield Experiment("nucleus", "CE and SCE with a nucleus, text", controls.nucleus)
    title = "quality of solvers at equal entropy of samples, by temperature, text"
    yield Experiment("variety", title, variety.variety("text"))
    title = "quality of solvers at equal novelty of samples, by temperature, QM9"
    yield Experiment("variety-molecules", title, variety.variety("molecules"))
    title = "predictor-corrector with and without Neighbor weights"
    yield Experiment("corrector", title, solvers.corrector, "Figure 5")
    title = "exponents of the corrector, text, uniform source"
    yield Experiment("corrector-powers", title, controls.corrector_powers)
    title = "solver settings of models trained on a context path"
    yield Experiment("path-solvers", f"{title}, QM9", controls.path_solvers("molecules"))
    yield Experiment("path-solvers-text", f"{title}, text", controls.path_solvers("text"))
    title = "subsets of the training data, mask source, QM9"
    yield Experiment("few-data", title, controls.few_data)
    yield Experiment("positions", "position embeddings, mask source, QM9", controls.positions)
    title = "dropout and carry-over while sampling, QM9"
    yield Experiment("dropout-leak", title, leak.plan, estimate=22)
    yield Experiment("dropout-leak-cpu", f"{title}, on a CPU", leak.on_a_cpu)


def _context() -> Iterator[Experiment]:
    title = "entropy and NLL against context"
    yield Experiment("context", title, locality.context, "Figures 2 and 6")
    yield Experiment("updates", "updates per token and loops", locality.updates, "Figure 11")


EXPERIMENTS = {
    experiment.name: experiment
    for group in (_training, _settings, _solvers, _controls, _context)
    for experiment in group()
}

# Experiments without results, sorted by information per GPU minute, highest first. `sce-readings`
# runs its first seed first, which decides what is worth sampling.
PENDING = ("sce-readings", "dropout-leak", "larger-94m", "larger-170m", "headline-long")
