"""A text–image model of the hub in CLIP's form: how well words fit images. Its weights are read from safetensors alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.errors import DataError
from debgcd.model.load import VIT, download, line, pixel_statistics
from debgcd.system.files import read_json, readable
from debgcd.system.machine import optional

DEFAULT = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
PROMPT = "a photo of a {}"
BATCH = 32
FILES = ("model*.safetensors", "*.json", "merges.txt")
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class TextImage:
    """The model and its tokenizer."""

    model: Any
    tokenizer: Any
    size: int  # pixels, the side of an image
    mean: Tensor  # (3, 1, 1)
    std: Tensor

    @torch.no_grad()
    def words(self, words: Sequence[str]) -> Tensor:
        """Unit embeddings of these words in the prompt: (W, width)."""
        found = []
        for start in range(0, len(words), BATCH):
            texts = [PROMPT.format(word) for word in words[start : start + BATCH]]
            given = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
            found.append(self.model.get_text_features(**given).pooler_output)
        return normalize(torch.cat(found), dim=1)

    @torch.no_grad()
    def images(self, images: Iterable[NDArray[np.uint8]]) -> Tensor:
        """Unit embeddings of square images (size, size, 3): (N, width)."""
        pixels = torch.stack([torch.from_numpy(image.copy()).permute(2, 0, 1) for image in images])
        found = [
            self.model.get_image_features((part.float() / 255 - self.mean) / self.std).pooler_output
            for part in pixels.split(BATCH)
        ]
        return normalize(torch.cat(found), dim=1)

    @torch.no_grad()
    def fit(self, images: Tensor, words: Tensor) -> Tensor:
        """Which of the words fits each image, as probabilities: (N, width), (W, width) -> (N, W)."""
        return (self.model.logit_scale.exp() * images @ words.T).softmax(1)


def load_text_image(name: str, cache: Path) -> TextImage:
    """The model of a folder or a hub id."""
    optional("transformers", VIT, f"the text-image model {name}")
    from transformers import CLIPModel, CLIPTokenizer

    folder = Path(name) if Path(name).is_dir() else download(name, cache=cache, what="text-image model", patterns=FILES)
    with readable(folder / "config.json", "give a folder or a hub id of a model in CLIP's form"):
        kind = read_json(folder / "config.json")["model_type"]
    if kind != "clip":
        raise DataError(f"{name} is a model of type {kind!r:.40}, not clip; choose one such as {DEFAULT} with --model")
    try:
        model = CLIPModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
        tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # an untrusted file; the library raises errors of many kinds
        raise DataError(
            f"the text-image model {name} cannot be read ({line(error)}); choose another with --model"
        ) from error
    mean, std = pixel_statistics(folder / "preprocessor_config.json", CLIP_MEAN, CLIP_STD)
    shape = torch.Size([3, 1, 1])
    return TextImage(
        model,
        tokenizer,
        model.config.vision_config.image_size,
        torch.tensor(mean).view(shape),
        torch.tensor(std).view(shape),
    )
