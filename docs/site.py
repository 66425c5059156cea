"""Build the documentation as a site in build/site, without a connection: `make docs`.

The pages are README.md and docs/*.md as they stand; the examples are run, and what they print and draw is put into their page. Written
beside them from the code: every command's help, every configuration key with its values, reason and range, and the reference of the Python
interface. Equations become MathML, so that a page needs no script.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
EXAMPLES = ROOT / "examples"
EXAMPLE = re.compile(r"<!-- example (\w+) -->\n")
NAME = re.compile(r"(?<!\[)`(debgcd(?:\.\w+)+)`")
LINK = re.compile(r"(\]\()([^)\s#]*)((?:#[^)]*)?\))")
PRESETS = ("paper", "released", "small")
# page of the reference -> its title and the modules or classes that it documents
PYTHON = {
    "discoverer": ("Discoverer", ["debgcd.discoverer.Discoverer"]),
    "losses": ("Losses", ["debgcd.losses"]),
    "evaluate": ("Measures", ["debgcd.evaluate"]),
    "methods": (
        "Methods",
        ["debgcd.methods.base", "debgcd.methods.shared", "debgcd.methods.simgcd", "debgcd.methods.debgcd"],
    ),
    "model": ("Networks", ["debgcd.model.heads", "debgcd.model.network"]),
    "cluster": ("Clusterings", ["debgcd.cluster.kmeans", "debgcd.cluster.settle", "debgcd.cluster.estimate_k"]),
    "novelty": ("Novelty", ["debgcd.novelty.base", "debgcd.novelty.vote", "debgcd.novelty.one_vs_all"]),
    "predictions": ("Predictions", ["debgcd.run.predictions"]),
}


def main() -> None:
    folder = stage(BUILD / "docs")
    gallery(folder, BUILD / "examples")
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    shutil.copy(ROOT / "docs" / "zensical.toml", folder.parent)
    zensical = Path(sys.executable).with_name("zensical")
    if not zensical.exists():
        sys.exit("zensical is not installed; run `make docs`, which installs it")
    # griffe, which reads docstrings, takes the package from here
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    # --clean: its cache does not see that a docstring has changed
    command = [zensical, "build", "--strict", "--clean", "-f", folder.parent / "zensical.toml"]
    if subprocess.run(command, cwd=folder.parent, env=environment).returncode:
        sys.exit("the site was not built; the messages above say which page is wrong")
    print(f"open {BUILD / 'site' / 'index.html'}")


def stage(folder: Path) -> Path:
    """Write all pages of the site, as Markdown, and their pictures into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "reference").mkdir(parents=True)
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page.name != "README.md":
            (folder / page.name).write_text(staged(page.read_text("utf-8"), "docs"), "utf-8")
    (folder / "index.md").write_text(staged((ROOT / "README.md").read_text("utf-8"), ""), "utf-8")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        (folder / name.lower()).write_text(staged((ROOT / name).read_text("utf-8"), ""), "utf-8")
    for picture in [*(ROOT / "docs").glob("*.png"), *(ROOT / "docs").glob("*.jpg")]:
        shutil.copy(picture, folder)
    shutil.copytree(ROOT / "benchmarks" / "results", folder / "benchmarks" / "results")
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__", "*.toml"))
    for name, text in {"commands": commands(), "configuration": configuration(), **python()}.items():
        (folder / "reference" / f"{name}.md").write_text(text, "utf-8")
    return folder


def gallery(folder: Path, out: Path) -> None:
    """Run every example of the page and put its code, what it prints and its picture there."""
    shutil.rmtree(out, ignore_errors=True)
    page = folder / "examples.md"
    page.write_text(EXAMPLE.sub(lambda found: shown(found[1], out, folder), page.read_text("utf-8")), "utf-8")


def shown(name: str, out: Path, folder: Path) -> str:
    """An example as it stands in its page."""
    printed = run_example(name, out)
    shutil.copy(out / name / f"{name}.png", folder / "examples")
    parts = [("python", EXAMPLES / f"{name}.py")]
    parts += [("python", path) for path in sorted((EXAMPLES / name).glob("*.py"))]
    code = "".join(f"\n```{language}\n{path.read_text('utf-8').rstrip()}\n```\n" for language, path in parts)
    return f"{code}\n```text\n{printed.rstrip()}\n```\n\n![What {name}.py draws](examples/{name}.png)\n"


def run_example(name: str, out: Path) -> str:
    """What an example prints; it writes into out/NAME. The package beside it, if it has one, is installed for it alone."""
    places = [str(ROOT)]
    if (EXAMPLES / name).is_dir():
        shutil.copytree(EXAMPLES / name, out / "package", dirs_exist_ok=True)
        pip = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", out / "installed"]
        subprocess.run([sys.executable, "-m", *pip, out / "package"], check=True)
        places.append(str(out / "installed"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, EXAMPLES / f"{name}.py", out / name]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.replace(f"{out}{os.sep}", "")


def staged(text: str, folder: str) -> str:
    """A page as it stands in the site: its links point to pages of the site, its equations are MathML.

    folder: of the page, relative to the repository.
    """

    def moved(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = os.path.normpath(os.path.join(folder, target))
        path = {"README.md": "index.md", "docs/README.md": "index.md"}.get(path, path.removeprefix("docs/"))
        return before + (path.lower() if path in ("CONTRIBUTING.md", "CHANGELOG.md") else path) + after

    linked = LINK.sub(moved, text.replace("<!-- badge -->\n", badge()))
    return equations(NAME.sub(referred, linked) if "$$" in text else linked)


def referred(name: re.Match[str]) -> str:
    """A function of the package in a sentence, linked to its place in the reference if it has one."""
    for page, (_, targets) in PYTHON.items():
        if any(name[1].startswith(f"{target}.") for target in targets):
            return f"[{name[0]}](reference/{page}.md#{name[1]})"
    return name[0]


def badge() -> str:
    """A button that opens the notebook in Colab; GitHub's workflows say where the repository is, nobody else knows."""
    repository = os.environ.get("GITHUB_REPOSITORY")
    if repository is None:
        return ""
    target = f"https://colab.research.google.com/github/{repository}/blob/main/examples/discover.ipynb"
    return f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({target})\n"


def equations(text: str) -> str:
    """A page that has equations ($$ on lines of their own) with these and the $…$ in its sentences as MathML."""
    if "$$" not in text:
        return text
    from latex2mathml.converter import convert

    text = re.sub(r"(?ms)^\$\$\n(.+?)\n\$\$$", lambda found: convert(found[1], display="block"), text)
    return re.sub(r"\$([^$\n]+)\$", lambda found: convert(found[1]), text)


def commands() -> str:
    """The help of every command."""
    from debgcd import cli

    lines = ["# Commands", "", "What `debgcd COMMAND --help` prints.", ""]
    for name in cli.COMMANDS:
        lines += [f"## debgcd {name}", "", "```text", command_help(name).rstrip(), "```", ""]
    return "\n".join(lines)


def command_help(name: str) -> str:
    """The help of a command at a fixed width, whatever the terminal."""
    from debgcd import cli

    parser = cli._parser(name)
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "110"
    try:
        return str(groups[0].choices[name].format_help())
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def configuration() -> str:
    """Every key of the configuration: its value per preset, why, and its range."""
    from debgcd import config as settings
    from debgcd.methods import METHODS

    lines = ["# Every setting", "", "A key goes into a file for `--config FILE.yaml`, or after `--set`, as in"]
    lines += ["`--set schedule.lr=0.05`. `debgcd config` prints the values of a run with the reason for each.", ""]
    general = settings.leaves(settings.to_dict(settings.compose("paper", method="kmeans")))
    lines += ["## Every method", "", *_table(dict.fromkeys(general), "debgcd")]
    for method in METHODS:
        own = settings.leaves(settings.to_dict(settings.compose("paper", method=method)))
        keys = {key: None for key in own if key not in general}
        if keys:
            lines += [f"## {METHODS[method].about.title} (`{method}`)", "", *_table(keys, method)]
    return "\n".join(lines)


def _table(keys: dict[str, None], method: str) -> Iterator[str]:
    from debgcd import config as settings

    presets = {name: settings.compose(name, method=method) for name in PRESETS}
    values = {name: settings.leaves(settings.to_dict(each)) for name, each in presets.items()}
    reasons = settings.reasons(presets["paper"], [])
    ranges = dict(_ranges(presets["paper"]))
    yield "| key | " + " | ".join(PRESETS) + " | why | range |"
    yield "| --- " * (len(PRESETS) + 3) + "|"
    for key in keys:
        cells = [f"`{values[name][key]}`" if key in values[name] else "" for name in PRESETS]
        yield f"| `{key}` | {' | '.join(cells)} | {_cell(reasons.get(key, ''))} | {ranges.get(key, '')} |"
    yield ""


def _ranges(section: Any, path: str = "") -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(section):
        value, key = getattr(section, field.name), f"{path}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _ranges(value, "" if field.name == "options" else f"{key}.")
        elif field.metadata.get("range"):
            least, most = field.metadata["range"]
            yield key, f"{least:g} to {most:g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def python() -> dict[str, str]:
    """The pages of the Python interface, which mkdocstrings fills from the docstrings."""
    pages = {}
    for name, (title, targets) in PYTHON.items():
        pages[name] = "\n".join([f"# {title}", "", *(f"::: {target}\n" for target in targets)])
    return pages


if __name__ == "__main__":
    main()
