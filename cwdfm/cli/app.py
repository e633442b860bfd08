"""`cwdfm app`: a local web page that samples a model and plays every step of the generation."""

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, get_args, get_origin

from cwdfm.cli.app_form import Form, Setting, run, solver_settings
from cwdfm.cli.options import by_flags, flag, parse
from cwdfm.errors import InputError, check_extras, check_integer, load_extra
from cwdfm.pretrained.model import bundled_models
from cwdfm.report.replay import FIT_FRAMES, replay_frame
from cwdfm.solver_config import SOLVERS

LOCAL = ("127.0.0.1", "localhost", "::1")
NONE = "none"
DEFAULT_MODEL = "qm9-uniform-small"  # the fastest on a CPU
TEMPLATES = {
    "moses-uniform-small": "",
    "novels-small": "The [12] of the [3] was closed.",
    "qm9-mask-small": "[3]c1[4]1",
    "qm9-uniform-small": "",
}
EMPTY = "Press Sample: the replay, the samples and the equivalent command appear here."
NO_REPLAY = "This model generates from left to right, so there are no steps to play."
# The button stays in view while the form scrolls, and the replay has the full width of a phone.
# In the head, because Gradio limits its argument `css` to elements inside of these containers.
STYLE = """<style>
.gradio-container { overflow: clip !important; }
#run { position: sticky; bottom: 0.75rem; z-index: 2; }
#replay .html-container { padding: 0 !important; }
@media (max-width: 40rem) { .main.app { padding: 1rem 0.75rem !important; } }
</style>"""
# Gradio serves all its own assets, so the page never needs to load anything from another host.
POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; frame-ancestors 'self'"


@dataclass(frozen=True)
class Options:
    """Open a web page that samples models and plays the generation step by step.

    By default, only this machine can reach the page (see --host). Anyone who can open it can load
    any model folder on this machine and use its compute.
    """

    host: str = "127.0.0.1"  # the address to listen on
    port: int = 7860  # the port to listen on; 0 for any free one
    device: str = "auto"  # auto, cpu, cuda, cuda:1, ...
    open: bool = True  # open the page in a browser


def main(arguments: list[str]) -> None:
    """Run the command until Ctrl-C."""
    check_extras("cwdfm app", {"gradio": "app", "tyro": "cli"})
    options = parse("app", arguments, lambda _: Options())
    with by_flags(Options):
        check_integer("port", options.port, 0, 65_535)
    port = free_port(options.host, options.port)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    gradio = load_extra("gradio", "app")
    if options.host not in LOCAL:
        print(
            f"note: anyone who can reach {options.host}:{port} can load model folders on this "
            f"machine and use its compute",
            flush=True,
        )
    folder = Path(tempfile.mkdtemp(prefix="cwdfm-app-"))
    try:
        serve(gradio, make_page(gradio, folder, options.device), options, port)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port(host: str, port: int) -> int:
    """Return the port if it can be bound; 0 returns a free port."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port (0 "
            f"for any free one) or --host, or stop the program that is using it"
        ) from error


def serve(gradio: Any, page: Any, options: Options, port: int) -> None:
    """Serve the page until Ctrl-C."""
    middleware = load_extra("starlette.middleware", "app").Middleware(_Policy)
    page.launch(
        server_name=options.host,
        server_port=port,
        inbrowser=options.open,
        share=False,
        quiet=True,
        ssr_mode=False,
        prevent_thread_lock=True,
        footer_links=[],
        theme=gradio.themes.Default(
            font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
        ).set(block_info_text_color="*neutral_600", block_info_text_color_dark="*neutral_300"),
        head=STYLE,
        app_kwargs={"middleware": [middleware]},
    )
    print(f"open http://{options.host}:{port} in a browser; press Ctrl-C to quit", flush=True)
    page.block_thread()


class _Policy:
    """Add the content security policy to all responses."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                header = (b"content-security-policy", POLICY.encode())
                message = message | {"headers": [*message.get("headers", []), header]}
            await send(message)

        await self.app(scope, receive, send_with_policy)


def make_page(gr: Any, folder: Path, device: str) -> Any:
    """The page: a form on the left, the result on the right. `gr` is the module gradio."""
    with gr.Blocks(title="cwdfm", analytics_enabled=False) as page:
        gr.Markdown("# cwdfm\nSample a model, and watch every step of the generation.")
        with gr.Row():
            with gr.Column(scale=1, min_width=320):
                form, settings = make_form(gr)
                button = gr.Button("Sample", variant="primary", elem_id="run")
            with gr.Column(scale=2, min_width=320):
                results = make_results(gr)

        def sample(*values: Any, progress: Any = gr.Progress()) -> list[Any]:  # noqa: B008
            given = dict(zip([*form, *settings], values, strict=True))
            out = Path(tempfile.mkdtemp(dir=folder))
            with shown_errors(gr.Error):
                result = run(forms_of(given), out, device, progress)
            frame = replay_frame(result.page) if result.page else NO_REPLAY
            values = (result.rows, result.files, result.command, result.code)
            return [frame, *(gr.update(value=value, visible=True) for value in values)]

        inputs = [*form.values(), *settings.values()]
        button.click(sample, inputs, results, api_name="sample", show_progress_on=results[0])
        page.load(None, js=f"() => {{ {FIT_FRAMES} }}", api_name=False)
    return page


@contextmanager
def shown_errors(shown: Callable[..., Exception]) -> Iterator[None]:
    """Raise errors as `shown`, gradio's class of errors that the page displays (as HTML)."""
    try:
        yield
    except InputError as error:
        raise shown(escape(str(error)), duration=None, print_exception=False) from error
    except (Exception, SystemExit) as error:  # the option parser exits on errors
        text = f"{type(error).__name__}: {error}; the terminal of the app shows details"
        raise shown(escape(text), duration=None) from error


def make_form(gr: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Create the inputs: the general ones, and one per solver option.

    Only the options of the selected solver are visible.
    """
    form = {
        "model": gr.Dropdown(
            bundled_models(),
            value=DEFAULT_MODEL,
            allow_custom_value=True,
            label="Model",
            info="A bundled model, a model folder, or owner/name on the Hugging Face hub",
        ),
        "solver": gr.Dropdown(["auto", *SOLVERS], value="neighbor", label="Solver"),
        "other": gr.Dropdown([NONE, *SOLVERS], value="euler", label="Compare with"),
    }
    with gr.Accordion("Solver settings", open=False):
        settings = make_settings(gr, form["solver"])
    with gr.Row():
        form["budget"] = gr.Dropdown(
            ["steps", "evaluations"], value="steps", label="Budget in", min_width=100
        )
        form["steps"] = gr.Number(64, precision=0, minimum=1, label="Per sample", min_width=100)
    with gr.Row():
        form["n"] = gr.Number(4, precision=0, minimum=1, label="Number of samples", min_width=100)
        form["seed"] = gr.Number(0, precision=0, minimum=0, label="Seed", min_width=100)
    form["prompt"] = gr.Textbox(label="Prompt", info="Text that every sample starts with")
    form["template"] = gr.Textbox(
        TEMPLATES[DEFAULT_MODEL],
        label="Template",
        info="A complete sample with holes: [12] stands for twelve tokens",
    )
    form["scaffold"] = gr.Textbox(
        label="Scaffold",
        info="SMILES of a fragment that every molecule contains, extended at its marks *",
    )
    # Runs in the browser: a reply from the server could overwrite what the user has typed since.
    example = f"model => ({json.dumps(TEMPLATES)})[model] || ''"
    form["model"].change(None, form["model"], form["template"], js=example, api_name=False)
    return form, settings


def make_settings(gr: Any, selected: Any) -> dict[str, Any]:
    """Create an input for every solver option.

    Those of the selected solver are visible. Their values are kept when another solver is selected,
    unless the default of the option differs between solvers.
    """
    of_solver = {solver: solver_settings(solver) for solver in SOLVERS}
    defaults: dict[str, set[Any]] = {}
    for settings in of_solver.values():
        for name, setting in settings.items():
            defaults.setdefault(name, set()).add(setting.default)

    def updates(solver: str) -> list[Any]:
        own = solver_settings(solver)
        return [
            gr.update(
                visible=name in own,
                **({"info": own[name].help} if name in own else {}),
                **({"value": own[name].default} if name in own and len(values) > 1 else {}),
            )
            for name, values in defaults.items()
        ]

    known = {name: each for settings in of_solver.values() for name, each in settings.items()}
    visible = solver_settings(selected.value)
    inputs = {name: make_setting(gr, name, known[name], name in visible) for name in defaults}
    outputs = list(inputs.values())
    selected.change(updates, selected, outputs, api_name=False, show_progress="hidden")
    return inputs


def make_setting(gr: Any, name: str, setting: Setting, visible: bool) -> Any:
    """Create the input for one solver option."""
    common = {"value": setting.default, "label": flag(name), "info": setting.help}
    common["visible"] = visible
    if get_origin(setting.type) is not None:
        return gr.Dropdown(list(get_args(setting.type)), **common)
    if setting.type is bool:
        return gr.Checkbox(**common)
    return gr.Number(precision=0 if setting.type is int else None, **common)


def make_results(gr: Any) -> list[Any]:
    """Create the outputs, in the order in which `sample` returns their values.

    All but the first are hidden until there are samples.
    """
    replay = gr.HTML(EMPTY, elem_id="replay")
    rows = gr.Dataframe(
        headers=["solver", "sample", "evaluations"],
        datatype=["str", "str", "number"],
        column_widths=["26%", "48%", "26%"],
        wrap=True,
        interactive=False,
        label="Samples",
        elem_id="samples",
        visible=False,
    )
    files = gr.Files(label="Download", interactive=False, elem_id="files", visible=False)
    look = {"wrap_lines": True, "show_line_numbers": False, "visible": False}
    command = gr.Code(
        language="shell", label="Equivalent command", max_lines=8, elem_id="command", **look
    )
    code = gr.Code(
        language="python", label="Equivalent Python code", max_lines=12, elem_id="code", **look
    )
    return [replay, rows, files, command, code]


def forms_of(values: dict[str, Any]) -> list[Form]:
    """Make one form per selected solver. Both use the changed settings, where they have them."""
    for name in ("steps", "n", "seed"):
        if values[name] is None:
            raise InputError(f"{name} is empty; enter a number")
    names = ("model", "steps", "n", "seed", "prompt", "template", "scaffold")
    shared = {name: values[name] for name in names}
    shared["evaluations"] = values["budget"] == "evaluations"
    changed = {
        name: values[name]
        for name, setting in solver_settings(values["solver"]).items()
        if values[name] not in (None, setting.default)
    }
    return [
        Form(
            solver=solver,
            settings=tuple((k, v) for k, v in changed.items() if k in solver_settings(solver)),
            **shared,
        )
        for solver in dict.fromkeys((values["solver"], values["other"]))
        if solver != NONE
    ]
