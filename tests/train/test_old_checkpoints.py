"""Checkpoints of earlier versions resume."""

import json
from pathlib import Path

import pytest

import cwdfm
from cwdfm.train.checkpoint import FORMAT, checkpoints, load_latest
from cwdfm.train.loop import fit
from tests.support.train_script import make_run, recipe

# meta.json as version 0.1.0 wrote it after the run below, without its checksums.
OLD_META = Path(__file__).parent / "fixtures" / "checkpoint_format_2.json"


def old_checkpoint(out: Path) -> None:
    """A finished run of seven steps whose checkpoint has the meta data of format 2."""
    fit(make_run(out, recipe(steps=7, validate_every=7)))
    (path,) = checkpoints(out / "checkpoints")
    meta = json.loads((path / "meta.json").read_text())
    assert meta["format"] == FORMAT == 3
    old = json.loads(OLD_META.read_text())
    assert old["format"] == 2
    (path / "meta.json").write_text(json.dumps(old | {"sha256": meta["sha256"]}))


def test_a_checkpoint_of_format_2_resumes(tmp_path: Path) -> None:
    old_checkpoint(tmp_path)
    found = load_latest(tmp_path / "checkpoints")
    assert found is not None
    run = make_run(tmp_path, recipe(steps=7, validate_every=7))
    assert run._changed_settings(found[2]) == {}
    assert run.resume()
    assert run.step == 7
    assert run.best_step == 7
    again = make_run(tmp_path, recipe(steps=7, validate_every=7, keep=1))
    assert again.resume()
    assert again.earlier == [{"until": 7, "keep": 2}]


def test_a_checkpoint_of_format_2_rejects_other_settings(tmp_path: Path) -> None:
    old_checkpoint(tmp_path)
    with pytest.raises(cwdfm.InputError, match="different: learning_rate"):
        make_run(tmp_path, recipe(steps=7, validate_every=7, learning_rate=5e-3)).resume()
    with pytest.raises(cwdfm.InputError, match=r"different: .*method"):
        make_run(tmp_path, recipe(steps=7, validate_every=7, method="ar")).resume()
