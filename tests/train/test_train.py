"""Training: resuming, interruption, several processes, and failures."""

import errno
import json
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors import SafetensorError
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import cwdfm
from cwdfm.data import SmilesTokenizer, TokenData
from cwdfm.method import Flow
from cwdfm.method.base import DataBatch
from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT
from cwdfm.sample_file import read_samples
from cwdfm.train import loop
from cwdfm.train.batches import EpochStream, subset
from cwdfm.train.checkpoint import _prune, checkpoints, load_latest
from cwdfm.train.config import TrainConfig
from cwdfm.train.execution import Parallel
from cwdfm.train.loggers import JsonLines, TensorBoard, WeightsAndBiases, training_flops
from cwdfm.train.loop import Diverged, fit
from cwdfm.train.optimizer import learning_rate
from cwdfm.train.recipes import RECIPES
from cwdfm.train.run import RESUMABLE, Run
from experiments.bench.bounds import exchange
from tests.support.processes import ended, ended_together
from tests.support.train_script import (
    VOCAB,
    counting,
    make_run,
    recipe,
    save_on_a_full_disk,
    train,
    train_and_send,
)
from tests.support.train_together import (
    PARALLEL,
    STEPS,
    settings,
    train_together,
    without_the_end,
)


def final_state(out: Path) -> dict[str, torch.Tensor]:
    found = load_latest(out / "checkpoints")
    assert found is not None
    return found[0] | found[1]


def latest_step(out: Path) -> int:
    found = load_latest(out / "checkpoints")
    assert found is not None
    return int(found[2]["step"])


def saved_steps(out: Path) -> list[int]:
    """The steps of all checkpoints."""
    return [int(path.name.removeprefix("step-")) for path in checkpoints(out / "checkpoints")]


def assert_identical(a: Path, b: Path) -> None:
    first, second = final_state(a), final_state(b)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def records(out: Path) -> list[dict[str, float]]:
    """The log of a run without its speeds."""
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("whole")
    train(out)
    return out


def sent(out: Path, signal: int, step: int, *, saving: bool = False) -> int | None:
    """Train in a process that sends itself a signal; return its exit code."""
    return ended(train_and_send, out, signal, step, saving)


def test_killed_run_resumes_to_identical_weights(whole: Path, tmp_path: Path) -> None:
    """The kill comes before the first checkpoint, while saving one, and between two."""
    for step, saving, kept in ((1, False, []), (21, True, [14, 20]), (23, False, [20, 21])):
        assert sent(tmp_path, signal.SIGKILL, step, saving=saving) == -signal.SIGKILL
        assert saved_steps(tmp_path) == kept
    train(tmp_path)
    assert_identical(whole, tmp_path)
    steps = [json.loads(x)["step"] for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps)), "a step was logged twice"
    assert records(tmp_path) == records(whole)


def test_sigterm_saves_and_exits(whole: Path, tmp_path: Path) -> None:
    assert sent(tmp_path, signal.SIGTERM, 5) == signal.SIGTERM
    assert 5 < latest_step(tmp_path) < 10
    train(tmp_path)
    assert_identical(whole, tmp_path)


@pytest.mark.parametrize("saving", [False, True])
def test_signal_in_the_last_step_is_returned(tmp_path: Path, saving: bool) -> None:
    """The caller must see the signal even though the run has ended."""
    assert sent(tmp_path, signal.SIGTERM, 40, saving=saving) == signal.SIGTERM
    assert make_run(tmp_path, recipe()).resume()
    assert latest_step(tmp_path) == 40


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes, with DDP and with FSDP, and a run of one process."""
    out = tmp_path_factory.mktemp("together")
    said = ended_together(out, train_together, out)
    # Python's: the words of torch's own code depend on the machine's network.
    assert not re.search(r"\w+Warning: ", said), said
    train(out / "one", dropout=0.0, steps=STEPS)
    return out


@contextmanager
def group_of_one(store: Path) -> Iterator[None]:
    """A process group of one process, as torchrun creates it."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("parallel", PARALLEL)
def test_two_processes_match_one(together: Path, tmp_path: Path, parallel: Parallel) -> None:
    """Same losses and weights up to the rounding of the gradients' sum (no dropout).

    Both accumulate gradients. They resume from their own checkpoint, and so does one process.
    """
    one, two, again = (together / name for name in ("one", parallel, f"{parallel}-again"))
    assert_close(one, two)
    assert_close(one, again)
    without_the_end(two, tmp_path / "alone")
    with group_of_one(tmp_path / "store"):
        train(tmp_path / "alone", **settings(parallel))
    assert_close(one, tmp_path / "alone")


@pytest.mark.parametrize("parallel", PARALLEL)
def test_processes_exchange_what_the_projection_counts(
    together: Path, tmp_path: Path, parallel: Parallel
) -> None:
    """Gradients, weights, and 4 bytes of the loss."""
    seen = json.loads((together / f"{parallel}-bytes.json").read_text())
    run = make_run(tmp_path, recipe(**settings(parallel)))
    whole, blocks = (
        sum(p.numel() for p in part.parameters()) for part in (run.model, run.model.blocks)
    )
    expected = exchange(parallel, whole, blocks, run.config.runtime.accumulation)
    assert seen["allreduce_"] == expected.all_reduce + 4
    assert seen.get("_allgather_base_", 0) == expected.all_gather
    assert seen.get("_reduce_scatter_base_", 0) == expected.reduce_scatter


def test_processes_stop_at_the_same_step(together: Path) -> None:
    """Only the first process receives the signal; all stop at the same step and report it."""
    recorded = [(together / f"stopped-{rank}").read_text() for rank in range(2)]
    assert recorded == [f"{signal.SIGTERM} at {loop.SYNC_EVERY}"] * 2
    assert latest_step(together / "stopped") == loop.SYNC_EVERY


def test_dropout_seeds_differ_between_processes(together: Path) -> None:
    first, second = ((together / f"seed-{rank}").read_text() for rank in range(2))
    assert first != second


def assert_close(a: Path, b: Path) -> None:
    one, two = final_state(a), final_state(b)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-5)
    logs = [[json.loads(x) for x in (k / "metrics.jsonl").read_text().splitlines()] for k in (a, b)]
    for mine, other in zip(*logs, strict=True):
        for name in {"loss", "validation_loss", "elbo"} & mine.keys():
            assert mine[name] == pytest.approx(other[name], rel=1e-4), name


def test_accumulation_changes_nothing(tmp_path: Path) -> None:
    plain, accumulated = recipe(dropout=0.0, steps=8), recipe(dropout=0.0, steps=8, accumulation=4)
    runs = [make_run(tmp_path / str(i), r) for i, r in enumerate((plain, accumulated))]
    for run in runs:
        fit(run)
    for a, b in zip(runs[0].model.parameters(), runs[1].model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_data_subset_depends_on_the_seed(tmp_path: Path) -> None:
    rows = np.arange(50)[:, None].repeat(3, axis=1)
    few, more, other = (subset(rows, n, seed)[:, 0] for n, seed in ((5, 0), (20, 0), (20, 1)))
    assert (len(few), len(more)) == (5, 20)
    assert set(few) < set(more)
    assert set(other) != set(more)
    assert list(more) == sorted(more)  # in the data's order
    stream = EpochStream(rows, 0, torch.device("cpu"))
    first = stream.at(stream.numbers(torch.arange(20)))
    assert set(first[:, 0].tolist()) != set(more)  # not the first rows of a full epoch
    assert subset(rows, 0, 0) is rows
    assert len(make_run(tmp_path, recipe(train_rows=20)).train_rows) == 20


def test_missing_config_fields_take_their_defaults(tmp_path: Path) -> None:
    """Checkpoints older than a config field resume with the default of that field."""
    run = make_run(tmp_path, recipe())
    before = run.config.flat()
    del before["train_rows"]
    meta = {"config": before, "data": run.data.fingerprint}
    assert run._changed_settings(meta) == {}
    other = make_run(tmp_path, recipe(train_rows=7))
    with pytest.raises(cwdfm.InputError, match=r"different: train_rows"):
        other._changed_settings(meta)


def test_large_data_are_not_copied_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, places = counting().train, torch.arange(30, 90)
    small = EpochStream(rows, 3, torch.device("cpu"))
    monkeypatch.setattr("cwdfm.train.batches.MAX_DEVICE_BYTES", 0)
    large = EpochStream(rows, 3, torch.device("cpu"))
    assert torch.equal(small.at(small.numbers(places)), large.at(large.numbers(places)))


def test_damaged_checkpoint_is_skipped(tmp_path: Path) -> None:
    """A flipped bit of the tensors, or invalid metadata."""
    fit(make_run(tmp_path, recipe(steps=14)))
    newest = checkpoints(tmp_path / "checkpoints")[-1]
    tensors, note = newest / "training.safetensors", newest / "meta.json"
    good, written = tensors.read_bytes(), json.loads(note.read_text())
    tensors.write_bytes(good[:-5] + bytes([good[-5] ^ 1]) + good[-4:])
    damaged = (written, written | {"format": None}, written | {"sha256": 3}, {"format": 3}, None)
    for meta in damaged:
        note.write_text(json.dumps(meta))
        run = make_run(tmp_path, recipe(steps=14))
        with pytest.warns(UserWarning, match=r"step-00000014 is damaged .*using the previous one"):
            assert run.resume()
        assert run.step == 7
        tensors.write_bytes(good)


def test_data_must_fit_the_config(tmp_path: Path) -> None:
    data, device = counting(), torch.device("cpu")
    cases = [
        (recipe(length=32), data, "sequences of 16 tokens, but the config has length 32"),
        (recipe(), replace(data, train=data.train[:0]), "no training sequences: all 10"),
        (recipe(), replace(data, valid=data.valid[:0]), "no validation sequences: all 50"),
        (recipe(train_rows=51), data, "train_rows 51 exceeds the 50"),
    ]
    for config, tokens, message in cases:
        with pytest.raises(cwdfm.InputError, match=message):
            Run(config, tokens, tmp_path, device)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "context", "path_radius": 8}, "path_radius 8 .*path_radius of at most 7"),
        ({"loss": "sce", "loss_radius": 40}, "loss_radius 40 .*loss_radius of at most 7"),
    ],
)
def test_weight_windows_must_fit_the_length(changes: dict[str, object], message: str) -> None:
    with pytest.raises(cwdfm.InputError, match=message):
        recipe(**changes).build(VOCAB)
    recipe(**changes | {name: 7 for name in changes if name.endswith("radius")}).build(VOCAB)
    recipe(path_radius=8, loss_radius=40).build(VOCAB)  # not used by this path and loss


def test_what_a_run_resumes_from(tmp_path: Path) -> None:
    """The same settings and data, wherever the data are; anything else is an error."""
    fit(make_run(tmp_path, recipe(steps=7)))
    for changes, message in (
        ({"learning_rate": 5e-3}, "different: learning_rate"),
        ({"steps": 9}, rf"different: steps.*init {tmp_path}"),
        ({"accumulation": 3}, "batch_size 16 must be a multiple of accumulation"),
    ):
        with pytest.raises(cwdfm.InputError, match=message):
            make_run(tmp_path, recipe(**{"steps": 7, **changes})).resume()
    other = Run(recipe(steps=7), counting(offset=1), tmp_path, torch.device("cpu"))
    with pytest.raises(cwdfm.InputError, match="on different data than counting"):
        other.resume()
    assert make_run(tmp_path, recipe(steps=7, data="elsewhere")).resume()
    meta = checkpoints(tmp_path / "checkpoints")[-1] / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"format": 99}))
    with pytest.raises(cwdfm.InputError, match=r"format 99, .* reads formats 2 to 3"):
        make_run(tmp_path, recipe(steps=7)).resume()


RUNTIME: dict[str, object] = {"accumulation": 2, "compile": False, "parallel": "fsdp", "keep": 5}
RUNTIME |= {"log_every": 3, "validate_every": 11, "checkpoint_every": 9, "elbo_rows": 0}
RUNTIME |= {"previews": 1, "preview_steps": 2}


def test_execution_settings_may_change_on_resume(tmp_path: Path) -> None:
    """The card records the current settings and the earlier ones."""
    assert set(RESUMABLE) | {"validate_every"} == RUNTIME.keys()
    plain, other = recipe(dropout=0.0, steps=14), recipe(dropout=0.0, steps=14, **RUNTIME)
    fit(make_run(tmp_path / "plain", plain))
    shutil.copytree(tmp_path / "plain", tmp_path / "changed")
    shutil.rmtree(tmp_path / "changed" / "checkpoints" / "step-00000014")
    run = make_run(tmp_path / "changed", other)
    assert run.resume()
    fit(run)
    one, two = final_state(tmp_path / "plain"), final_state(tmp_path / "changed")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-6)
    again = make_run(tmp_path / "changed", other.updated(keep=1))
    assert again.resume()
    changed = other.flat()
    before = {k: v for k, v in plain.flat().items() if v != changed[k]}
    assert again.earlier == [{"until": 7, **before}, {"until": 14, "keep": 5}]
    card = cwdfm.load(tmp_path / "changed").card
    assert card["config"] == json.loads(json.dumps(asdict(other)))
    assert card["earlier"] == [{"until": 7, **before}]
    assert "earlier" not in cwdfm.load(tmp_path / "plain").card


def test_validations_that_change_the_objective_keep_their_interval(tmp_path: Path) -> None:
    """Validation of BD3LM searches for a new range of noise levels."""
    settings: dict[str, object] = {"method": "bd3lm", "block": 4, "steps": 7}
    fit(make_run(tmp_path, recipe(**settings)))
    with pytest.raises(cwdfm.InputError, match="different: validate_every"):
        make_run(tmp_path, recipe(**settings, validate_every=3)).resume()
    assert make_run(tmp_path, recipe(**settings, log_every=3)).resume()


def test_objective_state_and_pending_losses_are_restored(tmp_path: Path) -> None:
    blocks = recipe(method="bd3lm", block=2)
    run, again = (make_run(tmp_path, blocks) for _ in range(2))
    run.objective = run.objective.restored({"clip_low": 0.25, "clip_high": 0.75})
    assert run.objective != again.objective
    run.losses = [run.train_step(), run.train_step()]
    run.save()
    assert again.resume()
    assert again.objective == run.objective
    assert [float(loss) for loss in again.losses] == [float(loss) for loss in run.losses]


def test_data_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data may have gigabytes, so they are not hashed again for each checkpoint."""
    hashed = []

    def checksum(*arguments: object) -> str:
        hashed.append(arguments)
        return "checksum"

    monkeypatch.setattr("cwdfm.data.dataset._checksum", checksum)
    fit(make_run(tmp_path, recipe(steps=4, checkpoint_every=1, validate_every=100)))
    assert len(saved_steps(tmp_path)) == 2
    assert len(hashed) == 1


def test_the_best_checkpoint_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation every 4 steps, best at step 8; then the newest two and the best remain."""
    losses = iter([3.0, 1.0, 2.0, 2.5, 2.2])
    monkeypatch.setattr(loop, "validate", lambda run: {"validation_loss": next(losses)})
    settings = recipe(steps=20, validate_every=4, checkpoint_every=3, keep=2)
    run = make_run(tmp_path, settings)
    fit(run)
    assert saved_steps(tmp_path) == [8, 18, 20]
    again = make_run(tmp_path, settings)
    assert again.resume()
    assert (again.best, again.best_step) == (1.0, 8)
    cwdfm.load(tmp_path / "checkpoints" / "step-00000008")  # a trained model like any other
    assert cwdfm.load(tmp_path).card["steps"] == 20  # the run's folder: its newest


@pytest.mark.parametrize(
    ("found", "keep", "best", "kept"),
    [
        ([1, 2], 3, -1, [1, 2]),
        ([1, 2, 3, 4], 1, -1, [4]),
        ([1, 2, 3, 4], 2, 1, [1, 3, 4]),
        ([1, 2, 3, 4], 2, 3, [3, 4]),
        ([1, 4, 7, 9], 2, -1, [1, 4]),  # the later ones are damaged: a run resumed from before them
    ],
)
def test_the_newest_and_the_best_checkpoints_are_kept(
    tmp_path: Path, found: list[int], keep: int, best: int, kept: list[int]
) -> None:
    names = {step: f"step-{step:08d}" for step in found}
    for name in (*names.values(), ".part-00000005"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.json").touch()
    _prune(tmp_path, tmp_path / names[4 if 4 in names else 2], keep, f"step-{best:08d}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [names[step] for step in kept]


@pytest.mark.parametrize("what", ["weights", "average", "exp_avg", "exp_avg_sq"])
def test_non_finite_values_are_detected(tmp_path: Path, what: str) -> None:
    run = make_run(tmp_path, recipe())
    run.train_step()
    assert run.is_finite()
    name, parameter = next(iter(run.model.named_parameters()))
    where = {"weights": parameter.data, "average": run.average.weights[name]}
    (where | run.optimizer.state[parameter])[what].view(-1)[0] = math.nan
    assert not run.is_finite()


def test_metrics_and_previews(whole: Path) -> None:
    lines = [json.loads(x) for x in (whole / "metrics.jsonl").read_text().splitlines()]
    last = lines[-1]
    assert last["step"] == 40
    assert last["validation_loss"] < 0.9 * lines[0]["loss"]
    assert {"elbo", "elbo_error", "valid_share", "tokens_per_second"} <= last.keys()
    assert last["elbo"] > 0
    assert len(read_samples(whole / "previews" / "step-00000040.jsonl").texts) == 2


def test_tensorboard_reads_the_log(tmp_path: Path) -> None:
    """Records after the checkpoint are hidden when the run resumes."""
    for first, last in ((0, 3), (2, 4)):
        board = TensorBoard(tmp_path, first)
        for step in range(first + 1, last + 1):
            board.record({"step": step, "loss": step + first / 10})
        board.close()
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [(e.step, round(e.value, 3)) for e in events] == [(1, 1), (2, 2), (3, 3.2), (4, 4.2)]


def test_wandb_resumes_under_the_same_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake wandb module records the calls; the service itself needs an account."""
    recorded: list[object] = []

    class FakeRun:
        id = "abc"

        def log(self, record: dict[str, object], step: int) -> None:
            recorded.append((step, record))

        def finish(self) -> None:
            recorded.append("end")

    def init(**settings: object) -> FakeRun:
        recorded.append((settings["id"], settings["project"], settings["config"]))
        return FakeRun()

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    for step in (1, 2):
        logger = WeightsAndBiases("mine", tmp_path, {"seed": 0})
        logger.record({"step": step, "loss": 1.0})
        logger.close()
    config = {"seed": 0}
    assert recorded[:3] == [(None, "mine", config), (1, {"step": 1, "loss": 1.0}), "end"]
    assert recorded[3] == ("abc", "mine", config)


def test_training_continues_from_a_trained_model(tmp_path: Path) -> None:
    """The first loss equals that of the trained model, whose settings are kept."""
    trained = cwdfm.load("qm9-mask-small")
    settings = RECIPES["finetune"]().updated(batch_size=32, steps=1).continued_from(trained)
    flat = settings.flat()
    assert (flat["source"], flat["fix_first"], flat["length"]) == ("mask", True, 32)
    assert isinstance(trained.tokenizer, SmilesTokenizer)
    rows = np.array([trained.tokenizer.pack(trained.tokenizer.encode("CCO"), 32)] * 9, np.int16)
    tokens = TokenData("mine", rows[:8], rows[8:], trained.tokenizer, {}, {}, {})
    run = Run(settings, tokens, tmp_path, torch.device("cpu"), init=trained)
    for name, weight in trained.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], weight), name
    assert run.task.model.dropout == settings.model.dropout
    with pytest.raises(cwdfm.InputError, match=r"trained with .*MaskSource.*UniformSource"):
        Run(settings.updated(source="uniform"), tokens, tmp_path, run.device, init=trained)


@pytest.mark.parametrize("said", [True, False])
def test_config_takes_the_settings_of_the_trained_model(said: bool) -> None:
    """If the card does not record `masked_only`, the value of the config is kept."""
    model = DiT(preset("debug", VOCAB + 1, positions=9 if said else 0))
    flow, words = Flow(cwdfm.MaskSource(VOCAB), cwdfm.Polynomial(3.0)), counting().tokenizer
    trained = cwdfm.Pretrained(model, flow, words, 9, said, {"recipe": {"masked_only": said}})
    config = recipe(masked_only=not said, learned_positions=not said)
    settled = config.updated(source="mask", power=3.0, length=9, fix_first=said)
    settled = settled.updated(learned_positions=said, masked_only=said)
    assert config.continued_from(trained) == settled
    unknown = config.continued_from(replace(trained, card={}))
    assert unknown.flat()["masked_only"] is not said


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"dropout": 0.0}, False),
        ({"learned_positions": True}, False),
        ({"fix_first": True}, False),
        ({"source": "uniform"}, False),
    ],
)
def test_dropout_that_reveals_positions_is_detected(
    changes: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    settings = recipe(**{"source": "mask", "dropout": 0.1} | changes)
    run = Run(settings, counting(), tmp_path, torch.device("cpu"))
    assert run.dropout_reveals_positions is expected
    torch.manual_seed(0)  # breaks the symmetry of the initial weights, whose outputs are zero
    for parameter in run.model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.full((1, settings.data.length), run.task.model.num_tokens - 1)
    if settings.data.fix_first:
        x[:, 0] = 0
    outputs = {mode: run.model.train(mode)(x, torch.zeros(1))[0] for mode in (True, False)}
    alike = {mode: torch.allclose(out[1:], out[1:2], atol=1e-3) for mode, out in outputs.items()}
    if settings.flat()["source"] == "mask":
        assert (alike[False] and not alike[True]) is expected


def test_flops_match_the_count_of_torch() -> None:
    """Three times the forward pass, as PyTorch counts it, without the per-sequence operations."""
    config, length = preset("4m", 40, dropout=0.0), 128
    model = DiT(config)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(torch.zeros(2, length, dtype=torch.int64), torch.rand(2))
    count = sum(p.numel() for p in model.parameters())
    ours = training_flops(config, length, count)
    assert ours == pytest.approx(3 * counter.get_total_flops() / (2 * length), rel=0.02)


def test_full_disk_loses_nothing(tmp_path: Path) -> None:
    """Files are limited to 200 kB, so the second file of the checkpoint does not fit."""
    fit(make_run(tmp_path, recipe(steps=7)))
    before = final_state(tmp_path)
    assert ended(save_on_a_full_disk, tmp_path) == 0
    recorded = (tmp_path / "error").read_text()
    assert "step-00000008" in recorded
    assert "Free some disk space" in recorded
    after = final_state(tmp_path)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not list((tmp_path / "checkpoints").glob(".part*"))


def test_metrics_on_a_full_disk_and_with_damaged_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "l{"step": 2}\n[2]}\n{}\n{"step": 3}\n{"step": 2}\n')
    with path.open("ab") as file:
        file.write(b'{"step": 2, "a": "\xff"}\n\xfe\n')
    logger = JsonLines(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    logger.path = Path("/dev/full")
    recorded = r"cannot write /dev/full: No space .*Free some disk space and"
    with pytest.raises(cwdfm.InputError, match=recorded):
        logger.record({"step": 3})


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "Free some disk space"),
        (errno.EDQUOT, "Free some disk space"),
        (errno.EACCES, "permission to write into {}"),
        (errno.EROFS, "file system of {}"),
        (errno.EIO, "Fix this"),
    ],
)
def test_advice_depends_on_the_write_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str
) -> None:
    run, folder = make_run(tmp_path, recipe(steps=7)), tmp_path / "checkpoints"
    folder.mkdir()

    def fails(*_: object) -> None:
        raise SafetensorError(f"Error while serializing: I/O error: words (os error {code}) at x")

    monkeypatch.setattr("safetensors.torch.save_file", fails)
    with pytest.raises(cwdfm.InputError) as recorded:
        run.save()
    for fact in ("step-00000000", os.strerror(code), advice.format(folder)):
        assert fact in str(recorded.value)
    assert not list(folder.iterdir())


def test_divergence_stops_with_a_diagnosis(tmp_path: Path) -> None:
    fit(make_run(tmp_path, recipe(steps=7)))
    run = make_run(tmp_path, recipe(steps=7))
    run.resume()
    good = final_state(tmp_path)
    run.config = recipe(steps=40)  # continue with NaN weights
    with torch.no_grad():
        next(run.model.parameters()).fill_(torch.nan)
    with pytest.raises(Diverged, match=r"NaN by step 10.*step-00000007 is kept.*learning rate"):
        fit(run)
    kept = final_state(tmp_path)
    assert all(torch.equal(good[name], kept[name]) for name in good)


def test_non_finite_weights_are_never_saved(tmp_path: Path) -> None:
    """The weights become NaN between two records, while the loss is finite; saving detects it."""
    run = make_run(tmp_path, recipe(steps=40, log_every=20, checkpoint_every=3))
    run.resume()
    whole_step = run.train_step

    def spoilt() -> torch.Tensor:
        loss = whole_step()
        if run.step == 5:
            with torch.no_grad():
                next(run.model.parameters())[0] = torch.nan
            return torch.tensor(1.0)
        return loss

    run.train_step = spoilt  # type: ignore[method-assign]
    with pytest.raises(Diverged, match=r"weights are NaN or infinite by step 6.*step-00000003"):
        fit(run)
    assert saved_steps(tmp_path) == [3]
    assert all(torch.isfinite(x).all() for x in final_state(tmp_path).values())


@pytest.mark.parametrize("at", [{"elbo_rows": 4}, {"previews": 2}])
def test_non_finite_validation_is_a_divergence(tmp_path: Path, at: dict[str, int]) -> None:
    """It is not reported as an input error, although the loss has not been checked yet."""
    quiet = {"elbo_rows": 0, "previews": 0, "validate_every": 2, "log_every": 20}
    run = make_run(tmp_path, recipe(**quiet | at))
    with torch.no_grad():
        next(run.model.parameters()).fill_(torch.nan)
    with pytest.raises(Diverged, match=r"predictions are NaN or infinite by step 2 \(learning"):
        fit(run)
    assert not saved_steps(tmp_path)


def test_large_loss_from_the_hazard_is_not_a_divergence(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe(loss="nelbo", source="mask"))
    loop.check_loss(run, 140.0)
    for wrong in (math.nan, math.inf, 1e6):
        with pytest.raises(Diverged):
            loop.check_loss(run, wrong)
    with pytest.raises(Diverged, match="has exploded to 140"):
        loop.check_loss(make_run(tmp_path, recipe()), 140.0)


def test_only_damaged_checkpoints_is_an_error(tmp_path: Path) -> None:
    fit(make_run(tmp_path, recipe(steps=14, keep=1, validate_every=100)))
    for path in checkpoints(tmp_path / "checkpoints"):
        (path / "training.safetensors").write_bytes(b"nothing")
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(cwdfm.InputError, match="no other checkpoint to resume from; delete"),
    ):
        make_run(tmp_path, recipe(steps=14, keep=1, validate_every=100)).resume()


def test_damaged_newer_checkpoint_does_not_evict_a_good_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe(keep=1))
    run.step = 7
    run.save()
    shutil.copytree(
        tmp_path / "checkpoints" / "step-00000007", tmp_path / "checkpoints" / "step-00000014"
    )
    (tmp_path / "checkpoints" / ".part-00000021").mkdir()
    run.save()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000007"]
    (tmp_path / "checkpoints" / "step-00000007" / "notes.txt").write_text("of the user")
    run.step = run.best_step = 8
    run.save()
    assert saved_steps(tmp_path) == [8]
    left = (tmp_path / "checkpoints" / "step-00000007").iterdir()
    assert [path.name for path in left] == ["notes.txt"]


def test_learning_rate_schedule() -> None:
    r = recipe(warmup=10, steps=110, learning_rate=1.0, min_learning_rate=0.1).optimizer
    assert learning_rate(r, 0) == pytest.approx(0.1)
    assert learning_rate(r, 9) == pytest.approx(1.0)
    assert learning_rate(r, 60) == pytest.approx(0.55)
    assert learning_rate(r, 110) == pytest.approx(0.1)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("source", ["mask", "uniform"])
@pytest.mark.parametrize("loss", ["ce", "nelbo", "bregman", "sce"])
@pytest.mark.parametrize("path", ["mixture", "context"])
def test_every_recipe_can_be_trained(name: str, source: str, loss: str, path: str) -> None:
    """The objects fit together: the loss of two sequences is evaluated once."""
    base = RECIPES[name]()
    settings: dict[str, object] = {"source": source, "loss": loss, "path": path}
    if loss != "sce":
        settings["masked_only"] = source == "mask"
    reasons = {"bregman": "needs a mask source", "nelbo": "leaves out revealed tokens"}
    if (source, path) == ("uniform", "context") and loss in reasons:
        with pytest.raises(cwdfm.InputError, match=f"on a context path {reasons[loss]}"):
            base.updated(**settings).build(33)
        return
    task = base.updated(**settings).build(33)
    assert task.model.num_tokens == task.method.num_tokens
    x_1 = torch.zeros(2, base.data.length, dtype=torch.int64)
    readout = torch.nn.Linear(4, task.method.num_tokens)
    t, fixed = torch.tensor([0.3, 0.6]), torch.zeros_like(x_1, dtype=torch.bool)
    batch = DataBatch(x_1, t, fixed, torch.arange(2), seed=0, step=0)
    value = task.objective(lambda x, t, read: read(torch.ones(*x.shape, 4), readout), batch)
    assert torch.isfinite(value)


COLUMNS = ["data", "batch_size", "length", "learning_rate", "min_learning_rate", "warmup"]
COLUMNS += ["weight_decay", "steps"]
PAPER = {
    "qm9-paper": ("qm9", 2048, 32, 3e-5, 3e-7, 1000, 0.01, 25_000),
    "owt-paper": ("openwebtext", 512, 1024, 3e-4, 3e-6, 2500, 0.03, 1_000_000),
}


@pytest.mark.parametrize("name", PAPER)
def test_paper_recipes_match_the_paper(name: str) -> None:
    """The paper's table of hyperparameters, written out; kappa = t^2 and the betas are shared."""
    flat = RECIPES[name]().flat()
    table = dict(zip(COLUMNS, PAPER[name], strict=True))
    table |= {"beta1": 0.9, "beta2": 0.999, "power": 2.0, "model": "base"}
    assert {field: flat[field] for field in table} == table


def test_invalid_configs() -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"batch_size": 0}, "batch_size must be an integer >= 1"),
        ({"accumulation": 3}, "multiple of accumulation"),
        ({"ema": 1.0}, r"ema must lie in \[0, 1\)"),
        ({"beta1": 2.0}, r"beta1 must lie in \[0, 1\)"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number >= 0"),
        ({"min_learning_rate": -1.0}, "min_learning_rate must be a finite number >= 0"),
        ({"warmup": -5}, "warmup must be an integer >= 0"),
        ({"preview_steps": 0}, "preview_steps must be an integer >= 1"),
        ({"keep": 1.5}, "keep must be an integer >= 1"),
        ({"seed": -1}, "seed"),
        ({"precision": "bf16"}, "precision must be one of 'float32', 'bfloat16', .*got 'bf16'"),
        ({"parallel": "deepspeed"}, "parallel must be one of 'ddp', 'fsdp', got 'deepspeed'"),
        ({"loss": "mse"}, "one of 'ce', 'nelbo', 'bregman', 'sce'"),
    ]
    for changes, message in cases:
        with pytest.raises(cwdfm.InputError, match=message):
            recipe(**changes)
    with pytest.raises(cwdfm.InputError, match="needs a mask source"):
        recipe(loss="bregman", masked_only=True).build(33)
    assert TrainConfig().optimizer.batch_size == 2048
