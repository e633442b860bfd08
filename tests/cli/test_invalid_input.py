"""Invalid input: exit code 2, a message with the facts, and no new files."""

import shlex
from pathlib import Path

import pytest

from tests.support.command import rejected, succeeded

HUGE = 10**30
MODEL = "qm9-mask-small"
TRAIN = "train qm9-debug --out new"
CONTEXT = f"{TRAIN} --path context"
SAMPLE = f"sample {MODEL} --out new.smi --device cpu"
UPDATES = f"analyze updates {MODEL} --out new"
MOLECULES = "prepare qm9 --out new.npz"
TEXT = "prepare a.txt --out new --tokenizer bytes"

GENERAL = {
    "train qm9-huge": "unknown recipe 'qm9-huge'",
    "train qm9-debug": "out",
    "train": "usage: cwdfm train RECIPE --out DIR",
    "train --out new qm9-debug": "write `cwdfm train qm9-debug --out",
    "train --recipe qm9-debug --out new": "the recipe must be the first argument",
    "train --out new": "write `cwdfm train RECIPE --out DIR ...`",
    "sample --n 2 qm9-mask-small": "write `cwdfm sample MODEL --n ...`",
    "perplexity --data qm9 qm9-mask-small": "the model must be the first",
    "analyze context --rows 2 qm9-mask-small": "`cwdfm analyze context MODEL --r",
    "analyze updates --n 2 qm9-mask-small": "`cwdfm analyze updates MODEL --n",
    f"{TRAIN} --data nothing.smi": "nothing.smi",
    f"{TRAIN} --data {'x' * 300}": "x" * 300,
    f"{TRAIN} --ema 2": "--ema must lie in",
    f"{TRAIN} --source noise": "invalid choice",
    "train qm9-debug --out a.txt": "is a file",
    "train qm9-debug --out /proc/nowhere": "check the path, permissions",
    "train finetune --out new --init nowhere": "neither a folder nor",
    f"{TRAIN} --column 'a b'": "--column 'a b' is only for",
    f"{CONTEXT} --path-radius 0": "--path-radius must be an integer >= 1, got 0",
    f"{CONTEXT} --path-scale 1e9": "--path-scale must be a number between",
    f"{CONTEXT} --path-radius 16": "--path-radius 16 is too large",
    f"{CONTEXT} --data no.txt": "text: .txt with a text tokenizer, .jsonl",
    "demo --out a.txt": "is a file",
    "prepare a.txt --out new --streaming": "--streaming is only for",
    "sample nowhere --out new.smi": "nor a bundled model",
    f"sample {MODEL} --out new.doc": "must end in",
    f"{SAMPLE} --n 0": "--n must be",
    f"perplexity {MODEL} --data qm9 --rows -1": "--rows must be",
    f"{TEXT} --length 0": "cwdfm: --length must be an integer >= 2",
    f"{TEXT} --length 8 --workers 0": "cwdfm: --workers must be an integer >= 1",
    f"{TEXT} --workers 1000000000": "cwdfm: --workers must be an integer <= 4,096, got 1",
    "eval a.smi --data none --fold-size 0": "cwdfm: --fold-size must be an",
    "prepare a.smi --out new.npz --column x": "cwdfm: --column x is only for tables",
    "eval a.smi --data a.csv": "its columns are 'name', 'structure'",
}

# No memory is allocated for these sizes.
SIZES = {
    f"{SAMPLE} --n {HUGE}": "--n must be an integer <= 1,000,000,000, got 1000",
    f"{SAMPLE} --steps {HUGE}": "--steps must be an integer <= 1,000,000, got 1000",
    f"{SAMPLE} --length 1000000": "32 learned positions, but 1000000",
    f"{UPDATES} --n {HUGE}": "--n must be an integer <= ",
    f"{UPDATES} --steps {HUGE}": "--steps must be an integer <= ",
    f"sample qm9-uniform-small --out new.smi --length {HUGE}": "--length must be an integer <= 1,0",
    f"{MOLECULES} --limit {HUGE}": "--limit must be an integer <= 9,223,372,036,854,775,807",
    f"{MOLECULES} --length {HUGE}": "--length must be an integer <= 10,000, got 1000",
    f"{TEXT} --limit {HUGE}": "--limit must be an integer <= 9,223,372,036,854,775,807",
    f"{TEXT} --length {HUGE}": "--length must be an integer <= 1,000,000, got 1000",
    f"{TRAIN} --length {HUGE}": "--length must be an integer <= 1,000,000, got 1000",
    f"{TRAIN} --steps {HUGE}": "--steps must be an integer <= 1,000,000,000, got 1000",
    f"{TRAIN} --batch-size {HUGE}": "--batch-size must be an integer <= 1,000,000,000",
}

# An empty path would be the current directory.
EMPTY = {
    "prepare '' --out new": "--corpus is empty",
    "prepare qm9 --out ''": "--out is empty",
    "prepare qm9 --out=": "--out is empty",
    "sample '' --out new.smi": "--model is empty",
    "eval a.smi ''": "--files is empty",
    "eval a.smi --data ''": "--data is empty",
    f"perplexity {MODEL} --data qm9 ''": "--data is empty",
    f"analyze updates {MODEL} --out ''": "--out is empty",
    f"{TRAIN} --data ''": "--data is empty",
}

SAMPLING = {
    "--template c1ccccc1": "no holes",
    f"--template {'C' * 31}*": "room for 30",
    "--template [Si]**": "[Si]",
    "--prompt C --template C*": "mutually exclusive",
    f"--prompt {'C' * 40}": "room for 30",
    "--prompt Hello": "is not a SMILES",
    "--device tpu9": "device must be auto, cpu, cuda",
    "--batch-size -1": "cwdfm: --batch-size must be",
    "--steps 0": "steps must be",
    "--top-p 2": "cwdfm: --top-p must",
    "--corrector nan": "cwdfm: --corrector must have a finite scale",
    "--corrector 1 --corrector-power -1": "--corrector must have a finite scale, a and b >= 0",
    "--corrector-power 1": "--corrector-power must be omitted without a corrector; set --corr",
    "--radius -1 --solver neighbor": "cwdfm: --radius must",
    "--radius 40 --solver neighbor": "--radius below 32/2, or --boundary cut",
    "--reject-below 1.5": "cwdfm: --reject-below must be",
    "--resample 2 --resample-threshold 3": "cwdfm: --resample-threshold must be",
    "--resample 2 --resample-tokens-per-round 0": "--resample-tokens-per-round must",
    "--refine 1 --refine-temperature -1": "cwdfm: --refine-temperature must be",
    "--refine 1 --refine-temperature 1e-9": "cwdfm: --refine-temperature must be",
    f"--refine 1 --refine-steps {HUGE}": "cwdfm: --refine-steps must be an integer <= ",
    f"--refine {HUGE}": "cwdfm: --refine must be an integer <= 1,000,000, got 1000",
    f"--resample {HUGE}": "cwdfm: --resample must be an integer <= 1,000,000, got 1000",
    f"--reject-below 0.9 --max-tries {HUGE}": "cwdfm: --max-tries must be an integer <=",
    "--radius 7": "an option of --solver neighbor, neighbor-counted, neighbor-share, not of euler",
    "--solver entropy --scale 2": "not of entropy; omit it",
    "--solver euler --beta 3": "--solver entropy, entropy-counted, not of euler",
    "--gamma 1": "--gamma is an option of --solver entropy-bound, not of euler",
    "--solver margin --hazard integrated": "--hazard is an option of --solver euler, neigh",
    "--resample-noise-fraction 0.3": "--resample-noise-fraction requires --resample",
    "--resample-threshold 0.2 --refine 1": "--resample-threshold requires --resample",
    "--max-tries 3": "--max-tries requires --reject-below",
    "--solver neighbor-counted --corrector 1": "--corrector is an option of --solver euler, neig",
    "--refine-steps 3 --resample 2": "--refine-steps requires --refine",
}
CASES = GENERAL | SIZES | EMPTY
CASES |= {f"sample {MODEL} --out new.smi {flags}": fact for flags, fact in SAMPLING.items()}


@pytest.mark.parametrize("line", CASES, ids=lambda line: line[-40:])
def test_invalid_input(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("the whale " * 50)
    (tmp_path / "a.smi").write_text("CC\nCO\n")
    (tmp_path / "a.csv").write_text("name,structure\nethane,CC\n")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert CASES[line] in " ".join(rejected(*shlex.split(line)).split())
    assert sorted(tmp_path.iterdir()) == before


def test_empty_prompt_is_valid(tmp_path: Path) -> None:
    line = ["sample", MODEL, "--out", tmp_path / "a.smi", "--n", 2, "--steps", 2, "--prompt", ""]
    succeeded(*line)
