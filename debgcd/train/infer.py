"""From centre crops to categories: the same for evaluation, for the end of a run and for new images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.losses import novelty
from debgcd.methods.protocol import Method
from debgcd.model.network import Network

TOP = 3


@dataclass(frozen=True)
class Inference:
    """What a network says of N images, in their order."""

    top: NDArray[np.int64]  # (N, min(3, K)) categories of the GCD classifier, the most probable first
    probability: NDArray[np.float32]  # of each of them
    novelty: NDArray[np.float32] | None  # (N,) where the method has a detector and it was asked for
    debiased: NDArray[np.int64] | None  # (N,) categories of the debiased classifier, likewise

    @classmethod
    def of(cls, category: Tensor, novelty: Tensor | None) -> Inference:
        """From clusters: one category per image, without a probability."""
        top = category.cpu().numpy()[:, None]
        return cls(top, np.ones(top.shape, np.float32), None if novelty is None else novelty.cpu().numpy(), None)

    @property
    def category(self) -> NDArray[np.int64]:
        return self.top[:, 0]


@torch.no_grad()
def infer(
    network: Network, method: Method, tokens: Iterable[Tensor], heads: Iterable[str] = ("detector",)
) -> Inference:
    """Categories of the images whose tokens these are; `heads` names what to run beside the GCD classifier."""
    asked = {"classifier", *heads} & set(network.heads)
    top, probability, scores, debiased = [], [], [], []
    for batch in tokens:
        output = network.from_tokens(batch, asked)
        assert output.logits is not None
        p = method.assign(output.logits)
        best = p.topk(min(TOP, p.shape[1]), dim=1)
        top.append(best.indices)
        probability.append(best.values)
        if output.detector is not None:
            scores.append(novelty(output.detector))
        if output.debiased is not None:
            debiased.append(output.debiased.argmax(1))
    return Inference(
        top=_join(top, np.int64).reshape(-1, top[0].shape[1] if top else TOP),
        probability=_join(probability, np.float32).reshape(-1, top[0].shape[1] if top else TOP),
        novelty=_join(scores, np.float32) if "detector" in asked else None,
        debiased=_join(debiased, np.int64) if "debiased" in asked else None,
    )


@torch.no_grad()
def features(network: Network, tokens: Iterable[Tensor]) -> Tensor:
    """(N, width) features of the images whose tokens these are."""
    parts = [network.from_tokens(batch, ()).feature for batch in tokens]
    return torch.cat(parts) if parts else torch.empty(0, network.backbone.width)


def _join(parts: list[Tensor], dtype: type) -> NDArray:
    return torch.cat(parts).cpu().numpy().astype(dtype) if parts else np.empty(0, dtype)
