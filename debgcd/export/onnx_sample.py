"""Categories of images from an exported model: python SCRIPT.py MODEL.onnx IMAGE [IMAGE ...]

Needs onnxruntime and Pillow alone; debgcd copies this file next to each model that it exports.
"""

import json
import sys

import numpy as np  # comes with onnxruntime
import onnxruntime
from PIL import Image, ImageOps


def prepare(path: str, side: int, crop: int) -> np.ndarray:
    """(3, crop, crop) uint8: the short side resized, the centre cut out."""
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    scale = side / min(image.size)
    width, height = (max(side, round(length * scale)) for length in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (image.width - crop) // 2, (image.height - crop) // 2
    return np.asarray(image.crop((left, top, left + crop, top + crop))).transpose(2, 0, 1)


def main(model: str, paths: list[str]) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    categories, how = json.loads(facts["categories"]), json.loads(facts["preprocessing"])
    pixels = np.stack([prepare(path, how["resize_short_side"], how["centre_crop"]) for path in paths])
    names = [output.name for output in session.get_outputs()]
    said = dict(zip(names, session.run(names, {"pixels": pixels}), strict=False))
    for i, path in enumerate(paths):
        best = int(said["probabilities"][i].argmax())
        novelty = f", novelty {said['novelty'][i]:.3f}" if "novelty" in said else ""
        print(f"{path}: {categories[best]['name']} ({said['probabilities'][i, best]:.3f}{novelty})")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
