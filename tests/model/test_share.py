"""Sharing models through a hub on this machine, with the real client."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
from cwdfm.data.text.tokenizer import ByteTokenizer
from tests.support.fake_hub import TOKEN, FakeHub, serve_hub
from tests.support.tiny import tiny_model

NAME = "someone/small"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serve_hub(tmp_path / "cache", monkeypatch) as found:
        yield found


def small() -> cwdfm.Pretrained:
    return tiny_model(ByteTokenizer())


def test_push_and_load(hub: FakeHub) -> None:
    """A pushed model loads again, byte for byte; each revision keeps its own."""
    first, second = small(), small()
    with torch.no_grad():
        second.model.readout.weight.add_(1.0)
    url = first.push_to_hub(NAME, token=TOKEN, metadata={"license": "mit"})
    commit = hub.repositories[NAME].branches["main"]
    assert url == f"{hub.url}/{NAME}/commit/{commit}"
    assert set(hub.repositories[NAME].commits[commit]) == {
        "config.json",
        "model.safetensors",
        "README.md",
    }
    second.push_to_hub(NAME, token=TOKEN)
    second.push_to_hub(NAME, token=TOKEN, revision="half", dtype=torch.float16)
    assert cwdfm.load(NAME).fingerprint() == second.fingerprint()
    assert cwdfm.load(NAME, revision=commit).fingerprint() == first.fingerprint()
    assert cwdfm.load(f"{NAME}@{commit}").fingerprint() == first.fingerprint()
    assert cwdfm.Pretrained.from_pretrained(NAME).fingerprint() == second.fingerprint()
    half = cwdfm.load(NAME, revision="half").model.readout.weight
    assert torch.equal(half, second.model.readout.weight.half().float())


def test_model_card(hub: FakeHub) -> None:
    """Its header has the metadata; its code runs; an edited card is kept."""
    yaml = pytest.importorskip("yaml")
    small().push_to_hub(NAME, token=TOKEN, metadata={"license": "mit", "language": "en"})
    repository = hub.repositories[NAME]
    card = repository.commits[repository.branches["main"]]["README.md"].decode()
    _, header, body = card.split("---\n", 2)
    found = yaml.safe_load(header)
    assert (found["library_name"], found["license"], found["language"]) == ("cwdfm", "mit", "en")
    assert found["pipeline_tag"] == "text-generation"
    code = body.split("```python\n")[1].split("```")[0]
    assert f'"{NAME}"' in code
    exec(code, {})
    repository.commit("main", {"README.md": b"edited"})
    small().push_to_hub(NAME, token=TOKEN)
    assert repository.commits[repository.branches["main"]]["README.md"] == b"edited"


def test_only_what_is_read_is_downloaded(hub: FakeHub, tmp_path: Path) -> None:
    """Neither code nor pickles, unless there is nothing else."""
    place = tmp_path / "model"
    small().save_pretrained(place)
    for name in ("modeling.py", "pytorch_model.bin", "notes.md"):
        (place / name).write_text("")
    hub.add(NAME, place)
    cwdfm.load(NAME)
    asked = " ".join(hub.requests)
    assert "model.safetensors" in asked
    assert not any(name in asked for name in ("modeling.py", "pytorch_model.bin", "notes.md"))
    assert asked.count(f"/api/models/{NAME}/revision/main") == 1


def test_cached_models_load_without_a_network(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small().save_pretrained(tmp_path / "model")
    hub.add(NAME, tmp_path / "model")
    cwdfm.load(NAME)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert cwdfm.load(NAME).length == small().length
    with pytest.raises(cwdfm.InputError, match=r"cannot be reached.*someone/other --local-dir"):
        cwdfm.load("someone/other")
    with pytest.raises(cwdfm.InputError, match=r"cannot be reached.*save_pretrained"):
        small().push_to_hub(NAME, token=TOKEN)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: cwdfm.load(NAME), lambda: small().push_to_hub(NAME)):
        with pytest.raises(cwdfm.InputError, match=r"cwdfm\[hub\]"):
            call()


def test_invalid_input(hub: FakeHub, tmp_path: Path) -> None:
    small().save_pretrained(tmp_path / "model")
    hub.add(NAME, tmp_path / "model")
    hub.add("someone/gated", tmp_path / "model")
    hub.repositories["someone/gated"].gated = True
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"length": 9}))
    hub.add("someone/damaged", tmp_path / "model")
    model: Any = small()
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: cwdfm.load("someone/other"), "neither.*someone/other.*hf auth login"),
        (lambda: cwdfm.load(NAME, revision="v9"), "no revision 'v9'"),
        (lambda: cwdfm.load(f"{NAME}@v9"), "no revision 'v9'"),
        (lambda: cwdfm.load("someone/gated"), "gated.*terms"),
        (lambda: cwdfm.load("someone/damaged"), "config.json"),
        (lambda: cwdfm.load("some/where/else"), "neither.*owner/name"),
        (lambda: cwdfm.load(tmp_path / "model", revision="main"), "revision='main'.*hub"),
        (lambda: model.push_to_hub(NAME, token="hf_wrong"), "rejected.*401"),
        (lambda: model.push_to_hub(NAME, token=TOKEN, dtype=torch.int8), "dtype"),
    ]
    for call, facts in wrong:
        with pytest.raises(cwdfm.InputError, match=facts):
            call()
