"""`debgcd config`."""

from __future__ import annotations

import argparse
from typing import Any

from debgcd.commands.arguments import BENCHMARKS, Subparsers, add_command
from debgcd.commands.output import print_json

WIDTH = 46  # of the column before the reasons


def add(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    parser = add_command(
        subparsers,
        "config",
        config,
        "print a resolved configuration, or its differences from another preset, with a reason per value",
        "debgcd config --preset small --diff paper\n"
        "  debgcd config --preset released --method simgcd --benchmark cifar100",
    )
    parser.add_argument("--preset", default="paper", help="paper (default), released or small")
    parser.add_argument("--quality", metavar="LEVEL", help="of preset small: fast, balanced (default) or best")
    parser.add_argument("--method", default="debgcd", help="default: debgcd")
    parser.add_argument(
        "--benchmark", metavar="NAME", help=f"include the values for a published data set: {BENCHMARKS}"
    )
    parser.add_argument("--backbone", metavar="NAME", help="as for train; dino and dinov2 bring values of their own")
    parser.add_argument(
        "--diff", metavar="PRESET", help="print only the values that differ from this preset, and the preset's values"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def config(options: argparse.Namespace) -> None:
    """`debgcd config`."""
    from debgcd import config as configuration
    from debgcd.datasets import facts_of
    from debgcd.methods import require_method

    require_method(options.method)
    facts = None if options.benchmark is None else facts_of(options.benchmark)
    chosen = {
        "benchmark": None if facts is None else facts.name,
        "backbone": options.backbone,
        "method": options.method,
    }
    preset, layers = configuration.layers(options.preset, **chosen, quality=options.quality)
    own = {} if facts is None else {"k": facts.classes}  # as a run on the benchmark has it
    layers.append(configuration.Layer(f"benchmark {chosen['benchmark']}", own, {"k": "its number of classes"}))

    def resolved(name: str, quality: str | None = None) -> configuration.Config:
        return configuration.override(configuration.compose(name, **chosen, quality=quality), own, "the benchmark")

    found = resolved(preset, options.quality)
    values = configuration.leaves(configuration.to_dict(found))
    reasons = configuration.reasons(found, layers)
    other: dict[str, Any] = {}
    if options.diff is not None:
        other = configuration.leaves(configuration.to_dict(resolved(options.diff)))
        other["preset"] = values["preset"]  # the preset's name always differs: not worth a line
        values = {key: value for key, value in values.items() if value != other[key]}
    if options.json:
        there = {key: {options.diff: other[key]} for key in values} if other else {}
        print_json({key: {"value": v, "reason": reasons[key], **there.get(key, {})} for key, v in values.items()})
        return
    chosen["quality"] = options.quality
    named = " + ".join([f"preset {preset}", *(f"{kind} {name}" for kind, name in chosen.items() if name is not None)])
    print(
        f"# {named}"
        + ("" if options.diff is None else f"; differences from {options.diff}, whose values are in brackets")
    )
    if preset != options.preset:
        print(
            f"# nothing was released for {options.benchmark} with {options.method}, so the values of preset paper apply"
        )
    for key, value in values.items():
        told = f"{key}: {_written(value)}" + (f"  ({_written(other[key])})" if other else "")
        print(f"{told:<{WIDTH}}  # {reasons[key]}")


def _written(value: Any) -> str:
    """A value as one line of YAML."""
    import yaml

    return yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).removesuffix("...\n").strip()
