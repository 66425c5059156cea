"""Between all cached and all fresh: which draws take fresh views, what they get, and that runs stay repeatable."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forks import at_call, debgcd, result
from PIL import Image

from debgcd.config.schema import Config, ViewsConfig
from debgcd.data.loader import from_files
from debgcd.data.sampler import Draws, uniform
from debgcd.model.lite import load_lite
from debgcd.run.model_folder import views_label
from debgcd.tokens.bank import BankTokens, open_bank
from debgcd.tokens.sources import FreshTokens, MixedTokens

Train = Callable[..., Any]
VIEWS = ViewsConfig(resize=36, size=32, bank="on", bank_views=3)


class Named:
    """Tokens that say which draw, view and kind they are: rows (draw, view, kind)."""

    def __init__(self, kind: int):
        self.kind = kind

    def random(self, draws: Any) -> Any:
        for batch in draws:
            assert len(batch.draw) or not self.kind, "an empty batch cannot be loaded"
            rows = [[draw, view, self.kind] for view in (1, 2) for draw in batch.draw]
            yield torch.tensor(rows, dtype=torch.float32).reshape(-1, 3)


def steps(count: int, batch: int = 6) -> list[Draws]:
    return [Draws(np.arange(i * batch, (i + 1) * batch), np.arange(batch)) for i in range(count)]


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9, 1.0])
def test_rows_keep_their_places(share: float) -> None:
    """First views, then second views, whatever the mix; also where a batch is all of one kind."""
    mixed = MixedTokens(Named(0), Named(1), share, seed=4)  # type: ignore[arg-type]
    found = torch.stack(list(mixed.random(iter(steps(200)))))
    draws = np.arange(1200).reshape(200, 6)
    assert np.array_equal(found[:, :6, 0], draws) and np.array_equal(found[:, 6:, 0], draws)
    assert (found[:, :6, 1] == 1).all() and (found[:, 6:, 1] == 2).all()
    assert torch.equal(found[:, :6, 2], found[:, 6:, 2])  # both views of a draw, or neither
    fresh = found[:, :6, 2].numpy()
    assert np.array_equal(fresh, uniform(4, "fresh", draws) < share)
    assert abs(fresh.mean() - share) < 4 * np.sqrt(share * (1 - share) / 1200) + 1e-12


def test_tokens_are_those_of_the_bank_and_of_fresh_views(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{i}.png" for i in range(6)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(path)
    backbone = load_lite(1)
    array = open_bank(backbone, paths, VIEWS, tmp_path / "cache", 0, lambda *_: None)
    bank = BankTokens(array, 3, torch.device("cpu"))
    fresh = FreshTokens(backbone, from_files(paths, VIEWS), 3, 0)
    kinds, differ = set(), 0
    for batch, mixed, kept, cut in zip(
        steps(4),
        MixedTokens(bank, fresh, 0.5, 3).random(steps(4)),
        bank.random(steps(4)),
        fresh.random(steps(4)),
        strict=True,
    ):
        for row in range(12):
            is_fresh = bool(uniform(3, "fresh", batch.draw)[row % 6] < 0.5)
            kinds.add(is_fresh)
            torch.testing.assert_close(mixed[row], (cut if is_fresh else kept)[row], rtol=1e-4, atol=1e-5)
            differ += bool((cut[row] - kept[row]).norm() > 0.1 * cut[row].norm())
    assert kinds == {True, False} and differ > 40  # of 48; now and then both happen to cut at the same place
    (centre,) = MixedTokens(bank, fresh, 0.5, 3).centre(np.array([2, 4]))
    assert torch.equal(centre, next(bank.centre(np.array([2, 4]))))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_repeatable_with_any_workers_and_after_a_kill(
    arguments: Callable[..., list[str]], shared_folder: Path, tmp_path: Path
) -> None:
    def words(name: str, workers: int) -> list[str]:
        more = ("--bank", "on", "--cache", tmp_path / "cache", "--workers", workers)
        return arguments(shared_folder, tmp_path / name, *more, views__fresh=0.4)

    for name, workers in (("whole", 0), ("workers", 2)):
        assert debgcd(words(name, workers), tmp_path / "log") == 0
    killed = debgcd(words("killed", 1), tmp_path / "log", at_call("debgcd.model.optimiser.SGD.step", 8))
    assert killed == -signal.SIGKILL
    assert debgcd(["resume", tmp_path / "killed", "--no-report"], tmp_path / "log") == 0
    assert result(tmp_path / "whole") == result(tmp_path / "workers") == result(tmp_path / "killed")
    told = json.loads((tmp_path / "whole" / "model" / "config.json").read_text())["config"]["views"]
    assert (told["bank"], told["fresh"]) == ("on", 0.4)


def test_all_fresh_is_as_without_a_bank(train: Train, shared_csv: Path, tmp_path: Path) -> None:
    def run(name: str, *more: object, **settings: object) -> tuple[str, str, str]:
        cache = tmp_path / f"cache-{name}"
        said = train(shared_csv, tmp_path / name, "--cache", cache, *more, schedule__steps=6, **settings)
        assert said.code == 0, said.err
        return result(tmp_path / name)

    off = run("off")
    assert run("all", "--bank", "on", views__fresh=1.0) == off
    assert not (tmp_path / "cache-all" / "banks").exists()
    assert json.loads((tmp_path / "all" / "evaluation.json").read_text())["views"] == "views: fresh, decode fast"
    half, none = run("half", "--bank", "on", views__fresh=0.5), run("none", "--bank", "on")
    assert len({off, half, none}) == 3
    assert (
        json.loads((tmp_path / "half" / "evaluation.json").read_text())["views"]
        == "views: bank 3, 50 % fresh, decode fast"
    )


@pytest.mark.parametrize(
    ("bank", "fresh", "label"),
    [
        ("off", 0.0, "views: fresh, decode exact"),
        ("on", 0.0, "views: bank 8, decode exact"),
        ("on", 0.25, "views: bank 8, 25 % fresh, decode exact"),
        ("on", 0.125, "views: bank 8, 12.5 % fresh, decode exact"),
    ],
)
def test_results_say_how_images_were_seen(bank: Any, fresh: float, label: str) -> None:
    assert views_label(Config(views=ViewsConfig(bank=bank, fresh=fresh))) == label
