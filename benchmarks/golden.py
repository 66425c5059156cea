"""Does this tree train what another revision trains? Both run on this machine, one after the other; nothing is stored.

    python benchmarks/golden.py --base HEAD~1               every case
    python benchmarks/golden.py --base main --only debgcd   the cases whose name contains this

A case is a method with or without a view bank, on one or two ranks, on digits: 44 training images in blocks of 6 centre
crops, so that every rank has several blocks and the last one is not full. Compared are the tensors of the model (by name,
through RENAMES), predictions.csv by bytes, evaluation.json and the first logged step by value. Not compared: checkpoints,
hashes, state.json. Exit code 0 if all cases agree.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BLOCK = 6  # centre crops per block
# Tensors that have another name in this tree: a pattern of the base's name -> the name here.
RENAMES: dict[str, str] = {}
UNSEEN = {"images_per_second", "seconds", "time"}  # of a logged step: they differ from run to run
# Enough to reach every part of a method in a second or two; a method takes the keys that it has.
FAST: dict[str, object] = {
    "views.size": 32,
    "views.resize": 36,
    "views.bank_views": 3,
    "heads.hidden": 16,
    "heads.projection_width": 8,
    "heads.detector_width": 8,
    "schedule.batch": 10,
    "schedule.steps": 12,
    "first.steps": 6,
    "run.checkpoint_every": 100,
    "run.watch": "warn",
}
NEEDS_VIT = {"promptcal"}


@dataclass(frozen=True)
class Case:
    """A training, and the name of its folder."""

    name: str
    method: str
    bank: str
    ranks: int
    more: tuple[str, ...] = ()


def cases(methods: list[str]) -> list[Case]:
    """Every method, with and without a bank, on one rank and on two; and what only DebGCD has."""
    kinds = [(method, method, ("--k", "8")) for method in methods]
    kinds += [
        ("debgcd-auto", "debgcd", ("--k", "auto")),
        ("debgcd-one-vs-all", "debgcd", ("--k", "8", "--detector", "one-vs-all")),
        ("debgcd-paper", "debgcd", ("--k", "8", "--preset", "paper")),
        ("debgcd-released", "debgcd", ("--k", "8", "--preset", "released")),
        ("simgcd-eagc", "simgcd", ("--k", "8", "--set", "extras.eagc_align=0.7", "--set", "extras.eagc_project=0.5")),
    ]
    return [
        Case(f"{name} bank={bank} ranks={ranks}", method, bank, ranks, more)
        for name, method, more in kinds
        for bank in ("on", "off")
        for ranks in (1, 2)
    ]


# In a process of its own, with the package of one of the two trees.


def work(given: argparse.Namespace) -> int:
    """Train every case with the package that PYTHONPATH names; each in a fork, which has torch loaded already."""
    import torch
    import torch._dynamo  # older trees load it

    import debgcd
    from debgcd import cli
    from debgcd.methods import METHODS

    assert Path(debgcd.__file__).is_relative_to(given.tree), f"{debgcd.__file__} is not in {given.tree}"
    torch.set_num_threads(1)
    _load_all(Path(debgcd.__file__).parent)
    patched = [module for name, module in list(sys.modules.items()) if name.startswith("debgcd") and _set_block(module)]
    assert patched, "no module has CENTRE_BATCH"
    for case in _chosen(list(METHODS), given.only):
        begun = time.monotonic()
        words = _words(case, given)
        codes = _ranked([lambda words=words: cli.main(words)] * case.ranks, given.out / _folder(case))
        said = _last_line(given.out / _folder(case), codes) if any(codes) else ""
        print(f"{case.name:40} {time.monotonic() - begun:5.1f} s {said}", flush=True)
    return 0


def _last_line(folder: Path, codes: list[int]) -> str:
    """What the first rank that failed said last."""
    failed = next(rank for rank, code in enumerate(codes) if code)
    lines = (folder / f"rank-{failed}.log").read_text("utf-8", "replace").splitlines()
    return f"rank {failed}, exit code {codes[failed]}: {lines[-1] if lines else 'nothing said'}"


def _load_all(package: Path) -> None:
    """Import the modules that know the size of a block, wherever they are in this tree."""
    for path in sorted(package.rglob("*.py")):
        if "CENTRE_BATCH" in path.read_text("utf-8"):
            __import__(".".join(path.relative_to(package.parent).with_suffix("").parts))


def _set_block(module: Any) -> bool:
    has = isinstance(getattr(module, "CENTRE_BATCH", None), int)
    if has:
        module.CENTRE_BATCH = BLOCK
    return has


def _chosen(methods: list[str], only: str) -> list[Case]:
    return [case for case in cases(methods) if only in case.name]


def _folder(case: Case) -> str:
    return case.name.replace(" ", "_")


def _words(case: Case, given: argparse.Namespace) -> list[str]:
    """The command line of a case."""
    from debgcd import config as configuration

    preset = case.more[case.more.index("--preset") + 1] if "--preset" in case.more else "small"
    keys = configuration.leaves(configuration.to_dict(configuration.compose(preset, method=case.method)))
    sets = [word for key, value in FAST.items() if key in keys for word in ("--set", f"{key}={value}")]
    fixed = ["train", given.data / "digits.csv", "-o", given.out / _folder(case) / "run", "--method", case.method]
    fixed += [
        "--backbone",
        given.data / "vit" if case.method in NEEDS_VIT else "lite0",
        "--bank",
        case.bank,
        "--workers",
        0,
    ]
    fixed += ["--cache", given.out / "cache", "--no-report", "--set", "run.precision=fp32"]
    fixed += [] if "--preset" in case.more else ["--preset", "small"]
    return [str(word) for word in [*fixed, *sets, *case.more]]


def _ranked(works: list[Any], folder: Path) -> list[int]:
    """Exit codes of one job, a fork per rank; what each prints is in the folder."""
    import socket

    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(len(works))}
    children = []
    for rank, each in enumerate(works):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 99
        try:
            log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if len(works) > 1:
                os.environ.update(place | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            code = each()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


# The data, and the two trees.


def make_data(folder: Path) -> None:
    """Digits as PNG files: eight classes, four of them known, 44 training images and 12 of the test split; and a tiny ViT."""
    import csv

    import numpy as np
    import torch
    from PIL import Image
    from sklearn.datasets import load_digits
    from transformers import ViTConfig, ViTModel

    digits = load_digits()
    rows, seen = [], dict.fromkeys(range(8), 0)
    for image, digit in zip(digits.images, digits.target.tolist(), strict=True):
        number = seen.get(digit, 99)
        if number >= 7:
            continue
        seen[digit] += 1
        path = folder / f"{digit}-{number}.png"
        Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8)).resize((40, 40)).save(path)
        split = "test" if number == 6 or (number == 5 and digit < 4) else "train"
        rows.append([path, f"d{digit}" if digit < 4 and number < 3 and split == "train" else "", f"d{digit}", split])
    with open(folder / "digits.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["path", "label", "truth", "split"], *rows])
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 128}
    ViTModel(ViTConfig(**sizes, image_size=32, patch_size=8)).save_pretrained(folder / "vit")


@contextmanager
def work_tree(revision: str, folder: Path) -> Iterator[Path]:
    """The files of a revision in a work tree of their own."""
    git = ["git", "-C", str(ROOT)]
    subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(folder), revision], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(folder)], check=True)


def run_tree(tree: Path, out: Path, data: Path, only: str) -> None:
    print(f"\n{out.name}", flush=True)
    words = [sys.executable, __file__, "--tree", tree, "--out", out, "--data", data, "--only", only]
    surroundings = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "DEBGCD_CACHE": str(out / "cache")}
    subprocess.run([str(word) for word in words], env=surroundings, cwd=tree, check=True)


# The comparison.


def differences(base: Path, here: Path, tolerance: float) -> list[str]:
    """What is not the same in two run directories; empty if all is."""
    missing = [str(run) for run in (base, here) if not (run / "predictions.csv").exists()]
    if missing:
        return [f"no predictions in {' and '.join(missing)}"]
    found = _tensors(base, here, tolerance)
    if (base / "predictions.csv").read_bytes() != (here / "predictions.csv").read_bytes():
        pairs = zip(*((run / "predictions.csv").read_text("utf-8").splitlines() for run in (base, here)), strict=False)
        found.append(f"predictions.csv: {sum(one != other for one, other in pairs)} rows")
    one, other = (json.loads((run / "evaluation.json").read_text("utf-8")) for run in (base, here))
    found += _values(one, other, tolerance, "evaluation.json")
    one, other = (_first_step(run) for run in (base, here))
    return found + _values(one, other, tolerance, "step 1")


def _tensors(base: Path, here: Path, tolerance: float) -> list[str]:
    from safetensors.torch import load_file

    one, other = (load_file(run / "model" / "model.safetensors") for run in (base, here))
    one = {_renamed(name): value for name, value in one.items()}
    found = [f"tensor {name} is only in one model" for name in sorted(set(one) ^ set(other))]
    far: dict[str, float] = {}
    for name in sorted(set(one) & set(other)):
        a, b = one[name].double(), other[name].double()
        if a.shape != b.shape:
            found.append(f"tensor {name} has shape {list(a.shape)}, here {list(b.shape)}")
        elif a.numel():
            apart = (a - b).masked_fill(a.isnan() & b.isnan(), 0).nan_to_num(nan=math.inf)  # NaN: a number is not known
            far[name] = float(apart.abs().max() / a.nan_to_num().abs().max().clamp_min(1e-30))
    worst = max(far, key=far.__getitem__, default=None)
    if worst is not None and not far[worst] <= tolerance:
        found.append(f"tensors: {sum(not v <= tolerance for v in far.values())}, {worst} by {far[worst]:.1e}")
    return found


def _renamed(name: str) -> str:
    for pattern, to in RENAMES.items():
        name = re.sub(pattern, to, name)
    return name


def _first_step(run: Path) -> dict[str, Any]:
    """The first line of metrics.jsonl with a loss; empty where nothing was trained."""
    if not (run / "metrics.jsonl").exists():
        return {}
    lines = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    return {key: value for key, value in next((x for x in lines if "loss" in x), {}).items() if key not in UNSEEN}


def _values(one: Any, other: Any, tolerance: float, where: str) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = list(dict.fromkeys([*one, *other]))
        return [x for key in keys for x in _values(one.get(key), other.get(key), tolerance, f"{where} {key}")]
    numbers = all(isinstance(x, float) for x in (one, other))
    same = one == other or (
        numbers and (math.isclose(one, other, rel_tol=tolerance) or (one != one and other != other))
    )
    return [] if same else [f"{where}: {one}, here {other}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD", help="revision to compare with (default: HEAD)")
    parser.add_argument("--only", default="", help="cases whose name contains this, e.g. 'debgcd bank=on'")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="relative; for a change that moves an order of sums"
    )
    for hidden in ("--tree", "--out", "--data"):
        parser.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tree:
        return work(given)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder = Path(name)
        data = folder / "data"
        data.mkdir()
        make_data(data)
        with work_tree(given.base, folder / "tree") as tree:
            run_tree(tree, folder / "base", data, given.only)
        run_tree(ROOT, folder / "here", data, given.only)
        sys.path.insert(0, str(ROOT))
        from debgcd.methods import METHODS

        print()
        chosen, wrong = _chosen(list(METHODS), given.only), 0
        for case in chosen:
            found = differences(
                folder / "base" / _folder(case) / "run", folder / "here" / _folder(case) / "run", given.tolerance
            )
            wrong += bool(found)
            print(f"{case.name:40} {'; '.join(found[:4]) if found else 'same'}{' ...' if len(found) > 4 else ''}")
    print(f"\n{len(chosen) - wrong} of {len(chosen)} cases as at {given.base}; {time.monotonic() - begun:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
