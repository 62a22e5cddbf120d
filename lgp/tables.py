"""Cells as tables: the paper's shape, the evidence behind it, CSV and LaTeX.

In: cells. Out: grids of text for terminal and Markdown, and files. In a cell of the paper's shape
stand vanilla, the main selector's graph and its relative gain, taken before rounding.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from lgp.cells import AVERAGE, Cell, Key, budget_curves
from lgp.comparison import P_LEVEL
from lgp.config_tables import TableConfig
from lgp.effort import effort_to_reach
from lgp.figures import METRIC_NAMES
from lgp.grids import Grid

NAMES = METRIC_NAMES | {"greedy": "Greedy", "rerank": "Reranked"}
FACET_NAMES = {
    "budget": "distances", "tokens": "k tokens", "refine.node_budget": "beta",
    "refine.node_order": "order",
}  # fmt: skip
CSV_COLUMNS = (
    "graph", "base", "base_mean", "mean", "difference", "low", "high", "relative_pct", "p",
    "p_holm", "wins", "ties", "losses", "queries", "graph_seeds", "datasets", "n_dist",
    "n_dist_base", "exact",
)  # fmt: skip


def paper_grid(cells: Sequence[Cell], table: TableConfig) -> Grid:
    """Vanilla / main selector (relative gain), in the rows and columns that the paper prints."""
    main = [c for c in cells if c.is_main and c.base == "vanilla"]
    said = {(c.row, c.column): _paper_cell(c) for c in main}
    labels = sorted({c.label for c in main})
    title = f"{table.title}. Vanilla / {', '.join(labels)} (relative gain), 0-100"
    return _grid(title, main, table, said)


def difference_grid(cells: Sequence[Cell], table: TableConfig) -> Grid:
    """Every graph minus vanilla, and the main selector's minus each control's, with intervals."""
    kept = [c for c in cells if c.base == "vanilla" or c.is_main]
    said = {(*_pair(c), c.row, c.column): _difference(c) for c in kept}
    rows, columns = _keys(kept)
    pairs = sorted({_pair(c) for c in kept}, key=lambda pair: (pair[0] != "vanilla", pair))
    body, groups = [], []
    for place, row in enumerate(rows):
        for pair in pairs:
            cells_of = tuple(said.get((*pair, row, column), "") for column in columns)
            if any(cells_of):
                body.append((*row, f"{pair[1]} - {pair[0]}", *(cell or "-" for cell in cells_of)))
                groups.append(place)
    return Grid(
        title="Differences with 95 % intervals (paired bootstrap); * p at most "
        f"{P_LEVEL} after Holm over the rows of a column (averages: unadjusted)",
        columns=(*map(_facet_name, table.rows), "graphs", *map(_name, columns)),
        optional=(),
        body=tuple(body),
        groups=tuple(groups),
    )


def effort_grid(cells: Sequence[Cell], table: TableConfig) -> Grid | None:
    """Distances each graph needs for vanilla's quality at each budget, interpolated on its curve;
    None where the last row facet is not `budget`."""
    if table.rows[-1:] != ["budget"]:
        return None
    body = []
    curves = budget_curves(cells)
    for (rest, column, label), curve in curves.items():
        if label == "vanilla":
            continue
        vanilla = curves[rest, column, "vanilla"]
        for budget, target in vanilla.items():
            effort = effort_to_reach(vanilla, curve, budget)
            text = "never" if effort.own is None else f"{effort.own:.0f}"
            text += " or fewer" if effort.or_fewer else ""
            change = "-" if effort.change_pct is None else f"{effort.change_pct:+.0f} %"
            body.append((*rest, _name(column), label, f"{budget:.0f}", f"{100 * target:.1f}",
                         f"{effort.vanilla:.0f}", text, change))  # fmt: skip
    return Grid(
        title="Distances to reach vanilla's quality at a budget",
        columns=(
            *map(_facet_name, table.rows[:-1]),
            "column",
            "graph",
            "budget",
            "quality",
            "vanilla needs",
            "graph needs",
            "change",
        ),
        optional=(),
        body=tuple(body),
        groups=tuple([0] * len(body)),
    )


def exact_grid(cells: Sequence[Cell], table: TableConfig) -> Grid | None:
    """The exact-kNN ceiling in the paper's rows and columns; None where it is nowhere known."""
    known = [c for c in cells if c.exact is not None and c.is_main and c.base == "vanilla"]
    said = {(c.row, c.column): f"{100 * (c.exact or 0):.1f}" for c in known}
    return _grid("Exact kNN, 0-100", known, table, said) if known else None


def write_csv(cells: Sequence[Cell], table: TableConfig, path: Path) -> None:
    """One line per cell, means on the 0-100 scale, unrounded."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*table.rows, *table.columns, *CSV_COLUMNS])
        for cell in cells:
            c = cell.comparison
            scaled = [100 * x for x in (c.mean_base, c.mean_other, c.difference, c.low, c.high)]
            exact = "" if cell.exact is None else 100 * cell.exact
            writer.writerow([
                *cell.row, *cell.column, cell.label, cell.base, *scaled, c.relative_pct, c.p,
                cell.p_holm, c.wins, c.ties, c.losses, c.n_queries, c.n_seeds, cell.datasets,
                cell.n_dist, cell.n_dist_base, exact,
            ])  # fmt: skip


def latex(grid: Grid) -> str:
    """A grid as a LaTeX table (package booktabs)."""
    lines = [
        r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(grid.title)}}}",
        rf"\begin{{tabular}}{{{'l' * len(grid.columns)}}}", r"\toprule",
        " & ".join(map(escape_latex, grid.columns)) + r" \\", r"\midrule",
    ]  # fmt: skip
    lines += [" & ".join(map(escape_latex, cells)) + r" \\" for cells in grid.body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _grid(
    title: str, cells: Sequence[Cell], table: TableConfig, said: Mapping[tuple[Key, Key], str]
) -> Grid:
    rows, columns = _keys(cells)
    return Grid(
        title=title,
        columns=(*map(_facet_name, table.rows), *map(_name, columns)),
        optional=(),
        body=tuple((*row, *(said.get((row, column), "-") for column in columns)) for row in rows),
        groups=tuple(int(AVERAGE in row) for row in rows),
    )


def _keys(cells: Sequence[Cell]) -> tuple[list[Key], list[Key]]:
    """Rows and columns in order of appearance; averages stand after what they average."""

    def order(keys: list[Key]) -> list[Key]:
        return sorted(dict.fromkeys(keys), key=lambda key: AVERAGE in key)

    return order([c.row for c in cells]), order([c.column for c in cells])


def _pair(cell: Cell) -> tuple[str, str]:
    return cell.base, cell.label


def _paper_cell(cell: Cell) -> str:
    c = cell.comparison
    gain = "-" if math.isnan(c.relative_pct) else f"{c.relative_pct:+.1f} %"
    return f"{100 * c.mean_base:.1f} / {100 * c.mean_other:.1f} ({gain})"


def _difference(cell: Cell) -> str:
    c = cell.comparison
    star = "*" if c.excludes_zero and cell.p_holm <= P_LEVEL else ""
    return f"{100 * c.difference:+.1f} [{100 * c.low:+.1f}, {100 * c.high:+.1f}]{star}"


def _name(key: Key) -> str:
    return " ".join(NAMES.get(part, part) for part in key)


def _facet_name(facet: str) -> str:
    return FACET_NAMES.get(facet, facet)
