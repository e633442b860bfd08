"""The text report: scores against the metrics, caching, and input errors."""

import hashlib
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cwdfm.cli import evaluate, sample
from cwdfm.data import (
    ByteTokenizer,
    FastTokenizer,
    RowTokenizer,
    TextFiles,
    TokenData,
    load,
    prepare,
)
from cwdfm.errors import InputError
from cwdfm.metrics.evaluator import EvaluatorLM, LoadedEvaluatorLM
from cwdfm.metrics.folds import Estimate
from cwdfm.metrics.mauve import Embedder, Mauve, mauve_score
from cwdfm.metrics.overlap import Overlap, ngram_overlap
from cwdfm.metrics.perplexity import Perplexity, generative_perplexity
from cwdfm.metrics.text import TextStatistics, text_statistics
from cwdfm.report.sample_set import File, SampleSet
from cwdfm.report.table import format_estimate
from cwdfm.report.text import ScoredText, _excerpts, _notes, explanation, pictures, summary
from cwdfm.report.text_data import Passages, TextReference, TextSettings
from cwdfm.report.text_scores import TextScorer, TextScores, check_same_decoding
from cwdfm.sample_file import SampleFile, write_samples
from tests.support.command import command
from tests.support.evaluators import save_bert, save_gpt2
from tests.support.html import check_self_contained
from tests.support.tiny import OPTIONS, WORDS, tiny_model, write_random_samples
from tests.support.tiny import SAMPLE_LENGTH as LENGTH

pytest.importorskip("transformers", reason="needs the extra 'text'")
pytest.importorskip("matplotlib", reason="needs the extra 'plot'")


# The tests that draw figures; composing them is enough for the others.
DRAWN = ("test_a_picture_without_an_evaluator", "test_the_page_is_self_contained")


@pytest.fixture(autouse=True)
def few_figures(request: pytest.FixtureRequest) -> None:
    if request.node.name not in DRAWN:
        request.getfixturevalue("blank_figures")


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_gpt2(tmp_path_factory.mktemp("evaluator") / "tiny")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared text in bytes, with windows longer than the samples."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS, size=9)) for _ in range(400)]
    (folder / "words.txt").write_text("\n\n".join(lines))
    corpus = TextFiles.of(folder / "words.txt")
    prepare(corpus, "bytes", LENGTH + 4, folder / "words", part="all")
    return folder / "words"


def run(*arguments: object) -> dict[str, Any]:
    """Run the command and read scores.json."""
    evaluate.main([str(a) for a in arguments])
    out = Path(str(arguments[arguments.index("--out") + 1]))
    scores: dict[str, Any] = json.loads((out / "scores.json").read_text())
    return scores


def mauve(
    texts: list[str], reference: list[str], model: LoadedEvaluatorLM | Embedder
) -> dict[str, Any]:
    found = mauve_score(model.features(texts), model.features(reference))
    return replace(found, features=model.conventions()).to_json()


def tokens_of(path: Path) -> tuple[list[str], "np.ndarray[Any, Any]"]:
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return [row["text"] for row in rows], np.array([row["tokens"] for row in rows])


@pytest.mark.filterwarnings("ignore:MAUVE of")
def test_scores_equal_the_metrics(
    tmp_path: Path, evaluator: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mauve")
    file, out = write_random_samples(tmp_path / "a.jsonl"), tmp_path / "out"
    found = run(file, "--out", out, "--eval-model", evaluator, "--data", data, "--folds", 3)
    texts, tokens = tokens_of(file)
    loaded = EvaluatorLM(str(evaluator)).load()
    held_out = load(data).valid[:60, :LENGTH].astype(np.int64)
    decoded = [ByteTokenizer().decode(row) for row in held_out.tolist()]
    reference, other = decoded[:30], decoded[30:]
    (row,) = found["sets"]
    assert row["perplexity"] == generative_perplexity(texts, loaded, folds=3).to_json()
    assert row["statistics"] == text_statistics(tokens, folds=3).to_json()
    assert row["mauve"] == mauve(texts, reference, loaded)
    assert row["overlap"] is None  # the data has no training windows
    assert (row["model"], row["solver"], row["steps"]) == ("tiny", "Euler", 8)
    assert row["evaluations"] == 7
    assert found["data_row"] == {
        "perplexity": generative_perplexity(other, loaded, folds=3).to_json(),
        "statistics": text_statistics(held_out[30:], folds=3).to_json(),
        "mauve": mauve(other, reference, loaded),
        "overlap": None,
    }
    assert found["data"]["windows"] == 30
    assert found["settings"]["eval_model"] == str(evaluator)
    # The table shows the same values.
    shown = row["perplexity"]["perplexity"]
    cell = format_estimate(shown["value"], shown["fold_std"])
    printed = capsys.readouterr().out
    for place in (printed, (out / "table.md").read_text(), (out / "report.html").read_text()):
        assert cell in place
        assert "held-out text" in place
    assert re.search(r"Euler +8 .* 7 +30\n", printed)
    assert "MAUVE of 30 texts is unreliable" in printed
    assert "Text: tiny" in (out / "report.html").read_text()


def test_options_reach_the_evaluator(tmp_path: Path, evaluator: Path) -> None:
    file = write_random_samples(tmp_path / "a.jsonl")
    flags = ["--average", "sample", "--first-token", "start", "--after-end", "cut", "--folds", 2]
    flags += ["--eval-context", 8, "--batch-tokens", 64, "--device", "cpu"]
    (row,) = run(file, "--out", tmp_path / "out", "--eval-model", evaluator, *flags)["sets"]
    loaded = EvaluatorLM(str(evaluator), context=8, device="cpu").load()
    how: dict[str, Any] = {"average": "sample", "first_token": "start", "after_end": "cut"}
    expected = generative_perplexity(tokens_of(file)[0], loaded, **how, folds=2)
    folds = row["perplexity"]["perplexity"].pop("folds")
    assert folds == pytest.approx(expected.perplexity.folds)
    for key in ("average", "first_token", "after_end", "evaluator", "tokens"):
        assert row["perplexity"][key] == expected.to_json()[key]
    assert row["mauve"] is None


def test_sample_then_evaluate(
    tmp_path: Path, evaluator: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report reads what the sampler writes, and accepts reference text that is not prepared."""
    pytest.importorskip("mauve")
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    tiny_model(ByteTokenizer()).save_pretrained(tmp_path / "model")
    files = []
    for solver, steps in (("euler", 2), ("euler", 4), ("neighbor", 4)):
        files.append(tmp_path / f"{solver}-{steps}.jsonl")
        flags = ["--solver", solver, "--steps", str(steps), "--n", "20"]
        sample.main([str(tmp_path / "model"), "--out", str(files[-1]), *flags])
    raw = data.parent / "words.txt"
    found = run(*files, "--out", tmp_path / "out", "--eval-model", evaluator, "--data", raw)
    rows = found["sets"]
    expected = [("Euler", 2), ("Euler", 4), ("Neighbor", 4)]
    assert [(r["solver"], r["steps"]) for r in rows] == expected
    loaded = EvaluatorLM(str(evaluator)).load()
    for file, row in zip(files, rows, strict=True):
        texts, tokens = tokens_of(file)
        assert row["perplexity"] == generative_perplexity(texts, loaded).to_json()
        assert row["statistics"] == text_statistics(tokens).to_json()
        assert 0 < row["evaluations"] <= row["steps"]
    assert found["data"]["source"]["length"] == tokens.shape[1]
    assert found["data_row"]["statistics"]["length"] == tokens.shape[1]
    assert (tmp_path / "out" / "curves.png").exists()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record how many texts the evaluator scores or computes features of."""
    seen: list[str] = []
    score, features = LoadedEvaluatorLM.score, LoadedEvaluatorLM.features

    def scoring(self: LoadedEvaluatorLM, sequences: Any, *rest: Any) -> Any:
        seen.append(f"score {len(sequences)}")
        return score(self, sequences, *rest)

    def featuring(self: LoadedEvaluatorLM, texts: Any) -> Any:
        seen.append(f"features {len(texts)}")
        return features(self, texts)

    monkeypatch.setattr(LoadedEvaluatorLM, "score", scoring)
    monkeypatch.setattr(LoadedEvaluatorLM, "features", featuring)
    return seen


def test_scores_are_cached(
    tmp_path: Path, evaluator: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mauve")
    one = write_random_samples(tmp_path / "a.jsonl")
    two = write_random_samples(tmp_path / "b.jsonl", 1, 25, steps=16)
    out = tmp_path / "out"
    given = ["--out", out, "--eval-model", evaluator, "--data", data, "--reference-size", 28]
    seen = counted(monkeypatch)
    first = run(one, *given)
    assert sorted(seen) == ["features 28", "features 28", "features 30", "score 28", "score 30"]
    seen.clear()
    with monkeypatch.context() as nothing:
        nothing.setattr(EvaluatorLM, "load", None)  # not even loaded
        again = run(one, *given, "--force")
    assert again["sets"] == first["sets"]
    assert again["data_row"] == first["data_row"]
    assert not seen
    more = run(one, two, *given, "--force")
    assert more["sets"][0] == first["sets"][0]
    assert sorted(seen) == ["features 25", "features 28", "score 25"]
    seen.clear()
    run(one, *given, "--force", "--average", "sample", "--batch-tokens", 99)
    assert sorted(seen) == ["score 28", "score 30"]  # MAUVE has no average
    seen.clear()
    entries = sorted((out / "cache").iterdir())
    entries[0].write_text(entries[0].read_text()[:20])  # a damaged entry is recomputed
    run(one, two, *given, "--force")
    run(one, two, *given, "--force", "--average", "sample")
    assert 1 <= len(seen) <= 3


def test_an_interrupted_evaluation_resumes(
    tmp_path: Path, evaluator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [write_random_samples(tmp_path / f"{i}.jsonl", i, 20 + i, steps=2**i) for i in range(3)]
    given = [*files, "--out", tmp_path / "out", "--eval-model", evaluator]
    score = LoadedEvaluatorLM.score

    def interrupted(self: LoadedEvaluatorLM, sequences: Any, *rest: Any) -> Any:
        if len(sequences) == 22:
            raise KeyboardInterrupt
        return score(self, sequences, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(LoadedEvaluatorLM, "score", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(*given)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["cache"]
    seen = counted(monkeypatch)
    assert len(run(*given)["sets"]) == 3  # without --force, since nothing is overwritten
    assert seen == ["score 22"]


# A non-default value of each setting.
OTHER: dict[str, Any] = {
    "eval_model": "gpt2",
    "eval_dtype": "bfloat16",
    "eval_context": 512,
    "retokenize": False,
    "average": "sample",
    "first_token": "start",
    "after_end": "cut",
    "folds": 4,
    "mauve": "none",
    "reference_size": 30,
    "data_row": False,
    "overlap_tokens": 0,
    "batch_tokens": 64,
    "device": "cpu",
    "eval_revision": "0" * 40,
    "trust_remote_code": True,
}
# Settings that do not affect the scores of given texts.
UNRELATED = {
    "reference_size",
    "data_row",
    "batch_tokens",
    "device",
    "trust_remote_code",
    "overlap_tokens",
}
PERPLEXITY_NOT = UNRELATED | {"mauve"}
MAUVE_BY_EVALUATOR = {"eval_model", "eval_revision", "eval_dtype", "eval_context", "mauve"}


def test_cache_keys_contain_all_relevant_settings(tmp_path: Path) -> None:
    """Changes one setting at a time; new settings must be added here."""
    assert OTHER.keys() == {field.name for field in fields(TextSettings)}
    one, two = (Passages([], np.empty((0, 3), np.int64), (name,)) for name in ("one", "two"))

    def keys(
        settings: TextSettings, passages: Passages = one, reference: Passages = two
    ) -> tuple[str, str]:
        scorer = TextScorer(settings, reference, tmp_path, print)
        perplexity, mauve = scorer._perplexity_key(passages), scorer._mauve_key(passages)
        return json.dumps(perplexity, sort_keys=True), json.dumps(mauve, sort_keys=True)

    plain = TextSettings(eval_revision="1" * 40)
    embedded = replace(plain, mauve="an-embedder")
    for name, value in OTHER.items():
        perplexity, mauve = keys(replace(plain, **{name: value}))
        assert (perplexity != keys(plain)[0]) is (name not in PERPLEXITY_NOT), name
        assert (mauve != keys(plain)[1]) is (name in MAUVE_BY_EVALUATOR), name
        # The features of an embedding model do not depend on the evaluator LM.
        mauve = keys(replace(embedded, **{name: value}))[1]
        assert (mauve != keys(embedded)[1]) is (name == "mauve"), name
    texts = [a != b for a, b in zip(keys(plain), keys(plain, passages=two), strict=True)]
    reference = [a != b for a, b in zip(keys(plain), keys(plain, reference=one), strict=True)]
    assert (texts, reference) == ([True, True], [False, True])


def test_overlap_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    training, tokens = rng.integers(0, 2, (9, 16)), rng.integers(0, 2, (6, 12))
    passages = Passages(["a"] * 6, tokens, ("digest",))
    settings = TextSettings(eval_model="none", folds=2)

    def overlap(shown: "np.ndarray[Any, Any] | None") -> Overlap | None:
        return TextScorer(settings, None, tmp_path, print, shown).score(passages).overlap

    expected = ngram_overlap(tokens, training, folds=2)
    assert overlap(training) == expected
    assert overlap(training[:1]) == ngram_overlap(tokens, training[:1], folds=2) != expected
    monkeypatch.setattr("cwdfm.report.text_scores.ngram_overlap", None)
    assert overlap(training) == expected  # from the cache
    assert overlap(None) is None


def test_without_an_evaluator(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Statistics need no language model; with one that cannot be loaded, the error says so."""

    def absent(*_: object, **__: object) -> None:
        raise InputError("no such model")

    monkeypatch.setattr("cwdfm.metrics.evaluator.load_text_model", absent)
    files = [write_random_samples(tmp_path / f"{n}.jsonl", seed=n, steps=n) for n in (8, 16)]
    found = run(*files, "--out", tmp_path / "out", "--eval-model", "none", "--data", data)
    for row, file in zip(found["sets"], files, strict=True):
        assert row["statistics"] == text_statistics(tokens_of(file)[1], folds=5).to_json()
        assert row["perplexity"] is row["mauve"] is None
    assert re.search(r"Euler +16 +- +\d", capsys.readouterr().out)
    assert (tmp_path / "out" / "curves.png").exists()
    assert "language model" not in (tmp_path / "out" / "report.html").read_text()
    with pytest.raises(InputError, match=r"no such model; or .* --eval-model none"):
        run(files[0], "--out", tmp_path / "other")


def test_own_tokens(tmp_path: Path, evaluator: Path) -> None:
    """Token ids are scored directly, end tokens included, if the vocabularies agree."""
    own = FastTokenizer.of((evaluator / "tokenizer.json").read_text(), "here", "<|endoftext|>")
    rng = np.random.default_rng(0)
    rows = [own.encode(" ".join(rng.choice(WORDS, 9)))[:LENGTH] for _ in range(20)]
    rows[3][5] = own.eos_id
    texts = [own.decode(row) for row in rows]
    file = tmp_path / "a.jsonl"
    write_samples(file, SampleFile(texts, rows, {"options": OPTIONS, "tokenizer": "fast"}))
    flags = ["--eval-model", evaluator, "--no-retokenize", "--after-end", "cut"]
    (row,) = run(file, "--out", tmp_path / "out", *flags)["sets"]
    loaded = EvaluatorLM(str(evaluator)).load()
    direct = loaded.score([r[:5] if i == 3 else r for i, r in enumerate(rows)])
    value = float(np.exp(direct[0].sum() / direct[1].sum()))
    assert row["perplexity"]["perplexity"]["value"] == pytest.approx(value)
    assert row["perplexity"]["retokenized"] is False
    assert "retokenize False" in (tmp_path / "out" / "report.html").read_text()


def test_embedding_features(
    tmp_path: Path, evaluator: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mauve")
    folder = tmp_path / "bert"
    save_bert(folder)
    file = write_random_samples(tmp_path / "a.jsonl")
    flags = ["--eval-model", evaluator, "--data", data, "--no-data-row", "--reference-size", 40]
    found = run(file, "--out", tmp_path / "out", *flags, "--mauve", folder)
    assert found["data_row"] is None
    (row,) = found["sets"]
    reference = [ByteTokenizer().decode(r) for r in load(data).valid[:40, :LENGTH].tolist()]
    with pytest.warns(UserWarning, match="MAUVE of 30"):
        expected = mauve(tokens_of(file)[0], reference, Embedder(str(folder)))
    assert row["mauve"] == expected
    assert "held-out text" not in (tmp_path / "out" / "table.md").read_text()
    # Figures come last, but their requirements are checked first.
    more = write_random_samples(tmp_path / "b.jsonl", 1, steps=16)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(InputError, match=r"matplotlib is required.*cwdfm\[plot\]"):
            run(file, more, "--out", tmp_path / "two", *flags)
    # Without the package all but MAUVE works; the error comes before any work.
    monkeypatch.setitem(sys.modules, "mauve", None)
    seen = counted(monkeypatch)
    with pytest.raises(InputError, match=r"mauve is required.*cwdfm\[text\]"):
        run(file, "--out", tmp_path / "two", *flags)
    assert not seen
    assert not (tmp_path / "two").exists()
    (row,) = run(file, "--out", tmp_path / "two", *flags, "--mauve", "none")["sets"]
    assert row["mauve"] is None


def test_a_picture_without_an_evaluator(tmp_path: Path) -> None:
    file = write_random_samples(tmp_path / "a.jsonl", 0)
    run(file, "--out", tmp_path / "out", "--eval-model", "none")
    check_self_contained((tmp_path / "out" / "report.html").read_text(), images=1)
    assert (tmp_path / "out" / "tokens.png").stat().st_size > 10_000


def test_the_page_is_self_contained(tmp_path: Path, evaluator: Path, data: Path) -> None:
    pytest.importorskip("mauve")
    files = [
        write_random_samples(
            tmp_path / f"{solver}{steps}.jsonl", steps + len(solver), solver=solver, steps=steps
        )
        for solver in ("euler", "neighbor")
        for steps in (8, 16)
    ]
    lines = files[3].read_text().splitlines()
    row = json.loads(lines[1])
    lines[1] = json.dumps(row | {"text": "<b>&\x00 bold"})
    files[3].write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    run(*files, "--out", out, "--eval-model", evaluator, "--data", data)
    page = (out / "report.html").read_text()
    check_self_contained(page, images=2)
    assert "<blockquote>&lt;b&gt;&amp;\ufffd bold</blockquote>" in page
    # Two solvers at their largest number of steps, and the data.
    assert page.count("<blockquote>") == 3 * 3
    assert "Neighbor, 16 steps: 3 of 30 samples" in page
    assert "Neighbor, 8 steps: 3" not in page
    assert (out / "curves.png").stat().st_size > 20_000


def test_prompts_are_noted(
    tmp_path: Path, evaluator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    which = "Neighbor (prompt call), 8 steps"
    note = f"Scores include the tokens of the prompt or template: {which}."
    plain = write_random_samples(tmp_path / "a.jsonl", prompt=None)
    begun = write_random_samples(tmp_path / "b.jsonl", 1, solver="neighbor", prompt="call")
    out = tmp_path / "out"
    assert note in run(plain, begun, "--out", out, "--eval-model", evaluator)["notes"]
    assert f"note: {note}" in capsys.readouterr().out
    assert note in (out / "report.html").read_text()
    alone = run(plain, "--out", tmp_path / "two", "--eval-model", evaluator)
    assert not any("given tokens" in note for note in alone["notes"])


def test_text_that_names_no_tokenizer(
    tmp_path: Path, evaluator: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind follows from an evaluator, the data, the other files or whitespace."""
    known = write_random_samples(tmp_path / "a.jsonl", count=10)
    own, words = tmp_path / "own.jsonl", tmp_path / "words.jsonl"
    own.write_text("\n".join(known.read_text().splitlines()[1:]) + "\n")
    write_samples(words, SampleFile(["ishmael"] * 10, [[*b"ishmael"]] * 10))
    given = ["--no-data-row", "--mauve", "none", "--data", data]
    (row,) = run(own, "--out", tmp_path / "one", "--eval-model", evaluator, *given)["sets"]
    (same,) = run(known, "--out", tmp_path / "two", "--eval-model", evaluator)["sets"]
    assert row["perplexity"] == same["perplexity"]
    assert len(run(known, own, "--out", tmp_path / "three", "--eval-model", evaluator)["sets"]) == 2
    run(words, "--out", tmp_path / "four", "--eval-model", evaluator)
    monkeypatch.setattr(TextSettings, "evaluator", lambda _: EvaluatorLM(str(evaluator)))
    for name, line in (("five", [own]), ("six", [words, "--data", data])):
        assert "perplexity" in run(*line, "--out", tmp_path / name)["sets"][0]
    (tmp_path / "c.smi").write_text("CCO\n")
    with pytest.raises(InputError, match=r"require separate reports: .*contains text"):
        run(own, tmp_path / "c.smi", "--out", tmp_path / "seven")


def test_few_samples_have_no_mauve(tmp_path: Path, evaluator: Path, data: Path) -> None:
    file = write_random_samples(tmp_path / "a.jsonl", count=6)
    given = ["--eval-model", evaluator, "--data", data]
    notes = run(file, "--out", tmp_path / "out", *given)["notes"]
    assert "MAUVE needs 20 texts per set, but the data has 6." in notes
    notes = run(file, "--out", tmp_path / "big", *given, "--reference-size", 9999)["notes"]
    assert "Fewer than 20 samples, so no MAUVE: tiny, Euler, 8 steps." in notes
    assert any("9,999 were requested" in note for note in notes)


def test_empty_samples_have_no_features(tmp_path: Path, evaluator: Path) -> None:
    """A model of rows may end a sample at its first token."""
    tokenizer = RowTokenizer(ByteTokenizer())
    texts = [f"{word} {i}"[: LENGTH - 1] for i in range(11) for word in WORDS[:2]]
    rows, _ = tokenizer.layout(texts, LENGTH)
    rows[0], texts[0] = [tokenizer.eos_id] * LENGTH, ""
    write_samples(tmp_path / "a.jsonl", SampleFile(texts, rows, {"tokenizer": "rows"}))
    held_out = np.array(rows * 3)
    TokenData("words", held_out[:1], held_out, tokenizer).save(tmp_path / "words.npz")
    given = ["--out", tmp_path / "out", "--eval-model", evaluator, "--data", tmp_path / "words.npz"]
    scores = run(tmp_path / "a.jsonl", *given)
    (row,) = scores["sets"]
    assert (row["statistics"]["samples"], row["mauve"]["samples"]) == (22, 21)
    assert row["perplexity"]["unscored"] == 1
    assert any(note.startswith("Empty samples") and "(1)" in note for note in scores["notes"])


def test_rounding_to_the_error() -> None:
    cases: list[tuple[float, float | None, str]] = [
        (82.171, 0.43, "82.17 ± 0.43"),
        (1034.5, 12.3, "1,034 ± 12"),
        (7.6, 0.0104, "7.600 ± 0.010"),
        (-0.04, 1.9, "0.0 ± 1.9"),
        (0.7731, None, "0.7731"),
        (123456.7, None, "123,457"),
        (4.0, 0.0, "4"),
        (7.0, 0.00001234, "7.0000 ± 0.0000"),
        (math.inf, 3.0, "inf"),
    ]
    for value, std, text in cases:
        assert format_estimate(value, std) == text


def made_up(
    steps: int = 8, samples: int = 30, *, solver: str = "Euler", model: str = "m", ppl: float = 50.0
) -> ScoredText:
    """A set with different numbers, in two files with 45 model calls each."""
    file = SampleFile([f"{solver} {steps}"] * (samples // 2), [[1]], {"evaluations": 45})
    files = tuple(File(Path(f"{i}.jsonl"), str(i), file) for i in range(2))
    value, conventions = Estimate(ppl, (ppl - 2.0, ppl + 2.0)), ("corpus", "skip", "keep", "")
    perplexity = Perplexity(value, samples, 1, 900, {"model": "j"}, True, *conventions)  # type: ignore[arg-type]
    distinct = tuple(Estimate(x, (x,)) for x in (0.3, 0.6, 0.7))
    repetition, run = Estimate(0.25, (0.25,)), Estimate(2.0, (2.0,))
    entropy = Estimate(5.0, (4.5, 5.5))
    statistics = TextStatistics(
        entropy, 0.1, distinct, (0.1, 0.2), repetition, run, 4, samples, LENGTH
    )
    mauve = Mauve(0.9, 0.95, (0.6, 1.2), samples, 40, 3, 5.0, 0, {"model": "f"})
    overlap = Overlap({8: Estimate(0.125, (0.1, 0.15))}, 100)
    scores = TextScores(perplexity, statistics, mauve, overlap)
    return ScoredText(SampleSet(model, solver, steps, files), scores)


def compared(size: int, wanted: int) -> TextReference:
    shown = Passages(["a"] * size, np.zeros((size, LENGTH), np.int64), ("r",))
    return TextReference("words", shown, None, {"name": "words"}, wanted)


def test_cells_of_a_row() -> None:
    """Half the distance of two folds is 1 / sqrt(2) of their standard deviation."""
    one = made_up()
    cells = ("50.0 ± 2.8", "5.00 ± 0.71", "0.90 ± 0.42", "0.600", "0.250", "0.125")
    assert one.cells() == ("Euler", "8", *cells, "3", "30")
    assert one.scores.cells() == (*cells, "-", "30")
    assert summary(one.scores) == "perplexity 50.0 ± 2.8, entropy 5.00 ± 0.71, MAUVE 0.90 ± 0.42"
    bare = replace(one.samples.files[1], samples=SampleFile(["a"] * 15, [[1]]))
    part = ScoredText(replace(one.samples, files=(one.samples.files[0], bare)), one.scores)
    assert part.calls is None  # unknown for half of the samples


def test_curves_show_the_values_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr("cwdfm.report.figure.save_figure", lambda figure, _: figures.append(figure))
    rows = [made_up(steps, ppl=1e3 / steps) for steps in (8, 16)]
    rows.append(made_up(16, solver="Neighbor", ppl=9.0))
    (picture,) = pictures(rows, made_up(ppl=7.0).scores, tmp_path)
    assert "The dashed line is held-out text" in picture.caption
    (picture,) = pictures([made_up(steps) for steps in (512, 1024)], None, tmp_path)
    assert "dashed line" not in picture.caption
    assert pictures(rows[:1], None, tmp_path) == ()
    wide, narrow = (figure.axes for figure in figures)
    assert [text.get_text() for text in narrow[0].get_xticklabels()] == ["512", "1,024"]
    found = {(125.0, 62.5): 2.0, (5.0, 5.0): 0.5, (0.9, 0.9): 0.3}
    for axis, (values, half), level in zip(wide, found.items(), (7.0, 5.0, 0.9), strict=True):
        euler, neighbor = axis.containers
        assert list(euler.lines[0].get_xdata()) == [8, 16]
        assert list(euler.lines[0].get_ydata()) == list(values)
        assert list(neighbor.lines[0].get_xdata()) == [16]
        bars = [np.ptp(part[:, 1]) / 2 for part in euler.lines[2][0].get_segments()]
        assert bars == pytest.approx([half * 2**0.5] * 2)
        (line,) = (each for each in axis.get_lines() if each.get_label() == "held-out text")
        assert list(line.get_ydata()) == [level] * 2
    assert [axis.get_yscale() for axis in wide] == ["log", "linear", "linear"]
    assert wide[2].get_ylim() == (0, 1.05)
    # Ticks at 1, 2, 5 for a wide range of values, evenly spaced for a narrow one.
    assert {10.0, 20.0, 50.0, 100.0} <= set(wide[0].get_yticks())
    assert len([y for y in narrow[0].get_yticks() if 47 <= y <= 53]) > 3


def test_notes_on_scores() -> None:
    settings = TextSettings(eval_model="j")

    def notes(rows: Sequence[ScoredText], reference: TextReference | None) -> list[str]:
        return _notes(rows, reference, settings)[: -len(unscored)]

    unscored = ["Samples without a token to score: m, Euler, 8 steps (1)."]
    assert _notes([made_up()], compared(2000, 2000), settings)[-1:] == unscored
    coarse = "MAUVE of {} texts is unreliable; use at least 1,000 for published results."
    assert notes([made_up(samples=1000)], compared(1000, 1000)) == []
    assert notes([made_up(samples=30)], compared(1000, 1000)) == [coarse.format(30)]
    assert notes([made_up(samples=1000)], compared(40, 40)) == [coarse.format(40)]
    assert notes([made_up(samples=20)], compared(20, 20)) == [coarse.format(20)]
    few = "Fewer than 20 samples, so no MAUVE: m, Euler, 8 steps."
    assert notes([made_up(samples=18)], compared(40, 40)) == [few]
    assert notes([made_up(samples=30), made_up(samples=1000)], compared(1000, 1000)) == [
        coarse.format(30),
        "The sets have 30 to 1,000 samples, so their MAUVE scores are not comparable.",
    ]
    short = "words has only 1,000 held-out windows for the comparison; 1,001 were requested."
    assert notes([made_up(samples=1000)], compared(1000, 1001)) == [short]
    plain = TextSettings(eval_model="j", mauve="none")
    assert _notes([made_up()], compared(5, 9), plain) == unscored
    one = made_up()
    assert one.scores.perplexity is not None
    complete = replace(one.scores, perplexity=replace(one.scores.perplexity, unscored=0))
    assert _notes([replace(one, scores=complete)], compared(5, 9), plain) == []


def test_the_page_states_the_conventions() -> None:
    given = TextSettings(eval_model="/a/tiny", folds=3)
    by_evaluator, by_folder = (
        " ".join(explanation(settings, "words"))
        for settings in (given, replace(given, mauve="/a/bert", average="sample"))
    )
    assert "the evaluator LM tiny: the exponential of" in by_evaluator
    assert "features of the evaluator LM: 1" in by_evaluator
    assert "tiny: the mean over samples of the exponential" in by_folder
    assert "features of an embedding model: 1" in by_folder
    assert "over 3 folds" in by_evaluator
    without = explanation(TextSettings(eval_model="j", mauve="none"), "words")
    assert "MAUVE measures" not in " ".join(without)
    two = [made_up(model=name).samples for name in ("m", "n")]
    assert list(_excerpts(two, None)) == [
        f"{name}, Euler, 8 steps: 3 of 30 samples" for name in ("m", "n")
    ]


def test_settings_reach_the_evaluator() -> None:
    given = TextSettings("j", "bfloat16", 512, device="cpu", batch_tokens=64)
    loose = {"dtype": "bfloat16", "context": 512, "device": "cpu", "batch_tokens": 64}
    assert given.evaluator() == EvaluatorLM("j", **loose)  # type: ignore[arg-type]
    assert given.changed() == {"eval_model": "j", "eval_dtype": "bfloat16", "eval_context": 512}
    assert TextSettings(data_row=False, folds=2).changed() == {"folds": 2, "data_row": False}
    for name in ("average", "first_token", "after_end"):
        with pytest.raises(InputError, match=f"{name} must be one of"):
            TextSettings(**{name: "other"})  # type: ignore[arg-type]


def test_held_out_text(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many windows as the largest set has samples; the fingerprint covers both parts."""
    texts = [f"sample {i:05}" for i in range(30)]
    tokens = np.array([ByteTokenizer().encode(text) for text in texts])
    sets = [Passages(texts[:n], tokens[:n], (str(n),)) for n in (20, 30)]

    def reference(samples: list[Passages], kind: str = "bytes", **how: Any) -> TextReference:
        return TextReference.load(str(data), kind, samples, TextSettings(**how))

    found, valid = reference(sets), load(data).valid
    assert (len(found.reference.texts), found.requested) == (30, 30)
    assert found.about["fingerprint"] == hashlib.sha256(valid[:60].tobytes()).hexdigest()
    everything = reference(sets, data_row=False, reference_size=len(valid))
    assert len(everything.reference.texts) == len(valid)
    for place, token in ((5, 98), (0, 300)):  # other letters, and not a byte
        wrong = tokens.copy()
        wrong[place, 2] = token
        with pytest.raises(InputError, match=f"does not decode the tokens of 'sample 0000{place}'"):
            reference([Passages(texts, wrong, ("w",))], kind="text")
    asked: list[str | None] = []

    def reading(*_: object, tokenizer: str | None, **__: object) -> None:
        asked.append(tokenizer)
        raise InputError("read")

    monkeypatch.setattr("cwdfm.report.text_data.load", reading)
    for kind in ("bytes", "characters", "fast"):
        with pytest.raises(InputError, match="read"):
            TextReference.load("words.txt", kind, sets, TextSettings())
    assert asked == ["bytes", "chars", "gpt2"]


def test_mauve_needs_twenty_texts_per_side(tmp_path: Path) -> None:
    def compares(reference: int, samples: int) -> bool:
        sides = [
            Passages(["a"] * n, np.zeros((n, 2), np.int64), ("",)) for n in (reference, samples)
        ]
        return TextScorer(TextSettings("j"), sides[0], tmp_path, print).has_mauve(sides[1])

    assert [compares(20, 20), compares(19, 20), compares(20, 19)] == [True, False, False]


def test_settings_reach_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end token for scoring token ids, and the device of the feature model."""
    words = ["a", " b", " .", "</s>"]

    def batch_decode(
        rows: list[list[int]], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> list[str]:
        texts = ["".join(words[i] for i in row if i < 3 or not skip_special_tokens) for row in rows]
        return [x.replace(" .", ".") if clean_up_tokenization_spaces else x for x in texts]

    tokenizer = SimpleNamespace(eos_token="</s>", batch_decode=batch_decode)
    loaded = SimpleNamespace(tokenizer=tokenizer)
    evaluator: Any = SimpleNamespace(
        loaded=loaded, config=EvaluatorLM("j"), vocabulary=lambda: "own"
    )
    passages = Passages(["a b .<|endoftext|>"], np.array([[0, 1, 2, 3]]), ("",))
    check_same_decoding(evaluator, passages)
    with pytest.raises(InputError, match=r"'a b' \(sample 1\) to 'a b .</s>'"):
        check_same_decoding(evaluator, replace(passages, texts=["a b"]))
    asked: dict[str, Any] = {}
    for name in ("generative_perplexity", "Embedder"):
        monkeypatch.setattr(f"cwdfm.report.text_scores.{name}", lambda *_, **how: asked.update(how))
    settings = TextSettings("j", retokenize=False, mauve="/a/bert", device="cpu")
    scorer = TextScorer(settings, None, tmp_path, print)
    scorer.__dict__["evaluator"] = evaluator
    scorer._perplexity(passages)
    assert (asked["end"], asked["vocabulary"]) == ("</s>", "own")
    assert scorer.features is None
    assert asked["device"] == "cpu"


def test_wrong_input(
    tmp_path: Path, evaluator: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    good = write_random_samples(tmp_path / "a.jsonl")
    head = {"options": OPTIONS | {"steps": 3}, "tokenizer": "bytes"}

    def other(name: str, texts: list[str], tokens: list[list[int]]) -> Path:
        write_samples(tmp_path / name, SampleFile(texts, tokens, head))
        return tmp_path / name

    long = other("long.jsonl", ["a" * 20] * 5, [[97] * 20] * 5)
    ragged = other("ragged.jsonl", ["aa", "a"], [[97] * 2, [97]])
    hollow = other("hollow.jsonl", ["aa"], [[]])
    foreign = other("foreign.jsonl", ["aa"] * 5, [[98] * 2] * 5)
    bare = tmp_path / "bare.jsonl"
    bare.write_text(json.dumps(head) + '\n{"text": "Once"}\n')
    (tmp_path / "empty").mkdir()
    (tmp_path / "little.txt").write_text("Call me Ishmael. Some")
    little = tmp_path / "little"
    prepare(TextFiles.of(tmp_path / "little.txt"), "bytes", LENGTH, little, part="all")
    out = ["--out", tmp_path / "out", "--eval-model", evaluator]
    no_evaluator = ["--out", tmp_path / "out", "--eval-model"]
    cases: list[tuple[list[object], str]] = [
        ([good, *no_evaluator, tmp_path / "nowhere"], "there is no folder"),
        ([good, *no_evaluator, tmp_path / "no.gguf"], "there is no GGUF file"),
        ([good, *no_evaluator, tmp_path / "empty"], "has no config.json"),
        ([good, *out, "--data", "qm9"], "require a SmilesTokenizer"),
        ([good, *out, "--data", tmp_path / "no.txt"], "does not exist"),
        ([foreign, *out, "--data", data], "and the samples have different vocabularies"),
        ([good, *out, "--data", little], "2 held-out windows of 12 tokens, too few"),
        ([long, *out, "--data", data], f"windows of {LENGTH + 4} tokens, but the samples have 20"),
        ([good, *out, "--data", data, "--mauve", tmp_path / "nowhere"], "there is no folder"),
        ([good, long, *out], "samples of different lengths require separate reports"),
        ([ragged, *out], "sequences of 1 to 2 tokens"),
        ([hollow, *out], "sample 1 of"),
        ([bare, *out], "no tokens"),
        ([good, *out, "--folds", 31], "30 samples cannot be split into 31 folds"),
        ([good, *out, "--folds", 31, "--data", data], "30 samples cannot be split into 31 folds"),
        ([good, *out, "--reference-size", 4, "--data", data], "--reference-size 4 is less than"),
        ([good, *out, "--folds", 0], "folds must be an integer >= 1"),
        ([good, *out, "--device", "abacus"], "device must be auto, cpu, cuda"),
        ([good, *out, "--eval-dtype", "int4"], "invalid choice"),
    ]
    for arguments, message in cases:
        ended = command("eval", *arguments)
        assert ended.returncode == 2, arguments
        assert message in ended.stderr + ended.stdout, (arguments, ended)
        assert not (tmp_path / "out").exists(), arguments
