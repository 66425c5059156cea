"""What a run is said to know of itself: no number that its labels cannot carry, and no praise beside a large error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from debgcd.cluster.estimate_k import Estimate
from debgcd.novelty.base import NoveltyThreshold
from debgcd.report.summary import (
    course_of_training,
    errors_of_looks_new,
    next_steps,
    number_of_categories,
    read_estimate,
    summary,
)
from debgcd.review.log import reviewed_predictions
from debgcd.run.categories import categories
from debgcd.run.directory import Run

ROWS = [{"looks_new": i < 3} for i in range(10)]
HEALTHY = {"healthy": True, "problem": None, "kept_step": None}


def test_the_number_of_categories_and_where_it_comes_from() -> None:
    found = categories(["cat", "dog"], 5)
    assert number_of_categories(found, None) == "5 categories: 2 known classes and 3 new. Their number was given."
    estimate = Estimate(6, 4, 9, "consensus", {}, {}, 1.0)
    assert "that of the run before" in number_of_categories(found, None, continued=True)
    assert "estimate was 6 (90 % interval 4 to 9)." in number_of_categories(found, estimate)
    assert "interval 4 to 9), and 2 times that were asked for." in number_of_categories(found, estimate, 2)
    found[2] = replace(found[2], name="lynx")
    found[4] = replace(found[4], name="lynx", merged_into="new-01")
    text = number_of_categories(found, estimate)
    assert text.startswith("4 categories: 2 known classes and 2 new.") and "review: new-03 into lynx." in text


def test_errors_are_stated_only_where_labels_tell() -> None:
    (line,) = errors_of_looks_new(ROWS, NoveltyThreshold(0.5, 0.001, 0.2))
    assert line == "3 of 10 images look new (expected errors: under 1 % of the known images, 20 % of the new ones)."
    (line,) = errors_of_looks_new(ROWS, NoveltyThreshold(0.5, None))
    assert line == "3 of 10 images look new; there are too few labels to tell how often that is wrong."
    (line,) = errors_of_looks_new(ROWS, NoveltyThreshold(0.5, 0.05, 0.36))
    assert line.endswith("36 % of the new ones). That is too often to rely on.")
    (line,) = errors_of_looks_new(ROWS, NoveltyThreshold(0.5, 0.05))
    assert "5 % of the known images, not known for new ones" in line
    assert (
        errors_of_looks_new([{"looks_new": None}], NoveltyThreshold(0.5, 0.05)) == errors_of_looks_new(ROWS, None) == []
    )


def test_normal_training_is_no_claim_about_the_result() -> None:
    assert course_of_training(HEALTHY, measured=True) == ["Training behaved normally."]
    normal, unknown = course_of_training(HEALTHY, measured=False)
    assert normal == "Training behaved normally." and unknown.startswith(
        "Whether the categories are right is not known"
    )
    failed = {"healthy": False, "problem": "it went wrong", "kept_step": 0, "labels": ["the labels contradict"]}
    lines = course_of_training(failed, measured=True)
    assert lines[:2] == ["Warning: the labels contradict.", "Warning: in training, it went wrong."]
    assert lines[2] == "The model is that of step 0, the best seen." and len(lines) == 3
    assert course_of_training(None, measured=True) == []


def test_what_to_do_next_comes_with_a_command_that_a_shell_reads() -> None:
    rows = [{"review": "open"}]
    assert [words for _, words in next_steps(Path("a b"), rows)] == [
        "debgcd review 'a b'",
        "debgcd predict 'a b' PATH -o out.csv",
    ]
    assert "debgcd train --from run" in [words for _, words in next_steps(Path("run"), [{"review": "accepted"}])]


def test_a_damaged_estimate_costs_nothing_but_itself(run: Run, tmp_path: Path) -> None:
    rows, found = reviewed_predictions(run.folder)
    assert summary(run, rows, found)[0].endswith("Their number was given.")
    other = replace(run, folder=tmp_path)
    for text in ("{", "[]", '{"k": 3}'):
        (tmp_path / "estimate.json").write_text(text)
        assert read_estimate(other) is None
