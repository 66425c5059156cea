"""What keeps the package readable and safe: imports go one way, files are short, nothing given to it is executed."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "debgcd"

# A module may import from its own room and from those before it.
ROOMS = [
    {"errors", "system", "config.schema", "config.merge", "config.schedules"},
    {"data"},
    {"datasets"},
    {"model"},
    {"tokens"},
    {"losses"},
    {"evaluate"},
    {"novelty"},
    {"cluster"},
    {"methods"},
    {"config"},
    {"run", "review.state", "review.replay", "review.log"},
    {"infer"},
    {"train"},
    {"grow"},
    {"check", "estimate"},
    {"report"},
    {"discoverer"},
    {"review"},
    {"export"},
    {"demo", "cache"},
    {"reproduce"},
    {"commands", "cli", "__main__"},
]
LONGEST = 500  # lines: one concept per file


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}


def room(module: str) -> int:
    """The place of a module's room; a part of a package may have a place of its own."""
    parts = module.split(".")[1:]
    for length in range(len(parts), 0, -1):
        found = [i for i, names in enumerate(ROOMS) if ".".join(parts[:length]) in names]
        if found:
            return found[0]
    raise AssertionError(f"{module} is in no room: add {parts[0]!r} to ROOMS and to docs/architecture.md")


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of all modules and members imported anywhere in a file, also within functions and for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write the whole name: from debgcd.x import y"
            assert node.module is not None
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            if not all(member in MODULES for member in members):  # more than modules of a package
                yield node.module
            yield from members


def own_imports(module: str) -> set[str]:
    """The modules of the package that a module imports; the package itself only says its version."""
    return {name for name in imported(TREES[module]) if name in MODULES} - {"debgcd", module}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call, with the dotted name that is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 50
    assert own_imports("debgcd.methods.debgcd") >= {"debgcd.losses", "debgcd.config.schedules", "debgcd.model.heads"}
    assert "debgcd.model.vit" in own_imports("debgcd.methods.promptcal")  # an import within a function


@pytest.mark.parametrize("module", [name for name in MODULES if name != "debgcd"])
def test_imports_go_one_way(module: str) -> None:
    for other in own_imports(module):
        assert room(other) <= room(module), f"{module} must not import {other}"


def test_no_imports_in_a_circle() -> None:
    """Within a room neither; a package stands for its front door, `__init__.py`."""
    graphlib.TopologicalSorter({name: own_imports(name) for name in MODULES if name != "debgcd"}).prepare()


def test_the_package_itself_imports_only_what_it_offers() -> None:
    assert own_imports("debgcd") == {"debgcd.discoverer"}


@pytest.mark.parametrize("module", MODULES)
def test_no_long_files(module: str) -> None:
    assert len(MODULES[module].read_text("utf-8").splitlines()) <= LONGEST


FORBIDDEN_MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torchvision", "timm"}
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"),
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.Loader", "yaml.UnsafeLoader"),
    *("os.system", "os.popen", "torch.hub.load", "torch.jit.load", "np.lib.format.read_array"),
}


@pytest.mark.parametrize("module", MODULES)
def test_nothing_given_to_it_is_executed(module: str) -> None:
    tree = TREES[module]
    bad = {name.split(".")[0] for name in imported(tree)} & FORBIDDEN_MODULES
    assert not bad, f"{module} imports {bad}"
    for name, call in calls(tree):
        assert name not in FORBIDDEN_CALLS, f"{module} line {call.lineno}: {name}"
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if name == "torch.load":
            assert keywords.get("weights_only") == "True", f"{module} line {call.lineno}: torch.load"
        for danger in ("allow_pickle", "trust_remote_code", "shell"):
            assert keywords.get(danger, "False") == "False", f"{module} line {call.lineno}: {danger}"
    names = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert not names & (FORBIDDEN_CALLS | {"torch.load"}), f"{module}: call it by its whole name"


@pytest.mark.parametrize("module", MODULES)
def test_json_and_yaml_have_one_reader_each(module: str) -> None:
    """The only ones that refuse what is too large or too deep, in words."""
    readers = {"json.load", "json.loads", "yaml.safe_load", "yaml.safe_load_all", "yaml.parse"}
    found = {name for name, _ in calls(TREES[module]) if name in readers}
    allowed = {"debgcd.system.files": {"json.loads"}, "debgcd.config.merge": {"yaml.parse"}}
    assert found == allowed.get(module, set()), f"{module}: use files.parse_json or overlay.parse_yaml"


def test_truth_is_read_only_where_results_are_measured() -> None:
    """Of the rooms that a run goes through; the others list images or take samples of sets before a run."""
    runs = [
        name for name in MODULES if name.split(".")[1:2] in (["model"], ["losses"], ["cluster"], ["methods"], ["train"])
    ]
    readers = {
        name
        for name in runs
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Attribute) and node.attr in ("truths", "truth_ids")
    }
    assert readers == {"debgcd.train.callbacks", "debgcd.train.evaluation"}


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "statement",
    ["import debgcd; debgcd.__version__", "from debgcd.cli import main; main([])", "from debgcd import config"],
)
def test_what_must_be_quick_does_not_import_torch(statement: str) -> None:
    assert not loaded_after(statement) & {"torch", "transformers", "sklearn", "scipy", "PIL"}


def test_no_module_imports_a_library_of_another_feature() -> None:
    """The extras are optional: each is imported only within a function."""
    extras = {"pyarrow", "pillow_heif", "simplejpeg", "tensorboard", "onnx", "fastapi", "uvicorn", "matplotlib"}
    for module, tree in TREES.items():
        top_level = ast.Module([node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))], [])
        assert not {name.split(".")[0] for name in imported(top_level)} & extras, module


# The two pages about the code.

ARCHITECTURE = ROOT / "docs" / "architecture.md"


def test_the_architecture_names_every_room_in_its_order_and_only_files_that_exist() -> None:
    text = ARCHITECTURE.read_text("utf-8")
    table = text[text.index("| room | purpose |") :]
    named = re.findall(r"`debgcd/([\w]+)(?:/|\.py)`", table[: table.index("## Guarantees")])
    assert {module.split(".")[1] for module in MODULES if module != "debgcd"} == set(named)
    order = [room(f"debgcd.{name}") for name in named]
    assert order == sorted(order)
    files = {name.removeprefix("debgcd/") for name in re.findall(r"`([a-z_/]+\.py)`", text) if "/" in name}
    there = {name for name in files if not name.startswith(("tests/", "benchmarks/"))} - {"methods/sure.py"}
    assert len(there) > 10 and {name for name in there if not (PACKAGE / name).is_file()} == set()


SELF_EXPLAINING = {
    "debgcd.commands",
    "debgcd.methods",
    "debgcd.reproduce.bench",
}  # one file per command, method, measure


@pytest.mark.parametrize("package", [name for name, path in MODULES.items() if path.name == "__init__.py"][1:])
def test_a_room_lists_its_files(package: str) -> None:
    text = ast.get_docstring(TREES[package]) or ""
    inside = {name.removeprefix(f"{package}.") for name in MODULES if name.startswith(f"{package}.")}
    direct = {name for name in inside if "." not in name}
    named = set(re.findall(r"`([a-z_0-9]+)`", text))
    assert text and (package in SELF_EXPLAINING or direct <= named), direct - named
    assert not set(re.findall(r"^- `([a-z_]+)`", text, re.MULTILINE)) - direct


def test_the_architecture_points_at_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", ARCHITECTURE.read_text("utf-8"))
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_page_is_in_the_index() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    linked = set(re.findall(r"\]\(([\w-]+\.md)", (ROOT / "docs" / "README.md").read_text("utf-8")))
    assert linked == pages


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
            file = (page.parent / target).resolve() if target else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, anchor
