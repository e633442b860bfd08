"""Settings of a training that nothing reads: refused before any work, and only those."""

import sys
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import cwdfm
from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.baselines.bd3lm.objective import LOSS
from cwdfm.cli.main import main
from cwdfm.cli.options import fields_given, flag
from cwdfm.cli.unused_options import check_unread
from cwdfm.method import Flow
from cwdfm.method.flow import FlowObjective
from cwdfm.train.methods import METHODS, OF_ITS_OWN, READ_WITH
from cwdfm.train.recipe import Recipe, build
from cwdfm.train.recipes import RECIPES

pytest.importorskip("tyro")

FLOW_ALONE = "is read with --method flow alone, and the method is"
BLOCKS_ALONE = "is read with --method bd3lm alone, and the method is flow"
UNREAD = {
    "--method mdlm --loss sce": f"--loss {FLOW_ALONE} mdlm, whose loss is nelbo; leave it out, or",
    "--method sedd --loss sce": f"--loss {FLOW_ALONE} sedd; leave it out, or choose a method that",
    "--method ar --loss bregman": f"--loss {FLOW_ALONE} ar; leave",
    "--method ar --source mask": "--method flow and sedd alone, and the method is ar; leave",
    "--method mdlm --source uniform": "and the method is mdlm, whose source is mask; leave it out",
    "--method bd3lm --loss sce --path context": f"--path {FLOW_ALONE} bd3lm",
    "--method bd3lm --loss sce": f"--loss {FLOW_ALONE} bd3lm, whose loss is nelbo",
    "--method mdlm --power 2": f"--power {FLOW_ALONE} mdlm, whose power is 1.0",
    "--method sedd --time zero": f"--time {FLOW_ALONE} sedd",
    "--method ar --masked-only": f"--masked-only {FLOW_ALONE} ar",
    "--method sedd --revealed zero": f"--revealed {FLOW_ALONE} sedd",
    "--loss-radius 5": "--loss-radius is read with --loss sce alone, and the loss is ce; leave it",
    "--loss_radius=3": "--loss-radius is read with --loss sce alone",
    "--loss nelbo --loss-scale 2": "--loss-scale is read with --loss sce alone, and the loss is ne",
    "--revealed joint": "--revealed is read with --loss sce alone",
    "--path-radius 5": "--path-radius is read with --path context alone, and the path is mixture",
    "--path-scale 2": "--path-scale is read with --path context alone",
    "--block 4": f"--block {BLOCKS_ALONE}; leave it out, or choose a method that reads it",
    "--clip-low 0.1": f"--clip-low {BLOCKS_ALONE}",
    "--clip-high 0.9": f"--clip-high {BLOCKS_ALONE}",
    "--no-clip-search": f"--clip-search {BLOCKS_ALONE}",
    "--noise geometric": "--noise is read with --method sedd alone, and the method is flow",
    "--loss sce --masked-only": "with --loss ce, nelbo and bregman alone, and the loss is sce",
    "--init qm9-mask-small --noise geometric": "--method sedd alone, and the method is flow; leave",
    "--init qm9-mask-small --loss-radius 2": "is read with --loss sce alone, and the loss is ce",
    "--init qm9-mask-small --model base": "--model is not read with --init, which brings the model",
    "--init qm9-mask-small --tokenizer gpt2": "--tokenizer is not read with --init",
}


@pytest.mark.parametrize("flags", UNREAD)
def test_refused(
    flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["cwdfm", "train", "qm9-debug", "--out", str(tmp_path / "run"), *flags.split()]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert UNREAD[flags] in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_another_method_is_no_advice_where_the_model_settles_it() -> None:
    gone_on = replace(RECIPES["finetune"](), method="ar")
    with pytest.raises(cwdfm.InputError, match=r"the method is ar; leave it out$"):
        check_unread(gone_on, ["loss"])


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_may_be_told_its_own_settings(name: str) -> None:
    recipe, usual = RECIPES[name](), Recipe()
    own = [f.name for f in fields(Recipe) if getattr(recipe, f.name) != getattr(usual, f.name)]
    line = [word for own_name in own for word in (flag(own_name), str(getattr(recipe, own_name)))]
    assert fields_given(Recipe, line) == set(own)
    check_unread(recipe, own)


OTHER: dict[str, Any] = {
    "source": "mask",
    "power": 3.0,
    "path_radius": 2,
    "path_scale": 2.0,
    "time": "zero",
    "noise": "geometric",
    "block": 8,
    "clip_low": 0.25,
    "clip_high": 0.75,
    "clip_search": False,
    "masked_only": True,
    "loss_radius": 2,
    "loss_scale": 2.0,
    "revealed": "joint",
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", ["ce", "nelbo", "bregman", "sce"])
@pytest.mark.parametrize("path", ["mixture", "context"])
def test_what_is_read_is_what_changes_the_task(method: str, loss: str, path: str) -> None:
    bound = loss in ("nelbo", "bregman")  # which some uniform sources are refused
    usual: dict[str, Any] = {"method": method, "loss": loss, "path": path}
    recipe = Recipe(source="mask" if bound else "uniform", **usual)
    assert {*OTHER, "loss", "path"} == set(READ_WITH)
    for name, value in OTHER.items():
        if (name, recipe.source) == ("source", "mask"):
            continue
        if (name, loss, path) == ("masked_only", "nelbo", "context"):
            continue  # a consent: the loss is on masked tokens with it and without
        changes = build(replace(recipe, **{name: value}), 33) != build(recipe, 33)
        assert changes == accepted(replace(recipe, **{name: value}), name), name
    others = product(("ce", "sce"), ("mixture", "context"))
    built = [build(replace(recipe, loss=loss, path=path), 33) for loss, path in others]  # type: ignore[arg-type]
    assert any(task != built[0] for task in built) == (method == "flow")


def accepted(recipe: Recipe, name: str) -> bool:
    """Whether the field is, and not for being what the method has anyway."""
    try:
        check_unread(recipe, [name])
    except cwdfm.InputError:
        return False
    return bool(OF_ITS_OWN.get(recipe.method, {}).get(name) != getattr(recipe, name))


def test_what_a_method_has_of_its_own_may_be_asked_for() -> None:
    for method, own in OF_ITS_OWN.items():
        for name, value in own.items():
            assert method not in READ_WITH[name]["method"]
            check_unread(replace(Recipe(method=method), **{name: value}), [name])  # type: ignore[arg-type]
    mdlm = build(Recipe(method="mdlm"), 33)
    same = build(Recipe(**OF_ITS_OWN["mdlm"]), 33)  # type: ignore[arg-type]
    assert isinstance(mdlm.objective, FlowObjective)
    assert isinstance(same.objective, FlowObjective)
    assert mdlm.objective.loss == same.objective.loss
    assert type(mdlm.objective.path) is type(same.objective.path)
    assert mdlm.model == same.model
    assert isinstance(mdlm.method, Flow)
    blocks = build(Recipe(method="bd3lm"), 33)
    assert isinstance(blocks.method, BlockDiffusion)
    assert blocks.method.source == mdlm.method.source
    assert blocks.method.schedule == mdlm.method.schedule == cwdfm.Linear()
    assert blocks.model.time == mdlm.model.time
    assert mdlm.objective.loss == LOSS
