"""Writes docs/results.md from the results: tables and paired differences inside the text of words.md."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for grid.py

from grid import mean_and_error  # noqa: E402

from debgcd.system.text_table import markdown_table  # noqa: E402

MEASURES = {"all": "All", "old": "Old", "new": "New", "auroc": "AUROC"}
# goals, in points of All: (better, worse, minimum difference)
ORDER = [("DebGCD", "SimGCD", 3.0), ("DebGCD", "semi-supervised k-means", 3.0), ("DebGCD", "k-means", 8.0)]
FAR = 0.1  # a stated error that is further than this from the real one is called off
KEPT, NEAR = 0.9, 0.1  # of naming: share of the first round's AUROC, and difference between a stated and a real error
MUCH = 3.0  # points of All below its own start that a run should not end

Run = dict[str, Any]


def write_page(results: Path, page: Path) -> None:
    """Fill the placeholders {name} of words.md with tables; a part that has not been run yet says so."""
    parts = {place.stem: json.loads(place.read_text("utf-8")) for place in sorted(results.glob("*.json"))}
    drawn, frozen, people, settled, named = (
        parts.pop(name, None) for name in ("draws", "draws_frozen", "people", "settle", "naming")
    )
    for elsewhere in ("next_labels", "trust"):  # tables of other pages
        parts.pop(elsewhere, None)
    tables = {name: _part(found["runs"]) for name, found in parts.items()}
    if frozen is not None:
        tables |= {"stated": stated_errors(frozen["runs"]), "stated_measured": measured([frozen])}
    if drawn is not None:
        tables |= {"draws": draws(drawn["runs"]), "drawn": measured([drawn])}
    if settled is not None:
        tables |= {"settle": settle_parts(settled["runs"]), "settle_measured": measured([settled])}
    if named is not None:
        tables |= {"naming": naming(named["runs"]), "naming_measured": measured([named])}
    if "answers" in parts:
        tables |= {"answers": answers(parts["answers"]["runs"]), "answered": measured([parts["answers"]])}
    if "k" in parts:
        tables["k"] = unknown_k(parts["k"]["runs"])
    if people is not None:
        tables |= {"people": cases(people["runs"]), "ratios": ratios(people["runs"]), "asked": measured([people])}
    tables["measured"] = measured(parts.values())
    tables["hours"] = hours(parts.values())
    if "methods" in parts:
        tables |= {
            "differences": differences(parts["methods"]["runs"]),
            "curriculum": curriculum(parts["methods"]["runs"]),
        }
        tables["times"] = times(parts["methods"]["runs"])
        tables["jobs"] = str(parts["methods"]["jobs"])
    text = (HERE / "words.md").read_text("utf-8")
    filled = re.sub(r"\{(\w+)\}", lambda name: tables.get(name[1], "(not run yet)"), text)
    page.write_text(filled, "utf-8")


def _part(runs: list[Run]) -> str:
    """One row per data set and row of the grid: mean ± standard deviation over the seeds."""
    measures = list(MEASURES)
    sets = list(dict.fromkeys(run["set"] for run in runs))
    rows = list(dict.fromkeys(run["row"] for run in runs))
    lines = []
    for set_name in sets:
        for row in rows:
            mine = [run for run in runs if (run["row"], run["set"]) == (row, set_name)]
            lines.append(
                [set_name, row, str(len(mine)), *(_shown(run[measure] for run in mine) for measure in measures)]
            )
    return markdown_table(["set", "", "seeds", *(MEASURES[measure] for measure in measures)], lines)


def differences(runs: list[Run]) -> str:
    """Differences of All paired by data set and seed, mean ± standard error; AUROC; the worst run compared with k-means."""
    value = {(run["row"], run["set"], run["seed"]): run for run in runs}
    pairs = sorted({(run["set"], run["seed"]) for run in runs})
    rows = []
    for better, worse, least in ORDER:
        found = [value[better, *pair]["all"] - value[worse, *pair]["all"] for pair in pairs]
        mean, error = mean_and_error(found)
        by_set = ", ".join(
            f"{name} {statistics.mean(d for d, pair in zip(found, pairs, strict=True) if pair[0] == name):+.1f}"
            for name in dict.fromkeys(pair[0] for pair in pairs)
        )
        rows.append([f"{better} − {worse}, All", f"{mean:+.1f} ± {error:.1f}", f"≥ {least:.0f}", by_set])
    sets = dict.fromkeys(pair[0] for pair in pairs)
    ends, starts, novelty = (
        {name: statistics.mean(value["DebGCD", *pair][what] for pair in pairs if pair[0] == name) for name in sets}
        for what in ("all", "start", "auroc")
    )
    gained = {name: ends[name] - starts[name] for name in sets}
    for what, found, goal in (
        ("All of DebGCD", ends, "≥ 77"),
        ("its end − its own start", gained, "> 0 on each"),
        ("AUROC of its novelty", novelty, "≥ 90, each ≥ 80"),
    ):
        sign = "+" if found is gained else ""
        by_set = ", ".join(f"{name} {number:{sign}.1f}" for name, number in found.items())
        rows.append([what, f"{statistics.mean(found.values()):{sign}.1f}", goal, by_set])
    return markdown_table([f"over {len(pairs)} paired runs", "result", "goal", "by set"], rows)


def answers(runs: list[Run]) -> str:
    """All of the frozen answer, of the trained classifier and of the settled answer; one row per method and data set."""
    rows = []
    for row in ("DebGCD", "SimGCD"):
        columns: list[list[float]] = []
        for name in dict.fromkeys(run["set"] for run in runs):
            mine = [run for run in runs if (run["row"], run["set"]) == (row, name) and "frozen" in run]
            if mine:
                columns.append([statistics.mean(run[what] for run in mine) for what in ("frozen", "trained", "all")])
                rows.append(
                    [row, name, *(f"{value:.1f}" for value in columns[-1]), f"{columns[-1][2] - columns[-1][0]:+.1f}"]
                )
        if columns:
            means = [statistics.mean(column) for column in zip(*columns, strict=True)]
            rows.append([row, "mean", *(f"{value:.1f}" for value in means), f"{means[2] - means[0]:+.1f}"])
    head = ["method", "set", "frozen answer", "trained classifier", "settled answer", "settled - frozen"]
    return markdown_table(head, rows)


def settle_parts(runs: list[Run]) -> str:
    """All of each variant of the frozen answer: mean over the sets and draws, per kind of labels."""
    kinds = list(dict.fromkeys(run["kind"] for run in runs))
    rows = []
    for row in dict.fromkeys(run["row"] for run in runs):
        means = [
            statistics.mean(run["all"] for run in runs if (run["row"], run["kind"]) == (row, kind)) for kind in kinds
        ]
        rows.append([row, *(f"{value:.1f}" for value in means), f"{statistics.mean(means):.1f}"])
    return markdown_table(["", *kinds, "mean"], rows)


def stated_errors(runs: list[Run]) -> str:
    """Small sets, one row per data set: in how many draws `looks_new` states its errors, and how far they are from the real ones."""
    rows = []
    for name in [*dict.fromkeys(run["set"] for run in runs), "all"]:
        mine = [run["errors"] for run in runs if name in ("all", run["set"])]
        told = [run for run in mine if run["stated"] is not None]
        off = [np.subtract(run["stated"], run["real"]) for run in told]
        rows.append(
            [
                name,
                str(len(mine)),
                *(f"{100 * statistics.mean(run['real'][side] for run in mine):.0f}" for side in (0, 1)),
                str(len(told)),
                *(f"{100 * statistics.mean(each[side] for each in off):+.1f}" for side in (0, 1)),
                str(sum(bool((abs(each) > FAR).any()) for each in off)),
            ]
        )
    head = ["set", "draws", "known wrong %", "new missed %", "stated in", "stated - real", "stated - real, new"]
    return markdown_table([*head, f"> {100 * FAR:.0f} points off"], rows)


def naming(runs: list[Run]) -> str:
    """What looks new in a second week: AUROC, its share of the first round's, and the errors as stated and as they are."""
    first = {(run["set"], run["draw"]): run["auroc"] for run in runs if run["kind"] == "first round"}
    rows = []
    for kind, named in dict.fromkeys((run["kind"], run["named"]) for run in runs):
        mine = [run for run in runs if (run["kind"], run["named"]) == (kind, named)]
        kept = sum(run["auroc"] >= KEPT * first[run["set"], run["draw"]] for run in mine)
        cells = [f"{100 * statistics.mean(run['auroc'] for run in mine):.1f}", f"{kept} of {len(mine)}"]
        for side in ("known", "new"):
            pairs = [(run[side]["stated"], run[side]["real"]) for run in mine if run[side]["stated"] is not None]
            near = sum(abs(said - real) <= NEAR for said, real in pairs)
            means = [f"{100 * statistics.mean(values):.0f}" for values in zip(*pairs, strict=True)] or ["–", "–"]
            cells += [f"{means[0]} / {means[1]}", f"{near} of {len(pairs)}"]
        rows.append([kind, f"{100 * named:.0f} %", *cells])
    head = ["judged by", "named", "AUROC", "at least .9 of the first round's"]
    for side in ("known", "new"):
        head += [f"errors on {side}: stated / real", "within 10 points"]
    return markdown_table(head, rows)


def draws(runs: list[Run]) -> str:
    """Small sets, one row per data set: the start, the end, and how many runs ended far below their start."""
    rows = []
    for name in [*dict.fromkeys(run["set"] for run in runs), "all"]:
        mine = [run for run in runs if name in ("all", run["set"])]
        start, end = ([100 * run[what]["all"] for run in mine] for what in ("start", "end"))
        gained = [b - a for a, b in zip(start, end, strict=True)]
        rows.append(
            [
                name,
                str(len(mine)),
                f"{min(run['images'] for run in mine)}–{max(run['images'] for run in mine)}",
                f"{statistics.mean(start):.1f}",
                f"{statistics.mean(end):.1f}",
                f"{statistics.mean(gained):+.1f} ({min(gained):+.1f} to {max(gained):+.1f})",
                str(sum(difference < -MUCH for difference in gained)),
                str(sum(not run["healthy"] for run in mine)),
                f"{100 * statistics.mean(run['auroc'] for run in mine):.1f}",
            ]
        )
    head = [
        "set",
        "draws",
        "unlabelled images",
        "start",
        "end",
        "gained (from – to)",
        f"> {MUCH:.0f} below",
        "stopped",
        "AUROC",
    ]
    return markdown_table(head, rows)


def unknown_k(runs: list[Run]) -> str:
    """One row per set: the true K, the estimated one, what is left of it at the end, and All with each."""
    rows = []
    for name in dict.fromkeys(run["set"] for run in runs):
        given, auto = (run for run in runs if run["set"] == name)
        scores = [f"{run[measure]:.1f}" for measure in ("all", "old", "new") for run in (given, auto)]
        rows.append([name, str(given["k"]), str(auto["k_trained"]), str(auto["k"]), *scores])
    head = [
        "set",
        "K",
        "estimated",
        "at the end",
        "All, K given",
        "auto",
        "Old, K given",
        "auto",
        "New, K given",
        "auto",
    ]
    return markdown_table(head, rows)


def cases(runs: list[Run]) -> str:
    """One row per case and set: All and AUROC before and after, and the share of new images as said and as it is."""
    rows = []
    for what, name in dict.fromkeys((run["case"], run["set"]) for run in runs if not run["case"].startswith("ratio")):
        mine = [run for run in runs if (run["case"], run["set"]) == (what, name)]
        *before, after = mine if len(mine) > 1 else [None, *mine]
        said = "–" if after["said"] is None else f"{100 * after['said']:.0f} of {100 * after['new']:.0f}"
        first = "–" if before[0] is None else f"{before[0]['all']:.1f}"
        surer = "–" if before[0] is None else f"{before[0]['auroc']:.1f}"
        rows.append([what, name, first, f"{after['all']:.1f}", surer, f"{after['auroc']:.1f}", said])
    return markdown_table(["", "set", "All before", "after", "AUROC before", "after", "new, said of true %"], rows)


def ratios(runs: list[Run]) -> str:
    """All and AUROC per share of known classes (rows) and of labelled images (columns)."""
    found = {(run["set"], *run["case"].split()[1:]): run for run in runs if run["case"].startswith("ratio")}
    shares = list(dict.fromkeys(share for _, _, share in found))
    rows = [
        [name, f"{100 * float(known):.0f} %"]
        + [f"{found[name, known, share]['all']:.1f} / {found[name, known, share]['auroc']:.1f}" for share in shares]
        for name, known in dict.fromkeys((name, known) for name, known, _ in found)
    ]
    return markdown_table(["set", "known classes", *(f"{100 * float(share):.0f} % labelled" for share in shares)], rows)


def curriculum(runs: list[Run]) -> str:
    """DebGCD: the share of unlabelled rows used and the share of correct hard labels, per third of the training."""
    rows = []
    for name in dict.fromkeys(run["set"] for run in runs):
        mine = [run for run in runs if run["set"] == name and run["row"] == "DebGCD"]
        last = max(at for run in mine for at, *_ in (*run["used"], *run["right"]))
        for what, at in (("first third", 0), ("second third", 1), ("last third", 2)):
            span = range(at * last // 3, (at + 1) * last // 3 + 1)
            used = [
                [row[i] for run in mine for row in run["used"] if row[0] in span and row[i] is not None] for i in (1, 2)
            ]
            right = [
                [row[1][k] for run in mine for row in run["right"] if row[0] in span and row[1][k] is not None]
                for k in ("old", "new")
            ]
            rows.append([name, what, *(_percent(values) for values in (*used, *right))])
    return markdown_table(["set", "steps", "Old used", "New used", "Old right", "New right"], rows)


def times(runs: list[Run]) -> str:
    """Seconds of training, with the view bank already built."""
    rows = list(dict.fromkeys(run["row"] for run in runs))
    sets = list(dict.fromkeys(run["set"] for run in runs))
    cells = [
        [
            row,
            *(
                f"{statistics.mean(run['seconds'] for run in runs if (run['row'], run['set']) == (row, name)):.0f}"
                for name in sets
            ),
        ]
        for row in rows
    ]
    return markdown_table(["seconds of training", *sets], cells)


def hours(parts: Iterable[dict[str, Any]]) -> str:
    """Hours of training: each run counted once, although parts share runs, divided by the number of parallel runs."""
    each = {
        (run["set"], run["seed"], run["seconds"]): run["seconds"] / part["jobs"]
        for part in parts
        for run in part["runs"]
    }
    return f"{sum(each.values()) / 3600:.1f}"


def measured(parts: Iterable[dict[str, Any]]) -> str:
    of = {(found["date"], found["processor"], found["cores"]) for found in parts}
    return "; ".join(f"{date}, {processor}, {cores} cores, no GPU" for date, processor, cores in sorted(of))


def _shown(values: Iterable[float | None]) -> str:
    found = [value for value in values if value is not None]
    if not found:
        return "–"
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.1f}{spread}"


def _percent(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.0f}" if values else "–"
