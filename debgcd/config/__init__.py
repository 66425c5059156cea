"""The configuration of a run: `schema` has the fields, `merge` lays values over them, `layers` composes presets and overlays.

`schedules` has the values that change during a run.
"""

from debgcd.config.layers import *
