"""Completion of commands and options, and what a mistyped one is answered with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from debgcd.cli import COMMANDS, main
from debgcd.commands.completion import SCRIPTS
from debgcd.methods import METHODS


def completed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["--complete", *words]) == 0
    return capsys.readouterr().out.split()


def test_words_complete_to_what_the_parser_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert completed(capsys, "tr") == ["train"]
    assert set(COMMANDS) < set(completed(capsys, ""))
    assert completed(capsys, "train", "--quality", "b") == ["balanced", "best"]
    assert set(completed(capsys, "train", "--method", "")) == set(METHODS)
    assert "--method" in completed(capsys, "train", "photos/", "--m")
    assert "cub" in completed(capsys, "train", "--benchmark", "")
    assert completed(capsys, "export", "run", "--to", "fol") == ["folders"]


@pytest.mark.parametrize(
    "words", [("nonsense", "x"), ("train", "--out", "x"), ("train", "--json", ""), ("train", "photos/")]
)
def test_a_file_or_a_free_text_has_no_candidates(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert completed(capsys, *words) == []


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_shell_completes(shell: str, tmp_path: Path) -> None:
    """A real shell, if it is installed, asks a real process."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    command = tmp_path / "debgcd"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m debgcd "$@"\n', "utf-8")
    command.chmod(0o755)
    line = {
        "bash": "source <(debgcd --completion bash); COMP_WORDS=(debgcd train --quality b); COMP_CWORD=3; _debgcd; "
        'printf "%s\\n" "${COMPREPLY[@]}"',
        "zsh": "compdef() { :; }; compadd() { shift; print -l $@; }; source <(debgcd --completion zsh); "
        "words=(debgcd train --quality b); CURRENT=4; _debgcd",
        "fish": 'debgcd --completion fish | source; complete -C "debgcd train --quality b"',
    }[shell]
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(
        [shell, "-c", line], capture_output=True, text=True, env={"PATH": path, "HOME": str(tmp_path)}
    )
    found = done.stdout.split()  # fish adds files
    assert [word for word in found if not word.endswith("/")] == ["balanced", "best"], done.stderr


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["trian", "photos"], "there is no 'trian' (did you mean 'train'?); see debgcd --help"),
        (
            ["train", "--qualty", "fast"],
            "unknown argument --qualty (did you mean '--quality'?); see debgcd train --help",
        ),
        (["train", "--qualty=fast"], "unknown argument --qualty=fast (did you mean '--quality'?)"),
        (["export", "run", "--to", "foldrs"], "there is no 'foldrs' (did you mean 'folders'?)"),
        (["train", "photos", "extra"], "unknown argument extra; see debgcd train --help"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(
    words: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert advice in capsys.readouterr().err
