"""`debgcd review` in a process of its own, and how to talk to it."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Served:
    """A server, and how to talk to it as a browser that has the cookie would."""

    process: subprocess.Popen[str]
    url: str
    run: Path

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def token(self) -> str:
        return self.url.partition("token=")[2]

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        good: bool = True,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer; not good: without the cookie and the origin."""
        own = {"cookie": f"debgcd-{self.port}={self.token}", "origin": f"http://127.0.0.1:{self.port}"} if good else {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, body, own | (headers or {}))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content

    def json(self, path: str, body: Any = None) -> Any:
        """The JSON that a good request gets."""
        status, _, content = self.ask(
            "GET" if body is None else "POST", path, None if body is None else json.dumps(body).encode()
        )
        assert status in (200, 409), content
        return json.loads(content)


Serve = Callable[..., Served]
