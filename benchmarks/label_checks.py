"""How often the looks at the labels before a run cry wolf, and how often they see what they are for; on features, no training.

.venv/bin/python benchmarks/label_checks.py --root DIR [--root DIR ...]

The 60 draws of quality/draws.py as they are, and with labels or labelled images spoilt: 30 % of the labels wrong, all permuted;
all labelled images brighter, all by one camera that is not sharp. Updates benchmarks/results/label_checks.json and the table in
docs/own_images.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "quality"))

from draws import DRAWS, SETS, draw  # noqa: E402
from estimate_k import lite_features  # noqa: E402
from grid import images_of, write_between  # noqa: E402

from debgcd.data.image.decode import decode  # noqa: E402
from debgcd.data.manifest import Manifest  # noqa: E402
from debgcd.novelty.suspicious_labels import check_labels  # noqa: E402
from debgcd.system.machine import cache_folder, facts  # noqa: E402
from debgcd.system.progress import say  # noqa: E402

ROOT = HERE.parent
FILE, PAGE = HERE / "results" / "label_checks.json", ROOT / "docs" / "own_images.md"
WRONG = 0.3

SHOTS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "all labelled images brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.5),
    "all labelled images by one camera": lambda image: image.filter(ImageFilter.GaussianBlur(min(image.size) / 100)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, action="append", required=True, metavar="DIR", help="folder of the sets")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "runs" / "label-checks", help="folder for images and features"
    )
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    for name in SETS:
        whole = images_of(name, options.root, options.work, cache_folder(None), 10**6, 10**9)
        for number in range(DRAWS):
            manifest, _ = draw(whole, number)
            found.append({"set": name, "draw": number, **seen(f"{name}-{number}", manifest, options.work)})
    FILE.write_text(json.dumps({**facts(), "draws": found}, indent=1) + "\n", "utf-8")
    write_between(PAGE, "benchmarks/label_checks.py", table(found))
    print(table(found))


def seen(name: str, manifest: Manifest, work: Path) -> dict[str, Any]:
    """What is said of a draw, as it is and spoilt."""
    label = manifest.training_labels
    plain = kept_features(name, manifest, work)
    random = np.random.default_rng(0)
    labelled = np.flatnonzero(label >= 0)
    wrong, permuted = label.copy(), label.copy()
    some = random.choice(labelled, round(WRONG * len(labelled)), replace=False)
    wrong[some] = (label[some] + random.integers(1, len(manifest.classes), len(some))) % len(manifest.classes)
    permuted[labelled] = random.permutation(label[labelled])
    told = {
        "as they are": said(plain, label),
        "30 % of the labels wrong": said(plain, wrong) | {"wrong": len(some)},
        "labels permuted": said(plain, permuted),
    }
    for kind, change in SHOTS.items():
        told[kind] = said(
            kept_features(f"{name} {kind}", retaken(manifest, change, work / "images" / kind / name), work), label
        )
    return {"labelled": len(labelled), "classes": len(manifest.classes), "said": told}


def said(feature: torch.Tensor, label: NDArray[np.int64]) -> dict[str, Any]:
    found = check_labels(feature, torch.from_numpy(label))
    return {"chance": found.chance, "expected": found.wrong, "apart": found.apart}


def kept_features(name: str, manifest: Manifest, work: Path) -> torch.Tensor:
    """(N, width) of the training images, computed once."""
    place = work / "features" / f"{name}.npy"
    if not place.exists():
        say(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        np.save(place, lite_features(manifest).numpy())
    return torch.from_numpy(np.load(place))


def retaken(manifest: Manifest, change: Callable[[Image.Image], Image.Image], folder: Path) -> Manifest:
    """The labelled images changed, the others as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = list(manifest.paths)
    for i, label in enumerate(manifest.labels):
        if label is not None:
            paths[i] = folder / f"{i:04d}.png"
            if not paths[i].exists():
                change(Image.fromarray(decode(manifest.paths[i]))).save(paths[i])
    return replace(manifest, paths=tuple(paths))


def table(found: list[dict[str, Any]]) -> str:
    """In how many draws each warning is given."""
    lines = [
        "| labels and images | contradict the images | wrong ones expected | differ as a group |",
        "|---|--:|--:|--:|",
    ]
    for kind in found[0]["said"]:
        each = [entry["said"][kind] for entry in found]
        counts = [sum(bool(one[name]) for one in each) for name in ("chance", "expected", "apart")]
        lines.append(f"| {kind} | " + " | ".join(map(str, counts)) + " |")
    spoilt = [entry["said"]["30 % of the labels wrong"] for entry in found]
    warned = [one for one in spoilt if one["expected"]]
    said, true = (sum(one[name] for one in warned) for name in ("expected", "wrong"))
    return "\n".join(lines) + (
        f"\n\nOf {len(found)} draws, those with the warning. Where wrong labels were expected of the 30 %, {said} in all were expected "
        f"and {true} were wrong. Frozen lite0; digits and CIFAR-10 have too few pixels to be unsharp. Thresholds were chosen on these "
        f"draws.\nMeasured {facts()['date']} by `benchmarks/label_checks.py`; the counts are in "
        "[benchmarks/results/label_checks.json](../benchmarks/results/label_checks.json)."
    )


if __name__ == "__main__":
    main()
