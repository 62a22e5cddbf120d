"""The figure of gain against language-model tokens: one line per way to spend them.

In: cells whose rows name a way and its tokens (facet `tokens`). Out: PNG and SVG, a panel per
column of the table. A way keeps its colour, the order in which nodes are asked its marker. Bars are
95 % intervals of the paired difference to vanilla. Ways that cost nothing are drawn as level dashed
lines: what the tokens have to beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from lgp.cells import Cell, Key
from lgp.config_tables import TableConfig
from lgp.figures import draw_series
from lgp.tables import NAMES

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
VARIED = frozenset(["tokens", "refine.node_budget"])
"""Facets that change along a line."""


def token_lines(cells: Sequence[Cell], table: TableConfig) -> dict[Key, list[Cell]]:
    """The cells of each way to spend tokens: main graphs against vanilla, by what stays the same.

    Raises:
        ValueError: no main cell against vanilla, or `tokens` is no facet of the table's rows.
    """
    own = [c for c in cells if c.base == "vanilla" and c.is_main]
    if "tokens" not in table.rows or not own:
        raise ValueError(
            f"table.rows={table.rows} with {len(own)} cells; add tokens to table.rows, and finish "
            "at least one run"
        )
    lines: dict[Key, list[Cell]] = {}
    for cell in own:
        named = [v for f, v in zip(table.rows, cell.row, strict=True) if f not in VARIED]
        lines.setdefault(tuple(named), []).append(cell)
    return lines


def line_looks(keys: Sequence[Key]) -> dict[Key, tuple[str, str]]:
    """Colour and marker of each line: a colour for its first name, a marker for the others."""
    ways = list(dict.fromkeys(key[:1] for key in keys))
    rests = list(dict.fromkeys(key[1:] for key in keys))
    return {
        key: (
            COLORS[ways.index(key[:1]) % len(COLORS)],
            MARKERS[rests.index(key[1:]) % len(MARKERS)],
        )
        for key in keys
    }


def draw_tokens(cells: Sequence[Cell], table: TableConfig, stem: Path) -> None:
    """Write STEM.png and STEM.svg.

    Raises:
        ValueError: as `token_lines` does.
    """
    lines = token_lines(cells, table)
    at = table.rows.index("tokens")
    columns = list(dict.fromkeys(c.column for members in lines.values() for c in members))
    looks = line_looks(list(lines))
    free = {key for key, members in lines.items() if not any(float(c.row[at]) for c in members)}
    with mpl.rc_context({"svg.hashsalt": "lgp", "font.size": 8}):
        figure = Figure(figsize=(3.4 * len(columns) + 0.4, 3.8), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(columns), squeeze=False)[0]
        for ax, column in zip(axes, columns, strict=True):
            for place, (key, members) in enumerate(lines.items()):
                here = sorted((c for c in members if c.column == column),
                              key=lambda c: float(c.row[at]))  # fmt: skip
                shift = 1.012 ** (place - len(lines) / 2)  # bars beside each other
                _draw(ax, here, at, looks[key], key in free, shift)
            _finish(ax, " ".join(NAMES.get(part, part) for part in column))
        axes[0].set_ylabel("points over vanilla (0-100)")
        handles = [
            Line2D([], [], color=color, marker="" if key in free else marker, markersize=4,
                   linestyle="--" if key in free else "-", label=", ".join(key))
            for key, (color, marker) in looks.items()
        ]  # fmt: skip
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(stem.with_suffix(".png"))
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})


def _draw(
    ax: Axes, cells: Sequence[Cell], at: int, look: tuple[str, str], free: bool, shift: float
) -> None:
    """A line of one way to spend tokens; a level one for a way that spends none."""
    color, marker = look
    gains = [100 * c.comparison.difference for c in cells]
    if free:
        for gain in gains:
            ax.axhline(gain, color=color, linestyle="--", linewidth=1.2)
        return
    xs = [float(c.row[at]) * shift for c in cells]
    bars = [(100 * c.comparison.low, 100 * c.comparison.high) for c in cells]
    draw_series(ax, xs, gains, bars, color, marker=marker, markersize=4, linewidth=1.3)


def _finish(ax: Axes, title: str) -> None:
    ax.set_title(title, fontsize=8)
    ax.set_xlabel("thousand tokens a graph")
    ax.axhline(0, color="#808080", linewidth=0.8)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.grid(axis="y", color="#E4E4E4", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
