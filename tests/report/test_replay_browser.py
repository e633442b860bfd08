"""The replay page in a real browser, compared with the recording that it plays."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm.data.smiles import SmilesTokenizer
from cwdfm.data.text.tokenizer import CharacterTokenizer
from cwdfm.report.replay import FIT_FRAMES, replay_frame, replay_page
from cwdfm.solver.recording import Recording
from cwdfm.source import Source
from tests.support.browser import new_page, open_browser, watch
from tests.support.recordings import revealed_in_order

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
LETTERS = "abcdefgh"
TOKENIZER = CharacterTokenizer.build([LETTERS])
VOCAB, LENGTH = TOKENIZER.vocab_size, 16


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with open_browser() as found:
        yield found


def record(
    source: Source,
    steps: int,
    *,
    weight: cwdfm.Neighbor | None = None,
    name: str = "run",
    **options: Any,
) -> Recording:
    table = torch.arange((VOCAB + 1) ** 2, dtype=torch.float32).view(VOCAB + 1, -1).sin()
    samples = cwdfm.sample(
        lambda x, t: 2 * table[x.roll(1, 1)][..., : source.num_tokens],
        source,
        cwdfm.Polynomial(2.0),
        cwdfm.Euler(weight=weight),
        shape=(3, LENGTH),
        steps=steps,
        seed=1,
        record=3,
        **options,
    )
    assert samples.recording is not None
    return replace(samples.recording, labels={"tokenizer": TOKENIZER.to_json(), "name": name})


MASKED = record(cwdfm.MaskSource(VOCAB), 12, weight=cwdfm.Neighbor(radius=1), name="masked")
UNIFORM = record(cwdfm.UniformSource(VOCAB), 6, name="uniform")


Opener = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: "Browser", tmp_path: Path) -> Iterator[Opener]:
    """Opens pages that play recordings. They are closed after the test, in which none may fail."""
    opened: list[tuple[Page, list[str]]] = []

    def open_one(*recordings: Recording, html: str | None = None, **context: Any) -> "Page":
        file = tmp_path / f"{len(opened)}.html"
        file.write_text(html or replay_page(recordings))
        page = new_page(browser, **context)
        opened.append((page, watch(page)))
        page.goto(file.as_uri())
        if html is None and context.get("java_script_enabled", True):
            page.wait_for_selector("#app", state="visible")
        return page

    yield open_one
    for page, problems in opened:
        assert not problems
        page.close()


def shown(page: "Page", run: int = 0) -> list[str]:
    """The tokens on the page."""
    spans = page.locator(".tokens").nth(run).locator("span")
    found: list[str] = spans.evaluate_all("spans => spans.map(span => span.textContent)")
    return found


def words(recording: Recording, step: int, sample: int = 0) -> list[str]:
    """The tokens that the page should show."""
    row = recording.at(step)[sample].tolist()
    return ["░" if i == recording.mask_id else TOKENIZER.decode([i]) or "∅" for i in row]


def positions(page: "Page", kind: str, run: int = 0) -> set[int]:
    """The positions of the tokens with a class."""
    spans = page.locator(".tokens").nth(run).locator(f"span.{kind}")
    return {int(i) for i in spans.evaluate_all("spans => spans.map(span => span.dataset.i)")}


@pytest.mark.parametrize("recording", [MASKED, UNIFORM], ids=["mask", "uniform"])
def test_stepping_shows_the_recorded_states(open_page: Opener, recording: Recording) -> None:
    page, steps = open_page(recording), len(recording.times) - 1
    for step in range(1, steps + 1):
        page.keyboard.press("ArrowRight")
        assert shown(page) == words(recording, step)
        own = (recording.move_step == step - 1) & (recording.move_sequence == 0)
        assert positions(page, "moved") == set(recording.move_position[own].tolist())
    for step in range(steps - 1, -1, -1):
        page.click("#back")
        assert shown(page) == words(recording, step)
        if recording.mask_id >= 0:
            waiting = recording.at(step)[0] == recording.mask_id
        else:
            waiting = np.ones(LENGTH, bool)
            moved = (recording.move_step < step) & (recording.move_sequence == 0)
            waiting[recording.move_position[moved]] = False
        assert positions(page, "noise") == set(np.flatnonzero(waiting).tolist())
    page.keyboard.press("End")
    assert shown(page) == words(recording, steps)
    page.locator("#slider").fill("3")
    assert shown(page) == words(recording, 3)
    page.select_option("#sample", index=2)
    expect(page.locator(".tokens > div")).to_have_text("".join(words(recording, 3, sample=2)))
    box = page.locator(".curve").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 5)
    assert shown(page) == words(recording, steps // 2, sample=2)


def test_playing_reaches_the_final_samples_and_can_be_paused(open_page: Opener) -> None:
    page = open_page(MASKED)
    page.select_option("#speed", "60")
    page.keyboard.press("Space")
    expect(page.locator("#slider")).to_have_value("12")
    expect(page.locator("#play")).to_have_text("Play")
    assert shown(page) == words(MASKED, 12)
    page.select_option("#speed", "2")
    page.click("#play")  # from the beginning again
    expect(page.locator("#slider")).to_have_value(re.compile("^[1-9]$"))
    expect(page.locator(".detail")).to_have_attribute("aria-live", "off")
    page.click("#play")
    expect(page.locator(".detail")).to_have_attribute("aria-live", "polite")
    step = int(page.input_value("#slider"))
    assert 0 < step < 12
    page.wait_for_timeout(700)  # longer than a step
    assert int(page.input_value("#slider")) == step


def test_two_recordings_play_together_aligned_by_time(open_page: Opener) -> None:
    page = open_page(MASKED, UNIFORM)
    for step in (1, 4, 7, 12):  # of 12; the other one has 6 steps
        page.locator("#slider").fill(str(step))
        assert shown(page, 0) == words(MASKED, step)
        assert shown(page, 1) == words(UNIFORM, step // 2)
    assert page.locator("h2:visible").all_inner_texts() == ["masked", "uniform"]


def test_colors_follow_weights_and_entropies(open_page: Opener) -> None:
    page = open_page(UNIFORM)
    page.select_option("#color", "alpha")
    assert page.locator(".legend .scale").count() == 0  # its solver has no weight
    page = open_page(MASKED)
    for color, values in (("alpha", MASKED.alphas()[4, 0]), ("entropy", MASKED.entropy[4, 0])):
        page.select_option("#color", color)
        page.locator("#slider").fill("4")
        backgrounds = page.locator(".tokens span").evaluate_all(
            "spans => spans.map(span => span.style.background)"
        )  # rgb(var(--hot) / 0.35), or nothing
        strengths = [float(each.rpartition("/")[2].strip(" )") or 0) for each in backgrounds]
        free = MASKED.at(4)[0] == VOCAB
        assert not np.array(strengths)[~free].any()
        order = np.argsort(values[free], kind="stable")
        assert np.all(np.diff(np.array(strengths)[free][order]) >= 0)
        assert max(strengths) > 0


def test_pointing_at_a_token_shows_when_it_changed_and_its_alternatives(open_page: Opener) -> None:
    page = open_page(MASKED)
    page.keyboard.press("End")
    m = int(np.flatnonzero(MASKED.move_sequence == 0)[0])
    position, step = int(MASKED.move_position[m]), int(MASKED.move_step[m])
    page.locator(".tokens span").nth(position).hover()
    text = page.inner_text(".detail")
    assert str(position) in text
    assert f"step {step + 1}" in text
    for token, p in zip(MASKED.move_alternatives[m], MASKED.move_probabilities[m], strict=True):
        label = TOKENIZER.decode([int(token)])
        assert label in text
        assert f"{100 * p:.{1 if p < 0.1 else 0}f}%" in text
    page.focus(".tokens")
    page.keyboard.press("ArrowDown")
    assert positions(page, "picked") == {(position + 1) % LENGTH}
    assert page.input_value("#slider") == "12"


def test_given_tokens_and_holes_are_marked(open_page: Opener) -> None:
    fixed = torch.zeros(LENGTH, dtype=torch.bool)
    fixed[[0, 1, 2, 9, 10, 15]] = True
    recording = record(
        cwdfm.MaskSource(VOCAB), 4, prompt=torch.zeros(LENGTH, dtype=torch.int64), fixed=fixed
    )
    page = open_page(recording)
    assert positions(page, "prompt") == set(fixed.nonzero().flatten().tolist())
    assert positions(page, "hole") == set((~fixed).nonzero().flatten().tolist())
    page.keyboard.press("End")
    assert positions(page, "hole") == set((~fixed).nonzero().flatten().tolist())


def test_hostile_text_stays_text(open_page: Opener) -> None:
    attack = "</script><img src=x onerror=alert(1)><script>alert(2)</script>{{data}}"
    tokenizer = CharacterTokenizer.build([attack, LETTERS])
    ids = np.array([tokenizer.encode(attack)], np.int32)
    recording = replace(
        MASKED,
        start=ids,
        fixed=np.ones_like(ids, bool),
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.vocab_size,
        **{
            name: getattr(MASKED, name)[:0]
            for name in MASKED.__dataclass_fields__
            if "move" in name
        },
        entropy=np.zeros((12, *ids.shape), np.uint8),
        alpha=np.zeros((12, *ids.shape), np.uint8),
        labels={"tokenizer": tokenizer.to_json(), "name": attack},
    )
    page = open_page(recording)
    assert "".join(shown(page)) == attack
    assert page.inner_text(".run h2") == attack
    page.locator(".tokens span").first.hover()
    assert page.locator("img").count() == 0


def test_without_scripts_the_final_samples_show(open_page: Opener) -> None:
    page = open_page(MASKED, UNIFORM, java_script_enabled=False)
    text = page.inner_text("body")
    for recording in (MASKED, UNIFORM):
        for row in recording.tokens.tolist():
            assert TOKENIZER.decode(row) in text
    assert not page.locator("#app").is_visible()


def test_molecules_are_drawn_once_complete(open_page: Opener) -> None:
    tokenizer = SmilesTokenizer.build(["CCO"])
    row = [tokenizer.bos_id, *tokenizer.encode("CCO"), tokenizer.eos_id, tokenizer.pad_id]
    recording = revealed_in_order(tokenizer, row)
    page = open_page(recording)
    now, last = page.locator(".drawings .box").nth(0), page.locator(".drawings .box").nth(1)
    for step in range(len(row) + 1):
        page.locator("#slider").fill(str(step))
        assert now.locator("svg").count() == int(step >= 5)  # the padding is still masked
        assert last.locator("svg").count() == 1


def test_a_screen_reader_gets_names_and_a_readable_sequence(open_page: Opener) -> None:
    page = open_page(MASKED)
    page.focus(".tokens")
    page.keyboard.press("ArrowDown")
    assert "masked" in page.inner_text(".detail")
    tree = page.locator("body").aria_snapshot()
    for role, name in (("button", "Play"), ("slider", "Step"), ("button", "One step forward")):
        assert f'{role} "{name}"' in tree
    assert f"{LENGTH} masked tokens" in tree
    assert "░" not in tree.replace("░ masked", "").replace('"░"', "").replace(": ░", "")
    page.keyboard.press("ArrowRight")
    live = page.inner_text("#live")
    changed = int(((MASKED.move_step == 0) & (MASKED.move_sequence == 0)).sum())
    assert "step 1 of 12" in live
    assert live.endswith(str(changed))


def test_the_page_fits_a_phone_and_follows_dark_mode(open_page: Opener) -> None:
    paper = set()
    for scheme in ("light", "dark"):
        page = open_page(
            MASKED, UNIFORM, color_scheme=scheme, viewport={"width": 360, "height": 740}
        )
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        paper.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(paper) == 2


def test_frames_are_as_high_as_their_content(open_page: Opener) -> None:
    frames = "".join(replay_frame(replay_page([MASKED] * n)) for n in (1, 2))
    html = f"<!DOCTYPE html><script>{FIT_FRAMES}</script>{frames}"
    page = open_page(html=html, viewport={"width": 360, "height": 740})
    heights = set()
    for handle in page.locator("iframe").element_handles():
        inside = handle.content_frame()
        assert inside is not None
        inside.wait_for_selector("#app", state="visible")
        fits = "() => innerHeight >= document.body.offsetHeight && innerHeight < 1.02 * "
        inside.wait_for_function(f"{fits}document.body.offsetHeight")
        heights.add(inside.evaluate("innerHeight"))
    assert len(heights) == 2  # on a phone, two recordings are one above the other


def test_a_step_of_a_long_text_changes_few_elements(open_page: Opener) -> None:
    """The cost of a frame is measured by experiments/studies/replay_cost.py, not here."""
    page = open_page(long_recording(256, 256))
    counts = page.evaluate(
        """async () => {
          const count = async (k, color) => {
            document.getElementById("color").value = color;
            document.getElementById("color").onchange({ target: { value: color } });
            show(k);
            const seen = [];
            const observer = new MutationObserver(records => seen.push(...records));
            observer.observe(document.querySelector(".tokens > div"),
              { childList: true, attributes: true, characterData: true, subtree: true });
            timer = 0;  // as while playing
            show(k + 1);
            timer = null;
            seen.push(...observer.takeRecords());
            observer.disconnect();
            return seen.length;
          };
          return [await count(125, "state"), await count(125, "entropy")];
        }"""
    )
    state, entropy = counts
    assert 0 < state <= 8  # one token moves per step: its text and class, and the last one's class
    assert entropy <= 2 * 256  # at most color and class of each token


def long_recording(length: int, steps: int) -> Recording:
    """A text of a mask source that reveals one token per step, with varying entropies."""
    rng = np.random.default_rng(0)
    order = rng.permutation(length).astype(np.int32)
    masked = np.argsort(order)[None] >= np.arange(steps)[:, None]
    moves = np.arange(length, dtype=np.int32) * steps // length
    tokens = rng.integers(0, VOCAB, (length, 1)).astype(np.int32)
    return Recording(
        start=np.full((1, length), VOCAB, np.int32),
        fixed=np.zeros((1, length), bool),
        times=np.linspace(0, 1, steps + 1),
        move_step=moves,
        move_sequence=np.zeros(length, np.int32),
        move_position=order,
        move_token=tokens[:, 0],
        move_alternatives=tokens,
        move_probabilities=np.ones((length, 1), np.float16),
        entropy=(rng.integers(1, 256, (steps, 1, length)) * masked[:, None]).astype(np.uint8),
        alpha=(rng.integers(64, 192, (steps, 1, length)) * masked[:, None]).astype(np.uint8),
        vocab_size=VOCAB,
        mask_id=VOCAB,
        labels={"tokenizer": TOKENIZER.to_json(), "name": "long"},
    )
