"""The app: what its form means, and the page in a real browser."""

import contextlib
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from cwdfm.cli import app, sample
from cwdfm.cli.app_form import Form, run, solver_settings
from cwdfm.errors import InputError
from cwdfm.solver_config import SOLVERS
from tests.support.browser import new_page, open_browser, watch
from tests.support.cases import slow

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.mark.parametrize(
    "form",
    [
        Form("qm9-mask-small", "neighbor", (("radius", 2), ("temperature", 0.8)), steps=6, n=3),
        slow(Form("qm9-mask-small", "entropy", steps=6, n=2, seed=5, template="c1ccccc1[3]")),
        Form("qm9-uniform-small", steps=6, n=3, prompt="CC"),
        slow(Form("qm9-uniform-small", "euler", steps=6, n=2, scaffold="C1CC(*)1")),
        Form("novels-small", "confidence", steps=3, n=1, template="-- '[3]' \"$HOME\" [2]."),
    ],
    ids=lambda form: f"{form.model}-{form.solver}",
)
def test_the_command_and_the_code_give_the_same_samples(form: Form, tmp_path: Path) -> None:
    done: list[float] = []
    result = run([form], tmp_path, "cpu", done.append)
    texts = [row[1] for row in result.rows]
    assert done == sorted(done)
    assert done[-1] == 1
    command, replay = result.command.splitlines()
    words = shlex.split(command)
    assert words[:2] == ["cwdfm", "sample"]
    with contextlib.chdir(tmp_path):
        sample.main([*words[2:], "--force"])
    lines = Path(result.files[0]).read_text().splitlines()[1:]
    assert [json.loads(line)["text"] for line in lines] == texts
    assert (tmp_path / shlex.split(replay)[2]).exists()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(result.code, {})
    assert printed.getvalue() == "\n".join(texts) + "\n"


@pytest.mark.parametrize(
    ("model", "solver"),
    [
        ("qm9-mask-small", "entropy"),
        slow("qm9-uniform-small", "euler"),
        slow("qm9-mask-small", "euler"),
        slow("qm9-mask-small", "neighbor"),
        slow("qm9-uniform-small", "neighbor"),
        slow("qm9-uniform-small", "entropy"),
    ],
)
def test_a_budget_of_evaluations_is_used_but_not_exceeded(
    model: str, solver: str, tmp_path: Path
) -> None:
    form = Form(model, solver, steps=8, evaluations=True, n=32)
    result = run([form], tmp_path, "cpu", lambda _: None)
    mean = sum(row[2] for row in result.rows) / 32
    assert 7 <= mean <= 8.5  # the steps are chosen with 16 other samples
    assert int(shlex.split(result.command.splitlines()[0])[6]) >= 8


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (Form("missing/model"), "missing/model"),
        (Form("", steps=2), "empty"),
        (Form("-h"), "-h"),
        (Form("qm9-mask-small", n=10**6), "n must"),
        (Form("qm9-mask-small", steps=10**6), "steps must"),
        (Form("qm9-mask-small", template="CC"), "holes"),
        (Form("qm9-mask-small", prompt="C", template="C[2]"), "exclusive"),
        (Form("qm9-mask-small", scaffold="C1CC"), "C1CC"),
        (Form("qm9-mask-small", template="C[2]", scaffold="C1CC1"), "scaffold"),
        (Form("qm9-mask-small", scaffold="C1CC1", evaluations=True), "steps"),
        (Form("qm9-uniform-small", "confidence", steps=2), "UniformSource"),
        (Form("qm9-mask-small", "neighbor", (("radius", -1),)), "radius"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_input_is_an_error(form: Form, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        run([form], tmp_path, "cpu", lambda _: None)


def test_settings_are_compared_with_the_defaults_of_the_solver() -> None:
    """Remask and path planning have different defaults of eta."""
    values = {"model": "m", "steps": 4, "n": 1, "seed": 0, "budget": "steps"}
    values |= {"prompt": "", "template": "", "scaffold": "", "temperature": 1.0, "top_p": None}
    values |= {name: None for solver in SOLVERS for name in solver_settings(solver)}
    values |= {"solver": "remask", "other": "path-planning"}
    for eta, changed in ((0.02, ()), (1.0, (("eta", 1.0),))):
        forms = app.forms_of(values | {"eta": eta})
        assert [form.solver for form in forms] == ["remask", "path-planning"]
        assert [form.settings for form in forms] == [changed, changed]


def test_solver_settings_are_explained() -> None:
    for solver in SOLVERS:
        assert all(setting.help for setting in solver_settings(solver).values())
    neighbor = solver_settings("neighbor")  # a comment behind the field, and one above it
    assert neighbor["radius"].help.endswith("in tokens")
    assert neighbor["corrector_beta"].help.startswith("The corrector's strength")
    assert "entropy" in neighbor["corrector_beta"].help


@pytest.mark.parametrize("error", [KeyError, RuntimeError, SystemExit, InputError])
def test_every_error_is_shown(error: type[BaseException]) -> None:
    with pytest.raises(Shown, match="&lt;weights&gt;") as caught, app.shown_errors(Shown):
        raise error("<weights>")
    assert (error.__name__ in str(caught.value)) == (error is not InputError)


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"{port}.*--port"):
            app.main(["--port", str(port), "--no-open"])
    assert app.free_port("127.0.0.1", port) == port
    assert app.free_port("127.0.0.1", 0) > 0
    with pytest.raises(InputError, match=r"--port.*65,535"):
        app.main(["--port", "99999", "--no-open"])
    with pytest.raises(InputError, match="no-such-host"):
        app.free_port("no-such-host.invalid", 7860)


def test_only_this_machine_is_served_by_default() -> None:
    assert app.Options().host == "127.0.0.1"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The app, as a user starts it."""
    pytest.importorskip("gradio")
    command = [sys.executable, "-u", "-m", "cwdfm", "app", "--no-open", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ)
    ) as server:
        assert server.stdout is not None
        found = None
        for line in server.stdout:
            if (found := re.search(r"http://\S+", line)) is not None:
                break
        assert found is not None, "the app did not start"
        yield found[0]
        server.terminate()
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with open_browser() as found:
        yield found


def fill(page: "Page", **fields: str) -> None:
    from playwright.sync_api import expect

    labels = {"model": "Model", "solver": "Solver", "template": "Template", "prompt": "Prompt"}
    for name, value in fields.items():
        box = page.get_by_label(labels.get(name, name), exact=name in ("model", "solver"))
        box.fill(value)
        box.press("Enter" if name in ("model", "solver") else "Tab")
        if name == "model":  # which sets the template, before a test enters another one
            example = app.TEMPLATES.get(value, "")
            expect(page.get_by_label("Template")).to_have_value(example)


class Part:
    """Any component of gradio: its value and its label, and what a click calls."""

    clicks: ClassVar[list[tuple[Callable[..., list[Any]], list["Part"]]]] = []

    def __init__(self, *given: Any, label: str = "", **options: Any) -> None:
        self.value = options.get("value", given[0] if given else "")
        self.label = label

    def __enter__(self) -> "Part":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, share: float) -> None:
        """Progress."""

    def click(
        self, call: Callable[..., list[Any]], inputs: list["Part"], *_: Any, **__: Any
    ) -> None:
        self.clicks.append((call, inputs))

    def change(self, *_: Any, **__: Any) -> None:
        """Another event."""

    load = change


class Shown(Exception):
    """An error that the page displays."""

    def __init__(self, text: str, **_: object) -> None:
        super().__init__(text)


class Parts:
    """The module gradio, which takes seconds to import."""

    Error, update = Shown, dict

    def __getattr__(self, name: str) -> type[Part]:
        return Part


def test_the_button_samples_and_shows_errors(tmp_path: Path) -> None:
    """Without a browser."""
    Part.clicks.clear()
    app.make_page(Parts(), tmp_path, "cpu")
    ((sample, inputs),) = Part.clicks
    values = {part.label: part.value for part in inputs}
    assert len(values) == len(inputs)
    values |= {"Per sample": 4, "Number of samples": 2, "Template": "c1ccccc1[3]"}
    frame, rows, files, command, code = sample(*values.values())
    assert "<iframe" in frame
    assert [row[0] for row in rows["value"]] == ["neighbor"] * 2 + ["euler"] * 2
    assert all(row[1].startswith("c1ccccc1") for row in rows["value"])
    assert all(Path(path).exists() for path in files["value"])
    assert "--solver neighbor" in command["value"]
    assert "euler" in code["value"]
    with pytest.raises(Shown, match="&lt;img src=x&gt;"):
        sample(*(values | {"Model": "<img src=x>"}).values())


@pytest.mark.slow
def test_the_app_samples_replays_and_survives_errors(address: str, browser: "Browser") -> None:
    from playwright.sync_api import expect

    page = new_page(browser, viewport={"width": 390, "height": 844})
    problems = watch(page)
    page.goto(address)
    button = page.get_by_role("button", name="Sample", exact=True)
    button.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(button).to_be_in_viewport()  # also on a phone, where the form is longer than the page

    # Settings have the default of the selected solver.
    page.get_by_text("Solver settings").click()
    for solver, default in (("remask", "0.02"), ("path-planning", "1")):
        fill(page, solver=solver)
        expect(page.get_by_label("--eta")).to_have_value(default)
    fill(page, solver="neighbor")
    expect(page.get_by_label("--eta")).to_be_hidden()

    # A model that cannot be loaded, with a name that is not markup.
    fill(
        page, model="<img src=x onerror=alert(1)>", **{"Per sample": "4", "Number of samples": "2"}
    )
    button.click()
    toast = page.get_by_test_id("toast-body")
    expect(toast).to_contain_text("<img src=x onerror=alert(1)>")
    page.get_by_test_id("toast-close").click()

    # The app still works.
    fill(page, model="qm9-mask-small", template="c1ccccc1[3]")
    button.click()
    replay = page.frame_locator("#replay iframe")
    expect(replay.locator("#clock")).to_contain_text("step 0 of 4")
    replay.locator("#slider").fill("4")
    finals = replay.locator(".tokens > div").all_inner_texts()
    assert len(finals) == 2
    for final in finals:
        expect(page.locator("#samples")).to_contain_text(final.strip("·"))
    for name in ("neighbor", "euler"):
        expect(page.locator("#command")).to_contain_text(f"--solver {name}")
        expect(page.locator("#code")).to_contain_text(name)
    with page.expect_download() as download:
        page.locator("#files").get_by_role("link").first.click()
    lines = download.value.path().read_text().splitlines()
    assert len(lines) == 3  # a header and two samples
    assert json.loads(lines[1])["text"].startswith("c1ccccc1")

    # Text that looks like markup stays text.
    attack = "<img src=x onerror=alert(2)>"
    fill(page, model="novels-small", template=f"{attack}[1]")
    button.click()
    expect(page.locator("#code")).to_contain_text("novels-small")
    tokens = page.frame_locator("#replay iframe").locator(".tokens > div").first
    expect(tokens).to_contain_text(attack)
    expect(page.locator("#samples")).to_contain_text(attack)
    assert page.locator("#replay img, #samples img, #code img").count() == 0
    assert not problems
    page.close()
