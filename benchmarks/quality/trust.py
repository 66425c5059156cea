"""Is a category as pure as its trust says, are the certain images right, and the suggested splits and merges? On the frozen answers
of draws.py's sets.

.venv/bin/python benchmarks/quality/trust.py --root DIR [--root DIR ...] [--fit]

DIR as for run.py. Of each set, draws 0–14 are measured, with K given and with K estimated; draws 100–124 are those that the weights in
debgcd/report/trust.py and suggest.py were fitted on (--fit prints them, fitted again, and the measures with the set itself left out of
the fit). Resumable by draw; results/trust.json holds all that is measured, docs/report.md the tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for grid.py

from draws import SETS, draw  # noqa: E402
from grid import images_of, write_between  # noqa: E402

from debgcd import config as configuration  # noqa: E402
from debgcd.cluster.estimate_k import estimate_k  # noqa: E402
from debgcd.cluster.settle import SettleOptions, settle  # noqa: E402
from debgcd.cluster.structure import kept_together, structure  # noqa: E402
from debgcd.data.manifest import Manifest  # noqa: E402
from debgcd.evaluate import clustering_accuracy  # noqa: E402
from debgcd.model.backbone import Backbone  # noqa: E402
from debgcd.novelty.vote import voted  # noqa: E402
from debgcd.report import suggest, trust  # noqa: E402
from debgcd.review.page.suggested import CERTAIN  # noqa: E402
from debgcd.review.state import OPEN  # noqa: E402
from debgcd.system.files import read_json, write_json  # noqa: E402
from debgcd.system.machine import cache_folder, facts  # noqa: E402
from debgcd.train.plan import make_plan  # noqa: E402
from debgcd.train.setup import StartFeatures, open_tokens, standardised  # noqa: E402

ROOT = HERE.parent.parent
MEASURED, FITTED = range(15), range(100, 125)  # draws of each set
GIVEN, ESTIMATED = "given", "estimated"  # K
SAID = (0.98, 0.9, 0.8, 0.7, 0.6, 0.5)
KEPT = (0, CERTAIN)  # how often an image is kept together with its category; 0: all of them
Ids = NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, action="append", required=True, metavar="DIR", help="folder of the sets")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "trust", help="folder for features and draws")
    parser.add_argument("--cache", help="for the sets (default as debgcd train)")
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--fit", action="store_true", help="also look at the draws that the weights are fitted on")
    options = parser.parse_args()
    rows = []
    for name in options.sets:
        rows += _set(name, [*MEASURED, *(FITTED if options.fit else ())], options)
    if options.fit:
        fit(rows)
    measured = [row for row in rows if row["draw"] in MEASURED]
    written = {**facts(), "command": "benchmarks/quality/trust.py", **summary(measured)}
    print(json.dumps(written, indent=1))
    if list(options.sets) == list(SETS):
        (HERE / "results" / "trust.json").write_text(json.dumps(written, indent=1) + "\n", "utf-8")
        write_between(ROOT / "docs" / "report.md", "benchmarks/quality/trust.py", table(written))


def _set(name: str, numbers: Sequence[int], options: argparse.Namespace) -> list[dict[str, Any]]:
    """What is found in each of these draws, with K given and estimated."""
    place = {number: options.work / f"{name}-{number}.json" for number in numbers}
    if not all(path.exists() for path in place.values()):
        options.work.mkdir(parents=True, exist_ok=True)
        whole = images_of(name, options.root, options.work, cache_folder(options.cache), 10**6, 10**9)
        drawn = {number: draw(whole, number) for number in numbers}
        raw, row, backbone = _features(name, whole, [images for images, _ in drawn.values()], options)
        for number, (images, k) in drawn.items():
            if not place[number].exists():
                feature = standardised(backbone, raw[[row[str(path)] for path in images.paths]])
                label = images.training_labels
                truth = np.where(label >= 0, label, images.truth_ids(images.training_rows))
                write_json(place[number], _draw(feature, torch.from_numpy(label), truth, k))
                print(name, number, flush=True)
    return [{"set": name, "draw": number, **one} for number, path in place.items() for one in read_json(path)]


def _features(
    name: str, whole: Manifest, drawn: list[Manifest], options: argparse.Namespace
) -> tuple[Tensor, dict[str, int], Backbone]:
    """Raw features of all images of the draws, the row of each path, and the network."""
    wanted = {str(path) for images in drawn for path in images.paths}
    images = whole.select([i for i, path in enumerate(whole.paths) if str(path) in wanted])
    changes = {"k": 2, "run": {"cache": options.cache}, "method": "pim", "views": {"bank": "off"}}
    plan = make_plan(configuration.override(configuration.compose("small"), changes, name), images)
    kept = options.work / f"{name}-{len(images)}.npy"
    if not kept.exists():
        tokens = open_tokens(plan.config, images, plan.backbone, plan.cache)
        np.save(kept, StartFeatures(plan.backbone, tokens, images.training_paths)().cpu().numpy())
    return torch.from_numpy(np.load(kept)), {str(path): i for i, path in enumerate(images.paths)}, plan.backbone


def _draw(feature: Tensor, label: Tensor, truth: Ids, k: int) -> list[dict[str, Any]]:
    return [
        {"k": number, "of": k, "how": how, **found(feature, label, truth, number)}
        for how, number in ((GIVEN, k), (ESTIMATED, estimate_k(feature, label).k))
    ]


@torch.no_grad()
def found(feature: Tensor, label: Tensor, truth: Ids, k: int) -> dict[str, Any]:
    """The frozen answer with K categories: per category its purity and the parts of its trust; candidates with their evidence."""
    new = (label < 0) & (voted(feature, label) > 0.5)
    category = settle(feature, label, k, new, SettleOptions(calibrated=False)).category.numpy()
    given, known, free = label.numpy(), int(label.max()) + 1, label.numpy() < 0
    seen = structure(feature, given, category, k)
    said, parts = suggest.trust_of(seen, category, given, k)
    size = np.bincount(category[free], minlength=k)
    merges = suggest.merges(seen, category, given, k)
    splits = suggest.splits(seen, category, given, k)
    accepted, changed = suggest.suggestions(seen, category, given, [OPEN] * k), category.copy()
    for number, one in enumerate(accepted):
        if one.kind == "merge":
            changed[changed == one.categories[1]] = one.categories[0]
        else:
            changed[one.images] = k + number
    return {
        "categories": [
            {
                "known": bool(c < known),
                "size": int(size[c]),
                "purity": _largest(truth[free & (category == c)]) / int(size[c]),
                "trust": float(said[c]),
                **{name: float(part[c]) for name, part in parts.items()},
            }
            for c in np.flatnonzero(size > 1)
        ],
        "merge": [{**evidence, "right": _merge_right(one, category, free, truth)} for one, evidence in merges],
        "split": [{**evidence, "right": _split_right(one, category, free, truth)} for one, evidence in splits],
        "suggested": [
            {
                "kind": one.kind,
                "right": (_merge_right if one.kind == "merge" else _split_right)(one, category, free, truth),
            }
            for one in accepted
        ],
        "certain": _certain(kept_together(seen, category[seen.row], k), category, free, truth),
        "before": clustering_accuracy(truth[free], category[free], known).all,
        "after": clustering_accuracy(truth[free], changed[free], known).all,
    }


def _merge_right(one: suggest.Suggestion, category: Ids, free: NDArray[np.bool_], truth: Ids) -> bool:
    """Whether both categories are mostly of one class."""
    first, second = (np.bincount(truth[free & (category == c)]).argmax() for c in one.categories)
    return bool(first == second)


def _split_right(one: suggest.Suggestion, category: Ids, free: NDArray[np.bool_], truth: Ids) -> bool:
    """Whether the images that leave are mostly of another class than those that stay."""
    stays = free & (category == one.categories[0])
    stays[one.images] = False
    return bool(np.bincount(truth[stays]).argmax() != np.bincount(truth[one.images]).argmax())


def _certain(kept: NDArray[np.float64], category: Ids, free: NDArray[np.bool_], truth: Ids) -> dict[str, list[int]]:
    """How many images are kept together with their category at least so often, and how many of these are of its largest class."""
    largest = {c: np.bincount(truth[free & (category == c)]).argmax() for c in np.unique(category[free])}
    right = np.array([truth[i] == largest[category[i]] for i in np.flatnonzero(free)])
    return {str(at): [int((kept[free] >= at).sum()), int(right[kept[free] >= at].sum())] for at in KEPT}


def _largest(truth: Ids) -> int:
    return int(np.bincount(truth).max())


def fit(rows: list[dict[str, Any]]) -> None:
    """Print the weights fitted on the draws for that, and how the fit without a set does on that set's other draws."""
    from sklearn.linear_model import LogisticRegression

    def fitted(x: NDArray[np.float64], y: NDArray[np.float64], used: NDArray[np.bool_]) -> LogisticRegression:
        """y: shares in 0..1, each as much of a success."""
        both = np.concatenate([x[used], x[used]])
        weight = np.concatenate([y[used], 1 - y[used]])
        return LogisticRegression(C=10, max_iter=2000).fit(
            both, np.repeat([1, 0], int(used.sum())), sample_weight=weight
        )

    for what, key, names in (
        ("categories", "purity", ["known", *trust.WEIGHTS]),
        ("merge", "right", list(suggest.MERGE)[1:]),
        ("split", "right", list(suggest.SPLIT)[1:]),
    ):
        flat = [
            {**each, "set": row["set"], "draw": row["draw"], "how": row["how"]}
            for row in rows
            if what == "categories" or row["how"] == ESTIMATED  # splits and merges are suggested only there
            for each in row[what]
        ]
        y = np.array([float(each[key]) for each in flat])
        x = np.array([[float(each[name]) for name in names] for each in flat])
        if what == "categories":
            x[:, 1:] = trust.logit(x[:, 1:])
        develop, name = np.array([each["draw"] in FITTED for each in flat]), np.array([each["set"] for each in flat])
        whole = fitted(x, y, develop)
        print(
            what,
            {"start": round(float(whole.intercept_[0]), 3)}
            | dict(zip(names, whole.coef_[0].round(3).tolist(), strict=True)),
        )
        p = np.zeros(len(flat))
        for each in SETS:
            if (name == each).any():
                p[name == each] = fitted(x, y, develop & (name != each)).predict_proba(x[name == each])[:, 1]
        for how in (GIVEN, ESTIMATED) if what == "categories" else (ESTIMATED,):
            asked = ~develop & np.array([each["how"] == how for each in flat])
            if what == "categories":
                print("  left out:", how, {said: _mean(y[asked & (abs(p - said) <= 0.05)]) for said in SAID})
            else:
                print("  left out:", how, {at: _mean(y[asked & (p >= at)]) for at in (0.4, 0.5, 0.6, 0.7, 0.8)})


def _mean(values: NDArray[np.float64]) -> tuple[float, int]:
    return (round(float(values.mean()), 2), len(values)) if len(values) else (float("nan"), 0)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Calibration, how many images are certain and right, the share of right suggestions, and All before and after accepting all
    of them, per set and in all.
    """
    result: dict[str, Any] = {"calibration": {}, "certain": {}, "suggestions": {}}
    for how in (GIVEN, ESTIMATED):
        these = [row for row in rows if row["how"] == how]
        every = [category for row in these for category in row["categories"]]
        said, purity = (np.array([each[name] for each in every]) for name in ("trust", "purity"))
        result["calibration"][how] = {
            str(at): dict(zip(("purity", "categories"), _mean(purity[abs(said - at) <= 0.05]), strict=True))
            for at in SAID
        }
        every, right, certain, both = (sum(row["certain"][str(at)][i] for row in these) for at in KEPT for i in (0, 1))
        result["certain"][how] = {"certain": certain / every, "right": both / certain, "right of all": right / every}
        for name in (*dict.fromkeys(row["set"] for row in these), "all"):
            some = [row for row in these if name in (row["set"], "all")]
            flat = [one for row in some for one in row["suggested"]]
            result["suggestions"][f"{name}, K {how}"] = {
                **{
                    kind: [
                        sum(one["right"] for one in flat if one["kind"] == kind),
                        sum(one["kind"] == kind for one in flat),
                    ]
                    for kind in ("merge", "split")
                },
                "before": round(100 * float(np.mean([row["before"] for row in some])), 1),
                "after": round(100 * float(np.mean([row["after"] for row in some])), 1),
            }
    return result


def table(written: dict[str, Any]) -> str:
    """The tables of docs/report.md."""
    lines = [
        "| categories said to be about | " + " | ".join(f"{100 * at:.0f} % pure" for at in SAID) + " |",
        "|---" * (len(SAID) + 1) + "|",
    ]
    for how, row in written["calibration"].items():
        cells = [f"{100 * one['purity']:.0f} ({one['categories']})" for one in row.values()]
        lines.append(f"| mean purity, K {how} | {' | '.join(cells)} |")
    lines += ["", "In parentheses: how many categories, each within 5 points of that.", ""]
    lines += ["| K | certain images | right of them | right of all images |", "|---|---|---|---|"]
    for how, one in written["certain"].items():
        lines.append(f"| {how} | {' | '.join(f'{100 * value:.0f} %' for value in one.values())} |")
    lines += ["", "An image is right if it shows what most images of its category show.", ""]
    lines += [
        "| set | merges, right of suggested | splits, right of suggested | All before | All after all of them |",
        "|---|---|---|---|---|",
    ]
    for name, one in written["suggestions"].items():
        merge, split = (f"{one[kind][0]} of {one[kind][1]}" for kind in ("merge", "split"))
        lines.append(f"| {name} | {merge} | {split} | {one['before']} | {one['after']} |")
    measured = f"Frozen answers of 60 draws of 100–400 images ({len(MEASURED)} of each set)"
    return "\n".join(
        [
            *lines,
            "",
            f"{measured}. Measured {written['date']} on {written['processor']}, {written['cores']} cores by `{written['command']}`.",
        ]
    )


if __name__ == "__main__":
    main()
