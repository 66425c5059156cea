"""Read a folder, a CSV or Parquet file, MegaDetector's JSON, or a single image into a manifest."""

import csv
import difflib
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from debgcd.data.image.crop import BOX, parse_box
from debgcd.data.image.decode import Reason, Unusable, regular_file
from debgcd.data.manifest import COLUMNS, SPLITS, Manifest, Row, Skipped, assemble, label_text, shown, skip, text
from debgcd.data.megadetector import read_detections
from debgcd.errors import DataError, UsageError
from debgcd.system.files import csv_field
from debgcd.system.machine import optional
from debgcd.system.progress import say

# Accepted names of the column with the paths; the first one that exists is used.
PATH_COLUMNS = ("path", "filename", "file", "image")
# An unknown column whose name is at least this similar to a missing one is refused as misspelt, not ignored.
LEAST_SIMILARITY = 0.75
IGNORED_SHOWN = 5  # ignored columns that a message names
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm"}
IMAGE_SUFFIXES |= {".heic", ".heif", ".avif"}
LABELLED = {"labelled", "labeled"}
UNLABELLED = {"unlabelled", "unlabeled", "_unlabelled", "_unlabeled"}
# Files that operating systems put beside images; names with a leading dot are ignored, too.
CLUTTER = {"thumbs.db", "desktop.ini", "__macosx"}


def read_manifest(source: Path) -> Manifest:
    """Read a folder, a CSV, a Parquet file, MegaDetector's JSON or a single image (one unlabelled row).

    No image is opened, except for the sizes that MegaDetector's boxes need; `scan` does that. In a folder only the types of
    entries are checked, in a table not even that.
    """
    source = Path(os.path.abspath(source))
    if not os.path.exists(source):
        raise UsageError(f"nothing at {shown(source)}; give a folder of images, a CSV or Parquet file, or an image")
    if source.is_dir():
        manifest = _read_folder(source)
    else:
        try:
            regular_file(source)
        except Unusable as why:
            raise DataError(f"{shown(source)} cannot be read ({why}); give a folder, a CSV or Parquet file") from why
        suffix = source.suffix.lower()
        if suffix in (".csv", ".tsv"):
            manifest = _read_table(source, _csv_records(source))
        elif suffix in (".parquet", ".pq"):
            manifest = _read_table(source, _parquet_records(source))
        elif suffix == ".json":
            manifest = _read_detections(source)
        elif suffix in IMAGE_SUFFIXES:
            manifest = assemble([Row(str(source))])
        else:
            raise UsageError(
                f"{shown(source)} is neither a folder nor, by its suffix, a CSV, Parquet or JSON file or an image; rename it, "
                "or list its path in a CSV"
            )
    if not len(manifest):
        count = len(manifest.skipped)
        first = f", the first: {manifest.skipped[0].reason!r}" if count else ""
        raise DataError(f"no image in {shown(source)} (skipped files: {count}{first}); add images to it")
    return manifest


def _read_detections(source: Path) -> Manifest:
    """A row per animal that MegaDetector found; those of files below labelled/<class>/ beside the JSON are labelled."""
    detections = read_detections(source)
    rows = []
    for one in detections.found:
        path = one.picture.path
        parts = Path(os.path.relpath(path, source.parent)).parts
        label = text(parts[1]) if len(parts) > 2 and parts[0].lower() in LABELLED else None
        where = f"entry {one.image} of {shown(source)}"
        rows.append(Row(str(path), label, group=one.group, where=where, box=one.picture.box))
    return assemble(rows, detections.skipped)


def _read_folder(root: Path) -> Manifest:
    """`labelled/<class>/` and `unlabelled/`, or class folders and `unlabelled/`; files in the root are unlabelled."""
    skipped: list[Skipped] = []
    top, files = _entries(str(root), skipped)
    labelled = [path for path in top if os.path.basename(path).lower() in LABELLED]
    classes = [path for path in top if os.path.basename(path).lower() not in LABELLED | UNLABELLED]
    if labelled and classes:
        raise DataError(
            f"{shown(root)} has both {os.path.basename(labelled[0])}/ and {shown(os.path.basename(classes[0]))}/, so it is "
            f"unclear which folders are classes; move the class folders into {os.path.basename(labelled[0])}/, and "
            "unlabelled images into unlabelled/"
        )
    for folder in labelled:
        class_folders, without_class = _entries(folder, skipped)
        classes += class_folders
        skipped += [skip(path, Reason.NO_CLASS, f"put it into {shown(folder)}/<class>/") for path in without_class]
    folders: list[tuple[str, str | None]] = [
        (path, None) for path in top if os.path.basename(path).lower() in UNLABELLED
    ]
    for path in classes:
        if name := text(os.path.basename(path)):
            folders.append((path, name))
        else:
            skipped.append(skip(path, Reason.NO_CLASS, "the folder's name is blank"))
    rows = list(_images(files, None, skipped))
    for path, label in folders:
        rows += _walk(path, label, skipped)
    return assemble(sorted(rows, key=lambda row: row.path), sorted(skipped, key=lambda entry: entry.file))


def _entries(folder: str, skipped: list[Skipped]) -> tuple[list[str], list[str]]:
    """The subfolders and the other entries of a folder, sorted; without clutter and folders named like images."""
    try:
        with os.scandir(folder) as entries:
            # not entry.is_dir(), which raises for a link to itself
            kinds = {entry.path: os.path.isdir(entry.path) for entry in entries if not _clutter(entry.name)}
    except OSError as error:
        skipped.append(skip(folder, Reason.UNREADABLE, error.strerror or str(error)))
        return [], []
    disguised = [path for path, is_dir in kinds.items() if is_dir and _suffix(path) in IMAGE_SUFFIXES]
    skipped += [
        skip(path, Reason.NOT_A_FILE, "a folder named like an image; rename it to be read") for path in disguised
    ]
    folders = sorted(path for path, is_dir in kinds.items() if is_dir and path not in disguised)
    return folders, sorted(path for path, is_dir in kinds.items() if not is_dir)


def _clutter(name: str) -> bool:
    return name.startswith(".") or name.lower() in CLUTTER


def _walk(start: str, label: str | None, skipped: list[Skipped]) -> Iterator[Row]:
    """All images below a folder; links are followed, but no folder is read twice and loops are not entered."""
    seen: dict[str, str] = {}
    # (folder, real path of its parent, real path of the parent of each link on the way); a stack instead of recursion,
    # because folders may be nested deeper than Python's recursion limit
    todo: list[tuple[str, str, tuple[str, ...]]] = [(start, os.path.realpath(os.path.dirname(start)), ())]
    while todo:
        folder, parent, links = todo.pop()
        real = os.path.join(parent, os.path.basename(folder))
        if os.path.islink(folder):
            real, links = os.path.realpath(folder), (*links, parent)
            if any(f"{outer}/".startswith(f"{real.rstrip('/')}/") for outer in links):
                skipped.append(skip(folder, Reason.SYMLINK_LOOP, "links to a folder that contains it"))
                continue
        if real in seen:
            skipped.append(skip(folder, Reason.DUPLICATE, f"the same folder as {shown(seen[real])}"))
            continue
        seen[real] = folder
        folders, files = _entries(folder, skipped)
        todo += [(path, real, links) for path in reversed(folders)]
        yield from _images(files, label, skipped)


def _images(files: Sequence[str], label: str | None, skipped: list[Skipped]) -> Iterator[Row]:
    """A row for each regular file with the suffix of an image; the others go to `skipped`."""
    for path in files:
        if _suffix(path) not in IMAGE_SUFFIXES:
            skipped.append(skip(path, Reason.NOT_AN_IMAGE, f"by its name ({_suffix(path) or 'no extension'})"))
            continue
        try:
            regular_file(Path(path))
        except Unusable as why:
            skipped.append(skip(path, why.reason, why.detail))
        else:
            yield Row(path, label, where=path)


def _suffix(path: str) -> str:
    return shown(os.path.splitext(path)[1].lower())


def _read_table(source: Path, records: Iterator[tuple[str, dict[str, Any]]]) -> Manifest:
    """A manifest from (row number, {column: value}) records; paths are relative to the table's folder."""
    rows = []
    for where, record in records:
        path = record.get("path")
        if not isinstance(path, str) or not path.strip():
            raise DataError(f"{where} of {shown(source)} has no path; fill it in or remove the row")
        split = text(record.get("split")) or "train"
        if split not in SPLITS:
            raise DataError(f"{where} of {shown(source)} has the split {split!r}; use train or test, or leave it empty")
        rows.append(
            Row(
                path=os.path.abspath(os.path.join(source.parent, path)),
                label=record.get("label"),
                truth=text(record.get("truth")),
                split=split,
                group=text(record.get("group")),
                where=f"{where} of {shown(source)}",
                box=parse_box([text(record.get(name)) for name in BOX], f"{where} of {shown(source)}"),
            )
        )
    if not rows:
        raise DataError(f"{shown(source)} has no rows; list one image per row in the column path")
    return assemble(rows)


def _roles(source: Path, columns: Sequence[str]) -> dict[int, str]:
    """The role of each column in use, by the column's position; prints which columns are renamed and which are ignored."""
    allowed, roles, notes = ", ".join((*COLUMNS, *BOX)), dict[int, str](), list[str]()
    for role in (*COLUMNS, *_box_columns(source, columns)):
        taken = _find(columns, PATH_COLUMNS if role == "path" else (role,))
        if taken is None:
            continue
        if columns.count(taken) > 1:
            raise UsageError(f"{shown(source)} has the column {taken!r} twice; remove one of them")
        roles[columns.index(taken)] = role
        notes += [] if taken == role else [f"{taken!r} is taken as {role}"]
    ignored = [column for i, column in enumerate(columns) if i not in roles]
    missing = [role for role in COLUMNS if role not in roles.values()]
    for column in ignored:
        if near := difflib.get_close_matches(column.lower(), missing, n=1, cutoff=LEAST_SIMILARITY):
            raise UsageError(
                f"{shown(source)} has the unknown column {column!r}; did you mean {near[0]!r}? Allowed are {allowed}"
            )
    if "path" in missing:
        raise UsageError(f"{shown(source)} has no column path; allowed columns are {allowed}")
    if ignored:
        names = ", ".join(repr(column) if column else "one without a name" for column in ignored[:IGNORED_SHOWN])
        more = len(ignored) - IGNORED_SHOWN
        notes.append(f"ignored: {names}" + (f" and {more} more" if more > 0 else ""))
    if notes:
        say(f"columns of {shown(source)}: {'; '.join(notes)}")
    return roles


def _box_columns(source: Path, columns: Sequence[str]) -> tuple[str, ...]:
    """x, y, w, h if all four columns exist: x and y alone are not a box."""
    missing = [name for name in BOX if _find(columns, (name,)) is None]
    if len(missing) == 1:
        raise UsageError(
            f"{shown(source)} has three columns of a box but no {missing[0]!r}; add it, or rename the others"
        )
    return () if missing else BOX


def _find(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """The column for the first of these names that exists, in lower case or else in any case; None if there is none."""
    for name in names:
        same = sorted((column for column in columns if column.lower() == name), key=lambda column: column != name)
        if same:
            return same[0]
    return None


def _csv_records(source: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        content = source.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f'{shown(source)} is not UTF-8 text (byte {error.start}); save it as "CSV UTF-8"') from error
    except OSError as error:
        raise DataError(f"{shown(source)} cannot be read ({error.strerror}); check its permissions") from error
    header = re.split(r"[\r\n]", content.lstrip("\r\n"), maxsplit=1)[0]
    # with a single column this is the comma: `max` returns the first maximum
    delimiter = max(",;\t", key=header.count)
    # strict: otherwise an unclosed quote would turn the rest of the file into one name
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    roles: dict[int, str] | None = None
    columns: list[str] = []
    number = 0
    try:
        for number, fields in enumerate(reader, 1):
            if not fields:
                continue
            if roles is None:
                columns = [name.strip() for name in fields]
                roles = _roles(source, columns)
                continue
            if len(fields) > len(columns):
                raise DataError(
                    f"row {number} of {shown(source)} has {len(fields)} fields for {len(columns)} columns; quote names "
                    f"that contain {delimiter!r}"
                )
            record = {role: fields[i] for i, role in roles.items() if i < len(fields)}
            # a manifest that debgcd wrote; its paths are absolute and need no quote
            if columns in ([*COLUMNS], [*COLUMNS, *BOX]):
                record = {role: field if role == "path" else csv_field(field) for role, field in record.items()}
            yield f"row {number}", {**record, "label": text(record.get("label"))}
    except csv.Error as error:
        raise DataError(f"{shown(source)} is not valid CSV after row {number} ({error}); check its quotes") from error


def _parquet_records(source: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    parquet = optional("pyarrow.parquet", "parquet", f"reading {shown(source)}")
    try:
        with parquet.ParquetFile(source) as file:
            table = file.read()
        # pandas stores the index of a table in such columns
        positions = [i for i, name in enumerate(table.column_names) if not name.startswith("__index_level_")]
        names, table = [table.column_names[i] for i in positions], table.select(positions)
        # by position, because two columns may have the same name
        records = table.rename_columns([str(i) for i in range(len(names))]).to_pylist()
    except Exception as error:
        # pyarrow raises its own errors and OSErrors, and ValueErrors for damaged text and dates
        why = " ".join(str(error).split())[:100]
        raise DataError(f"{shown(source)} is not a readable Parquet file ({why}); write it again") from error
    roles = _roles(source, names)
    for number, values in enumerate(records, 1):
        record = {role: values[str(position)] for position, role in roles.items()}
        yield f"row {number}", {**record, "label": label_text(record.get("label"))}
