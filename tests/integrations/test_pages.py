"""The examples of pages on pretrained models, with small random models on a hub on this machine."""

import json
import re
from pathlib import Path

import pytest

import cwdfm
from tests.support.cases import slow
from tests.support.fake_hub import TOKEN, serve_hub
from tests.support.published import MODELS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", [slow("pretrained.md"), slow("generation.md")])
def test_every_example_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DOCS / page).read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    names = re.findall(r"cwdfm\.load\(\"([\w.-]+/[\w.-]+)\"", code)
    used = set(names) - {"you/qm9"}
    assert used <= set(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    modules = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    with serve_hub(tmp_path / "cache", monkeypatch) as hub:
        commits = {}
        for name in used:
            place = tmp_path / "models" / name
            MODELS[name](place)
            commits[name] = hub.add(name, place)
        known = {"__name__": "docs", "COMMIT": commits.get("inclusionAI/LLaDA2.1-mini")}
        exec(compile(code, page, "exec"), known)
        assert ("you/qm9" in hub.repositories) == ("you/qm9" in names)
    assert len(capsys.readouterr().out.splitlines()) >= len(used)


def test_the_table_names_a_small_model_of_every_family() -> None:
    text = (DOCS / "pretrained.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| `([\w.-]+/[\w.-]+)` \|", text, re.MULTILINE)
    assert set(rows) - set(MODELS) == {"dvruette/gidd-base-p_unif-0.0"}


def test_code_of_a_repository_needs_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it no code is downloaded; with it, only for one commit."""
    name, place = "someone/llada2", tmp_path / "model"
    place.mkdir()
    code = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n"
    (place / "modeling.py").write_text(code)
    auto = {"AutoModelForCausalLM": "modeling.Network"}
    config = {"model_type": "llada2_moe", "auto_map": auto, "max_position_embeddings": 8}
    (place / "config.json").write_text(json.dumps(config))
    with serve_hub(tmp_path / "cache", monkeypatch) as hub:
        hub.add(name, place)
        with pytest.raises(cwdfm.InputError, match=r"trust_remote_code=True"):
            cwdfm.load(name)
        assert not any("modeling.py" in request for request in hub.requests)
        for revision in (None, "main"):
            with pytest.raises(cwdfm.InputError, match=r"commit"):
                cwdfm.load(name, revision=revision, trust_remote_code=True)
    assert not (tmp_path / "ran").exists()
