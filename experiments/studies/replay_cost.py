"""Cost of a step of the replay page, and the size of a recording, for 1,024 tokens and steps.

    python -m experiments.studies.replay_cost --out replay_cost.json

Two recordings play side by side in chromium. The cost of a step is the CPU time of the page's main
thread (scripts, style, layout and painting), which is independent of other programs. A 60 Hz
display allows 16.7 ms.
"""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Page, sync_playwright

import cwdfm
from cwdfm.data.text.tokenizer import CharacterTokenizer
from cwdfm.report.replay import replay_page
from cwdfm.solver.recording import Recording
from experiments.studies.command import save, study_parser

LENGTH = STEPS = 1024
LETTERS = "".join(map(chr, range(0x4E00, 0x4E00 + 200)))
MEASURED = 200  # steps
PLAY = """async ([color, first, count]) => {
  document.getElementById("color").value = color;
  document.getElementById("color").onchange({ target: { value: color } });
  timer = 0;  // as while playing
  for (let k = first; k < first + count; k++) { show(k); await new Promise(requestAnimationFrame); }
  timer = null;
}"""


def record(weight: cwdfm.Weight | None) -> Recording:
    """Record a generation of a model with random weights."""
    tokenizer = CharacterTokenizer.build([LETTERS])
    size = tokenizer.vocab_size
    table = 3 * torch.randn(size + 1, size + 1, generator=torch.manual_seed(0))
    samples = cwdfm.sample(
        lambda x, t: table[x.roll(1, 1)],
        cwdfm.MaskSource(size),
        cwdfm.Polynomial(2.0),
        cwdfm.Euler(weight),
        shape=(1, LENGTH),
        steps=STEPS,
        record=1,
    )
    assert samples.recording is not None
    return replace(
        samples.recording, labels={"tokenizer": tokenizer.to_json(), "name": str(weight)}
    )


def cost(page: Page, color: str) -> dict[str, float]:
    """Milliseconds of CPU time per step, by kind of work."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def read() -> dict[str, float]:
        found: list[dict[str, Any]] = session.send("Performance.getMetrics")["metrics"]
        return {each["name"]: each["value"] for each in found}

    page.evaluate(PLAY, [color, 300, 20])  # warm up
    before = read()
    page.evaluate(PLAY, [color, 320, MEASURED])
    after = read()
    kinds = ("TaskDuration", "ScriptDuration", "RecalcStyleDuration", "LayoutDuration")
    return {kind: 1000 * (after[kind] - before[kind]) / MEASURED for kind in kinds}


def main() -> None:
    parser = study_parser(__doc__)
    parser.add_argument("--browser", default=shutil.which("chromium") or "chromium")
    options = parser.parse_args()
    recordings = [record(None), record(cwdfm.Neighbor(radius=1, scale=4.0))]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        recordings[1].save(Path(folder, "a.npz"))
        file = Path(folder, "replay.html")
        file.write_text(replay_page(recordings), encoding="utf-8")
        browser = playwright.chromium.launch(
            executable_path=options.browser, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(file.as_uri())
        page.wait_for_selector("#app", state="visible")
        result = {
            "config": {"tokens": LENGTH, "steps": STEPS, "recordings": 2, "measured": MEASURED},
            "browser": browser.version,
            "recording_bytes": Path(folder, "a.npz").stat().st_size,
            "page_bytes": file.stat().st_size,
            "milliseconds_per_step": {
                each: cost(page, each) for each in ("state", "alpha", "entropy")
            },
        }
        browser.close()
    save(options.out, **result)
    print(result)


if __name__ == "__main__":
    main()
