"""Sample files, grouped into sets by model, solver and number of steps.

Files that differ only in the seed form one set. The label of a solver includes the parameters that
differ between files.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from cwdfm.data import SelfiesTokenizer, SmilesTokenizer
from cwdfm.data.molecule_files import SDF
from cwdfm.data.readers import file_type, sha256
from cwdfm.errors import InputError
from cwdfm.sample_file import POSTPROCESS_OPTIONS, SampleFile, read_samples
from cwdfm.solver_config import SOLVERS, SPECIFIC_OPTIONS, option_names

# Options that do not change the distribution of the samples.
_IRRELEVANT = frozenset({"out", "n", "seed", "batch_size", "device", "force"})
TEXT = "text"  # the kind of text files that do not name a tokenizer
_SET_KEYS = frozenset({"model", "solver", "steps"})  # options that identify a set


@dataclass(frozen=True)
class File:
    """A sample file, its path and its checksum."""

    path: Path
    sha256: str
    samples: SampleFile

    @property
    def named(self) -> bool:
        """Whether the header states model, solver and steps."""
        given = self.samples.options
        return given.keys() >= _SET_KEYS and isinstance(given["steps"], int)

    @property
    def kind(self) -> str | None:
        """The tokenizer kind, from the header, or else from suffix and content; None if unknown."""
        if "tokenizer" in self.samples.head:
            kind = str(self.samples.head["tokenizer"])
            return SmilesTokenizer.kind if kind == SelfiesTokenizer.kind else kind
        if file_type(self.path) in (".smi", *SDF):
            return SmilesTokenizer.kind
        return TEXT if _reads_as_text(self.samples.texts) else None

    @property
    def effective_options(self) -> dict[str, Any]:
        """The options that the solver and the postprocessing actually use."""
        given = self.samples.options
        solver = str(given.get("solver"))
        unused = SPECIFIC_OPTIONS - option_names(solver) if solver in SOLVERS else frozenset()
        for enabling, others in POSTPROCESS_OPTIONS.items():
            if not given.get(enabling):
                unused |= {enabling, *others}
        return {name: value for name, value in given.items() if name not in unused}

    @property
    def settings(self) -> dict[str, Any]:
        """The options that affect the samples."""
        options = self.effective_options
        settings = {k: v for k, v in sorted(options.items()) if k not in _IRRELEVANT}
        # The weights in a folder may have changed between two files.
        weights = self.samples.head.get("weights")
        return settings | ({"weights": str(weights)[:8]} if weights else {})

    def to_json(self) -> dict[str, Any]:
        return {
            "file": str(self.path),
            "sha256": self.sha256,
            "samples": len(self.samples.texts),
            "options": self.samples.options,
            "provenance": self.samples.head.get("provenance"),
        }


@dataclass(frozen=True)
class SampleSet:
    """Samples of one model, solver and number of steps, from one or more files."""

    model: str  # the file name for a file without a header
    solver: str | None
    steps: int | None
    files: tuple[File, ...]

    @property
    def texts(self) -> list[str]:
        """The samples of all files."""
        return [text for file in self.files for text in file.samples.texts]

    @property
    def trained_on(self) -> str | None:
        """The training data of the model, from the model card in the file; None if not stated."""
        card = self.files[0].samples.head.get("model")
        return str(card["data"]) if isinstance(card, dict) and "data" in card else None

    @property
    def title(self) -> str:
        """Model, solver and steps."""
        return self.model if self.solver is None else f"{self.model}, {self}"

    def cells(self) -> tuple[str, str]:
        """The first two cells of a table row: solver and steps."""
        return self.solver or "-", str(self.steps or "-")

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model if self.solver else None,
            "solver": self.solver,
            "steps": self.steps,
            "files": [file.to_json() for file in self.files],
        }

    def __str__(self) -> str:
        return self.model if self.solver is None else f"{self.solver}, {self.steps} steps"


def short_titles(sets: Sequence[SampleSet]) -> list[str]:
    """The title of each set, without what all of several sets have in common."""
    if len(sets) < 2 or len({found.model for found in sets}) > 1:
        return [found.title for found in sets]
    if len({found.steps for found in sets}) > 1:
        return [str(found) for found in sets]
    return [str(found.solver) for found in sets]


def gather(paths: Sequence[Path], column: str | None = None) -> list[SampleSet]:
    """Read files and group them into sets, ordered by model, solver and steps.

    column: the column of tables; see `read_samples`.
    """
    files = [_read(path, column) for path in paths]
    _check_distinct(files)
    by_settings: dict[str, list[File]] = {}
    for file in files:
        key = json.dumps(file.settings) if file.named else str(file.path)
        by_settings.setdefault(key, []).append(file)
    named = [file for file in files if file.named]
    names = [path.name for path in paths]
    sets = []
    for first, *others in by_settings.values():
        options, group = first.samples.options, (first, *others)
        if first.named:
            sets.append(
                SampleSet(str(options["model"]), _label(first, named), options["steps"], group)
            )
        else:
            is_unique = names.count(first.path.name) == 1
            name = first.path.name if is_unique else str(first.path)
            sets.append(SampleSet(name, None, None, group))
    models, solvers = [s.model for s in sets], [s.solver for s in sets]
    return sorted(
        sets, key=lambda s: (models.index(s.model), solvers.index(s.solver), s.steps or 0)
    )


def kind_of(sets: Sequence[SampleSet], default: str) -> str:
    """The tokenizer kind shared by all files.

    Files of unknown kind are assumed to match the others; if all are unknown, it is `default`.
    """
    files = [file for found in sets for file in found.files]
    kinds = {kind: file.path for file in files if (kind := file.kind) is not None}
    if len(kinds) > 1 and SmilesTokenizer.kind not in kinds:
        kinds.pop(TEXT, None)
    if len(kinds) > 1:
        kinds_found = ", ".join(f"{path} contains {kind}" for kind, path in kinds.items())
        raise InputError(
            f"samples of different kinds require separate reports: {kinds_found}; evaluate them "
            f"separately"
        )
    return next(iter(kinds), default)


def sampling_notes(sets: Sequence[SampleSet]) -> list[str]:
    """Notes on sampling options that affect how the scores should be read."""
    given = [{k for f in s.files for k, v in f.samples.options.items() if v} for s in sets]
    titles = list(zip(map(str, sets), given, strict=True))
    prompted = [title for title, options in titles if options & {"prompt", "template"}]
    filtered = [title for title, options in titles if "only" in options]
    left_out = "Invalid or repeated samples were left out when the file was written"
    return [
        *note("Scores include the tokens of the prompt or template", prompted, len(sets)),
        *note(left_out, filtered, len(sets)),
    ]


def note(text: str, names: Sequence[str], total: int) -> list[str]:
    """The note "text: names." about some of `total` sets; empty without names."""
    which = "all sets" if len(names) == total > 1 else "; ".join(names)
    return [f"{text}: {which}."] if names else []


@dataclass(frozen=True)
class Scored(ABC):
    """A sample set; subclasses add its scores."""

    samples: SampleSet

    def __str__(self) -> str:
        return self.samples.title

    @abstractmethod
    def estimates(self) -> dict[str, tuple[float, float | None]]:
        """The scores that were computed, with their standard deviations."""


S = TypeVar("S", bound=Scored)


def by_model(scored: Iterable[S]) -> Iterator[tuple[str, list[S], str]]:
    """Yield each model, its sets, and a file name suffix that is unique ignoring case."""
    groups = [(name, list(rows)) for name, rows in groupby(scored, lambda s: s.samples.model)]
    names = [re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") for name, _ in groups]
    ambiguous = len({name.lower() for name in names}) < len(names)
    for i, ((model, rows), name) in enumerate(zip(groups, names, strict=True), start=1):
        suffix = f"-{i}-{name}" if ambiguous else f"-{name}"
        yield model, rows, suffix if len(groups) > 1 else ""


def _reads_as_text(texts: Sequence[str]) -> bool:
    """Whether most texts contain whitespace, which SMILES strings do not."""
    sizes = [len(text.split()) for text in texts if text.strip()]
    return 2 * sum(size > 1 for size in sizes) > len(sizes)


def _read(path: Path, column: str | None) -> File:
    samples = read_samples(path, column)
    return File(path, sha256(path), samples)


def _check_distinct(files: Sequence[File]) -> None:
    """Raise an error if samples would be counted twice."""
    seen: dict[str, Path] = {}
    for file in files:
        seed = file.samples.options.get("seed")
        keys = {file.sha256: "are identical"}
        if file.named:
            keys[json.dumps([file.settings, seed])] = f"have the same seed ({seed}) and settings"
        for key, reason in keys.items():
            if key in seen:
                raise InputError(
                    f"{seen[key]} and {file.path} {reason}, so their samples would count twice; "
                    f"pass only one of them, or sample again with a different seed"
                )
            seen[key] = file.path


def _label(file: File, named: Sequence[File]) -> str:
    """The solver, with its settings that differ between the files."""
    options = file.samples.options
    shown = []
    for key, value in file.settings.items():
        # Compare weights between files of the same model, and solver options within one solver.
        scope = "model" if key == "weights" else "solver" if key in SPECIFIC_OPTIONS else None
        peers = [f for f in named if scope is None or f.samples.options[scope] == options[scope]]
        if key not in _SET_KEYS and len({repr(f.settings.get(key)) for f in peers}) > 1:
            shown.append(f"{key} {_shown(value)}")
    return str(options["solver"]).capitalize() + (f" ({', '.join(shown)})" if shown else "")


def _shown(value: object) -> str:
    """The value of an option, as on the command line."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
