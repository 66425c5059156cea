"""Categories that are left at the end of a run whose K was too large."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from little import KNOWN, WIDTH, K, config, made

from debgcd.model.heads import classifiers
from debgcd.model.network import Network
from debgcd.run.predictions import Inference
from debgcd.tokens.sources import Tokens
from debgcd.train.finish import prune
from debgcd.train.setup import Setup


class NoTokens(Tokens):
    """Nothing is asked for."""


def pruned(images: tuple[int, ...], answer: str = "settled") -> tuple[Network, Setup]:
    """A network before, and the setup after, with so many unlabelled images in each category."""
    chosen = config("paper", answer=answer)
    network, method = made(chosen)
    (before, _), category = made(chosen), np.repeat(np.arange(K), images)
    for each in (network, before):
        for head in classifiers(each.heads).values():
            rows = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(0))
            rows[-1] = rows[-2] * 1.001  # the last two are as good as the same
            head.weight.data.copy_(rows)
    label = np.full(len(category), -1)
    setup = Setup(network, method, NoTokens(), label, label > 0, KNOWN, [Path(f"{i}.png") for i in range(len(label))])
    found = Inference(category[:, None], np.ones((len(category), 1), np.float32))
    return before, prune(setup, chosen, found)


@pytest.mark.parametrize("answer", ["classifier", "settled"])
@pytest.mark.parametrize(
    ("images", "left"),
    [
        ((3, 3, 3, 3, 3), [0, 1, 2, 3, 4]),  # also two new ones that are as good as the same
        ((3, 3, 3, 0, 3), [0, 1, 2, 4]),
        ((3, 3, 3, 3, 0), [0, 1, 2, 3]),
        ((0, 3, 3, 1, 0), [0, 1, 2, 3]),  # a known class stays, though nobody is in it
        ((3, 3, 3, 0, 0), [0, 1, 2]),  # no new category may be left
        ((0, 0, 0, 0, 0), [0, 1, 2]),
    ],
)
def test_empty_new_categories_go_and_all_others_stay_as_they_were(
    images: tuple[int, ...], left: list[int], answer: str
) -> None:
    before, after = pruned(images, answer)
    assert (K, KNOWN) == (5, 3)
    feature = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(1))
    heads = classifiers(after.network.heads)
    assert set(heads) == {"classifier", "debiased"} | ({"settled"} if answer == "settled" else set())
    for name, head in heads.items():
        was = classifiers(before.heads)[name](feature)
        torch.testing.assert_close(head(feature), was[:, left])
    assert after.method.sizes.k == len(left)
    shapes = {name: value.shape for name, value in after.method.heads().state_dict().items()}
    assert {name: value.shape for name, value in after.network.heads.state_dict().items()} == shapes
