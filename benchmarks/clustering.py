"""Semi-supervised k-means compared with its plain form and scikit-learn, and on a million points.

.venv/bin/python benchmarks/clustering.py            6 000 points: ten minutes, mostly for the plain form
.venv/bin/python benchmarks/clustering.py --large    1.28 million points: five minutes, 2 GB

Updates benchmarks/results/clustering.json and the table in docs/unknown_k.md; other entries stay.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import sklearn
import torch
from grid import write_between
from memory import Peak
from sklearn.cluster import KMeans
from torch import Tensor

from debgcd.cluster.kmeans import kmeans
from debgcd.system.machine import cores, processor
from debgcd.system.progress import progress, say

ROOT = Path(__file__).resolve().parent.parent
FILE, PAGE = ROOT / "benchmarks" / "results" / "clustering.json", ROOT / "docs" / "unknown_k.md"
SEED = 0
WIDTH, CLUSTERS, KNOWN, RESTARTS = 768, 200, 100, 10
POINTS = 6_000
LARGE_POINTS, LARGE_WIDTH, LARGE_CLUSTERS = 1_280_000, 256, 1_000
SPREAD, RANK = 3.0, 32  # noise relative to the length of a centre; dimensions in which centres differ
BROADCAST = 2**19  # differences that the plain form holds in memory: 2 MB is fastest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="1.28 million points instead of the two comparisons")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each fast form; the plain form runs once")
    options = parser.parse_args()
    if options.large:
        entries = {"large": large()}
    else:
        entries = {
            "scikit-learn": against_scikit_learn(options.repeats),
            "plain loop form": against_the_plain_form(options.repeats),
        }
    before = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    FILE.write_text(json.dumps(before | entries, indent=2) + "\n", "utf-8")
    write_between(PAGE, "benchmarks/clustering.py", table(before | entries))
    print(table(entries))


def table(entries: dict[str, dict]) -> str:
    """One row per form; ratios are given for the forms that debgcd is compared with."""
    lines = [
        "| task | form | seconds | ratio to debgcd | inertia | memory in addition to the points |",
        "|---|---|---|---|---|---|",
    ]
    for found in entries.values():
        for form, measured in found["results"].items():
            ratio = f"{found['ratio']:.1f}" if form != "debgcd" else ""
            memory = f"{measured['peak_beside_points_gb']} GB" if "peak_beside_points_gb" in measured else ""
            numbers = [f"{measured['seconds']:.1f}", ratio, f"{measured['inertia']:.1f}", memory]
            lines.append(f"| {found['task']} | {form} | " + " | ".join(numbers) + " |")
    of = {(found["date"], found["machine"]) for found in entries.values()}
    told = "; ".join(f"{date}, {machine}" for date, machine in sorted(of))
    return (
        "\n".join(lines)
        + f"\n\nMeasured {told}; seed {SEED}; medians; all numbers are in [clustering.json](../benchmarks/results/clustering.json)."
    )


def sphere_mixture(points: int, width: int, clusters: int) -> tuple[Tensor, Tensor]:
    """Gaussians around random directions, on the unit sphere: (N, d), and the cluster of each point (N,)."""
    generator = torch.Generator().manual_seed(SEED)
    axes = torch.linalg.qr(torch.randn(width, RANK, generator=generator))[0]
    centres = torch.nn.functional.normalize(torch.randn(clusters, RANK, generator=generator) @ axes.T, dim=1)
    truth = torch.arange(points) % clusters
    found = torch.empty(points, width)
    for begin in range(0, points, 65_536):
        part = slice(begin, begin + 65_536)
        found[part] = torch.randn(len(truth[part]), width, generator=generator) * (SPREAD / width**0.5)
        found[part] += centres[truth[part]]
        found[part] /= found[part].norm(dim=1, keepdim=True)
    return found, truth


def against_the_plain_form(repeats: int) -> dict:
    points, truth = sphere_mixture(POINTS, WIDTH, CLUSTERS)
    label = torch.where((truth < KNOWN) & (torch.arange(POINTS) // CLUSTERS % 2 == 0), truth, -1)

    def ours() -> float:
        return kmeans(points, label, CLUSTERS, seed=SEED, restarts=RESTARTS).inertia

    def plain() -> float:
        with progress("plain form") as report:
            return plain_kmeans(points, label, CLUSTERS, RESTARTS, lambda done: report(done, RESTARTS))

    ours()  # the first call of a process is slower
    results = measure(
        [("debgcd", ours)] * ((repeats + 1) // 2) + [("plain", plain)] + [("debgcd", ours)] * (repeats // 2)
    )
    task = (
        f"semi-supervised k-means, N = {POINTS}, d = {WIDTH}, K = {CLUSTERS} ({KNOWN} known, half of their points "
        f"labelled), n_init = {RESTARTS}; the plain form recomputes all distances for each added centre by broadcasting"
    )
    return entry(task, results, "plain")


def against_scikit_learn(repeats: int) -> dict:
    points, _ = sphere_mixture(POINTS, WIDTH, CLUSTERS)
    label = torch.full((POINTS,), -1)

    def ours() -> float:
        return kmeans(points, label, CLUSTERS, seed=SEED, restarts=RESTARTS).inertia

    def theirs() -> float:
        return float(KMeans(CLUSTERS, n_init=RESTARTS, random_state=SEED).fit(points.numpy()).inertia_)

    ours()
    results = measure([("debgcd", ours), ("scikit-learn", theirs)] * repeats)
    return entry(
        f"k-means without labels, N = {POINTS}, d = {WIDTH}, K = {CLUSTERS}, n_init = {RESTARTS}",
        results,
        "scikit-learn",
    )


def large() -> dict:
    say("drawing the points")
    points, _ = sphere_mixture(LARGE_POINTS, LARGE_WIDTH, LARGE_CLUSTERS)
    label = torch.full((LARGE_POINTS,), -1)
    passes = 0.0
    with progress("clustering") as report, Peak() as peak:

        def on_progress(done: int, total: int) -> None:
            nonlocal passes
            passes = passes if done == total else done / LARGE_POINTS
            report(done, total)

        before, begun, cpu = peak.bytes or 0, time.perf_counter(), time.process_time()
        found = kmeans(points, label, LARGE_CLUSTERS, seed=SEED, restarts=1, on_progress=on_progress)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    most = peak.bytes or 0
    measured = {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "iterations": int(passes) - 1,
        "inertia": round(found.inertia, 1),
        "points_gb": round(points.numel() * 4 / 1e9, 2),
        "peak_rss_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
        "peak_anonymous_gb": round(most / 1e9, 2),
        "peak_beside_points_gb": round((most - before) / 1e9, 2),
    }
    task = f"k-means, N = {LARGE_POINTS}, d = {LARGE_WIDTH}, K = {LARGE_CLUSTERS}, n_init = 1"
    return entry(task, {"debgcd": measured}, None)


def measure(runs: list[tuple[str, Callable[[], float]]]) -> dict[str, dict]:
    """Median seconds per form; the runs are timed in the given order."""
    walls: dict[str, list[float]] = {}
    cpus: dict[str, list[float]] = {}
    inertia: dict[str, float] = {}
    for name, run in runs:
        begun, cpu = time.perf_counter(), time.process_time()
        inertia[name] = run()
        walls.setdefault(name, []).append(time.perf_counter() - begun)
        cpus.setdefault(name, []).append(time.process_time() - cpu)
        say(f"{name}: {walls[name][-1]:.2f} s, {cpus[name][-1]:.2f} s of processor time, inertia {inertia[name]:.2f}")
    return {
        name: {
            "seconds": round(statistics.median(walls[name]), 3),
            "cpu_seconds": round(statistics.median(cpus[name]), 3),
            "repeats": len(walls[name]),
            "inertia": round(inertia[name], 2),
        }
        for name in walls
    }


def entry(task: str, results: dict[str, dict], other: str | None) -> dict:
    """The results of a task, with machine and versions."""
    facts = {
        "task": task,
        "date": datetime.date.today().isoformat(),
        "machine": f"{processor()}, {cores()} cores, no GPU",
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "scikit-learn": sklearn.__version__,
        },
        "seed": SEED,
        "spread": SPREAD,
        "rank": RANK,
        "results": results,
    }
    if other is not None:
        facts["ratio"] = round(results[other]["seconds"] / results["debgcd"]["seconds"], 1)
        facts["cpu_ratio"] = round(results[other]["cpu_seconds"] / results["debgcd"]["cpu_seconds"], 1)
    return facts


# The plain form, from the description in Vaze et al. 2022.


def plain_kmeans(points: Tensor, label: Tensor, k: int, restarts: int, report: Callable[[int], None]) -> float:
    """The lowest inertia of sequential restarts."""
    generator = torch.Generator().manual_seed(SEED)
    labelled, free = points[label >= 0], points[label < 0]
    y = label[label >= 0]
    best = float("inf")
    for restart in range(restarts):
        centres = torch.stack([labelled[y == known].mean(0) for known in range(int(y.max()) + 1)])
        while len(centres) < k:
            nearest = plain_distances(free, centres).amin(1)
            centres = torch.cat([centres, free[torch.multinomial(nearest, 1, generator=generator)]])
        before = None
        for _ in range(100):
            distances = plain_distances(free, centres)
            chosen = distances.argmin(1)
            if before is not None and torch.equal(chosen, before):
                break
            before, everything, cluster = chosen, torch.cat([labelled, free]), torch.cat([y, chosen])
            centres = torch.stack(
                [everything[cluster == c].mean(0) if (cluster == c).any() else centres[c] for c in range(k)]
            )
        best = min(best, float((everything - centres[cluster]).square().sum()))
        report(restart + 1)
    return best


def plain_distances(points: Tensor, centres: Tensor) -> Tensor:
    """Squared distances by broadcasting, in blocks because all differences do not fit into memory: (n, K)."""
    rows = max(1, BROADCAST // centres.numel())
    return torch.cat([(part[:, None] - centres[None]).square().sum(2) for part in points.split(rows)])


if __name__ == "__main__":
    main()
