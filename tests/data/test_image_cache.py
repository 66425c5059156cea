"""The image cache: the same pixels as without it, decoded once, and never those of another image."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from debgcd.config import load as load_config
from debgcd.config.schema import ViewsConfig
from debgcd.data import loader
from debgcd.data.fingerprints import Contents
from debgcd.data.loader import Images, Opener, from_files, load_batches, random_items
from debgcd.data.sampler import Sampler
from debgcd.errors import DataError
from debgcd.tokens import image_cache
from debgcd.tokens.image_cache import decide_image_cache, open_image_cache

Train = Callable[..., Any]
VIEWS = ViewsConfig(size=16, resize=20)
SHAPES = [(20, 24), (30, 21), (9, 40), (64, 64), (20, 20), (1, 1), (25, 33), (90, 7)]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    names = [tmp_path / f"{i}.{'jpg' if i % 3 == 1 else 'png'}" for i in range(len(SHAPES))]
    for name, shape in zip(names, SHAPES, strict=True):
        Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(name)
    return names


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which files were decoded by this process."""
    original, found = loader.decoded, []

    def decoded(path: Path, short_side: int | None = None, upright: bool = True) -> AbstractContextManager[np.ndarray]:
        found.append(path)
        return original(path, short_side, upright)

    monkeypatch.setattr(loader, "decoded", decoded)
    return found


def kept(paths: list[Path], cache: Path, workers: int = 0, resize: int = 20) -> Opener:
    return open_image_cache(paths, replace(VIEWS, resize=resize), cache, workers, lambda done, total, note="": None)


def stores(cache: Path) -> set[str]:
    return {path.name for path in (cache / "images").iterdir() if path.is_dir()}


def batches(images: Images, workers: int) -> list[torch.Tensor]:
    sampler = Sampler(np.ones(len(SHAPES)), 5, seed=2)
    return list(load_batches(images, random_items(2, (sampler.draws(step) for step in range(8))), workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_views_are_the_same_as_without_it(paths: list[Path], tmp_path: Path, workers: int) -> None:
    plain = batches(from_files(paths, VIEWS), 0)
    found = batches(Images(kept(paths, tmp_path / "cache", workers), VIEWS.size), workers)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_whole_images_too(paths: list[Path], tmp_path: Path) -> None:
    opener, files = kept(paths, tmp_path / "cache"), loader.Files(paths, VIEWS)
    for number in range(len(paths)):
        assert torch.equal(opener(number), files(number))


def test_every_image_is_decoded_once(paths: list[Path], tmp_path: Path, decoded: list[Path]) -> None:
    images = Images(kept(paths, tmp_path / "cache"), VIEWS.size)
    assert decoded == paths
    batches(images, 0)
    assert decoded == paths
    batches(Images(kept(paths, tmp_path / "cache"), VIEWS.size), 0)  # another run
    assert len(decoded) == len(paths) + 2  # two of them, to see that the cache is what it should be


def test_it_can_be_sent_to_a_process_that_is_no_fork(paths: list[Path], tmp_path: Path) -> None:
    images = Images(kept(paths, tmp_path / "cache"), VIEWS.size)
    batches(images, 0)
    sent = pickle.dumps(images)
    assert len(sent) < 3000  # paths and offsets, no pixels
    assert all(torch.equal(a, b) for a, b in zip(batches(images, 0), batches(pickle.loads(sent), 0), strict=True))


def test_another_image_or_size_is_another_cache(paths: list[Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    kept(paths, cache)
    kept([path.rename(path.with_suffix(".renamed")) for path in paths[:1]] + paths[1:], cache)
    assert len(stores(cache)) == 1
    paths[0] = paths[0].with_suffix(".renamed")
    kept(paths, cache, resize=24)
    assert len(stores(cache)) == 2
    Image.new("RGB", (30, 40), "red").save(paths[3], format="PNG")
    assert (kept(paths, cache)(3) == torch.tensor([255, 0, 0])[:, None, None]).all()
    assert len(stores(cache)) == 3


def test_pixels_by_another_decoder_are_not_used(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(paths, tmp_path / "cache")
    monkeypatch.setattr(image_cache.importlib.metadata, "version", lambda name: "another")
    kept(paths, tmp_path / "cache")
    assert len(stores(tmp_path / "cache")) == 2


def test_wrong_pixels_under_the_right_name(
    paths: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(paths, tmp_path / "cache")
    (place,) = (tmp_path / "cache" / "images").glob("*/records")
    good = place.read_bytes()
    place.write_bytes(bytes(len(good)))
    kept(paths, tmp_path / "cache")
    assert place.read_bytes() == good
    assert "image cache: " in capsys.readouterr().err


@pytest.mark.parametrize("writable", [True, False])
def test_damaged_pixels_are_decoded_again(
    paths: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], writable: bool
) -> None:
    opener, files = kept(paths, tmp_path / "cache"), loader.Files(paths, VIEWS)
    (place,) = (tmp_path / "cache" / "images").glob("*/records")
    good = place.read_bytes()
    place.write_bytes(bytes(4000) + good[4000:])
    place.chmod(0o644 if writable else 0o444)
    capsys.readouterr()
    assert all(torch.equal(opener(i), files(i)) for i in range(len(paths)))
    assert capsys.readouterr().err.count("has damaged images; decoding those again") == 1
    if writable:
        assert place.read_bytes() == good


def test_an_image_that_changed_does_not_get_into_a_shared_cache(paths: list[Path], tmp_path: Path) -> None:
    opener = kept(paths, tmp_path / "cache")
    (place,) = (tmp_path / "cache" / "images").glob("*/records")
    place.write_bytes(bytes(4000))
    Image.new("RGB", (30, 40), "red").save(paths[1], format="PNG")
    assert (opener(1) == torch.tensor([255, 0, 0])[:, None, None]).all()
    assert place.read_bytes()[:4000] == bytes(4000)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_vanishes_is_named(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    def read_and_lose(given: list[Path], cache: Path) -> Contents:
        contents = original(given, cache)
        paths[3].unlink()
        return contents

    original = image_cache.read_contents
    monkeypatch.setattr(image_cache, "read_contents", read_and_lose)
    with pytest.raises(DataError, match=r"3\.png could be read when the run began but not now .*; put the file back"):
        kept(paths, tmp_path / "cache", workers)
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"3\.png could be read when the run began but not now .*; put the file back"):
        kept(paths, tmp_path / "cache", workers)


def test_an_image_that_changes_while_it_is_read(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_change(given: list[Path], cache: Path) -> Contents:
        contents = original(given, cache)
        Image.new("RGB", (30, 40), "red").save(paths[3])
        return contents

    original = image_cache.read_contents
    monkeypatch.setattr(image_cache, "read_contents", read_and_change)
    with pytest.raises(DataError, match=r"3\.png was changed while it was in use"):
        kept(paths, tmp_path / "cache")
    assert all(name.endswith(".partial") for name in stores(tmp_path / "cache"))


def test_a_cache_that_is_deleted_while_it_is_used(paths: list[Path], tmp_path: Path) -> None:
    images = Images(kept(paths, tmp_path / "cache"), VIEWS.size)
    before = batches(images, 0)
    shutil.rmtree(tmp_path / "cache")
    assert all(torch.equal(a, b) for a, b in zip(before, batches(images, 0), strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_killed_while_images_are_decoded(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, decoded: list[Path]
) -> None:
    monkeypatch.setattr(image_cache, "IMAGES_PER_BATCH", 3)
    monkeypatch.setattr("debgcd.system.store.SAFE_EVERY", 1)
    kept(paths, tmp_path / "whole")

    def report(done: int, total: int, note: str = "") -> None:
        if done == 6:  # said when the batch is on its way to the disk
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(
        target=open_image_cache, args=(paths, VIEWS, tmp_path / "cache", workers, report)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    decoded.clear()
    kept(paths, tmp_path / "cache")
    assert set(decoded[:2]) == set(paths[6:])  # then two that are checked
    whole, again = (next((tmp_path / name / "images").glob("*/records")) for name in ("whole", "cache"))
    assert whole.read_bytes() == again.read_bytes()


@pytest.mark.parametrize(
    ("wanted", "draws", "free", "keeps"),
    [
        ("off", 9, 10**12, False),
        ("auto", 9, 10**12, True),
        ("auto", 2, 10**12, False),  # drawn too seldom
        ("auto", 0, 10**12, False),
        ("on", 0, 10**12, False),  # never drawn: a bank without fresh views
        ("on", 1, 10**12, True),
        ("auto", 9, 10**8, False),  # 100 images of 256 px: 26 MB
        ("auto", 9, 110_000_000, True),
        ("on", 9, 10**8, True),
    ],
)
def test_when_images_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any, draws: float, free: int, keeps: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert decide_image_cache(wanted, 100, 256, draws, tmp_path) == keeps


def test_a_run_with_it_ends_in_the_same_bytes(
    train: Train, command: Train, shared_csv: Path, tmp_path: Path, decoded: list[Path]
) -> None:
    told = {}
    for name in ("off", "on", "auto"):
        more = ("--cache", tmp_path / name / "cache", "--set", f"run.image_cache={name}")
        said = train(shared_csv, tmp_path / name / "run", *more)
        assert said.code == 0, said.err
        told[name] = said.err, len(decoded)
        decoded.clear()
    for file in ("predictions.csv", "model/model.safetensors", "evaluation.json"):
        assert len({(tmp_path / name / "run" / file).read_bytes() for name in told}) == 1, file
    for name in ("on", "auto"):
        assert "image cache: on (about 124 kB for 24 images of 36 px; " in told[name][0]
        assert "decoding images: 24/24" in told[name][0]
        assert load_config(tmp_path / name / "run" / "config.yaml").run.image_cache == "on"
        assert told[name][1] == 24 + 2 * 6  # the training images once; those of the test split for the two evaluations
    assert told["off"][1] > 100 and "image cache" not in told["off"][0]
    assert not (tmp_path / "off" / "cache" / "images").exists()

    # evaluating a finished run needs each image once, and so no cache
    shutil.rmtree(tmp_path / "on" / "cache")
    before = json.loads((tmp_path / "on" / "run" / "evaluation.json").read_text())
    assert command("evaluate", tmp_path / "on" / "run").code == 0
    assert json.loads((tmp_path / "on" / "run" / "evaluation.json").read_text()) == before
    assert not (tmp_path / "on" / "cache" / "images").exists()


def test_with_a_bank_there_is_none_unless_views_are_fresh_too(
    train: Train, shared_folder: Path, tmp_path: Path
) -> None:
    for name, fresh in (("none", 0.0), ("few", 0.1), ("many", 0.9)):
        more = ("--bank", "on", "--cache", tmp_path / name / "cache")
        assert train(shared_folder, tmp_path / name / "run", *more, views__fresh=fresh).code == 0
        assert (tmp_path / name / "cache" / "images").exists() == (name == "many")
