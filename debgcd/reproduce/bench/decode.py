"""Decoding and prediction: from a JPEG file to 256 pixels against Pillow, and from files to categories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import fft
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.data.image.decode import decode
from debgcd.data.manifest import from_paths
from debgcd.data.views import CENTRE, crop_view, resize_short_side
from debgcd.infer.predict import predict
from debgcd.model.backbone import pick_precision
from debgcd.model.lite import load_lite
from debgcd.model.load import load_backbone
from debgcd.reproduce.bench.networks import CPU, TUNED_BLOCKS, random_vit, trainee
from debgcd.reproduce.bench.session import Line, Session, Work, compare
from debgcd.run.categories import categories
from debgcd.run.model_folder import Model
from debgcd.system.progress import progress, say

LEAST_COSINE = 0.999
GOALS = {"12 MP": 8.0}
QUALITY = 90
OBJECTS = 12
NOISE = 1.7  # grey levels


def measure_decode(session: Session) -> list[Line]:
    sizes, lines = session.sizes, []
    short = sizes.views.short_side
    for name, size, count in (("12 MP", sizes.large, sizes.large_photos), ("VGA", sizes.small, sizes.small_photos)):
        paths = photographs(session, size, count)
        megabytes = sum(path.stat().st_size for path in paths) / len(paths) / 1e6
        ms = {who: 1000 * seconds for who, seconds in decode_seconds(session, size, count).items()}
        what = f"{name} JPEG ({megabytes:.2g} MB) to short side {short}"
        lines.append(compare("decode", what, "ms", ms["ours"], ms["plain"], at_least=GOALS.get(name)))
        lines.append(_same_features(name, paths, short, sizes.views.crop))
    return lines


def decode_seconds(session: Session, size: tuple[int, int], count: int) -> dict[str, float]:
    """Seconds per image on one core, "ours" and "plain"."""
    return session.once(("decode", size, count), lambda: _decode_seconds(session, size, count))


def _decode_seconds(session: Session, size: tuple[int, int], count: int) -> dict[str, float]:
    short = session.sizes.views.short_side
    threads = torch.get_num_threads()
    with progress(f"decode, {size[0]} × {size[1]}") as report:
        paths = photographs(session, size, count)
        torch.set_num_threads(1)  # as in a loader's worker; Pillow uses one as well
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
    """(h, w, 3) uint8: all pixels decoded, then resized, as public code does through torchvision."""
    with Image.open(path) as image:
        rgb = image.convert("RGB")
    width, height = rgb.size
    least = min(width, height)
    return np.asarray(rgb.resize((short * width // least, short * height // least), Image.Resampling.BICUBIC))


def _same_features(name: str, paths: list[Path], short: int, size: int) -> Line:
    """The cosine between lite0's features of both decodings."""
    plain = [torch.from_numpy(plain_way(path, short).copy()).permute(2, 0, 1) for path in paths]
    crops = [
        torch.stack([crop_view(image, CENTRE[0], size) for image in images])
        for images in ([own_way(path, short) for path in paths], plain)
    ]
    backbone = load_lite(0)
    with torch.no_grad():
        ours, theirs = (normalize(backbone.tail(backbone.trunk(images)), dim=1) for images in crops)
    least = float((ours * theirs).sum(1).min())
    note = ""
    if len(paths) > 1:
        others = (ours @ ours.T)[~torch.eye(len(paths), dtype=torch.bool)]
        note = f"between different photographs at most {float(others.max()):.3f}"
    what = f"{name}: least cosine of lite0's features between both, {len(paths)} photographs"
    return Line("decode", what, "cosine", least, at_least=LEAST_COSINE, note=note)


def photographs(session: Session, size: tuple[int, int], count: int) -> list[Path]:
    """JPEG files of different photographs of this size (width, height)."""
    return session.once(("photos", size, count), lambda: _write(session.folder, size, count))


def _write(folder: Path, size: tuple[int, int], count: int) -> list[Path]:
    paths = [folder / f"{size[0]}x{size[1]}-{count}" / f"{i:04d}.jpg" for i in range(count)]
    paths[0].parent.mkdir(parents=True)
    different = [_photograph(*size, seed=i) for i in range(min(count, 8))]
    for i, path in enumerate(paths):
        # beyond eight they are shifted copies: all files differ, and writing them is quick
        pixels = np.roll(different[i % len(different)], 16 * (i // len(different)), axis=1)
        Image.fromarray(pixels).save(path, quality=QUALITY)
    return paths


def _photograph(width: int, height: int, seed: int) -> NDArray[np.uint8]:
    """(height, width, 3) uint8."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j].astype(np.float32)
    image = np.empty((height, width, 3), np.float32)
    detail = _natural_noise(height, width, random)
    for channel in range(3):
        across, down = random.uniform(-60, 60, 2).astype(np.float32)
        image[..., channel] = random.uniform(90, 160) + across * x + down * y + random.uniform(18, 24) * detail
    for _ in range(OBJECTS):
        centre, radius = random.uniform(0, 1, 2), random.uniform(0.03, 0.25, 2)
        low, high = (np.clip((centre + sign * radius) * (width, height), 0, None).astype(int) for sign in (-1, 1))
        box = slice(low[1], high[1]), slice(low[0], high[0])  # only the object's own box: the whole image takes long
        inside = ((x[box] - centre[0]) / radius[0]) ** 2 + ((y[box] - centre[1]) / radius[1]) ** 2 < 1
        image[box][inside] += random.uniform(-70, 70, 3).astype(np.float32)
    image += random.standard_normal((height, width, 1), np.float32) * NOISE
    return image.clip(0, 255).astype(np.uint8)


def _natural_noise(height: int, width: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Noise with amplitude 1/f, as in natural images; standard deviation 1."""
    fy, fx = np.fft.fftfreq(height)[:, None].astype(np.float32), np.fft.rfftfreq(width)[None].astype(np.float32)
    frequency = np.hypot(fy * height, fx * width)  # in cycles per image
    frequency[0, 0] = np.inf
    phase = random.uniform(0, 2 * np.pi, frequency.shape).astype(np.float32)
    field = fft.irfft2(np.exp(1j * phase) / frequency, s=(height, width), workers=1)
    return (field / field.std()).astype(np.float32)


def measure_predict(session: Session) -> list[Line]:
    sizes = session.sizes
    resize, crop = sizes.lite_pixels
    networks = [("lite0", "lite0", resize, crop, sizes.predicted[0])]
    for shape in session.shapes[:1]:  # the smallest
        _, folder = random_vit(session, shape)
        networks.append((shape.name, str(folder), sizes.views.short_side, sizes.views.crop, sizes.predicted[1]))
    lines = []
    for name, source, resize, crop, count in networks:
        say(f"predict, {name}:")
        model = _model(session, source, resize, crop)
        manifest = from_paths(photographs(session, sizes.small, count))
        work = Work(lambda model=model, manifest=manifest: list(predict(model, manifest)), count)  # type: ignore[misc]
        seconds = session.seconds({name: work})[name]  # without a report: `predict` has its own
        what = f"{name} at {crop} px, {count} VGA files to categories"
        lines.append(Line("predict", what, "images/s", 1 / seconds))
    return lines


def _model(session: Session, source: str, resize: int, crop: int) -> Model:
    config, known = session.config(), session.sizes.known
    precision = pick_precision("auto", CPU)
    one = trainee(config, known, load_backbone(source, tuned_blocks=TUNED_BLOCKS, image_size=crop, precision=precision))
    config = replace(config, views=replace(config.views, resize=resize, size=crop))
    names = categories([f"class {i:03d}" for i in range(known)], session.sizes.k)
    return Model(one.network, one.method, config, names, images=1, sha256="")
