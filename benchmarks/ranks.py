"""What several ranks cost and give: torchrun with one rank, two ranks over gloo, the parts of a step of ImageNet-1K, a million rows.

.venv/bin/python benchmarks/ranks.py            about 6 minutes on two idle cores

Ratios come from alternating runs on one machine. Updates benchmarks/results/scale.json and the table in docs/scale.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from grid import write_between
from PIL import Image
from torch.nn.functional import normalize

from debgcd import config as configuration
from debgcd.config.schedules import Progress
from debgcd.data.sampler import Draws
from debgcd.methods import create
from debgcd.methods.base import Batch, Sizes
from debgcd.model.network import Network, Output
from debgcd.run.categories import Category, categories
from debgcd.run.predictions import COLUMNS, Inference, prediction_table, to_csv
from debgcd.system import distributed
from debgcd.system.files import csv_text
from debgcd.system.machine import facts
from debgcd.system.progress import say

ROOT = Path(__file__).resolve().parent.parent
FILE, PAGE = ROOT / "benchmarks" / "results" / "scale.json", ROOT / "docs" / "scale.md"
STEPS, IMAGES, BATCH = 200, 64, 32
ROWS, CATEGORIES = 1_000_000, 100
# ImageNet-1K, as docs/scale.md counts it: what the heads say of a view, what is trained, how much there is of it
VIEWS, WORDS_PER_ROW, PARAMETERS = 2048, 4_024, 36_900_000
TRAINING_IMAGES, IMAGE_BYTES, SET_STEPS, SET_RANKS = 1_281_167, 140e9, 250_000, 8
SMALLER = 16  # the transfers are measured with a sixteenth of that


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")
    parser.add_argument("--transfers", action="store_true", help=argparse.SUPPRESS)  # one of the two ranks
    options = parser.parse_args()
    if options.transfers:
        transfers()
        return
    with tempfile.TemporaryDirectory() as folder:
        entries = {
            "facts": facts(),
            "steps": steps(Path(folder), options.repeats),
            "transfers": measured(),
            "parts": parts(Path(folder)),
            "rows": rows(),
        }
    FILE.write_text(json.dumps(entries, indent=2) + "\n", "utf-8")
    write_between(PAGE, "benchmarks/ranks.py", table(entries))
    print(table(entries))


def steps(folder: Path, repeats: int) -> dict[str, float]:
    """Milliseconds per step: the median over the steps of a run, then over runs."""
    images = pictures(folder / "images")
    launches = {
        "one process": [sys.executable, "-m", "debgcd"],
        "one rank": launched(1, "-m", "debgcd"),
        "two ranks": launched(2, "-m", "debgcd"),
    }
    found: dict[str, list[float]] = {name: [] for name in launches}
    for number in range(repeats):
        for name, launch in launches.items():
            run = folder / f"{name}-{number}".replace(" ", "-")
            settings = {"schedule.steps": STEPS, "schedule.batch": BATCH, "views.size": 96, "views.resize": 110}
            settings["run.watch"] = "warn"  # noise has no categories, and all steps are to be taken
            words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
            words += [
                "--set",
                "heads.warm_start=false",
                "--set",
                "views.bank_views=2",
                "--cache",
                str(folder / "cache"),
            ]
            words = ["train", str(images), "-o", str(run), "--preset", "small", "--k", "4", "--bank", "on", *words]
            subprocess.run(
                [*launch, *words], check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
            rates = [line["images_per_second"] for line in lines if "images_per_second" in line][1:]
            found[name].append(1000 * BATCH / statistics.median(rates))
            say(f"{name}, run {number + 1} of {repeats}: {found[name][-1]:.2f} ms per step")
    return {name: statistics.median(times) for name, times in found.items()}


def launched(count: int, *program: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *program]


def pictures(folder: Path) -> Path:
    """Noise of four colours: two labelled classes, and unlabelled images of all."""
    random = np.random.default_rng(0)
    for i in range(IMAGES):
        kind = i % 4
        place = folder / "labelled" / f"class {kind}" if kind < 2 and i < IMAGES // 2 else folder / "unlabelled"
        place.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 96, (120, 120, 3)) + 40 * np.array([kind, 3 - kind, kind % 2])
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{i:03d}.png")
    return folder


def measured() -> dict[str, float]:
    """Gigabytes per second of the two transfers of a step between two ranks of this machine."""
    words = launched(2, str(Path(__file__)), "--transfers")
    done = subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads(done.stdout.strip().splitlines()[-1])


def transfers() -> None:
    with distributed.joined():
        said = torch.zeros(VIEWS // SMALLER, WORDS_PER_ROW)
        gradient = torch.zeros(PARAMETERS // SMALLER)
        found = {
            "gather": timed(lambda: distributed.gather(said)),
            "average": timed(lambda: distributed.average([gradient])),
        }
        sizes = {"gather": said.numel() * 4 * distributed.count(), "average": gradient.numel() * 4}
        if distributed.rank() == 0:
            print(json.dumps({name: sizes[name] / seconds / 1e9 for name, seconds in found.items()}), flush=True)
        distributed.barrier()


def parts(folder: Path) -> dict[str, float]:
    """Seconds of what every rank does of all rows of ImageNet-1K, and gigabytes per second of hashing files on one core."""
    config = configuration.override(configuration.compose("paper"), {"k": 1000}, where="benchmark")
    method = create(config, Sizes(768, 1000, 500, TRAINING_IMAGES))
    random = torch.Generator().manual_seed(0)
    shapes = {"classifier": (1000,), "debiased": (1000,), "projection": (256,), "detector": (500, 2)}
    label = np.where(np.arange(VIEWS // 2) % 2, -1, np.arange(VIEWS // 2) % 500)
    numbers = np.arange(len(label))
    batch = Batch.of(torch.empty(VIEWS, 1), Draws(numbers, numbers), label, "cpu")

    def loss() -> None:
        heads = {name: torch.randn(VIEWS, *shape, generator=random) for name, shape in shapes.items()}
        heads = {name: normalize(rows, dim=1).requires_grad_() for name, rows in heads.items()}
        output = Output(torch.zeros(VIEWS, 768), heads)
        method.loss(cast(Network, lambda tokens, heads=None: output), batch, Progress(0, 1000, 10)).total.backward()

    file = folder / "bytes"
    file.write_bytes(bytes(200_000_000))
    with open(file, "rb") as content:
        hashing = timed(lambda: (content.seek(0), hashlib.file_digest(content, "sha256")), 3)
    return {"loss": timed(loss, 3), "hashing": 0.2 / hashing}


def timed(work: Any, repeats: int = 15) -> float:
    times = []
    for _ in range(repeats):
        distributed.barrier()
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def rows() -> dict[str, float]:
    """Seconds to make predictions.csv of a million images from what the model says, and by a loop over a tenth of them."""
    random = np.random.default_rng(0)
    top = random.integers(0, CATEGORIES, (ROWS, 3))
    said = Inference(top, random.random((ROWS, 3), np.float32), random.random(ROWS, np.float32))
    names = categories([f"class {i:05d}" for i in range(CATEGORIES // 2)], CATEGORIES)
    paths = [Path(f"{i}.jpg") for i in range(ROWS)]
    begun = time.perf_counter()
    text = to_csv(prediction_table(paths, said, names, None))
    ours, begun = time.perf_counter() - begun, time.perf_counter()
    looped = loop_form(paths[: ROWS // 10], said, names)
    assert text.startswith(looped)
    return {"seconds": ours, "loop": 10 * (time.perf_counter() - begun), "bytes": len(text)}


def loop_form(paths: list[Path], said: Inference, names: list[Category]) -> str:
    """Row by row, as it was before."""
    table = []
    for i, path in enumerate(paths):
        best = names[said.top[i, 0]]
        row = [str(path), best.category, best.id, best.name, "true" if best.known else "false"]
        row += [f"{float(said.probability[i, 0]):.6f}", f"{float(said.novelty[i]):.6f}"]  # type: ignore[index]
        for rank in range(3):
            row += [names[said.top[i, rank]].id, f"{float(said.probability[i, rank]):.6f}"]
        table.append([*row, ""])
    return csv_text(list(COLUMNS), table)


def table(entries: dict[str, Any]) -> str:
    step, speed, written = entries["steps"], entries["transfers"], entries["rows"]
    alone, lines = step["one process"], ["| what | measured | against one process |", "|---|---|---|"]
    for name, milliseconds in step.items():
        share = "" if name == "one process" else f"{100 * (milliseconds / alone - 1):+.1f} %"
        lines.append(f"| step of {BATCH} images, {name} | {milliseconds:.2f} ms | {share} |")
    lines.append(f"| `gather` between two ranks, gloo on this machine | {speed['gather']:.2f} GB/s | |")
    lines.append(f"| `average` between two ranks, gloo on this machine | {speed['average']:.2f} GB/s | |")
    loop = f"{written['loop']:.1f} s row by row, {written['loop'] / written['seconds']:.1f} times as long"
    lines.append(
        f"| predictions.csv of a million images, from what the model says | {written['seconds']:.1f} s | {loop} |"
    )
    lines.append(
        f"| loss of ImageNet-1K's {VIEWS:,} rows and its gradient, one core | {entries['parts']['loss']:.2f} s | |"
    )
    lines.append(f"| hashing files, one core | {entries['parts']['hashing']:.2f} GB/s | |")
    lines += ["", *imagenet(entries)]
    about = entries["facts"]
    lines.append("")
    lines.append(
        f"Measured {about['date']} on {about['processor']}, {about['cores']} cores, torch {about['versions']['torch']}."
    )
    return "\n".join(lines)


def imagenet(entries: dict[str, Any]) -> list[str]:
    """Seconds for ImageNet-1K, from the parts above: what ranks add to a step, and what is done once."""
    speed, part, written = entries["transfers"], entries["parts"], entries["rows"]
    gathered, summed = VIEWS * WORDS_PER_ROW * 4 / 1e9, PARAMETERS * 4 / 1e9
    gather, average = gathered / speed["gather"], summed / speed["average"]
    step = gather + average + part["loss"]
    return [
        f"ImageNet-1K from these parts, if {SET_RANKS} ranks were as fast as two ranks of this machine without GPUs:",
        "",
        f"- a step: {1000 * gathered:.0f} MB gathered in {gather:.2f} s, {1000 * summed:.0f} MB summed in {average:.2f} s, the "
        f"loss of all rows in {part['loss']:.2f} s on every rank; {step:.2f} s besides trunk and tail",
        f"- {SET_STEPS:,} steps: {SET_STEPS * step / 3600:.0f} h besides trunk and tail; transfers alone over 100 Gbit/s: "
        f"{SET_STEPS * 2 * (summed + gathered / 2) * (SET_RANKS - 1) / SET_RANKS / 12.5 / 3600:.1f} h",
        f"- hashing {IMAGE_BYTES / 1e9:.0f} GB once: {IMAGE_BYTES / 1e9 / part['hashing'] / 60:.0f} min on one core, if the disk "
        "is as fast",
        f"- predictions.csv of {TRAINING_IMAGES:,} images, without the network: "
        f"{written['seconds'] * TRAINING_IMAGES / ROWS:.0f} s",
    ]


if __name__ == "__main__":
    main()
