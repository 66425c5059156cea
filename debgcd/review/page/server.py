"""The server of the page: FastAPI behind the guard, on this machine alone."""

# without `from __future__ import annotations`: FastAPI reads those of functions that know its classes only by a local name

import asyncio
import json
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from debgcd.errors import DataError, UsageError
from debgcd.review.page.pictures import Pictures
from debgcd.review.page.session import ReviewSession
from debgcd.system.files import parse_json

if TYPE_CHECKING:
    from fastapi import Response

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


TEMPLATES = Path(__file__).parent / "templates"
REPORT = Path(__file__).parents[2] / "report" / "templates"  # colours, controls and small helpers are shared
FILES = {
    "review.html": (TEMPLATES, "text/html"),
    "icon.svg": (TEMPLATES, "image/svg+xml"),
    "review.css": (TEMPLATES, "text/css"),
    "grid.js": (TEMPLATES, "text/javascript"),
    "review.js": (TEMPLATES, "text/javascript"),
    "report.css": (REPORT, "text/css"),
    "gallery.js": (REPORT, "text/javascript"),
}
FOR_EVER = {"cache-control": "private, max-age=31536000, immutable"}


def listen(port: int) -> socket.socket:
    """A socket of this machine alone; 0: any port that is free. Who connects now waits until `serve` answers."""
    # by its protocol asyncio knows to send without delay; else the body of an answer waits 40 ms for its header's receipt
    place = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((HOST, port))
        place.listen(128)
    except OSError as error:
        place.close()
        raise UsageError(f"port {port} cannot be used ({error.strerror}); choose another with --port") from error
    except OverflowError as error:
        place.close()
        raise UsageError(f"--port must be in 0..65535, got {port}") from error
    return place


def serve(app: App, place: socket.socket) -> None:
    """Answer until Ctrl-C or SIGTERM."""
    import uvicorn

    settings = uvicorn.Config(
        app,
        http="h11",
        timeout_graceful_shutdown=1,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_error)
    uvicorn.Server(settings).run(sockets=[place])


def _is_error(record: logging.LogRecord) -> bool:
    """A request that is given up at the end, because its answer takes long, is no error."""
    cancelled = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not cancelled and not record.getMessage().startswith("Cancel ")


def json_response(value: Any, status: int = 200) -> "Response":
    """A value as JSON."""
    from fastapi import Response

    content = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return Response(content.encode("utf-8", "replace"), status, {"cache-control": "no-store"}, "application/json")


def answered(work: Callable[[], dict[str, Any]]) -> "Response":
    """What the work returns, or what went wrong."""
    try:
        return json_response(work())
    except UsageError as error:
        return json_response({"error": str(error)}, 409)
    except (DataError, OSError) as error:
        return json_response({"error": f"not saved: {error}"}, 507)


def picture(made: Callable[[int], bytes | str], number: int, count: int) -> "Response":
    """An image by its number, or why there is none."""
    from fastapi import Response

    found = made(number) if 0 <= number < count else "there is no such image"
    if isinstance(found, str):
        return Response(found.encode("utf-8", "replace"), 404, {"cache-control": "no-store"}, "text/plain")
    return Response(found, 200, FOR_EVER, "image/webp")


def build(session: ReviewSession, pictures: Pictures, port: int) -> Guard:
    """The whole app; `token` of what is returned goes into the first URL."""
    from fastapi import FastAPI, Request, Response

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/")
    def page() -> Response:
        return file("review.html")

    @app.get("/files/{name}")
    def file(name: str) -> Response:
        if name not in FILES:
            return Response(b"there is no such file\n", 404, media_type="text/plain")
        folder, kind = FILES[name]
        return Response((folder / name).read_bytes(), 200, {"cache-control": "no-cache"}, f"{kind}; charset=utf-8")

    @app.get("/thumb/{number}")
    def thumb(number: int) -> Response:
        return picture(pictures.thumbnail, number, len(pictures))

    @app.get("/picture/{number}")
    def large(number: int) -> Response:
        return picture(pictures.large, number, len(pictures))

    @app.get("/where/{number}")
    def where(number: int) -> Response:
        return picture(lambda one: session.similar.where(*pictures.file(one)), number, len(pictures))

    @app.get("/api/about")
    def about() -> Response:
        return answered(session.about)

    @app.get("/api/changes")
    def changes(since: int = -1) -> Response:
        return answered(lambda: session.changes(since))

    @app.get("/api/similarity")
    def similarity() -> Response:
        return answered(session.similarity)

    @app.get("/api/suggestions")
    def suggestions() -> Response:
        return answered(session.suggestions)

    works = {
        work.__name__: work
        for work in (
            session.act,
            session.undo,
            session.redo,
            session.split,
            session.like,
            session.near,
            session.teach,
            session.why,
        )
    }

    @app.post("/api/{name}")
    def ask(name: str, request: Request) -> Response:
        if name not in works:
            return json_response({"error": "there is no such request"}, 404)
        try:
            asked = parse_json(request.scope[BODY])
            if not isinstance(asked, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            return json_response({"error": f"this is not the JSON that was expected: {error}"}, 400)
        return answered(lambda: works[name](asked))

    return Guard(app, port)
