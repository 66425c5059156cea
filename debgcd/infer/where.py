"""Where in an image a network looks: the attention of a vision transformer, the activation map of a convolutional one's category."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from debgcd.data.image.crop import Picture
from debgcd.data.loader import from_files
from debgcd.data.views import CENTRE, PLAIN
from debgcd.errors import DataError, UsageError
from debgcd.methods.base import TEMPERATURE
from debgcd.model.lite import LiteBackbone
from debgcd.model.network import Network
from debgcd.model.vit import VitBackbone
from debgcd.run.model_folder import Model

DARK = 0.25  # brightness of what is not looked at


def where(model: Model, path: Picture) -> NDArray[np.uint8]:
    """The centre crop of an image as the network sees it, bright where it looks: (size, size, 3)."""
    pixels = from_files([path], model.config.views)[0, CENTRE, (PLAIN,)]
    if isinstance(pixels, str):
        raise DataError(pixels)
    backbone = model.network.backbone
    tokens = backbone.trunk(pixels)
    if isinstance(backbone, VitBackbone):
        seen = backbone.attention(tokens).mean(1)[0]
    elif isinstance(backbone, LiteBackbone):
        seen = activation_map(model.network, model.method.final_answers[0], tokens)[0]
    else:
        raise UsageError("with prompts there is no map of where the network looks")
    return np.rint(255 * lit(pixels[0].permute(1, 2, 0).numpy(), seen.cpu().numpy())).astype(np.uint8)


def activation_map(network: Network, head: str, tokens: Tensor) -> Tensor:
    """How much each place moves the log-odds of the most probable category: tokens (N, C, rows, columns) -> (N, rows, columns).

    Σ |gradient · activation| over the channels of the trunk's output. The last layer, where such maps are often taken, has only
    3 × 3 places of an image of 96 pixels, and each of them sees nearly all of it.
    """
    with torch.enable_grad():
        tokens = tokens.detach().requires_grad_()
        scores = network(tokens, (head,))[head] / TEMPERATURE
        own = scores.argmax(1, keepdim=True)
        others = scores.scatter(1, own, -torch.inf).logsumexp(1) if scores.shape[1] > 1 else 0
        (slope,) = torch.autograd.grad((scores.gather(1, own)[:, 0] - others).sum(), tokens)
    return (tokens.detach() * slope).abs().sum(1)


def lit(face: NDArray[np.uint8], seen: NDArray[np.float32]) -> NDArray[np.float64]:
    """The image (H, W, 3), 0..1, bright where `seen` (rows, columns) is high."""
    size = face.shape[1::-1]
    smooth = np.asarray(Image.fromarray(seen / max(float(seen.max()), 1e-12)).resize(size, Image.Resampling.BICUBIC))
    return (DARK + (1 - DARK) * smooth.clip(0, 1))[..., None] * face / 255
