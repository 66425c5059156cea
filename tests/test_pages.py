"""The pages as a reader uses them: commands parse, Python compiles, the site has every page and link."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from debgcd.cli import _parser

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# the text of a block, with its language
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_of_the_pages", ROOT / "docs" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (page.name, text)
        for page in PAGES
        for found, text in BLOCK.findall(page.read_text("utf-8"))
        if found == language
    ]


def test_every_command_of_a_console_block_parses() -> None:
    lines = [(page, line) for page, text in blocks("console") for line in text.replace("\\\n", " ").splitlines()]
    commands = []
    for page, line in lines:
        # comments go; the launcher's own options come before -m debgcd
        words = shlex.split(line, comments=True)
        if "debgcd" in words and "..." not in words and (words[0] == "debgcd" or "-m" in words):
            commands.append((page, words[words.index("debgcd") + 1 :]))
    assert len(commands) > 20
    for page, words in commands:
        try:
            _parser(words[0]).parse_args(words)
        except SystemExit as error:
            pytest.fail(f"{page}: debgcd {' '.join(words)}: {error}")


def test_every_python_block_compiles() -> None:
    found = blocks("python")
    assert len(found) > 2
    for page, text in found:
        compile(text, page, "exec")


def test_the_site_has_every_page_once() -> None:
    text = (ROOT / "docs" / "zensical.toml").read_text("utf-8")
    listed = re.findall(r'= "([\w/-]+\.md)"', text)
    assert len(listed) == len(set(listed))
    own = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert own <= set(listed)
    assert tomllib.loads(text)["project"]["site_name"] == "debgcd"


def test_links_of_the_staged_pages_lead_somewhere(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "equations", str)  # they need a package that only `make docs` installs
    folder = site.stage(tmp_path / "docs")
    targets = 0
    for page in folder.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)#]+)", page.read_text("utf-8")):
            targets += 1
            assert (page.parent / target).exists(), f"{page.name}: {target}"
    assert targets > 50


def test_links_are_moved_and_others_stay(site: ModuleType) -> None:
    assert site.staged("[a](docs/paper.md#x) [b](https://x.org/docs/a.md) [c](#here)", "") == (
        "[a](paper.md#x) [b](https://x.org/docs/a.md) [c](#here)"
    )
    assert site.staged("[a](../README.md#install) [b](paper.md) [c](../benchmarks/results/k.json)", "docs") == (
        "[a](index.md#install) [b](paper.md) [c](benchmarks/results/k.json)"
    )


def test_every_key_and_its_range_are_in_the_reference(site: ModuleType) -> None:
    from debgcd import config

    text = site.configuration()
    for method in ("debgcd", "sptnet"):
        for key in config.leaves(config.to_dict(config.compose("small", method=method))):
            assert f"| `{key}` |" in text, key
    assert re.search(r"\| `schedule\.momentum` \| `0\.9` .*\| as published .*\| 0 to 0\.9999 \|", text)


def test_every_command_is_in_the_reference(site: ModuleType) -> None:
    from debgcd import cli

    text = site.commands()
    assert [f"## debgcd {name}" in text for name in cli.COMMANDS] == [True] * len(cli.COMMANDS)
    assert "usage: debgcd train" in text


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [
        each for name, found in project["optional-dependencies"].items() if name not in ("all", "dev") for each in found
    ]
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    for requirement in [*project["dependencies"], *extras]:
        name = re.split(r"[<>=\[]", requirement)[0]
        assert name == "debgcd" or f"| {name} |" in page, f"{name}: run benchmarks/dependencies.py"


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
