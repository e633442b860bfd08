"""Invalid input to the commands: exit code 2, one message, nothing left behind."""

import gzip
import lzma
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from cwdfm.cli import main
from cwdfm.data import ByteTokenizer, CharacterTokenizer, TextFiles, prepare
from tests.support.evaluators import byte_tokenizer, gpt2, write_gguf
from tests.support.texts import BROKEN_GZ, jsonl, write_parquet, zst
from tests.support.tiny import MODEL_LENGTH as LENGTH
from tests.support.tiny import tiny_model, write_random_samples

transformers = pytest.importorskip("transformers", reason="needs the extra 'text'")
hub = pytest.importorskip("huggingface_hub.constants", reason="needs the extra 'text'")
datasets = pytest.importorskip("datasets", reason="needs the extra 'text'")

TEXT = "the whale and the sea, the captain and the whale. "


@dataclass(frozen=True)
class Places:
    """Folders of valid models, evaluators and data, and of the test's own files."""

    good: Path  # shared by the module, read-only
    own: Path  # for the test's files

    def file(self, name: str, content: bytes) -> Path:
        """Write a user's file."""
        (self.own / name).write_bytes(content)
        return self.own / name

    def samples(self) -> Path:
        """A file of samples."""
        return write_random_samples(self.own / "samples.jsonl", count=8)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    (folder / "whale.txt").write_text(TEXT * 20)
    corpus = TextFiles.of(folder / "whale.txt")
    prepare(corpus, "bytes", LENGTH, folder / "bytes", part="all")
    prepare(corpus, "chars", LENGTH, folder / "chars")
    tiny_model(ByteTokenizer()).save_pretrained(folder / "model")
    tiny_model(CharacterTokenizer.build(["abc"])).save_pretrained(folder / "abc")
    byte_tokenizer(transformers).save_pretrained(folder / "evaluator")
    gpt2(transformers, vocab_size=258).save_pretrained(folder / "evaluator")
    return folder


Command = Callable[[Places], list[object]]


def preparing(name: str, content: bytes, *flags: object) -> Command:
    def command(at: Places) -> list[object]:
        fixed = ["--tokenizer", "bytes", "--length", LENGTH, "--workers", 1]
        return ["prepare", at.file(name, content), "--out", at.own / "out", *fixed, *flags]

    return command


def training(data: str, *flags: object, recipe: str = "text-debug") -> Command:
    def command(at: Places) -> list[object]:
        fixed = ["--data", at.good / data, "--length", LENGTH, "--steps", 1]
        out = ["--out", at.own / "runs" / "out"]
        return ["train", recipe, *out, *fixed, *(f(at) if callable(f) else f for f in flags)]

    return command


def sampling(*flags: object, model: str = "model") -> Command:
    def command(at: Places) -> list[object]:
        return ["sample", at.good / model, "--out", at.own / "out.jsonl", "--n", 2, *flags]

    return command


def evaluating(evaluator: Callable[[Places], object], *flags: object) -> Command:
    def command(at: Places) -> list[object]:
        out = ["--out", at.own / "out", "--eval-model", evaluator(at), "--device", "cpu"]
        return ["eval", at.samples(), *out, *flags]

    return command


def below_a_file(at: Places, name: str) -> list[object]:
    return ["--out", at.file("notes", b"precious") / name]


def into_a_folder(at: Places, name: str) -> list[object]:
    (at.own / name).mkdir()
    return ["--out", at.own / name, "--force"]


def evaluated(at: Places) -> list[object]:
    return ["--eval-model", at.good / "evaluator", "--out", at.own / "out"]


def bert(kind: str) -> Callable[[Places], Path]:
    """Write a bidirectional evaluator, or one without a head."""

    def make(at: Places) -> Path:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.BertConfig(vocab_size=258, intermediate_size=16, **sizes)
        getattr(transformers, kind)(config).save_pretrained(at.own / kind)
        byte_tokenizer(transformers).save_pretrained(at.own / kind)
        return at.own / kind

    return make


def t5(at: Places) -> Path:
    config = transformers.T5Config(vocab_size=258, d_model=16, d_kv=8, d_ff=16, num_layers=1)
    transformers.T5ForConditionalGeneration(config).save_pretrained(at.own / "t5")
    byte_tokenizer(transformers).save_pretrained(at.own / "t5")
    return at.own / "t5"


def broken_gguf(change: Callable[[bytes], bytes]) -> Callable[[Places], Path]:
    def make(at: Places) -> Path:
        pytest.importorskip("gguf", reason="needs the extra 'text'")
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.LlamaConfig(vocab_size=258, intermediate_size=32, **sizes)
        path = at.own / "evaluator.gguf"
        write_gguf(transformers.LlamaForCausalLM(config), byte_tokenizer(transformers), path)
        path.write_bytes(change(path.read_bytes()))
        return path

    return make


def prepared_parquet(at: Places) -> list[object]:
    path = write_parquet(at.own / "a.parquet", title=["x"], body=["y"])
    return ["prepare", path, "--out", at.own / "out", "--tokenizer", "bytes", "--workers", 1]


def foreign_folder(at: Places) -> list[object]:
    (at.own / "notes").mkdir()
    (at.own / "notes" / "todo.txt").write_text("no model")
    return ["sample", at.own / "notes", "--out", at.own / "out.jsonl"]


GOOD = {"text": "good"}
REFUSED: dict[str, tuple[Command, str]] = {
    "gz-cut": (
        preparing("a.txt.gz", BROKEN_GZ[:-40]),
        r"a\.txt\.gz is not a complete gzip file, after line \d+.*copy it again",
    ),
    "gz-not-compressed": (
        preparing("a.jsonl.gz", jsonl(GOOD)),
        r"a\.jsonl\.gz is not a complete gzip file.*remove the suffix \.gz",
    ),
    "xz-cut": (
        preparing("a.txt.xz", lzma.compress(b"a b\n" * 999)[:-40]),
        r"a\.txt\.xz is not a complete xz file, after line \d+.*copy it again",
    ),
    "zst-cut": (
        preparing("a.txt.zst", zst(b"a b\n" * 999)[:-5]),
        r"a\.txt\.zst is not a complete zstandard file, after line \d+.*copy it again",
    ),
    "jsonl-broken-line": (
        preparing("a.jsonl", jsonl(GOOD, GOOD, '{"text": "cut', GOOD)),
        r"a\.jsonl, line 3: not JSON .*each line must be a JSON object",
    ),
    "jsonl-endless-number": (
        preparing("a.jsonl", b'{"text": "a"}\n{"text": "b", "n": ' + b"9" * 5000 + b"}\n"),
        r"a\.jsonl, line 2: not JSON \(Exceeds the limit .* each line must be a JSON object",
    ),
    "jsonl-broken-line-compressed": (
        preparing("a.jsonl.gz", gzip.compress(jsonl(GOOD, "[", GOOD))),
        r"a\.jsonl\.gz, line 2: not JSON",
    ),
    "wrong-encoding": (
        preparing("a.txt", "une ligne\nun café\n".encode("latin-1")),
        r"a\.txt, line 2: byte 0xe9 is not UTF-8 text; save the file as UTF-8",
    ),
    "wrong-encoding-utf-16": (
        preparing("a.txt", "text".encode("utf-16")),
        r"a\.txt, line 1: byte 0xff is not UTF-8 text; save the file as UTF-8",
    ),
    "empty-corpus": (
        preparing("a.txt", b""),
        r"a\.txt contains no text: 1 documents were read, 1 of them blank",
    ),
    "blank-corpus": (
        preparing("a.jsonl", jsonl({"text": " \n"}, {"text": None})),
        r"a\.jsonl contains no text: 2 documents were read, 2 of them blank",
    ),
    "empty-folder": (
        lambda at: ["prepare", at.own, "--out", at.own / "out", "--tokenizer", "bytes"],
        r"is a folder without text files; supported are \.txt",
    ),
    "corpus-unknown": (
        lambda at: ["prepare", "openwebtxt", "--out", at.own / "out"],
        r"'openwebtxt' is neither a dataset nor a file; give one of 'qm9', .*'openwebtext'",
    ),
    "no-such-field": (
        preparing("a.jsonl", jsonl({"title": "x", "body": "y"}), "--column", "content"),
        r"line 1: .*'content', only 'title', 'body'; .*--column",
    ),
    "no-such-column": (
        prepared_parquet,
        r"a\.parquet has no column 'text', its columns are 'title', 'body'",
    ),
    "tokenizer-other-than-the-data": (
        training("chars", "--tokenizer", "bytes"),
        r"different tokenizer \('characters', 16 tokens\).*\('bytes'\).*`--tokenizer None`",
    ),
    "tokenizer-other-than-the-checkpoint": (
        training("chars", "--init", lambda at: at.good / "model", recipe="finetune"),
        r"different tokenizer \('characters', .*requested \('bytes', 257",
    ),
    "tokenizer-other-than-the-model": (
        lambda at: ["perplexity", at.good / "abc", "--data", at.good / "bytes"],
        r"different tokenizer \('bytes', .*'characters', 4",
    ),
    "tokenizer-other-than-analyze-data": (
        lambda at: [
            *("analyze", "context", at.good / "abc", "--data", at.good / "bytes"),
            *("--out", at.own / "out"),
        ],
        r"different tokenizer \('bytes', .*'characters', 4",
    ),
    "characters-unknown-to-the-model": (
        lambda at: [
            *("perplexity", at.good / "abc", "--data", at.file("a.txt", b"abc xyz " * 99)),
            *("--part", "all"),
        ],
        r"vocabulary of 4: ' xyz'",
    ),
    "corpus-from-an-unreachable-hub": (
        lambda at: ["prepare", "openwebtext", "--out", at.own / "out", "--tokenizer", "bytes"],
        r"cannot get openwebtext .*from the hub \(ConnectionError.*train\.\*.*folder "
        r"openwebtext.*CWDFM_DATA.*--folder",
    ),
    "tokenizer-from-an-unreachable-hub": (
        preparing("a.txt", TEXT.encode(), "--tokenizer", "nobody/nothing"),
        r"'nobody/nothing' is neither .*from the hub .*tokenizer\.json.*folder "
        r"nobody/nothing in \$CWDFM_DATA",
    ),
    "evaluator-from-an-unreachable-hub": (
        evaluating(lambda _: "nobody/nothing"),
        r"'nobody/nothing' is not a local folder .*Hugging Face hub .*"
        r"hf download nobody/nothing --local-dir FOLDER",
    ),
    "evaluator-with-another-vocabulary": (
        evaluating(lambda at: at.good / "evaluator", "--no-retokenize"),
        r"different vocabularies.*--retokenize",
    ),
    "evaluator-not-causal": (
        evaluating(bert("BertForMaskedLM")),
        r"is not causal.*such as gpt2-large",
    ),
    "evaluator-without-a-head": (
        evaluating(bert("BertModel")),
        r"is missing \d+ weights of a causal language model.*predict the next token",
    ),
    "evaluator-of-another-kind": (
        evaluating(t5),
        r"t5 cannot be loaded .*T5Config.*of a causal language model, as save_pretrained writes",
    ),
    "evaluator-that-is-no-gguf": (
        evaluating(broken_gguf(lambda raw: b"hello")),
        r"evaluator\.gguf cannot be loaded .*GGUF file is incomplete.*copy it again",
    ),
    "evaluator-gguf-truncated-header": (
        evaluating(broken_gguf(lambda raw: raw[:200])),
        r"evaluator\.gguf cannot be loaded .*GGUF file is incomplete.*copy it again",
    ),
    "evaluator-gguf-truncated-weights": (
        evaluating(broken_gguf(lambda raw: raw[:-5000])),
        r"evaluator\.gguf cannot be loaded .*GGUF file is incomplete.*copy it again",
    ),
    "prompt-too-long": (
        sampling("--prompt", "x" * LENGTH),
        f"the prompt has {LENGTH} tokens, .*length {LENGTH} .*--length",
    ),
    "template-too-long": (
        sampling("--template", "x" * LENGTH + "[1]"),
        f"the template has {LENGTH + 1} tokens .*length {LENGTH}; .*--length {LENGTH + 1}",
    ),
    "template-of-another-length": (
        sampling("--template", "The [3]", "--length", 9),
        r"the template has 7 tokens.*--length.*9.*7",
    ),
    "template-beyond-the-positions": (
        sampling("--template", f"[{LENGTH + 1}]", "--length", LENGTH + 1),
        f"{LENGTH} learned positions.*{LENGTH + 1} tokens.*--template of at most {LENGTH}",
    ),
    "template-without-holes": (
        sampling("--template", "The end"),
        r"the template 'The end' has no holes; write \[12\]",
    ),
    "template-hole-of-nothing": (
        sampling("--template", "The [0] end"),
        r"hole \[0\].*1 to 65,536 tokens",
    ),
    "template-hole-malformed": (
        sampling("--template", "The [two] [3]"),
        r"bracket at position 4.*\[12\].*\[\[ for a bracket",
    ),
    "template-hole-negative": (
        sampling("--template", "The [-3]"),
        r"bracket at position 4",
    ),
    "template-unknown-characters": (
        sampling("--template", "abcd[3]", model="abc"),
        r"vocabulary of 4: 'd'",
    ),
    "training-on-what-is-held-out": (
        training("bytes", "--tokenizer", "bytes"),
        r"no training sequences.*held out.*part 'all'",
    ),
    "path-radius-too-large": (
        training("chars", "--path", "context", "--path-radius", LENGTH),
        rf"--path-radius {LENGTH} is too large for sequences of {LENGTH} tokens.*"
        rf"--path-radius of at most {(LENGTH - 1) // 2}, or a --length of at least 33",
    ),
    "loss-radius-too-large": (
        training("chars", "--loss", "sce", "--loss-radius", LENGTH // 2),
        rf"--loss-radius .*--loss-radius of at most {(LENGTH - 1) // 2}, or a --length",
    ),
    "prepare-length-zero": (
        lambda at: [
            *("prepare", at.file("a.txt", TEXT.encode()), "--out", at.own / "out"),
            *("--tokenizer", "bytes", "--length", 0),
        ],
        r"length must be an integer >= 2, got 0",
    ),
    "length-too-small": (sampling("--length", 1), r"length must be an integer >= 3"),
    "length-beyond-the-positions": (
        sampling("--length", LENGTH + 1),
        f"{LENGTH} learned positions.*{LENGTH + 1} tokens.*--length of at most {LENGTH}",
    ),
    "text-into-lines": (
        lambda at: ["sample", at.good / "model", "--out", at.own / "out.txt", "--n", 2],
        r"out\.txt .*line breaks.*\.jsonl.*\.csv",
    ),
    "eval-text-without-tokens": (
        lambda at: ["eval", at.file("a.txt", TEXT.encode()), *evaluated(at)],
        r"a\.txt .*without tokens.*\.jsonl",
    ),
    "eval-of-plain-text": (
        lambda at: ["eval", at.file("a.txt", TEXT.encode()), "--out", at.own / "out"],
        r"a\.txt .*without tokens.*one SMILES per line",
    ),
    "eval-molecules-with-an-evaluator": (
        lambda at: ["eval", at.file("a.smi", b"CCO\nCC\n"), *evaluated(at)],
        r"a\.smi contains molecules.*--eval-model",
    ),
    "prepared-again": (
        lambda at: ["prepare", at.good / "chars", "--out", at.own / "out", "--length", 8],
        r"chars is already prepared",
    ),
    "molecules-into-a-folder": (
        lambda at: ["prepare", at.file("a.smi", b"CCO\nCC\n"), "--out", at.own / "out"],
        r"\.npz file, got --out .*out",
    ),
    "molecules-with-text-flags": (
        lambda at: [
            *("prepare", at.file("a.smi", b"CCO\nCC\n"), "--out", at.own / "a.npz"),
            *("--part", "test", "--tokenizer", "gpt2"),
        ],
        r"--tokenizer, --part is only for text, .*a\.smi contains molecules",
    ),
    "molecules-randomized-zero": (
        lambda at: [
            *("prepare", at.file("a.smi", b"CCO\nCC\n"), "--out", at.own / "a.npz"),
            *("--randomized", 0),
        ],
        r"--randomized must be an integer >= 1, got 0",
    ),
    "molecules-of-a-negative-seed": (
        lambda at: [
            *("prepare", at.file("a.smi", b"CCO\nCC\n"), "--out", at.own / "a.npz"),
            *("--randomized", 2, "--seed", -1),
        ],
        r"seed must be an integer >= 0, got -1",
    ),
    "molecules-glob": (
        lambda at: ["prepare", at.own / "*.smi", "--out", at.own / "a.npz"],
        r"\*\.smi is a glob pattern",
    ),
    "molecules-over-another-file": (
        lambda at: [
            *("prepare", at.file("a.smi", b"CCO\nCC\n")),
            *("--out", at.file("a.npz", b"precious")),
        ],
        r"a\.npz already exists.*--force",
    ),
    "text-randomized": (
        preparing("a.txt", TEXT.encode(), "--randomized", 2),
        r"--randomized is only for molecules, .*a\.txt is read as text",
    ),
    "force-of-text": (
        preparing("a.txt", TEXT.encode(), "--force"),
        r"--force is only for molecules, .*a\.txt is read as text",
    ),
    "column-of-plain-text": (
        preparing("a.txt", TEXT.encode(), "--column", "body"),
        r"--column body is only for parquet and JSON lines, .*a\.txt is plain text",
    ),
    "documents-of-json-lines": (
        preparing("a.jsonl", b'{"text": "a"}', "--documents", "lines"),
        r"--documents lines is only for plain text, .*a\.jsonl",
    ),
    "prepare-below-a-file": (
        lambda at: ["prepare", at.good / "whale.txt", *below_a_file(at, "out"), "--workers", 1],
        r"out cannot be written: .*notes is a file",
    ),
    "sample-below-a-file": (
        lambda at: ["sample", at.good / "model", *below_a_file(at, "out.jsonl"), "--n", 2],
        r"out\.jsonl cannot be written: .*notes is a file",
    ),
    "perplexity-below-a-file": (
        lambda at: [
            *("perplexity", at.good / "model", "--data", at.good / "bytes"),
            *below_a_file(at, "out.json"),
        ],
        r"out\.json cannot be written: .*notes is a file",
    ),
    "eval-below-a-file": (
        lambda at: ["eval", at.samples(), *below_a_file(at, "out")],
        r"out cannot be written: .*notes is a file",
    ),
    "sample-into-a-folder": (
        lambda at: ["sample", at.good / "model", *into_a_folder(at, "out.jsonl"), "--n", 2],
        r"out\.jsonl is a folder",
    ),
    "perplexity-into-a-folder": (
        lambda at: [
            *("perplexity", at.good / "model", "--data", at.good / "bytes"),
            *into_a_folder(at, "out.json"),
        ],
        r"out\.json is a folder",
    ),
    "sample-from-another-library": (
        lambda at: ["sample", at.good / "evaluator", "--out", at.own / "a.jsonl"],
        r"evaluator holds a model of another library.*give a folder written by save_pretrained",
    ),
    "sample-other-folder": (
        foreign_folder,
        r"notes .*config\.json",
    ),
    "sample-unknown-model": (
        sampling(model="nowhere"),
        r"nowhere' is neither a folder nor a bundled model; .* qm9",
    ),
}


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("row", REFUSED)
def test_invalid_input(
    row: str,
    good: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, message = REFUSED[row]
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CWDFM_DATA", raising=False)
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    (tmp_path / "own").mkdir()
    places = Places(good, tmp_path / "own")
    line = [str(word) for word in command(places)]
    capsys.readouterr()
    before = contents(tmp_path)
    monkeypatch.setattr("sys.argv", ["cwdfm", *line])
    with pytest.raises(SystemExit) as left:
        main.main()
    said = capsys.readouterr()
    assert left.value.code == 2, said
    # One paragraph, no traceback; apart from the progress bar of the evaluator LM.
    assert re.fullmatch(r"(\rLoading weights[^\n]*\n)?cwdfm: [^\n]+\n", said.err), said.err
    assert re.search(message, said.err), said.err
    left_behind = contents(tmp_path)
    left_behind.pop("cache", None)  # an empty folder
    assert left_behind == before
