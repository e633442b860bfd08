"""Corpora on the Hugging Face hub, or the same files in a local folder."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cwdfm.data.dataset import Split
from cwdfm.data.readers import local_data, missing_column, sha256, summarize_error
from cwdfm.data.text.corpus import Corpus, Document, Interrupted
from cwdfm.data.text.files import Unit, as_text, find_files, read_texts
from cwdfm.errors import InputError, load_extra

# File name prefixes of each part in a local folder, in addition to the name of the part on the hub.
_PREFIXES = {"train": ("train",), "valid": ("valid", "dev"), "test": ("test",), "all": ("text8",)}


@dataclass(frozen=True, kw_only=True)
class HubCorpus(Corpus):
    """A dataset on the hub, memory-mapped or streamed, or a local folder with its files.

    The local folder is `folder`, or `$CWDFM_DATA/NAME` if that exists. It must contain files or
    folders `train*`, `valid*` (or `dev*`) and `test*` in a format that `read_texts` supports.
    """

    path: str  # name on the hub
    config: str | None = None
    revision: str | None = None  # None: the latest
    column: str = "text"
    # (our name: train, valid or test; the hub's name)
    parts: tuple[tuple[str, str], ...] = (("train", "train"),)
    held_out: int | None = None  # last documents of `train`, used for validation
    # If set, all rows are joined to one text, and each part is a range of it, in percent.
    ranges: tuple[tuple[str, tuple[int, int]], ...] = ()
    unit: Unit = "file"  # what one row of a local plain text file is
    group: Callable[[Iterable[str]], Iterator[str]] | None = None  # joins rows into documents
    folder: Path | None = None
    streaming: bool = False

    @property
    def part_names(self) -> tuple[str, ...]:
        return tuple(dict(self.ranges or self.parts))

    def documents(self, part: str | None, limit: int | None) -> Iterator[Document]:
        if ranges := dict(self.ranges):
            text = "".join(islice(self._texts("all"), limit)).strip("\n")
            for name in ("train", "valid") if part is None else (part,):
                start, stop = (len(text) * percent // 100 for percent in ranges[name])
                training = part is None and name == "train"
                yield Document(text[start:stop], "train" if training else "valid")
        elif part is not None:
            yield from self._part(part, "valid", limit)
        elif self.held_out is not None:
            cut = self._count() - self.held_out
            if cut <= 0:
                raise InputError(
                    f"{self.name} has only {cut + self.held_out:,} documents here, but its last "
                    f"{self.held_out:,} are held out for validation; provide the complete corpus, "
                    f"or load these files by their path"
                )
            yield from self._part("train", "train", cut if limit is None else min(cut, limit))
            yield from self._part("train", "valid", limit, start=cut)
        elif "valid" in self.part_names:
            yield from self._part("train", "train", limit)
            yield from self._part("valid", "valid", limit)
        else:
            yield from self._part("train", None, limit)

    def origin(self) -> dict[str, Any]:
        common = {"column": self.column, "detokenizer": self.detokenizer}
        if (folder := self._folder()) is not None:
            files = {str(file.relative_to(folder)): sha256(file) for file in find_files(folder)}
            return {"folder": folder.name, "sha256": files, **common}
        builder = self._call("load_dataset_builder")
        hub = {"hub": self.path, "config": self.config, "revision": self.revision}
        return {**hub, "hash": builder.hash, "version": str(builder.info.version), **common}

    def _part(
        self, part: str, split: Split | None, limit: int | None, start: int = 0
    ) -> Iterator[Document]:
        """Yield at most `limit` documents of a part, skipping the first `start`."""
        return (Document(text, split) for text in islice(self._texts(part, start), limit))

    def _texts(self, part: str, start: int = 0) -> Iterator[str]:
        if self.group is None:
            return self._rows(part, start)
        return islice(self.group(self._rows(part)), start, None)

    def _rows(self, part: str, start: int = 0) -> Iterator[str]:
        if (files := self._files(part)) is not None:
            texts = (text for file in files for text in read_texts(file, self.column, self.unit))
            yield from islice(texts, start, None)
            return
        rows = self._call("load_dataset", split=dict(self.parts)[part], streaming=self.streaming)
        if rows.column_names is not None and self.column not in rows.column_names:
            raise missing_column(self.path, self.column, rows.column_names)
        number = start
        try:
            for row in rows.select_columns([self.column]).skip(start):
                number += 1
                yield as_text(row[self.column], self.column, f"{self.path}, {part}, row {number}")
        except InputError:
            raise
        except Exception as error:  # streaming raises many types
            raise Interrupted(
                f"reading {self.path} from the hub failed after row {number:,} "
                f"({summarize_error(error)}); run the same call again to resume from there"
            ) from error

    def _count(self) -> int:
        """The number of training documents."""
        if self._folder() is None:
            info = self._call("load_dataset_builder").info.splits
            if info and (count := info[dict(self.parts)["train"]].num_examples):
                return int(count)
        return sum(1 for _ in self._texts("train"))

    def _folder(self) -> Path | None:
        if self.folder is not None and not self.folder.is_dir():
            raise InputError(
                f"{self.folder} is not a folder; pass a folder that contains {self.name}"
            )
        return self.folder or local_data(self.name)

    def _files(self, part: str) -> list[Path] | None:
        if (folder := self._folder()) is None:
            return None
        files = find_files(folder)
        prefixes = (*_PREFIXES[part], dict(self.parts)[part])
        matching = [f for f in files if f.relative_to(folder).parts[0].lower().startswith(prefixes)]
        if not matching and len(self.parts) == 1:
            return files
        if not matching:
            raise InputError(
                f"{folder} has no files for the part {part!r} of {self.name}: their names start "
                f"with {' or '.join(dict.fromkeys(prefixes))}; add them, or load another part with "
                f"part='test' or part='valid'",
                fields=("part",),
            )
        return matching

    def _call(self, function: str, **options: Any) -> Any:
        """Call a function of the datasets library for this dataset."""
        call = getattr(load_extra("datasets", "text"), function)
        try:
            return call(self.path, self.config, revision=self.revision, **options)
        except Exception as error:  # many types: no network, unknown name, unknown part
            files = ", ".join(f"{_PREFIXES[part][0]}.*" for part, _ in self.parts)
            raise InputError(
                f"cannot load {self.name} ({self.path}) from the hub ({summarize_error(error)}); "
                f"without access to the hub, put the files {files} (.parquet, .jsonl or .txt, also "
                f"compressed) into a folder {self.name}, and set CWDFM_DATA to its parent folder, "
                f"or pass the folder itself with folder=",
                fields=("folder",),
            ) from error
