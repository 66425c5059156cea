"""A batch of new images into a finished run, in seconds: nothing that was assigned changes.

Each image gets one of three answers (novelty/so_far.py): a known class, a category found before, or none of these. Those of none of
these are clustered among themselves (cluster/discover.py). Each cluster becomes a category with a new id, and gets a row in every classifier.
The batch is complete on disk before a line of the run's log makes it count (run/added.py).
"""

from __future__ import annotations

import copy
import io
import shlex
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.nn.functional import normalize

from debgcd.cluster.discover import LEAST, discover
from debgcd.cluster.prototypes import class_means
from debgcd.data.fingerprints import Contents, read_contents
from debgcd.data.image.crop import Box, Crop, Picture
from debgcd.data.image.decode import Reason
from debgcd.data.manifest import Manifest, Skipped, manifest_text, skip, skipped_text
from debgcd.errors import DataError, UsageError
from debgcd.grow.features import run_features
from debgcd.grow.splits import carry_splits, open_model
from debgcd.infer.infer import infer_features
from debgcd.infer.predict import embed, usable_images
from debgcd.methods import create
from debgcd.model.heads import Classifier, Part
from debgcd.model.network import Network
from debgcd.novelty.base import DETECTOR
from debgcd.novelty.so_far import Origin, SoFar
from debgcd.review.log import Log
from debgcd.review.replay import Review
from debgcd.review.state import ACCEPTED, REJECTED
from debgcd.run.added import DIGESTS, FEATURES, HEADS, MANIFEST, PREDICTIONS, drop_batch, write_batch
from debgcd.run.categories import Category, own_categories
from debgcd.run.directory import Run, digest_lines, finished_run, read_digests
from debgcd.run.model_folder import Model
from debgcd.run.parts_file import read_parts
from debgcd.run.predictions import NONE, Inference, prediction_table, to_csv
from debgcd.run.so_far_file import SO_FAR, so_far_bytes
from debgcd.system.progress import progress

DOUBTFUL = 0.2  # share of doubtful images in a batch from which a full training is worth it
DRIFTED = 0.1  # the same for the share of categories whose new images look more like another category
SURE = 0.5  # confidence below which an image is doubtful
SKIPPED = "skipped.csv"


@dataclass(frozen=True)
class Added:
    """What became of a batch."""

    number: str
    images: Counter[str]  # how many of the batch are in a category, by its id
    categories: dict[str, Category]  # of the run, by id
    new: tuple[str, ...]  # ids that are new with the batch
    unplaced: int  # images of none of the categories so far, and too few to be a new one: they are where they fit best
    skipped: tuple[Skipped, ...]
    again: str  # why a full training is worth it; empty if it is not


@dataclass(frozen=True)
class Seen:
    """The images of a run that count, S of them, before a batch."""

    feature: Tensor  # (S, width)
    category: Tensor  # (S,) numbers
    origin: Tensor  # (S,) of `Origin`
    group: Tensor  # (S,)

    def joined(self, feature: Tensor, category: Tensor, group: Tensor) -> Seen:
        """With the images of a batch, in the categories that were found for them."""
        origin = torch.full_like(category, int(Origin.FOUND))
        pairs = zip(vars(self).values(), (feature, category, origin, group), strict=True)
        return Seen(*(torch.cat(pair) for pair in pairs))


def _voters(seen: Seen) -> SoFar:
    return SoFar(seen.feature.shape[1], len(seen.feature)).fit(seen.feature, seen.category, seen.origin, seen.group)


def add(folder: Path, manifest: Manifest, cache: Path, new: int | None = None) -> Added:
    """Add these images, without their labels, to a finished run. new: the number of new categories; None: estimated.

    A DataError or UsageError leaves the run as it was.
    """
    finished_run(folder)
    carry_splits(folder, cache)  # it takes a lock of its own, so before the log's
    with Log(folder) as log:
        run, model = finished_run(folder), open_model(folder, cache)
        batch, contents = _new_images(run, manifest, cache)
        feature = embed(model, batch).float().cpu()
        if not feature.isfinite().all():
            raise DataError("the features of some of the images are not finite; look at the images")
        seen = _seen(run, log.review, model.categories, cache)
        group = _groups(batch, int(seen.group.max()) + 1)
        none_p = _voters(seen)(feature, group).none_p
        none = none_p > NONE
        grown, inference = _grow(run, model, seen, feature, none, new, log.review)
        table = prediction_table(batch.paths, inference, grown.categories, grown.novel, none_p.numpy())
        first = len(own_categories(model.categories))
        ids = [one.id for one in own_categories(grown.categories)[first:]]
        files = {
            MANIFEST: manifest_text(batch),
            DIGESTS: digest_lines(contents),
            PREDICTIONS: to_csv(table),
            SKIPPED: skipped_text(batch.skipped),
        }
        content = {name: text.encode("utf-8", "backslashreplace") for name, text in files.items()}
        content |= {HEADS: save_tensors(_longer(grown.network, run)), FEATURES: _npy(feature.half())}
        category = torch.from_numpy(inference.category)
        content[SO_FAR] = so_far_bytes(_voters(seen.joined(feature, category, group)))
        number = f"{log.review.batches + 1:04d}"
        line = write_batch(run.folder, number, ids, first, content)
        try:
            log.act(line)
        except (OSError, UsageError):
            drop_batch(run.folder, number)
            raise
    images = Counter(table["id"])
    unplaced = none & ~torch.tensor([id in ids for id in table["id"]], dtype=torch.bool)
    again = _worth_training(run.folder, seen, feature, inference, unplaced)
    by_id = {one.id: one for one in grown.categories}
    return Added(number, images, by_id, tuple(ids), int(unplaced.sum()), batch.skipped, again)


def take_back(folder: Path) -> str:
    """Take the last batch back; returns its number. Its folder stays, and is ignored."""
    with Log(folder, batches=False) as log:
        if not log.review.added:
            raise UsageError(f"no batch was added to {folder}, or all were taken back")
        last = log.review.added[-1]
        log.act({"act": "undo", "of": last["id"]})
        return str(last["batch"])


def _new_images(run: Run, manifest: Manifest, cache: Path) -> tuple[Manifest, Contents]:
    """The images that can be used and whose content is not in the run yet, without labels; and their contents."""
    truths = tuple(truth or label for truth, label in zip(manifest.truths, manifest.labels, strict=True))
    none = (None,) * len(manifest)
    manifest = replace(manifest, labels=none, truths=truths, splits=("train",) * len(manifest))
    usable = usable_images(manifest, None)
    if not len(usable):
        why = usable.skipped[-1]
        raise DataError(f"none of the {len(manifest)} images can be used, e.g. {why.file}: {why.reason}")
    with progress("hashing images") as report:
        contents = read_contents(usable.paths, cache, report)
    there = dict(
        zip(zip(read_digests(run), map(_box, run.manifest.paths), strict=True), run.manifest.paths, strict=True)
    )
    names = {str(path) for path in run.manifest.paths}
    kept: list[int] = []
    skipped: list[Skipped] = []
    for i, (path, digest) in enumerate(zip(usable.paths, contents.digests, strict=True)):
        first = there.setdefault((digest.hex(), _box(path)), path)
        if first is not path:
            skipped.append(skip(path, Reason.DUPLICATE, f"the content of {first}"))
        elif str(path) in names:
            skipped.append(skip(path, Reason.DUPLICATE, "the run has another image of this name; rename it"))
        else:
            kept.append(i)
    if not kept:
        last = f"; the last batch was {run.added[-1].number}" if run.added else ""
        raise UsageError(
            f"all {len(usable)} images that can be used are in {run.folder} already{last}; nothing was added"
        )
    chosen = replace(usable.select(kept), skipped=(*usable.skipped, *skipped))
    digests, stamps = ([column[i] for i in kept] for column in (contents.digests, contents.stamps))
    return chosen, Contents(chosen.paths, digests, stamps)  # type: ignore[arg-type]


def _box(path: Picture) -> Box | None:
    return path.box if isinstance(path, Crop) else None


def _seen(run: Run, review: Review, categories: list[Category], cache: Path) -> Seen:
    """The images of a run, those that a reviewer rejected left out."""
    feature = run_features(run, cache).float()
    number = {one.id: one.category for one in categories}
    rows, category, origin = [], [], []
    for i, (path, label) in enumerate(
        zip(map(str, run.manifest.training_paths), run.manifest.training_labels.tolist(), strict=True)
    ):
        if label >= 0:
            where, why = label, Origin.GIVEN
        elif path not in review.category or review.status(path) == REJECTED:
            continue
        else:
            where = number[review.category[path]]
            named = review.categories[review.category[path]].status == ACCEPTED
            accepted = review.mark.get(path) == ACCEPTED
            why = Origin.ACCEPTED if accepted else Origin.NAMED if named else Origin.FOUND
        rows.append(i)
        category.append(where)
        origin.append(int(why))
    chosen = torch.tensor(rows)
    there = feature[chosen].any(1)  # a row of zeros is an image that is gone
    group = torch.from_numpy(run.manifest.training_groups)[chosen]
    return Seen(feature[chosen][there], torch.tensor(category)[there], torch.tensor(origin)[there], group[there])


def _groups(batch: Manifest, first: int) -> Tensor:
    """The group of each image of a batch, numbered from `first`; -1 for none."""
    group = torch.from_numpy(batch.training_groups)
    return torch.where(group >= 0, group + first, -1)


def _grow(
    run: Run, model: Model, seen: Seen, feature: Tensor, none: Tensor, new: int | None, review: Review
) -> tuple[Model, Inference]:
    """The model with the categories that these images of none of those so far begin, and what it says of all images of the batch."""
    cluster = torch.full((len(feature),), -1)
    cluster[none] = discover(seen.feature, seen.category, feature[none], new, run.config.seed)
    first = len(own_categories(model.categories))
    while True:
        grown = _with_categories(run, model, seen, feature, cluster, review)
        heads = (*grown.method.final_answers, DETECTOR)
        on_device = feature.to(grown.network.feature_mean.device)
        inference = infer_features(grown.network, grown.method, on_device, heads, grown.parts)
        size = np.bincount(inference.category, minlength=len(grown.categories))[first:]
        large = torch.from_numpy(size[: int(cluster.max()) + 1] >= LEAST)
        if large.all():
            return grown, inference
        # the other categories take most of its images, so it is none
        number = torch.where(large, large.cumsum(0) - 1, -1)
        cluster = torch.where(cluster >= 0, number[cluster.clamp_min(0)], -1)


@torch.no_grad()
def _with_categories(run: Run, model: Model, seen: Seen, feature: Tensor, cluster: Tensor, review: Review) -> Model:
    """The model with a further category for each cluster (N,) of these images, -1 for none."""
    more = int(cluster.max()) + 1
    if not more:
        return model
    network = Network(model.network.backbone, copy.deepcopy(model.network.heads))
    network.load_state(network.state() | {name: v for name, v in model.network.state().items() if "feature_" in name})
    network = network.to(model.network.feature_mean.device)
    category = cluster[cluster >= 0]
    # what began in the review has no row
    where = torch.where(seen.category < len(own_categories(model.categories)), seen.category, -1)
    for head in network.heads.values():
        inner = head.head if isinstance(head, Part) else head
        columns = slice(head.start, head.end) if isinstance(head, Part) else slice(None)
        if isinstance(inner, Classifier):
            new, so_far = (rows[:, columns].to(network.feature_mean) for rows in (feature[cluster >= 0], seen.feature))
            inner.grow(new, category.to(new.device), more, so_far, where.to(new.device))
    own = own_categories(model.categories)
    ids = [review.next_id(further) for further in range(more)]
    every = [*own, *(Category(0, id, id, False) for id in ids), *model.categories[len(own) :]]
    every = [replace(one, category=number) for number, one in enumerate(every)]
    config = replace(model.config, k=len(own) + more)
    method = create(config, replace(model.method.sizes, k=len(own) + more))
    parts = read_parts(run.model, every, network.backbone.width)
    return replace(model, network=network, method=method, config=config, categories=every, parts=parts)


def _longer(network: Network, run: Run) -> dict[str, Tensor]:
    """The tensors that have more rows than in the run's model."""
    with safe_open(run.model / "model.safetensors", "pt") as file:
        return {
            name: value.cpu().contiguous()
            for name, value in network.state().items()
            if list(value.shape) != file.get_slice(name).get_shape()
        }


def _npy(values: Tensor) -> bytes:
    content = io.BytesIO()
    np.save(content, values.numpy(), allow_pickle=False)
    return content.getvalue()


def _worth_training(folder: Path, seen: Seen, feature: Tensor, inference: Inference, unplaced: Tensor) -> str:
    """Why a full training is worth it, in a sentence with the command; empty if it is not."""
    doubtful = float((unplaced | torch.from_numpy(inference.probability[:, 0] < SURE)).float().mean())
    category = torch.from_numpy(inference.category)
    count = max(int(seen.category.max()), int(category.max())) + 1
    means = class_means(normalize(seen.feature, dim=1), seen.category, count)
    came = class_means(normalize(feature, dim=1), category, count)
    enough = (torch.bincount(seen.category, minlength=count) >= LEAST) & (
        torch.bincount(category, minlength=count) >= LEAST
    )
    nearest = (came @ means[enough].T).argmax(1) if enough.any() else category[:0]
    drifted = int((enough.nonzero()[:, 0][nearest] != torch.arange(count))[enough].sum()) if enough.any() else 0
    reasons = []
    if doubtful > DOUBTFUL:
        reasons.append(f"{100 * doubtful:.0f} % of the new images are doubtful")
    if drifted > DRIFTED * max(1, int(enough.sum())):
        reasons.append(f"the new images of {drifted} of {int(enough.sum())} categories look more like another category")
    if not reasons:
        return ""
    command = shlex.join(["debgcd", "train", "--from", str(folder), "-o", f"{folder}-2"])
    return f"{' and '.join(reasons)}: a full training is worth it. {command}"
