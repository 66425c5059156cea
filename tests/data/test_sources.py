"""Folders and tables: which files are images, which folders are classes, and what is said about the rest."""

import csv
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as pq
import pytest
from PIL import Image

from debgcd.data.manifest import Manifest, write_manifest, write_skipped
from debgcd.data.scan import scan
from debgcd.data.sources import read_manifest
from debgcd.errors import DataError, UsageError


def image(path: Path, colour: str = "red") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), colour).save(path, "PNG")
    return path


def table(folder: Path, text: str, name: str = "m.csv") -> Path:
    (folder / name).write_bytes(text.encode())
    return folder / name


def rows(manifest: Manifest, root: Path) -> list[tuple[str, str | None]]:
    return [(str(path.relative_to(root)), label) for path, label in zip(manifest.paths, manifest.labels, strict=True)]


def reasons(manifest: Manifest) -> dict[str, str]:
    return {os.path.basename(entry.file): entry.reason.split(":")[0] for entry in manifest.skipped}


def test_labelled_and_unlabelled(tmp_path: Path) -> None:
    for name in (
        "labelled/cat/deep/er/1.jpg",
        "labelled/10/2.PNG",
        "labelled/9/3.jpeg",
        "unlabelled/x/4.jpg",
        "root.tif",
    ):
        image(tmp_path / name)
    (tmp_path / "labelled/nothing").mkdir()
    image(tmp_path / "labelled/loose.jpg")
    manifest = read_manifest(tmp_path)
    assert rows(manifest, tmp_path) == [
        ("labelled/10/2.PNG", "10"),
        ("labelled/9/3.jpeg", "9"),
        ("labelled/cat/deep/er/1.jpg", "cat"),
        ("root.tif", None),
        ("unlabelled/x/4.jpg", None),
    ]
    assert manifest.classes == ("10", "9", "cat")
    assert manifest.training_labels.tolist() == [0, 1, 2, -1, -1]
    assert manifest.training_labels.dtype == np.int64
    assert set(manifest.splits) == {"train"}
    assert set(manifest.truths) == {None}
    assert reasons(manifest) == {"loose.jpg": "no-class"}


@pytest.mark.parametrize("name", ["unlabelled", "unlabeled", "_unlabelled", "_unlabeled", "Unlabelled"])
def test_class_folders_beside_the_unlabelled(tmp_path: Path, name: str) -> None:
    image(tmp_path / "cat/a.jpg"), image(tmp_path / "dog/b.jpg"), image(tmp_path / name / "cat/c.jpg")
    assert sorted(rows(read_manifest(tmp_path), tmp_path)) == sorted(
        [("cat/a.jpg", "cat"), ("dog/b.jpg", "dog"), (f"{name}/cat/c.jpg", None)]
    )


def test_labelled_beside_class_folders_is_ambiguous(tmp_path: Path) -> None:
    image(tmp_path / "labelled/cat/a.jpg"), image(tmp_path / "dog/b.jpg")
    with pytest.raises(DataError, match=r"labelled/ and dog/"):
        read_manifest(tmp_path)


def test_what_is_ignored_and_what_is_listed(tmp_path: Path) -> None:
    image(tmp_path / "ok.jpg")
    for name in (".hidden.jpg", ".git/x.jpg", "__MACOSX/x.jpg", "Thumbs.db", "cat/.DS_Store", "cat/._x.jpg"):
        image(tmp_path / name)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "noext").write_text("x")
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "broken.jpg").symlink_to("gone")
    (tmp_path / "self.jpg").symlink_to("self.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    image(tmp_path / "folder.jpg/inside.jpg")
    image(tmp_path / "cat/folder.png/inside.jpg")
    signal.alarm(10)  # should the pipe be opened, the test dies instead of waiting for ever
    manifest = read_manifest(tmp_path)
    signal.alarm(0)
    assert rows(manifest, tmp_path) == [("ok.jpg", None)]
    assert reasons(manifest) == {
        "notes.txt": "not-an-image",
        "noext": "not-an-image",
        "empty.jpg": "empty",
        "broken.jpg": "missing",
        "self.jpg": "symlink-loop",
        "pipe.jpg": "not-a-file",
        "folder.jpg": "not-a-file",
        "folder.png": "not-a-file",
    }


def test_linked_folders_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    image(tmp_path / "elsewhere/a.jpg"), image(tmp_path / "data/cat/b.jpg")
    (tmp_path / "data/unlabelled").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/cat/self").symlink_to(tmp_path / "data/cat")
    (tmp_path / "data/cat/root").symlink_to(tmp_path / "data")
    (tmp_path / "data/cat/outer").symlink_to("/")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "data")  # the way round: data -> elsewhere -> data
    (tmp_path / "data/cat/here").mkdir()
    image(tmp_path / "data/cat/here/c.jpg")
    (tmp_path / "data/cat/there").symlink_to(tmp_path / "data/cat/here")
    manifest = read_manifest(tmp_path / "data")
    assert rows(manifest, tmp_path / "data") == [
        ("cat/b.jpg", "cat"),
        ("cat/here/c.jpg", "cat"),
        ("unlabelled/a.jpg", None),
    ]
    loop = "symlink-loop"
    assert reasons(manifest) == {"self": loop, "root": loop, "outer": loop, "back": loop, "there": "duplicate"}


def test_one_file_by_two_names(tmp_path: Path) -> None:
    real = image(tmp_path / "unlabelled/a.jpg")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/z.jpg").symlink_to(real)
    image(tmp_path / "dog/b.jpg")
    (tmp_path / "dog/c.jpg").symlink_to(tmp_path / "dog/b.jpg")
    manifest = read_manifest(tmp_path)
    assert rows(manifest, tmp_path) == [("cat/z.jpg", "cat"), ("dog/b.jpg", "dog")]
    assert {entry.file: entry.reason for entry in manifest.skipped} == {
        str(real): f"duplicate: the same file as {tmp_path / 'cat/z.jpg'}",
        str(tmp_path / "dog/c.jpg"): f"duplicate: the same file as {tmp_path / 'dog/b.jpg'}",
    }
    (tmp_path / "dog/z.jpg").symlink_to(real)
    with pytest.raises(DataError, match="'cat' and 'dog'"):
        read_manifest(tmp_path)


def test_names_of_any_kind(tmp_path: Path) -> None:
    odd = ["new\nline.jpg", "re\rturn.jpg", 'quo"te,.jpg', "🦊.jpg", "<script>alert(1)<.jpg", " lead.jpg", "=1+1.jpg"]
    for name in odd:
        image(tmp_path / 'cl\na,s"s' / name)
    bad = os.path.join(os.fsencode(tmp_path), b"caf\xe9.jpg")
    Image.new("RGB", (2, 2)).save(tmp_path / "tmp.jpg")
    os.rename(tmp_path / "tmp.jpg", bad)
    (tmp_path / os.fsdecode(b"bad\xff.txt")).write_text("x")
    manifest = scan(read_manifest(tmp_path))
    assert sorted(path.name for path in manifest.paths) == sorted(odd)
    assert manifest.classes == ('cl\na,s"s',)
    assert reasons(manifest) == {"caf\\xe9.jpg": "bad-name", "bad\\xff.txt": "not-an-image"}
    write_manifest(manifest, tmp_path / "m.csv")
    write_skipped(manifest.skipped, tmp_path / "skipped.csv")
    again = read_manifest(tmp_path / "m.csv")
    assert (again.paths, again.labels) == (manifest.paths, manifest.labels)
    with open(tmp_path / "skipped.csv", encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["file", "reason"], *([s.file, s.reason] for s in manifest.skipped)]


def test_paths_that_hold_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing at"):
        read_manifest(tmp_path / "none")
    with pytest.raises(DataError, match="no image in"):
        read_manifest(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match=r"skipped files: 1, .*not-an-image"):
        read_manifest(tmp_path)
    with pytest.raises(UsageError, match="neither a folder"):
        read_manifest(tmp_path / "a.txt")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="named pipe"):
        read_manifest(tmp_path / "pipe.csv")


def test_a_single_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image(tmp_path / "x.jpg")
    monkeypatch.chdir(tmp_path)
    manifest = read_manifest(Path("x.jpg"))
    assert manifest == Manifest((tmp_path / "x.jpg",), (None,), (None,), ("train",), (None,), ())


PLAIN = "path,label,truth,split,group\na.jpg, cat ,cat,train,g 1\nsub/b.jpg,,dog,test,\n\n../c.jpg,,,,\n"


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_of_any_dialect(tmp_path: Path, bom: str, ending: str, delimiter: str) -> None:
    text = bom + PLAIN.replace(",", delimiter).replace("\n", ending)
    manifest = read_manifest(table(tmp_path, text))
    assert manifest == Manifest(
        paths=(tmp_path / "a.jpg", tmp_path / "sub/b.jpg", tmp_path.parent / "c.jpg"),
        labels=("cat", None, None),
        truths=("cat", "dog", None),
        splits=("train", "test", "train"),
        groups=("g 1", None, None),
        skipped=(),
    )


def test_csv_keeps_its_order_and_needs_only_path(tmp_path: Path) -> None:
    manifest = read_manifest(table(tmp_path, 'path\nz.jpg\n"a,;\nb.jpg"\n'))
    assert [path.name for path in manifest.paths] == ["z.jpg", "a,;\nb.jpg"]
    assert manifest.classes == ()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "path,lable\na.jpg,x\n",
            UsageError,
            r"unknown column 'lable'; did you mean 'label'\? Allowed are path, label, truth",
        ),
        ("path,path\na.jpg,x\n", UsageError, "'path' twice"),
        ("label,truth\na,b\n", UsageError, "no column path"),
        ("path,label\n", DataError, "no rows"),
        ("\ufeff\n", DataError, "no rows"),
        ("", DataError, "empty"),
        ("path,split\na.jpg,train\nb.jpg,val\n", DataError, r"row 3 of .*'val'"),
        ("path,label,split\na.jpg,cat,test\n", DataError, r"row 2 of .*label 'cat'.*truth"),
        ("path,label\n,cat\n", DataError, "row 2 of .* no path"),
        ("path,label\na,b.jpg,cat\n", DataError, "row 2 of .*3 fields for 2 columns"),
        ('path,label\n"a.jpg,cat\nb.jpg,dog\n', DataError, "not valid CSV"),
        ("path,label\na.jpg,cat\n./a.jpg,dog\n", DataError, r"a\.jpg has two labels, 'cat' and 'dog' .*row 2 .*row 3"),
        ("path,truth\na.jpg,cat\na.jpg,dog\n", DataError, "two truths, 'cat' and 'dog'"),
        ("path,split\na.jpg,train\na.jpg,test\n", DataError, "two splits"),
    ],
)
def test_csv_that_is_wrong(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_manifest(table(tmp_path, text))


def test_csv_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_bytes("path\ncafé.jpg\n".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        read_manifest(tmp_path / "m.csv")


def test_csv_with_a_row_twice(tmp_path: Path) -> None:
    manifest = read_manifest(table(tmp_path, "path,label\na.jpg,\nb.jpg,cat\na.jpg,dog\nb.jpg,cat\nb.jpg,\n"))
    assert rows(manifest, tmp_path) == [("a.jpg", "dog"), ("b.jpg", "cat")]
    assert [(Path(s.file).name, s.reason.split(":")[0]) for s in manifest.skipped] == [
        ("a.jpg", "duplicate"),
        ("b.jpg", "duplicate"),
        ("b.jpg", "duplicate"),
    ]


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"path": ["a.jpg", "b.jpg", "c.jpg"], "label": [7, None, -1], "truth": [None, "x", ""]}
    pq.write_table(pyarrow.table({**columns, "__index_level_0__": [4, 5, 6]}), tmp_path / "m.parquet")
    manifest = read_manifest(tmp_path / "m.parquet")
    assert rows(manifest, tmp_path) == [("a.jpg", "7"), ("b.jpg", None), ("c.jpg", None)]
    assert manifest.truths == (None, "x", None)
    pq.write_table(pyarrow.table({"pth": ["a.jpg"]}), tmp_path / "n.parquet")
    with pytest.raises(UsageError, match="did you mean 'path'"):
        read_manifest(tmp_path / "n.parquet")
    (tmp_path / "o.parquet").write_text("no parquet")
    with pytest.raises(DataError, match="Parquet"):
        read_manifest(tmp_path / "o.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"debgcd\[parquet\]"):
        read_manifest(tmp_path / "m.parquet")
