"""Backbone and heads together: what training and prediction call."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from debgcd.model.backbone import Backbone


@dataclass(frozen=True)
class Output:
    """What the heads say of N rows; a head that the method lacks, or that was not asked for, is None."""

    feature: Tensor  # (N, width); standardised where the backbone needs it
    logits: Tensor | None = None  # (N, K) of the GCD classifier
    projection: Tensor | None = None  # (N, d) unit rows for L_rep
    debiased: Tensor | None = None  # (N, K) of the debiased classifier
    detector: Tensor | None = None  # (N, M, 2)


# the names of heads, and of the field of Output that each fills
FIELDS = {"classifier": "logits", "projection": "projection", "debiased": "debiased", "detector": "detector"}


class Network(nn.Module):
    """Trunk, tail, and heads named as in FIELDS; a method decides which heads there are."""

    feature_mean: Tensor
    feature_scale: Tensor

    def __init__(self, backbone: Backbone, heads: nn.ModuleDict):
        super().__init__()
        self.backbone = backbone
        self.heads = heads
        self.register_buffer("feature_mean", torch.zeros(backbone.width))
        self.register_buffer("feature_scale", torch.ones(backbone.width))

    @property
    def learning(self) -> set[str]:
        """The heads that gradients train; the others are filled from the features of all images."""
        return {name for name, head in self.heads.items() if any(True for _ in head.parameters())}

    def forward(self, images: Tensor, heads: Collection[str] = ("classifier",)) -> Output:
        """Images (N, 3, H, W) uint8 -> what the named heads say.

        The category of an image needs the GCD classifier alone; add "detector" to `heads` where novelty is asked for.
        """
        return self.from_tokens(self.backbone.trunk(images), heads)

    def from_tokens(self, tokens: Tensor, heads: Collection[str]) -> Output:
        """The same from the trunk's output on."""
        feature = (self.backbone.tail(tokens) - self.feature_mean) * self.feature_scale
        return self.from_feature(feature, heads)

    def from_feature(self, feature: Tensor, heads: Collection[str]) -> Output:
        """The heads alone."""
        return Output(feature, **{FIELDS[name]: head(feature) for name, head in self.heads.items() if name in heads})

    def standardise(self, feature: Tensor) -> None:
        """Fix mean and scale of the features from those of the untuned network over the data set: (N, width).

        A CNN's pooled features are positive and off-centre, so that all cosines are near 1; a ViT's last LayerNorm
        already does this. Only backbones that say `standardise` are changed.
        """
        if self.backbone.standardise:
            self.feature_mean.copy_(feature.mean(0))
            self.feature_scale.copy_(1 / feature.std(0, correction=0).clamp_min(1e-4))

    def state(self) -> dict[str, Tensor]:
        """All that training changes, by name: the tuned blocks, the heads, the fixed standardisation."""
        tensors: dict[str, Tensor] = {f"tail.{name}": value for name, value in self.backbone.tuned.named_parameters()}
        tensors |= {f"heads.{name}": value for name, value in self.heads.state_dict().items()}
        tensors |= {"feature_mean": self.feature_mean, "feature_scale": self.feature_scale}
        return {name: value.detach() for name, value in tensors.items()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Fill from `state`; a KeyError or ValueError names a tensor that is missing, unexpected or of another shape."""
        own = self.state()
        if set(own) != set(tensors):
            raise KeyError(", ".join(sorted(set(own) ^ set(tensors))[:3]))
        for name, value in own.items():
            if value.shape != tensors[name].shape:
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(value.shape)}")
            value.copy_(tensors[name])
