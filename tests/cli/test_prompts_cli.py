"""`cwdfm sample MODEL --prompts FILE`."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

import cwdfm
from cwdfm.cli import sample_prompts
from cwdfm.sample_file import read_samples
from tests.support.command import rejected, succeeded
from tests.support.language import write_llada

ROWS: dict[str, list[Any]] = {
    "prompt": ["the cat sat", "a big old dog", "moon"],
    "messages": [[{"role": "cat", "content": "ran"}], [{"role": "dog", "content": "sat in"}]],
    "template": ["the [2] sat", "a [1] dog [1]"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return write_llada(tmp_path_factory.mktemp("model"))[0]


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("kind", ROWS)
def test_texts_equal_those_of_the_library(folder: Path, tmp_path: Path, kind: str) -> None:
    rows = ROWS[kind]
    prompts = write(tmp_path / "prompts.jsonl", [{kind: row} for row in rows])
    out = str(tmp_path / "out.jsonl")
    flags = ["--max-new-tokens", "6", "--batch-size", "2", "--solver", "neighbor", "--seed", "3"]
    succeeded("sample", folder, "--prompts", prompts, "--out", out, *flags)
    found = read_samples(Path(out))
    name = kind if kind == "messages" else f"{kind}s"
    expected = cwdfm.generate(
        cwdfm.load(folder), "neighbor", max_new_tokens=6, seed=3, **{name: rows}
    )
    assert found.texts == expected.texts
    assert found.tokens == expected.tokens
    assert found.head["evaluations"] == int(expected.evaluations.sum())


def test_a_threshold_alone_names_its_solver(folder: Path, tmp_path: Path) -> None:
    """At temperature 0, as in Python; an explicit temperature stays."""
    prompts, out = write(tmp_path / "prompts.jsonl", ROWS["prompt"]), tmp_path / "out.jsonl"
    words = [str(folder), "--prompts", prompts, "--out", str(out), "--max-new-tokens", "6"]
    sample_prompts.main([*words, "--threshold", "0.1"])
    expected = cwdfm.generate(
        cwdfm.load(folder), prompts=ROWS["prompt"], max_new_tokens=6, threshold=0.1
    )
    assert read_samples(out).tokens == expected.tokens
    words = ["--threshold", "0.1", "--temperature", "2"]
    assert sample_prompts.with_threshold(words) == [*words, "--solver", "threshold"]


def test_editing_by_name(folder: Path, tmp_path: Path) -> None:
    prompts, out = write(tmp_path / "prompts.jsonl", ROWS["prompt"]), tmp_path / "out.jsonl"
    flags = ["--threshold", "0.3", "--edit-threshold", "0.1", "--post-steps", "4"]
    words = ["--out", str(out), "--max-new-tokens", "6", "--solver", "edit", "--temperature", "0"]
    sample_prompts.main([str(folder), "--prompts", prompts, *words, *flags])
    solver = cwdfm.Edit(cwdfm.Threshold(0.3, temperature=0.0), 0.1, 4)
    expected = cwdfm.generate(cwdfm.load(folder), solver, prompts=ROWS["prompt"], max_new_tokens=6)
    assert read_samples(out).tokens == expected.tokens


def test_an_interrupted_job_resumes(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompts, out = write(tmp_path / "prompts.jsonl", ROWS["prompt"]), tmp_path / "out.jsonl"
    words = [str(folder), "--prompts", prompts, "--out", str(out), "--max-new-tokens", "4"]
    with monkeypatch.context() as context:
        context.setattr(sample_prompts, "generate", interrupted_at_the_second_call())
        with pytest.raises(KeyboardInterrupt):
            sample_prompts.main([*words, "--batch-size", "2"])
    with pytest.raises(cwdfm.InputError, match="different settings"):
        sample_prompts.main([*words, "--seed", "1"])
    sample_prompts.main([*words, "--batch-size", "1"])
    assert "resuming: 2 of 3" in capsys.readouterr().out
    expected = cwdfm.generate(cwdfm.load(folder), prompts=ROWS["prompt"], max_new_tokens=4)
    assert read_samples(out).tokens == expected.tokens
    assert {path.name for path in tmp_path.iterdir()} == {"prompts.jsonl", "out.jsonl"}


def interrupted_at_the_second_call() -> Any:
    calls: list[Any] = []

    def generate(*args: Any, **options: Any) -> Any:
        calls.append(options)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return cwdfm.generate(*args, **options)

    return generate


def test_chat_turns_prompts_into_messages(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("the cat\nmoon\n")
    out = str(tmp_path / "out.jsonl")
    flags = ["--prompts", str(tmp_path / "p.txt"), "--out", out, "--max-new-tokens", "4"]
    draws: dict[str, Any] = {"temperature": 1.0, "top_p": 0.5}
    extra = ["--temperature", "1", "--top-p", "0.5", "--stop", "cat", "dog"]
    succeeded("sample", folder, *flags, "--chat", *extra)
    messages = [[{"role": "user", "content": text}] for text in ("the cat", "moon")]
    expected = cwdfm.generate(
        cwdfm.load(folder), messages=messages, max_new_tokens=4, stop=["cat", "dog"], **draws
    )
    found = read_samples(Path(out))
    assert found.tokens == expected.tokens
    assert found.options["solver_options"] == str(draws)


def test_lines_of_other_programs(tmp_path: Path) -> None:
    """A byte order mark, line ends of Windows, empty lines and U+2028 within a string."""
    path = tmp_path / "p.jsonl"
    path.write_bytes('\ufeff"the cat"\r\n\r\n{"prompt": "a\u2028dog"}\r\n'.encode())
    assert sample_prompts.read_prompts(path, chat=False) == {"prompts": ["the cat", "a\u2028dog"]}
    path = tmp_path / "p.txt"
    path.write_bytes("\ufeffthe cat\r\n\r\na dog".encode())
    assert sample_prompts.read_prompts(path, chat=False) == {"prompts": ["the cat", "a dog"]}


def test_errors_come_before_any_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also errors of prompts in later batches, which the message numbers."""
    prompts, out = write(tmp_path / "p.jsonl", ["the cat", "moon", ""]), str(tmp_path / "o.jsonl")
    monkeypatch.setattr(sample_prompts, "generate", lambda *_, **__: pytest.fail("called"))
    flags = ["--batch-size", "1", "--max-new-tokens", "4"]
    with pytest.raises(cwdfm.InputError, match="prompt 3 of 3"):
        sample_prompts.main([str(folder), "--prompts", prompts, "--out", out, *flags])


def test_streams(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat\nmoon\n")))
    words = ["--prompts", "-", "--out", "-", "--max-new-tokens", "4"]
    sample_prompts.main([str(folder), *words])
    _, *rows = map(json.loads, capsys.readouterr().out.splitlines())
    expected = cwdfm.generate(cwdfm.load(folder), prompts=["the cat", "moon"], max_new_tokens=4)
    assert [row["tokens"] for row in rows] == expected.tokens


def test_bad_input_ends_with_code_2(folder: Path, tmp_path: Path) -> None:
    good = write(tmp_path / "good.jsonl", ["the cat"])
    cases: list[tuple[str, list[str], str]] = [
        (str(folder), ["--prompts", str(tmp_path / "none.jsonl")], "cannot be read"),
        (str(folder), ["--prompts", write(tmp_path / "a.jsonl", [])], "no prompts"),
        (str(folder), ["--prompts", write(tmp_path / "b.jsonl", [{"text": "a"}])], "b.jsonl:1"),
        (
            str(folder),
            ["--prompts", write(tmp_path / "c.jsonl", ["a", {"template": "[1]"}])],
            "prompt and template",
        ),
        (str(folder), ["--prompts", good, "--max-new-tokens", "0"], "--max-new-tokens"),
        (str(folder), ["--prompts", good, "--max-new-tokens", "500"], "--max-new-tokens"),
        (
            str(folder),
            ["--prompts", good, "--max-new-tokens", "4", "--block-length", "0"],
            "--block-length",
        ),
        (str(folder), ["--prompts", good, "--gamma", "1"], "--gamma"),
        (
            str(folder),
            ["--prompts", good, "--edit-threshold", "0.5"],
            "--edit-threshold is an option of --solver edit",
        ),
        (
            str(folder),
            ["--prompts", good, "--solver", "edit", "--edit-threshold", "2"],
            "--edit-threshold must be a probability",
        ),
        (str(folder), ["--prompts", good, "--batch-size", "0"], "--batch-size"),
        (str(folder), ["--prompts", write(tmp_path / "d.csv", ["a"])], "d.csv"),
        (
            str(folder),
            ["--prompts", write(tmp_path / "e.jsonl", ["a", {"prompt": 3}])],
            "e.jsonl:2",
        ),
        (
            str(folder),
            ["--prompts", write(tmp_path / "f.jsonl", [{"messages": [{"role": "user"}]}])],
            "f.jsonl:1",
        ),
        ("qm9-mask-small", ["--prompts", good], "--prompts requires"),
    ]
    for model, flags, facts in cases:
        out = tmp_path / "out.jsonl"
        assert facts in rejected("sample", model, "--out", out, *flags)
        assert not out.exists()
    assert "--prompts" in rejected("sample", folder, "--out", tmp_path / "out.jsonl")
    assert ".txt" in rejected("sample", folder, "--prompts", good, "--out", tmp_path / "out.txt")
