"""The table of predictions: what is written is read back, as CSV and as Parquet; a damaged file is refused in words."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from debgcd.errors import DataError
from debgcd.run.categories import Category, categories
from debgcd.run.model_folder import NoveltyThreshold
from debgcd.run.predictions import (
    COLUMNS,
    NOTHING,
    REVIEWED_COLUMNS,
    Inference,
    Table,
    join_csv,
    join_parquet,
    prediction_table,
    read_predictions,
    rows_of,
    tally,
    to_csv,
    to_parquet,
)

ODD = [
    "a, b",
    'a "b"',
    "a\nb",
    "a\r\nb",
    "=1+2",
    "'=1+2",
    "''@x",
    "'plain",
    "+3",
    "-",
    "\tx",
    "true",
    "0.5",
    " ",
    "ü 猫",
]


def odd_table(novelty: bool = True, none: bool = False) -> Table:
    """One image per odd name, as its path, as a category's id and as another one's name."""
    found = [Category(i, text, ODD[-1 - i], i % 2 == 0) for i, text in enumerate(ODD)]
    count, random = len(ODD), np.random.default_rng(0)
    top = np.stack([(np.arange(count) + rank) % count for rank in range(3)], 1)
    scores = random.random(count, np.float32) if novelty else None
    inference = Inference(top, random.random((count, 3), np.float32), scores)
    none_p = random.random(count, np.float32) if none else None
    paths = [Path("/photos") / text for text in ODD]
    return prediction_table(paths, inference, found, NoveltyThreshold(0.5, 0.1), none_p)


def rounded(table: Table) -> Table:
    """The table with the precision that a CSV has."""
    return {
        name: [value if value is None or COLUMNS[name] is not float else float(f"{value:.6f}") for value in values]
        for name, values in table.items()
    }


@pytest.mark.parametrize("novelty", [True, False])
def test_what_fits_nothing_looks_new_whatever_its_novelty(novelty: bool) -> None:
    table = odd_table(novelty, none=True)
    assert table["looks_new"] == [p > 0.5 for p in table["none_p"]]
    counts = tally(table)
    assert counts[NOTHING] == sum(table["looks_new"]) and counts.total() == len(ODD)
    assert all(counts[id] == (not new) for id, new in zip(table["id"], table["looks_new"], strict=True))


@pytest.mark.parametrize("novelty", [True, False])
def test_csv_is_read_back(tmp_path: Path, novelty: bool) -> None:
    table, path = odd_table(novelty), tmp_path / "out.csv"
    path.write_bytes(to_csv(table).encode())
    found = read_predictions(path)
    assert found == rounded(table) and list(found) == list(COLUMNS)
    assert (found["looks_new"][0] is None) == (found["novelty"][0] is None) == (not novelty)
    assert read_predictions(path, ("id", "path")) == {name: table[name] for name in ("id", "path")}
    assert to_csv(found) == to_csv(table)


@pytest.mark.parametrize("novelty", [True, False])
def test_parquet_is_read_back(tmp_path: Path, novelty: bool) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table, path = odd_table(novelty), tmp_path / "out.parquet"
    path.write_bytes(to_parquet(table))
    assert read_predictions(path) == table and list(read_predictions(path)) == list(COLUMNS)
    # the types do not depend on the values: novelty is a number where all of it is missing, too
    types = {name: str(kind) for name, kind in zip(COLUMNS, parquet.read_schema(path).types, strict=True)}
    assert types == {name: PARQUET[kind] for name, kind in COLUMNS.items()}


PARQUET = {str: "string", int: "int64", float: "float", bool: "bool"}


def test_parts_are_joined(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = odd_table()
    halves = [{name: values[part] for name, values in table.items()} for part in (slice(0, 7), slice(7, None))]
    for i, half in enumerate(halves):
        (tmp_path / f"{i}.csv").write_bytes(to_csv(half, header=False).encode())
        (tmp_path / f"{i}.parquet").write_bytes(to_parquet(half))
    for suffix, join in (("csv", join_csv), ("parquet", join_parquet)):
        with open(tmp_path / f"whole.{suffix}", "wb") as file:
            join([tmp_path / f"{i}.{suffix}" for i in range(2)], file)
    assert (tmp_path / "whole.csv").read_bytes() == to_csv(table).encode()
    assert read_predictions(tmp_path / "whole.parquet") == table


def test_the_text_of_a_table(tmp_path: Path) -> None:
    """The columns in their order, true and false, six decimals, an empty cell for None, a quote before a formula."""
    inference = Inference(np.array([[1, 0], [0, 1]]), np.array([[0.75, 0.25], [2 / 3, 1 / 3]], np.float32))
    table = prediction_table([Path("a,b.png"), Path("=c.png")], inference, categories(("cat",), 2), None)
    assert to_csv(table) == (
        "path,category,id,name,known,confidence,novelty,top1_id,top1_p,top2_id,top2_p,top3_id,top3_p,looks_new,none_p\n"
        '"a,b.png",1,new-01,new-01,false,0.750000,,new-01,0.750000,cat,0.250000,,,,\n'
        "'=c.png,0,cat,cat,true,0.666667,,cat,0.666667,new-01,0.333333,,,,\n"
    )


def test_a_merged_category_is_the_one_that_it_became() -> None:
    found = [Category(0, "cat", "cat", True), Category(1, "new-01", "cat", False, "cat")]
    table = prediction_table([Path("a")], Inference(np.array([[1, 0]]), np.ones((1, 2), np.float32)), found, None)
    (row,) = rows_of(table)
    assert (row["category"], row["id"], row["name"], row["known"]) == (0, "cat", "cat", True)
    assert row["top1_id"] == row["top2_id"] == "cat" and row["top3_id"] is row["top3_p"] is None


def test_a_reviewed_table_has_two_more_columns() -> None:
    reviewed = odd_table() | {"review": ["open"] * len(ODD), "added": ["0001"] * len(ODD)}
    head, *lines = csv.reader(to_csv(reviewed).splitlines(keepends=True))
    assert head == list(REVIEWED_COLUMNS) and {(line[-2], line[-1]) for line in lines} == {("open", "0001")}


def test_no_rows_and_further_columns(tmp_path: Path) -> None:
    """A table without rows has its columns; columns of a later version are ignored, optional ones may be missing."""
    path = tmp_path / "out.csv"
    path.write_text(to_csv({name: [] for name in COLUMNS}))
    assert read_predictions(path) == {name: [] for name in COLUMNS}
    path.write_text("path,category,id,name,known,confidence,later\na,0,cat,cat,true,0.5,x\n\n")
    assert rows_of(read_predictions(path)) == [
        dict.fromkeys(COLUMNS)
        | {"path": "a", "category": 0, "id": "cat", "name": "cat", "known": True, "confidence": 0.5}
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"0.750000", b"much", "row 1: confidence is 'much', not a number"),
        (b"0.750000", b"", "row 1: confidence is '', not a number"),
        (b"false", b"no", "row 1: known is 'no', not true or false"),
        (b",1,new", b",one,new", "row 1: category is 'one', not a whole number"),
        (b",known,", b",familiar,", "it has no column known"),
        (b"cat,0.25", b"cat;0.25", "row 1 has 14 fields, expected 15"),
        (b"a.png", b'"a.png', "unexpected end of data"),
        (b"a.png", b"\xff.png", "invalid start byte"),
    ],
)
def test_a_damaged_csv_is_refused_in_words(tmp_path: Path, old: bytes, new: bytes, problem: str) -> None:
    inference = Inference(np.array([[1, 0]]), np.array([[0.75, 0.25]], np.float32))
    text = to_csv(prediction_table([Path("a.png")], inference, categories(("cat",), 2), None)).encode()
    path = tmp_path / "predictions.csv"
    path.write_bytes(text.replace(old, new, 1))
    with pytest.raises(DataError) as error:
        read_predictions(path)
    said = str(error.value)
    assert said.startswith(f"{path} cannot be read (") and problem in said
    assert said.endswith("; restore the file or train again")


def test_an_empty_file_and_a_damaged_parquet_are_refused(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_bytes(b"")
    with pytest.raises(DataError, match="it has no column path"):
        read_predictions(tmp_path / "out.csv")
    pytest.importorskip("pyarrow")
    (tmp_path / "out.parquet").write_bytes(to_parquet(odd_table())[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        read_predictions(tmp_path / "out.parquet")
