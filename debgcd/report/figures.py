"""Pictures of results: the categories with their surest images, and the score of each number of categories."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from debgcd.cluster.estimate_k import Estimate
from debgcd.data.image.decode import Unusable, decode
from debgcd.errors import UsageError
from debgcd.run.categories import Category
from debgcd.run.predictions import Prediction
from debgcd.system.files import write_bytes

INK, FAINT, EMPTY = "#1f2430", "#6b7280", "#e5e7eb"

TILE, GAP, LABEL = 72, 4, 190  # of the exemplars, in pixels
KNOWN, NEW = "#2563a8", "#b4531a"

COLUMNS, ROWS = 72, 10  # of the plot in the terminal, without its axes
EIGHTHS = " ▁▂▃▄▅▆▇█"
WIDTH, HEIGHT, MARGIN = 900, 480, 70  # of the plot as a picture, in pixels
SHADE = "#dce8f5"
COLOURS = {"consensus": "#1f5fa8", "ward": "#c4622d", "brent": "#3c8a4e"}
MEANING = {"consensus": "likelihood", "ward": "accuracy on labelled images", "brent": "accuracy on labelled images"}


def draw_exemplars(
    predictions: Sequence[Prediction], categories: Sequence[Category], path: Path, columns: int = 12
) -> None:
    """Write a PNG with one row per category: its name, its size and its most confident images."""
    members = defaultdict(list)
    for row in sorted(predictions, key=lambda row: (-row["confidence"], row["path"])):
        members[row["category"]].append(row)
    height = len(categories) * (TILE + GAP) + GAP
    sheet = Image.new("RGB", (LABEL + columns * (TILE + GAP) + GAP, height), "white")
    pen, large, small = ImageDraw.Draw(sheet), ImageFont.load_default(20), ImageFont.load_default(13)
    for i, category in enumerate(categories):
        top, found = GAP + i * (TILE + GAP), members[category.category]
        pen.rectangle((0, top, 5, top + TILE), fill=KNOWN if category.known else NEW)
        pen.text((16, top + 10), _short(category.name, large, LABEL - 16), fill=INK, font=large)
        kind = "known class" if category.known else "discovered"
        pen.text((16, top + 40), f"{kind} · {len(found)} images", fill=FAINT, font=small)
        for j, row in enumerate(found[:columns]):
            sheet.paste(_tile(Path(row["path"])), (LABEL + GAP + j * (TILE + GAP), top))
    _write_png(sheet, path)


def _tile(path: Path) -> Image.Image:
    try:
        image = Image.fromarray(decode(path, TILE))
    except Unusable:  # the file has gone or changed since the prediction
        return Image.new("RGB", (TILE, TILE), EMPTY)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    smooth = Image.Resampling.NEAREST if side < TILE // 2 else Image.Resampling.BICUBIC
    return image.crop((left, top, left + side, top + side)).resize((TILE, TILE), smooth)


def _short(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """The name on one line, cut before it reaches the images."""
    name = " ".join(name.split())
    if font.getlength(name) <= width:
        return name
    while name and font.getlength(name + "…") > width:
        name = name[:-1]
    return name + "…"


def text_plot(estimate: Estimate) -> str:
    """The score against K (log scale) in characters, with the estimate and its interval below."""
    axis = _axis(estimate, COLUMNS)
    heights = np.round(_on(axis, estimate.curves[estimate.way]) * ROWS * 8).astype(int)
    lines = [f"{MEANING[estimate.way]} of K ({estimate.way})"]
    for row in reversed(range(ROWS)):
        edge = {ROWS - 1: "1.0", 0: "0.0"}.get(row, "   ")
        lines.append(f"{edge} │" + "".join(EIGHTHS[min(max(height - 8 * row, 0), 8)] for height in heights).rstrip())
    low, best, high = (int(np.abs(axis - k).argmin()) for k in (estimate.low, estimate.k, estimate.high))
    marks = [" "] * COLUMNS
    marks[low : high + 1] = "─" * (high + 1 - low)
    marks[low], marks[high], marks[best] = "├", "┤", "▲"
    lines += ["    └" + "─" * COLUMNS, "     " + "".join(marks).rstrip(), "     " + _ticks(axis)]
    return "\n".join(lines)


def require_drawable(path: Path) -> None:
    """Refuse a path that cannot become a PNG file, before any work is done."""
    if path.suffix.lower() != ".png" or path.is_dir():
        raise UsageError(f"--plot needs a .png path, got {path}" + (", which is a folder" if path.is_dir() else ""))
    if not path.parent.is_dir():
        raise UsageError(f"no folder {path.parent} for the plot; create it, or choose another with --plot")


def draw_k_curve(estimate: Estimate, path: Path) -> None:
    """Write a PNG: every curve against K (log scale), the interval shaded, the estimate as a vertical line."""
    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(size=16)
    axis = _axis(estimate, WIDTH - 2 * MARGIN)
    bottom = HEIGHT - MARGIN

    def x(k: int) -> int:
        return MARGIN + int(np.abs(axis - k).argmin())

    def y(score: float) -> float:
        return bottom - score * (HEIGHT - 2 * MARGIN)

    draw.rectangle((x(estimate.low), y(1), x(estimate.high), bottom), fill=SHADE)
    draw.line((x(estimate.k), y(1), x(estimate.k), bottom), fill=INK, width=2)
    for score in (0.0, 0.5, 1.0):
        draw.line((MARGIN - 6, y(score), MARGIN, y(score)), fill=INK)
        draw.text((MARGIN - 12, y(score)), f"{score:.1f}", fill=INK, font=font, anchor="rm")
    for k in _round_numbers(axis):
        draw.line((x(k), bottom, x(k), bottom + 6), fill=INK)
        draw.text((x(k), bottom + 10), str(k), fill=INK, font=font, anchor="mt")
    draw.rectangle((MARGIN, y(1), WIDTH - MARGIN, bottom), outline=INK)
    for row, (way, curve) in enumerate(estimate.curves.items()):
        points = [(MARGIN + i, y(value)) for i, value in enumerate(_on(axis, curve))]
        draw.line(points, fill=COLOURS[way], width=3, joint="curve")
        draw.text(
            (WIDTH - MARGIN - 10, y(1) + 8 + 22 * row),
            f"{way}: {MEANING[way]}",
            fill=COLOURS[way],
            font=font,
            anchor="ra",
        )
    title = f"about {estimate.k} categories (between {estimate.low} and {estimate.high})"
    draw.text((WIDTH / 2, MARGIN / 2), title, fill=INK, font=ImageFont.load_default(size=20), anchor="mm")
    draw.text((WIDTH / 2, HEIGHT - 18), "categories in all, known and new", fill=INK, font=font, anchor="mm")
    _write_png(picture, path)


def _write_png(picture: Image.Image, path: Path) -> None:
    content = io.BytesIO()
    picture.save(content, "PNG")
    write_bytes(path, content.getvalue())


def _axis(estimate: Estimate, places: int) -> NDArray[np.float64]:
    """K at each place, log-spaced over all evaluated K and the interval."""
    evaluated = [k for curve in estimate.curves.values() for k, _ in curve] + [estimate.low, estimate.high]
    return np.geomspace(min(evaluated), max(max(evaluated), min(evaluated) + 1), places)


def _on(axis: NDArray[np.float64], curve: list[tuple[int, float]]) -> NDArray[np.float64]:
    k, score = zip(*curve, strict=True)
    return np.interp(np.log(axis), np.log(k), score).clip(0, 1)


def _round_numbers(axis: NDArray[np.float64]) -> list[int]:
    """Ticks: the ends of the axis, and 1, 2, 5 times powers of ten that do not crowd them."""
    inner = [f * 10**e for e in range(8) for f in (1, 2, 5) if axis[0] * 1.15 < f * 10**e < axis[-1] / 1.15]
    return [round(axis[0]), *inner, round(axis[-1])]


def _ticks(axis: NDArray[np.float64]) -> str:
    line = ""
    for k in _round_numbers(axis):
        at = int(np.abs(axis - k).argmin())
        if at >= len(line) + 1 or not line:
            line = line.ljust(at) + str(k)
    return line
