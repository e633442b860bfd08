"""Checkpoints of MDLM's authors, against their network written down anew in plain torch."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cwdfm
from cwdfm.files import write_tensors
from cwdfm.method import Flow
from cwdfm.model.transformer import DiT
from tests.support.texts import word_level

WIDTH, HEADS, DEPTH, COND, IDS, LENGTH = 16, 2, 2, 6, 8, 10


def checkpoint() -> dict[str, Tensor]:
    """Random weights by the names and shapes of the hub's `kuleshov-group/mdlm-owt`."""
    shapes: dict[str, tuple[int, ...]] = {
        "vocab_embed.embedding": (IDS, WIDTH),
        "sigma_map.mlp.0.weight": (COND, 256),
        "sigma_map.mlp.0.bias": (COND,),
        "sigma_map.mlp.2.weight": (COND, COND),
        "sigma_map.mlp.2.bias": (COND,),
        "rotary_emb.inv_freq": (WIDTH // HEADS // 2,),
        "output_layer.norm_final.weight": (WIDTH,),
        "output_layer.linear.weight": (IDS, WIDTH),
        "output_layer.linear.bias": (IDS,),
        "output_layer.adaLN_modulation.weight": (2 * WIDTH, COND),
        "output_layer.adaLN_modulation.bias": (2 * WIDTH,),
    }
    for block in range(DEPTH):
        shapes |= {
            f"blocks.{block}.norm1.weight": (WIDTH,),
            f"blocks.{block}.attn_qkv.weight": (3 * WIDTH, WIDTH),
            f"blocks.{block}.attn_out.weight": (WIDTH, WIDTH),
            f"blocks.{block}.norm2.weight": (WIDTH,),
            f"blocks.{block}.mlp.0.weight": (4 * WIDTH, WIDTH),
            f"blocks.{block}.mlp.0.bias": (4 * WIDTH,),
            f"blocks.{block}.mlp.2.weight": (WIDTH, 4 * WIDTH),
            f"blocks.{block}.mlp.2.bias": (WIDTH,),
            f"blocks.{block}.adaLN_modulation.weight": (6 * WIDTH, COND),
            f"blocks.{block}.adaLN_modulation.bias": (6 * WIDTH,),
        }
    draw = torch.Generator().manual_seed(0)
    return {f"backbone.{k}": torch.randn(v, generator=draw) / 2 for k, v in shapes.items()}


def logits(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Their network's answer to one sequence [N], told the noise 0: [N, ids]."""
    w = {name.removeprefix("backbone."): value for name, value in weights.items()}
    wave = torch.cat([torch.ones(128), torch.zeros(128)])  # cos and sin of 0
    c = F.silu(w["sigma_map.mlp.0.weight"] @ wave + w["sigma_map.mlp.0.bias"])
    c = F.silu(w["sigma_map.mlp.2.weight"] @ c + w["sigma_map.mlp.2.bias"])
    size = WIDTH // HEADS

    def norm(h: Tensor, name: str) -> Tensor:
        centred = h - h.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[name]

    def vectors(name: str, count: int) -> list[Tensor]:
        return list((w[f"{name}.weight"] @ c + w[f"{name}.bias"]).chunk(count))

    def turned(v: Tensor) -> Tensor:
        """Pairs (i, i + size / 2) as complex numbers, turned by position / 10000^(2 i / size)."""
        pairs = torch.complex(*v.double().chunk(2, dim=-1))
        place = torch.arange(len(x), dtype=torch.float64)[:, None]
        angle = place * 10000.0 ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        pairs = pairs * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([pairs.real, pairs.imag], dim=-1).float()

    h = w["vocab_embed.embedding"][x]
    for b in range(DEPTH):
        name = f"blocks.{b}"
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = vectors(f"{name}.adaLN_modulation", 6)
        a = norm(h, f"{name}.norm1.weight") * (1 + scale) + shift
        q, k, v = (a @ w[f"{name}.attn_qkv.weight"].T).chunk(3, dim=-1)
        mixed = []
        for of in range(HEADS):
            part = slice(of * size, (of + 1) * size)
            scores = turned(q[:, part]) @ turned(k[:, part]).T / math.sqrt(size)
            mixed.append(scores.softmax(-1) @ v[:, part])
        h = h + gate * (torch.cat(mixed, -1) @ w[f"{name}.attn_out.weight"].T)
        a = norm(h, f"{name}.norm2.weight") * (1 + scale_mlp) + shift_mlp
        a = F.gelu(a @ w[f"{name}.mlp.0.weight"].T + w[f"{name}.mlp.0.bias"], approximate="tanh")
        h = h + gate_mlp * (a @ w[f"{name}.mlp.2.weight"].T + w[f"{name}.mlp.2.bias"])
    shift, scale = vectors("output_layer.adaLN_modulation", 2)
    h = norm(h, "output_layer.norm_final.weight") * (1 + scale) + shift
    return h @ w["output_layer.linear.weight"].T + w["output_layer.linear.bias"]


def folder(place: Path, **changed: Any) -> Path:
    """As the hub has it, but for a tokenizer, which is a small one of its own."""
    word_level(place)
    sizes = {"hidden_dim": WIDTH, "n_heads": HEADS, "n_blocks": DEPTH, "cond_dim": COND}
    told = {"vocab_size": IDS, "model_length": LENGTH, "dropout": 0.25, "time_conditioning": False}
    config = {"model_type": "mdlm", "return_dict": False, **sizes, **told, **changed}
    (place / "config.json").write_text(json.dumps(config))
    write_tensors(place / "model.safetensors", checkpoint())
    return place


def test_logits_are_those_of_the_published_network(tmp_path: Path) -> None:
    trained = cwdfm.load(folder(tmp_path))
    assert isinstance(trained.model, DiT)
    assert trained.model.config.dropout == 0.25  # for whom trains on
    x = torch.randint(0, IDS, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    expected = torch.stack([logits(checkpoint(), row) for row in x])
    for t in (0.0, 0.7):  # which it is not told
        found = trained.model(x, torch.full((3,), t))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_it_samples_and_is_saved_as_any_other(tmp_path: Path) -> None:
    trained = cwdfm.load(folder(tmp_path / "theirs"))
    assert trained.method == Flow(cwdfm.MaskSource(IDS - 1), cwdfm.Linear())
    solver = cwdfm.Euler(weight=cwdfm.Neighbor(1, 4.0), hazard="integrated")
    out = cwdfm.generate(trained, solver, n=4, steps=8, prompt="the cat")
    assert out.tokens[:, :2].tolist() == [[3, 4]] * 4
    assert int(out.tokens.max()) < IDS - 1
    trained.save_pretrained(tmp_path / "ours")
    again = cwdfm.generate(cwdfm.load(tmp_path / "ours"), solver, n=4, steps=8, prompt="the cat")
    assert torch.equal(again.tokens, out.tokens)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"time_conditioning": True}, "conditioned on the noise level sigma"),
        *(({"vocab_size": n}, f"{n} token ids.*tokenizer has 7.*tokenizer.json") for n in (6, 9)),
        ({"vocab_size": 7}, "do not belong together.*embedding"),  # its words are, mask included
        ({"n_blocks": 3}, "do not belong together.*blocks.2"),
        ({"n_heads": "many"}, "heads must be an integer"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(cwdfm.InputError, match=message):
        cwdfm.load(folder(tmp_path, **changed))
