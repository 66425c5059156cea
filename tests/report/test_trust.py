"""The trust of a category, and the order of interest."""

from __future__ import annotations

import numpy as np
import pytest

from debgcd.cluster.structure import structure
from debgcd.report.suggest import trust_of
from debgcd.report.trust import KNOWN, START, WEIGHTS, order_of_interest, trust


def test_trust_is_a_logistic_function_of_its_parts() -> None:
    parts = {"together": [0.5, 0.9, 1.0], "neighbours": [0.5, 0.6, 0.0], "separation": [0.5, 0.3, np.nan]}
    found = trust({name: np.array(values) for name, values in parts.items()}, known=1)
    # of parts of one half the logits are 0
    assert found[0] == pytest.approx(1 / (1 + np.exp(-START - KNOWN)))
    score = START + sum(WEIGHTS[name] * np.log(values[1] / (1 - values[1])) for name, values in parts.items())
    assert found[1] == pytest.approx(1 / (1 + np.exp(-score)))
    assert np.isnan(found[2])


def test_a_mixed_category_is_trusted_less_than_a_pure_one_and_a_single_image_not_at_all() -> None:
    import torch

    random = np.random.default_rng(0)
    of = np.repeat(np.arange(5), 30)
    feature = torch.from_numpy(np.eye(8)[of] * 4 + random.normal(size=(150, 8)) * 0.4).float()
    label = np.where((np.arange(150) % 2 == 0) & (of < 2), of, -1)
    category = np.where(of == 4, 3, of)  # the last two groups in one category
    category[149] = 4
    found = structure(feature, label, of, 5)
    score, _ = trust_of(found, category, label, 6)
    assert score[2] > 0.9 > 0.6 > score[3] > 0.4
    assert np.isnan(score[4]) and np.isnan(score[5])


def test_new_categories_come_first_then_the_large_and_trusted() -> None:
    score, size = np.array([0.9, 0.9, 0.5, 0.9, np.nan]), np.array([100, 5, 20, 20, 0])
    assert order_of_interest(score, size, known=2) == [3, 2, 4, 0, 1]
