"""The score of each number of categories, as a plot for the terminal and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from debgcd.cluster.estimate_k import Estimate
from debgcd.errors import UsageError

COLUMNS, ROWS = 72, 10  # of the plot in the terminal, without its axes
WIDTH, HEIGHT, MARGIN = 900, 480, 70  # of the picture, in pixels
EIGHTHS = " ▁▂▃▄▅▆▇█"
COLOURS = {"consensus": "#1f5fa8", "ward": "#c4622d", "brent": "#3c8a4e"}
MEANING = {"consensus": "likelihood", "ward": "accuracy on labelled images", "brent": "accuracy on labelled images"}
SHADE, INK = "#dce8f5", "#333333"


def text_plot(estimate: Estimate) -> str:
    """The score against K (logarithmic), the estimate and its interval below it."""
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
    """Refuse a place where no PNG file can be, before any work is done."""
    if path.suffix.lower() != ".png" or path.is_dir():
        raise UsageError(f"the plot is a PNG file, which {path} cannot be; give --plot a name that ends in .png")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent} for the plot; make it, or give --plot another place")


def draw_k_curve(estimate: Estimate, path: Path) -> None:
    """Every curve against K (logarithmic), the interval shaded, the estimate as a line: a PNG file."""
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
    picture.save(path)


def _axis(estimate: Estimate, places: int) -> NDArray[np.float64]:
    """K at each place, equal ratios apart, over all that was looked at and the interval."""
    looked_at = [k for curve in estimate.curves.values() for k, _ in curve] + [estimate.low, estimate.high]
    return np.geomspace(min(looked_at), max(max(looked_at), min(looked_at) + 1), places)


def _on(axis: NDArray[np.float64], curve: list[tuple[int, float]]) -> NDArray[np.float64]:
    k, score = zip(*curve, strict=True)
    return np.interp(np.log(axis), np.log(k), score).clip(0, 1)


def _round_numbers(axis: NDArray[np.float64]) -> list[int]:
    """The ends of the axis, and 1, 2, 5 times powers of ten between them that are far enough apart to be read."""
    inner = [f * 10**e for e in range(8) for f in (1, 2, 5) if axis[0] * 1.15 < f * 10**e < axis[-1] / 1.15]
    return [round(axis[0]), *inner, round(axis[-1])]


def _ticks(axis: NDArray[np.float64]) -> str:
    line = ""
    for k in _round_numbers(axis):
        at = int(np.abs(axis - k).argmin())
        if at >= len(line) + 1 or not line:
            line = line.ljust(at) + str(k)
    return line
