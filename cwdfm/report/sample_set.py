"""Files of samples, put in order: which model, which solver, how many steps.

Files of the same settings and different seeds are one set; a solver is named with those of its
parameters that differ between the files at hand.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cwdfm.data import SmilesTokenizer
from cwdfm.errors import InputError
from cwdfm.sample_file import SampleFile, read_samples
from cwdfm.solver_config import READ_BY_SOME, READS

# Options that do not change what is drawn, or that make more of the same.
_ASIDE = frozenset({"out", "n", "seed", "batch_size", "device", "force"})
_GIVEN = ("prompt", "template")
_REWORK = ("refine", "mend", "accept")  # options that say whether; those that begin so say how
TEXT = "text"  # the kind of texts whose files name no tokenizer
_PLACE = frozenset({"model", "solver", "steps"})  # what a set is found under


@dataclass(frozen=True)
class File:
    """A file of samples as it was read."""

    path: Path
    sha256: str
    samples: SampleFile

    @property
    def named(self) -> bool:
        """Whether its head says where the samples belong among others."""
        given = self.samples.options
        return given.keys() >= _PLACE and isinstance(given["steps"], int)

    @property
    def kind(self) -> str | None:
        """Of the tokenizer, by the head or else by ending and content; None if they do not say."""
        if "tokenizer" in self.samples.head:
            return str(self.samples.head["tokenizer"])
        if self.path.suffix == ".smi":
            return SmilesTokenizer.kind
        return TEXT if _reads_as_text(self.samples.texts) else None

    @property
    def settings(self) -> dict[str, Any]:
        """The options that matter to what was drawn: without those that lie idle."""
        given = self.samples.options
        idle = READ_BY_SOME - set(READS.get(str(given.get("solver")), READ_BY_SOME))
        for name in _REWORK:
            if not given.get(name):
                idle |= {key for key in given if key.split("_")[0] == name}
        found = {k: v for k, v in sorted(given.items()) if k not in _ASIDE | idle}
        # A folder may hold other weights by now than when it was sampled before.
        weights = self.samples.head.get("weights")
        return found | ({"weights": str(weights)[:8]} if weights else {})

    def to_json(self) -> dict[str, Any]:
        """Name, checksum and origin."""
        return {
            "file": str(self.path),
            "sha256": self.sha256,
            "samples": len(self.samples.texts),
            "options": self.samples.options,
            "provenance": self.samples.head.get("provenance"),
        }


@dataclass(frozen=True)
class SampleSet:
    """Samples of one model, solver and number of steps, from one file or several."""

    model: str  # of a file without a head, its name
    solver: str | None
    steps: int | None
    files: tuple[File, ...]

    @property
    def texts(self) -> list[str]:
        """All samples, file after file."""
        return [text for file in self.files for text in file.samples.texts]

    @property
    def trained_on(self) -> str | None:
        """The data of the model by the card in the files; None where it does not say."""
        card = self.files[0].samples.head.get("model")
        return str(card["data"]) if isinstance(card, dict) and "data" in card else None

    def to_json(self) -> dict[str, Any]:
        """Where the samples belong, and their files."""
        return {
            "model": self.model if self.solver else None,
            "solver": self.solver,
            "steps": self.steps,
            "files": [file.to_json() for file in self.files],
        }

    def __str__(self) -> str:
        return self.model if self.solver is None else f"{self.solver}, {self.steps} steps"


def gather(paths: Sequence[Path]) -> list[SampleSet]:
    """Read the files and sort them into sets: models as they come, solvers, then steps."""
    files = [_read(path) for path in paths]
    _check_once(files)
    together: dict[str, list[File]] = {}
    for file in files:
        key = json.dumps(file.settings) if file.named else str(file.path)
        together.setdefault(key, []).append(file)
    named = [file for file in files if file.named]
    names = [path.name for path in paths]
    sets = []
    for group in together.values():
        first = group[0]
        if first.named:
            given = first.samples.options
            label = _label(first, named)
            sets.append(SampleSet(str(given["model"]), label, given["steps"], tuple(group)))
        else:
            alone = names.count(first.path.name) == 1
            name = first.path.name if alone else str(first.path)
            sets.append(SampleSet(name, None, None, tuple(group)))
    models = list(dict.fromkeys(s.model for s in sets))
    solvers = list(dict.fromkeys(s.solver for s in sets))
    return sorted(
        sets, key=lambda s: (models.index(s.model), solvers.index(s.solver), s.steps or 0)
    )


def kind_of(sets: Sequence[SampleSet], unsaid: str) -> str:
    """What the samples are, by their tokenizer.

    A file that does not say is what the others are; `unsaid` where none does.
    """
    files = [file for found in sets for file in found.files]
    kinds = {kind: file.path for file in files if (kind := file.kind) is not None}
    if len(kinds) > 1 and SmilesTokenizer.kind not in kinds:
        kinds.pop(TEXT, None)
    if len(kinds) > 1:
        told = ", ".join(f"{path} holds {kind}" for kind, path in kinds.items())
        raise InputError(f"samples of different kinds need reports of their own: {told}")
    return next(iter(kinds), unsaid)


def given_tokens(sets: Sequence[SampleSet]) -> list[str]:
    """What to say of samples that were not drawn whole: nothing, or a note."""
    begun = [
        str(found)
        for found in sets
        if any(file.samples.options.get(name) for file in found.files for name in _GIVEN)
    ]
    if not begun:
        return []
    which = "all sets" if len(begun) == len(sets) > 1 else "; ".join(begun)
    return [f"Given tokens (prompt or template) are counted in, as if drawn: {which}."]


def _reads_as_text(texts: Sequence[str]) -> bool:
    """Whether most of them hold blanks, which a SMILES never does."""
    sizes = [len(text.split()) for text in texts if text.strip()]
    return 2 * sum(size > 1 for size in sizes) > len(sizes)


def _read(path: Path) -> File:
    samples = read_samples(path)
    return File(path, hashlib.sha256(path.read_bytes()).hexdigest(), samples)


def _check_once(files: Sequence[File]) -> None:
    """Refuse samples that would be counted twice."""
    seen: dict[object, Path] = {}
    for file in files:
        keys: list[object] = [file.sha256]
        if file.named:
            keys.append(json.dumps([file.settings, file.samples.options.get("seed")]))
        for key in keys:
            if key in seen:
                seed = file.samples.options.get("seed")
                one = f"have one seed ({seed}) and the same settings"
                what = "are the same" if key == file.sha256 else one
                raise InputError(
                    f"{seen[key]} and {file.path} {what}, so their samples would count twice; give "
                    f"one of them, or sample again with another --seed"
                )
            seen[key] = file.path


def _label(file: File, named: Sequence[File]) -> str:
    """The solver, with the settings by which it differs from others in the company."""
    own = file.samples.options
    shown = []
    for key, value in file.settings.items():
        # Weights tell files of one model apart, and a solver's own settings files of that solver.
        alike = "model" if key == "weights" else "solver" if key in READ_BY_SOME else None
        among = [f for f in named if alike is None or f.samples.options[alike] == own[alike]]
        if key not in _PLACE and len({repr(f.settings.get(key)) for f in among}) > 1:
            shown.append(f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}")
    return str(own["solver"]).capitalize() + (f" ({', '.join(shown)})" if shown else "")
