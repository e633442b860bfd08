"""Text tokenizers agree with reference implementations; templates with holes."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from cwdfm import InputError
from cwdfm.data import (
    END,
    ByteTokenizer,
    CharacterTokenizer,
    FastTokenizer,
    SmilesTokenizer,
    TextTokenizer,
    find_tokenizer,
    tokenizer_from_json,
)
from cwdfm.data.text.fast_tokenizer import GPT2_SHA256
from tests.support.texts import UNICODE, needs_gpt2, story, word_level

pytestmark = pytest.mark.usefixtures("own_places")


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
    assert gpt2.identity["sha256"] == GPT2_SHA256


@needs_gpt2
def test_gpt2_matches_transformers(gpt2: TextTokenizer, gpt2_files: Path) -> None:
    from transformers import GPT2Tokenizer

    vocabulary = json.loads((gpt2_files / "encoder.json").read_text())
    pairs = (gpt2_files / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
    merges: Any = [tuple(pair.split()) for pair in pairs]
    reference = GPT2Tokenizer(vocab=vocabulary, merges=merges)
    for text in (UNICODE, story(1, 3000)):
        assert gpt2.encode(text) == reference.encode(text)
        assert gpt2.decode(gpt2.encode(text)) == text


@needs_gpt2
def test_gpt2_does_not_depend_on_its_origin(
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
def test_special_tokens_in_text_are_encoded_as_text(gpt2: TextTokenizer) -> None:
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
            pieces = list(tokenizer.split_text(text, size))
            assert "".join(pieces) == text
            assert [i for piece in pieces for i in tokenizer.encode(piece)] == tokenizer.encode(
                text
            )
    assert size < 100 or len(list(gpt2.split_text(story(3, 2000), size))) > 20


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
    with pytest.raises(InputError, match=r"end-of-text token.*end="):
        find_tokenizer(word_level(tmp_path / "odd", end="<fin>"))
    with pytest.raises(InputError, match="no token '<none>'"):
        find_tokenizer(tmp_path / "own", end="<none>")


def test_name_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_tokenizer_interface(tmp_path: Path) -> None:
    own = find_tokenizer(word_level(tmp_path / "own"))
    for tokenizer in (ByteTokenizer(), CharacterTokenizer.build([UNICODE]), own):
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


@needs_gpt2
@pytest.mark.parametrize("unit", ["word ", "line\n", "ACGT", "你好"])
def test_long_texts_are_encoded_in_pieces(gpt2: TextTokenizer, unit: str) -> None:
    """Memory is bounded, and only the ids of texts without spaces may change."""
    text = unit * 400
    pieces = list(gpt2.split_text(text, 100, most=200))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 200
    ids = [i for piece in pieces for i in gpt2.encode(piece)]
    assert gpt2.decode(ids) == text
    if unit[-1].isspace():
        assert ids == gpt2.encode(text)
    else:  # at most a few tokens for each cut
        assert len(ids) <= len(gpt2.encode(text)) + 4 * len(pieces)


# Templates


def test_holes_in_smiles() -> None:
    tokenizer = SmilesTokenizer.build(["c1ccccc1", "C[nH]"])
    ids = tokenizer.encode("c1ccccc1")
    assert len(ids) == 8
    assert tokenizer.encode_template("c1ccccc1***") == [*ids, None, None, None]
    nitrogen, carbon = tokenizer.encode("[nH]C")
    assert tokenizer.encode_template("*[nH]*C") == [None, nitrogen, None, carbon]
    assert tokenizer.encode_template("[2][nH]*C[1]") == [None, None, nitrogen, None, carbon, None]
    with pytest.raises(InputError, match=r"no holes; write \[3\]"):
        tokenizer.encode_template("c1ccccc1")
    for hole in ("[0]", "[65537]"):
        with pytest.raises(InputError, match=r"1 to 65,536"):
            tokenizer.encode_template(f"C{hole}")
    with pytest.raises(InputError, match=r"vocabulary of .*: Br"):
        tokenizer.encode_template("Br*")
    with pytest.raises(InputError, match="is not a SMILES"):
        tokenizer.encode_template("C *")


@needs_gpt2
def test_holes_in_text(gpt2: TextTokenizer) -> None:
    assert gpt2.encode_template("The [12] of the [3] was") == (
        [464] + [None] * 12 + gpt2.encode(" of the") + [None] * 3 + gpt2.encode(" was")
    )
    assert gpt2.encode_template("[2]") == [None, None]
    assert gpt2.encode_template("[1][2]a") == [None] * 3 + gpt2.encode("a")
    assert gpt2.encode_template("[[12] x[1]") == [*gpt2.encode("[12] x"), None]
    tokenizer = ByteTokenizer()
    assert tokenizer.encode_template("a [2] b") == [97, 32, None, None, 32, 98]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("no hole", r"no holes; write \[12\]"),
        ("", "no holes"),
        ("[[3]", "no holes"),
        ("a [0] b", r"hole \[0\].*1 to 65,536"),
        ("a [65537] b", r"hole \[65537\]"),
        ("[" + "9" * 5000 + "]", "hole .9999"),
        ("a [x] [3]", r"bracket at position 2.*\[\[ for a bracket"),
        ("a [-3]", "bracket at position 2"),
        ("é [3]", "vocabulary of 12: 'é'"),
    ],
)
def test_invalid_templates(template: str, message: str) -> None:
    tokenizer = CharacterTokenizer.build(["abc [] no hle"])
    with pytest.raises(InputError, match=message):
        tokenizer.encode_template(template)


@dataclass(frozen=True)
class Words(TextTokenizer, kind="test-words"):
    """A user's tokenizer with the abstract methods only."""

    words: tuple[str, ...]

    @property
    def vocab_size(self) -> int:
        return len(self.words) + 1

    @property
    def eos_id(self) -> int:
        return len(self.words)

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        return [np.array([self.words.index(word) for word in text.split()]) for text in texts]

    def decode_text(self, ids: Sequence[int]) -> str:
        return " ".join(self.words[i] for i in ids)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "words": self.words}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(tuple(data["words"]))


def test_a_users_tokenizer_is_not_given_parts_of_words() -> None:
    tokenizer = Words(("cat", "the"))
    text = "the cat " * 1000
    assert list(tokenizer.split_text(text, 100)) == [text]
    assert tokenizer_from_json(json.loads(json.dumps(tokenizer.to_json()))) == tokenizer
    assert tokenizer.encode_template("the [2] cat") == [1, None, None, 0]
