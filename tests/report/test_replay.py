"""Recordings of a generation, and the page that plays them."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm import Euler, InputError, Neighbor, Polynomial, UniformSource
from cwdfm.cli import replay, sample
from cwdfm.data.smiles import SmilesTokenizer
from cwdfm.data.text.tokenizer import CharacterTokenizer
from cwdfm.report.replay import replay_page
from cwdfm.solver.recording import ALTERNATIVES, Recording
from cwdfm.solver_config import SOLVERS
from cwdfm.source import MaskSource, Source
from tests.support.recordings import revealed_in_order

VOCAB, LENGTH, STEPS = 5, 6, 12
OF_BASELINES = {"left-to-right", "analytic", "score-euler"}  # solvers of no flow
WEIGHTED = Euler(weight=Neighbor(radius=1))
TOKENIZER = CharacterTokenizer.build(["<&ab"]).to_json()


def logits_of(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """A model that depends on the neighbors, so that predictions differ between steps."""
    table = torch.arange((VOCAB + 1) ** 2, dtype=torch.float32).view(VOCAB + 1, -1).sin()
    return table[x.roll(1, 1)] * 3


def record(source: Source, solver: Any = None, **options: Any) -> cwdfm.Samples:
    return cwdfm.sample(
        lambda x, t: logits_of(x, t)[..., : source.num_tokens],
        source,
        Polynomial(2.0),
        solver or Euler(),
        shape=(7, LENGTH),
        steps=STEPS,
        seed=3,
        **options,
    )


def recorded(source: Source, **options: Any) -> Recording:
    recording = record(source, **options).recording
    assert recording is not None
    return recording


@pytest.mark.parametrize("source", [MaskSource(VOCAB), UniformSource(VOCAB)], ids=str)
@pytest.mark.parametrize("solver", [Euler(), WEIGHTED], ids=["plain", "neighbor"])
def test_a_recording_matches_the_sampled_states(source: Source, solver: Euler) -> None:
    states: list[torch.Tensor] = []
    record(source, solver, callback=lambda state, _: states.append(state.tokens[:3]))
    samples = record(source, solver, record=3, batch_size=4)
    recording = samples.recording
    assert recording is not None
    for step, tokens in enumerate(states, start=1):
        assert np.array_equal(recording.at(step), tokens.numpy())
    assert torch.equal(samples.tokens, record(source, solver).tokens)
    assert np.allclose(recording.times, np.linspace(0, 1, STEPS + 1))


@pytest.mark.parametrize("name", sorted(SOLVERS.keys() - OF_BASELINES))
def test_every_solver_can_be_recorded(name: str) -> None:
    """The recording has the states of each step, and recording does not change the samples."""
    count = 0
    for source in (MaskSource(VOCAB), UniformSource(VOCAB)):
        states: list[torch.Tensor] = []
        try:
            plain = record(
                source,
                cwdfm.make_solver(name),
                callback=lambda state, _, states=states: states.append(state.tokens[:2]),
            )
        except InputError:  # of some solvers, for a uniform source
            continue
        samples = record(source, cwdfm.make_solver(name), record=2)
        assert samples.recording is not None
        assert torch.equal(samples.tokens, plain.tokens)
        for step, tokens in enumerate(states, start=1):
            assert np.array_equal(samples.recording.at(step), tokens.numpy())
        replay_page([samples.recording])
        count += 1
    assert count


@pytest.mark.parametrize("source", [MaskSource(VOCAB), UniformSource(VOCAB)], ids=str)
def test_entropies_and_alternatives_are_the_models(source: Source) -> None:
    recording = recorded(source, record=3)
    assert len(recording.move_step)
    for m, step in enumerate(recording.move_step):
        r, i = recording.move_sequence[m], recording.move_position[m]
        x = torch.from_numpy(recording.at(int(step))).long()
        p = logits_of(x, torch.zeros(3))[..., :VOCAB].softmax(-1)[r, i]
        best = p.topk(ALTERNATIVES)
        assert recording.move_alternatives[m].tolist() == best.indices.tolist()
        assert recording.move_probabilities[m] == pytest.approx(best.values.numpy(), abs=1e-3)
        entropy = -float((p * p.log()).sum()) / math.log(VOCAB) * 255
        assert int(recording.entropy[step, r, i]) == pytest.approx(entropy, abs=0.51)


def test_weights_average_to_one_over_masked_positions() -> None:
    recording = recorded(MaskSource(VOCAB), solver=WEIGHTED, record=3)
    alphas = recording.alphas()
    for step in range(STEPS - 1):  # the last step moves everything, without weights
        for r, row in enumerate(recording.at(step) == VOCAB):
            assert np.array_equal(np.isfinite(alphas[step, r]), row)
            if row.any():
                assert np.nanmean(alphas[step, r]) == pytest.approx(1, rel=0.02)


def test_a_saved_recording_loads(tmp_path: Path) -> None:
    recording = recorded(MaskSource(VOCAB), record=True)
    recording = replace(recording, labels={"tokenizer": TOKENIZER, "name": "Euler"})
    recording.save(tmp_path / "a.npz")
    again = Recording.load(tmp_path / "a.npz")
    assert again.labels == recording.labels
    assert np.array_equal(again.tokens, recording.tokens)
    assert (again.mask_id, again.vocab_size) == (VOCAB, VOCAB)


def test_damaged_recordings_are_rejected(tmp_path: Path) -> None:
    recording = recorded(MaskSource(VOCAB), record=2)
    path = tmp_path / "a.npz"
    none = {name: getattr(recording, name)[:, :0] for name in ("entropy", "alpha")}
    for change in (
        {"move_position": recording.move_position + LENGTH},
        {"move_token": recording.move_token + 100},
        {"entropy": recording.entropy[1:]},
        {"move_step": recording.move_step[::-1].copy()},
        {"start": recording.start.astype(np.float64)},
        {"times": np.full_like(recording.times, np.nan)},
        {"move_probabilities": np.full_like(recording.move_probabilities, np.nan)},
        {"start": recording.start[:0], "fixed": recording.fixed[:0], **none},
        {"vocab_size": "5"},
    ):
        replace(recording, **change).save(path)
        with pytest.raises(InputError, match=re.escape(str(path))):
            Recording.load(path)
    with pytest.raises(InputError, match=r"missing\.npz"):
        Recording.load(tmp_path / "missing.npz")
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        Recording.load(tmp_path)


def test_a_recording_with_any_damaged_byte_loads_or_is_rejected(tmp_path: Path) -> None:
    recording = recorded(MaskSource(VOCAB), record=1)
    path, rng, rejected = tmp_path / "a.npz", np.random.default_rng(0), 0
    recording.save(path)
    whole = path.read_bytes()
    damaged = [whole[:n] for n in rng.integers(0, len(whole), 20)]
    for place in rng.integers(0, len(whole), 200):
        flipped = bytes([whole[place] ^ 0xFF])
        damaged += [whole[:place] + flipped + whole[place + 1 :]]
    for content in damaged:
        path.write_bytes(content)
        try:
            Recording.load(path)  # bytes of timestamps and the like do not matter
        except InputError:
            rejected += 1
    assert rejected > 100


def test_other_formats_and_huge_recordings_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = recorded(MaskSource(VOCAB), record=2)
    path = tmp_path / "a.npz"
    monkeypatch.setattr("cwdfm.solver.recording.FORMAT", 2)
    recording.save(path)
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"format 2.* 1"):
        Recording.load(path)
    recording.save(path)
    monkeypatch.setattr("cwdfm.solver.recording.MAX_BYTES", 1000)
    with pytest.raises(InputError, match=r"a\.npz.*GiB"):
        Recording.load(path)
    monkeypatch.setattr("cwdfm.report.replay.MAX_CELLS", 2 * STEPS * LENGTH)
    replay_page([recording])
    with pytest.raises(InputError, match=f"{4 * STEPS * LENGTH}"):
        replay_page([recording, recording])


def test_a_recording_too_large_to_load_is_rejected_before_the_first_step() -> None:
    def model(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no evaluation is expected")

    with pytest.raises(InputError, match="record"):
        cwdfm.sample(
            model,
            MaskSource(3),
            Polynomial(2.0),
            Euler(),
            shape=(64, 9000),
            steps=1000,
            record=True,
        )


def test_a_recording_without_a_tokenizer_shows_ids() -> None:
    recording = recorded(UniformSource(VOCAB), record=1)
    page = replay_page([recording])
    assert " ".join(map(str, recording.tokens[0].tolist())) in page


@pytest.mark.parametrize(
    "tokenizer", [{"kind": "new"}, {"kind": "smiles"}, CharacterTokenizer.build(["a"]).to_json()]
)
def test_a_tokenizer_that_does_not_fit_names_the_recording(tokenizer: object) -> None:
    recording = recorded(UniformSource(VOCAB), record=1)
    with pytest.raises(InputError, match="euler, 12 steps"):
        replay_page(
            [replace(recording, labels={"tokenizer": tokenizer, "name": "euler, 12 steps"})]
        )


@pytest.mark.parametrize("record_", [-1, 65, 2.5, "all"])
def test_impossible_numbers_of_recorded_sequences_are_rejected(record_: object) -> None:
    with pytest.raises(InputError, match="record"):
        record(MaskSource(VOCAB), record=record_)


def test_a_long_recording_is_small(tmp_path: Path) -> None:
    steps = length = 1024
    rng = np.random.default_rng(0)
    moves = 3 * length
    left = np.linspace(1, 0, steps)[:, None, None] > rng.random((steps, 1, length))
    recording = Recording(
        start=np.full((1, length), 50257, np.int32),
        fixed=np.zeros((1, length), bool),
        times=np.linspace(0, 1, steps + 1),
        move_step=np.sort(rng.integers(0, steps, moves)).astype(np.int32),
        move_sequence=np.zeros(moves, np.int32),
        move_position=rng.integers(0, length, moves).astype(np.int32),
        move_token=rng.integers(0, 50257, moves).astype(np.int32),
        move_alternatives=rng.integers(0, 50257, (moves, ALTERNATIVES)).astype(np.int32),
        move_probabilities=rng.random((moves, ALTERNATIVES)).astype(np.float16),
        entropy=(rng.integers(0, 256, (steps, 1, length)) * left).astype(np.uint8),
        alpha=(rng.integers(64, 192, (steps, 1, length)) * left).astype(np.uint8),
        vocab_size=50257,
        mask_id=50257,
    )
    recording.save(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").stat().st_size < 5e6
    assert np.array_equal(Recording.load(tmp_path / "a.npz").tokens, recording.tokens)


def test_hostile_tokens_stay_text() -> None:
    tokenizer = CharacterTokenizer.build(["</script><img src=x onerror=alert(1)>{{data}}"])
    size = tokenizer.vocab_size
    recording = cwdfm.sample(
        lambda x, t: torch.zeros(*x.shape, size + 1),
        MaskSource(size),
        Polynomial(2.0),
        Euler(),
        shape=(2, 24),
        steps=4,
        record=2,
    ).recording
    assert recording is not None
    name = "</script><b>"
    page = replay_page(
        [replace(recording, labels={"tokenizer": tokenizer.to_json(), "name": name})], "{{data}}<i>"
    )
    assert page.count("</script>") == 2
    assert "<b>" not in page
    assert "<i>" not in page
    data = json.loads(page.split('type="application/json">')[1].split("</script>")[0])
    assert data["runs"][0]["name"] == name
    words = {int(k): v for k, v in data["runs"][0]["words"].items()}
    assert all(words[i] == tokenizer.decode([i]) for i in words if i < size - 1 and words[i] != "∅")


def test_molecules_are_drawn_once_they_parse() -> None:
    tokenizer = SmilesTokenizer.build(["C1CC1O"])
    row = [tokenizer.bos_id, *tokenizer.encode("CCO"), tokenizer.eos_id]
    recording = revealed_in_order(tokenizer, row)
    page = replay_page([recording])
    run = json.loads(page.split('type="application/json">')[1].split("</script>")[0])["runs"][0]
    assert run["samples"][0]["drawing"] == [-2] * len(row) + [0]
    assert run["drawings"][0].startswith("<svg")
    assert run["samples"][0]["text"] == "CCO"


def test_commands_record_and_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.smi"
    command = ["qm9-mask-small", "--n", "3", "--steps", "6", "--out", str(out), "--record"]
    sample.main(command)
    assert f"cwdfm replay {tmp_path / 'a.recording.npz'}" in capsys.readouterr().out
    recording = Recording.load(tmp_path / "a.recording.npz")
    tokenizer = cwdfm.load("qm9-mask-small").tokenizer
    assert [tokenizer.decode(row) for row in recording.tokens.tolist()] == out.read_text().split()
    replay.main([str(tmp_path / "a.recording.npz"), "--title", "Three molecules"])
    assert "Three molecules" in (tmp_path / "a.html").read_text()
    with pytest.raises(InputError, match=r"a\.html.*--force"):
        replay.main([str(tmp_path / "a.recording.npz")])
    with pytest.raises(InputError, match="--reject-below"):
        sample.main([*command, "--force", "--reject-below", "0.5"])


def test_a_command_killed_after_its_recording_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["qm9-mask-small", "--n", "3", "--steps", "6", "--record", "--out"]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sample, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            sample.main([*command, str(tmp_path / "a.jsonl")])
    sample.main([*command, str(tmp_path / "a.jsonl")])
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["a.jsonl", "a.recording.npz"]
    with pytest.raises(InputError, match=r"a\.recording\.npz.*--force"):
        sample.main([*command, str(tmp_path / "a.smi")])
