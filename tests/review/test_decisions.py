"""The log of a review and its replay: what a reviewer relies on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from reviewed import base, write_run

from debgcd.errors import DataError, UsageError
from debgcd.review.log import LOG, Log, carry, read_log, read_review
from debgcd.review.replay import Review, replay
from debgcd.review.state import ACCEPTED, OPEN, REJECTED
from debgcd.run.categories import read_categories

State = tuple[dict[str, str], dict[str, str], dict[str, Any]]


def state(review: Review) -> State:
    return dict(review.category), dict(review.mark), dict(review.categories)


class Acts(RuleBasedStateMachine):
    """Any acts, valid or not, in any order; those that apply are kept."""

    @initialize()
    def begin(self) -> None:
        self.review = Review(*base())
        self.lines: list[dict[str, Any]] = []
        self.on: list[dict[str, Any]] = []  # by the dullest of rules: acts that count, in the order of the log

    def do(self, **values: Any) -> bool:
        line = json.loads(json.dumps({**values, "id": f"{len(self.lines):012x}"}))
        before = state(self.review)
        try:
            self.review.apply(line)
        except UsageError:
            assert state(self.review) == before  # refused: as if it had not been tried
            return False
        self.lines.append(line)
        return True

    def keep(self, **values: Any) -> None:
        if self.do(**values):
            self.on.append(self.lines[-1])

    any_image = st.lists(st.sampled_from(list(base()[0])), min_size=1, max_size=5)
    any_id = st.sampled_from(["ant", "bee", "new-01", "new-02", "new-03", "new-04", "new-05", "nix"])

    @rule(category=any_id, name=st.sampled_from(["", "fox", "lynx", "ant", "new-02", " elk "]))
    def name(self, category: str, name: str) -> None:
        self.keep(act="name", category=category, name=name)

    @rule(categories=st.lists(any_id, min_size=1, max_size=3), into=any_id)
    def merge(self, categories: list[str], into: str) -> None:
        self.keep(act="merge", categories=categories, into=into)

    @rule(images=any_image, to=any_id)
    def move(self, images: list[str], to: str) -> None:
        self.keep(act="move", images=images, to=to)

    @rule(category=any_id, data=st.data())
    def split(self, category: str, data: st.DataObject) -> None:
        members = self.review.members(category)
        if members:
            part = data.draw(st.lists(st.sampled_from(members), min_size=1, max_size=4))
            self.keep(act="split", category=category, parts={self.review.next_id(): part})

    @rule(kind=st.sampled_from(["accept", "reject", "reopen"]), images=any_image)
    def judge_images(self, kind: str, images: list[str]) -> None:
        self.keep(act=kind, images=images)

    @rule(kind=st.sampled_from(["accept", "reject", "reopen"]), category=any_id)
    def judge_category(self, kind: str, category: str) -> None:
        self.keep(act=kind, categories=[category])

    @rule()
    def undo(self) -> None:
        of = self.review.can_undo
        if of is not None and self.do(act="undo", of=of):
            assert self.on[-1]["id"] == of
            self.on.pop()

    @rule()
    def redo(self) -> None:
        of = self.review.can_redo
        if of is not None:
            assert self.do(act="redo", of=of)
            self.on.append(next(line for line in self.lines if line["id"] == of))

    @invariant()
    def each_image_is_in_one_living_category(self) -> None:
        if not hasattr(self, "review"):
            return
        assert list(self.review.category) == self.review.images == list(base()[0])
        for id, one in self.review.categories.items():
            assert one.images == len(self.review.members(id)), id
            assert one.merged_into is None or not one.images
            assert one.merged_into is None or not one.known
        names = [one.name for one in self.review.categories.values() if one.merged_into is None]
        assert len(set(names)) == len(names)

    @invariant()
    def the_state_is_that_of_the_acts_that_count(self) -> None:
        if hasattr(self, "review"):
            assert state(replay(*base(), self.on)) == state(self.review)

    def teardown(self) -> None:
        if not hasattr(self, "review"):
            return
        last = state(self.review)
        assert state(replay(*base(), self.lines)) == last
        for end in range(len(self.lines)):
            assert not replay(*base(), self.lines[:end]).problems
        count = len(self.on)
        while self.review.can_undo:
            assert self.do(act="undo", of=self.review.can_undo)
        assert state(self.review) == state(Review(*base()))
        for _ in range(count):
            assert self.do(act="redo", of=self.review.can_redo)
        assert state(self.review) == last
        assert state(replay(*base(), self.lines)) == last


TestActs = Acts.TestCase
TestActs.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def act(id: str, **values: Any) -> dict[str, Any]:
    return {**values, "id": id}


def test_what_each_act_does() -> None:
    review = Review(*base())
    review.apply(act("1", act="name", category="new-01", name=" fox "))
    review.apply(act("2", act="merge", categories=["new-02"], into="new-01"))
    assert review.categories["new-01"].name == "fox" and review.categories["new-01"].images == 4
    assert review.categories["new-02"].merged_into == "new-01" and review.living("new-02").name == "fox"
    assert review.status("p03.png") == ACCEPTED and review.status("p04.png") == OPEN
    review.apply(act("3", act="move", images=["p00.png", "p04.png"], to="new-04"))
    assert review.members("new-04") == ["p00.png", "p04.png"] and review.status("p04.png") == ACCEPTED
    review.apply(act("4", act="merge", categories=["new-03"], into="ant"))
    assert review.status("p09.png") == ACCEPTED and review.status("p05.png") == OPEN  # what was in it is not looked at
    review.apply(act("5", act="split", category="ant", parts={"new-05": ["p09.png"]}))
    review.apply(act("6", act="reject", categories=["new-05"]))
    review.apply(act("7", act="reject", images=["p01.png"]))
    assert review.status("p09.png") == review.status("p01.png") == REJECTED and review.status("p06.png") == OPEN
    assert review.reviewed == 4 + 2 + 1 + 1
    review.apply(act("8", act="name", category="bee", name="wasp"))
    assert review.categories["bee"].name == "wasp" and review.status("p06.png") == OPEN


REFUSED = {
    "an unknown category": ({"act": "name", "category": "new-3", "name": "fox"}, "did you mean 'new-03'"),
    "a name that is taken": ({"act": "name", "category": "new-02", "name": "fox"}, "merge new-02 into new-01"),
    "the name of a class": ({"act": "name", "category": "new-02", "name": "ant"}, "merge new-02 into ant"),
    "a name like an id": ({"act": "name", "category": "new-02", "name": "new-77"}, "looks like an id"),
    "two lines": ({"act": "name", "category": "new-02", "name": "a\nb"}, "one line"),
    "a known class merged away": ({"act": "merge", "categories": ["ant"], "into": "new-01"}, "merge new-01 into it"),
    "merged with itself": ({"act": "merge", "categories": ["new-01"], "into": "new-01"}, "besides"),
    "an unknown image": ({"act": "move", "images": ["x.png"], "to": "ant"}, "no image 'x.png'"),
    "a new id that is no id": ({"act": "move", "images": ["p00.png"], "to": "elk"}, "such as new-04"),
    "a part of another": ({"act": "split", "category": "ant", "parts": {"new-04": ["p01.png"]}}, "is in bee"),
    "a rejected class": ({"act": "reject", "categories": ["ant"]}, "known class"),
    "neither": ({"act": "accept"}, "needs images or categories"),
    "an unknown act": ({"act": "mrege"}, "did you mean 'merge'"),
    "no texts": ({"act": "accept", "images": [7]}, "list of texts"),
    "an undo of nothing": ({"act": "undo", "of": "nix"}, "no act 'nix'"),
    "an undo of a list": ({"act": "undo", "of": []}, "no act"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_act_that_does_not_apply_says_why_and_changes_nothing(case: str) -> None:
    values, says = REFUSED[case]
    review = replay(*base(), [act("1", act="name", category="new-01", name="fox")])
    before = state(review)
    with pytest.raises(UsageError, match=says):
        review.apply(act("2", **values))
    assert state(review) == before
    review.take(act("2", **values))  # in a log it is kept and reported
    assert says.split()[-1] in review.problems["2"] and state(review) == before


def test_an_id_never_means_two_things() -> None:
    """Also where the act it began with is undone, and where two logs that took the same id are merged."""
    first = act("a", act="split", category="ant", parts={"new-04": ["p00.png"]})
    review = replay(*base(), [first, act("b", act="undo", of="a")])
    assert review.next_id() == "new-05"
    with pytest.raises(UsageError, match="is or was another category"):
        review.apply(act("c", act="move", images=["p01.png"], to="new-04"))
    merged = replay(*base(), [first, act("d", act="move", images=["p01.png"], to="new-04", begins=True)])
    assert list(merged.problems) == ["d"] and merged.members("new-04") == ["p00.png"]


def test_an_undo_in_the_middle_is_a_replay_without_that_act() -> None:
    lines = [
        act("a", act="move", images=["p00.png"], to="new-04"),
        act("b", act="name", category="new-04", name="elk"),
        act("c", act="name", category="new-01", name="fox"),
    ]
    review = replay(*base(), [*lines, act("d", act="undo", of="a")])
    assert "b" in review.problems and "new-04" not in review.categories and review.categories["new-01"].name == "fox"
    review.apply(act("e", act="redo", of="a"))
    assert state(review) == state(replay(*base(), lines)) and not review.problems


def test_acts_are_saved_and_names_reach_the_model(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with Log(run) as log:
        line = log.act({"act": "name", "category": "new-03", "name": "Bär"})
        assert json.loads((run / LOG).read_text("utf-8")) == line and "Bär" in (run / LOG).read_text("utf-8")
        log.act({"act": "merge", "categories": ["new-01"], "into": "new-03"})
        found = read_categories(run / "model", 2)
        assert [(one.name, one.merged_into) for one in found[2:]] == [
            ("Bär", "new-03"),
            ("new-02", None),
            ("Bär", None),
        ]
        log.undo()
        assert read_categories(run / "model", 2)[2].merged_into is None
        log.redo()
        with pytest.raises(UsageError, match="nothing to redo"):
            log.redo()
        with pytest.raises(UsageError):
            log.act({"act": "name", "category": "nix", "name": "x"})
        assert log.review.version == len(read_log(run / LOG)[0]) == 4
    assert state(read_review(run)) == state(log.review)


def test_names_from_before_the_log_are_kept_and_not_undone(tmp_path: Path) -> None:
    """Of a run that began from a reviewed one, or edited by hand."""
    run = write_run(tmp_path / "run")
    place = run / "model" / "categories.json"
    place.write_text(place.read_text().replace('"name": "new-02"', '"name": "lynx"'))
    assert read_review(run).categories["new-02"].name == "lynx"
    with Log(run) as log:
        assert log.review.categories["new-02"].name == "lynx" and not log.review.can_undo
    with Log(run) as log:
        log.act({"act": "name", "category": "new-01", "name": "fox"})
        log.undo()
    assert [one.name for one in read_categories(run / "model", 2)[2:]] == ["new-01", "lynx", "new-03"]


def test_a_torn_last_line_is_ignored_and_removed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with Log(run) as log:
        log.act({"act": "name", "category": "new-01", "name": "fox"})
        whole = (run / LOG).read_bytes()
        log.act({"act": "name", "category": "new-02", "name": "elk"})
    full = (run / LOG).read_bytes()
    for end in range(len(whole) + 1, len(full) - 1):
        (run / LOG).write_bytes(full[:end])
        assert read_review(run).categories["new-02"].name == "new-02"
    carry(run)
    assert read_categories(run / "model", 2)[3].name == "new-02"
    with Log(run) as log:
        log.act({"act": "name", "category": "new-03", "name": "owl"})
    assert (run / LOG).read_bytes().startswith(whole) and len(read_log(run / LOG)[0]) == 2
    (run / LOG).write_bytes(full.removesuffix(b"\n"))  # whole, as an editor may leave it
    with Log(run) as log:
        log.act({"act": "name", "category": "new-03", "name": "owl"})
    assert len(read_log(run / LOG)[0]) == 3


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / LOG).write_text('{"act": "name", "id": "a"}\n<<<<<<< HEAD\n')
    with pytest.raises(DataError, match="line 2, is not an act"):
        read_review(run)


def test_two_logs_become_one(tmp_path: Path) -> None:
    mine, other = write_run(tmp_path / "mine"), write_run(tmp_path / "other")
    with Log(mine) as log, Log(other) as colleague:
        log.act({"act": "name", "category": "new-01", "name": "fox"})
        colleague.act({"act": "name", "category": "new-01", "name": "vixen"})
        colleague.act({"act": "name", "category": "new-02", "name": "fox"})
        assert len(log.add(other / LOG)) == 2
        assert log.add(other / LOG) == []  # seen
        assert log.review.categories["new-01"].name == "vixen"
        assert log.review.categories["new-02"].name == "fox" and not log.review.problems
        with pytest.raises(UsageError, match="there is no log"):
            log.add(tmp_path / "nix")
    assert state(read_review(mine)) == state(log.review)


def test_a_second_process_is_refused_and_a_changed_file_is_noticed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with Log(run) as log:
        code = f"from pathlib import Path; from debgcd.review.log import Log\nwith Log(Path({str(run)!r})): pass"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert other.returncode and "another process is reviewing the run" in other.stderr
        with open(run / LOG, "a") as file:
            file.write("\n")
        with pytest.raises(UsageError, match="changed by another program"):
            log.act({"act": "name", "category": "new-01", "name": "fox"})


def test_a_full_disk_leaves_no_half_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run")
    with Log(run) as log:
        log.act({"act": "name", "category": "new-01", "name": "fox"})
        before = (run / LOG).read_bytes()

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space left"):
                log.act({"act": "name", "category": "new-02", "name": "elk"})
        assert (run / LOG).read_bytes() == before and log.review.version == 1
        log.act({"act": "name", "category": "new-02", "name": "elk"})


ACTING = """
import sys
from pathlib import Path
from debgcd.review.log import Log
with Log(Path(sys.argv[1])) as log:
    for i in range(10**6):
        print(log.act({"act": "name", "category": "new-01", "name": f"fox {i}"})["id"], flush=True)
"""


def test_a_kill_loses_no_act_that_was_confirmed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    confirmed: list[str] = []
    for acts in (1, 7, 20):
        process = subprocess.Popen([sys.executable, "-c", ACTING, str(run)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        confirmed += [process.stdout.readline().strip() for _ in range(acts)]
        os.kill(process.pid, signal.SIGKILL)
        confirmed += process.stdout.read().split()
        process.wait()
        found = [line["id"] for line in read_log(run / LOG)[0]]
        assert set(confirmed) <= set(found) and len(found) <= len(confirmed) + 3
        assert read_review(run).categories["new-01"].name.startswith("fox")


def test_what_is_opened_again_stays_open_until_its_category_is_accepted_again() -> None:
    review = replay(*base(), [])
    images = review.members("new-01")
    review.apply({"act": "name", "category": "new-01", "name": "lynx", "id": "1"})
    review.apply({"act": "reopen", "images": images[:1], "id": "2"})
    assert [review.status(image) for image in images[:2]] == ["open", "accepted"]
    review.apply({"act": "name", "category": "new-01", "name": "bobcat", "id": "3"})
    assert review.status(images[0]) == "open"
    review.apply({"act": "accept", "categories": ["new-01"], "id": "4"})
    assert review.status(images[0]) == "accepted"
    review.apply({"act": "undo", "of": "4", "id": "5"})
    assert review.status(images[0]) == "open"


def test_a_corrected_label_follows_its_category_and_can_be_taken_back() -> None:
    review = replay(*base(), [])
    review.apply({"act": "label", "images": ["l1.png", "l2.png"], "to": "bee", "id": "1"})
    review.apply({"act": "label", "images": ["l3.png"], "to": "new-01", "id": "2"})
    review.apply({"act": "label", "images": ["l2.png"], "to": None, "id": "3"})
    assert review.corrected() == {"l1.png": "bee", "l2.png": None, "l3.png": "new-01"}
    review.apply({"act": "merge", "categories": ["new-01"], "into": "ant", "id": "4"})
    assert review.corrected()["l3.png"] == "ant"
    review.apply({"act": "undo", "of": "3", "id": "5"})
    review.apply({"act": "undo", "of": "1", "id": "6"})
    assert review.corrected() == {"l3.png": "ant"}
    review.apply({"act": "reject", "categories": ["new-02"], "id": "7"})
    for wrong in (
        {"images": ["p00.png"], "to": "bee"},
        {"images": ["l1.png"], "to": "new-02"},
        {"images": [], "to": None},
    ):
        with pytest.raises(UsageError):
            review.apply({"act": "label", **wrong, "id": "8"})


def test_an_act_is_saved_though_the_model_cannot_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is the truth: what is derived from it comes later, and until then that is said."""
    run = write_run(tmp_path / "run")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "categories.json")

    with Log(run) as log:
        with monkeypatch.context() as patch:
            patch.setattr("debgcd.review.log.write_json", full)
            line = log.act({"act": "name", "category": "new-01", "name": "fox"})
            assert "decisions.jsonl has every act" in log.behind and "No space left" in log.behind
        assert [line] == read_log(run / LOG)[0] and log.review.categories["new-01"].name == "fox"
        assert read_categories(run / "model", 2)[2].name == "new-01"
        log.act({"act": "name", "category": "new-02", "name": "elk"})
        assert not log.behind and [one.name for one in read_categories(run / "model", 2)[2:4]] == ["fox", "elk"]
    with monkeypatch.context() as patch, Log(run) as log:
        patch.setattr("debgcd.review.log.write_json", full)
        log.act({"act": "name", "category": "new-03", "name": "owl"})
    carry(run)  # the next command that reads the run
    assert read_categories(run / "model", 2)[4].name == "owl"


@pytest.mark.parametrize("edit", ["other bytes", "another file"])
def test_a_log_of_the_same_size_is_not_the_same(tmp_path: Path, edit: str) -> None:
    run = write_run(tmp_path / "run")
    with Log(run) as log:
        log.act({"act": "name", "category": "new-01", "name": "fox"})
        stamp = os.stat(run / LOG)
        text = (run / LOG).read_text("utf-8")
        if edit == "another file":
            (run / LOG).rename(run / "old")
            (run / LOG).write_text(text, "utf-8")
        else:
            (run / LOG).write_text(text.replace("fox", "cow"), "utf-8")
        os.utime(run / LOG, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        with pytest.raises(UsageError, match="changed by another program"):
            log.act({"act": "name", "category": "new-02", "name": "elk"})


def test_ids_are_near_the_others_and_of_ascii_digits() -> None:
    review = Review(*base())
    for to, says in (
        ("new-999999999", "new-999999999 is more than 10,000 above the largest id; take new-04"),
        ("new-10004", "more than 10,000 above the largest id"),
        ("new-٣٣", "needs an id such as new-04"),
        ("new-0४", "needs an id such as new-04"),
    ):
        with pytest.raises(UsageError, match=says):
            review.apply(act("a", act="move", images=["p00.png"], to=to))
    with pytest.raises(UsageError, match="looks like an id"):
        review.apply(act("a", act="name", category="new-01", name="new-٣٣"))
    review.apply(act("b", act="move", images=["p00.png"], to="new-10003"))
    assert review.next_id() == "new-10004"


def test_an_id_out_of_reach_in_a_log_is_a_problem_and_of_no_consequence() -> None:
    """In whatever order the lines are read, at once or one by one."""
    lines = [
        act("a", act="move", images=["p00.png"], to="new-20000"),
        act("b", act="move", images=["p01.png"], to="new-09999"),
        act("c", act="move", images=["p02.png"], to="new-20000"),
        act("d", act="move", images=["p03.png"], to="new-999999999"),
        act("e", act="undo", of="b"),
        act("f", act="undo", of="zzz"),
    ]
    at_once, one_by_one = replay(*base(), lines), Review(*base())
    for line in lines:
        one_by_one.take(line)
    assert state(at_once) == state(one_by_one) and at_once.problems == one_by_one.problems
    assert set(at_once.problems) == {"a", "c", "d", "f"} and at_once.next_id() == "new-10000"


def test_a_split_has_few_parts() -> None:
    review = Review(*base(40_000))
    members = review.members("ant")
    parts = {f"new-{number}": [image] for number, image in enumerate(members, 10)}
    with pytest.raises(UsageError, match="can be split into 100 parts at once, not 8000"):
        review.apply(act("a", act="split", category="ant", parts=parts))
    with pytest.raises(UsageError, match="can be split into 100 parts at once, not 40000"):
        review.lines({"act": "split", "category": "ant", "parts": [[0]] * 40_000}, lambda asked: [])
    review.apply(act("b", act="split", category="ant", parts=dict(list(parts.items())[:100])))


def test_a_log_of_undos_is_replayed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each act is computed at most once or twice however often it was undone, and all lines are flushed together."""
    acts = [act(f"a{i}", act="accept", images=[f"p{i % 12:02d}.png"]) for i in range(30)]
    turns = [act(f"{kind}{i}", act=kind, of="a3") for i in range(500) for kind in ("undo", "redo")]
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(line) + "\n" for line in [*acts, *turns]), "utf-8")
    changes, flushes, change, fsync = [], [], Review.change, os.fsync
    monkeypatch.setattr(Review, "change", lambda self, line: changes.append(line["id"]) or change(self, line))
    monkeypatch.setattr(os, "fsync", lambda file: flushes.append(file) or fsync(file))
    with Log(write_run(tmp_path / "run")) as log:
        flushes.clear()
        assert len(log.add(other)) == 1030
        assert log.review.version == 1030 and not log.review.problems
    assert len(changes) == 30 and len(flushes) <= 2
