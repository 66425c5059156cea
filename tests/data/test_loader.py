"""Loading: the same tensors whatever the number of workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

from debgcd.config.schema import ViewsConfig
from debgcd.data.image.decode import decode
from debgcd.data.loader import Files, ahead, centre_items, default_workers, from_files, load_batches, random_items
from debgcd.data.sampler import Draws, Sampler
from debgcd.data.views import CENTRE, PLAIN, SMALL, STRONG, TWO_PLAIN, Kinds, crop_view, random_crops, resize_short_side
from debgcd.errors import DataError

VIEWS = ViewsConfig(size=16, resize=20)
KINDS = (STRONG, PLAIN, SMALL, SMALL)
SHAPES = [(20, 24), (30, 21), (9, 40), (64, 64), (20, 20), (1, 1), (25, 33)]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    for i, shape in enumerate(SHAPES):
        Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
    return [tmp_path / f"{i}.png" for i in range(len(SHAPES))]


def batches(paths: list[Path], workers: int, kinds: Kinds) -> list[torch.Tensor]:
    sampler = Sampler(np.ones(len(paths)), 5, seed=2)
    items = random_items(2, (sampler.draws(step) for step in range(6)), kinds)
    return list(load_batches(from_files(paths, VIEWS), items, workers))


@pytest.mark.parametrize("kinds", [TWO_PLAIN, KINDS], ids=["plain", "mixed"])
def test_any_number_of_workers_gives_the_same_tensors(paths: list[Path], kinds: Kinds) -> None:
    alone = batches(paths, 0, kinds)
    assert [tuple(batch.shape) for batch in alone] == [(5, len(kinds), 3, 16, 16)] * 6
    assert alone[0].dtype == torch.uint8
    for workers in (1, 2):
        others = batches(paths, workers, kinds)
        assert len(others) == len(alone)
        assert all(torch.equal(a, b) for a, b in zip(alone, others, strict=True))


@pytest.mark.parametrize("kinds", [TWO_PLAIN, KINDS], ids=["plain", "mixed"])
def test_an_item_is_its_image_cut_at_its_draws_places(paths: list[Path], kinds: Kinds) -> None:
    draws = Draws(draw=np.array([11, 12, 13]), image=np.array([3, 0, 3]))
    (batch,) = load_batches(from_files(paths, VIEWS), random_items(7, [draws], kinds), 0)
    for i, (draw, number) in enumerate(zip(draws.draw, draws.image, strict=True)):
        image = resize_short_side(np.array(Image.open(paths[number])), 20)
        cuts = random_crops(7, np.array([draw]), len(kinds))[0]
        for view, (cut, kind) in enumerate(zip(cuts, kinds, strict=True)):
            assert torch.equal(batch[i, view], crop_view(image, cut, 16, kind))
    assert not torch.equal(batch[0], batch[2])  # one image, two draws


def test_two_plain_views_are_what_is_given_if_nothing_is_asked_for() -> None:
    draws = Draws(draw=np.array([11]), image=np.array([3]))
    ((number, cuts, kinds),) = next(random_items(7, [draws]))
    assert number == 3 and kinds == (PLAIN, PLAIN)
    np.testing.assert_array_equal(cuts, random_crops(7, np.array([11]))[0])


def test_centre_items_are_in_order_and_none_is_lost(paths: list[Path]) -> None:
    numbers = np.array([4, 0, 6, 5, 1])
    loaded = list(load_batches(from_files(paths, VIEWS), centre_items(numbers, 2), 0))
    assert [len(batch) for batch in loaded] == [2, 2, 1]
    for number, views in zip(numbers, torch.cat(loaded), strict=True):
        image = resize_short_side(np.array(Image.open(paths[number])), 20)
        assert views.shape == (1, 3, 16, 16)
        assert torch.equal(views[0], crop_view(image, CENTRE[0], 16))
    assert list(load_batches(from_files(paths, VIEWS), centre_items(numbers[:0], 2), 0)) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_vanished_is_named(paths: list[Path], workers: int) -> None:
    paths[3].unlink()
    with pytest.raises(DataError, match=r"3\.png could be read when the run began but not now"):
        list(load_batches(from_files(paths, VIEWS), centre_items(np.arange(7), 7), workers))


def test_default_workers_fit_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, workers in ((1, 0), (2, 2), (64, 16)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)), raising=False)
        assert default_workers() == workers


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize("decoding", ["exact", "fast"])
def test_the_settings_of_views_reach_the_pixels(tmp_path: Path, decoding: str, upright: bool) -> None:
    """A large photograph with an EXIF orientation, through the opener that runs use."""
    rng = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6
    noise = Image.fromarray(rng.integers(0, 256, (900, 1200, 3), dtype=np.uint8)).resize((1200, 900))
    noise.save(tmp_path / "x.jpg", exif=exif, quality=90)
    views = ViewsConfig(resize=64, size=48, decode=decoding, upright=upright)  # type: ignore[arg-type]
    found = Files([tmp_path / "x.jpg"], views)(0)
    assert min(found.shape[1:]) == 64 and (found.shape[1] > found.shape[2]) == upright
    pixels = decode(tmp_path / "x.jpg", None if decoding == "exact" else 64, upright)
    assert torch.equal(found, resize_short_side(pixels, 64))
    assert (pixels.shape[0] * pixels.shape[1] == 900 * 1200) == (decoding == "exact")


class Full(Dataset[torch.Tensor]):
    """What PyTorch says in a worker when the shared memory is full."""

    def __init__(self, says: str):
        self.says = says

    def __getitem__(self, item: int) -> torch.Tensor:
        raise RuntimeError(self.says)


@pytest.mark.parametrize(
    "says",
    [
        "unable to allocate shared memory(shm) for file </torch_14299_1155111464_0>: No space left on device (28)",
        "unable to write to file </torch_18692_1954506624_0>: No space left on device (28)",
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of memory.",
    ],
)
def test_workers_that_are_short_of_shared_memory(says: str) -> None:
    with pytest.raises(DataError, match=r"short of shared memory \(/dev/shm\); .* or decode without processes"):
        list(ahead(Full(says), [[0]], 1, list))


def test_another_mistake_in_a_worker_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="something else"):
        list(ahead(Full("something else"), [[0]], 1, list))
