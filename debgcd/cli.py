"""The command line: parse, call, print. What is heavy is imported by the command that needs it, so `--help` is quick."""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debgcd import __version__
from debgcd.errors import DataError, DebgcdError, UsageError

if TYPE_CHECKING:
    from debgcd.config import Config
    from debgcd.data.manifest import Manifest

EXAMPLES = """\
examples:
  debgcd demo                                     discover five digits that no label names, in a few minutes
  debgcd check photos/                            what is labelled, what is broken, what a run would do
  debgcd train photos/ --k 20 -o runs/photos      20 categories in all: known classes and new ones
  debgcd resume runs/photos                       go on after an interruption
  debgcd evaluate runs/photos                     accuracy, where the truth is known
  debgcd predict runs/photos more/ -o out.csv     put new images into the categories

photos/ holds labelled/<class>/... and unlabelled/..., or class folders beside a folder named unlabelled; a CSV or
Parquet file with the columns path and label (empty: unlabelled) does as well.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for a wrong call, 3 for data that cannot be used, 130 after Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not hasattr(options, "command"):
        parser.print_help()
        return 0
    try:
        options.command(options)
        return 0
    except DebgcdError as error:
        return _complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _complain(f"stopped{_how_to_go_on(options)}", 130)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the reader has left; say nothing at exit either
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EDQUOT, errno.ENAMETOOLONG):
            raise
        where = f" {error.filename}" if error.filename else ""
        return _complain(
            f"cannot write{where}: {error.strerror}; make room or choose another place{_how_to_go_on(options)}", 3
        )


def _complain(text: str, code: int) -> int:
    print(f"debgcd: {text}", file=sys.stderr)
    return code


def _how_to_go_on(options: argparse.Namespace) -> str:
    folder: Path | None = getattr(options, "run", None) or getattr(options, "out", None)
    begun = folder is not None and (folder / "config.yaml").exists()
    return f"; to go on: debgcd resume {folder}" if begun else ""


def _demo(options: argparse.Namespace) -> None:
    from debgcd.demo import demo

    summary = demo(options.out, options.seed, options.cache)
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


def _check(options: argparse.Namespace) -> None:
    from debgcd.check import check
    from debgcd.data.manifest import write_manifest

    manifest = _manifest(options.path)
    found, manifest = check(manifest, _config(options, manifest))
    if options.manifest is not None:
        write_manifest(manifest, options.manifest)
    if options.json:
        _print_json(found.to_json())
        return
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
        known = "" if options.k else " (say how many there are with --k)"
        print(f"""
A run would put {found.unlabelled} images into {plan.k} categories{known} with {plan.method}, preset {plan.preset}:
  backbone {plan.backbone}, {plan.image_size} px, {plan.views}, {plan.steps} steps of {plan.batch} images
  about {duration(plan.seconds)} on this machine, and {plan.bank_bytes / 1e6:,.0f} MB in {found.cache} (now {found.cache_bytes / 1e6:,.0f} MB)""")
    if found.problem is not None:
        raise DataError(f"a run would be refused: {found.problem}")


def _train(options: argparse.Namespace) -> None:
    from debgcd.train.run import require_new
    from debgcd.train.start import begin

    if options.out is None:
        options.out = Path("runs") / (options.path.resolve().stem or "run")
    manifest = _manifest(options.path)
    config = _config(options, manifest)
    require_new(options.out)
    _finish(options.out, begin, manifest, config, options.out)


def _resume(options: argparse.Namespace) -> None:
    from debgcd.train.run import open_run
    from debgcd.train.start import resume

    if open_run(options.run).finished:
        print(f"the run in {options.run} has finished; its results: {options.run / 'predictions.csv'}")
        return
    _finish(options.run, resume, options.run)


def _finish(folder: Path, work: Any, *arguments: Any) -> None:
    """Train or resume, then say what came out; Ctrl-C is a way to end, not an error."""
    from debgcd.train.loop import Interrupted

    try:
        run = work(*arguments)
    except Interrupted:
        raise KeyboardInterrupt from None
    if run.evaluation.exists():
        _print_scores(json.loads(run.evaluation.read_text("utf-8")))
    print(f"""
categories of {sum(label is None for label in run.manifest.labels)} unlabelled images: {run.predictions}
what to type next: debgcd predict {folder} PATH -o out.csv""")


def _evaluate(options: argparse.Namespace) -> None:
    from debgcd.train.start import measure

    scores = measure(options.run)
    if options.json:
        _print_json(scores)
    else:
        _print_scores(scores)
        print(f"also in {options.run / 'evaluation.json'}")


def _predict(options: argparse.Namespace) -> None:
    from debgcd.data.manifest import write_skipped
    from debgcd.files import write_text
    from debgcd.predict import open_model, predict
    from debgcd.train.finish import predictions_csv
    from debgcd.train.start import cache_folder

    model = open_model(options.run, cache_folder(options.cache), options.backbone)
    found = predict(model, _manifest(options.path))
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
        "run": {"workers": options.workers, "device": options.device, "cache": options.cache},
    }
    values = {name: value for name, value in given.items() if value is not None}
    for name, section in sections.items():
        section = {key: value for key, value in section.items() if value is not None or key == "steps"}
        values |= {name: section} if section else {}
    config = configuration.override(config, values, where="the command line")
    for text in options.set:
        config = configuration.override(config, configuration.assignment(text), where=f"--set {text}")
    return config


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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        print(f"debgcd: {message}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(UsageError.exit_code)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="debgcd",
        description="Find the categories that your labels do not cover yet: every unlabelled image is put into a known\n"
        "class or into a newly discovered one (generalized category discovery, DebGCD, ICLR 2025).",
        epilog=EXAMPLES,
        formatter_class=raw,
    )
    parser.add_argument("--version", action="version", version=f"debgcd {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, work: Any, summary: str, example: str) -> argparse.ArgumentParser:
        found = commands.add_parser(
            name, help=summary, description=summary, epilog=f"example:\n  {example}", formatter_class=raw
        )
        found.set_defaults(command=work)
        return found

    demo = command(
        "demo", _demo, "discover handwritten digits with k-means, SimGCD and DebGCD", "debgcd demo -o demo-run"
    )
    demo.add_argument(
        "-o", dest="out", type=Path, default=Path("demo-run"), metavar="DIR", help="output folder (default demo-run)"
    )
    demo.add_argument("--seed", type=int, default=0)
    _add_cache(demo)

    check = command(
        "check", _check, "say what is labelled, what is broken and what a run would do", "debgcd check photos/ --k 20"
    )
    check.add_argument("path", type=Path, metavar="PATH", help="a folder, CSV or Parquet file")
    check.add_argument("--manifest", type=Path, metavar="OUT.csv", help="write the manifest that a run would use")
    check.add_argument("--json", action="store_true", help="the same facts for a program")
    _add_run_options(check)

    train = command(
        "train",
        _train,
        "discover categories among partly labelled images",
        "debgcd train photos/ --k 20 -o runs/photos",
    )
    train.add_argument("path", type=Path, metavar="PATH", help="a folder, CSV or Parquet file")
    train.add_argument(
        "-o", dest="out", type=Path, metavar="RUN", help="run directory, new or empty (default runs/<name>)"
    )
    _add_run_options(train)

    resume = command("resume", _resume, "go on with a run that was interrupted", "debgcd resume runs/photos")
    resume.add_argument("run", type=Path, metavar="RUN")

    evaluate = command(
        "evaluate", _evaluate, "measure a finished run where the truth is known", "debgcd evaluate runs/photos --json"
    )
    evaluate.add_argument("run", type=Path, metavar="RUN")
    evaluate.add_argument("--json", action="store_true", help="the same facts for a program")

    predict = command(
        "predict",
        _predict,
        "put new images into the categories of a run",
        "debgcd predict runs/photos more/ -o out.csv",
    )
    predict.add_argument("run", type=Path, metavar="RUN", help="a finished run, or its model folder")
    predict.add_argument("path", type=Path, metavar="PATH", help="an image, a folder, a CSV or Parquet file")
    predict.add_argument("-o", dest="out", type=Path, metavar="OUT.csv", help="default: print")
    _add_cache(predict)
    predict.add_argument("--backbone", metavar="PATH", help="where the backbone's weights are now, if they have moved")
    return parser


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache", metavar="DIR", help="for view banks and weights (default $DEBGCD_CACHE or ~/.cache/debgcd)"
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    _add_cache(parser)
    parser.add_argument("--k", type=int, metavar="K", help="categories in all, known and new")
    parser.add_argument("--method", help="debgcd (default), simgcd or kmeans")
    parser.add_argument("--preset", help="paper, released or small (default: what fits the data and machine)")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--epochs", type=int, metavar="N", help="passes over the data; replaces the preset's length")
    parser.add_argument(
        "--backbone", metavar="NAME", help="lite0, a hub id such as facebook/dino-vitb16, a folder, or a .pth file"
    )
    parser.add_argument(
        "--bank", choices=("auto", "on", "off"), help="compute each image's views once and keep them on disk"
    )
    parser.add_argument("--device", help="auto (default), cpu, cuda, mps")
    parser.add_argument("--workers", type=int, metavar="N", help="decoding processes (default: sized to the machine)")
    parser.add_argument("--config", type=Path, metavar="FILE.yaml", help="values that differ from the preset")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one value, e.g. detector.weight=0.1; repeatable",
    )


if __name__ == "__main__":
    sys.exit(main())
