"""The configuration of a run: `schema` has the fields, `merge` lays values over them, `layers` composes presets and overlays.

`schedules` has the values that change during a run.
"""

from debgcd.config.layers import (
    ADDED,
    Layer,
    assignment,
    compose,
    dump,
    fitted,
    from_dict,
    layers,
    leaves,
    load,
    names,
    override,
    override_all,
    own_keys,
    read_yaml,
    reasons,
    to_dict,
    without,
)
from debgcd.config.schema import Config

__all__ = [
    "ADDED",
    "Config",
    "Layer",
    "assignment",
    "compose",
    "dump",
    "fitted",
    "from_dict",
    "layers",
    "leaves",
    "load",
    "names",
    "override",
    "override_all",
    "own_keys",
    "read_yaml",
    "reasons",
    "to_dict",
    "without",
]
