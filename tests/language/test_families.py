"""Families that run through transformers: masked language models, LLaDA2 and DiffusionGemma."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import cwdfm
from cwdfm.files import write_tensors
from cwdfm.language.prompts import Prompt, make_canvas
from cwdfm.pretrained.text_tokenizer import LoadOptions, find_mask, find_stop, read_tokenizer
from tests.support.gemma import CANVAS, write_gemma
from tests.support.language import (
    EOS,
    MASK,
    block_mask,
    qwen_fields,
    reference,
    reference_logits,
    write_masked_lm,
    write_model,
    write_tokenizer,
)
from tests.support.published import recorded, write_with_code

COUNT = 26  # ids of the tokenizer
CLS, SEP = 4, 5


@pytest.mark.parametrize("kind", ["Bert", "ModernBert", "Esm"])
def test_masked_language_models_continue_and_fill(tmp_path: Path, kind: str) -> None:
    network, model = write_masked_lm(tmp_path, kind), cwdfm.load(tmp_path)
    out = cwdfm.generate(model, prompts=["the cat"], max_new_tokens=3, steps=3)
    x = torch.tensor([[CLS, 6, 7, MASK, MASK, MASK, SEP]])
    for _ in range(3):
        with torch.no_grad():
            logits = network(x).logits[0]
        logits[:, COUNT:] = -torch.inf
        logits[:, MASK] = -torch.inf
        p, token = logits.softmax(-1).max(-1)
        best = int(p.masked_fill(x[0] != MASK, -1).argmax())
        x[0, best] = token[best]
    assert out.tokens == [x[0, 3:6].tolist()]

    filled = cwdfm.generate(model, templates=["the [2] sat", "a [1] dog [1]"])
    first, second = filled.tokens
    assert (first[:2], first[4:]) == ([CLS, 6], [9, SEP])
    assert (second[:2], second[3], second[5:]) == ([CLS, 13], 8, [SEP])
    special = set(range(6))
    assert not special & {*first[2:4], second[2], second[4]}
    assert filled.new_tokens.tolist() == [2, 2]
    assert (" " in filled.texts[0]) == (kind != "Esm")  # proteins are letters
    with pytest.raises(cwdfm.InputError, match="chat template"):
        cwdfm.generate(model, messages=[[{"role": "user", "content": "the"}]])
    with pytest.raises(cwdfm.InputError, match="cache"):
        cwdfm.generate(model, prompts=["the"], max_new_tokens=4, cache="dual")


def test_a_lightning_checkpoint_gives_its_moving_average(tmp_path: Path) -> None:
    """GenMol's layout: a BERT under `backbone`, with the averages in the order of parameters."""
    network = write_masked_lm(tmp_path, "Bert")
    (tmp_path / "model.safetensors").unlink()
    average = [parameter + 1 for parameter in network.parameters()]
    state = {f"backbone.{name}": x for name, x in network.state_dict().items()}
    torch.save({"state_dict": state, "ema": {"shadow_params": average}}, tmp_path / "model.ckpt")
    found = cwdfm.load(tmp_path).network.network
    for new, old in zip(found.parameters(), average, strict=True):
        assert torch.equal(new, old)
    del state["backbone.cls.predictions.bias"], state["backbone.cls.predictions.decoder.bias"]
    torch.save({"state_dict": state}, tmp_path / "model.ckpt")
    with pytest.raises(cwdfm.InputError, match=r"cls\.predictions"):
        cwdfm.load(tmp_path)


def test_a_tokenizer_with_code_is_read_without_it(tmp_path: Path) -> None:
    """Dream's layout: vocab.json, merges.txt, and a tokenizer class in the repository."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=letters)
    library.train_from_iterator(["the cat sat on the mat"], trainer)
    library.model.save(str(tmp_path))
    count = library.get_vocab_size()
    special = ["<|endoftext|>", "<|mask|>"]
    config = {
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "tokenizer_class": "DreamTokenizer", "eos_token": special[0], "mask_token": special[1],
        "added_tokens_decoder": {
            str(count + i): {"content": name, "special": True} for i, name in enumerate(special)
        },
    }  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    options = LoadOptions(torch.device("cpu"))
    tokenizer = read_tokenizer(tmp_path, options, "Qwen2Tokenizer")
    assert find_mask({}, tokenizer) == count + 1
    assert find_stop(tmp_path, {}, tokenizer) == (count,)
    ids = tokenizer("the cat <|mask|>")["input_ids"]
    assert ids[:-2] == library.encode("the cat").ids
    assert ids[-1] == count + 1


@pytest.mark.parametrize("kind", ["llada2_moe", "sdar_moe"])
def test_code_of_a_folder_runs_only_with_consent(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    network = write_with_code(folder, kind)
    with pytest.raises(cwdfm.InputError, match="trust_remote_code"):
        cwdfm.load(folder)
    with pytest.raises(cwdfm.InputError, match="revision"):
        cwdfm.load("owner/name", trust_remote_code=True)
    model = cwdfm.load(folder, trust_remote_code=True)
    ids = torch.randint(6, COUNT, (2, 12), generator=torch.Generator().manual_seed(1))
    place = torch.arange(12).expand(2, -1)
    hidden = model.network.hidden(ids, place, block_mask(12, 4), None)
    found = model.network.logits(hidden)
    torch.testing.assert_close(found, reference_logits(network, ids, block=4), rtol=0, atol=1e-4)
    options: dict[str, Any] = {"prompts": ["the cat sat on", "a"], "max_new_tokens": 10, "stop": []}
    cached = cwdfm.generate(model, **options)
    assert cached.tokens == cwdfm.generate(model, cache="none", **options).tokens


def test_llada2_has_a_mask_id_of_its_own(tmp_path: Path) -> None:
    """The published config.json has none; a tokenizer's own comes first."""
    write_tokenizer(tmp_path)
    tokenizer = read_tokenizer(tmp_path, LoadOptions(torch.device("cpu")))
    assert find_mask({}, tokenizer, 9) == MASK
    tokenizer.mask_token = None
    assert find_mask({}, tokenizer, 9) == 9
    with pytest.raises(cwdfm.InputError, match="mask_token_id"):
        find_mask({}, tokenizer)


@pytest.mark.parametrize("name", ["llada", "dream", "sdar"])
def test_logits_are_those_of_the_authors_code(tmp_path: Path, name: str) -> None:
    """`tests/model/published/record_language.py` recorded them."""
    config, weights, record = recorded(name)
    write_tokenizer(tmp_path)
    write_tensors(tmp_path / "model.safetensors", weights)
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = cwdfm.load(tmp_path)
    assert (model.mask_id, model.shift) == (MASK, name == "dream")
    length = record["x"].shape[1]
    assert model.block == (4 if name == "sdar" else None)
    mask = None if model.block is None else block_mask(length, model.block)
    place = torch.arange(length).expand_as(record["x"])
    hidden = model.network.hidden(record["x"], place, mask, None)
    found = model.network.logits(hidden)
    torch.testing.assert_close(found, record["logits"], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("gemma")
    return write_gemma(folder), cwdfm.load(folder)


def test_gemma_logits_equal_transformers(gemma: Any) -> None:
    network, model = gemma
    ids = [[6, 9, 12], [7, 8, 9, 10, 11]]
    prompts = [(i, Prompt(list(row), 2 * CANVAS, [])) for i, row in enumerate(ids)]
    canvas = make_canvas(model, prompts, torch.arange(2), CANVAS)
    session = model.network.session(model, canvas, cwdfm.Euler(temperature=0.5))
    generator = torch.Generator().manual_seed(0)
    text = [torch.tensor([row]) for row in ids]
    for start in (canvas.begin, canvas.begin + CANVAS):  # two canvases
        session.start(slice(start, start + CANVAS))
        previous: Any = [None, None]
        for _ in range(3):  # steps, with self-conditioning
            x = torch.randint(0, COUNT, (2, CANVAS), generator=generator)
            with torch.no_grad():
                found = model.network.logits(session.hidden(x, None))
                for row in range(2):
                    expected = network(
                        input_ids=text[row],
                        decoder_input_ids=x[row : row + 1],
                        self_conditioning_logits=previous[row],
                    ).logits
                    torch.testing.assert_close(found[row], expected[0], rtol=0, atol=1e-4)
                    previous[row] = expected / 0.5
        session.finish()
        text = [torch.cat([row, x[i : i + 1]], dim=1) for i, row in enumerate(text)]


@pytest.mark.parametrize(
    "solver",
    [
        None,
        cwdfm.Euler(weight=cwdfm.Entropy(1.0)),
        cwdfm.Euler(weight=cwdfm.Neighbor(radius=2, scale=1.0)),
    ],
)
def test_gemma_texts_do_not_depend_on_their_batch(gemma: Any, solver: Any) -> None:
    _, model = gemma
    prompts = ["the cat sat", "a big old dog ran in", "moon"]
    options: dict[str, Any] = {"solver": solver, "max_new_tokens": 12, "steps": 6, "seed": 1}
    together = cwdfm.generate(model, prompts=prompts, **options)
    for number, text in enumerate(prompts):
        index = torch.tensor([number])
        alone = cwdfm.generate(model, prompts=[text], index=index, **options)
        assert alone.tokens == [together.tokens[number]]
    assert EOS not in [token for row in together.tokens for token in row]
    with pytest.raises(cwdfm.InputError, match="threshold"):
        cwdfm.generate(model, prompts=prompts, max_new_tokens=4, threshold=0.9)
    with pytest.raises(cwdfm.InputError, match="templates"):
        cwdfm.generate(model, templates=["the [2] sat"])


def test_unknown_and_damaged_folders(tmp_path: Path) -> None:
    network = reference("Qwen2")
    folder = write_model(tmp_path / "a", network, qwen_fields("Dream"))
    config = folder / "config.json"

    def change(**fields: Any) -> None:
        config.write_text(json.dumps(qwen_fields("Dream") | fields))

    for fields, facts in (
        ({"model_type": "dreem"}, "dreem.*nearest is dream"),
        ({"hidden_size": 16}, "weights differ"),
        ({"num_hidden_layers": 3}, "layers.2.*missing"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers"),
        ({"num_attention_heads": 0}, "heads|damaged"),
        ({"max_position_embeddings": 0}, "length of the context.*0"),
        ({"model_type": ["Dream"]}, "of another library"),
        ({"mask_token_id": 99}, "mask id is 99.*1"),
        ({"vocab_size": 20}, "differ|20"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
    ):
        change(**fields)
        with pytest.raises(cwdfm.InputError, match=facts):
            cwdfm.load(folder)
    config.write_text(json.dumps({"model_type": "Dream"}))
    with pytest.raises(cwdfm.InputError, match=r"config.json has no field"):
        cwdfm.load(folder)
    change()
    with pytest.raises(cwdfm.InputError, match=r"dtype.*bfloat16"):
        cwdfm.load(folder, dtype="int8")
    with pytest.raises(cwdfm.InputError, match="block_length"):
        cwdfm.load(folder, block=4)
    half = cwdfm.load(folder, dtype="bfloat16").network
    assert {x.dtype for x in half.parameters()} == {torch.bfloat16}
    assert {x.dtype for x in cwdfm.load(folder, dtype="auto").network.parameters()} == {
        torch.float32
    }
    (folder / "generation_config.json").write_text("[3]")
    with pytest.raises(cwdfm.InputError, match="damaged"):
        cwdfm.load(folder)
    (folder / "generation_config.json").unlink()
    weights = (folder / "model.safetensors").rename(tmp_path / "weights")
    with pytest.raises(cwdfm.InputError, match=r"not complete: model.safetensors is missing"):
        cwdfm.load(folder)
    weights.rename(folder / "model.safetensors")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(cwdfm.InputError, match="tokenizer"):
        cwdfm.load(folder)
