"""Where a network looks: the map of a category against finite differences, and a picture of each kind of network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from miniatures import draw
from quick import train_arguments
from torch import nn

from debgcd.cli import main
from debgcd.errors import DataError, UsageError
from debgcd.grow.splits import run_model
from debgcd.infer.where import DARK, activation_map, lit, where
from debgcd.methods.base import TEMPERATURE
from debgcd.model.backbone import Backbone
from debgcd.model.heads import Prototypes
from debgcd.model.network import Network
from debgcd.model.prompts import Prompted


class Tail(Backbone):
    """Two places of three channels each, mixed by something that is not linear."""

    width, standardise = 4, False

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 4)
        self.tuned = nn.ModuleList([self.mix])

    def tail(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.mix(tokens.permute(0, 2, 3, 1)).tanh().flatten(1, 2).mean(1)


@pytest.mark.parametrize("categories", [1, 3])
def test_the_map_is_what_each_place_moves(categories: int) -> None:
    torch.manual_seed(0)
    network = Network(Tail(), nn.ModuleDict({"classifier": Prototypes(4, categories)})).double()
    nn.init.normal_(network.heads["classifier"].weight)
    tokens = torch.randn(2, 3, 1, 2).double()

    def odds(tokens: torch.Tensor, category: int) -> float:
        scores = [float(score) / TEMPERATURE for score in network(tokens, ("classifier",))["classifier"][0]]
        others = [np.exp(score) for c, score in enumerate(scores) if c != category]
        return scores[category] - (np.log(sum(others)) if others else 0)

    found = activation_map(network, "classifier", tokens)
    assert found.shape == (2, 1, 2)
    with torch.no_grad():
        for image in range(2):
            one = tokens[image : image + 1]
            category = int(network(one, ("classifier",))["classifier"].argmax())
            for place in range(2):
                slow = 0.0
                for channel in range(3):
                    more, less = one.clone(), one.clone()
                    more[0, channel, 0, place] *= 1 + 1e-5
                    less[0, channel, 0, place] *= 1 - 1e-5
                    slow += abs(odds(more, category) - odds(less, category)) / 2e-5
                assert float(found[image, 0, place]) == pytest.approx(slow, rel=1e-4)


def test_what_is_looked_at_is_bright() -> None:
    face = np.full((8, 8, 3), 255, np.uint8)
    seen = np.zeros((8, 8), np.float32)
    seen[0, 7] = 3
    picture = lit(face, seen)
    assert picture[0, -1].min() == pytest.approx(1) and picture[-1, 0].max() == pytest.approx(DARK)
    assert lit(face, np.zeros((2, 2), np.float32)).max() == pytest.approx(DARK)  # nothing is looked at


@pytest.mark.parametrize("kind", ["lite0", "vit"])
def test_a_run_shows_where_its_network_looks(tmp_path: Path, kind: str) -> None:
    for i in range(12):
        draw(tmp_path / "images" / ("cat" if i < 4 else "unlabelled") / f"{i}.png", ("cat", "dog")[i % 2], i)
    draw(tmp_path / "images" / "dog" / "12.png", "dog", 12)
    draw(tmp_path / "images" / "dog" / "13.png", "dog", 13)
    words = ["--k", 3, "--epochs", 0, "--cache", tmp_path / "cache"]
    if kind == "vit":
        tiny.hub_model("dinov2_with_registers", tmp_path / "backbone")
        words += ["--backbone", tmp_path / "backbone"]
    assert main(train_arguments(tmp_path / "images", tmp_path / "run", *words, schedule__steps="null")) == 0
    model = run_model(tmp_path / "run", tmp_path / "cache")
    first, second = (where(model, tmp_path / "images" / "unlabelled" / f"{i}.png") for i in (4, 5))
    size = model.config.views.crop
    assert first.shape == (size, size, 3) and first.dtype == np.uint8 and first.std() > 0
    assert not np.array_equal(first, second)
    (tmp_path / "images" / "unlabelled" / "4.png").write_text("damaged")
    with pytest.raises(DataError, match=r"4\.png"):
        where(model, tmp_path / "images" / "unlabelled" / "4.png")
    if kind == "lite0":
        model.network.backbone = Prompted(model.network.backbone, nn.Identity())
        with pytest.raises(UsageError, match="prompts"):
            where(model, tmp_path / "images" / "unlabelled" / "5.png")
