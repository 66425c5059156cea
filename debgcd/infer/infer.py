"""From centre crops to categories, for evaluation, for the end of a run and for new images."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from debgcd.methods.base import Method
from debgcd.model.heads import classifiers
from debgcd.model.network import Network, Output
from debgcd.model.parts import Parts
from debgcd.novelty.base import DETECTOR
from debgcd.novelty.so_far import SoFar
from debgcd.run.predictions import TOP, Inference
from debgcd.system import distributed
from debgcd.tokens.sources import Tokens, own_numbers

FEATURES_PER_BLOCK = 4096  # that go through the heads together


@torch.no_grad()
def infer(
    network: Network,
    method: Method,
    tokens: Iterable[Tensor],
    heads: Collection[str] | None = None,
    parts: Parts | None = None,
    so_far: SoFar | None = None,
) -> Inference:
    """Predict categories from batches of tokens.

    heads: names of the heads to run; None: the method's `final_answers`, all classifiers and the detector. Heads that only training
    needs, such as a projection, are not run. parts: of categories that a reviewer split. so_far: by which the images
    will be judged.
    """
    names = _head_names(network, method, heads)
    return _join_outputs(method, (network(batch, names) for batch in tokens), parts, so_far)


def _head_names(network: Network, method: Method, heads: Collection[str] | None) -> set[str]:
    """The heads to run, see `infer`."""
    return {*method.final_answers, DETECTOR, *classifiers(network.heads)} if heads is None else set(heads)


def _join_outputs(
    method: Method, outputs: Iterable[Output], parts: Parts | None = None, so_far: SoFar | None = None
) -> Inference:
    """The predictions from the outputs of all batches."""
    top, probability, scores, points = [], [], [], []
    others: dict[str, list[Tensor]] = {}
    for output in outputs:
        distributed.heartbeat()
        (_, p), *further = method.scores(output).items()
        p = p if parts is None else parts(output.feature, p)
        best = p.topk(min(TOP, p.shape[1]), dim=1)
        top.append(best.indices)
        probability.append(best.values)
        novelty = method.novelty(output)
        scores += [] if novelty is None else [novelty]
        points += [] if so_far is None else [so_far.place(output.feature)]
        for name, q in further:
            others.setdefault(name, []).append(q.argmax(1))
    columns = top[0].shape[1] if top else TOP
    return Inference(
        top=_join(top, np.int64).reshape(-1, columns),
        probability=_join(probability, np.float32).reshape(-1, columns),
        novelty=_join(scores, np.float32) if scores or not top else None,
        points=None if so_far is None else _join(points, np.float16).reshape(-1, so_far.axes.shape[1]),
        others={name: _join(parts, np.int64) for name, parts in others.items()},
    )


def infer_shared(
    network: Network,
    method: Method,
    tokens: Tokens,
    numbers: NDArray[np.int64],
    heads: Collection[str] | None = None,
) -> Inference:
    """As `infer`, for the centre crops of these images; each rank computes a part, and all ranks get the whole result."""
    return _shared(infer(network, method, tokens.centre(own_numbers(numbers)), heads))


@torch.no_grad()
def infer_features(
    network: Network,
    method: Method,
    feature: Tensor,
    heads: Collection[str] | None = None,
    parts: Parts | None = None,
) -> Inference:
    """As `infer_shared`, from features (N, width) on rank 0; other ranks pass no rows. parts: as for `infer`."""
    names = _head_names(network, method, heads)
    blocks = (network.from_feature(rows, names) for rows in feature.split(FEATURES_PER_BLOCK) if len(rows))
    return _shared(_join_outputs(method, blocks, parts))


def _shared(own: Inference) -> Inference:
    """The results of all ranks, in rank order."""
    # rank 0 has images if any rank has
    has_novelty, others = distributed.all_gather([own.novelty is not None, list(own.others)])[0]
    return Inference(
        top=_collect(own.top),
        probability=_collect(own.probability),
        novelty=_collect(own.novelty if own.novelty is not None else np.empty(0, np.float32)) if has_novelty else None,
        others={name: _collect(own.others.get(name, np.empty(0, np.int64))) for name in others},
    )


@torch.no_grad()
def probabilities(
    network: Network, method: Method, tokens: Iterable[Tensor], parts: Parts | None = None
) -> NDArray[np.float32]:
    """(N, K) probabilities of all categories; `infer` keeps the three largest of each image. parts: see `infer`."""
    found = []
    for batch in tokens:
        output = network(batch, method.final_answers)
        p = next(iter(method.scores(output).values()))
        found.append(p if parts is None else parts(output.feature, p))
    return _join(found, np.float32).reshape(-1, method.sizes.k if parts is None else parts.categories)


@torch.no_grad()
def features(network: Network, tokens: Iterable[Tensor]) -> Tensor:
    """(N, width) features from batches of tokens."""
    parts = []
    for batch in tokens:
        distributed.heartbeat()
        parts.append(network(batch, ()).feature)
    return torch.cat(parts) if parts else torch.empty(0, network.backbone.width, device=network.feature_mean.device)


def features_shared(network: Network, tokens: Tokens, numbers: NDArray[np.int64]) -> Tensor:
    """As `features`, for the centre crops of these images; each rank computes a part, and rank 0 gets all rows."""
    return distributed.collect(features(network, tokens.centre(own_numbers(numbers))), everyone=False)


@torch.no_grad()
def averaged_features_shared(network: Network, tokens: Tokens, numbers: NDArray[np.int64]) -> Tensor | None:
    """As `features_shared`, but averaged over all plain views that a bank keeps of these images; None if none is kept."""
    batches = tokens.kept_views(own_numbers(numbers))
    if batches is None:
        return None
    means = [torch.stack([features(network, [view]) for view in views]).mean(0) for views in batches]
    return distributed.collect(torch.cat(means) if means else features(network, []), everyone=False)


def _collect(values: NDArray[Any]) -> NDArray[Any]:
    return distributed.collect(torch.from_numpy(values)).numpy()


def _join(parts: list[Tensor], dtype: type) -> NDArray[Any]:
    return torch.cat(parts).cpu().numpy().astype(dtype) if parts else np.empty(0, dtype)
