"""Invalid input to the commands: exit code 2, one message, nothing left behind."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cwdfm.cli import main
from cwdfm.data import ByteTokenizer, CharacterTokenizer, TextFiles, prepare
from tests.support.evaluators import byte_tokenizer, gpt2, write_gguf
from tests.support.texts import jsonl
from tests.support.tiny import MODEL_LENGTH as LENGTH
from tests.support.tiny import tiny_model, write_random_samples

transformers = pytest.importorskip("transformers", reason="needs the extra 'text'")
hub = pytest.importorskip("huggingface_hub.constants", reason="needs the extra 'text'")
datasets = pytest.importorskip("datasets", reason="needs the extra 'text'")

TEXT = "the whale and the sea, the captain and the whale. "


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Valid models, evaluators and data, shared by the module."""
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


def bert(folder: Path) -> None:
    """Write a bidirectional evaluator, or one without a head."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=258, intermediate_size=16, **sizes)
    getattr(transformers, folder.name)(config).save_pretrained(folder)
    byte_tokenizer(transformers).save_pretrained(folder)


def t5(folder: Path) -> None:
    config = transformers.T5Config(vocab_size=258, d_model=16, d_kv=8, d_ff=16, num_layers=1)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    byte_tokenizer(transformers).save_pretrained(folder)


def broken_gguf(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        pytest.importorskip("gguf", reason="needs the extra 'text'")
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.LlamaConfig(vocab_size=258, intermediate_size=32, **sizes)
        write_gguf(transformers.LlamaForCausalLM(config), byte_tokenizer(transformers), path)
        path.write_bytes(change(path.read_bytes()))

    return make


def foreign_folder(folder: Path) -> None:
    folder.mkdir()
    (folder / "todo.txt").write_text("no model")


# A test writes what its command mentions: contents of files, and functions that write the others.
FILES: dict[str, bytes | Callable[[Path], object]] = {
    "fields.jsonl": jsonl({"title": "x", "body": "y"}),
    "a.txt": TEXT.encode(),
    "xyz.txt": b"abc xyz " * 99,
    "a.smi": b"CCO\nCC\n",
    "a.xyz": b"not read",
    "old.npz": b"precious",
    "notes": b"precious",
    "folder.json": Path.mkdir,
    "folder.jsonl": Path.mkdir,
    "foreign": foreign_folder,
    "samples.jsonl": lambda path: write_random_samples(path, count=8),
    "BertForMaskedLM": bert,
    "BertModel": bert,
    "t5": t5,
    "hello.gguf": broken_gguf(lambda raw: b"hello"),
    "header.gguf": broken_gguf(lambda raw: raw[:200]),
    "weights.gguf": broken_gguf(lambda raw: raw[:-5000]),
}

# A command, and a pattern of its message. `@` is the folder of valid models and data, and `%` is
# that of the test's own files.
PREPARE = f"--out %/out --tokenizer bytes --length {LENGTH} --workers 1"
TRAIN = f"--out %/runs/out --length {LENGTH} --steps 1"
SAMPLE = "sample @/model --n 2 --out %/out.jsonl"
EVAL = "eval %/samples.jsonl --out %/out --device cpu --eval-model"
HALF = (LENGTH - 1) // 2
REFUSED = rf"""
prepare openwebtxt --out %/out
    'openwebtxt' is neither a dataset nor a file; pass one of 'qm9', .*'openwebtext'
prepare %/fields.jsonl {PREPARE} --column content
    line 1: .*'content', only 'title', 'body'; .*--column
train text-debug {TRAIN} --data @/chars --tokenizer bytes
    different tokenizer \('characters', 16 tokens\).*\('bytes'\).*`--tokenizer None`
train finetune {TRAIN} --data @/chars --init @/model
    different tokenizer \('characters', .*requested \('bytes', 257
perplexity @/abc --data @/bytes
    different tokenizer \('bytes', .*'characters', 4
analyze context @/abc --data @/bytes --out %/out
    different tokenizer \('bytes', .*'characters', 4
perplexity @/abc --data %/xyz.txt --part all
    vocabulary of 4: ' xyz'
prepare openwebtext --out %/out --tokenizer bytes
    cannot load openwebtext .*\(ConnectionError.*train\.\*.*folder openwebtext.*CWDFM_DATA.*--folder
prepare %/a.txt --out %/out --tokenizer nobody/nothing
    'nobody/nothing' is neither .*hub .*tokenizer\.json.*folder nobody/nothing in \$CWDFM_DATA
{EVAL} nobody/nothing
    'nobody/nothing' is not a local folder .*hub .*hf download nobody/nothing --local-dir FOLDER
{EVAL} @/evaluator --no-retokenize
    different vocabularies.*--retokenize
{EVAL} %/BertForMaskedLM
    is not causal.*such as gpt2-large
{EVAL} %/BertModel
    is missing \d+ weights of a causal language model.*predict the next token
{EVAL} %/t5
    t5 cannot be loaded .*T5Config.*of a causal language model, as save_pretrained writes
{EVAL} %/hello.gguf
    \.gguf cannot be loaded .*GGUF file must be complete
{EVAL} %/header.gguf
    \.gguf cannot be loaded .*GGUF file must be complete
{EVAL} %/weights.gguf
    \.gguf cannot be loaded .*GGUF file must be complete
{SAMPLE} --prompt {"x" * LENGTH}
    the prompt has {LENGTH} tokens, .*length {LENGTH} .*--length
{SAMPLE} --template {"x" * LENGTH}[1]
    the template has {LENGTH + 1} tokens .*length {LENGTH}; .*--length {LENGTH + 1}
{SAMPLE} --template 'The [3]' --length 9
    the template has 7 tokens.*--length.*9.*7
{SAMPLE} --template [{LENGTH + 1}] --length {LENGTH + 1}
    {LENGTH} learned positions.*{LENGTH + 1} tokens.*--template of at most {LENGTH}
train text-debug {TRAIN} --data @/bytes --tokenizer bytes
    no training sequences.*held out.*part 'all'
train text-debug {TRAIN} --data @/chars --path context --path-radius {LENGTH}
    --path-radius {LENGTH} is too large .*{LENGTH} tokens.*most {HALF}, .*--length of at least 33
train text-debug {TRAIN} --data @/chars --loss sce --loss-radius {LENGTH // 2}
    --loss-radius .*--loss-radius of at most {HALF}, or a --length
{SAMPLE} --length 1
    length must be an integer >= 3
{SAMPLE} --length {LENGTH + 1}
    {LENGTH} learned positions.*{LENGTH + 1} tokens.*--length of at most {LENGTH}
sample @/model --out %/out.txt --n 2
    out\.txt .*line breaks.*\.jsonl.*\.csv
eval %/a.txt --eval-model @/evaluator --out %/out
    a\.txt .*tokens.*\.jsonl
eval %/a.txt --out %/out
    a\.txt .*tokens.*one SMILES per line
eval %/a.smi --eval-model @/evaluator --out %/out
    a\.smi contains molecules.*--eval-model
prepare %/a.xyz --out %/out
    a\.xyz. has an unknown format.*molecules: \.smi
prepare @/chars --out %/out --length 8
    chars is already prepared
prepare %/a.smi --out %/out
    \.npz, got .*out
prepare %/a.smi --out %/a.npz --part test --documents lines
    --documents lines and --part test are only for text, .*a\.smi contains molecules
prepare %/a.smi --out %/a.npz --randomized 0
    --randomized must be an integer >= 1, got 0
prepare %/a.smi --out %/a.npz --randomized 2 --seed -1
    seed must be an integer >= 0, got -1
prepare %/*.smi --out %/a.npz
    \*\.smi is a glob pattern
prepare %/a.smi --out %/old.npz
    old\.npz already exists.*--force
prepare %/a.txt {PREPARE} --randomized 2
    --randomized 2 is only for molecules, .*a\.txt is read as text
prepare %/a.txt {PREPARE} --seed 0
    --seed 0 is only for molecules, .*a\.txt is read as text
prepare %/a.txt {PREPARE} --force
    --force is only for molecules, .*a\.txt is read as text
prepare %/a.txt {PREPARE} --column body
    --column body is only for .*JSON lines, .*a\.txt is plain text
prepare %/fields.jsonl {PREPARE} --documents lines
    --documents lines is only for plain text, .*fields\.jsonl
prepare @/whale.txt --out %/notes/out --workers 1
    out cannot be written: .*notes is a file
sample @/model --out %/notes/out.jsonl --n 2
    out\.jsonl cannot be written: .*notes is a file
perplexity @/model --data @/bytes --out %/notes/out.json
    out\.json cannot be written: .*notes is a file
eval %/samples.jsonl --out %/notes/out
    out cannot be written: .*notes is a file
sample @/model --out %/folder.jsonl --force --n 2
    folder\.jsonl is a folder
perplexity @/model --data @/bytes --out %/folder.json --force
    folder\.json is a folder
sample @/evaluator --out %/a.jsonl
    evaluator .*another library.*pass a folder written by save_pretrained
sample %/foreign --out %/out.jsonl
    foreign .*config\.json
""".strip().splitlines()
CASES = list(zip(REFUSED[::2], REFUSED[1::2], strict=True))


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(("line", "message"), CASES)
def test_invalid_input(
    line: str,
    message: str,
    good: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CWDFM_DATA", raising=False)
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    own = tmp_path / "own"
    own.mkdir()
    words = shlex.split(line.replace("@/", f"{good}/").replace("%", str(own)))
    for name in re.findall(r"%/([\w.]+)", line):
        made = FILES.get(name)
        if isinstance(made, bytes):
            (own / name).write_bytes(made)
        elif made is not None:
            made(own / name)
    capsys.readouterr()
    before = contents(tmp_path)
    monkeypatch.setattr("sys.argv", ["cwdfm", *words])
    with pytest.raises(SystemExit) as left:
        main.main()
    said = capsys.readouterr()
    assert left.value.code == 2, said
    # One paragraph, no traceback; apart from the progress bar of the evaluator LM.
    assert re.fullmatch(r"(\rLoading weights[^\n]*\n)?cwdfm: [^\n]+\n", said.err), said.err
    assert re.search(message.strip(), said.err), said.err
    left_behind = contents(tmp_path)
    left_behind.pop("cache", None)  # an empty folder
    assert left_behind == before
