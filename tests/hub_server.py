"""A stand-in for the Hugging Face hub on this machine: repositories in memory, behind the addresses that its client asks."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

TOKEN = "hf_of_the_test"


class Hub:
    """What the server holds."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}  # repository -> file -> content
        self.private: dict[str, bool] = {}
        self.address = ""
        self.asked: list[str] = []

    def commit(self, repo: str) -> str:
        """The repository's commit: a hash of all files."""
        digest = hashlib.sha1()
        for name, content in sorted(self.files[repo].items()):
            digest.update(name.encode() + b"\0" + content)
        return digest.hexdigest()


@contextmanager
def reached(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub that this process knows, until the end of the test."""
    from huggingface_hub import constants

    with serving() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        address = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
        yield server


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Nothing: the test's output is for the test."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.hub.asked.append(f"POST {self.path}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._say(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            exists = name in self.hub.files
            self.hub.files.setdefault(name, {})
            self.hub.private.setdefault(name, asked.get("private", False) or asked.get("visibility") == "private")
            self._say(409 if exists else 200, {"url": f"{self.hub.address}/{name}", "name": name})
        elif self.path == "/api/validate-yaml":
            self._say(200, {"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", self.path):
            asked = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self._say(200, {"files": asked})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", self.path):
            for line in body.splitlines():
                part = json.loads(line)
                if part["key"] == "file":
                    self.hub.files[found[1]][part["value"]["path"]] = base64.b64decode(part["value"]["content"])
            oid = self.hub.commit(found[1])
            self._say(
                200, {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.address}/{found[1]}/commit/{oid}"}
            )
        else:
            self._say(404, {"error": "no such address"})

    def do_HEAD(self) -> None:
        self._read()

    def do_GET(self) -> None:
        self._read()

    def _read(self) -> None:
        self.hub.asked.append(f"{self.command} {self.path}")
        form = r"/(?:api/models/)?([^/?]+/[^/?]+)(?:/(revision|tree|resolve)/([^/?]+)(?:/([^?]+))?)?(?:\?.*)?"
        known = re.fullmatch(form, self.path)
        repo = known[1] if known else ""
        hidden = self.hub.private.get(repo) and self.headers.get("Authorization") != f"Bearer {TOKEN}"
        if known is None or repo not in self.hub.files or hidden:
            self._say(
                404 if known is None else 401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
            )
            return
        commit, files = self.hub.commit(repo), self.hub.files[repo]
        if (known[3] or "main") not in ("main", commit):
            self._say(404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"})
        elif known[2] == "tree":
            names = {name: hashlib.sha1(content).hexdigest() for name, content in files.items()}
            self._say(
                200,
                [{"type": "file", "path": name, "size": len(files[name]), "oid": oid} for name, oid in names.items()],
            )
        elif known[2] != "resolve":
            siblings = [{"rfilename": name} for name in files]
            self._say(
                200, {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "private": False, "tags": []}
            )
        else:
            content = files[known[4]]
            tag = hashlib.sha256(content).hexdigest()
            self._send(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": commit})

    def _say(self, status: int, values: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(values).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
