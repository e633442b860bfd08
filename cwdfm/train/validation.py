"""What a run shows of itself on the way: held-out loss, likelihood bound, samples."""

from collections.abc import Callable

import torch

from cwdfm.data.chemistry import canonical
from cwdfm.distributed import broadcast, rank
from cwdfm.errors import InputError
from cwdfm.generation import generate
from cwdfm.method import Objective
from cwdfm.pretrained import Pretrained
from cwdfm.sample_file import SampleFile, write_samples
from cwdfm.schedule import stratified_times
from cwdfm.train.run import Run

CHUNK = 512
STEP = 2**31  # of the counted randomness: no training step has this number

# What can be told at once from a few samples, by the kind of their tokenizer.
QUICK: dict[str, Callable[[list[str]], dict[str, float]]] = {
    "smiles": lambda texts: {
        "valid_share": sum(canonical(text) is not None for text in texts) / len(texts)
    },
}


def validate(run: Run) -> dict[str, float]:
    """Validation loss, ELBO and preview of the averaged weights; every process must ask."""
    trained = run.averaged()
    record = {"validation_loss": validation_loss(run, trained)}
    if run.recipe.elbo_rows:
        record |= likelihood(run, trained)
    if run.recipe.previews and rank() == 0:
        record |= preview(run, trained)
    run.objective = adapted(run, trained)
    return record | run.objective.state()


@torch.no_grad()
def adapted(run: Run, trained: Pretrained) -> Objective:
    """The objective to go on with, after a look at the held-out rows: the same on all processes."""
    state = None
    if rank() == 0:
        x_1 = run.valid_rows.at(torch.arange(min(len(run.valid_rows), run.recipe.validation_rows)))
        with run.precision():
            state = run.objective.adapted(trained.model, x_1, run.fixed(x_1)).state()
    return run.objective.restored(broadcast(state))


@torch.no_grad()
def validation_loss(run: Run, trained: Pretrained) -> float:
    """The recipe's loss on held-out rows at fixed times and noise."""
    n = min(len(run.valid_rows), run.recipe.validation_rows)
    total = 0.0
    for index in torch.arange(n).split(CHUNK):
        t = stratified_times(run.recipe.seed, 0, index, n).float()
        batch = run.batch(run.valid_rows.at(index), t, index, STEP)
        with run.precision():
            loss = run.objective.held_out(trained.model, batch)
        total += float(loss) * len(index)
    return total / n


def likelihood(run: Run, trained: Pretrained) -> dict[str, float]:
    """The held-out negative log-likelihood in nats a token; or the bound on it, and its error."""
    x_1 = run.valid_rows.at(torch.arange(min(len(run.valid_rows), run.recipe.elbo_rows)))
    with run.precision():
        bound = trained.method.likelihood(
            trained.model,
            x_1,
            seed=run.recipe.seed,
            draws=4,
            fixed=run.fixed(x_1),
        )
    if bound.exact:
        return {"nats_per_token": bound.nats_per_token}
    return {"elbo": bound.nats_per_token, "elbo_error": bound.standard_error}


def preview(run: Run, trained: Pretrained) -> dict[str, float]:
    """Draw a few samples into the run's folder, and judge them where that is quick."""
    with run.precision():
        out = generate(
            trained,
            n=run.recipe.previews,
            steps=run.recipe.preview_steps,
            seed=run.recipe.seed,
        )
    tokens = out.tokens.tolist()
    texts = [trained.tokenizer.decode(row) for row in tokens]
    path = run.out / "previews" / f"step-{run.step:08d}.jsonl"
    write_samples(path, SampleFile(texts, tokens, {"step": run.step}))
    quick = QUICK.get(trained.tokenizer.kind)
    try:
        return quick(texts) if quick else {}
    except InputError:  # a machine without RDKit trains all the same
        return {}
