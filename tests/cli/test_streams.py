"""`-` in place of files, and samples that are left out on request."""

import io
import json
from pathlib import Path

import pytest

import cwdfm
from cwdfm.cli.sample_output import selected
from cwdfm.data import ByteTokenizer, SmilesTokenizer
from cwdfm.sample_file import read_samples
from tests.support.cases import slow
from tests.support.command import Ended, command, rejected, succeeded

pytest.importorskip("rdkit", reason="needs the extra 'molecules'")
MODEL = "qm9-mask-small"
DRAW = ("--n", "6", "--steps", "4")


def given(monkeypatch: pytest.MonkeyPatch, text: str, *words: object) -> Ended:
    """Run a command with a text on standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return succeeded(*words)


def test_samples_on_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the samples, and no file is left."""
    monkeypatch.chdir(tmp_path)
    ended = command("sample", MODEL, "--out", "-", *DRAW)
    expected = cwdfm.load(MODEL).generate(n=6, steps=4).texts
    assert ended.stdout.splitlines() == expected
    assert not list(tmp_path.iterdir())
    ended = command("sample", MODEL, "--out", "-", "--n", "2", "--steps", "1", "--only", "valid")
    assert (ended.returncode, ended.stdout) == (0, "")  # both are invalid
    assert "2 invalid of 2" in ended.stderr
    assert "--record" in rejected("sample", MODEL, "--out", "-", "--record")
    monkeypatch.setenv("RANK", "0")
    assert "torchrun" in rejected("sample", MODEL, "--out", "-", *DRAW)


def test_text_on_standard_output_is_json() -> None:
    ended = command("sample", "novels-small", "--out", "-", "--n", "2", "--steps", "1")
    header, *rows = map(json.loads, ended.stdout.splitlines())
    assert header["options"]["steps"] == 1
    texts = cwdfm.load("novels-small").generate(n=2, steps=1).texts
    assert [row["text"] for row in rows] == texts


@pytest.mark.parametrize(
    "text",
    [
        "CCO\nC1CC\nCCO\n",
        slow("".join(f'{{"text": "{s}"}}\n' for s in ("CCO", "C1CC", "CCO"))),
    ],
)
def test_eval_reads_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given(monkeypatch, text, "eval", "-", "--data", "none")
    (found,) = json.loads((tmp_path / "stdin-report" / "scores.json").read_text())["sets"]
    assert [found["scores"][name]["counts"] for name in ("valid", "unique")] == [[2], [1]]
    assert "once" in rejected("eval", "-", "-", "--out", tmp_path / "twice", "--data", "none")


def test_perplexity_reads_and_writes_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    text = "".join("C" * n + "\n" for n in range(1, 25))
    (tmp_path / "a.txt").write_text(text)
    line = ("perplexity", MODEL, "--draws", "2", "--out")
    piped = given(monkeypatch, text, *line, "-", "--data", "-")
    succeeded(*line, tmp_path / "a.json", "--data", tmp_path / "a.txt")
    found, expected = json.loads(piped.stdout), json.loads((tmp_path / "a.json").read_text())
    assert found["results"][0]["perplexity"] == expected["results"][0]["perplexity"]
    assert found["results"][0]["data"] == "-"
    assert "perplexity" in piped.stderr  # the table


def test_only_valid_and_unique_samples(tmp_path: Path) -> None:
    texts = ["CCO", "C1CC", "OCC", "", "CN", "C1CC"]
    rows = [{"text": text} for text in texts]
    tokenizer = SmilesTokenizer(("C",))
    for only, kept, counts in (
        (("valid",), "CCO OCC CN", {"invalid": 3}),
        (("unique",), "CCO C1CC  CN", {"repeated": 2}),  # ethanol and an invalid string
        (("valid", "unique"), "CCO CN", {"invalid": 3, "repeated": 1}),
    ):
        found, left_out = selected(rows, only, tokenizer)
        assert ([row["text"] for row in found], left_out) == (kept.split(" "), counts)
    found, left_out = selected(rows, ("unique",), ByteTokenizer())  # OCC is another text
    assert ([row["text"] for row in found], left_out) == (texts[:5], {"repeated": 1})

    both = ("valid", "unique")
    for words in ((), ("--only", *both)):
        out = tmp_path / f"{len(words)}.jsonl"
        ended = succeeded("sample", MODEL, "--out", out, "--n", 40, "--steps", 4, *words)
    whole, part = read_samples(tmp_path / "0.jsonl"), read_samples(tmp_path / "3.jsonl")
    kept_rows, counts = selected([{"text": t} for t in whole.texts], both, tokenizer)
    assert part.texts == [row["text"] for row in kept_rows]
    assert part.head["left_out"] == counts
    assert len(part.texts) + sum(counts.values()) == 40
    assert (
        f"{counts['invalid']} invalid of 40 samples ({counts['invalid'] / 40:.1%})" in ended.stdout
    )
    assert (whole.options, part.options) == (
        {name: value for name, value in part.options.items() if name != "only"},
        whole.options | {"only": ["valid", "unique"]},
    )
    assert "molecules" in rejected("sample", "novels-small", "--out", "a.jsonl", "--only", "valid")
