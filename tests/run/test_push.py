"""A model goes to a hub on this machine and comes back; what would not work elsewhere is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from hub_server import TOKEN, Hub, reached
from shared_runs import SharedRuns

from debgcd import Discoverer
from debgcd.errors import DataError, UsageError
from debgcd.run.hub import push


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with reached(monkeypatch) as server:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


def test_a_pushed_model_answers_as_the_run(hub: Hub, shared_runs: SharedRuns, tmp_path: Path, command: object) -> None:
    run = shared_runs.whole("debgcd")
    done = command("push", run, "anna/pond")  # type: ignore[operator]
    assert done.code == 0, done.err
    assert done.out.strip() == f"{hub.address}/anna/pond/commit/{hub.commit('anna/pond')}"
    files = hub.files["anna/pond"]
    assert set(files) == {"model.safetensors", "config.json", "categories.json", "README.md", "so_far.safetensors"}
    assert files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    card = yaml.safe_load(files["README.md"].decode().split("---")[1])
    assert card["library_name"] == "debgcd"
    accuracy = json.loads((run / "evaluation.json").read_text("utf-8"))["unlabelled"]["gcd"]["accuracy"]
    told = {each["name"]: each["value"] for each in card["model-index"][0]["results"][0]["metrics"]}
    assert told == {name.title(): pytest.approx(100 * value, abs=0.051) for name, value in accuracy.items()}
    images = sorted((shared_runs.folder / "tiny" / "unlabelled").glob("*.png"))
    cache = tmp_path / "cache"
    fetched = Discoverer.from_pretrained("anna/pond", cache=cache, revision=hub.commit("anna/pond"))
    np.testing.assert_array_equal(fetched.predict(images), Discoverer.load(run).predict(images))
    hub.asked.clear()
    Discoverer.from_pretrained("anna/pond", cache=cache, revision=hub.commit("anna/pond"))
    assert hub.asked == []  # a commit never changes, so it is not asked for twice
    assert Discoverer.from_pretrained(str(run / "model")).categories_ == Discoverer.load(run).categories_


def test_nothing_of_this_machine_is_pushed(hub: Hub, shared_runs: SharedRuns) -> None:
    push(shared_runs.whole("debgcd") / "model", "anna/pond", private=True)
    assert hub.private["anna/pond"]
    assert str(shared_runs.folder).encode() not in b"".join(hub.files["anna/pond"].values())
    assert json.loads((shared_runs.whole("debgcd") / "model" / "config.json").read_text())["config"]["run"]["cache"]


def test_only_what_cannot_be_executed_is_fetched(hub: Hub, shared_runs: SharedRuns, tmp_path: Path) -> None:
    push(shared_runs.whole("debgcd") / "model", "anna/pond")
    hub.files["anna/pond"] |= {"code.py": b"raise SystemExit", "weights.bin": b"\x80\x02", "more.pkl": b"\x80"}
    Discoverer.from_pretrained("anna/pond", cache=tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".py", ".bin", ".pkl")]


@pytest.mark.parametrize("name", ["pond", "anna/pond/deep", "https://x.org/a/b", "../a/b", "anna/"])
def test_a_name_that_is_none(name: str, hub: Hub, shared_runs: SharedRuns) -> None:
    with pytest.raises(UsageError, match=r"USER/NAME"):
        push(shared_runs.whole("debgcd") / "model", name)
    with pytest.raises(UsageError, match=r"USER/NAME"):
        Discoverer.from_pretrained(name)
    assert hub.asked == []


def test_without_a_token_the_sentence_names_it(
    hub: Hub, shared_runs: SharedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(DataError, match=r"^anna/pond cannot be written on the hub \(.*401\); set HF_TOKEN"):
        push(shared_runs.whole("debgcd") / "model", "anna/pond")


def test_a_model_that_is_not_there(hub: Hub, shared_runs: SharedRuns, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^anna/none cannot be fetched from the hub \("):
        Discoverer.from_pretrained("anna/none", cache=tmp_path)
    push(shared_runs.whole("debgcd") / "model", "anna/pond")
    with pytest.raises(DataError, match=r"^anna/pond at revision v9 cannot be fetched"):
        Discoverer.from_pretrained("anna/pond", cache=tmp_path, revision="v9")
    hub.files["anna/pond"]["model.safetensors"] = b"another"
    with pytest.raises(DataError, match="restore it or train again"):
        Discoverer.from_pretrained("anna/pond", cache=tmp_path)


def test_a_backbone_that_only_this_machine_has(hub: Hub, shared_runs: SharedRuns, tmp_path: Path) -> None:
    shutil.copytree(shared_runs.whole("debgcd") / "model", tmp_path / "model")
    place = tmp_path / "model" / "config.json"
    facts = json.loads(place.read_text("utf-8"))
    facts["config"]["backbone"]["name"] = "/home/anna/vit"
    place.write_text(json.dumps(facts), "utf-8")
    with pytest.raises(UsageError, match="only this machine has"):
        push(tmp_path / "model", "anna/pond")
    assert hub.files == {}
    with pytest.raises(DataError, match="holds no model"):
        push(tmp_path, "anna/pond")
