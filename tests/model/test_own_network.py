"""Models with a network of the user's own class: saved without code, loaded with consent."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cwdfm
from cwdfm.data import SmilesTokenizer
from cwdfm.errors import InputError
from cwdfm.method import Flow
from cwdfm.sample_file import read_samples
from cwdfm.train.config import settings_of
from tests.support.command import rejected, succeeded

PATH = f"{__name__}:Net"
TOKENS = ("C", "N", "O")


class Net(nn.Module):
    """A plain network in float64, with tied weights and an integer buffer."""

    offset: Tensor

    def __init__(self, num_tokens: int, width: int = 8) -> None:
        super().__init__()
        self.config = {"num_tokens": num_tokens, "width": width}
        self.embedding = nn.Embedding(num_tokens, width, dtype=torch.float64)
        self.readout = nn.Linear(width, num_tokens, bias=False, dtype=torch.float64)
        self.readout.weight = self.embedding.weight
        self.register_buffer("offset", torch.tensor([2**40 + 1]))

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        hidden = self.embedding(x_t) + t[:, None, None]
        mixed: Tensor = self.readout(hidden + hidden.roll(1, 1))
        return mixed


def trained(**config: Any) -> cwdfm.Pretrained:
    torch.manual_seed(0)
    tokenizer = SmilesTokenizer(TOKENS)
    source = cwdfm.MaskSource(tokenizer.vocab_size)
    network = Net(**{"num_tokens": source.num_tokens} | config)
    return cwdfm.Pretrained(network.eval(), Flow(source, cwdfm.Linear()), tokenizer, 10)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    trained(width=12).save_pretrained(tmp_path / "net")
    return tmp_path / "net"


@pytest.mark.parametrize("network", [Net, PATH, lambda **given: Net(**given)])
def test_a_saved_network_is_the_same(saved: Path, network: Any) -> None:
    own, found = trained(width=12), cwdfm.load(saved, network=network)
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]
    assert found.fingerprint() == own.fingerprint()
    for name, tensor in own.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor)
        assert found.model.state_dict()[name].dtype == tensor.dtype
    for options in ({}, {"template": "CC[3]O"}):
        expected = own.generate(n=4, steps=3, seed=1, **options).tokens
        assert torch.equal(found.generate(n=4, steps=3, seed=1, **options).tokens, expected)
    bounds = [model.likelihood(["CCO", "CN"], draws=2).nats_per_token for model in (own, found)]
    assert bounds[0] == bounds[1]


def test_no_code_runs_without_consent(saved: Path, tmp_path: Path) -> None:
    """Neither the class of the file nor one that the file names instead."""
    with pytest.raises(InputError, match=PATH):
        cwdfm.load(saved)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = json.loads((saved / "config.json").read_text())
    del config["sha256"]
    config |= {"format": 2, "model": {"network": "evil:Net", "arguments": {}}}
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        for network in (None, PATH):
            with pytest.raises(InputError):
                cwdfm.load(saved, network=network)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("network", ["no.such:Net", "cwdfm:NoNet", "", "torch:pi", dict, "os"])
def test_wrong_classes(saved: Path, network: Any) -> None:
    with pytest.raises(InputError):
        cwdfm.load(saved, network=network)


def test_other_weights_and_configs(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="damaged"):
        cwdfm.load(saved, network=lambda **given: Net(given["num_tokens"], width=3))
    with pytest.raises(InputError, match="omit"):
        cwdfm.load("qm9-mask-small", network=Net)
    model = trained()
    model.model.config = {"width": object()}
    with pytest.raises(InputError, match="keyword arguments"):
        model.save_pretrained(tmp_path / "x")
    with pytest.raises(InputError, match="DiT"):
        settings_of(trained())


def test_commands(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    line = ["sample", saved, "--out", tmp_path / "a.jsonl", "--n", 3, "--steps", 2]
    assert PATH in rejected(*line)
    succeeded(*line, "--network", PATH)
    samples = read_samples(tmp_path / "a.jsonl")
    assert samples.tokens == trained(width=12).generate(n=3, steps=2).tokens.tolist()
    (tmp_path / "a.smi").write_text("\n".join("C" * n for n in range(1, 8)))
    data = ["--data", tmp_path / "a.smi", "--network", PATH]
    succeeded("perplexity", saved, *data)
