"""The first part of the demo's report: replays, text and drug-like molecules."""

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from cwdfm.cli.options import arguments_of
from cwdfm.cli.sample_options import Options as Sampling
from cwdfm.cli.sample_options import recording_file, settings
from cwdfm.metrics.molecule import score_molecules
from cwdfm.report.molecule_table import median_table
from cwdfm.report.molecules import grid
from cwdfm.report.page import figure, quotes
from cwdfm.report.replay import FIT_FRAMES, replay_frame, replay_page
from cwdfm.sample_file import read_samples
from cwdfm.solver.recording import Recording

PROPERTIES = ("weight", "logP", "QED")  # of which the report shows the medians


def lead(
    texts: Sequence[Sampling], molecules: Sequence[Sampling], drug_like: Sampling, folder: Path
) -> str:
    """The part of the report above the table. The jobs with a recording are replayed.

    The image of the drug-like molecules is written to `folder`.
    """
    recorded = {
        title: [job for job in jobs if job.record]
        for title, jobs in (("A sentence with two holes", texts), ("Molecules", molecules))
    }
    sections = (replays(recorded), text(texts), drug_like_molecules(drug_like, molecules, folder))
    return "\n".join((*sections, "<h2>Small molecules</h2>"))


def replays(titled: Mapping[str, Sequence[Sampling]]) -> str:
    """Replays of recorded jobs, with those under one title side by side."""
    frames = []
    for title, jobs in titled.items():
        recordings = [Recording.load(recording_file(job.out)) for job in jobs]
        frames.append(replay_frame(replay_page(recordings, title), title))
    solvers = dict.fromkeys(job.solver.capitalize() for jobs in titled.values() for job in jobs)
    return (
        f"<h2>Every step of a generation</h2>\n<p>{' and '.join(solvers)} with the same seed. "
        f"Press Play, or point at a token.</p>\n<script>{FIT_FRAMES}</script>\n{''.join(frames)}\n"
    )


def text(jobs: Sequence[Sampling]) -> str:
    """All sentences, by solver."""
    parts = [f"<h2>Text</h2>\n<p>{jobs[0].model} fills the holes in a sentence.</p>\n"]
    for job in jobs:
        title, quoted = escape(job.solver.capitalize()), quotes(read_samples(job.out).texts)
        parts.append(f"<h3>{title}</h3>\n{command(job)}{quoted}")
    return "".join(parts)


def drug_like_molecules(job: Sampling, small: Sequence[Sampling], folder: Path) -> str:
    """Drawings of the samples of `job`, and their properties next to those of small molecules."""
    samples = read_samples(job.out).texts
    scores = score_molecules(samples, None, fold_size=job.n)
    drawings = ""
    if sum(scores.valid.counts):
        path = folder / f"molecules-{job.model}.png"
        title = f"{job.model}, {job.solver.capitalize()}, {job.steps} steps"
        drawings = figure(grid(title, samples, path, limit=job.n), folder)
    sets: dict[str, list[str]] = {job.model: list(samples)}
    for other in small:
        sets.setdefault(other.model, []).extend(read_samples(other.out).texts)
    return (
        f"<h2>Drug-like molecules</h2>\n{command(job)}\n"
        f"<p>{scores.valid} of {job.n} samples are valid, with {scores.unique} distinct molecules. "
        f"The table compares medians over valid samples with those of the QM9 models. QED measures "
        f"drug-likeness from 0 to 1.</p>\n"
        f'<div class="scroll">{median_table(sets, PROPERTIES).html()}</div>\n{drawings}'
    )


def command(job: Sampling) -> str:
    """The `cwdfm sample` command that draws the same samples, as HTML."""
    plain = Sampling(model=job.model, out=job.out, solver_options=type(job.solver_options)())
    defaults = settings(plain)
    values = {"solver": job.solver, "steps": job.steps, "n": job.n}
    values |= {name: v for name, v in settings(job).items() if v != defaults.get(name)}
    words = ["cwdfm", "sample", job.model, *arguments_of(values | {"out": job.out.name})]
    return f"<p><code>{escape(shlex.join(words))}</code></p>"
