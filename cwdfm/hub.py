"""Models of the Hugging Face hub: consent to the code of a repository, and work without network."""

import re
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError, check_bool, load_extra

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT = 5.0  # seconds to reach the hub


def check_remote_code(name: str, revision: str | None, trust_remote_code: bool) -> None:
    """Require that consent to run the code of a repository is given for one commit of it.

    The code of a folder is the one that is there, so a folder has no revision.
    """
    check_bool("trust_remote_code", trust_remote_code)
    if revision is not None and not (isinstance(revision, str) and _COMMIT.fullmatch(revision)):
        raise InputError(
            f"revision must be the full hash of a commit (40 hexadecimal digits), got {revision!r};"
            f" branches and tags can change: copy the hash from the page of the model on the hub",
            fields=("revision",),
        )
    if revision is not None and Path(name).expanduser().exists():
        raise InputError(
            f"revision {revision} applies to models of the hub, but {name} is a local path; omit "
            f"it",
            fields=("revision",),
        )
    if trust_remote_code and revision is None and not Path(name).expanduser().exists():
        raise InputError(
            f"trust_remote_code=True runs the Python code of {name}, which its owner can change at "
            f"any time; read the code and give the commit as revision=",
            fields=("trust_remote_code", "revision"),
        )


def hub_options(name: str, revision: str | None, trust_remote_code: bool) -> dict[str, Any]:
    """Keywords of `from_pretrained` for a folder or a hub name.

    Without a network, only the local cache is searched, because each file would be retried.
    """
    check_remote_code(name, revision, trust_remote_code)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if not Path(name).expanduser().exists():
        options |= {"revision": revision or "main", "local_files_only": not hub_is_reachable()}
    if trust_remote_code:
        _check_repositories(name, options)
    return options


def hub_is_reachable() -> bool:
    """Whether the hub answers a single request; False in offline mode."""
    hub = load_extra("huggingface_hub", "text")
    try:
        hub.utils.get_session().head(hub.constants.ENDPOINT, timeout=_TIMEOUT)
    except Exception:  # of the HTTP library that huggingface_hub uses
        return False
    return True


def _check_repositories(name: str, options: dict[str, Any]) -> None:
    """Reject a model that refers to code of another repository, for which no commit is given."""
    auto = load_extra("transformers.models.auto.tokenization_auto", "text")
    base = load_extra("transformers", "text").PreTrainedConfig
    place = {key: value for key, value in options.items() if key != "trust_remote_code"}
    for config in (
        base.get_config_dict(name, **place)[0],
        auto.get_tokenizer_config(name, **place),
    ):
        for other in re.findall(r"([\w./-]+)--", str(config.get("auto_map") or "")):
            if other != name:
                raise InputError(
                    f"{name} runs code of another repository, {other}, for which no commit can be "
                    f"given; download the code into one folder, read it and give that folder"
                )
