"""Does novelty survive naming? A first week, a review that names none, half or all of the new categories, and a second week.

.venv/bin/python benchmarks/quality/naming.py --root DIR [--root DIR ...] [--draws 10]

DIR as for run.py. On frozen features, without training. A draw has known classes with a quarter of their first week's images labelled, new
classes, and classes that come only in the second week, in which the others come in other numbers: between one and a tenth of
what there could be. Categories are named from the truth, or found by the frozen answer and named by the majority of their images.
results/naming.json holds the runs, docs/results.md their table.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for grid.py

from page import write_page  # noqa: E402
from settle import SETS, features_of  # noqa: E402

from debgcd.cluster.settle import SettleOptions, settle  # noqa: E402
from debgcd.evaluate import novelty_auroc  # noqa: E402
from debgcd.novelty import so_far as batches  # noqa: E402
from debgcd.novelty import vote  # noqa: E402
from debgcd.novelty.base import NoveltyThreshold  # noqa: E402
from debgcd.novelty.so_far import Origin, SoFar  # noqa: E402
from debgcd.system.machine import facts  # noqa: E402
from debgcd.train.setup import standardised  # noqa: E402

ROOT = HERE.parent.parent
DRAWS = 10
NAMED = (0.0, 0.5, 1.0)  # share of the new categories
KINDS = ("truth", "found")  # where the categories come from
CLASSES = {
    "digits": (4, 3, 3),
    "cifar10": (4, 3, 3),
    "pets": (6, 4, 2),
    "cub": (6, 4, 2),
}  # known, new, second week only
IMAGES = {"digits": 100, "cifar10": 100, "pets": 40, "cub": 30}  # per class
FIRST, LABELLED = (
    0.7,
    0.25,
)  # shares: of a class's images in the first week, and of those, of a known class, with a label

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Weeks:
    """One draw: images of both weeks."""

    feature: Tensor  # (N, width)
    truth: Ids  # (N,) known classes first, then new ones, then those of the second week alone
    first: NDArray[np.bool_]  # (N,) whether an image came in the first week
    label: Ids  # (N,) -1 where there is none
    known: int
    seen: int  # classes of the first week


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, action="append", required=True, metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "settle", help="folder for the digits' files")
    parser.add_argument("--cache", help="for centre crops (default as debgcd train)")
    parser.add_argument("--draws", type=int, default=DRAWS, metavar="N", help=f"of each set (default {DRAWS})")
    options = parser.parse_args()
    runs = []
    for name in SETS:
        raw, truth, backbone = features_of(name, options.root, options.work, options.cache)
        whole = standardised(backbone, raw)
        for draw in range(options.draws):
            weeks = drawn(whole, truth, name, draw)
            runs += [{"set": name, "draw": draw, **each} for each in measured(weeks, draw)]
            last = {f"{run['kind']} {run['named']}": run["auroc"] for run in runs if run["draw"] == draw}
            print(
                name,
                draw,
                {key: None if value is None else round(100 * value) for key, value in last.items()},
                flush=True,
            )
    written = {**facts(), "command": "benchmarks/quality/naming.py", "runs": runs}
    (HERE / "results" / "naming.json").write_text(json.dumps(written) + "\n", "utf-8")
    write_page(HERE / "results", ROOT / "docs" / "results.md")


def drawn(whole: Tensor, truth: Ids, name: str, draw: int) -> Weeks:
    """A draw by its number."""
    random = np.random.RandomState(draw)
    known, new, later = CLASSES[name]
    rows: list[int] = []
    of, first, label = [], [], []
    for position, c in enumerate(random.permutation(int(truth.max()) + 1)[: known + new + later]):
        here = random.permutation(np.flatnonzero(truth == c))[: IMAGES[name]]
        before = round(FIRST * len(here)) if position < known + new else 0
        share = 10 ** -random.rand()  # of those that come in the second week
        here = here[: before + max(2, round(share * (len(here) - before)))]
        rows += here.tolist()
        of += [position] * len(here)
        first += [i < before for i in range(len(here))]
        label += [position if position < known and i < round(LABELLED * before) else -1 for i in range(len(here))]
    chosen = torch.from_numpy(np.array(rows))
    return Weeks(whole[chosen], np.array(of), np.array(first), np.array(label), known, known + new)


def measured(weeks: Weeks, seed: int) -> list[dict[str, Any]]:
    """The first round, and the second one after each review: single images, the whole second week, and the novelty."""
    first, known, seen = weeks.first, weeks.known, weeks.seen
    label = torch.from_numpy(weeks.label)
    detector = fitted(weeks.feature[first], label[first])
    free = weeks.label[first] < 0
    novelty = detector(weeks.feature[first])
    runs = [
        {
            "kind": "first round",
            "named": 0.0,
            **errors(novelty[free], weeks.truth[first][free] >= known, detector.threshold()),
        }
    ]
    k = seen
    found = settle(
        weeks.feature[first],
        label[first],
        k,
        (label[first] < 0) & (novelty > 0.5),
        SettleOptions(calibrated=False),
        seed=seed,
    )
    for kind in KINDS:
        category = weeks.truth[first] if kind == "truth" else majority(found.category.numpy(), weeks.truth[first])
        for share in NAMED:
            # the categories that are named; their images, found or not, are all labelled then
            named = category < known + round(share * (seen - known))
            given = weeks.label[first] >= 0
            origin = np.where(given, Origin.GIVEN, np.where(named & (category >= known), Origin.NAMED, Origin.FOUND))
            so_far = SoFar(weeks.feature.shape[1], int(first.sum()))
            so_far.fit(weeks.feature[first], torch.from_numpy(category), torch.from_numpy(origin))
            new = weeks.truth[~first] >= seen
            judged = so_far(weeks.feature[~first])
            runs.append({"kind": kind, "named": share, **errors(judged.none_p, new, judged.errors)})
            single = [so_far(row[None]) for row in weeks.feature[~first]]
            alone = torch.cat([each.none_p for each in single])
            runs.append({"kind": f"{kind}, one by one", "named": share, **errors(alone, new, single[0].errors)})
            # what training is guided by, with what an earlier run says of its images and without
            for how in ("novelty", "novelty of labels alone"):
                voter = np.full(len(first), -1)
                labelled = given | (named & (category >= known)) if how != "novelty" else named | given
                voter[np.flatnonzero(first)[labelled]] = category[labelled]
                uneven = batches.UNEVEN if how == "novelty" else vote.UNEVEN
                head = fitted(weeks.feature, torch.from_numpy(voter), uneven)
                outside = weeks.truth >= known + round(share * (seen - known))
                s = head(weeks.feature)
                runs.append(
                    {"kind": f"{kind}, {how}", "named": share, **errors(s[~first], outside[~first], head.threshold())}
                )
    return runs


def majority(category: Ids, truth: Ids) -> Ids:
    """Each category under the number of the class that most of its images show."""
    return np.array([np.bincount(truth[category == c]).argmax() for c in category])


def fitted(feature: Tensor, label: Tensor, uneven: float = vote.UNEVEN) -> vote.Neighbours:
    head = vote.Neighbours(feature.shape[1], len(feature), uneven=uneven)
    head.fit(feature, label)
    return head


def errors(p: Tensor, new: NDArray[np.bool_], said: NoveltyThreshold) -> dict[str, Any]:
    """AUROC, and the errors of `looks_new` as stated and as they are."""
    looks = (p > said.above).numpy()
    return {
        "auroc": novelty_auroc(p.numpy(), new),
        "known": {"stated": said.error_known, "real": float(looks[~new].mean())},
        "new": {"stated": said.error_new, "real": float(1 - looks[new].mean())},
    }


if __name__ == "__main__":
    main()
