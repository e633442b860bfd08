"""Trained models on disk and bundled models."""

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cwdfm
from cwdfm.data import SmilesTokenizer
from cwdfm.errors import NotInstalled
from cwdfm.method import Flow
from cwdfm.metrics.molecule import score_molecules
from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT
from tests.support.cases import slow


def small() -> cwdfm.Pretrained:
    torch.manual_seed(0)
    source = cwdfm.MaskSource(6)
    model = DiT(preset("debug", source.num_tokens, positions=8))
    torch.nn.init.normal_(model.readout.weight)
    tokenizer = SmilesTokenizer(("C", "N", "O"))
    return cwdfm.Pretrained(
        model.eval(), Flow(source, cwdfm.Cosine()), tokenizer, 8, True, {"data": "none"}
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    small().save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def test_round_trip(saved: Path) -> None:
    before, after = small(), cwdfm.load(saved)
    x, t = torch.randint(0, 7, (3, 8)), torch.rand(3)
    assert torch.equal(before.model(x, t), after.model(x, t))
    for name in ("method", "source", "schedule", "tokenizer", "length", "fix_first", "card"):
        assert getattr(after, name) == getattr(before, name)
    assert not after.model.training  # dropout is off


def test_fingerprint_covers_weights_and_config(saved: Path) -> None:
    before = small()
    assert cwdfm.load(saved).fingerprint() == before.fingerprint()
    assert replace(before, card={"data": "other"}).fingerprint() == before.fingerprint()
    other = small()
    with torch.no_grad():
        other.model.readout.bias[3] += 0.5
    changed = [
        other,
        replace(before, method=Flow(before.source, cwdfm.Linear())),
        replace(before, tokenizer=SmilesTokenizer(("N", "C", "O"))),
        replace(before, length=7),
        replace(before, fix_first=False),
    ]
    assert len({model.fingerprint() for model in (before, *changed)}) == 1 + len(changed)


def test_weights_in_half_precision(tmp_path: Path) -> None:
    before = small()
    before.save_pretrained(tmp_path / "m", torch.float16)
    after = cwdfm.load(tmp_path / "m").model.state_dict()
    for name, weight in before.model.state_dict().items():
        assert after[name].dtype == weight.dtype
        assert torch.equal(after[name], weight.half().to(weight.dtype))


def test_unavailable_device_is_not_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes first and once; no checkpoint of a run is reported as damaged."""
    allowed = "device must be auto, cpu, cuda or cuda:NUMBER, got "
    small().save_pretrained(tmp_path / "checkpoints" / "step-00000001")
    for load in (cwdfm.load, cwdfm.Pretrained.from_pretrained):
        for wrong in ("gpu0", "", 1.5, "vulkan", "meta"):
            with pytest.raises(cwdfm.InputError, match=f"{allowed}{wrong!r}"):
                load(tmp_path, device=wrong)  # type: ignore[arg-type]
        for wrong in ("gpu0", "cuda:x", "3"):  # torch would list twenty kinds, most of no use here
            with pytest.raises(
                cwdfm.InputError, match=rf"{allowed}'{wrong}' \(it does not exist\)$"
            ):
                load(tmp_path, device=wrong)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(cwdfm.InputError, match=rf"{allowed}'cuda' \(CUDA is not available"):
            load(tmp_path, device="cuda")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        with pytest.raises(cwdfm.InputError, match=r"got 'cuda:2' \(the last of 2 .*\)"):
            load(tmp_path, device="cuda:2")


def test_device_errors_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running out of memory, for example, does not mean that the model is damaged."""

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(DiT, "to", full)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        cwdfm.load("qm9-uniform-small")


def test_a_missing_extra_is_not_reported_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(NotInstalled, match=r"^tokenizers is required.*cwdfm\[text\]'$"):
        cwdfm.load("novels-small")


def test_invalid_folders(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(
        cwdfm.InputError, match=r"neither a folder nor a bundled model.*qm9-mask-small"
    ):
        cwdfm.load("qm9-huge")
    with pytest.raises(cwdfm.InputError, match=r"config\.json is missing"):
        cwdfm.load(tmp_path)
    config = saved / "config.json"
    written = json.loads(config.read_text())
    cases: list[tuple[dict[str, object], str]] = [
        ({"format": 99}, "reads formats up to"),
        ({"method": {"class": "os.system"}}, "'os.system', which this version does not support"),
        ({"method": {"class": "Flow", "speed": 3}}, "sets speed of Flow"),
    ]
    for change, message in cases:
        config.write_text(json.dumps({**written, **change}))
        with pytest.raises(cwdfm.InputError, match=message):
            cwdfm.load(saved)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "recipe.json").write_text("{}")
    with pytest.raises(cwdfm.InputError, match="begun is a training run without a checkpoint"):
        cwdfm.load(tmp_path / "begun")


def test_damaged_folders(saved: Path) -> None:
    weights, config = saved / "model.safetensors", saved / "config.json"
    whole, written = weights.read_bytes(), json.loads(config.read_text())
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(cwdfm.InputError, match=r"is damaged, .*model\.safetensors"):
        cwdfm.load(saved)
    weights.write_bytes(whole)
    larger = {**written["model"], "width": 128}
    unchecked = {name: value for name, value in written.items() if name != "sha256"}
    changed = ({**written, "model": larger}, {**written, "format": 2}, unchecked)
    for text in (*map(json.dumps, changed), "{", '{"format": 1}'):
        config.write_text(text)
        with pytest.raises(cwdfm.InputError, match=r"is damaged, or its config\.json and weights"):
            cwdfm.load(saved)


def test_invalid_config_values_are_named(saved: Path) -> None:
    """The error names the file and the value, and comes before memory is allocated."""
    config = saved / "config.json"
    written = {**json.loads(config.read_text()), "format": 2}
    del written["sha256"]  # format 2 has none, and may be edited
    network, source = written["model"], written["method"]["source"]
    changes: list[tuple[dict[str, object], str]] = [
        (
            {"length": "8"},
            r"config\.json is invalid: length must be an integer >= 1, got '8'; copy",
        ),
        ({"length": -8}, "is invalid: length must be an integer >= 1, got -8"),
        ({"length": 10**20}, "is invalid: length must be an integer <= 1,000,000"),
        ({"fix_first": "no"}, "is invalid: fix_first must be a bool such as true, got 'no'"),
        ({"card": []}, "is invalid: card must be a dict"),
        ({"model": {**network, "depth": 10**9}}, "is invalid: depth must be an integer <= 10,000"),
        (
            {"model": {**network, "width": -64}},
            "is invalid: width must be an integer >= 1, got -64",
        ),
        ({"model": {**network, "width": 2**20}}, r"is damaged, or .* weights differ"),
        ({"model": {**network, "dropout": None}}, "is invalid: dropout must lie in"),
        ({"model": {**network, "num_tokens": 9}}, "9 token ids, the method 7 and the tokenizer 6"),
        ({"model": source}, "is invalid: model must be a DiTConfig"),
        ({"method": source}, "is invalid: method must be a Method"),
        ({"method": {**written["method"], "source": 6}}, "is invalid: source must be a Source"),
        ({"method": {**written["method"], "schedule": source}}, "schedule must be a Schedule"),
        ({"tokenizer": {"kind": "bytes"}}, "the tokenizer 257"),
        ({"format": 0}, "is invalid: format must be an integer >= 1, got 0"),
        ({"lenght": 9}, "is invalid: unknown fields lenght; the known .* card, .* under card"),
        ({"schedule": {}, "source": source}, "unknown fields schedule, source; .* method,"),
    ]
    for change, message in changes:
        config.write_text(json.dumps({**written, **change}))
        with pytest.raises(cwdfm.InputError, match=message):
            cwdfm.load(saved)


def test_damaged_checkpoint_of_a_run_is_skipped(tmp_path: Path) -> None:
    for step in (1, 2):
        folder = tmp_path / "checkpoints" / f"step-0000000{step}"
        small().save_pretrained(folder)
        digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        meta = {"sha256": {"model.safetensors": digest if step == 1 else "0" * 64}}
        (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.warns(UserWarning, match=r"step-00000002 is damaged.*checksum.*the previous one"):
        assert cwdfm.load(tmp_path).length == 8
    (tmp_path / "checkpoints" / "step-00000001" / "config.json").write_text("{")
    last = pytest.raises(
        cwdfm.InputError, match=r"step-00000001 is damaged.*copy or train the model"
    )
    with pytest.warns(UserWarning, match="step-00000002 is damaged"), last:
        cwdfm.load(tmp_path)  # the error is about the checkpoint, not its folder


@pytest.mark.parametrize("name", ["qm9-mask-small", slow("qm9-uniform-small")])
def test_bundled_models(name: str) -> None:
    """They are small and complete, and most of 16 samples at 48 steps are valid (recorded: 70%)."""
    assert name in cwdfm.bundled_models()
    folder = Path(cwdfm.__file__).parent / "bundled" / name
    assert (folder / "model.safetensors").stat().st_size <= 8_000_000
    trained = cwdfm.load(name)
    assert {"data", "training", "recipe", "steps"} <= trained.card.keys()
    out = cwdfm.generate(trained, cwdfm.Euler(weight=cwdfm.Neighbor(1, 4.0)), n=16, steps=48)
    texts = [trained.tokenizer.decode(row) for row in out.tokens.tolist()]
    assert score_molecules(texts, None).valid.mean >= 8
