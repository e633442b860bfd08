"""A training step, piece by piece: each setting takes effect, and the records are right."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cwdfm
from cwdfm.train import validation as validation
from cwdfm.train.batches import EpochStream, Prefetch
from cwdfm.train.loop import fit, record_best, speed_meter
from cwdfm.train.optimizer import WeightAverage, learning_rate
from cwdfm.train.run import Run
from cwdfm.train.validation import validate
from tests.support.stats import assert_differs, assert_follows, histogram
from tests.support.train_script import VOCAB, make_run, recipe


def stirred(out: Path, **changes: object) -> Run:
    """A run with random weights: at initialization, predictions ignore the input."""
    run = make_run(out, recipe(**changes))
    generator = torch.manual_seed(1)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    run.average = WeightAverage(run.model, run.config.optimizer.ema)
    return run


def double(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies in float64."""
    return {name: x.detach().double().clone() for name, x in tensors.items()}


def assert_near(ours: Tensor, truth: Tensor, *, rtol: float, atol: float) -> None:
    torch.testing.assert_close(ours.detach().double(), truth, rtol=rtol, atol=atol)


def gradients(run: Run) -> dict[str, Tensor]:
    """The gradients of the loss of the next step, computed by autograd."""
    named = dict(run.model.named_parameters())
    loss = run.training_batch(run.objective, run.step, 0).loss(run.model)
    return double(dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True)))


@pytest.mark.parametrize("clip", [0.05, 1e3], ids=["clipped", "unclipped"])
def test_steps_match_adamw_by_hand(tmp_path: Path, clip: float) -> None:
    """Clipped gradient, decay, both moments and their bias, in the formulas of the paper.

    Three steps of a warm-up of five. Adam hardly feels the scale of a gradient, so the moments are
    compared too.
    """
    beta1, beta2, decay = 0.8, 0.95, 0.5
    optimiser = {"clip": clip, "beta1": beta1, "beta2": beta2, "weight_decay": decay}
    run = stirred(tmp_path, dropout=0.0, **optimiser)
    weights = double(dict(run.model.named_parameters()))
    mean = {name: torch.zeros_like(w) for name, w in weights.items()}
    square = {name: torch.zeros_like(w) for name, w in weights.items()}
    for step in range(1, 4):
        gradient = gradients(run)
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradient.values()))
        assert 0.05 < norm < 1e3
        rate = 1e-3 * step / 5
        for name, w in weights.items():
            g = gradient[name] * min(1.0, clip / norm)
            mean[name] = beta1 * mean[name] + (1 - beta1) * g
            square[name] = beta2 * square[name] + (1 - beta2) * g**2
            root = (square[name] / (1 - beta2**step)).sqrt()
            move = mean[name] / (1 - beta1**step) / (root + 1e-8)
            weights[name] = w - rate * decay * w - rate * move
        run.train_step()
    for name, parameter in run.model.named_parameters():
        state = run.optimizer.state[parameter]
        assert_near(state["exp_avg"], mean[name], rtol=1e-4, atol=1e-9)
        assert_near(state["exp_avg_sq"], square[name], rtol=1e-4, atol=1e-9)
        # Three moves of some 2e-4 to 6e-4, and 1e-4 to 3e-4 of a weight that decay with them.
        assert_near(parameter, weights[name], rtol=1e-6, atol=1e-6)


def test_exported_model_has_the_averaged_weights(tmp_path: Path) -> None:
    """By hand, from the weights after each step: decay min(ema, (1 + n) / (10 + n))."""
    run = stirred(tmp_path, ema=0.15, learning_rate=0.1)
    average = double(dict(run.model.named_parameters()))
    for step in range(4):
        run.train_step()
        decay = min(0.15, (1 + step) / (10 + step))  # 1/10, then 0.15
        for name, w in double(dict(run.model.named_parameters())).items():
            average[name] = decay * average[name] + (1 - decay) * w
    used = dict(run.averaged().model.named_parameters())
    assert used.keys() == average.keys()
    for name, raw in run.model.named_parameters():
        assert_near(used[name], average[name], rtol=1e-5, atol=1e-6)
        apart = (used[name] - raw).detach().abs().max()
        assert float(apart) > 1e-3, name  # a copy of the raw ones would show


def test_dropout_is_a_function_of_the_step(tmp_path: Path) -> None:
    """The batch and the weights are fixed, so only dropout differs between steps."""
    run = stirred(tmp_path, dropout=0.5, learning_rate=1e-30, min_learning_rate=0.0)
    batch = run.training_batch(run.objective, 0, 0)
    run.training_batch = lambda objective, step, micro_batch: batch  # type: ignore[method-assign]
    before = double(dict(run.model.named_parameters()))
    losses = [float(run.train_step()) for _ in range(4)]
    assert len(set(losses)) == 4
    run.step = 1
    assert [float(run.train_step()) for _ in range(3)] == losses[1:]
    after = double(dict(run.model.named_parameters()))
    assert all(torch.equal(before[name], after[name]) for name in before)


@torch.no_grad()
@pytest.mark.parametrize("fix_first", [True, False])
def test_fixed_first_token_is_neither_corrupted_nor_counted(
    tmp_path: Path, fix_first: bool
) -> None:
    run = stirred(tmp_path, source="mask", fix_first=fix_first, dropout=0.0)
    x_1 = run.train_rows.at(run.train_rows.numbers(torch.arange(16)))
    batch = run.training_batch(run.objective, 0, 0)
    masked = batch.x == VOCAB
    assert torch.equal(batch.x[~masked], x_1[~masked])
    assert bool(masked[:, 1:].any(0).all())  # every other place is corrupted somewhere
    assert bool(masked[:, 0].any()) is not fix_first
    logits = run.model(batch.x, batch.t)[..., :VOCAB]
    ce = F.cross_entropy(logits.transpose(1, 2), x_1, reduction="none")
    truth, other = (ce[:, 1:].mean(), ce.mean()) if fix_first else (ce.mean(), ce[:, 1:].mean())
    loss = float(batch.loss(run.model))
    assert loss == pytest.approx(float(truth), rel=1e-5)
    assert loss != pytest.approx(float(other), rel=1e-4)
    assert run.averaged().fix_first is fix_first  # and sampling uses the same setting


def test_epochs_are_independent_uniform_permutations() -> None:
    """The orders of two successive epochs of three rows: 36 pairs, equally likely.

    The false-alarm rate over the seeds is 1e-6.
    """
    pairs = 3_000
    rows = EpochStream(np.arange(3)[:, None], 0, torch.device("cpu"))
    seen = torch.cat([rows.at(rows.numbers(place)) for place in torch.arange(6 * pairs).split(90)])
    counts = histogram(seen.view(pairs, 6), 3)
    first, second = np.divmod(np.arange(3**6), 27)
    orders = [5, 7, 11, 15, 19, 21]  # 012, 021, 102, 120, 201, 210 to base 3
    law = np.isin(first, orders) & np.isin(second, orders)
    assert_follows(counts, law / 36)
    alike = law & (first == second)
    assert_differs(counts, np.where(alike, 1 / 6, 0.0))


def test_validation_does_not_depend_on_the_step(tmp_path: Path) -> None:
    """Validation has its own noise, so a lower loss is not due to chance."""
    run = stirred(tmp_path, elbo_rows=0, previews=0)
    losses = []
    for step in (0, 1, 20):
        run.step = step
        losses.append(validate(run)["validation_loss"])
    assert losses == losses[:1] * 3
    other = stirred(tmp_path, elbo_rows=0, previews=0, seed=1)
    other.average = run.average
    assert validate(other)["validation_loss"] != losses[0]  # other noise gives a different loss


def test_validation_loss_does_not_depend_on_the_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of 7 leave a smaller one, which has a smaller weight."""
    run = stirred(tmp_path, elbo_rows=0, previews=0)
    whole = validate(run)["validation_loss"]
    rows = min(len(run.valid_rows), run.config.evaluation.validation_rows)
    assert 0 < rows % 7 < 4
    monkeypatch.setattr(validation, "CHUNK", 7)
    assert validate(run)["validation_loss"] == pytest.approx(whole, rel=1e-6)


def test_records_cover_the_steps_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record has the mean of their losses and the learning rate of the last step."""
    run = make_run(
        tmp_path,
        recipe(steps=6, log_every=4, validate_every=6, elbo_rows=0, previews=0, dropout=0.0),
    )
    losses: list[float] = []
    plain = Run.train_step

    def noted(run: Run) -> Tensor:
        losses.append(float(loss := plain(run)))
        return loss

    monkeypatch.setattr(Run, "train_step", noted)
    fit(run)
    first, last = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert first["loss"] == pytest.approx(sum(losses[:4]) / 4)
    assert last["loss"] == pytest.approx(sum(losses[4:]) / 2)
    for record in (first, last):
        assert record["learning_rate"] == learning_rate(run.config.optimizer, record["step"] - 1)


def test_speed_excludes_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five steps of 16 sequences of 16 tokens take ten seconds, six of them in validation."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    run = make_run(tmp_path, recipe())
    meter = speed_meter(run)
    now, run.step = 2.0, 5
    with meter.paused():
        now = 8.0
    now = 10.0
    assert meter.read(run.step)["tokens_per_second"] == 5 * 16 * 16 / 4
    now, run.step = 11.0, 6
    assert meter.read(run.step)["tokens_per_second"] == 16 * 16


def test_validation_uses_the_averaged_weights(tmp_path: Path) -> None:
    run = stirred(tmp_path, dropout=0.0, previews=0, elbo_rows=10)
    found = validate(run)
    for parameter in run.model.parameters():
        torch.nn.init.constant_(parameter, 7.0)  # the raw weights are not used
    assert validate(run) == found
    trained = run.averaged()
    x_1 = torch.from_numpy(run.data.valid).long()
    flow = trained.flow
    bound = cwdfm.elbo(trained.model, flow.source, flow.schedule, x_1, draws=4, seed=0)
    assert found["elbo"] == pytest.approx(bound.nats_per_token, rel=1e-6)
    assert found["elbo_error"] == pytest.approx(bound.standard_error, rel=1e-6)


def test_earliest_of_equal_losses_is_the_best(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe(keep=1))
    for step, loss, best in ((1, 2.0, True), (2, 2.0, False), (3, math.nan, False), (4, 1.0, True)):
        run.step = step
        assert record_best(run, loss) == best
    assert (run.best, run.best_step) == (1.0, 4)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_get_returns_the_item_of_its_key_whatever_was_started(device: str) -> None:
    prefetch: Prefetch[int, torch.Tensor]
    prefetch = Prefetch(lambda key: torch.full((3,), key, device=device), torch.device(device))
    found = []
    for key, started in [(1, 2), (2, 9), (3, 4), (4, 4), (4, 5)]:
        found.append(prefetch.get(key))
        prefetch.start(started)
    assert [int(x[0]) for x in found] == [1, 2, 3, 4, 4]


@pytest.mark.gpu
def test_memory_in_use_is_not_reused() -> None:
    """The device is busy long before it reads an item, and by then the next one exists."""
    device = torch.device("cuda")
    prefetch: Prefetch[int, torch.Tensor]
    prefetch = Prefetch(lambda key: torch.full((2**20,), key, device=device), device)
    square = torch.randn(4096, 4096, device=device)
    sums = []
    for key in range(50):
        item = prefetch.get(key)
        for _ in range(4):
            square = torch.nn.functional.normalize(square @ square)
        sums.append(item.sum())
        prefetch.release(item)
        del item
        prefetch.start(key + 1)
    assert [int(x) for x in sums] == [key * 2**20 for key in range(50)]
