"""The quality-against-effort figure of a report.

Input: the rows of `comparison_table`. Output: a PNG, one panel per mode of effort. matplotlib is
used through its objects only, so that importing or drawing changes no global state.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from lgp.comparison import Row, count

METRIC_NAMES = {
    "ndcg_at_5": "NDCG@5",
    "ndcg_at_10": "NDCG@10",
    "recall_at_5": "Recall@5",
    "recall_at_10": "Recall@10",
    "reach": "Reach",
}
RANKING_NAMES = {"greedy": "in search order", "rerank": "after reranking"}
# Okabe and Ito's colours, told apart by readers with any common colour blindness. A selector keeps
# its colour and marker in every figure, whichever others are drawn.
STYLES = {
    "vanilla": ("#000000", "o"),
    "llm": ("#D55E00", "s"),
    "farthest": ("#0072B2", "^"),
    "uniform": ("#009E73", "D"),
    "encoder": ("#CC79A7", "v"),
    "nearest": ("#56B4E9", "P"),
    "first": ("#E69F00", "X"),
    "repair": ("#8C6D31", "<"),
}
_SPARE_STYLES = (("#5E3C99", ">"), ("#666666", "h"), ("#A6611A", "p"))
_AXIS_NAMES = {
    "width": "Search width (candidates kept)",
    "budget": "Distance budget (distances per query)",
}
# Space between tick labels and width of one digit, as shares of the axis of a half-width panel.
_LABEL_GAP, _DIGIT_WIDTH = 0.016, 0.026


def caption(metric: str, ranking: str, rows: Sequence[Row]) -> str:
    """Say what the figure shows, its bands included."""
    name = METRIC_NAMES[metric]
    n_queries = max((r.comparison.n_queries for r in rows if r.comparison), default=0)
    n_seeds = max((r.comparison.n_seeds for r in rows if r.comparison), default=0)
    ceiling = " Dashed grey: exact kNN." if any(r.exact is not None for r in rows) else ""
    size = (
        f"{count(n_queries, 'query', 'queries')} and {count(n_seeds, 'graph seed', 'graph seeds')}"
    )
    return (
        f"{name} (0-100) {RANKING_NAMES[ranking]} against search effort: means over {size}. "
        "Each bar is the 95 % bootstrap interval of the paired difference to vanilla over queries, "
        "drawn from vanilla's mean: a bar that does not reach vanilla's point excludes 0. Points "
        f"of different graphs stand side by side for reading only.{ceiling}"
    )


def draw_figure(rows: Sequence[Row], metric: str, ranking: str, path: Path | str) -> None:
    """Draw quality against width and against budget, and write it as a PNG.

    Intervals are those of the paired difference to vanilla rather than of the mean: the spread
    between queries, the same for all graphs, would make bars overlap where the difference is clear.

    Raises:
        ValueError: no rows to draw.
    """
    own = [r for r in rows if r.base in (None, "vanilla")]
    modes = [m for m in _AXIS_NAMES if any(r.mode == m for r in own)]
    if not modes:
        raise ValueError("0 rows to draw; give rows of mode width or budget")
    labels = list(dict.fromkeys(r.label for r in own))
    styles = graph_styles(labels)
    figure = Figure(figsize=(1.2 + 3.9 * len(modes), 3.9), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(modes), sharey=True, squeeze=False)[0]
    for panel, (ax, mode) in enumerate(zip(axes, modes, strict=True)):
        _draw_panel(ax, [r for r in own if r.mode == mode], styles)
        ax.set_xlabel(_AXIS_NAMES[mode])
        if panel == 0:
            after = " after reranking" if ranking == "rerank" else ""
            ax.set_ylabel(f"{METRIC_NAMES[metric]}{after} (0-100)")
    handles = [_handle(label, styles[label]) for label in labels]
    if any(r.exact is not None for r in own):
        handles.append(Line2D([], [], color="#808080", linestyle="--", label="exact kNN"))
    if any(r.comparison for r in own):
        text = "95 % interval of the difference to vanilla"
        handles.append(
            Line2D([], [], color="#808080", marker="|", markersize=9, linestyle="", label=text)
        )
    _add_legend(figure, handles)
    figure.savefig(path, format="png")


def _add_legend(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Put the legend below the panels, in as many columns as the figure is wide enough for."""
    for columns in range(min(5, len(handles)), 0, -1):
        legend = figure.legend(
            handles=handles, loc="outside lower center", ncols=columns, frameon=False
        )
        figure.draw_without_rendering()
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def _draw_panel(ax: Axes, rows: Sequence[Row], styles: dict[str, tuple[str, str]]) -> None:
    values = sorted({r.value for r in rows})
    ax.set_xscale("log", base=2 if rows[0].mode == "width" else 10)
    refined = [label for label in styles if label != "vanilla"]
    span = max(values) / min(values) if len(values) > 1 else 4.0
    for label, (color, marker) in styles.items():
        mine = sorted((r for r in rows if r.label == label), key=lambda r: r.value)
        if not mine:
            continue
        # Bars of different graphs at one point stand beside each other instead of on top.
        place = 0.0 if label == "vanilla" else refined.index(label) - (len(refined) - 1) / 2
        shift = span ** (0.007 * place)
        x = [r.value * shift for r in mine]
        bars = [
            None if (c := r.comparison) is None
            else (100 * (c.mean_base + c.low), 100 * (c.mean_base + c.high))
            for r in mine
        ]  # fmt: skip
        vanilla = label == "vanilla"
        draw_series(
            ax, x, [100 * r.mean for r in mine], bars, color, marker=marker,
            markersize=4.2 if vanilla else 4.8, markeredgecolor="white", markeredgewidth=0.5,
            linewidth=1.9 if vanilla else 1.4, zorder=3 if vanilla else 4,
        )  # fmt: skip
    exact = next((r.exact for r in rows if r.exact is not None), None)
    if exact is not None:
        ax.axhline(100 * exact, color="#808080", linestyle="--", linewidth=1.2, zorder=1)
    pad = span**0.06
    ax.set_xlim(min(values) / pad, max(values) * pad)
    ax.xaxis.set_major_locator(FixedLocator([float(v) for v in values]))
    ax.xaxis.set_major_formatter(FixedFormatter(_tick_labels(values, span * pad**2)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelleft=True)


def draw_series(
    ax: Axes, xs: Sequence[float], ys: Sequence[float],
    bars: Sequence[tuple[float, float] | None], color: str, **look: Any,
) -> None:  # fmt: skip
    """Draw a graph's points, and a bar from low to high at each that has one.

    Args:
        look: of points and line, as matplotlib's `plot` takes it.
    """
    ax.plot(xs, ys, color=color, **look)
    for x, bar in zip(xs, bars, strict=True):
        if bar is not None:
            ax.vlines(x, *bar, color=color, linewidth=1.1, alpha=0.55, zorder=2)


def graph_styles(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Give each label its fixed style; unknown selectors take the spare ones in order of name."""
    unknown = sorted(label for label in labels if label not in STYLES)
    spare = {x: _SPARE_STYLES[i % len(_SPARE_STYLES)] for i, x in enumerate(unknown)}
    return {label: STYLES.get(label) or spare[label] for label in labels}


def _handle(label: str, style: tuple[str, str]) -> Line2D:
    color, marker = style
    return Line2D(
        [], [], color=color, marker=marker, markersize=5, linewidth=1.6, label=label,
        markeredgecolor="white", markeredgewidth=0.5,
    )  # fmt: skip


def _tick_labels(values: Sequence[int], span: float) -> list[str]:
    """Write each value unless it would touch the next one written, the largest first.

    Going down keeps the round values that follow a dense stretch, such as 20 after 10, 12, ... 18.
    """
    labels: list[str] = []
    last = math.inf
    for value in sorted(values, reverse=True):
        text = str(value)
        crowded = value * span ** (_LABEL_GAP + _DIGIT_WIDTH * len(text)) > last
        labels.append("" if crowded else text)
        last = last if crowded else float(value)
    return labels[::-1]
