"""The examples and the notebook: each compiles, and in `make soak` each runs and draws its picture."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image
from test_pages import site
from tiers import soak

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
NAMES = re.findall(r"<!-- example (\w+) -->", (ROOT / "docs" / "examples.md").read_text("utf-8"))
__all__ = ["site"]


def notebook() -> list[str]:
    """Its cells of code; what installs the package is left out."""
    cells = json.loads((EXAMPLES / "discover.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [re.sub(r"(?m)^( *)%pip .*", r"\1pass", cell) for cell in code]


def test_every_example_is_on_the_page_and_compiles() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - {"digits"}
    assert set(NAMES) == scripts and len(NAMES) == len(scripts)
    for path in [*EXAMPLES.rglob("*.py")]:
        compile(path.read_text("utf-8"), str(path), "exec")
    for cell in notebook():
        compile(cell, "discover.ipynb", "exec")


def test_the_page_has_code_output_and_picture(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, out: Path) -> str:
        (out / name).mkdir(parents=True)
        (out / name / f"{name}.png").write_bytes(b"a picture")
        return f"printed by {name}\n"

    monkeypatch.setattr(site, "equations", str)
    monkeypatch.setattr(site, "run_example", run)
    folder = site.stage(tmp_path / "docs")
    site.gallery(folder, tmp_path / "out")
    page = (folder / "examples.md").read_text("utf-8")
    assert "<!-- example" not in page and "class Ward(Method):" in page
    for name in NAMES:
        assert f"printed by {name}" in page and f"(examples/{name}.png)" in page
        assert (folder / "examples" / f"{name}.png").read_bytes() == b"a picture"


def test_the_button_of_colab_is_there_where_the_repository_is_known(
    site: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    assert site.staged("<!-- badge -->\nx", "docs") == "x"
    monkeypatch.setenv("GITHUB_REPOSITORY", "anna/debgcd")
    assert "colab.research.google.com/github/anna/debgcd/blob/main/examples/" in site.staged(
        "<!-- badge -->\nx", "docs"
    )


@soak
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(site: ModuleType, name: str, tmp_path: Path) -> None:
    printed = site.run_example(name, tmp_path)
    assert printed.strip() and str(tmp_path) not in printed
    with Image.open(tmp_path / name / f"{name}.png") as picture:
        assert len(picture.convert("RGB").getcolors(1 << 20) or [0] * 9) > 8


@soak
def test_the_notebook_runs_without_a_hub(tmp_path: Path) -> None:
    script = "\n".join(notebook()) + '\nassert backbone == "lite0"\nassert discoverer.run_.folder.is_dir()\n'
    (tmp_path / "notebook.py").write_text(script, "utf-8")
    environment = os.environ | {"IMAGES": "150", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, tmp_path / "notebook.py"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "a digit that I know" in done.stdout
