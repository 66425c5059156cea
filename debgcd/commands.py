"""What each command does: call the rooms, print the result."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debgcd.errors import DataError, UsageError

# Each command imports what it needs when it runs: torch takes seconds, and `debgcd --help` should not wait for it.
if TYPE_CHECKING:
    from debgcd.check import Findings
    from debgcd.config import Config
    from debgcd.data.manifest import Manifest
    from debgcd.train.run import Run


def demo(options: argparse.Namespace) -> None:
    """`debgcd demo`."""
    from debgcd.demo import demo as run_demo

    summary = run_demo(options.out, options.seed, _absolute(options.cache))
    rows = [
        [
            entry["method"],
            *(_percent(entry[name]) for name in ("all", "old", "new", "auroc")),
            f"{entry['seconds']:.0f}",
        ]
        for entry in summary
    ]
    print()
    _table(["method", "All", "Old", "New", "AUROC", "seconds"], rows)
    print(f"""
All: digits in the right category, of those that had no label; Old: those of 0–4, which are known; New: those of 5–9,
which no label names. Lite0 backbone, seed {options.seed}.

The categories that DebGCD found: {options.out / "categories.png"}
What to type next:
  debgcd evaluate {options.out / "debgcd"}
  debgcd predict {options.out / "debgcd"} {options.out / "digits"} -o predictions.csv
  debgcd check PATH                      your own images: labelled/<class>/... and unlabelled/...""")


def check(options: argparse.Namespace) -> None:
    """`debgcd check`."""
    from debgcd.check import check as look
    from debgcd.data.manifest import write_manifest

    manifest = _manifest(options.path)
    found, manifest = look(manifest, _config(options, manifest))
    if options.manifest is not None:
        write_manifest(manifest, options.manifest)
    if options.json:
        _print_json(found.to_json())
    else:
        _print_findings(found, options.k is None)
    if found.problem is not None:
        raise DataError(f"a run would be refused: {found.problem}")


def _print_findings(found: Findings, k_is_open: bool) -> None:
    from debgcd.progress import duration

    print(
        f"{found.images} images: {found.labelled} labelled, {found.unlabelled} unlabelled, {found.test} in the test split"
    )
    print(f"{len(found.classes)} known classes; the truth is known of {found.with_truth} images")
    _table(["class", "labelled images"], [[name, str(count)] for name, count in list(found.classes.items())[:20]])
    if len(found.classes) > 20:
        print(f"... and {len(found.classes) - 20} more")
    if found.skipped:
        print(f"\n{len(found.skipped)} files cannot be used:")
        for entry in found.skipped[:10]:
            print(f"  {entry['file']!r}: {entry['reason']}")
        if len(found.skipped) > 10:
            print(f"  ... and {len(found.skipped) - 10} more (all with --json)")
    for warning in found.warnings:
        print(f"note: {warning}")
    if found.plan is not None:
        plan = found.plan
        known = " (say how many there are with --k)" if k_is_open else ""
        print(f"""
A run would put {found.unlabelled} images into {plan.k} categories{known} with {plan.method}, preset {plan.preset}:
  backbone {plan.backbone}, {plan.image_size} px, {plan.views}, {plan.steps} steps of {plan.batch} images
  about {duration(plan.seconds)} on this machine, and {plan.bank_bytes / 1e6:,.0f} MB in {found.cache} (now {found.cache_bytes / 1e6:,.0f} MB)""")


def train(options: argparse.Namespace) -> None:
    """`debgcd train`."""
    from debgcd.train.run import require_apart, require_new
    from debgcd.train.start import begin, require_ready

    if options.out is None:
        options.out = Path("runs") / (options.path.resolve().stem or "run")
    manifest = _manifest(options.path)
    config = _config(options, manifest)
    require_ready(manifest, config)
    require_apart(options.out, options.path)
    require_new(options.out)
    _print_results(begin(manifest, config, options.out))


def resume(options: argparse.Namespace) -> None:
    """`debgcd resume`."""
    from debgcd.train.run import open_run
    from debgcd.train.start import resume as go_on

    if open_run(options.run).finished:
        print(f"the run in {options.run} has finished; its results: {options.run / 'predictions.csv'}")
        return
    _print_results(go_on(options.run))


def _print_results(run: Run) -> None:
    """What a finished run has to show."""
    unlabelled = int((run.manifest.is_train() & ~run.manifest.is_labelled()).sum())
    if run.evaluation.exists():
        _print_scores(json.loads(run.evaluation.read_text("utf-8")))
    print(f"""
categories of {unlabelled} unlabelled images: {run.predictions}
what to type next: debgcd predict {run.folder} PATH -o out.csv""")


def evaluate(options: argparse.Namespace) -> None:
    """`debgcd evaluate`."""
    from debgcd.train.start import measure

    scores = measure(options.run)
    if options.json:
        _print_json(scores)
    else:
        _print_scores(scores)
        print(f"also in {options.run / 'evaluation.json'}")


def predict(options: argparse.Namespace) -> None:
    """`debgcd predict`."""
    from debgcd.data.manifest import write_skipped
    from debgcd.files import write_text
    from debgcd.predict import open_model
    from debgcd.predict import predict as ask
    from debgcd.train.finish import predictions_csv
    from debgcd.train.start import cache_folder

    model = open_model(options.run, cache_folder(options.cache), options.backbone)
    if options.out is not None:  # before the work, not after it
        if options.out.is_dir():
            raise UsageError(f"-o {options.out} is a folder; name the CSV file to write")
        options.out.parent.mkdir(parents=True, exist_ok=True)
    found = ask(model, _manifest(options.path))
    text = predictions_csv(found.rows)
    if options.out is None:
        print(text, end="")
    else:
        write_text(options.out, text)
        print(f"categories of {len(found.rows)} images: {options.out}")
    if found.skipped:
        if options.out is not None:
            listed = options.out.with_suffix(".skipped.csv")
            write_skipped(found.skipped, listed)
            print(f"{len(found.skipped)} files cannot be used; why: {listed}", file=sys.stderr)
        else:
            for entry in found.skipped:
                print(f"not used: {entry.file!r}: {entry.reason}", file=sys.stderr)


def _manifest(path: Path) -> Manifest:
    from debgcd.data.manifest import read_manifest

    return read_manifest(path)


def _config(options: argparse.Namespace, manifest: Manifest) -> Config:
    """Preset, then --config, then the options, then --set: the later wins."""
    from debgcd import config as configuration

    name = options.preset
    if name is None:
        from debgcd.train.start import choose_preset

        name = choose_preset(manifest)
    config = configuration.preset(name)
    if options.config is not None:
        config = configuration.override(config, configuration.read_yaml(options.config), where=str(options.config))
    given: dict[str, Any] = {"method": options.method, "k": options.k, "seed": options.seed}
    sections: dict[str, dict[str, Any]] = {
        "schedule": {} if options.epochs is None else {"epochs": options.epochs, "steps": None},
        "backbone": {} if options.backbone is None else {"name": options.backbone},
        "views": {} if options.bank is None else {"bank": options.bank},
        "run": {"workers": options.workers, "device": options.device, "cache": _absolute(options.cache)},
    }
    values = {name: value for name, value in given.items() if value is not None}
    for name, section in sections.items():
        section = {key: value for key, value in section.items() if value is not None or key == "steps"}
        values |= {name: section} if section else {}
    config = configuration.override(config, values, where="the command line")
    for text in options.set:
        config = configuration.override(config, configuration.assignment(text), where=f"--set {text}")
    return config


def _absolute(path: str | None) -> str | None:
    """A path that means the same from another folder."""
    return None if path is None else os.path.abspath(path)


def _print_scores(scores: dict[str, Any]) -> None:
    rows = []
    for part in ("unlabelled", "test"):
        for classifier in ("gcd", "debiased"):
            found = scores.get(part, {}).get(classifier)
            if found is None:
                continue
            accuracy, errors = found["accuracy"], found["errors"]
            auroc = scores[part]["auroc"] if classifier == "gcd" else None
            values = [accuracy[name] for name in ("all", "old", "new")]
            values += [found["balanced"], found["nmi"], found["ari"], auroc]
            values += [errors[name] for name in ("true_old", "false_new", "false_old", "true_new")]
            rows.append([part, classifier, str(found["images"]), *map(_percent, values)])
    names = ["images", "All", "Old", "New", "balanced", "NMI", "ARI", "AUROC"]
    names += ["True Old", "False New", "False Old", "True New"]
    _table(["of", "classifier", *names], rows)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _table(head: list[str], rows: list[list[str]]) -> None:
    """Aligned columns; the first one to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
