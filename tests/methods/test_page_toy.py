"""The complete method on docs/architecture.md: it is short, trains, resumes to the same bytes and predicts."""

from __future__ import annotations

import json
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import at_call, debgcd, result

from debgcd import methods

PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")
(TOY,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Packages are looked up once per process."""
    methods._foreign.cache_clear()
    yield
    methods._foreign.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """install("my-package", code, sure="my_package:Sure"): as pip does it, a module and its metadata on the path."""

    def call(name: str, code: str, **points: str) -> None:
        folder, module = tmp_path / f"site-{name}", name.replace("-", "_")
        metadata = folder / f"{module}-1.2.dist-info"
        metadata.mkdir(parents=True)
        (folder / f"{module}.py").write_text(code, "utf-8")
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = (f"{method} = {place}\n" for method, place in points.items())
        (metadata / "entry_points.txt").write_text("[debgcd.methods]\n" + "".join(lines))
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, module, raising=False)
        methods._foreign.cache_clear()

    return call


def _in_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("debgcd.methods.sure")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(methods._PLACES, "sure", "sure.Sure")
    exec(compile(TOY, "docs/architecture.md", "exec"), module.__dict__)


def test_the_toy_has_forty_lines_of_code_at_most() -> None:
    assert len([line for line in TOY.splitlines() if line.strip()]) <= 40


@pytest.mark.parametrize("place", ["this package", "another package"])
def test_the_toy_of_the_page_trains_resumes_and_predicts(
    place: str,
    install: Callable[..., None],
    tmp_path: Path,
    shared_csv: Path,
    arguments: Callable[..., list[str]],
    command: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if place == "this package":
        _in_this_package(monkeypatch)
    else:
        install("my-package", TOY, sure="my_package:Sure")

    def words(run: Path) -> list[str]:
        return arguments(shared_csv, run, "--method", "sure", "--cache", tmp_path / "cache", "--bank", "on", sure=0.2)

    whole, run = tmp_path / "whole", tmp_path / "run"
    assert debgcd(words(whole), tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert debgcd(words(run), tmp_path / "log", at_call("debgcd.train.loop.step", 5, after=True)) < 0
    assert debgcd(["resume", run], tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert result(run) == result(whole)
    assert command("predict", run, run / "manifest.csv", "-o", tmp_path / "out.csv").code == 0
    noted = json.loads((run / "environment.json").read_text()).get("method")
    assert noted == (None if place == "this package" else "my-package 1.2")


def test_another_packages_method_is_listed_with_where_it_comes_from(install: Callable[..., None], command: Any) -> None:
    install("my-package", TOY, sure="my_package:Sure")
    assert "sure" in methods.METHODS and "my_package" not in sys.modules  # names need no import
    assert len(methods.METHODS) == len(list(methods.METHODS))
    (row,) = (line for line in command("methods").out.splitlines() if line.startswith("sure "))
    assert "learns its own sure guesses (from my-package 1.2)" in row
    assert re.search(r"one of debgcd, simgcd, .*, sptnet, sure\b", " ".join(command("train", "--help").out.split()))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemError('two\\nlines')", "SystemError: two lines"),
        ("Sure = 3", "my_package:Sure is not a subclass of debgcd.methods.base.Method"),
        ("", "has no attribute 'Sure'"),
    ],
)
def test_a_broken_package_is_refused_only_when_its_method_is_asked_for(
    code: str, why: str, install: Callable[..., None], tmp_path: Path, shared_csv: Path, train: Any, command: Any
) -> None:
    install("my-package", code, sure="my_package:Sure")
    said = train(shared_csv, tmp_path / "run", "--method", "sure")
    assert said.code == 2 and "method sure of the package my-package 1.2 cannot be used" in said.complaint
    assert why in said.complaint
    listed = command("methods")
    assert listed.code == 0 and "method sure of the package my-package 1.2 cannot be used" in listed.out
    wrong = train(shared_csv, tmp_path / "run", sinkhorn_rounds=1)  # looks for an owner among all methods
    assert wrong.code == 2 and "unknown key" in wrong.complaint
    assert command("config", "--method", "simgcd").code == 0


def test_own_names_win_and_two_packages_of_one_name_are_refused(
    install: Callable[..., None], tmp_path: Path, shared_csv: Path, train: Any, command: Any
) -> None:
    install("my-package", TOY, sure="my_package:Sure", kmeans="my_package:Sure")
    clash = "method kmeans is debgcd's own; that of my-package 1.2 is ignored: rename it"
    assert clash in command("methods").out
    said = train(shared_csv, tmp_path / "run", "--method", "kmeans")
    assert said.code == 0 and clash in said.err and methods.METHODS["kmeans"].__module__ == "debgcd.methods.kmeans"
    install("your-package", TOY, sure="your_package:Sure")
    said = train(shared_csv, tmp_path / "other", "--method", "sure")
    assert said.code == 2
    assert (
        "several packages offer the method sure: my-package 1.2, your-package 1.2; uninstall all but" in said.complaint
    )
