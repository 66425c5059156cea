"""The Python interface: what scikit-learn's users expect of fit, predict, transform, save and load."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from sklearn.base import clone

import debgcd
from debgcd import Discoverer, discoverer
from debgcd.config import compose
from debgcd.data.manifest import from_paths
from debgcd.errors import DataError, DebgcdError, UsageError

SETTINGS = {
    "backbone": {"name": "lite0"},
    "views": {"size": 32, "resize": 36, "bank": "off"},
    "heads": {"hidden": 16},
    "schedule": {"steps": 3, "batch": 8},
    "run": {"workers": 0},
}
PLAIN = {name: value for name, value in SETTINGS.items() if name != "heads"}  # k-means has none
K, WIDTH = 4, 1280
LABELS = ["cat", "ant", "cat", "ant"] + [None] * 12


def arrays() -> list[np.ndarray]:
    """Four colours with noise: two known classes and two new ones."""
    rng = np.random.default_rng(0)
    colours = np.array([[220, 40, 40], [40, 40, 220], [40, 200, 40], [230, 230, 60]])
    return [
        np.clip(colours[i % 4] + rng.normal(0, 25, (20 + i, 24, 3)), 0, 255).astype(np.uint8)
        for i in range(len(LABELS))
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images as files, a broken one, and links."""
    place = tmp_path_factory.mktemp("images")
    for i, image in enumerate(arrays()):
        Image.fromarray(image).save(place / f"{i:02d}.png")
    (place / "broken.png").write_bytes(b"no image")
    os.symlink(place / "00.png", place / "link.png")
    return place


@pytest.fixture(scope="module")
def paths(folder: Path) -> list[Path]:
    return [folder / f"{i:02d}.png" for i in range(len(LABELS))]


def new(tmp: Path, **values: Any) -> Discoverer:
    return Discoverer(K, **{"preset": "small", "overrides": SETTINGS, "cache": tmp / "cache", **values})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, paths: list[Path]) -> Discoverer:
    return new(tmp_path_factory.mktemp("fitted")).fit(paths, LABELS)


def test_fit_sets_what_it_promises(fitted: Discoverer) -> None:
    assert fitted.labels_.shape == (len(LABELS),)
    assert fitted.labels_.dtype == np.int64
    assert fitted.labels_.min() >= 0
    assert fitted.labels_.max() < K
    ids = [(c.category, c.id, c.known) for c in fitted.categories_]
    assert ids == [(0, "ant", True), (1, "cat", True), (2, "new-01", False), (3, "new-02", False)]
    assert (fitted.run_.folder / "predictions.csv").exists()


def test_shapes(fitted: Discoverer, paths: list[Path]) -> None:
    some = paths[:5]
    assert fitted.predict(some).shape == (5,)
    features = fitted.transform(some)
    assert features.shape == (5, WIDTH)
    assert np.isfinite(features).all()
    novelty = fitted.novelty(some)
    assert novelty.shape == (5,)
    assert ((novelty >= 0) & (novelty <= 1)).all()
    table = fitted.table(some)
    assert [row["path"] for row in table] == [str(path) for path in some]
    assert [row["category"] for row in table] == fitted.predict(some).tolist()


def test_answers_are_in_the_order_asked(fitted: Discoverer, paths: list[Path]) -> None:
    whole = fitted.transform(paths)
    order = [7, 0, 3, 12]
    np.testing.assert_allclose(fitted.transform([paths[i] for i in order]), whole[order], atol=1e-4)
    assert len(np.unique(whole.round(3), axis=0)) == len(paths)  # the images differ, so that order can be told


def test_strings_paths_and_arrays_are_the_same_images(fitted: Discoverer, paths: list[Path]) -> None:
    expected = fitted.transform(paths)
    np.testing.assert_array_equal(fitted.transform([str(path) for path in paths]), expected)
    np.testing.assert_array_equal(fitted.transform(arrays()), expected)
    alike = np.stack([image[:20] for image in arrays()])
    assert fitted.predict(alike).shape == (len(LABELS),)  # one array (N, H, W, 3)
    assert fitted.predict(alike.astype(float) / 255).tolist() == fitted.predict(alike).tolist()


@pytest.mark.parametrize("nothing", [-1, float("nan")])
def test_unlabelled_is_minus_one_none_or_nan(
    tmp_path: Path, fitted: Discoverer, paths: list[Path], nothing: float
) -> None:
    """Three ways to say the same, on arrays and on paths: the same model, byte for byte."""
    y = [nothing if label is None else label for label in LABELS]
    other = new(tmp_path, run=tmp_path / "run").fit(arrays(), y)
    model = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert model == (fitted.run_.model / "model.safetensors").read_bytes()
    assert other.labels_.tolist() == fitted.labels_.tolist()


def test_numbers_as_labels_are_sorted_as_text(tmp_path: Path) -> None:
    y = np.array([10, 9, 10, 9] + [-1] * 12)
    found = new(tmp_path, method="kmeans", overrides=PLAIN).fit(arrays(), y)
    assert [category.id for category in found.categories_[:2]] == ["10", "9"]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory, paths: list[Path]) -> Discoverer:
    """Known classes 10 and 9, in this order, because they are sorted as text."""
    tmp = tmp_path_factory.mktemp("numbered")
    y = np.array([9, 10, 9, 10] + [-1] * 12)
    return new(tmp, method="sskmeans", overrides=PLAIN, run=tmp / "run").fit(paths, y)


def test_classes_have_the_callers_labels(numbered: Discoverer, fitted: Discoverer, paths: list[Path]) -> None:
    assert numbered.classes_.tolist() == [10, 9, "new-01", "new-02"]
    assert [type(label) for label in numbered.classes_] == [int, int, str, str]
    assert fitted.classes_.tolist() == ["ant", "cat", "new-01", "new-02"]
    found = numbered.predict_labels(paths)
    assert found.dtype == object
    assert found.tolist() == [numbered.classes_[category] for category in numbered.predict(paths)]
    assert found[:2].tolist() == [9, 10]  # what y says of them
    assert fitted.predict_labels(paths).dtype.kind == "U"


def test_labels_keep_their_types_on_disk(tmp_path: Path, numbered: Discoverer, paths: list[Path]) -> None:
    numbered.save(tmp_path / "model")
    for place in (tmp_path / "model", numbered.run_.folder):
        loaded = Discoverer.load(place, cache=tmp_path / "cache")
        assert [type(label) for label in loaded.classes_] == [int, int, str, str]
        assert loaded.predict_labels(paths).tolist() == numbered.predict_labels(paths).tolist()


@pytest.mark.parametrize("content", ["[9, 10]", "[10]", '["10", [9]]', "{}", "[" * 1000, "[10, 9.5]"])
def test_labels_that_are_not_those_of_the_classes_are_refused(
    tmp_path: Path, numbered: Discoverer, content: str
) -> None:
    numbered.save(tmp_path / "model")
    (tmp_path / "model" / "labels.json").write_text(content)
    with pytest.raises(DataError, match=r"labels\.json cannot be read"):
        Discoverer.load(tmp_path / "model", cache=tmp_path / "cache")


def test_labels_of_any_type(tmp_path: Path) -> None:
    """Numbers and truth values come back as they are, other objects as text; of 2 and "2", the first counts."""
    y = [True, 2.5, 2, "2", Path("a"), float("inf")] + [None] * 10
    found = new(tmp_path, method="kmeans", overrides=PLAIN).set_params(k=6).fit(arrays(), y)
    assert found.classes_.tolist() == [2, 2.5, True, "a", "inf", "new-01"]
    found.save(tmp_path / "model")
    assert Discoverer.load(tmp_path / "model", cache=tmp_path / "cache").classes_.tolist() == found.classes_.tolist()


def test_a_file_that_cannot_be_used_has_no_label(numbered: Discoverer, folder: Path, paths: list[Path]) -> None:
    with pytest.warns(UserWarning, match="1 of 2"):
        assert numbered.predict_labels([paths[0], folder / "broken.png"]).tolist() == [9, None]


def test_probabilities_of_all_categories(fitted: Discoverer, folder: Path, paths: list[Path]) -> None:
    found = fitted.predict_proba(paths)
    assert found.shape == (len(paths), K)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    assert found.argmax(1).tolist() == fitted.predict(paths).tolist()
    np.testing.assert_allclose(found.max(1), [row["confidence"] for row in fitted.table(paths)], atol=1e-6)
    with pytest.warns(UserWarning, match="1 of 2"):
        assert np.isnan(fitted.predict_proba([folder / "broken.png", paths[0]])).all(1).tolist() == [True, False]


def tensors(channels_first: bool) -> list[torch.Tensor]:
    found = [torch.from_numpy(image) for image in arrays()]
    return [image.permute(2, 0, 1) for image in found] if channels_first else found


SAME_IMAGES = {
    "PIL images": lambda paths: [Image.fromarray(image) for image in arrays()],
    "PIL images from files": lambda paths: [Image.open(path) for path in paths],
    "tensors": lambda paths: tensors(channels_first=False),
    "tensors, channels first": lambda paths: tensors(channels_first=True),
    "tensors of floats": lambda paths: [image.float() / 255 for image in tensors(channels_first=True)],
    "a series": lambda paths: pandas.Series(paths, index=range(5, 5 + len(paths))),
    "a table of one column": lambda paths: pandas.DataFrame({"path": [str(path) for path in paths]}),
    "a generator": lambda paths: iter(paths),
    "an array of texts": lambda paths: np.array([str(path) for path in paths]),
}


@pytest.mark.parametrize("case", SAME_IMAGES)
def test_images_may_be_given_as(fitted: Discoverer, paths: list[Path], case: str) -> None:
    np.testing.assert_array_equal(fitted.transform(SAME_IMAGES[case](paths)), fitted.transform(paths))


def test_a_stack_of_tensors_is_a_list_of_images(fitted: Discoverer) -> None:
    alike = np.stack([image[:20] for image in arrays()])
    stack = torch.from_numpy(alike).permute(0, 3, 1, 2)
    np.testing.assert_array_equal(fitted.transform(stack), fitted.transform(alike))


IMAGE = np.zeros((8, 8, 3), np.uint8)
REFUSED = {
    "a text": ("a.jpg", r"the single path 'a\.jpg'; put it into a list, e\.g\. predict\(\[image\]\)"),
    "a path": (Path("a.jpg"), "the single path"),
    "an array": (IMAGE, r"a single image of shape \(8, 8, 3\)"),
    "a grey array": (IMAGE[..., 0], r"a single image of shape \(8, 8\)"),
    "a PIL image": (Image.fromarray(IMAGE), "a single PIL image"),
    "a tensor": (torch.zeros(3, 8, 8), r"a single image of shape \(3, 8, 8\)"),
    "a table": (pandas.DataFrame({"file": ["a.jpg"], "x": [1]}), r"file, x\); pass one of them, e\.g\. table\['file'\]"),
    "a number": (3, "must be a list with one entry per image, not a int"),
    "a mapping": ({"a.jpg": 1}, "not a dict"),
    "a set": ({"a.jpg"}, "not a set"),
    "nothing": (None, "not a NoneType"),
    "paths and arrays": (["a.jpg", "b.jpg", IMAGE], r"mixes paths and arrays \(items 0 and 2\)"),
    "arrays and tensors": ([IMAGE, torch.zeros(8, 8)], "mixes arrays and tensors"),
    "a gap": (["a.jpg", None], "item 1 of X is None; give paths, arrays, PIL images or tensors"),
    "numbers": ([1.5, 2.5], "item 0 of X is a float"),
    "bytes": ([b"a.jpg"], "item 0 of X is a bytes"),
    "a tensor of five channels": ([torch.zeros(5, 8, 8)], r"item 0 of X has the shape \(5, 8, 8\)"),
    "an array of five channels": ([np.zeros((8, 8, 5), np.uint8)], r"shape \(8, 8, 5\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_images_that_are_refused_in_words(fitted: Discoverer, case: str) -> None:
    given, says = REFUSED[case]
    for ask in (fitted.predict, fitted.table, fitted.predict_proba):
        with pytest.raises(DebgcdError, match=says):
            ask(given)


def test_labels_may_be_a_column(tmp_path: Path, paths: list[Path]) -> None:
    table = pandas.DataFrame({"path": paths, "label": [1.0, 2.0, 1.0, 2.0] + [None] * 12})
    found = new(tmp_path, method="kmeans", overrides=PLAIN)
    with pytest.raises(UsageError, match="y is a table with 2 columns"):
        found.fit(table["path"], table)
    assert found.fit(table["path"], table["label"]).classes_[:2].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("k", "times"), [("auto", 1), ("2x", 2), (None, 1)])
def test_k_as_on_the_command_line(k: str | None, times: int, paths: list[Path]) -> None:
    config = Discoverer(k, preset="small")._config(from_paths(paths, LABELS))
    assert (config.k, config.k_times) == (None, times)


def test_a_backbone_as_on_the_command_line(paths: list[Path]) -> None:
    given = from_paths(paths, LABELS)
    for name in ("dino", "dinov2"):
        assert Discoverer(preset="small", backbone=name)._config(given) == compose("small", None, name)
    assert Discoverer(preset="small", backbone=Path("/a/folder"))._config(given).backbone.name == "/a/folder"


def test_save_and_load_give_the_same_answers(tmp_path: Path, fitted: Discoverer, paths: list[Path]) -> None:
    fitted.save(tmp_path / "model")
    loaded = Discoverer.load(tmp_path / "model", cache=tmp_path / "cache")
    np.testing.assert_array_equal(loaded.predict(paths), fitted.predict(paths))
    np.testing.assert_array_equal(loaded.transform(paths), fitted.transform(paths))
    np.testing.assert_array_equal(loaded.novelty(paths), fitted.novelty(paths))
    assert loaded.categories_ == fitted.categories_
    assert (loaded.k, loaded.method, loaded.preset, loaded.seed) == (K, "debgcd", "small", 0)
    run = Discoverer.load(fitted.run_.folder, cache=tmp_path / "cache")
    np.testing.assert_array_equal(run.predict(paths), fitted.predict(paths))
    with pytest.raises(UsageError, match="not empty"):
        fitted.save(tmp_path / "model")


def test_a_file_that_cannot_be_used_gets_minus_one_and_a_warning(
    fitted: Discoverer, folder: Path, paths: list[Path]
) -> None:
    asked = [paths[0], folder / "broken.png", paths[1], folder / "absent.png"]
    with pytest.warns(UserWarning, match=r"2 of 4 images cannot be used, e\.g\. .*broken\.png: not-an-image"):
        categories = fitted.predict(asked)
    assert categories.tolist() == [fitted.labels_[0], -1, fitted.labels_[1], -1]
    with pytest.warns(UserWarning, match="2 of 4"):
        features = fitted.transform(asked)
    assert np.isnan(features[[1, 3]]).all()
    assert np.isfinite(features[[0, 2]]).all()
    with pytest.warns(UserWarning, match="2 of 4"):
        assert np.isnan(fitted.novelty(asked)).tolist() == [False, True, False, True]
    assert [row["path"] for row in fitted.table(asked)] == [str(paths[0]), str(paths[1])]


def test_no_usable_file_at_all(fitted: Discoverer, folder: Path) -> None:
    for ask, shape in ((fitted.predict, (1,)), (fitted.novelty, (1,)), (fitted.transform, (1, WIDTH))):
        with pytest.warns(UserWarning, match="1 of 1 images cannot be used"):
            answer = ask([folder / "broken.png"])
        assert answer.shape == shape
        assert (answer == -1).all() or np.isnan(answer).all()
    with pytest.raises(DataError, match="no images"):
        fitted.predict([])


def test_a_file_asked_for_twice_or_by_a_link_is_answered_twice(
    fitted: Discoverer, folder: Path, paths: list[Path]
) -> None:
    asked = [paths[0], paths[3], paths[0], folder / "link.png", folder / ".." / folder.name / "03.png"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = fitted.transform(asked)
    for i, j in ((0, 2), (0, 3), (1, 4)):
        np.testing.assert_array_equal(answer[i], answer[j])
    assert np.isfinite(answer).all()
    assert not np.array_equal(answer[0], answer[1])


def test_before_fit_there_is_nothing_to_ask(tmp_path: Path, paths: list[Path]) -> None:
    empty = new(tmp_path)
    for ask in (empty.predict, empty.transform, empty.novelty, empty.table):
        with pytest.raises(UsageError, match="no model yet; call fit"):
            ask(paths)
    with pytest.raises(UsageError, match="no model yet"):
        empty.save(tmp_path / "model")
    with pytest.raises(UsageError, match="no model yet"):
        _ = empty.categories_


def test_a_fitted_one_shows_its_categories(fitted: Discoverer, tmp_path: Path) -> None:
    """As text K and the names; in a notebook a row per category with pictures; a model without its run has the text."""
    text = repr(fitted)
    assert text.startswith("Discoverer(") and text.endswith("4 categories: 2 known (ant, cat), 2 new (new-01, new-02)")
    page = fitted._repr_mimebundle_()["text/html"]
    used = {fitted.categories_[label].name for label in fitted.labels_[4:]}
    assert all(f"<td>{name}</td>" in page for name in used) and page.count("<img") == len(LABELS) - 4
    fitted.save(tmp_path / "model")
    alone = Discoverer.load(tmp_path / "model")
    assert "2 new (new-01, new-02)" in repr(alone) and "<img" not in alone._repr_mimebundle_()["text/html"]
    with pytest.raises(UsageError, match="a report needs a run"):
        alone.report()


def test_the_report_is_shown_in_a_frame(fitted: Discoverer) -> None:
    page = fitted.report()
    assert Path(page) == fitted.run_.report and "categories: 2 known classes and 2 new" in Path(page).read_text("utf-8")
    frame = page._repr_html_()
    assert frame.startswith('<iframe srcdoc="') and 'sandbox="allow-scripts"' in frame and frame.count('"') == 6


def test_a_table_in_and_a_table_out(tmp_path: Path, paths: list[Path], folder: Path, capsys: Any) -> None:
    """Columns path, label and group; the answers have the rows and the index of what was asked, also of a broken file."""
    given = pandas.DataFrame({"path": paths, "label": LABELS, "group": [None] * 15 + ["burst"], "site": "A"})
    capsys.readouterr()
    found = new(tmp_path, verbose=False)
    labels = found.fit_predict(given)
    assert capsys.readouterr() == ("", "")
    assert (labels == found.labels_).all() and list(found.classes_[:2]) == ["ant", "cat"]
    assert found.run_.manifest.groups[-1] == "burst"
    asked = pandas.DataFrame({"path": [paths[3], folder / "broken.png", paths[0], paths[3]]}, index=[7, 5, 3, 1])
    with pytest.warns(UserWarning, match="1 of 4 images cannot be used"):
        answers = found.frame(asked)
    assert answers.index.tolist() == [7, 5, 3, 1] and answers["path"].isna().tolist() == [False, True, False, False]
    assert answers.loc[7].tolist() == answers.loc[1].tolist() and answers["category"].loc[3] == labels[0]
    features = found.set_output(transform="pandas").transform(asked.drop(5))
    assert features.shape == (3, WIDTH) and features.columns[0] == "discoverer0"
    with pytest.raises(UsageError, match="y is missing"):
        new(tmp_path / "other").fit(given.drop(columns="label"))


def test_k_means_has_no_novelty(tmp_path: Path, paths: list[Path]) -> None:
    found = new(tmp_path, method="kmeans", overrides=PLAIN).fit(paths, LABELS)
    assert found.predict(paths).max() < K
    with pytest.raises(UsageError, match="kmeans has no novelty detector"):
        found.novelty(paths)


def test_parameters_are_scikit_learns() -> None:
    found = Discoverer(7, method="simgcd", seed=3, overrides=SETTINGS)
    assert found.get_params() == {
        "k": 7,
        "method": "simgcd",
        "preset": None,
        "backbone": None,
        "seed": 3,
        "run": None,
        "cache": None,
        "quality": None,
        "overrides": SETTINGS,
        "verbose": True,
    }
    copy = clone(found)
    assert copy is not found
    assert copy.get_params() == found.get_params()
    assert copy.set_params(k=9).k == 9
    assert "k=7" in repr(found)


def test_fit_does_not_change_its_parameters(fitted: Discoverer) -> None:
    """scikit-learn's clone of a fitted one is an unfitted one with the same parameters."""
    assert fitted.overrides == SETTINGS
    with pytest.raises(UsageError, match="no model yet"):
        _ = clone(fitted).categories_


@pytest.mark.parametrize(
    ("values", "labels", "error", "says"),
    [
        ({"k": 1}, LABELS, UsageError, "K is 1, but the labels name M = 2"),
        ({"k": 99}, LABELS, UsageError, "only 16 training images"),
        ({"k": "3"}, LABELS, UsageError, "k must be a whole number, 'auto', or a factor such as '2x', not '3'"),
        ({"k": "many"}, LABELS, UsageError, "not 'many'"),
        ({"k": 2.5}, LABELS, UsageError, r"k must be a whole number, not 2\.5"),
        ({"seed": "x"}, LABELS, UsageError, "seed must be a whole number, not 'x'"),
        ({"overrides": 3}, LABELS, UsageError, "overrides must be a mapping"),
        ({"backbone": "dino"}, LABELS, UsageError, "give backbone as an argument of its own"),
        ({"method": "deb"}, LABELS, UsageError, "no method 'deb'"),
        ({"preset": "big"}, LABELS, UsageError, "no preset 'big'"),
        ({"overrides": {"method": "gcd"}}, LABELS, UsageError, "give method as an argument of its own"),
        ({"overrides": {"shedule": {}}}, LABELS, UsageError, "Discoverer: unknown key 'shedule'"),
        ({}, [None] * 16, DataError, "no training image has a label"),
        ({}, ["a"] * 16, DataError, "nothing to discover"),
        ({}, ["a"], UsageError, "labels has 1 entries for 16 images"),
    ],
)
def test_what_fit_refuses(
    tmp_path: Path, paths: list[Path], values: dict[str, Any], labels: list, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        new(tmp_path).set_params(**values).fit(paths, labels)


def test_a_run_directory_that_is_not_empty_is_refused(tmp_path: Path, paths: list[Path]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="not empty"):
        new(tmp_path, run=tmp_path / "run").fit(paths, LABELS)
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_the_package_offers_it() -> None:
    assert debgcd.Discoverer is Discoverer
    with pytest.raises(AttributeError, match="no attribute 'Discover'"):
        _ = debgcd.Discover


def test_two_threads_that_fit_one_folder(tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's locks are of a process; still, one thread goes on and the other is refused in words."""
    both, ended, original = threading.Barrier(2), threading.Event(), discoverer.require_new

    def at_once(folder: Path) -> None:
        original(folder)
        both.wait(30)

    work = discoverer.train_locked

    def slow(*words: Any) -> Any:
        assert ended.wait(30)  # until the other thread was refused
        return work(*words)

    monkeypatch.setattr(discoverer, "require_new", at_once)
    monkeypatch.setattr(discoverer, "train_locked", slow)
    found: list[object] = []

    def fit() -> None:
        try:
            found.append(new(tmp_path, run=tmp_path / "run", method="kmeans", overrides=PLAIN).fit(paths, LABELS))
        except Exception as error:
            found.append(error)
            ended.set()

    threads = [threading.Thread(target=fit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    refused, fitted = sorted(found, key=lambda one: isinstance(one, Discoverer))
    assert isinstance(fitted, Discoverer) and isinstance(refused, UsageError), found
    assert "another process is working on the run" in str(refused)


FORKED = """
import os, sys
import torch
from debgcd import Discoverer, discoverer
torch.set_num_threads(int(sys.argv[1]))
discoverer = Discoverer.load(sys.argv[2])
discoverer.predict(sys.argv[3:])
if not os.fork():
    try:
        print("child:", discoverer.predict(sys.argv[3:]).tolist(), flush=True)
    except Exception as error:
        print("child:", type(error).__name__, error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(("threads", "says"), [(2, "UsageError this process is a fork of one that has"), (1, "[")])
def test_a_fork_of_a_process_that_has_computed(
    fitted: Discoverer, paths: list[Path], tmp_path: Path, threads: int, says: str
) -> None:
    """PyTorch's threads are not in it, so that it would wait for ever: with several it is refused."""
    fitted.save(tmp_path / "model")
    words = [sys.executable, "-c", FORKED, str(threads), str(tmp_path / "model"), *map(str, paths[:4])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith(f"child: {says}"), done.stderr
