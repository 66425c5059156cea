"""The view bank: computed once, shared by seeds and methods, never half there, and the same tokens as without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from debgcd.config import ViewsConfig
from debgcd.data.decode import decode
from debgcd.data.sampler import Draws
from debgcd.data.views import CENTRE, cut_view, random_cuts, resize_short_side
from debgcd.errors import DataError
from debgcd.model.backbone import Backbone
from debgcd.model.lite import load_lite
from debgcd.train.bank import BankTokens, open_bank, pick_two
from debgcd.train.tokens import FreshTokens

Train = Callable[..., Any]
VIEWS = ViewsConfig(resize=36, size=32, bank="on", bank_views=3)
CPU = torch.device("cpu")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many real images went through the trunk, call by call; the blank one that asks for a shape does not count."""
    original, found = Backbone.trunk, []

    def trunk(self: Backbone, images: torch.Tensor) -> torch.Tensor:
        count = int(images.flatten(1).any(1).sum())
        if count:
            found.append(count)
        return original(self, images)

    monkeypatch.setattr(Backbone, "trunk", trunk)
    return found


def banks(cache: Path) -> dict[str, tuple[int, int]]:
    """The banks of a cache: inode and time of change of each."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (cache / "banks").iterdir()}


def test_another_seed_and_method_reuse_the_bank(
    train: Train, shared_folder: Path, tmp_path: Path, seen: list[int]
) -> None:
    def run(name: str, *more: object) -> None:
        said = train(shared_folder, tmp_path / name, "--bank", "on", "--cache", tmp_path / "cache", *more)
        assert said.code == 0, said.err

    run("first")
    first = banks(tmp_path / "cache")
    assert len(first) == 1 and sum(seen) == 24 * (3 + 1)
    seen.clear()
    run("seed", "--seed", 1)
    run("method", "--method", "simgcd")
    run("ablation", "--set", "ablation.guidance=false")
    assert banks(tmp_path / "cache") == first
    assert seen == []


def small(folder: Path, count: int = 5) -> list[Path]:
    rng = np.random.default_rng(3)
    paths = [folder / f"{i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        Image.fromarray(rng.integers(0, 256, (30 + 4 * i, 40, 3), dtype=np.uint8)).save(path)
    return paths


def build(paths: list[Path], cache: Path, blocks: int = 1, **views: Any) -> np.ndarray:
    chosen = ViewsConfig(**{**vars(VIEWS), **views})
    return open_bank(load_lite(blocks), blocks, paths, chosen, cache, 0, lambda done, total: None)


def test_all_that_the_tokens_depend_on_names_another_bank(tmp_path: Path) -> None:
    paths, cache = small(tmp_path, 2), tmp_path / "cache"
    for count, change in enumerate(
        [{}, {"seed": 1}, {"size": 30}, {"resize": 40}, {"bank_views": 2}, {"blocks": 2}], 1
    ):
        build(paths, cache, **change)
        assert len(banks(cache)) == count, change
    build(paths[::-1], cache)
    assert len(banks(cache)) == 7
    Image.fromarray(np.zeros((30, 40, 3), dtype=np.uint8)).save(paths[1])  # the same name, another image
    bank = build(paths, cache)
    assert len(banks(cache)) == 8
    black = load_lite(1).trunk(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    assert_close(tokens_of(bank)[1, 0].float(), black[0])


def test_the_name_of_an_image_does_not_matter(tmp_path: Path) -> None:
    paths, cache = small(tmp_path, 2), tmp_path / "cache"
    build(paths, cache)
    before = banks(cache)
    build([path.rename(path.with_suffix(".renamed")) for path in paths], cache)
    assert banks(cache) == before


def tokens_of(bank: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(bank)).view(torch.bfloat16)


def test_a_bank_that_fails_leaves_nothing(tmp_path: Path) -> None:
    paths, cache = small(tmp_path, 20), tmp_path / "cache"
    whole = paths[17].read_bytes()

    def spoil(done: int, total: int) -> None:  # after the first batch of sixteen
        paths[17].write_bytes(whole[:50])

    with pytest.raises(DataError, match="could be read when the run began but not now"):
        open_bank(load_lite(1), 1, paths, VIEWS, cache, 0, spoil)
    assert banks(cache) == {}


def test_a_bank_of_the_wrong_size_is_built_again(tmp_path: Path, seen: list[int]) -> None:
    paths, cache = small(tmp_path, 2), tmp_path / "cache"
    good = np.array(build(paths, cache))
    (place,) = (cache / "banks").iterdir()
    place.write_bytes(place.read_bytes()[:-2])
    seen.clear()
    assert np.array_equal(build(paths, cache), good) and sum(seen) == 8


def test_no_room_for_a_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(DataError, match="make room, use --cache on another disk, or --bank off"):
        build(small(tmp_path, 2), tmp_path / "cache")
    assert banks(tmp_path / "cache") == {}


@pytest.mark.parametrize("views", [2, 3, 8])
def test_two_different_views_every_ordered_pair_alike(views: int) -> None:
    draws = 3000 * views * (views - 1)
    first, second = pick_two(5, np.arange(draws), views)
    pairs = Counter(zip(first.tolist(), second.tolist(), strict=True))
    assert set(pairs) == {(a, b) for a in range(views) for b in range(views) if a != b}
    # a share's standard deviation is sqrt(3000) = 55
    assert all(abs(count - 3000) < 5 * 55 for count in pairs.values()), pairs


def test_another_seed_picks_other_views() -> None:
    draws = np.arange(1000)
    assert (pick_two(0, draws, 8)[0] != pick_two(1, draws, 8)[0]).mean() > 0.8


def test_tokens_are_those_of_the_cuts(tmp_path: Path) -> None:
    """Cut by hand and sent through the trunk one by one, against what the bank gives: equal but for bfloat16."""
    paths, backbone = small(tmp_path), load_lite(1)
    bank = BankTokens(open_bank(backbone, 1, paths, VIEWS, tmp_path / "cache", 0, lambda *_: None), 7, CPU)
    draws = Draws(np.arange(40, 48), np.array([4, 0, 1, 2, 3, 3, 0, 2]))
    (found,) = bank.random([draws])
    assert found.shape[0] == 16 and found.dtype == torch.float32
    views = pick_two(7, draws.draw, VIEWS.bank_views)
    for row, (image, view) in enumerate(zip(np.tile(draws.image, 2), np.concatenate(views), strict=True)):
        cut = random_cuts(VIEWS.seed, np.array([image]), VIEWS.bank_views)[0, view]
        assert_close(found[row], fresh(backbone, paths[image], cut))
    for row, path in enumerate(paths):
        (centre,) = bank.centre(np.array([row]))
        assert_close(centre[0], fresh(backbone, path, CENTRE[0]))


def test_centre_crops_of_the_bank_are_those_without_it(tmp_path: Path) -> None:
    paths, backbone = small(tmp_path), load_lite(1)
    bank = BankTokens(open_bank(backbone, 1, paths, VIEWS, tmp_path / "cache", 0, lambda *_: None), 0, CPU)
    numbers = np.array([3, 0, 4])
    (kept,), (cut,) = bank.centre(numbers), FreshTokens(backbone, paths, VIEWS, 0, 0).centre(numbers)
    assert_close(kept, cut)


def fresh(backbone: Backbone, path: Path, cut: np.ndarray) -> torch.Tensor:
    image = resize_short_side(decode(path, VIEWS.resize), VIEWS.resize)
    return backbone.trunk(cut_view(image, cut, VIEWS.size)[None])[0]


def assert_close(kept: torch.Tensor, exact: torch.Tensor) -> None:
    """bfloat16 keeps eight bits: half a unit of the last one is 2⁻⁹ of the number; and sums differ in their last bits."""
    assert exact.abs().max() > 0.1
    torch.testing.assert_close(kept, exact, rtol=2**-8, atol=1e-4)
