"""onnx: the whole model in one file, from pixels to features, probabilities and novelty; checked when it is written."""

from __future__ import annotations

import io
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from debgcd import __version__
from debgcd.data.loader import from_files
from debgcd.data.views import CENTRE, PLAIN
from debgcd.errors import DebgcdError
from debgcd.grow.splits import open_model
from debgcd.novelty.base import DETECTOR
from debgcd.run.directory import Run, unusable_images
from debgcd.run.model_folder import Model
from debgcd.system.files import write_bytes
from debgcd.system.machine import optional
from debgcd.system.progress import progress

SAMPLE = Path(__file__).with_name("onnx_sample.txt")  # a script, but not one of this package
TOLERANCE = 1e-4  # of probabilities
VOTE = 0.02  # of novelty: where neighbours vote, rounding may change the order of two that are equally near
CHECKED = 14  # images whose answers are compared, in batches of 1 and 7
OPSET = 20


class Whole(nn.Module):
    """Trunk, tail and heads with plain tensors: pixels (N, 3, size, size), 0..255 -> features, probabilities, novelty."""

    def __init__(self, model: Model):
        super().__init__()
        self.network, self.method, self.parts = model.network, model.method, model.parts

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        backbone = self.network.backbone
        tokens = backbone.tokens((pixels.float() - backbone.pixel_mean) / backbone.pixel_std)
        output = self.network(tokens, {*self.method.final_answers, DETECTOR})
        probabilities = next(iter(self.method.scores(output).values()))
        if self.parts is not None:
            probabilities = self.parts(output.feature, probabilities)
        novelty = self.method.novelty(output)
        return (output.feature, probabilities) if novelty is None else (output.feature, probabilities, novelty)


def write_onnx(run: Run, out: Path, cache: Path) -> None:
    """Write the model, and beside it a script that uses it with onnxruntime and Pillow alone."""
    needed = ("onnx", "onnxruntime", "onnxscript")  # torch needs the last one
    onnx, onnxruntime, _ = (optional(package, "onnx", "the export to ONNX") for package in needed)
    model = open_model(run.folder, cache, device="cpu")
    model.network.backbone.precision = "fp32"
    whole = Whole(model).eval()
    pixels = _pixels(run, model, cache)
    with progress("writing onnx"), tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model.onnx"
        _convert(whole, pixels, place)
        document = onnx.load(place)
    for key, value in _facts(model).items():
        document.metadata_props.add(key=key, value=value)
    content = document.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    _compare(whole, session, pixels)
    write_bytes(out, content)
    shutil.copyfile(SAMPLE, sample_of(out))


def sample_of(out: Path) -> Path:
    """Where the sample script of an exported model is."""
    return out.with_name(f"{out.stem}_predict.py")


def _pixels(run: Run, model: Model, cache: Path) -> NDArray[np.uint8]:
    """(CHECKED, 3, size, size): centre crops of images of the run, noise where there are not enough."""
    size = model.config.views.crop
    pixels = np.random.default_rng(0).integers(0, 256, (CHECKED, 3, size, size), dtype=np.uint8)
    rows = run.manifest.training_rows[:CHECKED]
    images = from_files([run.manifest.paths[row] for row in rows], model.config.views)
    for i, why in enumerate(unusable_images(run, rows, cache)):
        view = why or images[i, CENTRE, (PLAIN,)]
        if not isinstance(view, str):  # else the file is not what it was, and noise will do
            pixels[i] = view[0].numpy()
    return pixels


def _convert(whole: Whole, pixels: NDArray[np.uint8], place: Path) -> None:
    names = ["features", "probabilities", "novelty"]
    with torch.no_grad(), _quiet():
        # Not left to torch.onnx, which would also allow for 0 and 1 images here. Attention in torch treats these as special
        # cases, and then torch.onnx settles for the number of images in the example. In the file they are not special.
        shapes = ({0: torch.export.Dim("images", min=2)},)
        traced = torch.export.export(whole, (torch.from_numpy(pixels[:2]),), dynamic_shapes=shapes)
        torch.onnx.export(
            traced,
            f=str(place),
            dynamo=True,
            external_data=False,
            opset_version=OPSET,
            input_names=["pixels"],
            output_names=names[: len(traced.graph_signature.user_outputs)],
            dynamic_shapes=({0: "images"},),  # its name in the file
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes of the exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _facts(model: Model) -> dict[str, str]:
    """The metadata: names of the categories and how pixels are prepared, as JSON."""
    views = model.config.views
    prepare = {
        "resize_short_side": views.short_side,
        "centre_crop": views.crop,
        "resample": "bicubic",
        "colours": "RGB",
    }
    prepare |= {"range": "0..255, uint8; the normalisation is inside"}
    return {
        "debgcd": __version__,
        "categories": json.dumps([category.to_json() for category in model.categories]),
        "preprocessing": json.dumps(prepare),
        "model_sha256": model.sha256,
    }


def _compare(whole: Whole, session: Any, pixels: NDArray[np.uint8]) -> None:
    """Refuse a file whose answers differ from the model's."""
    for batch in (pixels[:1], pixels[-7:]):
        with torch.no_grad():
            ours = [part.numpy() for part in whole(torch.from_numpy(batch))]
        theirs = session.run(None, {"pixels": batch})
        same = (ours[1].argmax(1) == theirs[1].argmax(1)).all()
        for a, b, most in zip(ours[1:], theirs[1:], (TOLERANCE, VOTE), strict=False):
            worst = float(np.abs(a - b).max())
            if worst > most or not same:
                raise DebgcdError(
                    f"the exported model differs from the original by {worst:.1g}, more than {most:g}; nothing was written: try "
                    "other versions of torch, onnxscript and onnxruntime"
                )
