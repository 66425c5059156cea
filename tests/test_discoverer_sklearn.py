"""scikit-learn's own checks of an estimator, on images: each row of numbers that a check makes up is drawn as stripes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.utils import check_array
from sklearn.utils.estimator_checks import estimator_checks_generator
from tiers import tiered

from debgcd import Discoverer

SIDE, LOWEST, SPAN = 12, -5.0, 12.0  # pixels; of the numbers that the checks make up
SETTINGS = {
    "views": {"size": 32, "resize": 36, "bank": "off"},
    "schedule": {"steps": 0, "batch": 8},
    "run": {"workers": 0, "precision": "fp32"},
}
EXPECTED_FAILED = {
    "check_fit_score_takes_y": "partial_fit adds images without labels; given some, it would have to ignore them",
    "check_transformer_general": "images have no number of features, so none can be wrong; the rest of the check passes",
    "check_methods_subset_invariance": "a network's features depend on the size of the batch in the sixth decimal",
    "check_fit2d_1sample": "one image is refused because it leaves nothing to discover, in other words than the check's",
}
# The others fit for seconds.
QUICK = (
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_estimators_unfitted",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_estimator_sparse_tag",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_fit_idempotent",
    "check_fit2d_1sample",
)


def stripes(X: Any) -> list[np.ndarray]:
    rows = check_array(X)
    value = np.clip((rows - LOWEST) / SPAN, 0, 1)[:, np.resize(np.arange(rows.shape[1]), SIDE * 3)]
    images = np.repeat(value.reshape(len(rows), 1, SIDE, 3), SIDE, axis=1)
    return list((255 * images).astype(np.uint8))


class Striped(Discoverer):
    """A Discoverer of rows of numbers; every second label is hidden, because there must be something to discover."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Discoverer:
        images = stripes(X)
        labels = np.asarray(y, float).ravel().round().astype(int)
        return super().fit(images, np.where(np.arange(len(labels)) % 2 == 0, labels, -1), groups)

    def _each(self, X: Any, ask: Any, fill: Any) -> Any:
        return super()._each(X if isinstance(X, list) else stripes(X), ask, fill)


def checks() -> list[tuple[str, Any]]:
    found = estimator_checks_generator(Striped(5, method="sskmeans"))
    return [(check.func.__name__ if hasattr(check, "func") else check.__name__, check) for _, check in found]


EVERY = checks()


@pytest.mark.parametrize("name", tiered(QUICK, dict.fromkeys(name for name, _ in EVERY)))
def test_scikit_learns_checks(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"preset": "small", "overrides": SETTINGS, "cache": tmp_path / "cache"}
    found = Striped(5, method="sskmeans", verbose=False, **settings)
    for check in (check for other, check in EVERY if other == name):
        if name in EXPECTED_FAILED:
            with pytest.raises(
                Exception,
                match=r"takes 2 positional|does not raise an error when the number|invariant when|nothing to discover",
            ):
                check(found)
        else:
            check(found)


def test_the_tags_say_what_x_is() -> None:
    tags = Discoverer().__sklearn_tags__()
    assert not tags.input_tags.two_d_array and tags.input_tags.three_d_array and tags.input_tags.string
    assert tags.target_tags.required and tags.no_validation and tags.requires_fit
