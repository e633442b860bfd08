"""Models in the real lm-evaluation-harness, on local tasks."""

import json
import math
import sys
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.baselines.bd3lm import BlockDiffusion
from cwdfm.data.text.tokenizer import ByteTokenizer
from cwdfm.method import Flow, Method
from cwdfm.model.transformer import DiT, DiTConfig
from tests.support.language import FAMILIES, reference_logits

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra 'lm-eval'")

from cwdfm.integrations import lm_eval as integration  # noqa: E402

END = ByteTokenizer.eos_id
LENGTH = 24
METHODS: dict[str, Method] = {
    "ar": Autoregressive(257),
    "flow": Flow(cwdfm.MaskSource(257), cwdfm.Linear()),
    "uniform": Flow(cwdfm.UniformSource(257), cwdfm.Linear()),
    "bd3lm": BlockDiffusion(cwdfm.MaskSource(257), cwdfm.Linear(), 4),
}
QUESTIONS = [
    {"question": "one and one", "choices": ["two", "three", "q"], "answer": 1},
    {"question": "red or blue", "choices": ["blue", "x"], "answer": 0},
    {"question": "a question that is longer than the model's sequences", "choices": ["a", "bc"],
     "answer": 1},
]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    for name, method in METHODS.items():
        torch.manual_seed(0)
        shape = DiTConfig(method.num_tokens, width=16, depth=1, heads=2, conditioning=8)
        network = DiT(method.network(shape))
        for weight in network.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        trained = cwdfm.Pretrained(network.eval(), method, ByteTokenizer(), LENGTH)
        trained.save_pretrained(place / name)
    return place


@pytest.fixture(autouse=True)
def quick_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the harness's report on this machine, which takes many processes."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)


def write_task(place: Path, name: str, rows: list[dict[str, Any]], **fields: Any) -> None:
    (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"data_files": {"test": str(place / f"{name}.jsonl")}}
    common = {"task": name, "dataset_path": "json", "dataset_kwargs": data, "test_split": "test"}
    (place / f"{name}.yaml").write_text(json.dumps(common | fields))  # JSON is YAML


def evaluate(place: Path, task: str, pretrained: Path, **options: Any) -> dict[str, Any]:
    tasks = pytest.importorskip("lm_eval.tasks")
    manager = tasks.TaskManager(include_path=str(place), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model="cwdfm",
        model_args={"pretrained": str(pretrained), **options},
        tasks=[task],
        task_manager=manager,
        bootstrap_iters=0,
        log_samples=True,
    )
    assert found is not None
    return dict(found)


def log_probs(trained: cwdfm.Pretrained, ids: list[int]) -> Tensor:
    """log p(x_k | x_<k) of an autoregressive model, [N], from its logits."""
    start = trained.method.num_tokens - 1
    with torch.no_grad():
        logits = trained.model(torch.tensor([[start, *ids[:-1]]]), torch.zeros(1))[0, :, :start]
    found: Tensor = logits.double().log_softmax(-1)[torch.arange(len(ids)), ids]
    return found


def choice_log_prob(trained: cwdfm.Pretrained, context: str, choice: str) -> float:
    ids = [*context.encode(), *choice.encode()][-LENGTH:]
    return float(log_probs(trained, ids)[-len(choice.encode()) :].sum())


def test_choices_of_an_autoregressive_model(models: Path, tmp_path: Path) -> None:
    """Its log-likelihoods are exact; contexts that are too long lose their beginning."""
    options = {"doc_to_text": "{{question}}", "doc_to_choice": "choices", "doc_to_target": "answer"}
    write_task(tmp_path, "choose", QUESTIONS, output_type="multiple_choice", **options)
    trained = cwdfm.load(models / "ar")
    found = evaluate(tmp_path, "choose", models / "ar", check_greedy=False)
    right = 0
    for sample in found["samples"]["choose"]:
        doc = sample["doc"]
        expected = [choice_log_prob(trained, doc["question"], f" {c}") for c in doc["choices"]]
        scores = [response[0][0] for response in sample["resps"]]
        assert scores == pytest.approx(expected, rel=1e-5)
        right += max(range(len(expected)), key=expected.__getitem__) == doc["answer"]
    assert found["results"]["choose"]["acc,none"] == pytest.approx(right / len(QUESTIONS))


@pytest.mark.filterwarnings("ignore:x_1 is")
@pytest.mark.parametrize("name", METHODS)
def test_log_likelihoods_are_the_seeded_bounds(models: Path, name: str) -> None:
    """Those of the method itself, whatever the batches."""
    trained = cwdfm.load(models / name)
    texts = [("abcd", "efgh"), ("abcdefgh", "ijklmnop"), ("wxyz", "efgh"), ("mnop", "mnop")]
    requests = [((a, b), list(a.encode()), list(b.encode())) for a, b in texts]
    for size in (1, 16):
        lm = integration.CwdfmLM(str(models / name), batch_size=size, draws=4, seed=5)
        found = [score for score, _ in lm._loglikelihood_tokens(requests)]
        for i, (_, context, text) in enumerate(requests):
            x_1 = torch.tensor([context + text])
            fixed = torch.arange(x_1.shape[1])[None] < len(context)
            seeded: Any = {"index": torch.tensor([i]), "fixed": fixed, "draws": 4, "seed": 5}
            nats = float(trained.method.likelihood(trained.model, x_1, **seeded).nats_B)
            assert found[i] == pytest.approx(-nats, rel=1e-5)


def test_block_models_score_texts_of_any_length(models: Path) -> None:
    """The text ends inside a block, of which the rest is given."""
    lm = integration.CwdfmLM(str(models / "bd3lm"), draws=4)
    trained = cwdfm.load(models / "bd3lm")
    (score, _), *_ = lm._loglikelihood_tokens([(("", ""), list(b"abcd"), list(b"efghi"))])
    x_1 = torch.tensor([[*b"abcdefghi", END, END, END]])
    place = torch.arange(12)
    blocks: list[tuple[int, Tensor]] = [(8, place < 4), (12, (place < 8) | (place > 8))]
    nats = 0.0
    for n, fixed in blocks:
        given = fixed[None, :n]
        bound = trained.method.likelihood(trained.model, x_1[:, :n], fixed=given, draws=4)
        nats += float(bound.nats_B)
    assert score == pytest.approx(-nats, rel=1e-5)


def test_perplexity_of_whole_texts(models: Path, tmp_path: Path) -> None:
    """Windows of 23 tokens after one given token; the last one is given all that fits."""
    text = "It was the best of times, it was the worst of times."
    write_task(
        tmp_path, "stream", [{"text": text}], output_type="loglikelihood_rolling",
        doc_to_text="", doc_to_target="{{text}}", metric_list=[{"metric": "bits_per_byte"}],
    )  # fmt: skip
    found = evaluate(tmp_path, "stream", models / "ar")["results"]["stream"]
    trained, ids, size = cwdfm.load(models / "ar"), [END, *text.encode()], LENGTH - 1
    expected, done = 0.0, 1
    while done < len(ids):
        end = min(done + size, len(ids))
        window = ids[max(0, end - size - 1) : end]
        expected += float(log_probs(trained, window)[done - end :].sum())
        done = end
    bits = -expected / len(text.encode()) / math.log(2)
    assert found["bits_per_byte,none"] == pytest.approx(bits, rel=1e-5)


def greedy(trained: cwdfm.Pretrained, ids: list[int], new: int) -> list[int]:
    """The most likely next token, one after the other."""
    start, begin = trained.method.num_tokens - 1, len(ids)
    for _ in range(new):
        with torch.no_grad():
            logits = trained.model(torch.tensor([[start, *ids]]), torch.zeros(1))[0, -1, :start]
        ids = [*ids, int(logits.argmax())]
    return ids[begin:]


def test_generation_and_greedy_continuations(models: Path, tmp_path: Path) -> None:
    trained = cwdfm.load(models / "ar")
    rows = [{"question": "one"}, {"question": "another"}]
    for row in rows:
        row["answer"] = bytes(greedy(trained, list(row["question"].encode()), 6)).decode("latin-1")
    lm = integration.CwdfmLM(str(models / "ar"), max_gen_toks=6)
    for row in rows:
        context, answer = list(row["question"].encode()), list(row["answer"].encode("latin-1"))
        other = [(answer[0] + 1) % 256, *answer[1:]]
        requests = [(("", ""), context, answer), (("", ""), context, other)]
        assert [same for _, same in lm._loglikelihood_tokens(requests)] == [True, False]
    stop = ByteTokenizer().decode(greedy(trained, list(b"one"), 6)[2:3])
    write_task(
        tmp_path, "write", rows, output_type="generate_until", doc_to_text="{{question}}",
        doc_to_target="{{answer}}", metric_list=[{"metric": "exact_match"}],
        generation_kwargs={"until": [stop], "max_gen_toks": 6},
    )  # fmt: skip
    samples = evaluate(tmp_path, "write", models / "ar")["samples"]["write"]
    for row, sample in zip(rows, samples, strict=True):
        text = ByteTokenizer().decode(greedy(trained, list(row["question"].encode()), 6))
        assert sample["resps"] == [[text.split(stop)[0]]]


@pytest.mark.parametrize("name", METHODS)
def test_generations_do_not_depend_on_the_batch(models: Path, name: str) -> None:
    contexts = ["ab", "some text", "cd", ""]
    kwargs = {"until": ["\n"], "max_gen_toks": 6, "do_sample": True, "temperature": 1.0}
    requests = [SimpleNamespace(args=(context, kwargs)) for context in contexts]
    found = [
        integration.CwdfmLM(str(models / name), batch_size=size, seed=1).generate_until(requests)
        for size in (1, 4)
    ]
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_language_models(name: str, tmp_path: Path) -> None:
    """Scores are bounds by the reference's logits; texts are those of cwdfm.generate."""
    write, facts = FAMILIES[name]
    folder, network = write(tmp_path / "model")
    model: cwdfm.LanguageModel = cwdfm.load(folder)
    lm = integration.CwdfmLM(str(folder), draws=4, seed=2)
    context, text = "the cat", "sat on"

    def logits(x_t: Tensor, t: Tensor) -> Tensor:
        found = reference_logits(network, model.swap(x_t), **facts)
        found[..., len(model.tokenizer) :] = -torch.inf
        return model.to_source(found.flatten(0, 1)).view_as(found)

    x_1 = torch.tensor([model.tokenizer(f"{context} {text}")["input_ids"]])
    fixed = torch.arange(x_1.shape[1])[None] < 2
    flow = (model.source, model.schedule, model.swap(x_1))
    expected = float(cwdfm.elbo(logits, *flow, fixed=fixed, draws=4, seed=2).nats_B)
    ((score, _),) = lm.loglikelihood([SimpleNamespace(args=(context, f" {text}"))], True)
    assert score == pytest.approx(-expected, rel=1e-4)
    draws = {"temperature": 1.0, "top_p": 0.5}
    kwargs = {"until": ["sat"], "max_gen_toks": 6, **draws}
    contexts = [context, "a big old dog"]
    texts = lm.generate_until([SimpleNamespace(args=(each, kwargs)) for each in contexts])
    solver = cwdfm.TopK(temperature=0.0)
    stop = [*model.stop_ids, "sat"]
    out = model.generate(solver, prompts=contexts, max_new_tokens=6, stop=stop, seed=2, **draws)
    assert texts == out.texts
    chat = lm.apply_chat_template([{"role": "user", "content": "cat"}])
    assert chat == "user cat the"


def test_block_causal_language_models_only_generate(tmp_path: Path) -> None:
    write, _ = FAMILIES["sdar"]
    lm = integration.CwdfmLM(str(write(tmp_path)[0]))
    request = SimpleNamespace(args=("the cat", {"until": [], "max_gen_toks": 5}))
    assert len(lm.generate_until([request])) == 1
    with pytest.raises(cwdfm.InputError, match=r"block by block"):
        lm.loglikelihood([SimpleNamespace(args=("the cat", " sat"))], True)


def test_command(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"doc_to_text": "{{question}}", "doc_to_choice": "choices", "doc_to_target": "answer"}
    write_task(tmp_path, "choose", QUESTIONS, output_type="multiple_choice", **options)
    model = f"pretrained={models / 'flow'},draws=2,solver=neighbor,scale=2.0"
    words = ["lm_eval", "--model", "cwdfm", "--model_args", model, "--tasks", "choose"]
    words += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    tasks = pytest.importorskip("lm_eval.tasks")  # reading the harness's own takes a minute
    quick = partialmethod(tasks.TaskManager.__init__, include_defaults=False)
    monkeypatch.setattr(tasks.TaskManager, "__init__", quick)
    integration.main()
    (written,) = (tmp_path / "out").rglob("results*.json")
    assert 0 <= json.loads(written.read_text())["results"]["choose"]["acc,none"] <= 1


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"pretrained": "nowhere"}, "nowhere.*neither"),
        ({"solver": "nieghbor"}, "neighbor.*nieghbor"),
        ({"drwas": 4}, "drwas"),
        ({"steps": 0}, "steps.*0"),
        ({"dtype": "float17"}, "dtype.*float17"),
        ({"temperature": 0.5}, "gen_kwargs"),
    ],
)
def test_invalid_input(models: Path, options: dict[str, Any], facts: str) -> None:
    with pytest.raises(cwdfm.InputError, match=facts):
        integration.CwdfmLM(**{"pretrained": str(models / "flow"), **options})
    lm = integration.CwdfmLM(str(models / "flow"))
    with pytest.raises(cwdfm.InputError, match=r"30 tokens.*24"):
        lm._loglikelihood_tokens([(("", ""), [1], [2] * 30)])
    request = SimpleNamespace(args=("a", {"until": [], "max_gen_toks": 24}))
    with pytest.raises(cwdfm.InputError, match=r"24 tokens.*max_gen_toks"):
        lm.generate_until([request])
