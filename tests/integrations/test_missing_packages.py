"""Where packages are missing, errors name the extras that contain them."""

import sys
from importlib import import_module

import pytest

import cwdfm
from tests.support.command import rejected


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("diffusers", "diffusers", "diffusers"), ("lm_eval", "lm_eval", "lm-eval")],
)
def test_missing_package(
    module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"cwdfm.integrations.{module}", raising=False)
    with pytest.raises(cwdfm.InputError, match=rf"cwdfm\[{extra}\]"):
        import_module(f"cwdfm.integrations.{module}")


def test_demo_names_all_missing_extras_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("matplotlib", "rdkit", "tyro"):
        monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'cwdfm[cli,molecules,plot]'" in rejected("demo")
