"""A Hugging Face hub on this machine: the requests that uploads and downloads of models make."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

TOKEN = "hf_test"
Files = dict[str, bytes]


@dataclass
class Repository:
    """Commits, each with all its files, and the branches that point to them."""

    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    gated: bool = False

    def commit(self, branch: str, files: Files) -> str:
        merged = self.commits.get(self.branches.get(branch, ""), {}) | files
        digest = repr([branch, len(self.commits), sorted(merged.items())]).encode()
        name = hashlib.sha1(digest).hexdigest()
        self.commits[name], self.branches[branch] = merged, name
        return name


@dataclass
class FakeHub:
    """The repositories, and the requests that were made."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def add(self, name: str, folder: Path) -> str:
        """Put the files of a folder into a new repository."""
        self.repositories[name] = Repository()
        files = {file.name: file.read_bytes() for file in folder.iterdir()}
        return self.repositories[name].commit("main", files)


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status: int, code: str) -> None:
        self.reply({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

    def do_GET(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0].strip("/").split("/")
        if path == [""]:
            return self.reply({})
        if path[:2] == ["api", "models"]:
            name, rest = "/".join(path[2:4]), path[4:]
        else:
            name, rest = "/".join(path[:2]), path[2:]
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self.fail(404, "RepoNotFound")
        if repository.gated:
            return self.fail(403, "GatedRepo")
        kind, wanted = (rest[0], rest[1]) if rest else ("revision", "main")
        commit = repository.branches.get(wanted, wanted)
        if commit not in repository.commits:
            return self.fail(404, "RevisionNotFound")
        files = repository.commits[commit]
        if kind == "revision":
            return self.reply({"id": name, "sha": commit, "siblings": []})
        oids = {file: hashlib.sha1(content).hexdigest() for file, content in files.items()}
        if kind == "tree":
            entries = [
                {"type": "file", "path": file, "size": len(content), "oid": oids[file]}
                for file, content in files.items()
            ]
            return self.reply(entries)
        if rest[2] not in files:
            return self.fail(404, "EntryNotFound")
        return self.reply(files[rest[2]], ETag=f'"{oids[rest[2]]}"', X_Repo_Commit=commit)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.fail(401, "Unauthorized")
        path = self.path.partition("?")[0].strip("/").split("/")
        if path == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            exists = name in self.hub.repositories
            if not exists:
                self.hub.repositories[name] = Repository()
                self.hub.repositories[name].commit("main", {})
            return self.reply({"url": f"{self.hub.url}/{name}"}, 409 if exists else 200)
        if path == ["api", "validate-yaml"]:
            return self.reply({"errors": [], "warnings": []})
        repository, (kind, branch) = self.hub.repositories["/".join(path[2:4])], path[4:6]
        if kind == "preupload":
            files = json.loads(body)["files"]
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            return self.reply({"files": [{"path": each["path"], **modes} for each in files]})
        if kind == "branch":
            repository.branches[branch] = repository.branches["main"]
            return self.reply({})
        lines = [json.loads(line)["value"] for line in body.splitlines()[1:]]
        files = {each["path"]: base64.b64decode(each["content"]) for each in lines}
        commit = repository.commit(branch, files)
        url = f"{self.hub.url}/{'/'.join(path[2:4])}/commit/{commit}"
        return self.reply({"commitUrl": url, "commitOid": commit})


@contextmanager
def serve_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Run a hub on 127.0.0.1, which huggingface_hub uses until the block ends."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra 'hub'")
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": template,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_PROGRESS_BARS": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
