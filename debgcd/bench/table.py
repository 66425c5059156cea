"""The table of a page, written from the results' JSON between two markers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from debgcd.bench.lines import HEAD, cells
from debgcd.errors import UsageError
from debgcd.files import write_text

BEGIN, END = "<!-- table: written by debgcd bench -->", "<!-- end of table -->"


def require_markers(page: Path) -> None:
    """Refuse a page that has no place for the table, before any work is done."""
    try:
        text = page.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--table {page} cannot be read as a page of text ({error}); name a Markdown file") from error
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UsageError(f"--table {page} has no place for the table: put the lines {BEGIN} and {END} into it")


def write_table(page: Path, results: dict[str, Any]) -> None:
    """Replace what stands between the markers."""
    require_markers(page)
    before, rest = page.read_text("utf-8").split(BEGIN)
    write_text(page, f"{before}{BEGIN}\n{markdown(results)}\n{END}{rest.split(END)[1]}")


def markdown(results: dict[str, Any]) -> str:
    """All lines, their notes, and where they were measured."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    notes: list[str] = []
    for line in results["lines"]:
        row = cells(line)
        if line["note"]:
            if line["note"] not in notes:
                notes.append(line["note"])
            row[1] += f" [{notes.index(line['note']) + 1}]"
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", *(f"[{i}] {note}.  " for i, note in enumerate(notes, 1))]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines.append(
        f"\nMeasured {results['date']} on {results['processor']}, {results['cores']} cores, {results['threads']} threads, "
        f"trunk in {results['trunk']}; median of {results['repeats']}, the ways taking turns.\n{versions}."
    )
    return "\n".join(lines)
