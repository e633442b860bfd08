"""The optimizer and the records of training, checked against formulas and by hand."""

import json
import math
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.train import validation as validate
from cwdfm.train.loop import fit, record_best, speed_meter
from cwdfm.train.optimizer import learning_rate, make_optimizer
from cwdfm.train.run import Run
from tests.support.train_script import make_run, recipe

QUIET = {"elbo_rows": 0, "previews": 0, "dropout": 0.0}


def blur(run: Run) -> None:
    """Randomize the averaged weights: at initialization, predictions ignore the input."""
    torch.manual_seed(0)
    for weight in run.average.weights.values():
        torch.nn.init.normal_(weight, std=0.1)


def test_optimizer_is_adamw_with_the_configured_settings() -> None:
    """Loshchilov and Hutter 2019, Algorithm 2, in float64."""
    r = recipe(learning_rate=0.1, beta1=0.8, beta2=0.95, weight_decay=0.3).optimizer
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    optimizer = make_optimizer(r, layer)
    x, m, v = layer.weight.item(), 0.0, 0.0
    for step, slope in enumerate((2.0, -0.5, 1.0), start=1):
        layer.weight.grad = torch.full((1, 1), slope, dtype=torch.float64)
        optimizer.step()
        m, v = 0.8 * m + 0.2 * slope, 0.95 * v + 0.05 * slope**2
        x -= 0.1 * 0.3 * x
        x -= 0.1 * (m / (1 - 0.8**step)) / (math.sqrt(v / (1 - 0.95**step)) + 1e-8)
        assert layer.weight.item() == pytest.approx(x, rel=1e-9)


def test_gradients_are_clipped_at_the_configured_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, recipe(clip=1e-3, **QUIET))
    norms: list[float] = []

    def note(*_: object) -> None:
        gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))

    monkeypatch.setattr(run.optimizer, "step", note)
    run.train_step()
    assert norms == pytest.approx([1e-3], rel=1e-3)


def test_records_cover_the_steps_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record has the mean of their losses and the learning rate of the last step."""
    run = make_run(tmp_path, recipe(steps=6, log_every=4, validate_every=6, **QUIET))
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


def test_validation_noise_is_fixed_for_every_chunk_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, recipe(**QUIET))
    blur(run)
    trained = run.averaged()
    loss = validate.validation_loss(run, trained)
    run.step = 17
    assert validate.validation_loss(run, trained) == loss
    monkeypatch.setattr(validate, "CHUNK", 3)  # of ten rows
    assert validate.validation_loss(run, trained) == pytest.approx(loss, rel=1e-5)


def test_validation_uses_the_averaged_weights(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe(dropout=0.0, previews=0, elbo_rows=10))
    blur(run)
    found = validate.validate(run)
    for parameter in run.model.parameters():
        torch.nn.init.constant_(parameter, 7.0)  # the raw weights are not used
    assert validate.validate(run) == found
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
