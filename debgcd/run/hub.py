"""A model folder on a model hub: pushed by `debgcd push`, fetched by `Discoverer.from_pretrained`.

Only safetensors, JSON and the card travel, never a file that could be executed. HF_ENDPOINT names another hub, HF_TOKEN the account.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from debgcd.errors import DataError, UsageError
from debgcd.run.model_folder import LABELS
from debgcd.run.parts_file import PARTS
from debgcd.run.so_far_file import SO_FAR
from debgcd.system.files import read_json, readable, write_json

FILES = ("model.safetensors", "config.json", "categories.json", "README.md", LABELS, PARTS, SO_FAR)
NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # USER/NAME
LOCAL = ("start", "run.cache")  # keys of the configuration that name folders of the machine that trained


def push(folder: Path, repo: str, *, private: bool = False) -> str:
    """Upload a model folder, and create the repository if there is none; returns the address of the commit."""
    from huggingface_hub import HfApi

    _require_name(repo)
    if not (folder / "model.safetensors").is_file():
        raise DataError(f"{folder} holds no model; has the run finished?")
    with tempfile.TemporaryDirectory(prefix="debgcd-") as temporary:
        copy = Path(temporary) / "model"
        _copy(folder, copy)
        try:
            api = HfApi(library_name="debgcd")
            api.create_repo(repo, private=private or None, exist_ok=True)
            commit = api.upload_folder(repo_id=repo, folder_path=copy, commit_message="Upload a model of debgcd")
        except Exception as error:  # the hub client raises its own errors, those of its HTTP library and OSErrors
            raise DataError(
                f"{repo} cannot be written on the hub ({_reason(error)}); set HF_TOKEN to a token with write access, or "
                "HF_ENDPOINT to a hub that you can reach"
            ) from error
    return str(commit.commit_url)


def pull(repo: str, *, revision: str | None, cache: Path) -> Path:
    """The local folder of a pushed model, downloaded unless this revision is cached; revision: a branch, tag or commit."""
    from huggingface_hub import snapshot_download

    _require_name(repo)
    try:
        folder = snapshot_download(repo, revision=revision, cache_dir=cache / "hub", allow_patterns=list(FILES))
    except Exception as error:
        at = f"{repo} at revision {revision}" if revision else repo
        raise DataError(
            f"{at} cannot be fetched from the hub ({_reason(error)}); check the name, set HF_TOKEN for a private model, or "
            "HF_ENDPOINT to a hub that you can reach"
        ) from error
    return Path(folder)


def _require_name(repo: str) -> None:
    if not NAME.fullmatch(repo):
        raise UsageError(f"{repo!r} is not the name of a model on the hub; give USER/NAME, e.g. anna/pond-insects")


def _copy(folder: Path, copy: Path) -> None:
    """The files that travel, without the names of local folders; refused if others could not load the model."""
    copy.mkdir()
    for name in FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, copy / name)
    with readable(folder / "config.json", "restore it"):
        facts = read_json(copy / "config.json")
        backbone = str(facts["config"]["backbone"]["name"])
        for key in LOCAL:
            *sections, last = key.split(".")
            section = facts["config"]
            for part in sections:
                section = section[part]
            section[last] = None
    if backbone.startswith(("/", ".", "~")) or Path(backbone).suffix in (".pth", ".pt"):
        raise UsageError(
            f"the model's backbone is {backbone}, which only this machine has; train with a backbone of the hub or a built-in one"
        )
    write_json(copy / "config.json", facts)


def _reason(error: BaseException) -> str:
    """The error's class and, of an answer of the hub, its number, without addresses or tokens."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return type(error.__cause__ or error).__name__ + (f", HTTP {status}" if status else "")
