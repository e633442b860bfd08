"""The scheduler for diffusers, against exact laws and inside the real pipelines."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cwdfm
from tests.support import gemma, language
from tests.support.cases import slow
from tests.support.exact import Chain, LogWeight, correlated_target, entropy, neighbor
from tests.support.stats import assert_differs, assert_follows, histogram

diffusers = pytest.importorskip("diffusers", reason="needs the extra 'diffusers'")

from cwdfm.integrations.diffusers import ContextWeightedScheduler  # noqa: E402

VOCAB, LENGTH, MASK = 3, 3, 1  # the network's mask id lies between those of the data
WEIGHTS: dict[str, tuple[dict[str, Any], LogWeight]] = {
    "neighbor": ({"radius": 1, "scale": 2.0}, neighbor(1, 2.0, cut=True)),
    "entropy": ({"beta": 3.0}, entropy(3.0)),
}


def chain(mask: bool, log_weight: LogWeight | None = None, **options: Any) -> Chain:
    return Chain(correlated_target(VOCAB, LENGTH, seed=3), mask, log_weight, **options)


def network_ids(x: Any, mask: bool) -> Any:
    """The ids of a chain, whose mask is last, in those of the network: 0, 2, 3 and mask 1."""
    return torch.tensor([0, 3, 2, MASK])[x] if mask else x


def logits_table(exact: Chain, kappa: float) -> Tensor:
    """The network's logits [states, N, V] in each state."""
    p_SNV = np.stack([exact.posterior(x, kappa) for x in exact.states])
    logits = torch.from_numpy(p_SNV).log()
    if not exact.mask:
        return logits
    columns = torch.full((*logits.shape[:2], VOCAB + 1), 5.0, dtype=logits.dtype)
    columns[..., network_ids(torch.arange(VOCAB), True)] = logits
    return columns


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("solver", WEIGHTS)
def test_the_law_of_a_step(solver: str, mask: bool) -> None:
    """Step 2 of 5 from three states, by 6 tests of false-alarm rate 1e-6 and one control each."""
    options, log_weight = WEIGHTS[solver]
    exact, plain = chain(mask, log_weight), chain(mask)
    scheduler = ContextWeightedScheduler(solver, options)
    scheduler.set_timesteps(5)
    kappa, hazard, copies = 0.4, 0.2 / 0.6, 20_000
    logits_SNV = logits_table(exact, kappa)
    matrix, wrong = (each.step_matrix(kappa, hazard) for each in (exact, plain))
    generator = torch.Generator().manual_seed(1)
    counts, control = [], []
    for x in [(0, 3, 3), (3, 3, 3), (3, 2, 3)] if mask else [(0, 1, 2), (1, 1, 1), (2, 0, 0)]:
        s = exact.states.index(x)
        sample = network_ids(torch.tensor(x), mask).expand(copies, -1)
        found = scheduler.step(
            logits_SNV[s].expand(copies, -1, -1),
            scheduler.timesteps[2],
            sample,
            mask_token_id=MASK if mask else None,
            generator=generator,
        ).prev_sample
        found = network_ids(found, mask)  # its own inverse
        counts.append(histogram(found, VOCAB + mask))
        assert_follows(counts[-1], matrix[s])
        control.append(wrong[s])
    weighted = np.concatenate(counts), np.concatenate(control) / 3
    assert_differs(*weighted)


class Table(nn.Module):
    """A network with the call of LLaDA2 that knows the exact posterior of the last tokens."""

    def __init__(self, exact: Chain) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits_table(exact, 0.5), requires_grad=False)
        self.device = self.logits.device

    def forward(self, x_BN: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
        digits = network_ids(x_BN[:, -LENGTH:], True)
        state_B = digits @ ((VOCAB + 1) ** torch.arange(LENGTH - 1, -1, -1))
        before = x_BN.shape[1] - LENGTH
        return SimpleNamespace(logits=nn.functional.pad(self.logits[state_B], (0, 0, before, 0)))


@pytest.mark.parametrize("solver", WEIGHTS)
def test_the_law_of_a_whole_block_of_llada2(solver: str) -> None:
    """All tokens of the second block, after a prompt that ends in it, by the chain's matrices."""
    options, log_weight = WEIGHTS[solver]
    exact = chain(True, log_weight, fixed=(True, False, False))
    steps, copies = 2, 10_000  # the pipeline takes at most one step per new token
    hazards = [1 / (steps - k) for k in range(steps - 1)] + [np.inf]
    law = exact.start((2, 0, 0))
    for k, hazard in enumerate(hazards):
        law = law @ exact.step_matrix(k / steps, hazard)
    pipe = diffusers.LLaDA2Pipeline(Table(exact), diffusers.BlockRefinementScheduler())
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = ContextWeightedScheduler(solver, options, block_length=LENGTH)
    prompt = torch.tensor([[0, 0, 0, 2]])
    out = pipe(
        input_ids=prompt.expand(copies, -1),
        gen_length=LENGTH - 1,
        num_inference_steps=steps,
        mask_token_id=MASK,
        temperature=1.0,
        generator=torch.Generator().manual_seed(2),
        output_type="seq",
    ).sequences
    found = torch.cat([torch.full((copies, 1), 2), network_ids(out, True)], dim=1)
    assert_follows(histogram(found, VOCAB), exact.data_law(law))


def words() -> Any:
    """A tokenizer with a chat template, as the pipelines use it."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {f"w{i}": i for i in range(20)} | {"<eos>": 20, "<mask>": 21, "<pad>": 22}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"eos_token": "<eos>", "mask_token": "<mask>", "pad_token": "<pad>"}
    found = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **special)
    found.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    return found


def llada2() -> Any:
    """LLaDA2Pipeline with a small bidirectional network."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=23, intermediate_size=16, **sizes)
    network = transformers.BertForMaskedLM(config).eval()
    return diffusers.LLaDA2Pipeline(network, diffusers.BlockRefinementScheduler(), words())


def diffusion_gemma() -> Any:
    """DiffusionGemmaPipeline with a small network of its own class."""
    network = gemma.diffusion_gemma(23)
    scheduler = diffusers.EntropyBoundScheduler()
    return diffusers.DiffusionGemmaPipeline(network, scheduler, words())


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # by diffusers' modules
@pytest.mark.parametrize("make", [llada2, diffusion_gemma])
@pytest.mark.parametrize("solver", ["neighbor", slow("entropy")])
def test_whole_pipelines(make: Any, solver: str) -> None:
    pipe = make()
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = ContextWeightedScheduler.from_config(pipe.scheduler.config, solver=solver)

    def texts(seed: int, **options: Any) -> Any:
        generator = torch.Generator().manual_seed(seed)
        length = {"block_length": 8} if make is llada2 else {}
        common = {"gen_length": 16, "num_inference_steps": 4, "eos_early_stop": False}
        out = pipe("w1 w2 w3", generator=generator, **common, **length, **options)
        assert out.sequences.shape == (1, 16)
        assert len(out.texts) == 1
        return out.sequences

    first = texts(0, temperature=1.0)
    assert torch.equal(first, texts(0, temperature=1.0))
    assert not torch.equal(first, texts(1, temperature=1.0))
    if make is llada2:
        assert not bool((first == 21).any())


class BlockCausal(nn.Module):
    """A network of transformers with SDAR's attention, as LLaDA2Pipeline calls LLaDA2."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.device = network, torch.device("cpu")

    def forward(self, x_BN: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
        logits = language.reference_logits(self.network, x_BN, block=4)
        logits[..., 26:] = -torch.inf  # ids that the tokenizer does not have
        logits[..., language.MASK] = -torch.inf
        return SimpleNamespace(logits=logits)


@pytest.mark.parametrize("thresholds", [slow((0.5, 1e-9)), (0.3, 0.15), slow((0.15, 0.3))])
def test_edits_of_llada2_are_those_of_the_pipeline(
    tmp_path: Path, thresholds: tuple[float, float]
) -> None:
    """`cwdfm.Edit` in generation, against the pipeline with its own scheduler."""
    folder, network = language.write_sdar(tmp_path)
    model = cwdfm.load(folder)
    texts = ["the cat sat", "a big old dog ran in the red house on the", "moon"]
    solver = cwdfm.Edit(cwdfm.Threshold(thresholds[0], temperature=0.0), thresholds[1], 6)
    out = cwdfm.generate(model, solver, prompts=texts, max_new_tokens=14, stop=[])
    pipe = diffusers.LLaDA2Pipeline(BlockCausal(network), diffusers.BlockRefinementScheduler())
    pipe.set_progress_bar_config(disable=True)
    for text, tokens in zip(texts, out.tokens, strict=True):
        expected = pipe(
            input_ids=torch.tensor([model.tokenizer(text)["input_ids"]]),
            gen_length=14,
            block_length=4,
            num_inference_steps=8,  # with 4 it would not edit blocks that take 4 steps
            threshold=thresholds[0],
            editing_threshold=thresholds[1],
            max_post_steps=5,  # the pipeline makes one more
            mask_token_id=language.MASK,
            eos_early_stop=False,
            output_type="seq",
        ).sequences
        assert expected.tolist() == [tokens]


def test_temperature_zero_and_the_last_step(tmp_path: Path) -> None:
    """The last step reveals the most likely tokens; revealed ones stay."""
    logits = torch.randn(2, 8, 6, generator=torch.manual_seed(0))
    logits[..., 5] = 9.0  # the mask's own logit is not used
    scheduler = ContextWeightedScheduler("entropy", num_inference_steps=3)
    sample = torch.tensor([5, 5, 1, 5, 0, 5, 5, 5]).expand(2, -1)
    prev, *rest = scheduler.step(
        logits, 2, sample, mask_token_id=5, temperature=0.0, return_dict=False
    )
    expected = torch.where(sample == 5, logits[..., :5].argmax(-1), sample)
    assert torch.equal(prev, expected)
    assert torch.equal(rest[0], sample == 5)
    assert torch.equal(rest[-1], logits)


def test_config_survives_saving(tmp_path: Path) -> None:
    scheduler = ContextWeightedScheduler("neighbor", {"scale": 2.5}, power=2.0, block_length=4)
    scheduler.save_config(tmp_path)
    again = ContextWeightedScheduler.from_pretrained(tmp_path)
    assert json.loads((tmp_path / "scheduler_config.json").read_text())["options"] == {"scale": 2.5}
    found = [
        each.step(
            torch.zeros(64, 8, 6), 1, torch.full((64, 8), 5), mask_token_id=5,
            generator=torch.Generator().manual_seed(0),
        ).prev_sample
        for each in (scheduler, again)
    ]  # fmt: skip
    assert torch.equal(*found)
    replaced = ContextWeightedScheduler.from_config(again.config, solver="entropy", options={})
    assert replaced.config.power == 2.0


def test_a_saved_pipeline_keeps_its_scheduler(tmp_path: Path) -> None:
    pipe = llada2()
    pipe.scheduler = ContextWeightedScheduler("entropy", {"beta": 2.0})
    pipe.save_pretrained(tmp_path)
    again = diffusers.LLaDA2Pipeline.from_pretrained(tmp_path, tokenizer=pipe.tokenizer)
    assert type(again.scheduler) is ContextWeightedScheduler
    assert again.scheduler.config.options == {"beta": 2.0}


LOGITS, TOKENS = torch.zeros(2, 4, 6), torch.full((2, 4), 5)


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda _: ContextWeightedScheduler("nieghbor"), "neighbor.*nieghbor"),
        (lambda _: ContextWeightedScheduler("left-to-right"), "left-to-right.*neighbor"),
        (lambda _: ContextWeightedScheduler("entropy", {"scale": 1.0}), "scale.*beta"),
        (lambda _: ContextWeightedScheduler("gibbs"), "gibbs.*not supported.*threshold"),
        (lambda _: ContextWeightedScheduler("edit"), "edit.*not supported"),
        (lambda _: ContextWeightedScheduler("klass"), "klass.*not supported"),
        (lambda s: s.set_timesteps(0), "steps.*0"),
        (lambda s: s.step(LOGITS, 32, TOKENS, mask_token_id=5), "0..31.*32"),
        (lambda s: s.step(LOGITS, 0, TOKENS, mask_token_id=6), "6.*0..5"),
        (lambda s: s.step(LOGITS, 0, TOKENS + 1), "sample.*6"),
        (lambda s: s.step(LOGITS[:1], 0, TOKENS), r"\(2, 4\).*\(1, 4, 6\)"),
        (lambda s: s.step(LOGITS, 0, TOKENS, top_k=3), "top_k=3.*top_p"),
        (lambda s: s.step(LOGITS.log() * 0, 0, TOKENS), "NaN"),
    ],
)
def test_invalid_input(call: Any, facts: str) -> None:
    with pytest.raises(cwdfm.InputError, match=facts):
        call(ContextWeightedScheduler())
