"""The server of the page: FastAPI behind the guard, on this machine alone."""

# without `from __future__ import annotations`: FastAPI reads those of functions that know its classes only by a local name

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from debgcd.errors import DataError, UsageError
from debgcd.review.page.desk import Desk
from debgcd.review.page.guard import BODY, HOST, App, Guard
from debgcd.review.page.pictures import Pictures
from debgcd.system.files import parse_json
from debgcd.system.optional import optional

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


def require_packages() -> None:
    """Refuse in one sentence where FastAPI or uvicorn is missing."""
    for package in ("fastapi", "uvicorn"):
        optional(package, "review", "the review")


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
    uvicorn.Server(settings).run(sockets=[place])


def build(desk: Desk, pictures: Pictures, port: int) -> Guard:
    """The whole app; `token` of what is returned goes into the first URL."""
    from fastapi import FastAPI, Request, Response

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    def said(value: Any, status: int = 200) -> Response:
        content = json.dumps(value, ensure_ascii=False, allow_nan=False)
        headers = {"cache-control": "no-store"}
        return Response(content.encode("utf-8", "replace"), status, headers, "application/json")

    def answered(work: Callable[[], dict[str, Any]]) -> Response:
        try:
            return said(work())
        except UsageError as error:
            return said({"error": str(error)}, 409)
        except (DataError, OSError) as error:
            return said({"error": f"not saved: {error}"}, 507)

    def picture(made: Callable[[int], bytes | str], number: int, count: int) -> Response:
        found = made(number) if 0 <= number < count else "there is no such image"
        if isinstance(found, str):
            return Response(found.encode("utf-8", "replace"), 404, {"cache-control": "no-store"}, "text/plain")
        return Response(found, 200, FOR_EVER, "image/webp")

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

    @app.get("/api/about")
    def about() -> Response:
        return answered(desk.about)

    @app.get("/api/changes")
    def changes(since: int = -1) -> Response:
        return answered(lambda: desk.changes(since))

    @app.get("/api/similarity")
    def similarity() -> Response:
        return answered(desk.similarity)

    works = {work.__name__: work for work in (desk.act, desk.undo, desk.redo, desk.split, desk.like, desk.near)}

    @app.post("/api/{name}")
    def ask(name: str, request: Request) -> Response:
        if name not in works:
            return said({"error": "there is no such request"}, 404)
        try:
            asked = parse_json(request.scope[BODY])
            if not isinstance(asked, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            return said({"error": f"this is not the JSON that was expected: {error}"}, 400)
        return answered(lambda: works[name](asked))

    return Guard(app, port)
