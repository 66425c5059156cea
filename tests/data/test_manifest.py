"""The way back from a written manifest, manifests made in Python, and what training asks of one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from debgcd.data import scan as scan_module
from debgcd.data.image.decode import decode
from debgcd.data.manifest import Skipped, from_arrays, from_paths, require_trainable, write_manifest, write_skipped
from debgcd.data.sources import read_manifest
from debgcd.errors import DataError, UsageError

NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1, max_size=20)
LABELS = st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(st.tuples(NAMES, LABELS, LABELS, LABELS), min_size=1, max_size=6, unique_by=lambda row: row[0]))
@example(
    data=[("=1+1", "=cmd", ' "quoted" ', "a\r"), (" lead", "x\ny", "\r", "\ufeff"), ("trail ", "'", "a;b\tc", "-2")]
)
@example(data=[('"', '"', '""', "\n"), ("\r", "\r\nx", "\x85", "\u2028"), ("\ufeff", "\ufeff", "nan", "None")])
def test_a_written_manifest_reads_back_the_same(tmp_path: Path, data: list[tuple[str, str, str, str]]) -> None:
    names, labels, truths, groups = zip(
        *[row for row in data if row[0] not in (".", "..")] or [("x", None, None, None)], strict=True
    )
    manifest = from_paths([tmp_path / "images" / name for name in names], labels, truths, groups=groups)
    assert [path.name for path in manifest.paths] == list(names)
    write_manifest(manifest, tmp_path / "m.csv")
    assert read_manifest(tmp_path / "m.csv") == manifest
    assert os.listdir(tmp_path) == ["m.csv"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_skipped([Skipped("a", "old")], tmp_path / "skipped.csv")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_skipped([Skipped("b", "new")], tmp_path / "skipped.csv")
    assert (tmp_path / "skipped.csv").read_text() == "file,reason\na,old\n"
    assert os.listdir(tmp_path) == ["skipped.csv"]


def test_labels_of_any_type(tmp_path: Path) -> None:
    values = [
        3,
        "cat",
        -1,
        None,
        np.nan,
        "",
        "  ",
        np.int64(-1),
        np.float64(2.0),
        10,
        pd.NA,
        pd.NaT,
        " dog ",
        "-1",
        np.str_("é"),
    ]
    manifest = from_paths([tmp_path / f"{i:02d}.jpg" for i in range(len(values))], values)
    none = None
    assert manifest.labels == ("3", "cat", *[none] * 6, "2", "10", none, none, "dog", none, "é")
    assert manifest.classes == ("10", "2", "3", "cat", "dog", "é")
    assert from_paths(["a", "b"], pd.Series([1, np.nan])).labels == ("1", None)
    assert from_paths(["a", "b"], np.array([0, -1])).labels == ("0", None)
    assert from_paths(["b", "a"]).paths == (Path.cwd() / "b", Path.cwd() / "a")


def test_paths_that_are_wrong() -> None:
    with pytest.raises(UsageError, match="labels has 1 entries for 2 images"):
        from_paths(["a", "b"], [1])
    with pytest.raises(UsageError, match="one path"):
        from_paths("abc")
    with pytest.raises(DataError, match="no images"):
        from_paths([])
    with pytest.raises(UsageError, match=r"splits\[0\]"):
        from_paths(["a"], splits=["val"])
    with pytest.raises(DataError, match=r"paths\[0\] has the label"):
        from_paths(["a"], ["cat"], splits=["test"])


def test_arrays_are_kept_without_loss(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    grey, rgb = rng.integers(0, 256, (9, 7), dtype=np.uint8), rng.integers(0, 256, (5, 8, 3), dtype=np.uint8)
    rgba = np.dstack([rgb, np.full((5, 8), 255, np.uint8)])
    manifest = from_arrays([grey, rgb, rgba, rgb / 255], [0, "b", -1, None], tmp_path / "new", truths=[0, 1, 2, -1])
    assert [path.name for path in manifest.paths] == ["000000.png", "000001.png", "000002.png", "000003.png"]
    assert manifest.labels == ("0", "b", None, None)
    assert manifest.truths == ("0", "1", "2", None)
    for path, expected in zip(manifest.paths, [np.dstack([grey] * 3), rgb, rgb, rgb], strict=True):
        np.testing.assert_array_equal(decode(path), expected)
    for wrong in (rgb.astype(int), rgb.astype(float), rgb[..., :2], rgb[:0], rgb / 255 * np.nan, rgb[None]):
        with pytest.raises(DataError, match="image 1"):
            from_arrays([rgb, wrong], None, tmp_path / "bad")


def test_select(tmp_path: Path) -> None:
    manifest = from_paths(["a", "b", "c"], ["x", None, "y"], groups=["1", "2", "3"])
    chosen = manifest.select(np.array([True, False, True]))
    assert [path.name for path in chosen.paths] == ["a", "c"]
    assert chosen.groups == ("1", "3")
    assert [path.name for path in manifest.select([2, 0]).paths] == ["c", "a"]
    assert len(manifest.select([])) == 0
    with pytest.raises(ValueError, match="mask"):
        manifest.select(np.array([True]))


def test_rows_of_the_splits_with_labels_and_truth() -> None:
    manifest = from_paths(
        ["a", "b", "c", "d", "e"],
        labels=["y", None, None, "x", None],
        truths=["y", "z", "x", None, "w"],
        splits=["train", "test", "train", "train", "test"],
    )
    assert manifest.classes == ("x", "y")
    assert manifest.training_rows.tolist() == [0, 2, 3]
    assert manifest.test_rows.tolist() == [1, 4]
    assert [path.name for path in manifest.training_paths] == ["a", "c", "d"]
    assert manifest.training_labels.tolist() == [1, -1, 0]
    assert manifest.truth_ids(np.arange(5)).tolist() == [1, 3, 0, -1, 2]  # x, y known, then w, z
    assert manifest.truth_ids(manifest.test_rows).tolist() == [3, 2]
    assert manifest.truth_ids(manifest.test_rows[:0]).dtype == manifest.training_labels.dtype == np.int64


@pytest.mark.parametrize(
    ("labels", "truths", "has"),
    [([None, None], [None, None], False), (["x", None], ["x", None], False), (["x", None], [None, "y"], True)],
)
def test_only_a_truth_beyond_the_labels_can_be_measured_against(labels: list, truths: list, has: bool) -> None:
    assert from_paths(["a", "b"], labels, truths).has_truth == has


def test_require_trainable() -> None:
    paths = ["a", "b", "c", "d"]
    good = from_paths(paths, ["x", "y", None, None], splits=["train", "train", "train", "test"])
    for k in (None, 2, 3):
        require_trainable(good, k)
    require_trainable(from_paths(paths, ["x", None, None, None]), 1)
    with pytest.raises(UsageError, match=r"K is 1, but .* M = 2"):
        require_trainable(good, 1)
    with pytest.raises(UsageError, match=r"K is 4, but .* 3 training images"):
        require_trainable(good, 4)
    with pytest.raises(DataError, match="no training image has a label"):
        require_trainable(from_paths(paths), None)
    with pytest.raises(DataError, match="nothing to discover"):
        require_trainable(from_paths(paths, ["x", "x", "y", None], splits=["train"] * 3 + ["test"]), None)


def test_no_torch_is_imported() -> None:
    root = str(Path(scan_module.__file__).parents[2])
    code = "import sys, debgcd.data.manifest, debgcd.data.image.decode; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}).returncode == 0
