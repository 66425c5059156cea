"""Banks with views of several kinds: what they hold, what a draw picks, and that they can be killed as any other."""

from __future__ import annotations

import itertools
import json
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import at_call, forked
from PIL import Image
from stored import every_view

from debgcd.config.schema import Config, RunConfig, ViewsConfig
from debgcd.data.image.decode import decode
from debgcd.data.loader import from_files
from debgcd.data.manifest import from_paths
from debgcd.data.sampler import Draws, uniform
from debgcd.data.views import (
    CENTRE,
    PLAIN,
    SMALL,
    STRONG,
    TWO_PLAIN,
    CropParams,
    Kinds,
    View,
    crop_view,
    random_crops,
    resize_short_side,
)
from debgcd.errors import UsageError
from debgcd.infer.infer import averaged_features_shared
from debgcd.methods.base import Method
from debgcd.model.backbone import Backbone, TrunkSplit
from debgcd.model.lite import load_lite
from debgcd.model.network import Network
from debgcd.tokens import sources
from debgcd.tokens.bank import Bank, BankTokens, bank_bytes, missing_views, open_bank, pick_views, stored_kinds
from debgcd.tokens.sources import FreshTokens, MixedTokens
from debgcd.train.plan import decide_bank
from debgcd.train.setup import centre_tokens, open_tokens

VIEWS = ViewsConfig(resize=36, size=32, bank="on", bank_views=3)
KINDS = (PLAIN, STRONG, PLAIN, SMALL)
CPU = torch.device("cpu")


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(3)
    found = [tmp_path / f"{i}.png" for i in range(7)]
    for i, path in enumerate(found):
        Image.fromarray(rng.integers(0, 256, (30 + 4 * i, 40, 3), dtype=np.uint8)).save(path)
    return found


def build(paths: list[Path], cache: Path, kinds: Kinds, workers: int = 0) -> Bank:
    return open_bank(load_lite(1), paths, VIEWS, cache, workers, lambda *_: None, kinds)


def banks(cache: Path) -> set[str]:
    return {path.name for path in (cache / "banks").iterdir() if path.is_dir()}


def through_the_trunk(backbone: Backbone, path: Path, cut: CropParams, kind: View) -> torch.Tensor:
    image = resize_short_side(decode(path, VIEWS.resize), VIEWS.resize)
    return backbone.trunk(crop_view(image, cut, VIEWS.size, kind)[None])[0]


def assert_close(kept: torch.Tensor, exact: torch.Tensor) -> None:
    """bfloat16 keeps eight bits: half a unit of the last one is 2⁻⁹ of the number; and sums differ in their last bits."""
    assert exact.abs().max() > 0.1
    torch.testing.assert_close(kept, exact, rtol=2**-8, atol=1e-4)


def stored_cut(image: int, kind: View, view: int) -> CropParams:
    stream = "view" if kind == PLAIN else f"view/{kind.name}"
    return random_crops(VIEWS.seed, np.array([image]), VIEWS.bank_views, stream)[0, view]


def test_a_bank_holds_views_of_each_kind_and_the_centre_crop(tmp_path: Path, paths: list[Path]) -> None:
    backbone = load_lite(1)
    array = every_view(build(paths, tmp_path / "cache", KINDS))
    kept = torch.from_numpy(array).view(torch.bfloat16).float()
    stored = stored_kinds(KINDS)
    assert sorted(stored, key=KINDS.index) == [PLAIN, STRONG, SMALL] and kept.shape[:2] == (7, 3 * 3 + 1)
    for image, path in enumerate(paths):
        for row, (kind, view) in enumerate(itertools.product(stored, range(3))):
            cut = stored_cut(image, kind, view)
            assert_close(kept[image, row], through_the_trunk(backbone, path, cut, kind))
        assert_close(kept[image, -1], through_the_trunk(backbone, path, CENTRE[0], PLAIN))


def test_kinds_share_no_random_numbers() -> None:
    cuts = [[stored_cut(4, kind, view) for view in range(3)] for kind in (PLAIN, STRONG, SMALL)]
    assert len(np.unique(cuts)) == np.size(cuts)


def test_views_of_a_kind_do_not_depend_on_the_others(tmp_path: Path, paths: list[Path]) -> None:
    """A method with another second view finds the first views that it would have had."""
    both, alone = (BankTokens(build(paths, tmp_path, kinds), 5, CPU, kinds) for kinds in ((PLAIN, STRONG), TWO_PLAIN))
    draws = Draws(np.arange(7), np.arange(7))
    (mixed,), (plain,) = both.random([draws]), alone.random([draws])
    assert_close(mixed[:7], plain[:7])
    assert not torch.allclose(mixed[7:], plain[7:], rtol=0.1, atol=0.1)


def test_the_name_of_a_bank(tmp_path: Path, paths: list[Path]) -> None:
    """Of the kinds, not of their order or number; plain views alone as before there were kinds."""
    paths, cache = paths[:2], tmp_path / "cache"
    build(paths, cache, TWO_PLAIN)
    plain = banks(cache)
    build(paths, cache, (PLAIN,))
    build(paths, cache, (PLAIN, PLAIN, PLAIN))
    assert banks(cache) == plain
    build(paths, cache, (PLAIN, STRONG))
    build(paths, cache, (STRONG, PLAIN, STRONG))
    assert len(banks(cache)) == 2
    (other,) = banks(cache) - plain
    facts = json.loads((cache / "banks" / other / "facts.json").read_text())["facts"]
    assert sorted(facts["kinds"]) == sorted([PLAIN.name, STRONG.name]) and facts["shape"][:2] == [2, 7]
    for kinds in ((STRONG, STRONG), (PLAIN, SMALL), (PLAIN, View(jitter=0.5))):
        assert missing_views(load_lite(1), paths, VIEWS, cache, kinds)
        build(paths, cache, kinds)
        assert not missing_views(load_lite(1), paths, VIEWS, cache, kinds)
    assert len(banks(cache)) == 5


@pytest.mark.parametrize("kinds", [TWO_PLAIN, (PLAIN, STRONG), KINDS, (SMALL,)])
def test_its_size_is_known_before(tmp_path: Path, paths: list[Path], kinds: Kinds) -> None:
    build(paths, tmp_path / "cache", kinds)
    (records,) = (tmp_path / "cache" / "banks").glob("*/records")
    assert bank_bytes(7, VIEWS, load_lite(1).token_shape(32), kinds) == records.stat().st_size


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("stop", [1, 3])
def test_killed_while_it_is_built(
    tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch, stop: int, workers: int
) -> None:
    monkeypatch.setattr("debgcd.tokens.bank.BUILD_BATCH", 2)
    monkeypatch.setattr("debgcd.system.store.SAFE_EVERY", 1)
    kinds, cache = (PLAIN, STRONG), tmp_path / "cache"
    good = every_view(build(paths, tmp_path / "other", kinds))

    def work() -> int:
        at_call("debgcd.data.fingerprints.Contents.require_unchanged", stop + 1)()
        build(paths, cache, kinds, workers)
        return 0

    assert forked(work, tmp_path / "log") == -signal.SIGKILL
    assert [name[-8:] for name in banks(cache)] == [".partial"]
    told: list[tuple[int, int]] = []
    found = open_bank(load_lite(1), paths, VIEWS, cache, 0, lambda *words: told.append(words), kinds)
    assert np.array_equal(every_view(found), good)
    assert told == [(done, 7) for done in (0, 2, 4, 6, 7)[stop:]]


@pytest.mark.parametrize("kinds", [(STRONG, SMALL), (SMALL, PLAIN)])
def test_views_of_another_kind_under_the_right_name(tmp_path: Path, paths: list[Path], kinds: Kinds) -> None:
    """Also where half of the views and the centre crops are as they should be."""
    good = every_view(build(paths, tmp_path / "cache", (PLAIN, STRONG)))
    build(paths, tmp_path / "elsewhere", kinds)
    (place,), (wrong,) = ((tmp_path / name / "banks").glob("*/records") for name in ("cache", "elsewhere"))
    place.write_bytes(wrong.read_bytes())
    assert not np.array_equal(np.fromfile(place, np.int16), good.ravel())
    assert np.array_equal(every_view(build(paths, tmp_path / "cache", (PLAIN, STRONG))), good)


@pytest.mark.parametrize(
    ("kinds", "views"),
    [((PLAIN, PLAIN, PLAIN), 4), ((PLAIN, PLAIN, PLAIN), 3), ((PLAIN, STRONG), 3), ((SMALL,) * 4, 4)],
)
def test_different_views_of_a_kind_every_choice_alike(kinds: Kinds, views: int) -> None:
    choices = {
        choice
        for choice in itertools.product(range(views), repeat=len(kinds))
        if len(set(zip(kinds, choice, strict=True))) == len(kinds)
    }
    each = 1000
    picked = pick_views(5, np.arange(each * len(choices)), kinds, views)
    found = Counter(map(tuple, picked.T.tolist()))
    assert set(found) == choices
    assert all(abs(count - each) < 5 * each**0.5 for count in found.values()), found


def test_two_kinds_in_turns_are_alike() -> None:
    """Twice two of three views: the second plain one differs from the first, and the strong ones do not care."""
    kinds = (PLAIN, STRONG, PLAIN, STRONG)
    found = Counter(map(tuple, pick_views(1, np.arange(36_000), kinds, 3).T.tolist()))
    assert len(found) == 36 and all(a != c and b != d for a, b, c, d in found)
    assert all(abs(count - 1000) < 5 * 1000**0.5 for count in found.values())


def test_more_views_of_a_kind_than_there_are() -> None:
    with pytest.raises(ValueError, match="3 different views of one kind, but the bank holds 2"):
        pick_views(0, np.arange(4), (PLAIN, STRONG, PLAIN, PLAIN), 2)


def test_a_draw_gets_the_stored_views_it_picked(tmp_path: Path, paths: list[Path]) -> None:
    backbone = load_lite(1)
    bank = BankTokens(build(paths, tmp_path / "cache", KINDS), 7, CPU, KINDS)
    draws = Draws(np.arange(40, 46), np.array([4, 0, 1, 6, 3, 3]))
    (found,) = bank.random([draws])
    assert found.shape[0] == 4 * 6 and found.dtype == torch.float32
    picked = pick_views(7, draws.draw, KINDS, VIEWS.bank_views)
    for place, kind in enumerate(KINDS):  # first views, then second views, ...
        for i, image in enumerate(draws.image):
            cut = stored_cut(int(image), kind, int(picked[place, i]))
            assert_close(found[6 * place + i], through_the_trunk(backbone, paths[image], cut, kind))
    (centre,) = bank.centre(np.array([2]))
    assert_close(centre[0], through_the_trunk(backbone, paths[2], CENTRE[0], PLAIN))


@pytest.mark.parametrize("kinds", [TWO_PLAIN, KINDS, (STRONG, PLAIN)])
def test_features_averaged_over_the_views_that_a_bank_keeps(
    tmp_path: Path, paths: list[Path], kinds: Kinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the plain ones and the centre crop, in blocks of which the last is not full; the views are read, not computed."""
    monkeypatch.setattr(sources, "CENTRE_BATCH", 3)
    bank = build(paths, tmp_path / "cache", kinds)
    network = Network(load_lite(1), torch.nn.ModuleDict())
    numbers = np.array([4, 0, 1, 6, 3, 3, 2])
    kept = torch.from_numpy(every_view(bank)).view(torch.bfloat16).float()
    first = VIEWS.bank_views * stored_kinds(kinds).index(PLAIN)
    with torch.no_grad():
        plain = [
            torch.stack([network(kept[i, view][None], ()).feature[0] for view in (first, first + 1, first + 2, -1)])
            for i in numbers
        ]
        found = averaged_features_shared(network, BankTokens(bank, 7, CPU, kinds), numbers)
    assert found is not None and found.std(0).max() > 0.1
    torch.testing.assert_close(found, torch.stack([views.mean(0) for views in plain]), rtol=1e-4, atol=1e-5)
    mixed = MixedTokens(
        BankTokens(bank, 7, CPU, kinds), FreshTokens(load_lite(1), from_files(paths, VIEWS), 7, 0, kinds), 0.5, 7
    )
    again = averaged_features_shared(network, mixed, numbers)
    assert again is not None and torch.equal(again, found)


def test_no_average_where_no_plain_view_is_kept(tmp_path: Path, paths: list[Path]) -> None:
    """Fresh views, a bank of centre crops, a bank of other kinds: the features of the centre crops must do."""
    network, numbers = Network(load_lite(1), torch.nn.ModuleDict()), np.arange(7)
    centres = open_bank(load_lite(1), paths, replace(VIEWS, bank_views=0), tmp_path, 0, lambda *_: None)
    strong = build(paths, tmp_path, (STRONG, STRONG))
    fresh = FreshTokens(load_lite(1), from_files(paths, VIEWS), 7, 0)
    for tokens in (fresh, BankTokens(centres, 7, CPU), BankTokens(strong, 7, CPU, (STRONG, STRONG))):
        assert averaged_features_shared(network, tokens, numbers) is None


def steps(count: int) -> list[Draws]:
    return [Draws(np.arange(i * 5, (i + 1) * 5), (np.arange(5) + i) % 7) for i in range(count)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_fresh_views_of_all_kinds_with_any_workers(paths: list[Path]) -> None:
    backbone, images = load_lite(1), from_files(paths, VIEWS)
    alone, helped = (list(FreshTokens(backbone, images, 3, n, KINDS).random(steps(3))) for n in (0, 2))
    assert all(torch.equal(a, b) for a, b in zip(alone, helped, strict=True))
    for batch, tokens in zip(steps(3), alone, strict=True):
        assert tokens.shape[0] == 4 * 5
        cuts = random_crops(3, batch.draw, len(KINDS))
        for place, kind in enumerate(KINDS):
            for i, image in enumerate(batch.image):
                exact = through_the_trunk(backbone, paths[image], cuts[i, place], kind)
                torch.testing.assert_close(tokens[5 * place + i], exact, rtol=1e-4, atol=1e-4)


def test_a_mix_of_fresh_and_stored_views_of_all_kinds(tmp_path: Path, paths: list[Path]) -> None:
    fresh = FreshTokens(load_lite(1), from_files(paths, VIEWS), 3, 0, KINDS)
    bank = BankTokens(build(paths, tmp_path / "cache", KINDS), 3, CPU, KINDS)
    mixed = MixedTokens(bank, fresh, 0.5, 3)
    parts = zip(steps(4), mixed.random(steps(4)), bank.random(steps(4)), fresh.random(steps(4)), strict=True)
    seen = set()
    for batch, found, kept, cut in parts:
        is_fresh = uniform(3, "fresh", batch.draw) < 0.5
        seen |= set(is_fresh.tolist())
        for row in range(20):  # of a draw all views, in their places
            expected, other = (cut, kept) if is_fresh[row % 5] else (kept, cut)
            torch.testing.assert_close(found[row], expected[row], rtol=1e-4, atol=1e-4)
            assert not torch.allclose(found[row], other[row], rtol=1e-4, atol=1e-4)
    assert seen == {True, False}


def test_a_run_gets_the_kinds_of_its_method(tmp_path: Path, paths: list[Path]) -> None:
    """Fresh, from a bank and from both; a look at the centre crops finds the bank, and builds none."""
    backbone, cache, manifest = load_lite(1), tmp_path / "cache", from_paths(paths)
    kinds = (PLAIN, PLAIN, SMALL, SMALL)
    config = Config(
        method="uno",
        seed=3,
        views=replace(VIEWS, bank="off"),
        run=RunConfig(workers=0, device="cpu", image_cache="off"),
    )
    fresh = FreshTokens(backbone, from_files(paths, VIEWS), 3, 0, kinds)
    (expected,) = fresh.random(steps(1))
    assert torch.equal(next(open_tokens(config, manifest, backbone, cache).random(steps(1))), expected)

    banked = replace(config, views=VIEWS)
    assert isinstance(centre_tokens(banked, manifest, backbone, cache), FreshTokens)
    bank = open_tokens(banked, manifest, backbone, cache)
    assert isinstance(bank, BankTokens) and len(banks(cache)) == 1
    kept = next(BankTokens(build(paths, cache, kinds), 3, CPU, kinds).random(steps(1)))
    assert torch.equal(next(bank.random(steps(1))), kept)
    assert isinstance(centre_tokens(banked, manifest, backbone, cache), BankTokens)
    other = replace(banked, method="mugcd")
    assert isinstance(centre_tokens(other, manifest, backbone, cache), FreshTokens) and len(banks(cache)) == 1

    both = open_tokens(replace(banked, views=replace(VIEWS, fresh=0.5)), manifest, backbone, cache)
    assert isinstance(both, MixedTokens) and next(both.random(steps(1))).shape == kept.shape


def wanting(kinds: Kinds, early: str = "") -> type[Method]:
    """A method that learns from these views."""
    return type("Wanting", (Method,), {"views": kinds, "cut": TrunkSplit(tuned=1, early=early)})


def test_deciding_about_a_bank_counts_its_kinds(
    tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Free space for twice a bank of plain views: no room for two kinds, unless they are there."""
    backbone, cache, auto = load_lite(1), tmp_path / "cache", replace(VIEWS, bank="auto")
    build(paths, cache, (SMALL, PLAIN))
    room = 2 * bank_bytes(7, VIEWS, backbone.token_shape(32))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": room}))
    assert decide_bank(wanting(TWO_PLAIN), backbone, paths, auto, cache)
    assert "for 3 views of 7 images" in capsys.readouterr().err
    assert not decide_bank(wanting((PLAIN, STRONG)), backbone, paths, auto, cache)
    assert "for 3 views of each of 2 kinds of 7 images" in capsys.readouterr().err
    assert decide_bank(wanting((PLAIN, SMALL)), backbone, paths, auto, cache)


def test_a_bank_needs_as_many_views_as_a_draw_takes_of_one_kind(tmp_path: Path, paths: list[Path]) -> None:
    def decide(bank_views: int, kinds: Kinds) -> bool:
        views = replace(VIEWS, bank_views=bank_views)
        return decide_bank(wanting(kinds), load_lite(1), paths, views, tmp_path / "cache")

    said = "views.bank_views is 2, but a step draws 3 different views of one kind; use 3 or more"
    with pytest.raises(UsageError, match=said):
        decide(2, (SMALL, PLAIN, SMALL, SMALL))
    assert decide(2, KINDS) and decide(3, (SMALL, PLAIN, SMALL, SMALL)) and decide(0, KINDS)


def test_where_tokens_change_there_is_no_bank_and_one_line_says_so(
    tmp_path: Path, paths: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    method = wanting(TWO_PLAIN, early="pixel prompts")
    assert not decide_bank(method, load_lite(1), paths, replace(VIEWS, bank="on"), tmp_path / "cache")
    said = "view bank: off, because Wanting trains pixel prompts, so the trunk's tokens change\n"
    assert capsys.readouterr().err == said
