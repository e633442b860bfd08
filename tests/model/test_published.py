"""Checkpoints of other projects, against logits that their authors' code computed.

`tests/model/published/record.py` recorded them, from small random weights.
"""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.baselines.gidd import GIDD
from cwdfm.baselines.sedd import SEDD
from cwdfm.method import Flow
from tests.support.published import recorded, write_dit

MASK, UNIFORM = cwdfm.MaskSource(7), cwdfm.UniformSource(8)
METHODS = {
    "mdlm": Flow(MASK, cwdfm.Linear()),
    "mdlm-time": Flow(MASK, cwdfm.Linear()),
    "duo": Flow(UNIFORM, cwdfm.Linear()),
    "udlm": Flow(UNIFORM, cwdfm.Linear()),
    "udlm-guidance": Flow(UNIFORM, cwdfm.Linear()),
    "sedd": SEDD(7, "absorb"),
    "sedd-uniform": SEDD(7, "uniform"),
    "gidd": GIDD(7, 0.2),
    "bd3lm": BlockDiffusion(MASK, cwdfm.Linear(), 4),
    "bd3lm-plain": BlockDiffusion(MASK, cwdfm.Linear(), 4),
}


@pytest.mark.parametrize("name", METHODS)
def test_logits_are_those_of_the_authors_code(tmp_path: Path, name: str) -> None:
    trained = cwdfm.load(write_dit(tmp_path, name))
    _, _, record = recorded(name)
    x, time, expected = record["x"], record["time"], record["logits"]
    assert trained.method == METHODS[name]
    assert trained.model.config.dropout == (0.0 if name == "gidd" else 0.25)
    with torch.no_grad():
        if name.startswith("sedd"):
            found = trained.model(x, time)  # sigma itself
        elif name == "gidd":
            found = trained.model(x, 1 - time)
        else:
            found = trained.model(x, torch.exp(-time))[:, : expected.shape[1]]
    if name == "sedd":  # the authors' output is a log-score, and the mask is the last id
        found = found - (7 * time.expm1()).log()[:, None, None]
        found, expected = found[x == 7][:, :7], expected[x == 7][:, :7]
    if trained.model.config.leave_one_out:
        # The evidence of the current token is log(q(x_t | x_1 = x_t) / q(x_t | x_1 != x_t)).
        same, other = torch.exp(-time), -torch.expm1(-time) / 8
        evidence = (same + other).log() - other.log()
        evidence_BN1 = evidence[:, None, None].expand(*x.shape, 1)
        expected = expected.scatter_add(2, x[..., None], evidence_BN1)
    if name == "sedd-uniform":  # the log-score of the current token, 0, is implied
        found = found.scatter(2, x[..., None], 0.0)
    if trained.model.config.leave_one_out:  # noise may have id 7, which has no text
        assert bool((found[x != 7][:, 7] == -torch.inf).all())
        found, expected = found[..., :7], expected[..., :7]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_samples_are_data_and_survive_saving(tmp_path: Path, name: str) -> None:
    trained = cwdfm.load(write_dit(tmp_path / "theirs", name))
    out = cwdfm.generate(trained, n=2, steps=6, seed=1)
    assert int(out.tokens.max()) < 7
    bound = trained.method.likelihood(trained.model, out.tokens, draws=2)
    assert 0 < bound.nats_per_token < torch.inf
    trained.save_pretrained(tmp_path / "ours")
    again = cwdfm.generate(cwdfm.load(tmp_path / "ours"), n=2, steps=6, seed=1)
    assert torch.equal(again.tokens, out.tokens)


def test_gidd_without_uniform_noise_is_a_flow(tmp_path: Path) -> None:
    trained = cwdfm.load(write_dit(tmp_path, "gidd", p_uniform=0.0))
    assert trained.method == Flow(MASK, cwdfm.Linear())
    solver = cwdfm.Euler(weight=cwdfm.Neighbor(1, 4.0))
    assert int(cwdfm.generate(trained, solver, n=2, steps=4).tokens.max()) < 7


def test_weights_of_a_lightning_checkpoint_are_its_moving_average(tmp_path: Path) -> None:
    place = write_dit(tmp_path, "mdlm-time")
    expected = cwdfm.load(place).model.state_dict()
    (place / "model.safetensors").unlink()
    state = recorded("mdlm-time")[1]
    order = [f"backbone.{k}" for k in _parameter_order()]
    average = [state[name] for name in order]
    noise = {name: torch.randn_like(state[name]) for name in order}
    noise["backbone.rotary_emb.inv_freq"] = torch.ones(3)
    torch.save({"state_dict": noise, "ema": {"shadow_params": average}}, place / "last.ckpt")
    found = cwdfm.load(place).model.state_dict()
    assert all(torch.equal(found[name], x) for name, x in expected.items())
    torch.save({"state_dict": noise, "ema": {"shadow_params": average[1:]}}, place / "last.ckpt")
    with pytest.raises(cwdfm.InputError, match=r"moving average .*last\.ckpt"):
        cwdfm.load(place)
    (place / "second.ckpt").touch()
    with pytest.raises(cwdfm.InputError, match=r"last\.ckpt, second\.ckpt"):
        cwdfm.load(place)


def _parameter_order() -> list[str]:
    """The parameters in the order in which the authors' network creates them."""
    block = ["norm1.weight", "attn_qkv.weight", "attn_out.weight", "norm2.weight"]
    block += [f"{layer}.{kind}" for layer in ("mlp.0", "mlp.2") for kind in ("weight", "bias")]
    block += ["adaLN_modulation.weight", "adaLN_modulation.bias"]
    first = ["vocab_embed.embedding"]
    first += [f"sigma_map.mlp.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")]
    last = ["norm_final.weight", "linear.weight", "linear.bias"]
    last += ["adaLN_modulation.weight", "adaLN_modulation.bias"]
    blocks = [f"blocks.{b}.{name}" for b in range(2) for name in block]
    return [*first, *blocks, *(f"output_layer.{name}" for name in last)]


class _Opened:
    """A pickled object that runs code when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["model.ckpt", "pytorch_model.bin"])
def test_a_pickle_never_runs_code(tmp_path: Path, name: str) -> None:
    place = write_dit(tmp_path, "mdlm")
    (place / "model.safetensors").unlink()
    saved = {"state_dict": recorded("mdlm")[1], "config": _Opened(tmp_path / "ran")}
    torch.save(saved, place / name)
    with pytest.raises(cwdfm.InputError, match=rf"{name}.*run code"):
        cwdfm.load(place)
    (place / name).write_bytes(pickle.dumps(_Opened(tmp_path / "ran"), 2))
    with pytest.raises(cwdfm.InputError, match=name):
        cwdfm.load(place)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("mdlm", {"model_type": "mdlm2"}, "'mdlm2'.*mdlm, duo, udlm, bd3lm, sedd.*nearest is mdlm"),
        ("mdlm", {"model_type": "gpt2"}, "'gpt2'.*nearest is"),
        *(("mdlm", {"vocab_size": n}, f"{n} token ids.*has 7.*tokenizer.json") for n in (6, 9)),
        ("mdlm", {"vocab_size": 7}, "do not match.*embedding"),  # words with the mask
        ("mdlm", {"n_blocks": 3}, "10 weights differ: 10 are missing .*blocks.2.*0 are unexpected"),
        ("mdlm", {"n_blocks": 1}, "0 are missing .none.*10 are unexpected .blocks.1"),
        ("mdlm", {"n_heads": "many"}, "heads must be an integer"),
        ("mdlm", {"remove": "blocks.0.mlp.0.bias"}, "1 are missing .blocks.0.up.bias"),
        ("mdlm", {"tokenizer": {"mask_token": "cat"}}, "'cat'.* id 4.*last id.* 7"),
        ("mdlm", {"tokenizer": {"mask_token": {"content": "?"}}}, "'.'.* id None"),
        ("duo", {"causal": True}, "autoregressive.*causal"),
        ("bd3lm", {"causal": True}, "causal=true"),
        ("bd3lm", {"time_conditioning": True}, "time_conditioning=true"),
        ("sedd", {"graph": {"type": "uniform"}}, "'uniform' and scale_by_sigma=True"),
        ("sedd-uniform", {"tokens": 8}, "8 token ids and its tokenizer has 7"),
        ("sedd", {"tokens": 8}, "9 token ids.*tokenizer has 7"),
    ],
)
def test_what_does_not_fit_is_rejected(
    tmp_path: Path, name: str, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(cwdfm.InputError, match=message):
        cwdfm.load(write_dit(tmp_path, name, **changed))
