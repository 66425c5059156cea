"""What each part of the frozen answer brings: k-means and variants of `settle` on frozen features, without training.

.venv/bin/python benchmarks/quality/settle.py --root DIR [--root DIR ...]

DIR as for run.py. From each set, with K given, three kinds of labels: half of each known class; the same with class sizes from 10 to
1; five labels per class. Each kind is drawn twice: which classes are known, and which images are labelled. results/settle.json holds
the accuracies, docs/results.md their table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for grid.py

from grid import images_of  # noqa: E402
from page import write_page  # noqa: E402

from debgcd import config as configuration  # noqa: E402
from debgcd.cluster.kmeans import kmeans  # noqa: E402
from debgcd.cluster.settle import SettleOptions, settle  # noqa: E402
from debgcd.evaluate import clustering_accuracy  # noqa: E402
from debgcd.infer.infer import averaged_features_shared, features_shared  # noqa: E402
from debgcd.model.network import Network  # noqa: E402
from debgcd.novelty.vote import voted  # noqa: E402
from debgcd.system.machine import cache_folder, facts  # noqa: E402
from debgcd.train.plan import make_plan  # noqa: E402
from debgcd.train.setup import open_tokens  # noqa: E402

ROOT = HERE.parent.parent
SETS = ("digits", "cifar10", "pets", "cub")
KINDS = ("half", "long tail", "five labels")
DRAWS = 2
FULL = SettleOptions(calibrated=False)  # confidence is not measured
VARIANTS: dict[str, SettleOptions] = {
    "frozen answer": FULL,
    "without mean shift": replace(FULL, rounds=0),
    "3 rounds of mean shift": replace(FULL, rounds=3),
    "without whitening": replace(FULL, whiten=False),
    "equal sizes": replace(FULL, sizes="uniform"),
    "without the vote": replace(FULL, guided=False),
    "clusters without a head": replace(FULL, steps=0),
    "entropy weight 0.2": replace(FULL, entropy_weight=0.2),
    "entropy weight 1": replace(FULL, entropy_weight=1.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, action="append", required=True, metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "settle", help="folder for the digits' files")
    parser.add_argument("--cache", help="for centre crops (default as debgcd train)")
    options = parser.parse_args()
    runs = []
    for name in SETS:
        raw, truth, network = features_of(name, options.root, options.work, options.cache)
        for kind in KINDS:
            for draw in range(DRAWS):
                rows, label, order = drawn(truth, kind, draw)
                centre, averaged = (each[torch.from_numpy(rows)] for each in raw)
                network.standardise(centre)
                features = ((each - network.feature_mean) * network.feature_scale for each in (centre, averaged))
                found = accuracies(*features, label, order)
                runs += [{"set": name, "kind": kind, "draw": draw, "row": row, **each} for row, each in found.items()]
                print(name, kind, draw, {row: round(each["all"], 1) for row, each in found.items()}, flush=True)
    written = {**facts(), "command": "benchmarks/quality/settle.py", "runs": runs}
    (HERE / "results" / "settle.json").write_text(json.dumps(written, indent=1) + "\n", "utf-8")
    write_page(HERE / "results", ROOT / "docs" / "results.md")
    print("mean over all", statistics.mean(run["all"] for run in runs if run["row"] == "frozen answer"))


def features_of(
    name: str, roots: list[Path], work: Path, cache: str | None
) -> tuple[tuple[Tensor, Tensor], NDArray[np.int64], Network]:
    """Raw features (N, width) of a set's centre crops, and averaged over the views of a bank; classes (N,); the network."""
    images = images_of(name, roots, work, cache_folder(cache), 50, 2000)
    changes = {"k": 2, "run": {"cache": cache}, "views": {"bank": "on"}}
    plan = make_plan(configuration.override(configuration.compose("small"), changes, name), images)
    tokens = open_tokens(plan.config, images, plan.backbone, plan.cache)
    label, network = images.training_labels, Network(plan.backbone, nn.ModuleDict())
    truth = np.where(label >= 0, label, images.truth_ids(images.training_rows))
    numbers = np.arange(len(label))
    averaged = averaged_features_shared(network, tokens, numbers)
    assert averaged is not None
    return (features_shared(network, tokens, numbers), averaged), truth, network


def drawn(truth: NDArray[np.int64], kind: str, draw: int) -> tuple[NDArray[np.int64], Tensor, NDArray[np.int64]]:
    """Which images there are (n,), their labels (n,), -1 for none, and their classes (n,), the known half first."""
    random = np.random.RandomState(100 + draw)
    classes = int(truth.max()) + 1
    truth = np.argsort(random.permutation(classes))[truth]
    kept = np.ones(len(truth), dtype=bool)
    if kind == "long tail":
        share = 10.0 ** (-random.permutation(classes) / (classes - 1))
        for c in range(classes):
            rows = random.permutation(np.flatnonzero(truth == c))
            kept[rows[max(2, round(share[c] * len(rows))) :]] = False
    label = np.full(len(truth), -1)
    for c in range(classes // 2):
        rows = random.permutation(np.flatnonzero((truth == c) & kept))
        count = 5 if kind == "five labels" else len(rows) // 2
        label[rows[: max(1, min(count, len(rows) - 1))]] = c
    rows = np.flatnonzero(kept)
    return rows, torch.from_numpy(label[rows]), truth[rows]


def accuracies(
    centre: Tensor, averaged: Tensor, label: Tensor, truth: NDArray[np.int64]
) -> dict[str, dict[str, float]]:
    """All, Old and New of the unlabelled images, in per cent, by row of the table; as in a run, centre crops are sorted."""
    k, known, free = int(truth.max()) + 1, int(label.max()) + 1, (label < 0).numpy()
    new, new_centre = ((label < 0) & (voted(feature, label) > 0.5) for feature in (averaged, centre))
    answers = {
        row: settle(averaged, label, k, new if options.guided else None, options) for row, options in VARIANTS.items()
    }
    answers["centre crops alone"] = settle(centre, label, k, new_centre, FULL)
    category = {"k-means": kmeans(normalize(centre, dim=1), torch.full_like(label, -1), k).assignment}
    category |= {row: (answer.points(centre) @ answer.weight.T).argmax(1) for row, answer in answers.items()}
    found = {}
    for row, each in category.items():
        accuracy = clustering_accuracy(truth[free], each.numpy()[free], known)
        found[row] = {name: 100 * getattr(accuracy, name) for name in ("all", "old", "new")}
    return found


if __name__ == "__main__":
    main()
