"""Who may talk to the page: only this machine's browser, only with the token, only from the page itself."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HOST = "127.0.0.1"
BODY = "debgcd.body"  # where the app finds the body in the scope
LARGEST = 1_000_000  # bytes of a body
DRAINED = 64 * LARGEST  # read and thrown away before the answer: a client that is still sending would not see it
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",  # the first URL has the token
    "x-content-type-options": "nosniff",
}
FORBIDDEN = {
    "host": "this address is not the one that debgcd review printed",
    "origin": "this request comes from another page",
    "token": "open the URL that debgcd review printed: it has the token",
}


class Guard:
    """An ASGI app around another: it answers 403 and 413 itself, and sets a cookie for whoever brings the token.

    The cookie is named after the port, because cookies of 127.0.0.1 are shared by all its ports.
    """

    def __init__(self, app: App, port: int):
        self.token = secrets.token_urlsafe(32)
        self._app = app
        self._cookie = f"debgcd-{port}"
        # through a tunnel that keeps the port, a browser elsewhere says localhost
        self._hosts = {f"{name}:{port}" for name in (HOST, "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket, which the page does not use
            await send({"type": "websocket.close"})
            return
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        brings = scope["path"] == "/" and scope["method"] == "GET" and self._brings_token(scope)
        if why := self._refusal(scope["method"], headers, brings):
            await _answer(send, 403, FORBIDDEN[why])
            return
        body = await _body(receive)
        if body is None:
            await _answer(send, 413, f"more than {LARGEST // 1_000_000} MB; send less at a time")
            return
        scope[BODY] = body

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_headers()]
                if brings:
                    cookie = f"{self._cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    message["headers"].append((b"set-cookie", cookie.encode()))
            await send(message)

        await self._app(scope, receive, with_headers)

    def _brings_token(self, scope: Scope) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return _same(given, self.token)

    def _refusal(self, method: str, headers: dict[str, list[str]], brings_token: bool) -> str | None:
        """What is wrong with a request, by its headers; None if nothing is. With the token, only the host matters."""
        host = headers.get("host", [])
        if len(host) != 1 or host[0] not in self._hosts:
            return "host"
        if brings_token:
            return None
        # a request from a page of another port of this machine counts as same-site, and brings the cookie along
        origins = headers.get("origin", [])
        if any(origin != f"http://{host[0]}" for origin in origins) or (method != "GET" and not origins):
            return "origin"
        if any(site not in ("same-origin", "none") for site in headers.get("sec-fetch-site", [])):
            return "origin"
        try:
            cookies = SimpleCookie("; ".join(headers.get("cookie", [])))
        except CookieError:
            return "token"
        given = cookies.get(self._cookie)
        return None if given is not None and _same(given.value, self.token) else "token"


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())


async def _body(receive: Receive) -> bytes | None:
    """The body of a request; None if it is too large."""
    body, size = bytearray(), 0
    while size <= DRAINED:
        message = await receive()
        if message["type"] != "http.request":  # the client is gone
            break
        size += len(message.get("body", b""))
        if size <= LARGEST:
            body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(body) if size <= LARGEST else None


def _headers() -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in HEADERS.items()]


async def _answer(send: Send, status: int, text: str) -> None:
    content = (text + "\n").encode()
    plain = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*plain, *_headers()]})
    await send({"type": "http.response.body", "body": content})
