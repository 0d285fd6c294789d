"""Tables of a report, for a terminal and as Markdown. They hold text; what it says is the reports' business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Sheet:
    """One table: a title, headings, rows of text, and a line on what it shows."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def terminal_table(sheet: Sheet) -> Table:
    """The sheet for ``rich``; all columns but the first are numbers."""
    from rich.table import Table

    table = Table(title=sheet.title, title_justify="left", title_style="bold", caption=sheet.note)
    for place, heading in enumerate(sheet.headings):
        table.add_column(heading, justify="left" if place == 0 else "right")
    for row in sheet.rows:
        table.add_row(*row)
    return table


def markdown_page(title: str, lead: Sequence[str], sheets: Sequence[Sheet]) -> str:
    """A page: the title, paragraphs, then every sheet under a heading of its own."""
    parts = [f"# {title}", *lead]
    for sheet in sheets:
        parts += [f"## {sheet.title}", *([sheet.note] if sheet.note else []), markdown_table(sheet)]
    return "\n\n".join(parts) + "\n"


def markdown_table(sheet: Sheet) -> str:
    """Headings and rows alone."""
    return "\n".join([_line(sheet.headings), _line(["---"] * len(sheet.headings)), *(_line(row) for row in sheet.rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
