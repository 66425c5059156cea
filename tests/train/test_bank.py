"""The view bank: computed once, shared by seeds and methods, never half there, and the same tokens as without it."""

from __future__ import annotations

import json
import shutil
import signal
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forks import at_call, debgcd, forked, result
from PIL import Image
from stored import every_view

from debgcd import __version__
from debgcd.config.schema import ViewsConfig
from debgcd.data.image.decode import decode
from debgcd.data.loader import from_files
from debgcd.data.sampler import Draws
from debgcd.data.views import CENTRE, TWO_PLAIN, crop_view, random_crops, resize_short_side
from debgcd.errors import DataError
from debgcd.model.backbone import Backbone
from debgcd.model.lite import load_lite
from debgcd.system.files import write_sealed
from debgcd.system.store import Index
from debgcd.tokens.bank import Bank, BankTokens, open_bank, pick_views
from debgcd.tokens.sources import FreshTokens

Train = Command = Callable[..., Any]
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
    """The banks of a cache, whole or half: inode and time of change of each."""
    records = {path.parent.name: path.stat() for path in (cache / "banks").glob("*/records")}
    return {name: (found.st_ino, found.st_mtime_ns) for name, found in records.items()}


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
    assert seen == [4, 4, 4]  # two views of two images each time, to see that the bank is what it should be


def small(folder: Path, count: int = 5) -> list[Path]:
    rng = np.random.default_rng(3)
    paths = [folder / f"{i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        Image.fromarray(rng.integers(0, 256, (30 + 4 * i, 40, 3), dtype=np.uint8)).save(path)
    return paths


def build(paths: list[Path], cache: Path, blocks: int = 1, precision: str = "fp32", **views: Any) -> Bank:
    chosen = ViewsConfig(**{**vars(VIEWS), **views})
    backbone = load_lite(blocks)
    backbone.precision = precision
    return open_bank(backbone, paths, chosen, cache, 0, lambda *_: None)


def test_all_that_the_tokens_depend_on_names_another_bank(tmp_path: Path) -> None:
    paths, cache = small(tmp_path, 2), tmp_path / "cache"
    for count, change in enumerate(
        [{}, {"seed": 1}, {"size": 30}, {"resize": 40}, {"bank_views": 2}, {"blocks": 2}], 1
    ):
        build(paths, cache, **change)
        assert len(banks(cache)) == count, change
    build(paths[::-1], cache)
    assert len(banks(cache)) == 7
    for count, change in enumerate([{"decode": "fast"}, {"upright": False}, {"precision": "bf16"}], 8):
        build(paths, cache, **change)
        assert len(banks(cache)) == count, change
    Image.fromarray(np.zeros((30, 40, 3), dtype=np.uint8)).save(paths[1])  # the same name, another image
    bank = build(paths, cache)
    assert len(banks(cache)) == 11
    black = load_lite(1).trunk(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    assert_close(tokens_of(bank)[1, 0].float(), black[0])


def test_the_name_of_an_image_does_not_matter(tmp_path: Path) -> None:
    paths, cache = small(tmp_path, 2), tmp_path / "cache"
    build(paths, cache)
    before = banks(cache)
    build([path.rename(path.with_suffix(".renamed")) for path in paths], cache)
    assert banks(cache) == before


def tokens_of(bank: Bank) -> torch.Tensor:
    return torch.from_numpy(every_view(bank)).view(torch.bfloat16)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:50]), "could be read when the run began but not now"),
        (lambda path: path.unlink(), "could be read when the run began but not now"),
        (lambda path: Image.new("RGB", (30, 40)).save(path), "was changed while it was in use"),
    ],
    ids=["cut", "gone", "another"],
)
def test_an_image_that_changes_while_the_bank_is_built(
    tmp_path: Path, change: Callable[[Path], object], said: str
) -> None:
    """Its views would be kept under the name of the old image's; what was built before is of use when it is back."""
    paths, cache = small(tmp_path, 20), tmp_path / "cache"
    good = every_view(build(paths, tmp_path / "other"))
    kept = paths[17].rename(tmp_path / "kept")
    shutil.copy2(kept, paths[17])

    def spoil(done: int, total: int) -> None:
        if done == 16:  # after the first batch
            change(paths[17])

    with pytest.raises(DataError, match=rf"17\.png {said}"):
        open_bank(load_lite(1), paths, VIEWS, cache, 0, spoil)
    assert [name[-8:] for name in banks(cache)] == [".partial"]
    kept.rename(paths[17])
    assert np.array_equal(every_view(build(paths, cache)), good)


def test_a_bank_of_the_wrong_size_is_built_again(tmp_path: Path, seen: list[int]) -> None:
    paths, cache = small(tmp_path, 2), tmp_path / "cache"
    good = every_view(build(paths, cache))
    (place,) = (cache / "banks").glob("*/records")
    place.write_bytes(place.read_bytes()[:-2])
    seen.clear()
    assert np.array_equal(every_view(build(paths, cache)), good) and sum(seen) == 8


def test_a_bank_says_what_it_is(tmp_path: Path) -> None:
    build(small(tmp_path, 2), tmp_path / "cache")
    (place,) = (tmp_path / "cache" / "banks").glob("*/facts.json")
    told = json.loads(place.read_text())
    assert told["what"] == "view bank" and told["debgcd"] == __version__
    facts = told["facts"]
    assert facts["weights"] == load_lite(1).identity.sha256 and facts["tail_blocks"] == 1
    assert [facts[name] for name in ("resize", "size", "views", "seed", "type")] == [36, 32, 3, 0, "bfloat16"]
    assert facts["shape"][:2] == [2, 4] and len(facts["images"]) == 64
    names = "format weights tail_blocks images decode upright precision resize size views seed type shape"
    assert list(facts) == names.split() and facts["format"] == 4  # these name the banks that there are


def other_model() -> Backbone:
    backbone = load_lite(1)
    with torch.no_grad():
        next(backbone.parameters()).mul_(1.5)
    return backbone


@pytest.mark.parametrize("other", ["model", "views", "images"])
def test_the_tokens_of_something_else_under_the_right_name(
    tmp_path: Path, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy that went wrong, weights that changed under their hash: never used."""
    paths, cache, elsewhere = small(tmp_path, 4), tmp_path / "cache", tmp_path / "elsewhere"
    good = every_view(build(paths, cache))
    if other == "model":
        open_bank(other_model(), paths, VIEWS, elsewhere, 0, lambda *_: None)
    else:
        build(paths[::-1] if other == "images" else paths, elsewhere, seed=5 if other == "views" else 0)
    (place,), (wrong,) = (cache / "banks").glob("*/records"), (elsewhere / "banks").glob("*/records")
    shutil.copy(wrong, place)
    assert not np.array_equal(np.fromfile(place, np.int16), good.ravel())
    capsys.readouterr()
    assert np.array_equal(every_view(build(paths, cache)), good)
    assert capsys.readouterr().err.count("is damaged or does not match its name; computing it again\n") == 1


def test_a_bank_from_another_machine_is_good_enough(tmp_path: Path, seen: list[int]) -> None:
    """One whose trunk ran in bfloat16 differs by about a hundredth; it is used as it is."""
    paths, cache = small(tmp_path), tmp_path / "cache"
    bank = build(paths, cache)
    exact, shape = tokens_of(bank), bank.shape
    noisy = exact.float() * (1 + 0.01 * torch.randn(exact.shape, generator=torch.Generator().manual_seed(0)))
    (place,) = (cache / "banks").glob("*/records")
    records = noisy.to(torch.bfloat16).view(torch.int16).numpy()
    records.tofile(place)
    sums = [[zlib.crc32(view) for view in views] for views in records]
    ends = np.arange(1, shape[0] + 1) * records[0].nbytes
    write_sealed(place.with_name("index"), Index(ends, np.array(sums)).to_bytes())
    seen.clear()
    assert torch.equal(tokens_of(build(paths, cache)), noisy.to(torch.bfloat16)) and sum(seen) == 4


def spoil(cache: Path, first: int, last: int) -> bytes:
    """Zeros in the place of these records; returns what was there."""
    (place,) = (cache / "banks").glob("*/records")
    (facts,) = (cache / "banks").glob("*/facts.json")
    whole, size = place.read_bytes(), place.stat().st_size // json.loads(facts.read_text())["facts"]["shape"][0]
    with open(place, "r+b") as file:
        file.seek(first * size)
        file.write(bytes((last - first) * size))
    return whole


def test_damaged_views_are_computed_again(
    tmp_path: Path, seen: list[int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the same bytes, in memory and on the disk, each batch once."""
    monkeypatch.setattr("debgcd.tokens.bank.BUILD_BATCH", 2)
    paths, cache = small(tmp_path, 9), tmp_path / "cache"
    good = every_view(build(paths, cache))
    bank = build(paths, cache)
    whole = spoil(cache, 3, 5)
    seen.clear()
    capsys.readouterr()
    assert np.array_equal(every_view(bank), good) and sum(seen) == 2 * 2 * 4  # the batches of images 2, 3 and 4, 5
    assert capsys.readouterr().err.count("has damaged views; computing those again") == 1
    (place,) = (cache / "banks").glob("*/records")
    assert place.read_bytes() == whole
    spoil(cache, 0, 1)
    monkeypatch.setattr("debgcd.system.store.Store.restore", lambda *_: False)  # a cache that may not be written
    other, wanted = build(paths, cache), np.array([0, 1, 0, 0])
    seen.clear()
    for _ in range(3):
        assert np.array_equal(other[wanted, wanted], good[wanted, wanted])
    assert sum(seen) == 2 * 4


def test_a_damaged_view_of_an_image_that_is_gone(tmp_path: Path) -> None:
    paths, cache = small(tmp_path, 9), tmp_path / "cache"
    bank = build(paths, cache)
    spoil(cache, 3, 5)
    paths[4].unlink()
    with pytest.raises(DataError, match=r"4\.png could be read when the run began but not now"):
        every_view(bank)


def test_a_run_on_a_damaged_bank_ends_as_on_a_whole_one(
    train: Train, shared_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Zeros in most records, but not in the two that are computed again to see whose bank it is."""
    cache = tmp_path / "cache"
    assert train(shared_folder, tmp_path / "whole", "--bank", "on", "--cache", cache).code == 0
    (facts,) = (cache / "banks").glob("*/facts.json")
    looked_at = sorted(int(facts.parent.name[8 * i : 8 * i + 8], 16) % 24 for i in range(2))
    runs = [0, *(i for n in looked_at for i in (n, n + 1)), 24]
    first, last = max(zip(runs[::2], runs[1::2], strict=True), key=lambda pair: pair[1] - pair[0])
    assert last - first > 5
    spoil(cache, first, last)
    said = train(shared_folder, tmp_path / "again", "--bank", "on", "--cache", cache)
    assert said.code == 0 and "has damaged views; computing those again" in said.err
    assert result(tmp_path / "again") == result(tmp_path / "whole")


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_killed_while_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    """With processes that decode and without, the next one goes on and ends in the same bytes."""
    monkeypatch.setattr("debgcd.tokens.bank.BUILD_BATCH", 2)
    monkeypatch.setattr("debgcd.system.store.SAFE_EVERY", 1)
    paths, cache = small(tmp_path, 7), tmp_path / "cache"
    good = every_view(build(paths, tmp_path / "other"))

    def work() -> int:
        at_call("debgcd.data.fingerprints.Contents.require_unchanged", stop + 1)()
        open_bank(load_lite(1), paths, VIEWS, cache, stop % 2, lambda *_: None)
        return 0

    assert forked(work, tmp_path / "log") == -signal.SIGKILL
    assert [name[-8:] for name in banks(cache)] == [".partial"]
    told: list[tuple[int, int]] = []
    found = open_bank(load_lite(1), paths, VIEWS, cache, 0, lambda *words: told.append(words))
    assert np.array_equal(every_view(found), good)
    assert told == [(done, 7) for done in (0, 2, 4, 6, 7)[stop:]]


def test_two_runs_that_want_the_same_bank(
    shared_folder: Path, arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Two processes at once: one of them computes it, both end well and alike."""
    words = [arguments(shared_folder, tmp_path / name, "--bank", "on", "--cache", tmp_path / "cache") for name in "ab"]
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(debgcd, words, logs))
    told = [log.read_text("utf-8") for log in logs]
    assert codes == [0, 0], told
    assert sum("computing views: 24/24" in text for text in told) == 1
    assert len(banks(tmp_path / "cache")) == 1
    assert result(tmp_path / "a") == result(tmp_path / "b")


def test_a_bank_that_is_deleted_while_it_is_used(tmp_path: Path) -> None:
    paths, cache = small(tmp_path), tmp_path / "cache"
    bank = BankTokens(build(paths, cache), 0, CPU)
    (before,) = bank.centre(np.arange(5))
    shutil.rmtree(cache)
    (after,) = bank.centre(np.arange(5))
    assert torch.equal(before, after)


def test_a_bank_of_centre_crops_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that a method without training needs; opened again it is checked as any other."""
    paths, cache = small(tmp_path), tmp_path / "cache"
    first = every_view(build(paths, cache, bank_views=0))
    assert (
        np.array_equal(every_view(build(paths, cache, bank_views=0)), first)
        and "computing" not in capsys.readouterr().err
    )
    (place,) = (cache / "banks").glob("*/records")
    first[::-1].tofile(place)
    assert np.array_equal(every_view(build(paths, cache, bank_views=0)), first)


def test_auto_takes_a_bank_that_is_there_though_the_disk_is_full(
    train: Train, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    more = ("--cache", cache, "--set", "run.image_cache=off")
    assert "view bank: on (" in train(shared_folder, tmp_path / "first", *more, "--bank", "on", schedule__steps=2).err

    def usage(path: Path) -> Any:
        """The cache's disk is full; the run's own needs room for its checkpoints."""
        return type("Usage", (), {"free": 1000 if Path(path).is_relative_to(cache) else 10**12})

    monkeypatch.setattr("shutil.disk_usage", usage)
    said = train(shared_folder, tmp_path / "again", *more, "--bank", "auto", schedule__steps=2)
    assert said.code == 0 and "view bank: on (" in said.err
    said = train(shared_folder, tmp_path / "other", *more, "--bank", "auto", schedule__steps=2, views__seed=1)
    assert said.code == 0 and "view bank: off (" in said.err


def test_no_room_for_a_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(DataError, match="free some space, choose another cache folder, or do without it"):
        build(small(tmp_path, 2), tmp_path / "cache")
    assert banks(tmp_path / "cache") == {}


@pytest.mark.parametrize("views", [2, 3, 8])
def test_two_different_views_every_ordered_pair_alike(views: int) -> None:
    draws = 3000 * views * (views - 1)
    first, second = pick_views(5, np.arange(draws), TWO_PLAIN, views)
    pairs = Counter(zip(first.tolist(), second.tolist(), strict=True))
    assert set(pairs) == {(a, b) for a in range(views) for b in range(views) if a != b}
    # a share's standard deviation is sqrt(3000) = 55
    assert all(abs(count - 3000) < 5 * 55 for count in pairs.values()), pairs


def test_another_seed_picks_other_views() -> None:
    draws = np.arange(1000)
    assert (pick_views(0, draws, TWO_PLAIN, 8)[0] != pick_views(1, draws, TWO_PLAIN, 8)[0]).mean() > 0.8


def test_golden_picks() -> None:
    """These picks belong to every published run with a bank of plain views."""
    draws = np.array([0, 1, 2, 3, 4, 5, 1000, 2**40])
    assert pick_views(0, draws, TWO_PLAIN, 8).tolist() == [[0, 5, 7, 2, 7, 1, 1, 6], [5, 0, 6, 1, 4, 4, 3, 2]]
    assert pick_views(7, draws, TWO_PLAIN, 3).tolist() == [[0, 1, 1, 2, 0, 2, 2, 2], [1, 0, 0, 1, 1, 1, 0, 1]]


def test_tokens_are_those_of_the_cuts(tmp_path: Path) -> None:
    """Cut by hand and sent through the trunk one by one, against what the bank gives: equal but for bfloat16."""
    paths, backbone = small(tmp_path), load_lite(1)
    bank = BankTokens(open_bank(backbone, paths, VIEWS, tmp_path / "cache", 0, lambda *_: None), 7, CPU)
    draws = Draws(np.arange(40, 48), np.array([4, 0, 1, 2, 3, 3, 0, 2]))
    (found,) = bank.random([draws])
    assert found.shape[0] == 16 and found.dtype == torch.float32
    views = pick_views(7, draws.draw, TWO_PLAIN, VIEWS.bank_views)
    for row, (image, view) in enumerate(zip(np.tile(draws.image, 2), np.concatenate(views), strict=True)):
        cut = random_crops(VIEWS.seed, np.array([image]), VIEWS.bank_views)[0, view]
        assert_close(found[row], fresh(backbone, paths[image], cut))
    for row, path in enumerate(paths):
        (centre,) = bank.centre(np.array([row]))
        assert_close(centre[0], fresh(backbone, path, CENTRE[0]))


def test_centre_crops_of_the_bank_are_those_without_it(tmp_path: Path) -> None:
    paths, backbone = small(tmp_path), load_lite(1)
    bank = BankTokens(open_bank(backbone, paths, VIEWS, tmp_path / "cache", 0, lambda *_: None), 0, CPU)
    numbers = np.array([3, 0, 4])
    (kept,), (cut,) = bank.centre(numbers), FreshTokens(backbone, from_files(paths, VIEWS), 0, 0).centre(numbers)
    assert_close(kept, cut)


def fresh(backbone: Backbone, path: Path, cut: np.ndarray) -> torch.Tensor:
    image = resize_short_side(decode(path, VIEWS.resize), VIEWS.resize)
    return backbone.trunk(crop_view(image, cut, VIEWS.size)[None])[0]


def assert_close(kept: torch.Tensor, exact: torch.Tensor) -> None:
    """bfloat16 keeps eight bits: half a unit of the last one is 2⁻⁹ of the number; and sums differ in their last bits."""
    assert exact.abs().max() > 0.1
    torch.testing.assert_close(kept, exact, rtol=2**-8, atol=1e-4)


def test_evaluate_and_estimate_k_build_no_bank_to_read_centre_crops(
    tmp_path: Path, train: Train, command: Command, shared_csv: Path
) -> None:
    run, cache = tmp_path / "run", tmp_path / "cache"
    assert train(shared_csv, run, "--bank", "on", "--cache", cache).code == 0
    before = json.loads((run / "evaluation.json").read_text())
    with_bank = command("evaluate", run, "--json")
    shutil.rmtree(cache / "banks")
    said = command("evaluate", run, "--json")
    assert said.code == 0 and "computing views" not in said.err
    assert json.loads(said.out)["unlabelled"]["gcd"] == before["unlabelled"]["gcd"]
    assert json.loads(with_bank.out) == before
    assert command("estimate-k", run).code == 0
    assert not (cache / "banks").exists()
