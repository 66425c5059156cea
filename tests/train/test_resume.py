"""What `resume` finds: nothing yet, everything, half of it, damaged files, another process; and what stops a run."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import at_call, debgcd, logged_steps, result, sha256
from safetensors.torch import load_file
from tiers import tiered

from debgcd.config.schedules import Progress
from debgcd.errors import UsageError
from debgcd.methods.base import Batch, Loss
from debgcd.methods.debgcd import DebGCD
from debgcd.model.network import Network
from debgcd.model.optimiser import SGD
from debgcd.run.directory import require_new
from debgcd.system.files import lock

Train = Callable[..., Any]
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def stopped(shared_folder: Path, arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps that was killed after the seventh; its newest checkpoints are of steps 3 and 6."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    hook = at_call("debgcd.train.callbacks.Metrics.write", 7, after=True)
    assert debgcd(arguments(shared_folder, run), run.parent / "log", hook) == -signal.SIGKILL
    return run


@pytest.fixture(scope="module")
def whole(shared_folder: Path, arguments: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, not killed: not to be changed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert debgcd(arguments(shared_folder, run), run.parent / "log") == 0
    return run


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run, to be damaged."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def test_resume_before_the_first_checkpoint(command: Command, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.yaml", "manifest.csv", "images.sha256"):
        shutil.copy(whole / name, run / name)
    assert command("resume", run, "--no-report").code == 0
    assert result(run) == result(whole)


def test_resume_of_a_finished_run_changes_nothing(command: Command, whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    said = command("resume", whole, "--no-report")
    assert said.code == 0 and "has already finished" in said.out and str(whole / "predictions.csv") in said.out
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_each_step_is_logged_once(command: Command, run: Path, whole: Path) -> None:
    assert logged_steps(run) == [1, 2, 3, 4, 5, 6, 7]
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 8, "lo')  # cut short
    assert command("resume", run, "--no-report").code == 0
    assert logged_steps(run) == logged_steps(whole) == list(range(1, 13))
    logs = [(folder / "metrics.jsonl").read_text("utf-8").splitlines() for folder in (run, whole)]
    assert [json.loads(line)["loss"] for line in logs[0]] == [json.loads(line)["loss"] for line in logs[1]]


@pytest.mark.parametrize("line", [b'{"step": 7, "loss": 1\xff}', b"[" * 100_000, b'{"step": "7"}', b"7", b"\xff\xfe"])
def test_metrics_are_cut_at_a_damaged_line(command: Command, run: Path, line: bytes) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines()
    lines[4] = line
    (run / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert command("resume", run, "--no-report").code == 0
    assert logged_steps(run) == [1, 2, 3, 4, 7, 8, 9, 10, 11, 12]  # from the checkpoint of step 6


KEPT = [(1, [12]), (2, [9, 12]), (3, [6, 9, 12]), (9, [3, 6, 9, 12])]


@pytest.mark.parametrize(("keep", "kept"), tiered([KEPT[0], KEPT[3]], KEPT))
def test_the_newest_checkpoints_are_kept(
    train: Train, shared_folder: Path, tmp_path: Path, keep: int, kept: list[int]
) -> None:
    train(shared_folder, tmp_path / "run", "--method", "simgcd", run__keep=keep)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == [f"step-{step:08d}" for step in kept]


def test_retention_after_a_resume(command: Command, run: Path) -> None:
    command("resume", run, "--no-report")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000009", "step-00000012"]


def test_a_second_process_is_refused(command: Command, run: Path, whole: Path, tmp_path: Path) -> None:
    with lock(run):  # this process works on the run; the fork is the second one
        assert debgcd(["resume", run, "--no-report"], tmp_path / "log") == 2
    assert (tmp_path / "log").read_text().splitlines() == [
        f"debgcd: another process is working on the run in {run}; wait for it or stop it"
    ]
    assert command("resume", run, "--no-report").code == 0
    assert result(run) == result(whole)


def test_the_lock_is_held_while_a_run_trains(run: Path, tmp_path: Path) -> None:
    """A second `resume`, begun in the middle of the first one, is refused."""

    def second() -> None:
        (tmp_path / "code").write_text(str(debgcd(["resume", run, "--no-report"], tmp_path / "second")))

    assert (
        debgcd(
            ["resume", run, "--no-report"], tmp_path / "first", at_call("debgcd.model.optimiser.SGD.step", 2, second)
        )
        == 0
    )
    assert (tmp_path / "code").read_text() == "2"
    assert "another process" in (tmp_path / "second").read_text()


# What stops a run by itself


def spoil(monkeypatch: pytest.MonkeyPatch, step: int, change: Callable[[torch.Tensor], torch.Tensor]) -> list[int]:
    """From the given step on, counted from 0, the loss is changed; returns the list of optimiser steps done."""
    original, calls, steps = DebGCD.loss, [0], []

    def loss(self: DebGCD, network: Network, batch: Batch, progress: Progress) -> Loss:
        found = original(self, network, batch, progress)
        calls[0] += 1
        total = change(found.total) if calls[0] > step else found.total
        return Loss(total, found.terms, found.hard_label)

    real = SGD.step
    monkeypatch.setattr(DebGCD, "loss", loss)
    monkeypatch.setattr(SGD, "step", lambda self: (steps.append(1), real(self)))
    return steps


def infinite_gradient(total: torch.Tensor) -> torch.Tensor:
    """The same number, but its slope is that of a square root at zero."""
    return total + (total - total.detach()).clamp_min(0).sqrt()


@pytest.mark.parametrize(
    "change", [lambda total: total * float("nan"), lambda total: total * float("inf"), infinite_gradient]
)
def test_what_is_not_finite_stops_before_the_step(
    train: Train,
    command: Command,
    shared_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: Path,
    change: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        steps = spoil(patch, 7, change)
        said = train(shared_folder, run)
    assert said.code == 1
    assert len(steps) == 7  # the eighth gradient was never used
    failure = json.loads((run / "failure.json").read_text())
    assert failure["step"] == 7 and len(failure["images"]) == 8
    assert math.isfinite(float(failure["terms"]["loss"])) == (change is infinite_gradient)
    assert not math.isfinite(float(failure["terms"]["gradient"]))
    assert all(Path(path).is_file() for path in failure["images"])
    for word in ("loss ", "gradient ", "distillation ", "info_nce ", "debiased_labelled ", failure["images"][0]):
        assert word in said.complaint
    assert str(run / "checkpoints" / "step-00000006") in said.complaint
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000003", "step-00000006"]
    assert not (run / "model").exists() and not (run / "predictions.csv").exists()
    assert logged_steps(run) == list(range(1, 8))
    assert command("resume", run, "--no-report").code == 0  # the cause is gone; nothing that was saved is spoiled
    assert result(run) == result(whole)


def test_a_first_step_that_is_not_finite_names_no_checkpoint(
    train: Train, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = spoil(monkeypatch, 0, lambda total: total * float("nan"))
    said = train(shared_folder, tmp_path / "run")
    assert (said.code, steps) == (1, [])
    assert "none yet" in said.complaint
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_full_disk_at_a_checkpoint(
    train: Train, command: Command, shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    run, real, calls = tmp_path / "run", Path.write_bytes, []

    def full(path: Path, content: bytes) -> int:
        calls.append(path.name)
        if len(calls) == 2:
            real(path, content[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        said = train(shared_folder, run)
    assert said.code == 3
    assert "No space left on device" in said.complaint and f"to continue: debgcd resume {run}" in said.complaint
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000003"]  # the whole one, and no half
    assert command("resume", run, "--no-report").code == 0
    assert result(run) == result(whole)


def test_a_write_that_the_system_refuses_at_a_checkpoint(run: Path, tmp_path: Path, whole: Path) -> None:
    """A real failure, not a simulated one: the system takes no file as large as a checkpoint."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    log = tmp_path / "log"
    assert debgcd(["resume", run, "--no-report"], log, limit) == 3, log.read_text()
    assert f"debgcd resume {run}" in log.read_text() and "Traceback" not in log.read_text()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000003", "step-00000006"]
    assert debgcd(["resume", run, "--no-report"], log) == 0
    assert result(run) == result(whole)


@pytest.mark.parametrize(("bank", "workers"), [("off", 0), ("off", 1), ("on", 0)])
def test_an_image_that_is_gone(
    arguments: Callable[..., list[str]], command: Command, tiny_folder: Path, tmp_path: Path, bank: str, workers: int
) -> None:
    run = tmp_path / "run"
    words = arguments(tiny_folder, run, "--bank", bank, "--workers", workers)
    assert debgcd(words, tmp_path / "log", at_call("debgcd.model.optimiser.SGD.step", 5)) == -signal.SIGKILL
    (tiny_folder / "unlabelled").rename(tmp_path / "moved")
    said = command("resume", run, "--no-report")
    assert said.code == 3 and f"{tiny_folder}/unlabelled/" in said.complaint and "put the file back" in said.complaint


# What may have happened to the files between


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step-00000006"


def rewrite(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


def truncate(name: str, keep: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, keep)


def flip(name: str) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 0x10
        (folder / name).write_bytes(content)

    return work


def as_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no folder")


DAMAGE = {
    "truncated": truncate("state.safetensors", 5000),
    "empty": truncate("state.safetensors", 0),
    "flipped": flip("state.safetensors"),
    "no-tensors": lambda folder: (folder / "state.safetensors").unlink(),
    "no-json": lambda folder: (folder / "state.json").unlink(),
    "empty-json": truncate("state.json", 0),
    "garbage": rewrite("state.json", "\x00\x01{"),
    "not-a-mapping": rewrite("state.json", "[1, 2]"),
    "null": rewrite("state.json", "null"),
    "no-step": rewrite("state.json", '{"sha256": "x"}'),
    "odd-step": rewrite("state.json", '{"step": {}, "sha256": "x"}'),
    "a-file": as_file,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named(command: Command, run: Path, damage: str) -> None:
    DAMAGE[damage](newest(run))
    said = command("resume", run, "--no-report")
    assert said.code == 3
    assert str(newest(run)) in said.complaint and "delete" in said.complaint
    assert not (run / "predictions.csv").exists()


def test_the_advice_for_a_damaged_checkpoint_works(command: Command, run: Path, whole: Path) -> None:
    flip("state.safetensors")(newest(run))
    assert "the checkpoint before it" in command("resume", run, "--no-report").complaint
    shutil.rmtree(newest(run))
    assert command("resume", run, "--no-report").code == 0
    assert result(run) == result(whole)


@pytest.mark.parametrize("settings", [{"heads.hidden": 8}, {"k": 4}, {"backbone.tuned_blocks": 2}])
def test_a_checkpoint_of_another_configuration(
    train: Train, command: Command, shared_folder: Path, run: Path, tmp_path: Path, settings: dict[str, int]
) -> None:
    other = tmp_path / "other"
    assert train(shared_folder, other, schedule__steps=6, **settings).code == 0
    shutil.rmtree(newest(run))
    shutil.copytree(newest(other), newest(run))
    said = command("resume", run, "--no-report")
    assert said.code == 3 and "config.yaml or manifest.csv is not what it was" in said.complaint


@pytest.mark.parametrize(
    ("kept", "edit", "refused"),
    [
        ("best-old", ("eval_every: 1", "eval_every: 2"), True),  # which epochs are candidates
        ("last", ("eval_every: 1", "eval_every: 2"), False),
        ("last", ("precision: fp32", "precision: bf16"), True),
        ("last", ("log_every: 1", "log_every: 2"), False),
    ],
)
def test_what_changes_results_is_part_of_a_run_also_in_the_section_run(
    train: Train, command: Command, shared_csv: Path, tmp_path: Path, kept: str, edit: tuple[str, str], refused: bool
) -> None:
    run = tmp_path / "run"
    settings = {"model_kept": kept, "run.eval_every": 1, "run.precision": "fp32", "run.checkpoint_every": 2}
    assert train(shared_csv, run, schedule__steps=4, **settings).code == 0
    (run / "predictions.csv").unlink()
    text = (run / "config.yaml").read_text()
    assert edit[0] in text
    (run / "config.yaml").write_text(text.replace(*edit))
    said = command("resume", run, "--no-report")
    assert said.code == (3 if refused else 0)
    assert not refused or "config.yaml or manifest.csv is not what it was" in said.complaint


@pytest.mark.parametrize("edit", [lambda lines: lines[:-1], lambda lines: [lines[0], *lines[:0:-1]]])
def test_a_manifest_edited_in_the_middle_of_a_run(
    command: Command, run: Path, edit: Callable[[list[str]], list[str]]
) -> None:
    lines = (run / "manifest.csv").read_text().splitlines()
    (run / "manifest.csv").write_text("\n".join(edit(lines)) + "\n")
    said = command("resume", run, "--no-report")
    assert said.code == 3 and "manifest.csv is not what it was" in said.complaint


@pytest.mark.parametrize("text", ["", "{}", "k: 3", "[]", "\x00", "a: [", "methode: debgcd", "k: many"])
def test_a_damaged_config_yaml(command: Command, run: Path, text: str) -> None:
    (run / "config.yaml").write_text(text)
    said = command("resume", run, "--no-report")
    assert said.code in (2, 3) and "config.yaml" in said.complaint


@pytest.mark.parametrize("text", [None, "", "path\n", "nonsense", 'path,label\n"unclosed'])
def test_a_damaged_manifest(command: Command, run: Path, text: str | None) -> None:
    (run / "manifest.csv").unlink()
    if text is not None:
        (run / "manifest.csv").write_text(text)
    said = command("resume", run, "--no-report")
    assert said.code in (2, 3) and "manifest.csv" in said.complaint


def reverse(place: Path) -> None:
    """As an editor that sorts the entries of categories.json would."""
    place.write_text(json.dumps(json.loads(place.read_text())[::-1]))


MODEL_DAMAGE = {
    "truncated": truncate("model.safetensors", 5000),
    "empty": truncate("model.safetensors", 0),
    "flipped": flip("model.safetensors"),
    "no-tensors": lambda folder: (folder / "model.safetensors").unlink(),
    "no-config": lambda folder: (folder / "config.json").unlink(),
    "no-categories": lambda folder: (folder / "categories.json").unlink(),
    "config-garbage": rewrite("config.json", "{{"),
    "config-list": rewrite("config.json", "[]"),
    "config-null": rewrite("config.json", "null"),
    "categories-garbage": rewrite("categories.json", "\x00"),
    "categories-empty": rewrite("categories.json", "[]"),
    "categories-numbers": rewrite("categories.json", "[1, 2, 3]"),
    "categories-sorted": lambda folder: reverse(folder / "categories.json"),
}


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """config.json that is valid JSON with the right sha256, but not what a run wrote."""

    def work(folder: Path) -> None:
        facts = json.loads((folder / "config.json").read_text())
        change(facts)
        (folder / "config.json").write_text(json.dumps(facts))

    return work


MODEL_DAMAGE["config-inner-list"] = edit(lambda facts: facts.update(config=[]))
MODEL_DAMAGE["config-inner-empty"] = edit(lambda facts: facts.update(config={}))
MODEL_DAMAGE["config-unknown-key"] = edit(lambda facts: facts["config"].update(colour="red"))
MODEL_DAMAGE["config-other-k"] = edit(lambda facts: facts["config"].update(k=7))
MODEL_DAMAGE["config-other-heads"] = edit(lambda facts: facts["config"]["heads"].update(hidden=5))
MODEL_DAMAGE["other-weights"] = edit(lambda facts: facts["config"]["backbone"].update(sha256="0" * 64))


HUGE: dict[str, dict[str, Any]] = {
    "hidden layers": {"hidden": 65536},
    "output": {"projection_width": 65536, "projection_depth": 32, "hidden": 65536},
    "detector": {"detector_width": 65536, "detector_depth": 32, "hidden": 65536},
}


@pytest.mark.parametrize("heads", HUGE)
def test_heads_of_any_size_are_compared_before_they_are_allocated(
    whole: Path, shared_folder: Path, tmp_path: Path, heads: str
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    shutil.copytree(whole / "model", run / "model")
    edit(lambda facts: facts["config"]["heads"].update(HUGE[heads]))(run / "model")
    assert debgcd(["predict", run, shared_folder / "unlabelled" / "10.png"], log, at_most(1_000_000_000)) == 3
    assert "does not fit its own configuration" in log.read_text("utf-8")


def test_a_k_of_ten_million_is_refused(command: Command, whole: Path, shared_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole / "model", run / "model")
    edit(lambda facts: facts["config"].update(k=10**7))(run / "model")
    said = command("predict", run, shared_folder / "unlabelled" / "10.png")
    assert said.code == 3 and "are not of one model" in said.complaint


def at_most(size: int) -> Callable[[], None]:
    """A hook: no more than this many bytes of address space besides what the process has already."""

    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size,) * 2)

    return limit


@pytest.mark.parametrize("damage", MODEL_DAMAGE)
def test_a_damaged_model_is_named(
    command: Command, whole: Path, shared_folder: Path, tmp_path: Path, damage: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole / "model", run / "model")
    MODEL_DAMAGE[damage](run / "model")
    said = command("predict", run, shared_folder / "unlabelled" / "10.png")
    assert said.code == 3 and not said.out
    assert str(run / "model") in said.complaint or "backbone" in said.complaint


def test_the_sha256_of_a_checkpoint_is_that_of_its_file(whole: Path) -> None:
    place = whole / "checkpoints" / "step-00000012"
    facts = json.loads((place / "state.json").read_text())
    assert (facts["step"], facts["sha256"]) == (12, sha256(place / "state.safetensors"))


def test_a_run_killed_before_it_began_can_be_begun_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("manifest.csv", "skipped.csv", ".environment.json.tmp"):
        (folder / name).write_text("")
    require_new(folder)
    (folder / "mine.txt").write_text("")
    with pytest.raises(UsageError, match="not empty"):
        require_new(folder)


@pytest.mark.parametrize("bank", ["on", "off"])
def test_images_that_changed_between_stop_and_resume_are_refused(
    train: Train, command: Command, tiny_folder: Path, tmp_path: Path, bank: str
) -> None:
    """A model of both would be of neither; a file that was only touched is fine."""
    run = tmp_path / "run"
    assert train(tiny_folder, run, "--bank", bank, "--cache", tmp_path / "cache").code == 0
    (run / "predictions.csv").unlink()
    images = sorted((tiny_folder / "unlabelled").iterdir())
    images[0].touch()
    assert command("resume", run, "--no-report").code == 0
    (run / "predictions.csv").unlink()
    for image in images[2:7]:
        image.write_bytes(images[-1].read_bytes())
    said = command("resume", run, "--no-report")
    assert said.code == 3
    named = f"{images[2]}, {images[3]}, {images[4]} and 2 more"
    assert f"images have changed since the run began: {named}" in said.complaint
    assert not (run / "predictions.csv").exists()


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (("precision: fp32", "precision: auto"), "is not complete, as a run writes it"),
        (
            ("  decode: fast\n", ""),
            "views.decode is missing, and 0 others; the run was made by another version of debgcd",
        ),
        (("baseline:", "gcd:"), "unknown key 'gcd' for method debgcd"),
    ],
)
def test_a_run_of_another_version_is_refused_in_a_sentence(
    train: Train, command: Command, shared_folder: Path, tmp_path: Path, edit: tuple[str, str], says: str
) -> None:
    run = tmp_path / "run"
    assert train(shared_folder, run, "--set", "run.precision=fp32", schedule__steps=1).code == 0
    text = (run / "config.yaml").read_text()
    assert edit[0] in text
    (run / "config.yaml").write_text(text.replace(*edit))
    for name in ("resume", "evaluate"):
        said = command(name, run)
        assert said.code == 3 and says in said.complaint


def test_evaluate_refuses_settings_that_the_model_was_not_trained_with(
    train: Train, command: Command, shared_csv: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(shared_csv, run, schedule__steps=1).code == 0
    before = (run / "evaluation.json").read_text()
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("resize: 36", "resize: 250"))
    said = command("evaluate", run)
    assert said.code == 3 and "views.resize is 250, was 36; restore it" in said.complaint
    assert (run / "evaluation.json").read_text() == before
    model = json.loads((run / "model" / "config.json").read_text())
    (run / "model" / "config.json").write_text(json.dumps({**model, "format": 99}))
    said = command("predict", run, shared_csv)
    assert said.code == 3 and "it has format 99, this version of debgcd reads 2" in said.complaint


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def test_a_run_that_starts_from_another_takes_over_whole_heads_only(
    train: Train, shared_csv: Path, tmp_path: Path
) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    assert train(shared_csv, first, "--method", "simgcd", "--seed", 5).code == 0
    settings = {"heads__projection_width": 9, "schedule__lr": 0, "heads__warm_start": "true"}
    said = train(shared_csv, second, "--start", first, **settings)
    assert said.code == 0
    assert "start: heads taken over: classifier, settled; new: debiased, detector, projection\n" in said.err
    one, two = tensors(first), tensors(second)
    assert torch.equal(one["tail.0.project.weight"], two["tail.0.project.weight"])
    assert not torch.equal(one["heads.projection.layers.0.weight"], two["heads.projection.layers.0.weight"])
    for name in ("classifier", "debiased"):  # both number the categories alike
        assert torch.equal(two[f"heads.{name}.weight"], one["heads.classifier.weight"])

    other = tmp_path / "other.csv"
    rows = [line.split(",") for line in shared_csv.read_text().splitlines()]
    renamed = [",".join([path, label.replace("cat", "zebra"), *rest]) for path, label, *rest in rows]
    other.write_text("\n".join(renamed) + "\n")
    said = train(other, third, "--start", first, schedule__lr=0)
    assert said.code == 0 and "new: classifier, debiased, detector, settled (the known classes are others)" in said.err
    assert not torch.equal(tensors(third)["heads.classifier.weight"], one["heads.classifier.weight"])
    said = train(shared_csv, tmp_path / "fourth", "--start", first, backbone__tuned_blocks=2)
    assert said.code == 2 and "backbone.tuned_blocks is 2, but the run starts from" in said.complaint
    said = train(shared_csv, tmp_path / "fourth", "--start", first, views__size=24)
    assert said.code == 2 and "views.size is 24, but the run starts from" in said.complaint


def test_a_run_that_cannot_be_started_from_is_refused_before_anything_is_written(
    train: Train, shared_csv: Path, tmp_path: Path
) -> None:
    frozen, run = tmp_path / "frozen", tmp_path / "run"
    assert train(shared_csv, frozen, "--method", "sskmeans", backbone__tuned_blocks=0).code == 0
    for start, words in (
        (frozen, "nothing was tuned in"),
        (tmp_path / "nowhere", f"there is no run {tmp_path / 'nowhere'} to start from; choose another with --start"),
        (shared_csv, "to start from; choose another with --start"),
    ):
        said = train(shared_csv, run, "--method", "simgcd", "--start", start)
        assert said.code == 2 and words in said.complaint and not (run / "config.yaml").exists()


@pytest.mark.parametrize("seed", range(3))
def test_the_best_model_of_uno_answers_with_the_head_it_was_chosen_with(
    train: Train, shared_csv: Path, tmp_path: Path, seed: int
) -> None:
    settings = {"model_kept": "best-old", "run__eval_every": 1, "heads__count": 4}
    assert train(shared_csv, tmp_path / "run", "--method", "uno", "--seed", seed, **settings).code == 0
    (kept,) = (tmp_path / "run" / "checkpoints" / "best").iterdir()
    best, model = load_file(kept / "state.safetensors"), tensors(tmp_path / "run")
    assert (
        int(model["heads.classifier.best"]) == int(best["heads.classifier.best"]) == int(best["memory.sums"].argmin())
    )


def test_names_with_odd_line_breaks_are_resumed(
    train: Train, command: Command, tiny_folder: Path, tmp_path: Path
) -> None:
    names = ["a\u2028b.png", "a\u0085b.png", "a\fb.png", "a\nb.png", "a\rb.png", "a  b.png"]
    for name, path in zip(names, sorted((tiny_folder / "unlabelled").iterdir()), strict=False):
        path.rename(path.with_name(name))
    run = tmp_path / "run"
    assert train(tiny_folder, run, schedule__steps=2).code == 0
    (run / "predictions.csv").unlink()
    assert command("resume", run, "--no-report").code == 0
