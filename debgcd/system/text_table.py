"""Tables as text: aligned columns for a terminal, or Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from debgcd.system.progress import escaped

Row = Sequence[str]


def text_table(head: Row, rows: Sequence[Row], left: Collection[int] = (0,)) -> str:
    """Aligned columns, flush left if their number is in `left`, else flush right. Control characters are escaped."""
    return "\n".join("  ".join(row).rstrip() for row in _aligned(head, rows, left))


def markdown_table(head: Row, rows: Sequence[Row], left: Collection[int] = (0,)) -> str:
    """The same as Markdown."""
    first, *others = _aligned(head, rows, left)
    rule = ["-" * (len(cell) + 2) if i in left else "-" * (len(cell) + 1) + ":" for i, cell in enumerate(first)]
    return "\n".join([f"| {' | '.join(first)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in others)])


def _aligned(head: Row, rows: Sequence[Row], left: Collection[int]) -> list[list[str]]:
    lines = [[escaped(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in lines) for i in range(len(head))]
    return [
        [cell.ljust(widths[i]) if i in left else cell.rjust(widths[i]) for i, cell in enumerate(row)] for row in lines
    ]
