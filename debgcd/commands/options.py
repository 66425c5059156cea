"""What commands have in common: how they are added, the options that describe a run, and the configuration from them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from debgcd.config import Config
    from debgcd.data.manifest import Manifest


Subparsers = argparse._SubParsersAction  # argparse has no public name for it


def add_command(
    subparsers: Subparsers, name: str, work: Callable[[argparse.Namespace], None], summary: str, example: str
) -> argparse.ArgumentParser:
    """A command's parser, to add its options to; `work` is called with them."""
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=work)
    return parser


def add_cache(parser: argparse.ArgumentParser) -> None:
    """`--cache`."""
    parser.add_argument(
        "--cache", metavar="DIR", help="for view banks and weights (default $DEBGCD_CACHE or ~/.cache/debgcd)"
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What describes a run; `configured` reads it."""
    add_cache(parser)
    parser.add_argument("--k", type=int, metavar="K", help="categories in all, known and new")
    parser.add_argument("--method", help="debgcd (default), simgcd, gcd, sskmeans or kmeans")
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


def configured(options: argparse.Namespace, manifest: Manifest) -> Config:
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
        "run": {"workers": options.workers, "device": options.device, "cache": absolute(options.cache)},
    }
    values = {name: value for name, value in given.items() if value is not None}
    for name, section in sections.items():
        section = {key: value for key, value in section.items() if value is not None or key == "steps"}
        values |= {name: section} if section else {}
    config = configuration.override(config, values, where="the command line")
    for text in options.set:
        config = configuration.override(config, configuration.assignment(text), where=f"--set {text}")
    return config


def absolute(path: str | None) -> str | None:
    """A path that means the same from another folder."""
    return None if path is None else os.path.abspath(path)
