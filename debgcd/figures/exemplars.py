"""A picture of the categories: one row each, the images the model is surest of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from debgcd.data.decode import Unusable, decode
from debgcd.train.categories import Category
from debgcd.train.finish import Prediction

TILE, GAP, LABEL = 72, 4, 190
INK, FAINT, KNOWN, NEW = "#1f2430", "#6b7280", "#2563a8", "#b4531a"


def draw_exemplars(
    predictions: Sequence[Prediction], categories: Sequence[Category], path: Path, columns: int = 12
) -> None:
    """Write a PNG: for each category its id, its size and its most confident images."""
    members = defaultdict(list)
    for row in sorted(predictions, key=lambda row: (-float(row["confidence"]), str(row["path"]))):
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
            sheet.paste(_tile(Path(str(row["path"]))), (LABEL + GAP + j * (TILE + GAP), top))
    sheet.save(path)


def _tile(path: Path) -> Image.Image:
    try:
        image = Image.fromarray(decode(path, TILE))
    except Unusable:  # it was there when the model saw it
        return Image.new("RGB", (TILE, TILE), "#e5e7eb")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    smooth = Image.Resampling.NEAREST if side < TILE // 2 else Image.Resampling.BICUBIC
    return image.crop((left, top, left + side, top + side)).resize((TILE, TILE), smooth)


def _short(name: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """The name on one line, cut where it would run into the images."""
    name = " ".join(name.split())
    if font.getlength(name) <= width:
        return name
    while name and font.getlength(name + "…") > width:
        name = name[:-1]
    return name + "…"
