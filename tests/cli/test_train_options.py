"""`cwdfm train`: options that do not apply are rejected before any work, and only those."""

from pathlib import Path

import pytest

import cwdfm
from cwdfm.baselines import METHODS
from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.baselines.bd3lm.objective import LOSS
from cwdfm.cli.options import fields_given, flag, value_given
from cwdfm.cli.train import read_options
from cwdfm.config import check_applies, choice_names, conditions, leaf_names
from cwdfm.data import TextFiles, load, prepare
from cwdfm.method import Flow
from cwdfm.method.flow import FlowObjective
from cwdfm.method.flow_config import LOSSES, PATHS
from cwdfm.train.config import TrainConfig
from cwdfm.train.recipes import RECIPES
from tests.support.command import rejected

pytest.importorskip("tyro")

# A command line, and what the error must name: the flag, where it applies, and the choice made.
NOT_APPLICABLE = {
    "--method mdlm --loss sce": ("--loss ", "--method flow", "--method mdlm"),
    "--method sedd --loss sce": ("--loss ", "--method flow", "--method sedd"),
    "--method ar --loss bregman": ("--loss ", "--method flow", "--method ar"),
    "--method ar --source mask": ("--source ", "--method flow or sedd", "--method ar"),
    "--method mdlm --source uniform": ("--source ", "--method flow or sedd", "--method mdlm"),
    "--method bd3lm --path context": ("--path ", "--method flow", "--method bd3lm"),
    "--method mdlm --power 2": ("--power ", "--method flow", "--method mdlm"),
    "--method sedd --time zero": ("--time ", "--method flow", "--method sedd"),
    "--method ar --masked-only": ("--masked-only ", "--method flow", "--method ar"),
    "--method sedd --revealed zero": ("--revealed ", "--method flow", "--method sedd"),
    "--loss-radius 5": ("--loss-radius ", "--loss sce", "--loss ce"),
    "--loss_radius=3": ("--loss-radius ", "--loss sce", "--loss ce"),
    "--loss nelbo --loss-scale 2": ("--loss-scale ", "--loss sce", "--loss nelbo"),
    "--revealed joint": ("--revealed ", "--loss sce", "--loss ce"),
    "--path-radius 5": ("--path-radius ", "--path context", "--path mixture"),
    "--path-scale 2": ("--path-scale ", "--path context", "--path mixture"),
    "--block 4": ("--block ", "--method bd3lm", "--method flow"),
    "--clip-low 0.1": ("--clip-low ", "--method bd3lm", "--method flow"),
    "--clip-high 0.9": ("--clip-high ", "--method bd3lm", "--method flow"),
    "--no-clip-search": ("--clip-search ", "--method bd3lm", "--method flow"),
    "--noise geometric": ("--noise ", "--method sedd", "--method flow"),
    "--loss sce --masked-only": ("--masked-only ", "--loss ce or nelbo or bregman", "--loss sce"),
    "--init qm9-mask-small --noise geometric": ("--noise ", "--method sedd", "--method flow"),
    "--init qm9-mask-small --loss-radius 2": ("--loss-radius ", "--loss sce", "--loss ce"),
    "--init qm9-mask-small --model base": ("--model ", "--init"),
    "--init qm9-mask-small --tokenizer gpt2": ("--tokenizer ", "--init"),
    "--init qm9-mask-small --source uniform": ("--source mask", "uniform"),
    "--init qm9-mask-small --method ar": ("--method flow", "ar"),
    "--init qm9-mask-small --no-masked-only": ("--masked-only True", "False"),
    "--method diffusion": ("--method ", "'flow', 'mdlm', 'sedd', 'bd3lm', 'ar'", "'diffusion'"),
    "--loss mse": ("--loss ", "'ce', 'nelbo', 'bregman', 'sce'", "'mse'"),
}


@pytest.mark.parametrize("flags", NOT_APPLICABLE)
def test_options_that_do_not_apply_are_rejected(flags: str, tmp_path: Path) -> None:
    message = rejected("train", "qm9-debug", "--out", tmp_path / "run", *flags.split())
    for fact in NOT_APPLICABLE[flags]:
        assert fact in message
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_no_advice_to_change_the_method_of_a_trained_model() -> None:
    config = RECIPES["finetune"]().updated(method="ar")
    with pytest.raises(cwdfm.InputError, match=r"remove it$"):
        check_applies(config, "loss", settled=("method",))
    with pytest.raises(cwdfm.InputError, match=r"change method$"):
        check_applies(config, "loss")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_accepts_its_own_settings(name: str) -> None:
    config, default = RECIPES[name](), TrainConfig().flat()
    own = {n: v for n, v in config.flat().items() if v != default.get(n) and n != "init"}
    line = [
        word
        for field, value in own.items()
        for word in ([flag(field)] if value is True else [flag(field), str(value)])
    ]
    options, init = read_options(name, ["--out", "run", *line])
    settled = config if init is None else config.continued_from(init)
    assert options.config == settled
    assert fields_given(TrainConfig, line) == set(own)


def test_help_shows_only_the_options_that_apply(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for method in METHODS:
        with pytest.raises(SystemExit):
            read_options("qm9-debug", ["--method", method, "--help"])
        shown[method] = capsys.readouterr().out
    for method, text in shown.items():
        assert "--learning-rate" in text
        assert ("--clip-low" in text) == (method == "bd3lm")
        assert ("--noise" in text) == (method == "sedd")
        assert ("--source" in text) == (method in ("flow", "sedd"))
        assert ("--masked-only" in text) == (method == "flow")
        assert "--loss-radius" not in text  # of --loss sce


def test_every_leaf_has_one_meaning() -> None:
    """A name stands for one field under any one choice of method, path and loss."""
    assert choice_names(TrainConfig) == ["method", "path", "loss"]
    for name in leaf_names(TrainConfig) - {"method", "path", "loss"}:
        places = conditions(TrainConfig, name)
        assert places, name
        assert all(places.count(place) == 1 for place in places), name
    assert conditions(TrainConfig, "loss_radius") == [{"method": "flow", "loss": "sce"}]
    assert conditions(TrainConfig, "nothing") == []


OTHER: dict[str, object] = {"source": "mask", "power": 3.0, "path_radius": 2, "path_scale": 2.0}
OTHER |= {"path_boundary": "cut"}
OTHER |= {"time": "zero", "noise": "geometric", "block": 8, "clip_low": 0.25, "clip_high": 0.75}
OTHER |= {"clip_search": False, "masked_only": True, "loss_radius": 2, "loss_scale": 2.0}
OTHER |= {"revealed": "joint", "loss_weight": "share", "loss_center": False}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("path", PATHS)
def test_every_field_of_a_method_changes_its_task(method: str, loss: str, path: str) -> None:
    bound = loss in ("nelbo", "bregman")  # some of these need a mask source
    source = "mask" if bound else "uniform"
    config = TrainConfig.from_flat(method=method, loss=loss, path=path, source=source)
    fields = set(config.flat()) & set(OTHER)
    general = set(TrainConfig.from_flat(method="ar").flat())
    assert set(config.flat()) - general == fields | (
        {"path", "loss"} if method == "flow" else set()
    )
    for name in fields:
        if (name, source) == ("source", "mask"):
            continue
        if (name, loss, path) == ("masked_only", "nelbo", "context"):
            continue  # the loss is on masked tokens in any case
        changed = config.updated(**{name: OTHER[name]})
        assert changed.build(33) != config.build(33), name


def test_config_survives_its_flat_form() -> None:
    for method in METHODS:
        for loss in LOSSES:
            config = TrainConfig.from_flat(method=method, loss=loss, path="context", steps=7)
            assert TrainConfig.from_flat(**config.flat()) == config
            assert config.updated() == config
    with pytest.raises(cwdfm.InputError, match="unknown field stepz"):
        TrainConfig.from_flat(stepz=7)
    with pytest.raises(cwdfm.InputError, match="loss applies only to method flow"):
        TrainConfig.from_flat(method="ar").updated(loss="sce")


def test_mdlm_is_a_flow_with_these_settings() -> None:
    mdlm = TrainConfig.from_flat(method="mdlm").build(33)
    flat = {"source": "mask", "power": 1.0, "time": "zero", "loss": "nelbo", "masked_only": True}
    same = TrainConfig.from_flat(**flat).build(33)
    assert isinstance(mdlm.objective, FlowObjective)
    assert isinstance(same.objective, FlowObjective)
    assert mdlm.objective.loss == same.objective.loss == LOSS
    assert type(mdlm.objective.path) is type(same.objective.path)
    assert mdlm.model == same.model
    assert isinstance(mdlm.method, Flow)
    blocks = TrainConfig.from_flat(method="bd3lm").build(33)
    assert isinstance(blocks.method, BlockDiffusion)
    assert blocks.method.source == mdlm.method.source
    assert blocks.method.schedule == mdlm.method.schedule == cwdfm.Linear()
    assert blocks.model.time == mdlm.model.time


@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_prepared_data_set_length_and_tokenizer(tokenizer: str, tmp_path: Path) -> None:
    """The recipe has 128 bytes. A tokenizer that fits is kept: it is part of a run's settings."""
    (tmp_path / "a.txt").write_text("some words " * 50)
    prepare(TextFiles.of(tmp_path / "a.txt"), tokenizer, 24, tmp_path / "text")
    (tmp_path / "my.smi").write_text("CCO\nCCN\nCCC\n")
    load(tmp_path / "my.smi", length=9, cache=False).save(tmp_path / "my.npz")
    kept = "bytes" if tokenizer == "bytes" else None
    for name, words, length, expected in (
        ("text", [], 24, kept),
        ("text", ["--length", "16"], 16, kept),
        ("text", ["--tokenizer", "gpt2"], 24, "gpt2"),
        ("my.npz", [], 9, None),
        ("a.txt", [], 128, "bytes"),
    ):
        flags = ["--out", str(tmp_path / "out"), "--data", str(tmp_path / name), *words]
        config = read_options("text-debug", flags)[0].config.data
        assert (config.length, config.tokenizer) == (length, expected)


def test_values_of_a_command_line() -> None:
    line = ["--method", "ar", "--loss=sce", "--method", "mdlm", "--out"]
    found = [value_given(name, line) for name in ("method", "loss", "out", "path")]
    assert found == ["mdlm", "sce", None, None]
