"""The figure of a table: one panel per group of cells, quality along one facet.

In: cells. Out: PNG and SVG. Bars are 95 % intervals of the paired difference to vanilla, drawn from
vanilla's mean, as in `lgp.figures`. Along a facet of words (datasets, rules) the differences stand
alone.
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
from lgp.figures import draw_series, graph_styles
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
    numbers = [number for value in values if (number := _number(value)) is not None]
    words = len(numbers) < len(values)  # not on the way to each other: differences, no curves
    wide = not words and max(numbers) > 8 * max(min(numbers), 1)
    place = {v: float(v) if wide else float(i) for i, v in enumerate(values)}
    if wide:
        ax.set_xscale("log")
    labels = [label for label in styles if label != "vanilla"]
    for label, (color, marker) in styles.items():
        vanilla = label == "vanilla"
        if vanilla and words:
            continue
        shown = [(place[v], c.comparison) for v, c in points
                 if c.label == (labels[0] if vanilla else label)]  # fmt: skip
        shift = 0.0 if vanilla else labels.index(label) - (len(labels) - 1) / 2
        xs = [at * 1.02**shift if wide else at + 0.1 * shift for at, _ in shown]
        starts = [0.0 if words else c.mean_base for _, c in shown]
        both = list(zip(starts, (c for _, c in shown), strict=True))
        ys = [100 * (start + (0.0 if vanilla else c.difference)) for start, c in both]
        bars = [None if vanilla else (100 * (start + c.low), 100 * (start + c.high))
                for start, c in both]  # fmt: skip
        draw_series(ax, xs, ys, bars, color, marker=marker, markersize=3.5, linewidth=1.3,
                    linestyle="" if words else "-")  # fmt: skip
    if words:
        ax.axhline(0, color=GREY, linewidth=0.8)
        ax.set_ylabel("points over vanilla")
    exact = {round(100 * c.exact, 6) for _, c in points if c.exact is not None}
    if len(exact) == 1 and not words:
        ax.axhline(exact.pop(), color=GREY, linestyle="--", linewidth=1)
    ticks = [v if len(v) <= 14 else f"{v[:13]}\u2026" for v in values]
    ax.set_xticks([place[v] for v in values], ticks)
    if words and max(map(len, values)) > 5:
        ax.tick_params(axis="x", rotation=90)
    ax.minorticks_off()
    ax.grid(axis="y", color="#E4E4E4", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
