"""Errors: the setting that each is about, the classes that Python users catch, and handlers that must let them through."""

from __future__ import annotations

import argparse
import ast
import itertools
import pickle
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from debgcd import cli
from debgcd.errors import DataError, DebgcdError, UsageError
from debgcd.system.machine import optional

ROOT = Path(__file__).parents[1]
TREES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text("utf-8"))
    for path in sorted((ROOT / "debgcd").rglob("*.py"))
}
# How messages ask for another value of a setting that the command line has a flag for.
ADVICE = {
    "choose another run directory": "out",
    "choose another output folder": "out",
    "choose another cache folder": "cache",
    "set the number of categories": "k",
    "as its backbone": "backbone",
    "raise the maximum": "max",
    "lower the maximum": "max",
}


# Settings and flags.


def messages() -> Iterator[tuple[str, str, ast.AST]]:
    """(place, text, innermost call or tuple around it) of every text in the package that asks for another value."""
    for module, tree in TREES.items():
        if module in ("debgcd.cli", "debgcd.errors"):  # where flags are known, and where this is explained
            continue
        around = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and any(a in node.value for a in ADVICE):
                holder: ast.AST = node
                while not isinstance(holder, ast.Call | ast.Tuple):
                    holder = around[holder]
                yield f"{module}:{node.lineno}", node.value, holder


FOUND = list(messages())


def test_the_package_has_all_kinds_of_advice() -> None:
    assert {advice for _, text, _ in FOUND for advice in ADVICE if advice in text} == set(ADVICE)


@pytest.mark.parametrize(("place", "text", "holder"), FOUND, ids=[place for place, _, _ in FOUND])
def test_advice_ends_the_message_and_names_its_setting(place: str, text: str, holder: ast.AST) -> None:
    (setting,) = {
        setting for advice, setting in ADVICE.items() if text.endswith(advice)
    }  # the flag comes right after it
    if isinstance(holder, ast.Call):
        assert {keyword.arg: ast.unparse(keyword.value) for keyword in holder.keywords}.get("setting") == repr(setting)
    else:  # the parts of an error that is raised elsewhere
        assert isinstance(holder, ast.Tuple) and ast.unparse(holder.elts[1]) == repr(setting)


def test_every_setting_is_an_option_of_some_command() -> None:
    commands = [action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction)]
    flags = {
        (action.dest, flag)
        for parser in commands[0].choices.values()
        for action in parser._actions
        for flag in action.option_strings
    }
    for setting in set(ADVICE.values()):
        error = UsageError("change it", setting=setting)
        said = cli._sentence(error, argparse.Namespace(**{setting: None}))
        assert (setting, said.removeprefix("change it with ")) in flags


def test_the_flag_stands_where_the_message_ends() -> None:
    error = DataError("no room; choose another cache folder", setting="cache", then=", or do without it")
    assert str(error) == "no room; choose another cache folder, or do without it"
    has, lacks = argparse.Namespace(cache=None), argparse.Namespace()
    assert cli._sentence(error, has) == "no room; choose another cache folder with --cache, or do without it"
    assert cli._sentence(error, lacks) == str(error)
    plain = UsageError("a folder named choose another cache folder is not empty")
    assert cli._sentence(plain, has) == str(plain)


# Optional packages.


def test_an_optional_package_is_asked_for_in_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError) as caught:
        optional("pyarrow.parquet", "parquet", "writing Parquet")
    said = "writing Parquet needs the package pyarrow; install it with: pip install "
    assert str(caught.value) == said + "'debgcd[parquet]'"
    with pytest.raises(UsageError, match=r"install it with: pip install pyarrow$"):
        optional("pyarrow", None, "method sure")
    assert optional("json.decoder", None, "nothing").__name__ == "json.decoder"
    asking = {module for module, tree in TREES.items() if "pip install " in ast.unparse(tree)}
    assert asking == {"debgcd.system.machine", "debgcd.commands.arguments"}  # the second is the help of --quality


# Classes.


def test_a_wrong_call_is_a_value_error_and_unusable_data_is_not() -> None:
    assert issubclass(UsageError, ValueError) and not issubclass(DataError, ValueError)
    assert UsageError("x").exit_code == 2


def test_asking_an_unfitted_discoverer_raises_what_scikit_learn_raises() -> None:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    from debgcd import Discoverer

    with pytest.raises(NotFittedError, match="no model yet; call fit") as caught:
        Discoverer().predict(["a.png"])
    assert isinstance(caught.value, UsageError)
    assert not hasattr(Discoverer(), "classes_")  # as for other estimators
    with pytest.raises(NotFittedError):
        check_is_fitted(Discoverer())
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("kind", [DebgcdError, UsageError, DataError])
def test_errors_come_back_whole_from_worker_processes(kind: type[DebgcdError]) -> None:
    back = pickle.loads(pickle.dumps(kind("choose another cache folder", setting="cache", then=", or none")))
    assert type(back) is kind and str(back) == "choose another cache folder, or none"
    assert back.with_flag("--cache") == "choose another cache folder with --cache, or none"


# As a UsageError is a ValueError, a handler of damaged files could take one for damage.


def functions() -> dict[str, ast.AST]:
    """Functions at the top of the package's modules, by their whole names."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {
        f"{module}.{node.name}": node for module, tree in TREES.items() for node in tree.body if isinstance(node, kinds)
    }


FUNCTIONS = functions()


@cache
def imports(module: str) -> dict[str, str]:
    """What a module imports by name -> its whole name."""
    nodes = (node for node in ast.walk(TREES[module]) if isinstance(node, ast.ImportFrom)) if module in TREES else ()
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def called(module: str, nodes: Sequence[ast.AST]) -> set[str]:
    """Whole names of the package's functions that are called by name, or as `module.function`."""
    found = set()
    for node in itertools.chain(*map(ast.walk, nodes)):
        if isinstance(node, ast.Call):
            first, *rest = ast.unparse(node.func).split(".")
            found.add(".".join([imports(module).get(first, f"{module}.{first}"), *rest]))
    return {reexported(name) for name in found}


def reexported(name: str) -> str:
    """Where a function is that a package's front door offers."""
    module, _, function = name.rpartition(".")
    return reexported(imports(module)[function]) if function in imports(module) else name


def may_refuse() -> set[str]:
    """Functions that raise a UsageError, or call one that does."""
    calls = {name: called(name.rpartition(".")[0], [node]) for name, node in FUNCTIONS.items()}
    found = {name for name, called in calls.items() if "debgcd.errors.UsageError" in called}
    while more := {name for name, called in calls.items() if called & found} - found:
        found |= more
    return found


def guarded(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """What stands in `try` and `with suppress` that take a ValueError without a word about a UsageError."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            caught = [ast.unparse(item.context_expr) for item in node.items if "suppress(" in ast.unparse(item)]
        elif isinstance(node, ast.Try):
            caught = [ast.unparse(handler.type) for handler in node.handlers if handler.type is not None]
        else:
            continue
        for words in (set(re.findall(r"\w+", each)) for each in caught):
            if words & {"UsageError", "DebgcdError"}:
                break
            if "ValueError" in words:
                yield node.body


def test_no_handler_of_value_errors_takes_a_wrong_call_for_damage() -> None:
    refusing = may_refuse()
    assert {"debgcd.config.layers.compose", "debgcd.system.machine.cache_folder"} <= refusing
    wrong, seen = [], 0
    for module, tree in TREES.items():
        for body in guarded(tree):
            seen += 1
            wrong += [f"{module}:{body[0].lineno}: {name}" for name in called(module, body) & refusing]
    assert seen > 20 and wrong == []
