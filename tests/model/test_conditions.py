"""Networks with conditions: what they learn, and what they do without."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.data import SmilesTokenizer, TokenData
from cwdfm.errors import InputError
from cwdfm.model.conditions import drop_conditions, with_condition
from cwdfm.model.transformer import DiT
from cwdfm.train.loop import fit
from cwdfm.train.run import Run
from tests.support.conditions import CONDITIONS, CONFIG
from tests.support.kernels import perturbed
from tests.support.stats import assert_follows
from tests.support.train_script import counting, recipe

CPU = torch.device("cpu")


def test_conditions_do_not_change_the_initial_weights_of_the_rest() -> None:
    torch.manual_seed(0)
    plain = DiT(CONFIG).state_dict()
    torch.manual_seed(0)
    conditional = DiT(replace(CONFIG, conditions=CONDITIONS)).state_dict()
    assert all(torch.equal(conditional[name], value) for name, value in plain.items())
    assert len(conditional) > len(plain)


def test_only_given_conditions_matter() -> None:
    model = perturbed(replace(CONFIG, conditions=CONDITIONS), 0.3).eval()
    x_t, t = torch.randint(7, (4, 6)), torch.rand(4)
    nan = float("nan")
    given = torch.tensor([[nan, nan], [0.5, nan], [nan, 1.0], [0.5, 0.0]])
    with torch.no_grad():
        plain, logits = model(x_t, t), model(x_t, with_condition(t, given))
    assert torch.equal(logits[0], plain[0])
    assert ((logits - plain).abs().amax((1, 2)) > 1e-3).tolist() == [False, True, True, True]
    with pytest.raises(InputError, match="2 conditions"):
        model(x_t, torch.rand(4, 2))


def test_dropped_conditions_have_the_stated_law() -> None:
    """All with probability p, then each of the others with probability p."""
    p, n = 0.3, 20_000
    numbers = drop_conditions(torch.zeros(n, 2), p, seed=1, index=torch.arange(n), step=5)
    code = (numbers.isnan() * torch.tensor([2, 1])).sum(1)
    keep = 1 - p
    law = [keep**3, keep**2 * p, keep**2 * p, p + keep * p**2]
    assert_follows(np.bincount(code, minlength=4), np.array(law))


def two_classes() -> TokenData:
    """Sequences CCCC of the kind `a`, and NNNN of the kind `b`."""
    tokenizer = SmilesTokenizer(("C", "N"))
    rows = np.array([[3] * 4, [4] * 4] * 32, np.int16)
    columns = {"kind": np.array(["a", "b"] * 32), "size": np.arange(64.0)}
    return TokenData("two", rows[:48], rows[48:], tokenizer, {}, {}, {}, columns)


def test_training_learns_the_conditional_and_the_unconditional_law(tmp_path: Path) -> None:
    few: dict[str, object] = {
        "length": 4,
        "batch_size": 16,
        "steps": 60,
        "warmup": 5,
        "learning_rate": 5e-3,
    }
    few |= {"source": "mask", "dropout": 0.0, "previews": 0, "elbo_rows": 0, "ema": 0.9}
    few |= {"validate_every": 500, "checkpoint_every": 500, "log_every": 500}
    config = recipe(**few, condition=("kind",), condition_dropout=0.3)
    run = Run(config, two_classes(), tmp_path, CPU)
    fit(run)
    run.averaged().save_pretrained(tmp_path / "model")
    model = cwdfm.load(tmp_path / "model").model
    x_t, t = torch.full((3, 4), 5), torch.zeros(3)
    given = torch.tensor([[float("nan")], [0.0], [1.0]])
    with torch.no_grad():
        p = model(x_t, with_condition(t, given))[..., 3:5].softmax(-1)[..., 0]
    assert torch.allclose(p[0], torch.tensor(0.5), atol=0.2)
    assert (p[1] > 0.9).all()
    assert (p[2] < 0.1).all()


def test_runs_with_conditions_resume(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = replace(counting(), columns={"a": rng.normal(size=60), "b": rng.choice(["x", "y"], 60)})
    config = recipe(condition=["a", "b"], steps=8, checkpoint_every=4, validate_every=8)
    whole = Run(config, data, tmp_path / "whole", CPU)
    fit(whole)
    for _ in range(2):
        part = Run(config, data, tmp_path / "part", CPU)
        part.resume()
        while part.step < 8 and part.step % 4 != 3:
            part.train_step()
        part.train_step()
        part.save()
    ours, theirs = whole.model.state_dict(), part.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    other = replace(data, columns=data.columns | {"a": data.columns["a"] + 1})
    with pytest.raises(InputError, match="different data"):
        Run(config, other, tmp_path / "part", CPU).resume()


def test_training_rejects_wrong_conditions(tmp_path: Path) -> None:
    few = {"length": 4, "steps": 1}
    with pytest.raises(InputError, match="kind, size"):
        Run(recipe(**few, condition=("color",)), two_classes(), tmp_path, CPU)
    same = replace(two_classes(), columns={"size": np.ones(64)})
    with pytest.raises(InputError, match="'size'"):
        Run(recipe(**few, condition=("size",)), same, tmp_path, CPU)
    with pytest.raises(InputError, match="flow or mdlm"):
        Run(recipe(**few, condition=("kind",), method="ar"), two_classes(), tmp_path, CPU)
