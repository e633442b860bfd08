"""Models on disk and in the box."""

import json
from pathlib import Path

import pytest
import torch

import cwdfm
from cwdfm.data import SmilesTokenizer
from cwdfm.metric import score_molecules
from cwdfm.model.dit import DiT
from cwdfm.model.presets import preset


def small(tmp_path: Path) -> cwdfm.Pretrained:
    torch.manual_seed(0)
    source = cwdfm.MaskSource(6)
    model = DiT(preset("debug", source.num_tokens, positions=8))
    torch.nn.init.normal_(model.readout.weight)
    tokenizer = SmilesTokenizer(("C", "N", "O"))
    return cwdfm.Pretrained(
        model.eval(), source, cwdfm.Cosine(), tokenizer, 8, True, {"data": "none"}
    )


def test_round_trip(tmp_path: Path) -> None:
    before = small(tmp_path)
    before.save_pretrained(tmp_path / "m")
    after = cwdfm.load(tmp_path / "m")
    x, t = torch.randint(0, 7, (3, 8)), torch.rand(3)
    assert torch.equal(before.model(x, t), after.model(x, t))
    for name in ("source", "schedule", "tokenizer", "length", "fix_first", "card"):
        assert getattr(after, name) == getattr(before, name)


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(cwdfm.InputError, match=r"neither a folder nor a model.*qm9-mask-small"):
        cwdfm.load("qm9-huge")
    with pytest.raises(cwdfm.InputError, match=r"lacks config\.json"):
        cwdfm.load(tmp_path)
    small(tmp_path).save_pretrained(tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    written = json.loads(config.read_text())
    cases: list[tuple[dict[str, object], str]] = [
        ({"format": 99}, "newer than this version"),
        ({"source": {"class": "os.system"}}, "'os.system', which this version does not know"),
        ({"schedule": {"class": "Polynomial", "speed": 3}}, "sets speed of Polynomial"),
    ]
    for change, message in cases:
        config.write_text(json.dumps({**written, **change}))
        with pytest.raises(cwdfm.InputError, match=message):
            cwdfm.load(tmp_path / "m")


@pytest.mark.parametrize("name", ["qm9-mask-small", "qm9-uniform-small"])
def test_the_box(name: str) -> None:
    """Small, complete, and good: 48 samples of which, by the recorded scores, 80% or more hold."""
    assert name in cwdfm.box()
    folder = Path(cwdfm.__file__).parent / "box" / name
    assert (folder / "model.safetensors").stat().st_size <= 8_000_000
    trained = cwdfm.load(name)
    assert {"data", "training", "recipe", "steps"} <= trained.card.keys()
    prompt = torch.full((trained.length,), trained.tokenizer.bos_id)
    out = cwdfm.sample(
        trained.model,
        trained.source,
        trained.schedule,
        cwdfm.Euler(weight=cwdfm.Neighbor(1, 4.0)),
        shape=(48, trained.length),
        steps=96,
        prompt=prompt if trained.fix_first else None,
        fixed=torch.arange(trained.length) == 0 if trained.fix_first else None,
    )
    texts = [trained.tokenizer.decode(row) for row in out.tokens.tolist()]
    assert score_molecules(texts, None).valid.mean >= 30
