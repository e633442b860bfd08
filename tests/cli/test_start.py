"""What starting costs: the modules that are imported, and shell completion."""

import pkgutil
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import cwdfm
from cwdfm.cli.main import COMMANDS
from tests.support.command import command, rejected

ROOT = Path(__file__).parents[2]
# torch alone has more than 1,000.
MODULES = """
import sys
before = len(sys.modules)
{code}
print(len(sys.modules) - before, [name for name in ("numpy", "torch") if name in sys.modules])
"""


@pytest.mark.parametrize(
    "code",
    [
        "import cwdfm; cwdfm.__version__",
        "from cwdfm.cli.main import main\nsys.argv = ['cwdfm', '--help']\n"
        "try: main()\nexcept SystemExit: pass",
    ],
    ids=["import", "help"],
)
def test_modules_imported_at_the_start(code: str) -> None:
    line = [sys.executable, "-c", MODULES.format(code=code)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
    count, heavy = done.stdout.splitlines()[-1].split(maxsplit=1)
    assert int(count) < 100
    assert heavy == "[]"


def test_public_names_are_those_that_modules_export() -> None:
    namespace: dict[str, object] = {}
    exec("from cwdfm import *", namespace)
    modules = (
        cwdfm.loss,
        cwdfm.model,
        cwdfm.path,
        cwdfm.postprocess,
        cwdfm.pretrained,
        cwdfm.schedule,
        cwdfm.solver,
        cwdfm.source,
        cwdfm.weight,
    )
    exported = {name: getattr(module, name) for module in modules for name in module.__all__}
    public = set(vars(cwdfm)["__all__"])
    assert set(namespace) - {"__builtins__"} == public >= set(exported)
    assert exported.items() <= namespace.items()
    assert set(dir(cwdfm)) >= public
    # A submodule of the same name would hide a function, once it is imported.
    assert not public & {each.name for each in pkgutil.iter_modules(cwdfm.__path__)}
    with pytest.raises(AttributeError, match="Missing"):
        cwdfm.Missing  # type: ignore[attr-defined] # noqa: B018


def test_files_of_the_package_are_installed() -> None:
    """Those that are not Python match a pattern of pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["cwdfm"]
    package = ROOT / "cwdfm"
    installed = {path for pattern in patterns for path in package.glob(pattern)}
    files = {path for path in package.rglob("*") if path.is_file()}
    others = {path for path in files if path.suffix not in (".py", ".pyc", ".nbi", ".nbc")}
    assert others == {path for path in installed if path.is_file()}


ASK = """
{script}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_cwdfm
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_in_bash() -> None:
    script = command("completion", "bash").stdout

    def offered(words: str) -> list[str]:
        line = ["bash", "-c", ASK.format(script=script, words=words)]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()

    assert offered("cwdfm ''") == list(COMMANDS)
    assert offered("cwdfm sa") == ["sample"]
    assert offered("cwdfm sample ''") == cwdfm.bundled_models()
    assert "qm9-debug" in offered("cwdfm train ''")
    assert offered("cwdfm sample qm9-mask-small --solver neig") == [
        "neighbor",
        "neighbor-counted",
        "neighbor-share",
    ]
    assert {"--radius", "--steps"} <= set(offered("cwdfm sample qm9-mask-small --solver euler --"))
    assert offered("cwdfm train qm9-debug --loss s") == ["sce"]
    assert offered("cwdfm eval a.jsonl --out ''") == offered("cwdfm eval --")  # and files


def test_completion_of_an_unknown_shell_is_rejected() -> None:
    assert "zsh" in rejected("completion", "fish")
