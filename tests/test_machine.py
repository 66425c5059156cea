"""What is recorded of the machine and its software."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from debgcd.system import machine


def test_environment_has_the_keys_of_environment_json() -> None:
    found = machine.environment()
    assert {"platform", "cpu", "ranks", "python", *machine.PACKAGES} == set(found)
    assert found.pop("ranks") == 1
    assert all(isinstance(value, str) and value for value in found.values())


def test_a_package_that_is_not_installed_is_recorded_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", ("torch", "no-such-package"))
    found = machine.versions.__wrapped__()  # not what was found before
    assert found["no-such-package"] == "not installed"
    assert found["torch"] != "not installed"


def test_facts_are_json() -> None:
    found = machine.facts()
    assert json.loads(json.dumps(found)) == found
    assert set(found) == {"date", "processor", "instructions", "cores", "threads", "versions"}
    assert found["cores"] >= 1 and found["threads"] >= 1


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEBGCD_CACHE", str(tmp_path / "chosen"))
    assert machine.cache_folder(tmp_path / "given") == tmp_path / "given"
    assert machine.cache_folder(None) == tmp_path / "chosen"
    monkeypatch.delenv("DEBGCD_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert machine.cache_folder(None) == tmp_path / ".cache" / "debgcd"
