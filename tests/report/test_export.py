"""Exports: each format read back by what reads it, or by its definition; nothing overwritten; names made safe."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime
import pyarrow.parquet
import pytest
import tiny
import torch
from hostile_names import CLASS
from PIL import Image
from quick import train_arguments
from tiers import tiered

from debgcd.cli import main
from debgcd.commands.export import FILES
from debgcd.config.schema import ViewsConfig
from debgcd.data.image.decode import Reason, Unusable
from debgcd.data.loader import from_files
from debgcd.data.sources import read_manifest
from debgcd.data.views import CENTRE, PLAIN
from debgcd.errors import DebgcdError
from debgcd.export.items import Names
from debgcd.export.onnx import SAMPLE, VOTE, Whole, _compare
from debgcd.methods.uno import BestHead, UNOHeadOptions, UNOHeads
from debgcd.model.heads import classifiers
from debgcd.model.prompts import PromptedViT
from debgcd.novelty.vote import BLOCK
from debgcd.review.log import reviewed_predictions
from debgcd.run.directory import Run
from debgcd.run.model_folder import load_model
from debgcd.system.files import csv_field

Command = Callable[..., Any]


def test_csv_is_harmless_and_read_back_as_it_was(command: Command, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert command("export", run.folder, "--to", "csv", "-o", out).code == 0
    with open(out, encoding="utf-8", newline="") as file:
        raw = list(csv.DictReader(file))
    rows, _ = reviewed_predictions(run.folder)
    assert list(raw[0]) == list(rows[0])
    assert {row["id"] for row in raw} <= {f"'{CLASS}", "dog", "new-01"}  # quoted, because it begins with =
    assert not [cell for row in raw for cell in row.values() if cell[:1] in "=+@" and cell[:1]]
    for name in ("path", "id", "name"):
        assert [csv_field(row[name]) for row in raw] == [row[name] for row in rows]
    assert [row["confidence"] for row in raw] == [f"{row['confidence']:.6f}" for row in rows]
    assert "exists" in command("export", run.folder, "--to", "csv", "-o", out).complaint


def test_parquet_has_types(command: Command, run: Run, tmp_path: Path) -> None:
    assert command("export", run.folder, "--to", "parquet", "-o", tmp_path / "out.parquet").code == 0
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pydict()
    rows, _ = reviewed_predictions(run.folder)
    assert table["path"] == [row["path"] for row in rows]
    assert table["category"] == [row["category"] for row in rows] and table["known"] == [row["known"] for row in rows]
    assert table["novelty"] == [np.float32(row["novelty"]) for row in rows]


@pytest.mark.parametrize("link", tiered(["hard"], ["copy", "hard", "symlink"]))
def test_folders_are_read_back_by_check_and_train(command: Command, run: Run, tmp_path: Path, link: str) -> None:
    out = tmp_path / "sorted"
    assert command("export", run.folder, "--to", "folders", "--separate", "-o", out, "--link", link).code == 0
    manifest = read_manifest(out)
    assert len(manifest) == 80 and not manifest.skipped
    assert sum(label is not None for label in manifest.labels) == 10 and len(manifest.classes) == 2
    sizes = {folder.name: len(list(folder.iterdir())) for folder in (out / "unlabelled").iterdir()}
    rows, _ = reviewed_predictions(run.folder)
    assert sorted(sizes.values()) == sorted(np.unique([row["category"] for row in rows], return_counts=True)[1])
    one = next((out / "unlabelled").rglob("u20.png"))
    assert one.is_symlink() == (link == "symlink") and (one.lstat().st_nlink > 1) == (link == "hard")
    assert command("check", out).code == 0
    (out / "mine").write_text("kept")
    assert "exists" in command("export", run.folder, "--to", "folders", "-o", out, "--force").complaint
    assert (out / "mine").read_text() == "kept"


def test_folders_have_labelled_and_unlabelled_images_of_a_category_together(
    command: Command, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "sorted"
    assert command("export", run.folder, "--to", "folders", "-o", out, "--link", "symlink").code == 0
    found = {folder.name: {file.name for file in folder.iterdir()} for folder in out.iterdir()}
    assert len(found) == 3 and sum(map(len, found.values())) == 80
    mine = [row for row in reviewed_predictions(run.folder)[0] if row["name"] == "dog"]
    assert len(found["dog"]) == len(mine) + 5 and {"l1.png", "l3.png"} < found["dog"] and "l0.png" not in found["dog"]
    manifest = read_manifest(out)  # every category is a class
    assert len(manifest.classes) == 3 and None not in manifest.labels
    assert Names({"labelled"}).give("Labelled") == "Labelled-2"
    assert "--separate" in command("export", run.folder, "--to", "hf", "--separate", "-o", tmp_path / "hf").complaint


def test_a_format_that_needs_a_package_is_named_by_its_extra(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    """Without pillow-heif a HEIC image is left out of COCO, with the command that helps."""
    from debgcd.export import annotations
    from debgcd.export.annotations import write_coco

    def without(path: Any) -> tuple[int, int]:
        if Path(path).name == "u20.png":
            raise Unusable(Reason.UNSUPPORTED, "HEIF needs the package pillow_heif; pip install 'debgcd[heif]'")
        return 24, 24

    said: list[str] = []
    monkeypatch.setattr(annotations, "file_size", without)
    monkeypatch.setattr("debgcd.export.items.say", said.append)
    write_coco(run, tmp_path / "coco.json")
    assert len(said) == 1 and "u20.png (unsupported: " in said[0] and "debgcd[heif]" in said[0]


@pytest.mark.parametrize("to", ["folders", "hf", "fiftyone", "coco"])
def test_an_image_that_vanished_is_left_out_and_named(command: Command, run: Run, tmp_path: Path, to: str) -> None:
    place, out = run.folder.parent / "u40.png", tmp_path / "out"
    shutil.move(place, tmp_path / "away.png")
    try:
        done = command("export", run.folder, "--to", to, "-o", out)
    finally:
        shutil.move(tmp_path / "away.png", place)
    assert done.code == 0 and "left out" in done.err and "u40.png" in done.err
    if to == "coco":
        assert len(json.loads(out.read_text("utf-8"))["images"]) == 79
        return
    assert sum(path.suffix == ".png" for path in out.rglob("*") if path.is_file()) == 79
    listed = {"hf": "metadata.csv", "fiftyone": "labels.json"}
    assert to == "folders" or "u40" not in (out / listed[to]).read_text("utf-8")


def test_hugging_faces_imagefolder(command: Command, run: Run, tmp_path: Path) -> None:
    assert command("export", run.folder, "--to", "hf", "-o", tmp_path / "hf").code == 0
    with open(tmp_path / "hf" / "metadata.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 80 and len({row["file_name"] for row in rows}) == 80
    for row in rows:
        assert (tmp_path / "hf" / row["file_name"]).is_file() and ".." not in row["file_name"]
    assert sum(row["labelled"] == "true" for row in rows) == 10


def test_fiftyones_dataset(command: Command, run: Run, tmp_path: Path) -> None:
    assert command("export", run.folder, "--to", "fiftyone", "-o", tmp_path / "fo").code == 0
    found = json.loads((tmp_path / "fo" / "labels.json").read_text("utf-8"))
    files = {path.stem for path in (tmp_path / "fo" / "data").iterdir()}
    assert set(found["labels"]) == files and len(files) == 80
    assert found["classes"] == [CLASS, "dog", "new-01"]
    assert all(0 <= one["label"] < 3 and 0 <= one.get("confidence", 1) <= 1 for one in found["labels"].values())


def test_coco(command: Command, run: Run, tmp_path: Path) -> None:
    assert command("export", run.folder, "--to", "coco", "-o", tmp_path / "coco.json").code == 0
    found = json.loads((tmp_path / "coco.json").read_text("utf-8"))
    assert {c["id"]: (c["name"], c["supercategory"]) for c in found["categories"]}[3] == ("new-01", "new")
    images = {image["id"]: image for image in found["images"]}
    assert len(images) == len(found["annotations"]) == 80
    for note in found["annotations"]:
        image = images[note["image_id"]]
        assert note["bbox"] == [0, 0, image["width"], image["height"]] == [0, 0, 24, 24] and note["area"] == 576
        assert Path(image["file_name"]).is_file() and note["category_id"] in (1, 2, 3)


def test_label_studios_tasks(command: Command, run: Run, tmp_path: Path) -> None:
    assert command("export", run.folder, "--to", "labelstudio", "-o", tmp_path / "ls.json").code == 0
    tasks = json.loads((tmp_path / "ls.json").read_text("utf-8"))
    assert sum("annotations" in task for task in tasks) == 10 and len(tasks) == 80
    for task in tasks:
        assert task["data"]["image"].startswith("/data/local-files/?d=") and " " not in task["data"]["image"]
        (said,) = task.get("predictions") or task["annotations"]
        (choice,) = said["result"]
        assert (choice["type"], choice["from_name"], choice["to_name"]) == ("choices", "category", "image")
        assert choice["value"]["choices"][0] in (CLASS, "dog", "new-01")
    setup = ElementTree.parse(tmp_path / "ls_setup.xml")
    assert [choice.get("value") for choice in setup.iterfind("Choices/Choice")] == [CLASS, "dog", "new-01"]
    (tmp_path / "ls.json").unlink()
    assert "ls_setup.xml" in command("export", run.folder, "--to", "labelstudio", "-o", tmp_path / "ls.json").err


def test_safe_names() -> None:
    names = Names()
    given = [
        names.give(name)
        for name in (
            "a/b",
            "a\\b",
            "A_B",
            "..",
            "",
            "con",
            "CON.txt",
            ".hidden",
            "__MACOSX",
            "Thumbs.db",
            "x" * 300,
            "é" * 200,
        )
    ]
    assert given[:7] == ["a_b", "a_b-2", "A_B-3", "_", "_-2", "_con", "_CON.txt"]
    assert given[7:10] == ["hidden", "___MACOSX", "_Thumbs.db"] and len({name.lower() for name in given}) == len(given)
    assert all(len(name.encode()) < 200 and Path(name).name == name for name in given)
    assert names.give("183.Northern_Waterthrush") == "183.Northern_Waterthrush"


def test_what_export_refuses(command: Command, run: Run, tmp_path: Path) -> None:
    assert (
        "--link" in command("export", run.folder, "--to", "csv", "-o", tmp_path / "x.csv", "--link", "hard").complaint
    )
    assert "run directory" in command("export", run.folder, "--to", "csv", "-o", run.folder / "x.csv").complaint
    assert "not a run directory" in command("export", tmp_path, "--to", "csv", "-o", tmp_path / "x.csv").complaint


@pytest.fixture(scope="module", params=tiered(["lite0"], ["lite0", "vit"]))
def exported(
    request: pytest.FixtureRequest, run: Run, vit_run: Run, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The run directory and the ONNX file of a model with lite0, and of one with a tiny ViT with registers."""
    folder = tmp_path_factory.mktemp("onnx")
    place = (run if request.param == "lite0" else vit_run).folder
    assert main(["export", str(place), "--to", "onnx", "-o", str(folder / "model.onnx")]) == 0
    return place, folder / "model.onnx"


def test_onnx_says_what_the_model_says(exported: tuple[Path, Path], tmp_path: Path) -> None:
    place, file = exported
    model = load_model(place / "model", backbone=None, cache=tmp_path, device="cpu")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    size = model.config.views.size
    random = np.random.default_rng(0)
    base = random.integers(0, 256, (200, 3, 1, 1))  # plain colours and noise: answers that differ
    pixels = np.clip(base + random.normal(0, 40, (200, 3, size, size)), 0, 255).astype(np.uint8)
    with torch.no_grad():
        feature, p, novelty = (part.numpy() for part in Whole(model)(torch.from_numpy(pixels)))
    for step in (1, 7):
        parts = [session.run(None, {"pixels": pixels[i : i + step]}) for i in range(0, 200, step)]
        ours = [np.concatenate(column) for column in zip(*parts, strict=True)]
        assert (ours[1].argmax(1) == p.argmax(1)).all()
        assert np.abs(ours[1] - p).max() < 1e-4
        apart = np.abs(ours[2] - novelty)  # of two neighbours that are equally near, rounding decides
        assert np.median(apart) < 1e-4 and apart.max() < VOTE
        assert np.abs(ours[0] - feature).max() < 1e-3 * np.abs(feature).max()
    many = np.repeat(pixels, 11, 0)  # more than the vote takes at once elsewhere
    assert len(many) > BLOCK and np.abs(session.run(["novelty"], {"pixels": many})[0][::11] - novelty).max() < VOTE


def test_onnx_knows_its_categories_and_runs_without_debgcd(exported: tuple[Path, Path], tmp_path: Path) -> None:
    place, file = exported
    facts = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    assert json.loads(facts["categories"]) == json.loads((place / "model" / "categories.json").read_text("utf-8"))
    assert json.loads(facts["preprocessing"])["centre_crop"] == 32
    photo = tmp_path / "photo.jpg"
    Image.fromarray(np.full((60, 90, 3), (210, 60, 50), np.uint8)).save(photo)
    script = file.with_name("model_predict.py")
    imports = [line for line in script.read_text().splitlines() if line.startswith(("import", "from"))]
    assert not [line for line in imports if "torch" in line or "debgcd" in line]
    said = subprocess.run([sys.executable, script, file, photo], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"{photo}: ") and "novelty" in said


def test_onnx_that_differs_is_refused(exported: tuple[Path, Path], tmp_path: Path) -> None:
    place, file = exported
    model = load_model(place / "model", backbone=None, cache=tmp_path, device="cpu")
    document = onnx.load(file)
    session = onnxruntime.InferenceSession(document.SerializeToString())
    pixels = np.zeros((14, 3, 32, 32), np.uint8)
    _compare(Whole(model), session, pixels)
    with torch.no_grad():
        for head in classifiers(model.network.heads).values():
            noise = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(0))
            head.weight.add_(0.1 * noise)
    with pytest.raises(DebgcdError, match="differs from the original"):
        _compare(Whole(model), session, pixels)


class Tail(torch.nn.Module):
    """A backbone's tail as a module of its own."""

    def __init__(self, backbone: PromptedViT):
        super().__init__()
        self.backbone, self.inner = backbone, backbone.inner

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.backbone.tail(tokens)


def test_parts_of_other_methods_leave_the_number_of_images_open(tmp_path: Path) -> None:
    """UNO's best head is a number in a buffer, and PromptCAL repeats its prompts for each image; neither may become a constant."""
    uno = UNOHeads(8, 5, 2, UNOHeadOptions(hidden=8, projection_width=8))
    uno.reset(torch.Generator().manual_seed(0))
    best = BestHead(uno)
    best.get_buffer("best").fill_(1)
    tiny.hub_model("vit", tmp_path / "vit")
    prompted = PromptedViT(tiny.load(tmp_path / "vit"), count=2, supervised=1, seed=0).eval()
    pixels = torch.randn(7, 4, tiny.NATIVE, tiny.NATIVE, generator=torch.Generator().manual_seed(0))
    for module, given in ((best, pixels[:, 0, 0, :8]), (Tail(prompted), pixels)):
        shapes = ({0: torch.export.Dim("images", min=2)},)
        with torch.no_grad():
            traced = torch.export.export(module, (given[:2],), dynamic_shapes=shapes).module()
            assert torch.allclose(traced(given), module(given), atol=1e-5)
    said = uno(pixels[:, 0, 0, :8])
    assert torch.equal(best(pixels[:, 0, 0, :8]), said[:, 1, :5])


SECRET = "not an image of the run"


@pytest.fixture
def swapped(shared_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A finished run, one of whose images is now a link to a text, one another image, and one gone."""
    images = shutil.copytree(shared_folder, tmp_path / "tiny")
    assert main(train_arguments(images, tmp_path / "run", "--method", "sskmeans")) == 0
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    (images / "unlabelled" / "11.png").unlink()
    (images / "unlabelled" / "11.png").symlink_to(secret)
    shutil.copy(images / "unlabelled" / "12.png", images / "labelled" / "cat" / "02.png")
    (images / "unlabelled" / "13.png").unlink()
    return tmp_path / "run", images


@pytest.mark.tries("images replaced or gone after a run", "refused")
@pytest.mark.parametrize("to", ["folders", "hf", "fiftyone", "coco", "labelstudio"])
@pytest.mark.parametrize("link", tiered(["copy", "hard"], ["copy", "hard", "symlink"]))
def test_only_files_that_are_what_they_were_are_exported(
    command: Command, swapped: tuple[Path, Path], tmp_path: Path, to: str, link: str
) -> None:
    if to in ("coco", "labelstudio") and link != "copy":
        pytest.skip("writes no images")
    run, images = swapped
    out = tmp_path / "out"
    done = command("export", run, "--to", to, "-o", out, *([] if to in FILES else ["--link", link]))
    assert done.code == 0
    for name in ("unlabelled/11.png", "labelled/cat/02.png", "unlabelled/13.png"):
        assert str(images / name) in done.err
    written = [path for path in out.rglob("*") if path.is_file()] if out.is_dir() else [out]
    assert written and not any(SECRET.encode() in path.read_bytes() for path in written)
    if to == "coco":
        assert len(json.loads(out.read_text("utf-8"))["images"]) == 21
    elif to == "labelstudio":
        assert len(json.loads(out.read_text("utf-8"))) == 21
    else:
        assert sum(path.suffix == ".png" for path in written) == 21


@pytest.mark.tries("images replaced or gone after a run", "refused")
def test_a_report_shows_only_files_that_are_what_they_were(
    command: Command, swapped: tuple[Path, Path], tmp_path: Path
) -> None:
    run, _ = swapped
    assert command("report", run, "-o", tmp_path / "report.html").code == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "2 images cannot be read any more or are not what they were" in page
    assert page.count("changed: it is not the file that the run was trained on") == 1
    for words in (["evaluate", run], ["estimate-k", run]):
        assert "13.png" in command(*words).complaint or "changed" in command(*words).complaint


@pytest.mark.tries("images replaced or gone after a run", "refused")
def test_an_export_of_which_nothing_is_left(command: Command, swapped: tuple[Path, Path], tmp_path: Path) -> None:
    run, images = swapped
    for path in images.rglob("*.png"):
        path.unlink()
    said = command("export", run, "--to", "folders", "-o", tmp_path / "out")
    assert said.code == 3 and "no image of the run can be used" in said.err and not (tmp_path / "out").exists()


DEEP = {
    "16 bits": Image.fromarray((np.linspace(0, 1, 60 * 90).reshape(60, 90) * 20_000).astype(np.uint16)),
    "transparent": Image.fromarray(np.dstack([np.full((60, 90, 3), 40), np.tile(np.arange(90), (60, 1))]).astype(np.uint8)),
    "grey and transparent": Image.fromarray(np.dstack([np.full((60, 90), 9), np.full((60, 90), 80)]).astype(np.uint8)),
    "palette": Image.fromarray(np.full((60, 90, 3), (210, 60, 50), np.uint8)).quantize(4),
}  # fmt: skip


@pytest.mark.parametrize("kind", DEEP)
def test_the_onnx_sample_prepares_pixels_as_predict_does(tmp_path: Path, kind: str) -> None:
    scope: dict[str, Any] = {"__name__": "sample"}
    exec(compile(SAMPLE.read_text("utf-8"), str(SAMPLE), "exec"), scope)
    DEEP[kind].save(tmp_path / "image.png")
    views = ViewsConfig(size=32, resize=36)
    ours = from_files([tmp_path / "image.png"], views)[0, CENTRE, (PLAIN,)]
    assert isinstance(ours, torch.Tensor)
    theirs = scope["prepare"](str(tmp_path / "image.png"), 36, 32)
    assert np.abs(theirs.astype(int) - ours[0].numpy()).max() <= 2


def test_label_studio_s_setup_is_xml_whatever_a_class_is_called(
    command: Command, shared_folder: Path, tmp_path: Path
) -> None:
    images = shutil.copytree(shared_folder, tmp_path / "images")
    (images / "labelled" / "cat").rename(images / "labelled" / "c\x07a\x1bt\ufffe")
    assert main(train_arguments(images, tmp_path / "run", "--method", "kmeans")) == 0
    assert command("export", tmp_path / "run", "--to", "labelstudio", "-o", tmp_path / "ls.json").code == 0
    setup = ElementTree.parse(tmp_path / "ls_setup.xml")
    names = {choice.get("value") for choice in setup.iterfind("Choices/Choice")}
    assert r"c\x07a\x1bt\ufffe" in names
    tasks = json.loads((tmp_path / "ls.json").read_text("utf-8"))
    said = [part for task in tasks for part in (*task.get("annotations", []), *task.get("predictions", []))]
    assert {choice for one in said for choice in one["result"][0]["value"]["choices"]} <= names
