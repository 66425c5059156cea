"""From a JPEG file to an image of 256 pixels, against Pillow's full decode and bicubic resize."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.bench.lines import Line, compare
from debgcd.bench.photos import photographs
from debgcd.bench.session import Session
from debgcd.bench.timing import Work
from debgcd.data.decode import decode
from debgcd.data.views import CENTRE, cut_view, resize_short_side
from debgcd.model.lite import load_lite
from debgcd.progress import progress

LEAST_COSINE = 0.999
GOALS = {"12 MP": 8.0}


def measure(session: Session) -> list[Line]:
    sizes, lines = session.sizes, []
    short = sizes.views.resize
    for name, size, count in (("12 MP", sizes.large, sizes.large_photos), ("VGA", sizes.small, sizes.small_photos)):
        paths = photographs(session, size, count)
        megabytes = sum(path.stat().st_size for path in paths) / len(paths) / 1e6
        took = decode_seconds(session, size, count)
        what = f"{name} JPEG ({megabytes:.2g} MB) to short side {short}"
        unit = 1000.0
        lines.append(compare("decode", what, "ms", took["ours"] * unit, took["plain"] * unit, at_least=GOALS.get(name)))
        lines.append(_same_features(name, paths, short, sizes.views.size))
    return lines


def decode_seconds(session: Session, size: tuple[int, int], count: int) -> dict[str, float]:
    """Seconds an image on one core, "ours" and "plain"."""
    return session.once(("decode", size, count), lambda: _decode_seconds(session, size, count))


def _decode_seconds(session: Session, size: tuple[int, int], count: int) -> dict[str, float]:
    short = session.sizes.views.resize
    threads = torch.get_num_threads()
    with progress(f"decode, {size[0]} × {size[1]}") as report:
        paths = photographs(session, size, count)
        torch.set_num_threads(1)  # as in a loader's worker; Pillow has one as well
        try:
            works = {
                "ours": Work(lambda: [own_way(path, short) for path in paths], count),
                "plain": Work(lambda: [plain_way(path, short) for path in paths], count),
            }
            return session.seconds(works, report)
        finally:
            torch.set_num_threads(threads)


def own_way(path: Path, short: int) -> Tensor:
    """(3, h, w) uint8, as a run reads its images."""
    return resize_short_side(decode(path, short), short)


def plain_way(path: Path, short: int) -> NDArray[np.uint8]:
    """(h, w, 3) uint8: all pixels decoded, then resized, as public code does it through torchvision."""
    with Image.open(path) as image:
        rgb = image.convert("RGB")
    width, height = rgb.size
    least = min(width, height)
    return np.asarray(rgb.resize((short * width // least, short * height // least), Image.Resampling.BICUBIC))


def _same_features(name: str, paths: list[Path], short: int, size: int) -> Line:
    """How alike lite0 finds what both ways give."""
    plain = [torch.from_numpy(plain_way(path, short).copy()).permute(2, 0, 1) for path in paths]
    crops = [
        torch.stack([cut_view(image, CENTRE[0], size) for image in images])
        for images in ([own_way(path, short) for path in paths], plain)
    ]
    backbone = load_lite(0)
    with torch.no_grad():
        ours, theirs = (normalize(backbone.tail(backbone.trunk(images)), dim=1) for images in crops)
    least = float((ours * theirs).sum(1).min())
    note = ""
    if len(paths) > 1:
        apart = (ours @ ours.T)[~torch.eye(len(paths), dtype=torch.bool)]
        note = f"between different photographs at most {float(apart.max()):.3f}"
    what = f"{name}: least cosine of lite0's features between both, {len(paths)} photographs"
    return Line("decode", what, "cosine", least, at_least=LEAST_COSINE, note=note)
