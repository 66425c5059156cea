"""Who may talk to the server of a review, and what it never says; after every attack it still answers."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_names import BAD
from served import Serve, Served

from debgcd.cli import main
from debgcd.review.page.server import Guard, listen

pytestmark = pytest.mark.tries("attacks on the page", "refused")


@pytest.fixture(scope="module")
def server(serve: Serve) -> Served:
    return serve()


@pytest.fixture(autouse=True)
def _lives_on(server: Served) -> Iterator[None]:
    yield
    assert server.json("/api/changes")["version"] >= 0


PATHS = ["/", "/api/about", "/api/changes", "/thumb/0", "/picture/0", "/files/review.js", "/nothing"]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_without_the_token(server: Served, path: str) -> None:
    for headers in (
        {},
        {"cookie": f"debgcd-{server.port}=wrong"},
        {"cookie": f"debgcd-1={server.token}"},
        {"cookie": "=;é"},
    ):
        status, answer, content = server.ask("GET", path, headers=headers, good=False)
        assert status == 403 and b"token" in content and "set-cookie" not in answer
    assert server.ask("GET", f"{path}?token={secrets.token_urlsafe(32)}", good=False)[0] == 403


def test_the_first_url_sets_a_strict_cookie_and_only_the_page_takes_the_token(server: Served) -> None:
    status, headers, content = server.ask("GET", f"/?token={server.token}", good=False)
    assert status == 200 and b"<!doctype html>" in content
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and f"debgcd-{server.port}={server.token}" in cookie
    assert server.token.encode() not in content and headers["referrer-policy"] == "no-referrer"
    assert server.ask("GET", f"/api/about?token={server.token}", good=False)[0] == 403


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}", "[::1]:{port}", "", "127.0.0.1:{port}.evil.example"],
)
def test_a_foreign_host_is_refused(server: Served, host: str) -> None:
    """DNS rebinding: a name of the attacker's that leads to 127.0.0.1; even with the token."""
    for path in ("/api/about", f"/?token={server.token}"):
        assert server.ask("GET", path, headers={"host": host.format(port=server.port)})[0] == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:1", "https://127.0.0.1:{port}", ""]
)
def test_a_foreign_origin_is_refused(server: Served, origin: str) -> None:
    headers = {"origin": origin.format(port=server.port)}
    assert server.ask("POST", "/api/undo", b"{}", headers)[0] == 403
    assert server.ask("GET", "/api/about", headers=headers)[0] == 403


def test_a_post_needs_an_origin_and_a_page_of_another_port_is_refused(server: Served) -> None:
    cookie = {"cookie": f"debgcd-{server.port}={server.token}"}
    assert server.ask("POST", "/api/undo", b"{}", cookie, good=False)[0] == 403
    assert server.ask("GET", "/thumb/0", headers=cookie | {"sec-fetch-site": "same-site"}, good=False)[0] == 403
    assert server.ask("GET", "/thumb/0", headers=cookie | {"sec-fetch-site": "same-origin"}, good=False)[0] == 200


def test_answers_are_sent_without_delay() -> None:
    """asyncio turns Nagle's algorithm off only where the socket names its protocol; else a body waits for a receipt."""
    with listen(0) as place:
        assert place.proto == socket.IPPROTO_TCP


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="this system does not list its sockets")
def test_only_this_machine_can_connect(server: Served) -> None:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == server.port]
    assert listening == [f"0100007F:{server.port:04X}"]


WAYS = [
    "/../pyproject.toml",
    "/files/../server.py",
    "/files/..%2fserver.py",
    "/files/%2e%2e/session.py",
    "/files//etc/passwd",
]
WAYS += [
    "/files/",
    "/thumb/",
    "/thumb/..%2f..%2fetc%2fpasswd",
    "/thumb/-1",
    "/thumb/9999",
    "/thumb/0/..",
    "/picture/-1",
]
WAYS += ["/docs", "/openapi.json", "/.git/config", "/decisions.jsonl", "/api/nothing"]


@pytest.mark.parametrize("path", WAYS)
def test_no_path_leads_to_a_file(server: Served, path: str) -> None:
    status, _, content = server.ask("GET", path)
    assert (
        status in (404, 405, 422)
        and b"root:" not in content
        and b"import" not in content
        and b"[project]" not in content
    )


def test_a_link_in_an_image_s_place_shows_nothing(server: Served, finished: Path) -> None:
    """Neither a text nor another picture; the file that was there before is shown again."""
    paths = server.json("/api/about")["path"]
    number = next(i for i, path in enumerate(paths) if path.endswith("u10.png"))
    image, secret = finished / "images" / "unlabelled" / "u10.png", finished / "secret.png"
    kept = image.read_bytes()
    secret.write_bytes((finished / "images" / "unlabelled" / "u11.png").read_bytes())
    for outside in (secret, Path("/etc/passwd"), Path("/dev/zero")):
        image.unlink()
        image.symlink_to(outside)
        for place in ("thumb", "picture"):
            status, _, content = server.ask("GET", f"/{place}/{number}")
            assert status == 404 and b"root:" not in content and b"WEBP" not in content
    image.unlink()
    image.write_bytes(kept)
    assert server.ask("GET", f"/thumb/{number}")[2][8:12] == b"WEBP"


def test_pictures_are_pixels_that_were_decoded(server: Served) -> None:
    for place in ("thumb", "picture"):
        status, headers, content = server.ask("GET", f"/{place}/0")
        assert status == 200 and headers["content-type"] == "image/webp" and content[8:12] == b"WEBP"
        assert (
            headers["x-content-type-options"] == "nosniff" and headers["cross-origin-resource-policy"] == "same-origin"
        )


@pytest.mark.parametrize("path", ["/", "/api/about", "/nothing", "/thumb/0"])
def test_every_answer_has_a_strict_policy(server: Served, path: str) -> None:
    for good in (True, False):
        policy = server.ask("GET", path, good=good)[1]["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "frame-ancestors 'none'" in policy


def test_large_bodies_are_refused(server: Served) -> None:
    status, _, content = server.ask("POST", "/api/act", b"x" * 10_000_000)
    assert status == 413 and b"1 MB" in content
    chunks = (b"x" * 100_000 for _ in range(20))  # without a length
    assert server.ask("POST", "/api/act", chunks)[0] == 413  # type: ignore[arg-type]
    assert server.ask("POST", "/api/act", b"x" * 10_000_000, good=False)[0] == 403


def test_a_thousand_broken_requests(server: Served) -> None:
    """Noise, halves of requests, wrong methods, broken JSON, wrong types: none is obeyed, none ends the server."""
    good = f"Host: 127.0.0.1:{server.port}\r\nOrigin: http://127.0.0.1:{server.port}\r\nCookie: debgcd-{server.port}={server.token}\r\n"
    kinds = [
        lambda i: secrets.token_bytes(1 + i % 200),
        lambda i: b"GET /api/about HTTP/1.1\r\nHost: ",
        lambda i: f"POST /api/act HTTP/1.1\r\n{good}Content-Length: 50\r\n\r\n{{".encode(),
        lambda i: f"BREW / HTTP/1.1\r\n{good}\r\n".encode(),
        lambda i: b"GET / HTTP/9.9\r\n\r\n" + b"A" * 300,
        lambda i: b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        lambda i: f"POST /api/act HTTP/1.1\r\n{good}Content-Length: -1\r\n\r\n".encode(),
    ]  # fmt: skip
    for i in range(860):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as place:
            place.sendall(kinds[i % len(kinds)](i))
    bodies = [b"", b"{", b"[" * 50_000, b"null", b"[]", b"\xff\xfe", b'{"act": 7}', b'{"act": "split", "parts": "ab"}']
    bodies += [b'{"act": "move", "images": [1e99], "to": null}', b'{"act": "move", "images": [true], "to": "dog"}']
    bodies += [b'{"act": "name", "category": ["x"], "name": {}}', b'{"act": "merge", "categories": 5, "into": null}']
    bodies += [
        b'{"act": "split", "category": "dog", "parts": [[]]}',
        b'{"since": "x", "act": "accept", "images": [-1]}',
    ]
    before = server.json("/api/changes")["version"]
    for i in range(140):
        status, _, content = server.ask(
            "POST", f"/api/{('act', 'split', 'like', 'near')[i % 4]}", bodies[i % len(bodies)]
        )
        assert 400 <= status < 500, content
    assert server.json("/api/changes")["version"] == before


def test_hostile_names_are_sent_as_json_text(server: Served) -> None:
    name = f"{BAD}</script>\u202e=1+1"
    answer = server.json("/api/act", {"act": "name", "category": "new-01", "name": name, "since": -1})
    assert name in [one["name"] for one in answer["categories"]]
    assert server.ask("GET", "/api/changes")[1]["content-type"] == "application/json"
    refused = server.json("/api/act", {"act": "name", "category": "new-01", "name": "two\nlines"})
    assert "one line" in refused["error"]
    lines = (server.run / "decisions.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["name"] for line in lines] == [name]
    server.json("/api/undo", {})


def test_a_second_server_on_the_run_is_refused(server: Served, command: Callable[..., Any]) -> None:
    said = command("review", server.run, "--no-browser")
    assert said.code == 2 and not said.out and "another process is reviewing the run" in said.complaint


def test_an_act_that_is_in_the_log_is_called_saved(serve: Serve) -> None:
    """Also where model/categories.json cannot be written: then the answer says that."""
    server = serve()
    (server.run / "model" / ".categories.json.tmp").mkdir()  # it is written there, then renamed
    named = server.json("/api/act", {"act": "name", "category": "new-01", "name": "fox"})
    assert "error" not in named and "categories.json is behind" in named["behind"] and named["version"] == 1
    assert len((server.run / "decisions.jsonl").read_text("utf-8").splitlines()) == 1
    (server.run / "model" / ".categories.json.tmp").rmdir()
    named = server.json("/api/act", {"act": "name", "category": "new-02", "name": "elk"})
    assert not named["behind"] and "elk" in (server.run / "model" / "categories.json").read_text("utf-8")


def test_acts_that_would_stop_the_page(serve: Serve) -> None:
    server = serve()
    asked = [
        {"act": "split", "category": "new-01", "parts": [[0]] * 40_000},
        {"act": "move", "images": [0], "to": "new-999999999"},
        {"act": "move", "images": [0], "to": "new-٣٣"},
        *({"act": kind, **dict.fromkeys(("parts", "images", "categories", "category", "to", "into", "name"), 5)}
          for kind in ("split", "move", "merge", "name", "accept")),
        *({"act": "split", "category": "new-01", "parts": parts} for parts in (5, [5], [[5.5]], {"a": 5}, [None], "5")),
    ]  # fmt: skip
    for body in asked:
        assert "error" in server.json("/api/act", body), body
    for path in ("split", "like", "near", "undo", "redo"):
        for parts in (5, [5], None, 10**9):
            assert "error" in server.json(f"/api/{path}", {"images": 5, "parts": parts}), path
    assert server.json("/api/changes")["version"] == 0


def test_the_token_is_not_in_the_browser_s_command_line(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other users of the machine can read it. The browser gets a file that only this user can read, and that is gone later."""
    run, opened = shutil.copytree(finished / "run", tmp_path / "run"), []

    def serve(guard: Guard, place: socket.socket) -> None:
        (url,) = opened
        assert url.startswith("file://") and guard.token not in url
        page = Path(url.removeprefix("file://"))
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert f"?token={guard.token}" in page.read_text("utf-8")

    monkeypatch.setattr("debgcd.commands.review.open_page", opened.append)
    monkeypatch.setattr("debgcd.review.page.server.serve", serve)
    (run / ".review.html").symlink_to(tmp_path / "elsewhere")  # nothing is written through a link
    assert main(["review", str(run), "--cache", str(tmp_path / "cache")]) == 0
    assert "?token=" in capsys.readouterr().out and opened
    assert not (run / ".review.html").exists() and not (tmp_path / "elsewhere").exists()
