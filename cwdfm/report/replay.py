"""Render recordings as a self-contained HTML page that plays the generation step by step."""

import base64
import gzip
import json
import math
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cwdfm.data.smiles import SmilesTokenizer, parse, rdkit
from cwdfm.data.tokenizer import Tokenizer, tokenizer_from_json
from cwdfm.errors import InputError, NotInstalled
from cwdfm.solver.recording import Recording

MASK_LABEL = "\u2591"  # a light shade block
PAD_LABEL = "\u00b7"
MAX_LABEL = 40  # maximum characters shown of a token
# JavaScript for a page with frames of `replay_frame`: fits their height to their content.
FIT_FRAMES = """window.addEventListener("message", event => {
  const height = Number(event.data && event.data.height);
  for (const frame of document.querySelectorAll("iframe.replay"))
    if (frame.contentWindow === event.source && height > 0)
      frame.style.height = Math.min(height + 2, 5000) + "px";
});"""
MAX_CELLS = 2**25  # maximum steps x sequences x tokens of a page, at two bytes each


def replay_page(recordings: Sequence[Recording], title: str = "Replay") -> str:
    """Render the page for one recording, or for several side by side."""
    if not recordings:
        raise InputError("a replay requires at least one recording, got none")
    if (cells := sum(recording.entropy.size for recording in recordings)) > MAX_CELLS:
        raise InputError(
            f"the recordings have {cells:,} steps x sequences x tokens, but a page can hold "
            f"{MAX_CELLS:,}; record fewer sequences or steps, or pass fewer recordings"
        )
    runs = [_run(recording) for recording in recordings]
    finals = "".join(
        f"<h2>{escape(run['name'])}</h2>"
        + "".join(f'<p class="final">{escape(sample["text"])}</p>' for sample in run["samples"])
        for run in runs
    )
    # Escape "<" inside the script element, since a token could otherwise close it.
    data = json.dumps({"runs": runs}, ensure_ascii=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    parts = {"title": escape(title), "finals": finals, "data": data}
    template = files("cwdfm.report").joinpath("replay.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(title|finals|data)\}\}", lambda match: parts[match[1]], template)


def replay_frame(page: str, title: str = "Replay") -> str:
    """An iframe that embeds a page of `replay_page` into another page."""
    style = "width: 100%; height: 42rem; border: 1px solid #8884; border-radius: 8px"
    return (
        f'<iframe class="replay" title="{escape(title)}" sandbox="allow-scripts" style="{style}" '
        f'srcdoc="{escape(page)}"></iframe>'
    )


def _run(recording: Recording) -> dict[str, Any]:
    """The data of one recording for the page's script."""
    name = str(recording.labels.get("name", "recording"))
    try:
        return {"name": name} | _contents(recording)
    except NotInstalled:
        raise
    except InputError as error:  # of the stored tokenizer
        raise InputError(f"the recording {name!r} cannot be shown: {error}") from error


def _contents(recording: Recording) -> dict[str, Any]:
    stored = recording.labels.get("tokenizer")  # None for samples of a plain network
    tokenizer = None if stored is None else tokenizer_from_json(stored)
    drawings: dict[str, int] = {}  # SVG drawings and their indices
    special: set[int] = set()
    if isinstance(tokenizer, SmilesTokenizer):
        special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}
    used = np.unique(
        np.concatenate(
            [recording.start.ravel(), recording.move_token, recording.move_alternatives.ravel()]
        )
    )
    return {
        "steps": len(recording.times) - 1,
        "times": recording.times.tolist(),
        "mask": recording.mask_id,
        "nats": math.log(max(2, recording.vocab_size)),
        "pads": sorted(special),
        "words": {int(i): _label(int(i), tokenizer, recording.mask_id, special) for i in used},
        "samples": [
            _sequence(recording, r, tokenizer, drawings) for r in range(len(recording.start))
        ],
        "drawings": list(drawings),
    }


def _sequence(
    recording: Recording, r: int, tokenizer: Tokenizer | None, drawings: dict[str, int]
) -> dict[str, Any]:
    indices = np.flatnonzero(recording.move_sequence == r)
    moves = [
        [
            int(recording.move_step[m]),
            int(recording.move_position[m]),
            int(recording.move_token[m]),
            recording.move_alternatives[m].tolist(),
            [round(float(p), 4) for p in recording.move_probabilities[m]],
        ]
        for m in indices
    ]
    final = recording.tokens[r].tolist()
    sequence = {
        "start": recording.start[r].tolist(),
        "fixed": recording.fixed[r].astype(int).tolist(),
        "moves": moves,
        "entropy": _pack(recording.entropy[:, r]),
        "alpha": _pack(recording.alpha[:, r]),
        "text": " ".join(map(str, final)) if tokenizer is None else tokenizer.decode(final),
    }
    if isinstance(tokenizer, SmilesTokenizer):
        sequence["drawing"] = _drawing_of_steps(recording, r, tokenizer, drawings)
    return sequence


def _drawing_of_steps(
    recording: Recording, r: int, tokenizer: SmilesTokenizer, drawings: dict[str, int]
) -> list[int]:
    """The index of the drawing after 0..S steps: -1 if invalid, -2 while tokens are masked.

    New drawings are added to `drawings`.
    """
    indices, index = [], -1
    changed = set(recording.move_step[recording.move_sequence == r].tolist())
    for step in range(len(recording.times)):
        if step == 0 or step - 1 in changed:
            row = recording.at(step)[r].tolist()
            if tokenizer.eos_id in row:
                row = row[: row.index(tokenizer.eos_id)]
            if recording.mask_id in row:
                index = -2
            else:
                svg = _svg(tokenizer.decode(row))
                index = -1 if svg is None else drawings.setdefault(svg, len(drawings))
        indices.append(index)
    return indices


def _label(token: int, tokenizer: Tokenizer | None, mask_id: int, special: set[int]) -> str:
    if token == mask_id:
        return MASK_LABEL
    if token in special:
        return PAD_LABEL
    if tokenizer is None:
        return f"{token} "
    label = tokenizer.decode([token])[:MAX_LABEL]
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in label) or "\u2205"


def _pack(values: NDArray[np.uint8]) -> str:
    return base64.b64encode(
        gzip.compress(np.ascontiguousarray(values).tobytes(), 6, mtime=0)
    ).decode()


@cache
def _svg(smiles: str) -> str | None:
    """An SVG drawing, or None if the string is not a valid molecule."""
    if (molecule := parse(smiles)) is None:
        return None
    draw = rdkit("Chem.Draw.rdMolDraw2D")
    drawer = draw.MolDraw2DSVG(240, 180)
    drawer.drawOptions().clearBackground = False
    draw.PrepareAndDrawMolecule(drawer, molecule)
    drawer.FinishDrawing()
    svg: str = drawer.GetDrawingText()
    return svg[svg.index("<svg") :]
