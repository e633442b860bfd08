"""Text metrics against transformers, mauve-text and plain Python counters on the same samples."""

import json
import math
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.errors import InputError
from cwdfm.likelihood.dataset import DatasetLikelihood, dataset_likelihood
from cwdfm.method import Flow
from cwdfm.metrics.evaluator import EvaluatorLM, LoadedEvaluatorLM
from cwdfm.metrics.folds import Estimate, fold_slices
from cwdfm.metrics.mauve import Embedder, mauve_score
from cwdfm.metrics.overlap import Overlap, ngram_overlap
from cwdfm.metrics.perplexity import _retokenize, cut_text, generative_perplexity
from cwdfm.metrics.text import text_statistics
from cwdfm.metrics.text_model import length_batches, model_fingerprint, token_budget
from tests.support.cases import slow
from tests.support.evaluators import (
    CONTEXT,
    END,
    byte_tokenizer,
    extra,
    gpt2,
    save_bert,
    save_gpt2,
    write_gguf,
)
from tests.support.models import SmallModel

TEXTS = [
    "Call me Ishmael.",
    "",
    "x",
    "Some years ago - never mind how long precisely - having little or no money in my purse,",
    "héé! 日本",
    f"one{END}two{END}",
    "It is a way I have of driving off the spleen and regulating the circulation. " * 3,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gpt2(tmp_path_factory.mktemp("evaluator") / "tiny")


@pytest.fixture(scope="module")
def evaluator(folder: Path) -> LoadedEvaluatorLM:
    return EvaluatorLM(str(folder), device="cpu", batch_tokens=64).load()


def direct(
    folder: Path, texts: Sequence[str], *, start: bool, overlap: int = CONTEXT // 2
) -> tuple[list[float], list[int]]:
    """transformers itself: one text at a time, no padding, the loss of one token at a time."""
    transformers = extra("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    nats, counts = [], []
    for text in texts:
        ids = [0] * start + tokenizer(text)["input_ids"]
        total, begin, end = 0.0, 0, CONTEXT
        for place in range(1, len(ids)):
            if place >= end:
                begin += CONTEXT - overlap
                end = begin + CONTEXT
            with torch.no_grad():
                logits = model(torch.tensor([ids[begin:place]])).logits[0, -1]
            total -= float(logits.double().log_softmax(-1)[ids[place]])
        nats.append(total)
        counts.append(max(0, len(ids) - 1))
    return nats, counts


@pytest.mark.parametrize("start", [True, slow(False)])
def test_scores_equal_transformers(folder: Path, evaluator: LoadedEvaluatorLM, start: bool) -> None:
    nats, counts = evaluator.score(evaluator.encode(TEXTS), "start" if start else "skip")
    truth, truth_counts = direct(folder, TEXTS, start=start)
    assert counts.tolist() == truth_counts
    assert nats == pytest.approx(truth, rel=1e-5)
    assert max(counts) > 3 * CONTEXT  # the last text needs windows


@pytest.mark.parametrize(("overlap", "budget"), [slow(1, 1), slow(5, 10_000), (CONTEXT - 1, 100)])
def test_windows_and_batches(folder: Path, overlap: int, budget: int) -> None:
    one = EvaluatorLM(str(folder), overlap=overlap, batch_tokens=budget, device="cpu").load()
    nats, _ = one.score(one.encode(TEXTS))
    assert nats == pytest.approx(direct(folder, TEXTS, start=False, overlap=overlap)[0], rel=1e-5)
    assert one.conventions()["overlap"] == overlap


def test_a_shorter_context_is_used_and_recorded(folder: Path, evaluator: LoadedEvaluatorLM) -> None:
    short = EvaluatorLM(str(folder), context=8, device="cpu").load()
    assert (short.context, short.overlap) == (8, 4)
    # The requested 1,024 are limited by its positions.
    assert (evaluator.context, evaluator.overlap) == (CONTEXT, CONTEXT // 2)
    long = evaluator.encode(TEXTS[-1:])
    assert short.score(long)[0] != pytest.approx(evaluator.score(long)[0])


def test_both_averages_and_the_folds(folder: Path, evaluator: LoadedEvaluatorLM) -> None:
    nats, counts = (np.array(x) for x in direct(folder, TEXTS, start=False))
    corpus = generative_perplexity(TEXTS, evaluator, folds=2)
    assert corpus.perplexity.value == pytest.approx(math.exp(nats.sum() / counts.sum()), rel=1e-5)
    halves = [math.exp(nats[s].sum() / counts[s].sum()) for s in (slice(0, 3), slice(3, 7))]
    assert corpus.perplexity.folds == pytest.approx(halves, rel=1e-5)
    assert corpus.to_json()["perplexity"]["fold_mean"] == pytest.approx(np.mean(halves), rel=1e-5)
    assert corpus.perplexity.fold_std == pytest.approx(np.std(halves, ddof=1), rel=1e-4)
    scored = counts > 0
    sample = generative_perplexity(TEXTS, evaluator, folds=1, average="sample")
    truth = np.exp(nats[scored] / counts[scored]).mean()
    assert sample.perplexity.value == pytest.approx(truth, rel=1e-5)
    assert sample.perplexity.fold_std is None
    assert (corpus.samples, corpus.unscored, corpus.tokens) == (7, 2, counts.sum())


def test_every_convention_is_in_the_result(folder: Path, evaluator: LoadedEvaluatorLM) -> None:
    result = generative_perplexity(TEXTS, evaluator, folds=1)
    data = json.loads(json.dumps(result.to_json()))
    loaded = {"model": str(folder), "revision": None, "dtype": "float32", "device": "cpu"}
    assert data["evaluator"] == loaded | {"context": CONTEXT, "overlap": CONTEXT // 2}
    rest = ("retokenized", "average", "first_token", "after_end", "end")
    assert [data[name] for name in rest] == [True, "corpus", "skip", "keep", END]
    assert EvaluatorLM() == EvaluatorLM(model="gpt2-large", dtype="float32", context=1024)


def test_log_softmax_of_half_precision_logits_is_in_float32(
    folder: Path, evaluator: LoadedEvaluatorLM
) -> None:
    half = EvaluatorLM(str(folder), dtype="bfloat16", device="cpu").load()
    everything = evaluator.encode(TEXTS)
    close = pytest.approx(evaluator.score(everything)[0], rel=0.05, abs=0.5)
    assert half.score(everything)[0] == close
    ids = half.encode(TEXTS[:1])
    with torch.no_grad():
        logits = half.loaded.model(torch.tensor(ids)).logits[0, :-1].double()
    truth = -logits.log_softmax(-1).gather(1, torch.tensor(ids[0][1:])[:, None]).sum()
    assert half.score(ids)[0] == pytest.approx([float(truth)], rel=1e-6)


def test_start_token_falls_back_to_end_token() -> None:
    for start, end, found in ((1, 2, 1), (0, 2, 0), (None, 2, 2)):
        tokenizer = SimpleNamespace(bos_token_id=start, eos_token_id=end)
        evaluator: Any = SimpleNamespace(loaded=SimpleNamespace(tokenizer=tokenizer))
        assert LoadedEvaluatorLM.start_id(evaluator) == found


def test_known_end_tokens_are_kept() -> None:
    """Only an end token that the evaluator LM does not know is replaced."""
    for own, known, read in (("</s>", [END], END), ("</s>", [], "</s>"), (None, [], END)):
        evaluator: Any = SimpleNamespace(
            loaded=SimpleNamespace(tokenizer=SimpleNamespace(eos_token=own)),
            vocabulary=lambda known=known: known,
            encode=list,
        )
        found: Any = _retokenize([f"a{END}b"], evaluator, "keep", END)
        assert found == [f"a{read}b"]


CUT = [f"one{END}two", f"{END}{END}three{END}{END}", "four", f"{END}"]


def test_samples_of_two_tokens_are_scored(evaluator: LoadedEvaluatorLM) -> None:
    texts = ["a b", ""]
    (pair, none) = evaluator.encode(texts)
    assert (len(pair) > 1, none) == (True, [])
    two = torch.tensor([pair[:2], pair[:2]])
    found = generative_perplexity(two, evaluator, folds=1, vocabulary=evaluator.vocabulary())
    assert (found.tokens, found.unscored) == (2, 0)
    assert generative_perplexity(texts, evaluator, folds=1).unscored == 1


def test_text_after_the_first_end(evaluator: LoadedEvaluatorLM) -> None:
    assert [cut_text(text) for text in CUT] == ["one", "three", "four", ""]
    cut = generative_perplexity(CUT, evaluator, folds=1, after_end="cut")
    same = generative_perplexity(["one", "three", "four", ""], evaluator, folds=1)
    assert cut.perplexity == same.perplexity
    assert cut.unscored == 1
    keep = generative_perplexity(CUT, evaluator, folds=1)
    assert keep.tokens == (3 + 1 + 3 - 1) + (2 + 4 + 2 - 1) + (4 - 1)  # "th" is one token


def test_unknown_end_tokens_are_replaced(evaluator: LoadedEvaluatorLM) -> None:
    other = generative_perplexity(["ab</s>cd", "</s>ef"], evaluator, folds=1, end="</s>")
    own = generative_perplexity([f"ab{END}cd", f"{END}ef"], evaluator, folds=1)
    assert other.perplexity == own.perplexity


@pytest.mark.parametrize("after_end", ["keep", "cut"])
def test_own_tokens_of_one_vocabulary(evaluator: LoadedEvaluatorLM, after_end: Any) -> None:
    texts = [f"{END}ab{END}c", f"abcd{END}", "efghi"]
    tokens = torch.tensor(evaluator.encode(texts))
    options: dict[str, Any] = {"folds": 1, "after_end": after_end}
    same = generative_perplexity(tokens, evaluator, vocabulary=evaluator.vocabulary(), **options)
    assert not same.retokenized
    assert same.perplexity == generative_perplexity(texts, evaluator, **options).perplexity


def test_gguf_gives_the_same_scores(tmp_path: Path) -> None:
    transformers = extra("transformers")
    extra("gguf")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "max_position_embeddings": 64}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "tie_word_embeddings": False}
    config = transformers.LlamaConfig(vocab_size=258, initializer_range=0.3, **sizes, **layers)
    model = transformers.LlamaForCausalLM(config).eval()
    path = tmp_path / "tiny.gguf"
    write_gguf(model, byte_tokenizer(transformers), path)
    evaluator = EvaluatorLM(str(path), device="cpu").load()
    texts = ["Call me Ishmael.", "Some years ago"]
    assert evaluator.context == 64
    ids = evaluator.encode(texts)
    assert ids == byte_tokenizer(transformers)(texts)["input_ids"]
    with torch.no_grad():
        truth = [float(model(torch.tensor([x]), labels=torch.tensor([x])).loss) for x in ids]
    nats, counts = evaluator.score(ids)
    assert nats / counts == pytest.approx(truth, rel=1e-5)


def test_features_are_the_last_hidden_state(folder: Path, evaluator: LoadedEvaluatorLM) -> None:
    transformers = extra("transformers")
    texts = [TEXTS[0], "x", TEXTS[-1], TEXTS[4]]
    model = transformers.AutoModel.from_pretrained(folder).eval()
    truth = []
    for ids in evaluator.encode(texts):
        with torch.no_grad():
            out = model(torch.tensor([ids[:CONTEXT]]), output_hidden_states=True)
        truth.append(out.hidden_states[-1][0, -1].numpy())
    assert evaluator.features(texts) == pytest.approx(np.stack(truth), rel=1e-4, abs=1e-5)


def test_embeddings_are_normalized_means(tmp_path: Path) -> None:
    model = save_bert(tmp_path, max_position_embeddings=40)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    embedder = Embedder(str(tmp_path), device="cpu")
    assert embedder.conventions()["max_tokens"] == 20
    texts = ["a", TEXTS[0], TEXTS[3]]
    truth = []
    for text in texts:
        ids = byte_tokenizer(extra("transformers"))(text)["input_ids"][:20]
        with torch.no_grad():
            mean = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
        truth.append((mean / mean.norm()).numpy())
    assert embedder.features(texts) == pytest.approx(np.stack(truth), rel=1e-4, abs=1e-5)
    with pytest.raises(InputError, match="1 of 2 texts are empty, first at index 1"):
        embedder.features(["a", ""])
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 99}')
    assert Embedder(str(tmp_path), device="cpu").max_tokens == 40  # positions of the model


def features(seed: int, shift: float = 0.0, rows: int = 120) -> "np.ndarray[Any, Any]":
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=(rows, 6)) + shift * np.eye(6)[0], dtype=np.float32)


@pytest.mark.filterwarnings("ignore:MAUVE of")
def test_mauve_equals_the_package() -> None:
    package = extra("mauve")
    p, q = features(0), features(1, 1.0)
    ours = mauve_score(q, p)
    theirs = package.compute_mauve(p_features=p, q_features=q)
    assert (ours.mauve, ours.mauve_star) == (theirs.mauve, theirs.mauve_star)
    assert ours.buckets == theirs.num_buckets == 12
    rng, truth = np.random.default_rng(25), []
    for _ in range(5):  # rows drawn with replacement, the reference's first
        i, j = rng.integers(120, size=120), rng.integers(120, size=120)
        truth.append(package.compute_mauve(p_features=p[i], q_features=q[j]).mauve)
    assert ours.resamples == tuple(truth)
    assert ours.std == pytest.approx(np.std(truth, ddof=1))
    assert len(set(truth)) == 5
    assert mauve_score(q, p) == ours  # seeds are fixed
    assert mauve_score(features(2), p, resamples=0).mauve > 0.8 > 0.5 > ours.mauve
    data = json.loads(json.dumps(ours.to_json()))
    assert (data["samples"], data["reference"], data["buckets"], data["seed"]) == (120, 120, 12, 25)


def test_few_samples_cause_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    """One warning, and none from the clustering."""
    extra("mauve")
    with pytest.warns(UserWarning, match="MAUVE of 120 samples is unreliable"):
        mauve_score(features(0), features(1), resamples=1)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("vocab", "length"), [(3, 40), (50_257, 17), (2, 4), (5, 1), (4, 3)])
def test_statistics_are_those_of_plain_counters(vocab: int, length: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(vocab, size=(11, length))
    x[3] = x[3, 0]
    found = text_statistics(torch.from_numpy(x), folds=3)
    entropies, runs = [], []
    for row in x.tolist():
        shares = [n / length for n in Counter(row).values()]
        entropies.append(-sum(p * math.log2(p) for p in shares))
        longest = run = 1
        for a, b in pairwise(row):
            run = run + 1 if a == b else 1
            longest = max(longest, run)
        runs.append(longest)
    assert found.entropy.value == pytest.approx(np.mean(entropies))
    assert found.entropy_sample_std == pytest.approx(np.std(entropies, ddof=1))
    assert found.longest_run.value == pytest.approx(np.mean(runs))
    assert found.longest_run_of_all == max(runs) == length
    assert len(found.distinct) == min(4, length)
    for n in range(1, min(4, length) + 1):
        grams = [[tuple(r[i : i + n]) for i in range(length - n + 1)] for r in x.tolist()]
        distinct = np.mean([len(set(g)) / len(g) for g in grams])
        assert found.distinct[n - 1].value == pytest.approx(distinct)
        everything = [g for row in grams for g in row]
        assert found.corpus_distinct[n - 1] == len(set(everything)) / len(everything)
    if length < 4:
        assert found.repetition is None
    else:
        again = [sum(g in seen[:i] for i, g in enumerate(seen)) / len(seen) for seen in grams]
        assert found.repetition is not None
        assert found.repetition.value == pytest.approx(np.mean(again))
    parts = [np.mean(entropies[s]) for s in (slice(0, 3), slice(3, 7), slice(7, 11))]
    assert found.entropy.folds == pytest.approx(parts)
    assert json.loads(json.dumps(found.to_json()))["entropy"]["folds"] == list(found.entropy.folds)


def test_a_repeated_token_has_zero_entropy() -> None:
    """Rounding must not give a negative value."""
    for length in (1, 10, 48, 96, 160):
        value = text_statistics(np.full((1, length), 7), folds=1).entropy.value
        assert value == pytest.approx(0, abs=1e-12)
        assert value >= 0


def test_the_entropy_of_known_sequences() -> None:
    rows = torch.tensor([[7] * 8, [0, 1] * 4, list(range(8))])
    found = text_statistics(rows, folds=3)
    assert found.entropy.folds == (0.0, 1.0, 3.0)
    assert [d.folds[0] for d in found.distinct] == [1 / 8, 1 / 7, 1 / 6, 1 / 5]
    assert found.repetition is not None
    assert found.repetition.folds == pytest.approx((0.8, 0.6, 0.0))
    assert str(found.entropy) == "1.333 ± 1.53"


def test_folds_and_batches_cover_everything_once() -> None:
    for samples, folds in ((5, 5), (7, 3), (1000, 7)):
        slices = fold_slices(samples, folds)
        assert [i for s in slices for i in range(samples)[s]] == list(range(samples))
        assert {s.stop - s.start for s in slices} <= {samples // folds, samples // folds + 1}
    lengths = [3, 9, 1, 9, 4, 30]
    batches = list(length_batches(lengths, 18))
    assert sorted(i for b in batches for i in b) == list(range(6))
    assert batches[0] == [5]  # longer than the budget: alone
    assert all(len(b) * max(lengths[i] for i in b) <= 18 for b in batches[1:])
    assert token_budget(torch.device("cpu"), 10**9) == 2048
    assert str(Estimate(2.0, (2.0,))) == "2"


SOURCE, SCHEDULE = cwdfm.MaskSource(5), cwdfm.Polynomial(2.0)
ROWS = np.random.default_rng(0).integers(5, size=(23, 7)).astype(np.int16)


def likelihood(rows: Any = ROWS, **options: Any) -> DatasetLikelihood:
    return dataset_likelihood(Flow(SOURCE, SCHEDULE), SmallModel(6), rows, draws=4, **options)


def bound(fixed: torch.Tensor | None = None) -> Any:
    x = torch.from_numpy(ROWS).long()
    return cwdfm.elbo(SmallModel(6), SOURCE, SCHEDULE, x, fixed=fixed, draws=4)


def test_the_bound_does_not_depend_on_batches() -> None:
    whole = bound()
    for size in (1, 5, 23, 100):
        split = likelihood(batch_size=size)
        assert split.nats_per_token == pytest.approx(whole.nats_per_token, rel=1e-12)
        assert split.noise_error == pytest.approx(whole.standard_error, rel=1e-12)
        spread = whole.nats_B.numpy().std(ddof=1) / math.sqrt(23) / 7
        assert split.standard_error == pytest.approx(spread, rel=1e-9)
        assert split.perplexity == pytest.approx(whole.perplexity)
        off = math.exp(whole.nats_per_token + 1e-6 * spread) - whole.perplexity
        assert split.perplexity_error == pytest.approx(1e6 * off, rel=1e-5)  # of exp, by its slope
        assert split.bits_per_token == pytest.approx(whole.bits_per_token)
        assert (split.sequences, split.of, split.tokens) == (23, 23, 23 * 7)


def test_a_limit_selects_evenly_spaced_rows() -> None:
    some = likelihood(torch.from_numpy(ROWS).long(), limit=4, batch_size=3)
    chosen = bound().nats_B[[0, 5, 11, 17]]
    assert some.nats_per_token == pytest.approx(float(chosen.sum()) / 28)
    assert (some.sequences, some.of) == (4, 23)
    assert likelihood(limit=99).of == 23
    one = likelihood(limit=1)
    assert (one.standard_error, one.perplexity_error) == (None, None)
    assert "1 of 23 sequences" in str(one)
    assert json.loads(json.dumps(one.to_json()))["perplexity_error"] is None


def test_the_bound_of_given_positions() -> None:
    fixed = torch.tensor([True] + [False] * 6)
    ours = likelihood(fixed=fixed, batch_size=6)
    assert ours.nats_per_token == pytest.approx(bound(fixed.expand(23, 7)).nats_per_token)
    assert ours.tokens == 23 * 6


def test_short_rows_have_little_weight_in_the_error() -> None:
    """Compares with the jackknife estimate of the ratio of nats to tokens."""
    ours = likelihood(padding=(4, 6))
    fixed = torch.zeros(23, 7, dtype=torch.bool)
    fixed[4, 1:] = True
    nats = bound(fixed).nats_B.numpy()
    tokens = np.where(np.arange(23) == 4, 1, 7)
    assert ours.nats_per_token == pytest.approx(nats.sum() / tokens.sum())
    without = (nats.sum() - nats) / (tokens.sum() - tokens)
    error = math.sqrt(22 / 23 * ((without - without.mean()) ** 2).sum())
    assert ours.standard_error == pytest.approx(error, rel=0.05)


Change = Callable[[Path], None]


def spoil(name: str, content: str | None) -> Change:
    def change(folder: Path) -> None:
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(content)

    return change


BROKEN: dict[str, tuple[Change, str]] = {
    "no-config": (spoil("config.json", None), "has no config.json.*save_pretrained"),
    "no-weights": (spoil("model.safetensors", None), "OSError.*model.safetensors"),
    "broken-weights": (spoil("model.safetensors", "12345"), "cannot be loaded .SafetensorError"),
    "broken-config": (spoil("config.json", "{"), "cannot be loaded"),
    "unknown-model": (spoil("config.json", "{}"), "cannot be loaded .ValueError"),
    "broken-tokenizer": (spoil("tokenizer.json", "{}"), "cannot be loaded .*tokenizer.json"),
}


@pytest.mark.parametrize("row", BROKEN)
def test_broken_folders(row: str, folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    change, message = BROKEN[row]
    change(copy)
    with pytest.raises(InputError, match=f"(?s){message}"):
        EvaluatorLM(str(copy), device="cpu").load()


def test_unsuitable_evaluators(folder: Path, tmp_path: Path) -> None:
    transformers = extra("transformers")
    shutil.copytree(folder, tmp_path / "small")
    gpt2(transformers, vocab_size=200).save_pretrained(tmp_path / "small")
    with pytest.raises(InputError, match=r"ids up to 257, .* 0\.\.199"):
        EvaluatorLM(str(tmp_path / "small"), device="cpu").load()

    shutil.copytree(folder, tmp_path / "nan")
    model = gpt2(transformers, vocab_size=258)
    model.transformer.ln_f.weight.data.fill_(torch.nan)
    model.save_pretrained(tmp_path / "nan")
    evaluator = EvaluatorLM(str(tmp_path / "nan"), device="cpu").load()
    with pytest.raises(InputError, match=r"NaN .* scores for 2 of 2 texts.*float32.*weights"):
        generative_perplexity(["abc", "def"], evaluator, folds=1)


def test_an_unreachable_hub_is_not_asked_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    extra("transformers")
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        place = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(extra("huggingface_hub.constants"), "ENDPOINT", place)
        monkeypatch.setattr(extra("huggingface_hub.constants"), "HF_HUB_OFFLINE", False)

        def close_connections() -> list[bytes]:
            received: list[bytes] = []
            while b"end" not in received:
                connection, _ = server.accept()
                with connection:
                    received.append(connection.recv(200).split(b" HTTP")[0])
            return received

        requests = pool.submit(close_connections)
        with pytest.raises(InputError, match="'no/model' is not a local folder"):
            EvaluatorLM("no/model", device="cpu").load()
        with socket.create_connection(server.getsockname()) as connection:
            connection.send(b"end")
        # Other requests than the first are the hub library's own.
        assert requests.result()[0] == b"HEAD /"
        assert not any(b"no/model" in request for request in requests.result())


CODE = """
from transformers import GPT2Config, GPT2LMHeadModel
open({!r}, "w").close()
class Own(GPT2Config):
    model_type = "own"
class OwnModel(GPT2LMHeadModel):
    config_class = Own
"""


def test_code_of_a_model_runs_only_with_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub model also needs a commit, since its owner can change the code."""
    folder, ran = save_gpt2(tmp_path / "own"), tmp_path / "ran"
    modules = extra("transformers.dynamic_module_utils")
    monkeypatch.setattr(modules, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    (folder / "code.py").write_text(CODE.format(str(ran)))
    config = json.loads((folder / "config.json").read_text())

    def refer_to(code: str) -> None:
        names = {"AutoConfig": code, "AutoModelForCausalLM": f"{code}Model"}
        changed = config | {"auto_map": names, "model_type": "own"}
        (folder / "config.json").write_text(json.dumps(changed))

    refer_to("code.Own")
    with pytest.raises(InputError, match=r"Python code.*trust_remote_code=True$"):
        EvaluatorLM(str(folder), device="cpu").load()
    refer_to("owner/other--code.Own")
    with pytest.raises(InputError, match="another repository, owner/other"):
        EvaluatorLM(str(folder), device="cpu", trust_remote_code=True).load()
    assert not ran.exists()
    refer_to("code.Own")
    EvaluatorLM(str(folder), device="cpu", trust_remote_code=True).load()
    assert ran.exists()
    for revision in (None, "main", "v1.0", "abc123"):
        with pytest.raises(InputError, match="commit"):
            EvaluatorLM("owner/model", trust_remote_code=True, revision=revision)
    with pytest.raises(InputError, match="local path"):
        EvaluatorLM(str(folder), revision="0" * 40)


def test_fingerprints_distinguish_models_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names, sizes and both ends of the files."""
    folder, zeros = tmp_path / "evaluator", bytes(3 << 16)
    folder.mkdir()

    def identity(content: bytes, name: str = "weights") -> str:
        for old in folder.iterdir():
            old.unlink()
        (folder / name).write_bytes(content)
        return str(model_fingerprint(str(folder))["files"])

    ends = [zeros, zeros[:-1] + b"1", b"1" + zeros[:-1], zeros + b"0"]
    assert len({*map(identity, ends), identity(zeros, "other")}) == 5
    assert identity(zeros) == identity(zeros)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert model_fingerprint("~/evaluator")["files"] == identity(zeros)
    one = (folder / "weights").rename(tmp_path / "evaluator.gguf")
    alone = model_fingerprint(str(one))["files"]  # the name of a single file does not count
    assert model_fingerprint(str(one.rename(tmp_path / "other.gguf")))["files"] == alone
    assert model_fingerprint("gpt2-large") == {"model": "gpt2-large", "files": None}


def perplexity(samples: Any, **options: Any) -> Callable[[LoadedEvaluatorLM], object]:
    return lambda evaluator: generative_perplexity(samples, evaluator, **options)


def own_perplexity(tokens: Any, **options: Any) -> Callable[[LoadedEvaluatorLM], object]:
    return lambda evaluator: generative_perplexity(
        tokens, evaluator, vocabulary=evaluator.vocabulary(), **options
    )


IDS = torch.tensor([[1, 2]])
BYTES = {chr(i): i for i in range(9)}
WRONG: dict[str, tuple[Callable[[LoadedEvaluatorLM], object], str]] = {
    "no-samples": (perplexity([]), "samples is empty"),
    "one-string": (perplexity("abc"), "must be a sequence of texts.*str 'abc'"),
    "not-texts": (perplexity([[1, 2]]), "must contain strings, got list.*decode"),
    "one-sample": (perplexity(["abc"]), "1 samples cannot be split into 5 folds.*folds=1"),
    "all-empty": (perplexity(["", "x"], folds=1), "none of the 2 samples has a token to score"),
    "empty-fold": (perplexity(["", "x", "abc"], folds=3), "fold 1 of 3 has no token"),
    "bad-average": (perplexity(["abc"], average="mean"), "average must be one of"),
    "bad-after-end": (perplexity(["abc"], after_end="drop"), "after_end must be one of"),
    "bad-first": (perplexity(["abc"], folds=1, first_token="x"), "first_token must be one of"),
    "no-vocabulary": (perplexity(IDS), "same vocabulary: pass vocabulary=.*or decode"),
    "other-vocabulary": (perplexity(IDS, vocabulary=BYTES), "has 9 tokens, .* 258, and .* differ"),
    "unknown-end": (
        own_perplexity(IDS, after_end="cut", end="</s>", folds=1),
        "'</s>' is not in the vocabulary",
    ),
    "ids-out-of-range": (own_perplexity(IDS + 300), r"ids from 301 to 302, .* 0\.\.257"),
    "no-folder": (lambda _: EvaluatorLM("/no/such").load(), "there is no folder /no/such"),
    "no-name": (lambda _: EvaluatorLM("").load(), "hub name, a folder or a GGUF file, got ''"),
    "bad-dtype": (lambda _: EvaluatorLM(dtype="int8"), "dtype must be one of"),  # type: ignore[arg-type]
    "bad-context": (lambda _: EvaluatorLM(context=1), "context must be an integer >= 2, got 1"),
    "bad-overlap": (
        lambda evaluator: EvaluatorLM(evaluator.config.model, overlap=CONTEXT, device="cpu").load(),
        f"overlap must be .* context of {CONTEXT} tokens, got {CONTEXT}",
    ),
    "bad-device": (
        lambda _: EvaluatorLM("gpt2", device="tpu9x").load(),
        "device must be auto, cpu",
    ),
    "features-of-nothing": (lambda evaluator: evaluator.features(["a", ""]), "1 of 2 texts are"),
    "mauve-few": (lambda _: mauve_score(features(0, rows=5), features(1)), "at least 20.*has 5"),
    "mauve-texts": (
        lambda _: mauve_score(cast(Any, ["a"] * 20), features(1)),
        "features.*got list",
    ),
    "mauve-widths": (
        lambda _: mauve_score(features(0)[:, :3], features(1)),
        "samples have 3 features, but reference has 6",
    ),
    "mauve-nan": (lambda _: mauve_score(features(0) * np.nan, features(1)), "must be finite"),
    "mauve-buckets": (lambda _: mauve_score(features(0), features(1), buckets=500), "not exceed"),
    "statistics-shape": (lambda _: text_statistics(torch.zeros(3).long()), r"ids \[samples"),
    "statistics-float": (lambda _: text_statistics(torch.zeros(3, 4)), "float32 tensor"),
    "statistics-one": (lambda _: text_statistics(IDS), "1 samples cannot be split into 5 folds"),
    "split-shape": (lambda _: likelihood(ROWS[0]), "sequences must be token ids"),
    "split-limit": (lambda _: likelihood(limit=0), "limit must be an integer >= 1"),
    "split-fixed": (lambda _: likelihood(fixed=[True] * 7), r"of shape \(7,\), got list"),
}


@pytest.mark.parametrize("row", WRONG)
def test_wrong_input(row: str, evaluator: LoadedEvaluatorLM) -> None:
    act, message = WRONG[row]
    if "mauve" in row:
        extra("mauve")
    with pytest.raises(InputError, match=f"(?s){message}"):
        act(evaluator)


@pytest.mark.parametrize(
    ("module", "act"),
    [
        ("transformers", lambda: EvaluatorLM("gpt2").load()),
        ("mauve", lambda: mauve_score(features(0), features(1))),
    ],
)
def test_a_missing_extra_is_named(
    module: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'cwdfm\[text\]'"):
        act()


def ngrams_of(rows: np.ndarray, n: int) -> set[tuple[int, ...]]:
    return {tuple(row[i : i + n]) for row in rows.tolist() for i in range(len(row) - n + 1)}


@pytest.mark.parametrize("dtype", [np.uint16, np.int64])
def test_overlap_equals_a_search_for_every_ngram(
    dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cwdfm.metrics.overlap._CHUNK", 50)  # several chunks of windows
    rng = np.random.default_rng(0)
    training: np.ndarray[Any, Any] = rng.integers(0, 4, (12, 20)).astype(dtype)
    samples = rng.integers(0, 4, (10, 15))
    samples[3] = training[7, 2:17]  # a copied sample
    found = ngram_overlap(samples, training, ngrams=(1, 3, 5, 15, 16), folds=2)
    assert found.tokens == training.size
    assert list(found.shares) == [1, 3, 5, 15]  # 16 is longer than a sample
    for n, share in found.shares.items():
        known = ngrams_of(training, n)
        each = [
            np.mean([tuple(row[i : i + n]) in known for i in range(len(row) - n + 1)])
            for row in samples.tolist()
        ]
        assert share.value == pytest.approx(np.mean(each))
        assert share.folds == pytest.approx([np.mean(each[:5]), np.mean(each[5:])])
    assert found.shares[15].value == pytest.approx(0.1)
    assert Overlap.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_overlap_with_a_part_of_the_training_text() -> None:
    training: np.ndarray[Any, Any] = np.arange(64).reshape(4, 16)
    whole = ngram_overlap(training, training, ngrams=(4,), folds=1)
    half = ngram_overlap(training, torch.from_numpy(training[:2]), ngrams=(4,), folds=1)
    assert (whole.shares[4].value, whole.tokens) == (1.0, 64)
    assert (half.shares[4].value, half.tokens) == (0.5, 32)
    for wrong in (training[0], np.empty((0, 16), np.int64), "text"):
        with pytest.raises(InputError, match="training"):
            ngram_overlap(training, wrong)  # type: ignore[arg-type]
