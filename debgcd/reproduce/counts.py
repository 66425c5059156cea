"""What the paper counts or estimates without training: the data sets (Table 1) and their numbers of classes (Table 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from debgcd.cluster.estimate_k import estimate_k
from debgcd.config.schema import Config
from debgcd.data.sources import read_manifest
from debgcd.datasets import Benchmark, read_benchmark
from debgcd.datasets.facts import table
from debgcd.errors import DataError
from debgcd.estimate import features_of
from debgcd.reproduce.experiments import title_of
from debgcd.reproduce.grid import ImageList, settings_digest
from debgcd.system import distributed
from debgcd.system.files import read_json, write_json
from debgcd.system.progress import progress
from debgcd.system.text_table import markdown_table

MOST = 1000  # the largest K of the public search


def read_first(name: str, roots: Sequence[Path], cache: Path) -> Benchmark:
    """The data set from the first root that holds a complete copy; otherwise an error per root."""
    errors = []
    for root in roots:
        try:
            return read_benchmark(name, root, cache)
        except DataError as error:
            errors.append(str(error))
    raise DataError("; ".join(errors))


SIZES = {"labelled": "D_l", "labelled_classes": "Y_l", "unlabelled": "D_u", "unlabelled_classes": "Y_u"}


def counted_page(found: Sequence[Benchmark], missing: Sequence[str]) -> str:
    """Table 1, the counts here beside the paper's."""
    head = ["", *(f"{side} {symbol}" for symbol in SIZES.values() for side in ("paper", "here"))]
    rows = []
    for benchmark in found:
        counts = benchmark.to_json()
        sides = (counts["paper"] or dict.fromkeys(SIZES, "–"), counts["here"])
        rows.append([benchmark.facts.title, *(str(side[key]) for key in SIZES for side in sides)])
    blocks = ["# Table 1: the data sets and their splits", markdown_table(head, rows)]
    if missing:
        blocks.append("Not found:\n\n" + "\n".join(f"- {sentence}" for sentence in missing))
    return "\n\n".join(blocks) + "\n"


def k_by_brent(images: ImageList, config: Config) -> int:
    """K as the paper estimates it: Brent's search, on features of unit length; kept beside the runs of the set."""
    place = images.path.parent / f"k-{settings_digest(replace(config, method='sskmeans'), images.path.name)}.json"
    if distributed.from_rank0(place.exists):
        return int(read_json(place)["k"])
    if distributed.rank() == 0:
        images.write()
    distributed.barrier()
    features, label = features_of(read_manifest(images.path), replace(config, seed=0))
    with progress("estimating K") as report:
        most = min(MOST, len(label))
        found = estimate_k(
            features.cpu(), torch.from_numpy(label), way="brent", axes=None, most=most, on_progress=report
        )
    if distributed.rank() == 0:
        write_json(place, found.to_json())
    return found.k


def estimated_table(true_k: Mapping[str, int], here: Mapping[str, int]) -> str:
    """Table 10, our estimate beside the paper's."""
    printed = table(10).rows
    rows = []
    for name, k in here.items():
        paper = [printed[row].get(name, {}).get("k") for row in ("true", "estimated")]
        rows.append(
            [title_of(name), *("–" if one is None else f"{one.mean:g}" for one in paper), str(true_k[name]), str(k)]
        )
    return markdown_table(["", "paper true", "paper estimated", "here true", "here estimated"], rows)
