"""Validation during training: held-out loss, likelihood bound and sample previews."""

import torch
from torch import Tensor

from cwdfm.data import MoleculeTokenizer, canonical
from cwdfm.distributed import broadcast, rank
from cwdfm.errors import NotInstalled
from cwdfm.generation import generate
from cwdfm.method import Objective
from cwdfm.pretrained import Pretrained
from cwdfm.sample_file import SampleFile, write_samples
from cwdfm.schedule import stratified_times
from cwdfm.train.run import Run

CHUNK = 512  # sequences per forward pass
VALIDATION_STEP = 2**31  # step number that seeds the noise, larger than any training step


def validate(run: Run) -> dict[str, float]:
    """Compute validation loss, likelihood bound and previews with the averaged weights.

    Every process must call this. It may change the objective of the run (see `adapted`).
    """
    trained = run.averaged()
    record = {"validation_loss": validation_loss(run, trained)}
    if run.config.evaluation.elbo_rows:
        record |= likelihood(run, trained)
    if run.config.evaluation.previews and rank() == 0:
        record |= preview(run, trained)
    run.objective = adapted(run, trained)
    return record | run.objective.state()


def held_out(run: Run, limit: int) -> Tensor:
    """The first held-out sequences, at most `limit`."""
    return run.valid_rows.at(torch.arange(min(len(run.valid_rows), limit)))


@torch.no_grad()
def adapted(run: Run, trained: Pretrained) -> Objective:
    """The objective adapted to the held-out sequences, identical on all processes."""
    state = None
    if rank() == 0:
        x_1 = held_out(run, run.config.evaluation.validation_rows)
        with run.precision():
            state = run.objective.adapted(trained.model, x_1, run.fixed(x_1)).state()
    return run.objective.restored(broadcast(state))


@torch.no_grad()
def validation_loss(run: Run, trained: Pretrained) -> float:
    """The training loss on held-out sequences, always with the same times and noise."""
    n = min(len(run.valid_rows), run.config.evaluation.validation_rows)
    total = 0.0
    for index in torch.arange(n).split(CHUNK):
        t = stratified_times(run.config.seed, 0, index, n).float()
        x_1, condition = run.valid_rows.at(index), run.valid_condition[index.to(run.device)]
        batch = run.data_batch(x_1, t, index, VALIDATION_STEP, condition)
        with run.precision():
            loss = run.objective.held_out(trained.model, batch)
        total += float(loss) * len(index)
    return total / n


def likelihood(run: Run, trained: Pretrained) -> dict[str, float]:
    """Held-out negative log-likelihood in nats per token, or its bound with standard error."""
    x_1 = held_out(run, run.config.evaluation.elbo_rows)
    fixed, seed = run.fixed(x_1), run.config.seed
    with run.precision():
        bound = trained.method.likelihood(trained.model, x_1, seed=seed, draws=4, fixed=fixed)
    if bound.exact:
        return {"nats_per_token": bound.nats_per_token}
    return {"elbo": bound.nats_per_token, "elbo_error": bound.standard_error}


def preview(run: Run, trained: Pretrained) -> dict[str, float]:
    """Write a few samples to the run's folder; returns the fraction of valid molecules."""
    n, steps = run.config.evaluation.previews, run.config.evaluation.preview_steps
    with run.precision():
        out = generate(trained, n=n, steps=steps, seed=run.config.seed)
    tokens = out.tokens.tolist()
    texts = [trained.tokenizer.decode(row) for row in tokens]
    path = run.out / "previews" / f"step-{run.step:08d}.jsonl"
    write_samples(path, SampleFile(texts, tokens, {"step": run.step}))
    if not isinstance(trained.tokenizer, MoleculeTokenizer):
        return {}
    try:
        return {"valid_share": sum(canonical(text) is not None for text in texts) / n}
    except NotInstalled:  # RDKit is an optional dependency
        return {}
