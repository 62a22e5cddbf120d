"""The figure of a table: one panel per group of cells, quality along one facet.

In: cells. Out: PNG and SVG. Bars are 95 % intervals of the paired difference to vanilla, drawn from
vanilla's mean, as in `lgp.figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lgp.cells import Cell, Key
from lgp.config_tables import TableConfig
from lgp.figures import graph_styles
from lgp.tables import FACET_NAMES, NAMES

PANELS_A_ROW = 4
GREY = "#808080"


def draw_curves(cells: Sequence[Cell], table: TableConfig, stem: Path) -> None:
    """Write STEM.png and STEM.svg.

    Raises:
        ValueError: no cell against vanilla, or `table.figure` is not among the table's facets.
    """
    own = [c for c in cells if c.base == "vanilla"]
    facets = [*table.rows, *table.columns]
    if table.figure not in facets or not own:
        raise ValueError(
            f"table.figure={table.figure} with facets {facets} and {len(own)} cells; name a facet "
            "of the table, and finish at least one run"
        )
    at = facets.index(table.figure)
    panels: dict[Key, list[tuple[str, Cell]]] = {}
    for cell in own:
        key = (*cell.row, *cell.column)
        panels.setdefault((*key[:at], *key[at + 1 :]), []).append((key[at], cell))
    styles = graph_styles(["vanilla", *sorted({c.label for c in own})])
    columns = min(PANELS_A_ROW, len(panels))
    rows = -(-len(panels) // columns)
    size = (3.1 * columns + 0.4, 2.5 * rows + 0.7)
    with mpl.rc_context({"svg.hashsalt": "lgp", "font.size": 8}):
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax, (key, points) in zip(axes, panels.items(), strict=False):
            _panel(ax, points, styles)
            ax.set_title(", ".join(NAMES.get(part, part) for part in key), fontsize=8)
            ax.set_xlabel(FACET_NAMES.get(table.figure, table.figure))
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        handles = [
            Line2D([], [], color=color, marker=marker, label=label, markersize=4)
            for label, (color, marker) in styles.items()
        ]
        if any(c.exact is not None for c in own):
            handles.append(Line2D([], [], color=GREY, linestyle="--", label="exact kNN"))
        figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
        figure.savefig(stem.with_suffix(".png"))
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})


def _panel(
    ax: Axes, points: Sequence[tuple[str, Cell]], styles: dict[str, tuple[str, str]]
) -> None:
    values = list(dict.fromkeys(value for value, _ in points))
    numbers = [_number(value) for value in values]
    wide = None not in numbers and max(map(float, numbers)) > 8 * max(min(map(float, numbers)), 1)  # type: ignore[arg-type]
    place = {
        value: float(number) if wide and number is not None else float(i)
        for i, (value, number) in enumerate(zip(values, numbers, strict=True))
    }
    if wide:
        ax.set_xscale("log")
    labels = [label for label in styles if label != "vanilla"]
    for label, (color, marker) in styles.items():
        mine = [
            (place[value], cell)
            for value, cell in points
            if cell.label == (label if label != "vanilla" else points[0][1].label)
        ]
        if not mine:
            continue
        shift = 0.0 if label == "vanilla" else labels.index(label) - (len(labels) - 1) / 2
        xs = [x * 1.02**shift if wide else x + 0.06 * shift for x, _ in mine]
        means = [
            100 * (c.comparison.mean_base if label == "vanilla" else c.comparison.mean_other)
            for _, c in mine
        ]
        ax.plot(xs, means, color=color, marker=marker, markersize=3.5, linewidth=1.3)
        if label != "vanilla":
            for x, (_, cell) in zip(xs, mine, strict=True):
                c = cell.comparison
                low, high = 100 * (c.mean_base + c.low), 100 * (c.mean_base + c.high)
                ax.vlines(x, low, high, color=color, linewidth=0.9, alpha=0.5)
    exact = {round(100 * c.exact, 6) for _, c in points if c.exact is not None}
    if len(exact) == 1:
        ax.axhline(exact.pop(), color=GREY, linestyle="--", linewidth=1)
    ax.set_xticks([place[v] for v in values], values)
    ax.minorticks_off()
    ax.grid(axis="y", color="#E4E4E4", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
