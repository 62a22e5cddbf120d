"""Tables of text: printed on a terminal of any width, or written as Markdown; records as CSV.

Numbers come rounded already; here is only layout.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

LEFT = frozenset(
    [
        "at",
        "benchmark",
        "control",
        "dataset",
        "graph",
        "graphs",
        "knob",
        "order",
        "run",
        "sweep",
        "value",
    ]
)
"""Names of columns that hold words."""


@dataclass(frozen=True)
class Grid:
    """A table of text.

    `optional` names the columns to drop where space is short, first ones first. `groups` numbers
    the rows' groups; a gap is left between them.
    """

    title: str
    columns: tuple[str, ...]
    optional: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    groups: tuple[int, ...]


def print_grid(grid: Grid, console: Console) -> None:
    """Print a table; columns are dropped, with a word, where the terminal is too narrow."""
    dropped: list[str] = []
    table = _rich_table(grid, dropped)
    while _width(table, console) > console.width and len(dropped) < len(grid.optional):
        dropped.append(grid.optional[len(dropped)])
        table = _rich_table(grid, dropped)
    console.print()
    console.print(grid.title, markup=False, highlight=False)
    if _width(table, console) <= console.width:
        console.print(table)
    else:
        for cells in grid.body:
            pairs = [
                f"{name} {cell}" for name, cell in zip(grid.columns, cells, strict=True) if cell
            ]
            console.print(", ".join(pairs), markup=False, highlight=False)
        dropped = []
    if dropped:
        text = f"Not shown at {console.width} columns: {', '.join(dropped)}."
        console.print(text, markup=False, highlight=False)


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=1000), table).maximum


def _rich_table(grid: Grid, dropped: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    kept = [i for i, name in enumerate(grid.columns) if name not in dropped]
    for i in kept:
        left = grid.columns[i] in LEFT
        table.add_column(grid.columns[i], no_wrap=True, justify="left" if left else "right")
    for row, cells in enumerate(grid.body):
        last = row + 1 == len(grid.body) or grid.groups[row + 1] != grid.groups[row]
        table.add_row(*(Text(cells[i]) for i in kept), end_section=last)
    return table


def markdown(grid: Grid) -> list[str]:
    """The lines of a table under its title."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---" if name in LEFT else "---:" for name in grid.columns]
    return [f"### {grid.title}", "", line(grid.columns), line(rule), *map(line, grid.body), ""]


def records_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV, unrounded; their keys, in order of appearance, are the columns, and what a
    record lacks is empty."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
