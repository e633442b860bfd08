"""The shell blocks of README and docs run, in order, in a folder for each page.

bash runs them. The commands of this project run in this process, at the sizes of `SIZES`, and with
stand-ins for data, published models and files of the reader. `PARSED` and `NOT_RUN` are exceptions.
"""

import argparse
import gzip
import importlib
import io
import lzma
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cwdfm.cli import app
from cwdfm.data import TextFiles, loader, prepare
from cwdfm.data.molecules import SmilesFile
from cwdfm.data.moses import MOSES
from cwdfm.data.qm9 import QM9
from cwdfm.data.text import corpora
from cwdfm.model import presets
from cwdfm.pretrained import load
from tests.support.cases import slow
from tests.support.command import command
from tests.support.evaluators import save_gpt2
from tests.support.fake_hub import serve_hub
from tests.support.published import MODELS
from tests.support.shell import run_script
from tests.support.texts import jsonl, story, tarred, word_level

tyro = pytest.importorskip("tyro", reason="needs the extra 'cli'")
Chem = pytest.importorskip("rdkit.Chem", reason="needs the extra 'molecules'")
pytest.importorskip("matplotlib", reason="needs the extra 'plot'")

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = [
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if BLOCK.search(path.read_text())
]

# Values of flags that replace those of the pages: always, and only where a page gives the flag.
# "" is a flag without a value.
SMALL_TRAINING = {
    "steps": "2",
    "batch-size": "4",
    "warmup": "1",
    "validation-rows": "4",
    "elbo-rows": "2",
    "previews": "0",
    "no-compile": "",
    "no-tensorboard": "",
}
SIZES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "sample": ({"n": "2", "steps": "4"}, {"resample": "1"}),
    "sample runs/ar": ({"n": "1"}, {}),  # a step for each token
    "sample --prompts": ({"max-new-tokens": "8"}, {}),
    "sample --reject-below": ({"n": "2", "steps": "4", "max-tries": "1"}, {"resample": "1"}),
    "train": (SMALL_TRAINING, {"train-rows": "16"}),
    "prepare": ({"workers": "1"}, {"randomized": "2"}),
    "perplexity": ({"rows": "2"}, {}),
    "analyze context": ({"rows": "2", "draws": "2"}, {}),
    "analyze updates": ({"n": "2", "steps": "4"}, {}),
    "eval": ({"no-distribution": ""}, {}),
    "eval --eval-model": ({"folds": "1"}, {}),
    "app": ({"port": "0"}, {}),
}
# Hours, or a GPU: only the arguments are checked.
PARSED = re.compile(r"-m experiments (chaos|run frontier)|-m experiments\.studies\.|examples/")
# Programs of others, and what downloads its data.
NOT_RUN = re.compile(r"pip download|tar|xz|split|unzip|python -m cwdfm\.integrations\.lm_eval")
PROGRAMS = ("cwdfm", "torchrun", "python", "pip", "make", "tar", "xz", "split", "unzip")

# Pages whose commands take seconds. The tests of each command run by default.
LONG = {
    f"docs/{name}.md"
    for name in (
        *("baselines", "finetune", "molecules", "repro", "text"),
        *(
            "guide",
            "start",
            "results/curves",
            "results/bundled-models",
            "results/drug-like",
            "results/sampler-choices",
        ),
        "results/text-long",
    )
}


class Parsed(Exception):
    """Raised after a command line was parsed."""


@pytest.mark.parametrize("page", [slow(page) if page in LONG else page for page in PAGES])
def test_shell_blocks_run(
    page: str, stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "\n".join(BLOCK.findall((ROOT / page).read_text()))
    made = {Path(name).parts[0] for name in re.findall(r"cwdfm .*--out (\S+)", script)}
    folder = tmp_path / "page"
    shutil.copytree(stand_ins / "files", folder, ignore=lambda *_: made)
    if page.startswith("docs/results/"):  # there MODEL is an evaluator
        shutil.rmtree(folder / "MODEL")
        shutil.copytree(folder / "gpt2-large", folder / "MODEL")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CWDFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CWDFM_DATA", str(stand_ins / "data"))
    modules = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    monkeypatch.setattr(presets, "SIZES", dict.fromkeys(presets.SIZES, (16, 1, 1, 8)))
    for name in ("load_extra", "make_page", "serve"):
        monkeypatch.setattr(app, name, lambda *_: None)
    for dataset in (QM9, MOSES):
        small = replace(
            SmilesFile.of(folder / "my.smi"),
            name=dataset.name,
            length=dataset.length,
            tokens=dataset.tokens,
        )
        monkeypatch.setitem(loader.DATASETS, dataset.name, small)
    pages: Any = corpora.CORPORA["openwebtext"]
    monkeypatch.setitem(corpora.CORPORA, pages.name, replace(pages, held_out=2))
    with serve_hub(tmp_path / "hub", monkeypatch) as hub:
        for name in set(MODELS) & set(re.findall(r"[\w.-]+/[\w.-]+", script)):
            MODELS[name](tmp_path / "published" / name)
            commit = hub.add(name, tmp_path / "published" / name)
            if name == "inclusionAI/LLaDA2.1-mini":  # runs code of its repository
                monkeypatch.setenv("COMMIT", commit)
        run_script(script, PROGRAMS, run_program, folder, tmp_path / "calls")


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small corpora, a tokenizer in place of GPT-2's, and the files of the reader."""
    place = tmp_path_factory.mktemp("stand-ins")
    rows = [{"text": story(seed, 200)} for seed in range(40)]
    for name in ("openwebtext", "wikitext-2", "lambada"):
        folder = place / "data" / name
        folder.mkdir(parents=True)
        for part in ("train", "valid", "test"):
            (folder / f"{part}.jsonl").write_bytes(jsonl(*rows))
    word_level(place / "data" / "gpt2")
    (place / "files").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CWDFM_DATA", str(place / "data"))
        patch.chdir(place / "files")
        write_files()
    return place


def write_files() -> None:
    """The files of the reader: data, prepared data and models."""
    save_gpt2(Path("gpt2-large"))
    load("qm9-uniform-small").save_pretrained("MODEL")
    Path("SmolLM2.gguf").touch()
    texts = {f"{seed}.txt": story(seed, 2000).encode() for seed in range(40)}
    Path("novels.tar.xz").write_bytes(lzma.compress(tarred(texts)))
    rows = [{"text": story(seed, 500)} for seed in range(40)]
    Path("large.jsonl.gz").write_bytes(gzip.compress(jsonl(*rows)))
    prepare(TextFiles.of("novels.tar.xz"), "gpt2", 512, "novels")
    for name in ("CORPUS", "owt"):
        shutil.copytree("novels", name)
    Path("books").mkdir()
    for name, content in texts.items():
        Path("books", f"{name}.gz").write_bytes(gzip.compress(content))
    Path("proteins.fasta").write_text("".join(f">{n}\n{'MKV' * n}\n" for n in range(1, 40)))
    reactions = [f"{'C' * n}>>O" for n in range(1, 40)]
    Path("reactions.csv").write_text("\n".join(["reaction", *reactions]))
    molecules = [f"{'C' * n}{end}" for n in range(1, 13) for end in "NO"]
    for name in ("my.smi", "samples.smi"):
        Path(name).write_text("\n".join(molecules))
    table = [f"{smiles},{n}" for n, smiles in enumerate(molecules)]
    Path("my.csv").write_text("\n".join(["smiles,potency", *table]))
    with Chem.SDWriter("screening.sdf") as sdf:
        for smiles in molecules:
            sdf.write(Chem.MolFromSmiles(smiles))
    Path("questions.jsonl").write_bytes(jsonl({"prompt": "the cat"}, {"prompt": "a dog"}))


def run_program(words: list[str], standard_input: bytes) -> tuple[int, str]:
    """The exit code and the standard output of a program of the pages."""
    line = " ".join(words)
    assert not any(Path(word).is_absolute() for word in words), line
    if NOT_RUN.match(line):
        return 0, ""
    if PARSED.search(line):
        check_arguments(words[1:])
        return 0, ""
    program, *arguments = words
    if program == "torchrun":
        program, arguments = "cwdfm", arguments[arguments.index("cwdfm.cli.main") + 1 :]
    if program == "cwdfm":
        return run_command(smaller(arguments), standard_input)
    if arguments[:2] == ["-m", "experiments"]:
        dry = [] if arguments[2:] == ["list"] else ["--dry-run"]
        return run_command([*arguments[2:], *dry], standard_input)
    if arguments[0] == "-c":
        exec(arguments[1], {"__name__": "docs"})
    elif program == "make":
        subprocess.run(["make", "-n", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    else:
        assert words[:2] == ["pip", "install"], line
        settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
        extras = {name for found in re.findall(r"\[(.*?)\]", line) for name in found.split(",")}
        assert extras <= settings["project"]["optional-dependencies"].keys()
    return 0, ""


def run_command(words: list[str], standard_input: bytes) -> tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(standard_input)))
        ended = command(*words)
    assert ended.returncode == 0, f"{' '.join(words)}\n{ended.stdout}{ended.stderr}"
    return 0, ended.stdout


def smaller(words: list[str]) -> list[str]:
    """A command of `cwdfm` at the sizes of `SIZES`."""
    name = next((name for name in reversed(SIZES) if set(name.split()) <= set(words)), "")
    if words[0] != name.partition(" ")[0] or "--help" in words:
        return words
    always, replaced = SIZES[name]
    for flag, value in (always | replaced).items():
        key = f"--{flag}"
        if key in words:
            words = [*words[: (at := words.index(key))], *words[at + 1 + bool(value) :]]
        elif flag not in always:
            continue
        words = [*words, key, *([value] if value else [])]
    return [word for word in words if word != "--compile"]


def check_arguments(words: list[str]) -> None:
    """Parse the arguments of a module or a script, and stop there."""
    if words[0] == "-m":
        name, arguments = words[1], words[2:]
    else:
        name, arguments = words[0].removesuffix(".py").replace("/", "."), words[1:]
    module = importlib.import_module("experiments.__main__" if name == "experiments" else name)

    def then_stop(parse: Callable[..., Any]) -> Callable[..., Any]:
        def parse_only(*given: Any, **options: Any) -> None:
            parsed = parse(*given, **options)
            assert not (isinstance(parsed, tuple) and parsed[1]), parsed  # unknown to argparse
            raise Parsed

        return parse_only

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *arguments])
        patch.setattr(tyro, "cli", then_stop(tyro.cli))
        parser = argparse.ArgumentParser
        patch.setattr(parser, "parse_known_args", then_stop(parser.parse_known_args))
        with pytest.raises(Parsed):
            module.main(*([arguments] if module.main.__code__.co_argcount else []))
