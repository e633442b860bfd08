"""Models on the Hugging Face hub: downloads, `trust_remote_code`, error messages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cwdfm.errors import InputError, check_bool, load_extra

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT = 5.0  # seconds to reach the hub
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]
_PICKLES = ["*.bin", "*.ckpt"]  # downloaded only if there are no safetensors weights


def check_remote_code(name: str, revision: str | None, trust_remote_code: bool) -> None:
    """Require a pinned commit (`revision`) to run the code of a hub repository.

    A local folder contains its code and takes no revision.
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
            f"any time; read the code, then pass the commit as revision=",
            fields=("trust_remote_code", "revision"),
        )


def hub_options(name: str, revision: str | None, trust_remote_code: bool) -> dict[str, Any]:
    """Keywords of `from_pretrained` for a folder or a hub name.

    If the hub cannot be reached, only the local cache is searched: otherwise the download of every
    file would be retried.
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
    hub = load_extra("huggingface_hub", "hub")
    try:
        hub.utils.get_session().head(hub.constants.ENDPOINT, timeout=_TIMEOUT)
    except Exception:  # the type depends on the HTTP library that huggingface_hub uses
        return False
    return True


def _check_repositories(name: str, options: dict[str, Any]) -> None:
    """Reject a model that runs code of another repository, whose commit cannot be pinned."""
    auto = load_extra("transformers.models.auto.tokenization_auto", "text")
    base = load_extra("transformers", "text").PreTrainedConfig
    hub_keywords = {key: value for key, value in options.items() if key != "trust_remote_code"}
    for config in (
        base.get_config_dict(name, **hub_keywords)[0],
        auto.get_tokenizer_config(name, **hub_keywords),
    ):
        for other in re.findall(r"([\w./-]+)--", str(config.get("auto_map") or "")):
            if other != name:
                raise InputError(
                    f"{name} runs code of another repository, {other}, whose commit cannot be "
                    f"pinned; download the code into one folder, read it, and pass that folder"
                )


def is_hub_name(name: str) -> bool:
    """Whether `name` has the form of a hub model, `owner/name`."""
    return bool(_NAME.fullmatch(name)) and not name.startswith(".")


def download_model(name: str, revision: str | None = None, *, code: bool = False) -> Path:
    """Download the hub model `owner/name` to the hub's local cache and return its folder.

    `code` also downloads Python files. If the hub cannot be reached, the cached files are used.
    """
    hub = load_extra("huggingface_hub", "hub")
    options = {"revision": revision, "local_files_only": not hub_is_reachable()}

    def download(*patterns: str) -> Path:
        chosen = {"allow_patterns": list(patterns), "ignore_patterns": ["*/*"]}
        return Path(hub.snapshot_download(name, **options, **chosen))

    with hub_errors(name, revision):
        folder = download(*_FILES, *(["*.py"] if code else []))
        return folder if any(folder.glob("*.safetensors")) else download(*_FILES, *_PICKLES)


@contextmanager
def hub_errors(name: str, revision: str | None = None) -> Iterator[None]:
    """Turn the errors of huggingface_hub into InputErrors that say what to do."""
    errors = load_extra("huggingface_hub.errors", "hub")
    try:
        yield
    except errors.GatedRepoError as error:
        message = f"{name} is gated: accept its terms on its page, then log in with `hf auth login`"
        raise InputError(message) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"the hub has no model {name}, or it is private; check the name, or log in with "
            f"`hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"{name} has no revision {revision!r}; use one of its branches, tags or commits",
            fields=("revision",),
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise InputError(
            f"the hub cannot be reached, and {name} is not in the cache; check the connection, or "
            f"download the model elsewhere (hf download {name} --local-dir FOLDER) and pass the "
            f"folder"
        ) from error
    except errors.HfHubHTTPError as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"the hub rejected the request for {name} ({reason}); check the name and your access "
            f"token (`hf auth login`)"
        ) from error
