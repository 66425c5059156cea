"""`debgcd --completion SHELL`: a script for the shell, and the words that it asks for while the user types."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

# The shell passes the words so far, the unfinished one last. Where nothing fits, files are offered.
SCRIPTS = {
    "bash": """\
_debgcd() {
  local IFS=$'\\n'
  COMPREPLY=($(debgcd --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _debgcd debgcd
""",
    "zsh": """\
#compdef debgcd
_debgcd() {
  local -a found
  found=(${(f)"$(debgcd --complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( $#found )); then compadd -- $found; else _files; fi
}
compdef _debgcd debgcd
""",
    "fish": """\
complete -c debgcd -a '(debgcd --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


def candidates(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """What the last word may become, given the words before it; empty if that is a file or a free text."""
    *before, current = words or [""]
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices
    if not before:
        return fitting([*commands, *options_of(parser)], current)
    if before[0] not in commands:
        return []
    chosen = commands[before[0]]
    if current.startswith("-"):
        return fitting(options_of(chosen), current)
    asking = [action for action in chosen._actions if before[-1] in action.option_strings and action.nargs != 0]
    return fitting(map(str, values_of(asking[0])), current) if asking else []


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """The long options of a command."""
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]


def values_of(action: argparse.Action) -> Iterable[object]:
    """The values of an option that has a closed list of them."""
    if action.choices is not None:
        return action.choices
    if action.dest == "method":
        from debgcd.methods import METHODS

        return METHODS
    if action.dest == "benchmark":
        from debgcd.commands.arguments import BENCHMARKS

        return BENCHMARKS.split(", ")
    return {"preset": ("paper", "released", "small"), "quality": ("fast", "balanced", "best")}.get(action.dest, ())


def fitting(names: Iterable[str], begun: str) -> list[str]:
    """The names that begin like the unfinished word."""
    return [name for name in names if name.startswith(begun)]
