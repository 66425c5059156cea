"""Same configuration, same bytes; truth never reaches training."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from forks import logged_steps, result
from shared_runs import SharedRuns
from tiers import SOAK, tiered

from debgcd.data.manifest import from_paths
from debgcd.data.sampler import Sampler
from debgcd.data.views import random_crops
from debgcd.methods import METHODS
from debgcd.train.callbacks import Utilisation

Train = Callable[..., object]
Command = Callable[..., Any]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_do_not_change_a_byte(train: Train, shared_folder: Path, tmp_path: Path) -> None:
    for workers in (0, 1, 3):
        train(shared_folder, tmp_path / str(workers), "--workers", workers, schedule__steps=6)
    assert result(tmp_path / "0") == result(tmp_path / "1") == result(tmp_path / "3")


def test_a_second_run_on_the_bank_ends_in_the_same_bytes(train: Train, shared_folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("builds", "reuses"):
        train(shared_folder, tmp_path / name, "--bank", "on", "--cache", cache, schedule__steps=6)
    train(shared_folder, tmp_path / "alone", "--bank", "on", "--cache", tmp_path / "other", schedule__steps=6)
    assert result(tmp_path / "builds") == result(tmp_path / "reuses") == result(tmp_path / "alone")


SEEDED = ["debgcd", "simgcd", "orca", "uno"]


@pytest.mark.parametrize(
    ("method", "bank"),
    tiered([("debgcd", "off"), *((name, "on") for name in SEEDED)], itertools.product(SEEDED, ["off", "on"])),
)
def test_another_seed_gives_another_model(
    train: Train, shared_folder: Path, tmp_path: Path, method: str, bank: str
) -> None:
    for seed in (0, 1):
        train(
            shared_folder, tmp_path / str(seed), "--seed", seed, "--bank", bank, "--method", method, schedule__steps=3
        )
    model, other = result(tmp_path / "0")[:2], result(tmp_path / "1")[:2]
    assert model[0] != other[0] and model[1] != other[1]


@pytest.mark.parametrize("method", ["kmeans", "sskmeans", "gcd"])
def test_clustering_is_repeatable(train: Train, shared_folder: Path, tmp_path: Path, method: str) -> None:
    for name in ("first", "second"):
        train(shared_folder, tmp_path / name, "--method", method)
    assert result(tmp_path / "first") == result(tmp_path / "second")


def without_truth(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: value for name, value in row.items() if name != "truth"} for row in rows]


def permuted_truth(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Every image gets the truth of another; the labels stay."""
    return [{**row, "truth": rows[(7 * i + 5) % len(rows)]["truth"]} for i, row in enumerate(rows)]


WITHOUT_VIT = [
    name for name, method in METHODS.items() if not method.about.needs_vit
]  # those are in tests/model/test_prompts.py


@pytest.mark.parametrize("method", tiered(["debgcd", "simgcd", "gcd", "sskmeans", "uno", "gpc", "sptnet"], WITHOUT_VIT))
def test_truth_does_not_reach_training(command: Command, shared_runs: SharedRuns, tmp_path: Path, method: str) -> None:
    """An evaluation after every epoch has every chance to disturb the training between."""
    with open(shared_runs.csv, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    forms = {"permuted": permuted_truth(rows)}
    if method == "debgcd" or SOAK:
        forms["deleted"] = without_truth(rows)
    given = shared_runs.whole(method)
    for name, form in forms.items():
        table = tmp_path / f"{name}.csv"
        with open(table, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(form[0]))
            writer.writeheader()
            writer.writerows(form)
        said = command(*shared_runs.words(method, tmp_path / name, table))
        assert said.code == 0, said.err
        assert result(tmp_path / name) == result(given)
    evaluations = [json.loads((run / "evaluation.json").read_text()) for run in (given, tmp_path / "permuted")]
    assert evaluations[0] != evaluations[1]
    assert not (tmp_path / "deleted" / "evaluation.json").exists()  # there is nothing to measure with


def test_utilisation_of_old_and_new_is_logged_only_with_truth(
    train: Train, shared_folder: Path, shared_csv: Path, tmp_path: Path
) -> None:
    train(shared_folder, tmp_path / "without")
    train(shared_csv, tmp_path / "with")
    logs = {}
    for name in ("with", "without"):
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        logs[name] = [line for line in lines if "loss" in line]
        assert logged_steps(tmp_path / name) == list(range(1, 13))
    for key in ("used_old", "used_new"):
        assert all(line[key] is None for line in logs["without"])
        shares = [line[key] for line in logs["with"] if line[key] is not None]
        assert shares and all(0 <= share <= 1 for share in shares)
    assert [line["used"] for line in logs["with"]] == [line["used"] for line in logs["without"]]
    assert any(line["used"] for line in logs["with"])
    assert "hard_labels" not in (tmp_path / "without" / "metrics.jsonl").read_text()


def test_hard_labels_are_judged_after_one_matching() -> None:
    """Four unlabelled images of the known class 0 and of the new one; category 2 is the new class, 1 a mistake."""
    manifest = from_paths([f"/{i}.png" for i in range(5)], ["a", None, None, None, None], ["a", "a", "a", "z", "z"])
    setup = SimpleNamespace(label=manifest.training_labels, known=1)
    utilisation = Utilisation(manifest, setup)  # type: ignore[arg-type]
    rows = np.arange(5)
    shares = utilisation.shares(np.array([-1, 0, -1, 2, 2, -1, 0, 1, -1, 2]), rows)
    assert shares == {"used": 6 / 8, "used_old": 3 / 4, "used_new": 3 / 4}
    assert utilisation.hard_labels() == {"hard_labels": {"all": 5 / 6, "old": 2 / 3, "new": 1.0}}
    assert utilisation.hard_labels() == {}  # since the last call


def test_a_seed_decides_which_images_and_which_views() -> None:
    samplers = [Sampler(np.ones(1000), 64, seed) for seed in (0, 0, 1)]
    first, again, other = (sampler.draws(5).image for sampler in samplers)
    assert (first == again).all() and (first != other).mean() > 0.9
    assert (samplers[0].draws(6).image != first).mean() > 0.9
    cuts = [random_crops(seed, np.arange(50)) for seed in (0, 0, 1)]
    assert (cuts[0] == cuts[1]).all() and (cuts[0] != cuts[2]).all()
    assert (cuts[0][:, 0] != cuts[0][:, 1]).all()  # the two views of a draw


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_ranks_share_one_global_batch(ranks: int) -> None:
    sampler = Sampler(np.ones(50), 16, seed=3)
    parts = [sampler.draws(4, rank, ranks) for rank in range(ranks)]
    whole = sampler.draws(4)
    assert (np.concatenate([part.image for part in parts]) == whole.image).all()
    assert (np.concatenate([part.draw for part in parts]) == whole.draw).all()
    assert whole.draw.tolist() == list(range(64, 80))
