"""`cwdfm replay FILE ... --out replay.html`: write a page that plays recorded generations."""

from dataclasses import dataclass
from pathlib import Path

from cwdfm.cli.options import by_flags, parse, positional_first
from cwdfm.distributed import output_file
from cwdfm.errors import InputError
from cwdfm.files import check_output_file, replacing, write_errors
from cwdfm.report.replay import replay_page
from cwdfm.solver.recording import Recording

MAX_FILES = 4  # recordings that fit side by side


@dataclass(frozen=True)
class Options:
    """Write a self-contained HTML page that plays recordings made by `cwdfm sample --record`.

    Several recordings play side by side, for example two solvers with the same seed.
    """

    files: tuple[Path, ...]  # FILE ... (positional): recordings (.npz)
    # Output file; default: the name of the first recording with the suffix .html.
    out: Path | None = None
    title: str | None = None  # title of the page; default: the names of the recordings
    force: bool = False  # overwrite the output file


def main(arguments: list[str]) -> None:
    """Run the command."""
    argv = positional_first("files", arguments)
    options = parse("replay FILE [FILE ...]", argv, lambda missing: Options(missing))
    if not 1 <= len(options.files) <= MAX_FILES:
        raise InputError(
            f"got {len(options.files)} recordings; pass 1 to {MAX_FILES} files written by "
            f"`cwdfm sample ... --record`"
        )
    first = options.files[0]
    out = options.out or first.with_suffix("").with_suffix(".html")
    with by_flags(Options):
        check_output_file(out, force=options.force)
    with by_flags(Options), output_file(out, force=options.force):
        recordings = [Recording.load(path) for path in options.files]
        title = options.title or " and ".join(path.name.split(".")[0] for path in options.files)
        page = replay_page(recordings, title)
        with write_errors(out), replacing(out) as temporary:
            temporary.write_text(page, encoding="utf-8", errors="replace")  # labels may be any JSON
    print(f"written: {out}")
