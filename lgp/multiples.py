"""Drawings of the report page: a small panel per run, and differences with their intervals.

In: records (`lgp.page_records`). Out: matplotlib figures, and the same as SVG text with ids of its
own, so that many stand in one HTML file. Legends are the page's. Text is never read as mathematics.
Figures are narrow, so that on a phone, too, they are read without being shrunk.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lgp.figures import draw_series

Record = Mapping[str, Any]
Styles = Mapping[str, tuple[str, str]]
GREY, FAINT = "#7b8490", "#7b849055"
"""Of text and frames, and of grids: read on white and on black."""
RC: dict[Any, Any] = {
    "font.size": 9, "text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "lgp",
    "font.family": ["sans-serif"], "text.color": GREY, "axes.labelcolor": GREY,
    "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY,
}  # fmt: skip
AXES = {"width": "search width", "budget": "distances a query"}


def curve_panel(records: Sequence[Record], styles: Styles) -> Figure:
    """One run's quality against effort.

    Args:
        records: of one run, ranking, metric and mode, against vanilla or of vanilla itself; `low`
            and `high` (of the difference, points) may be None.
        styles: colour and marker of each graph.
    """
    with _figure(3.2, 2.2) as (figure, ax):
        values = sorted({r["value"] for r in records})
        ax.set_xscale("log")
        refined = [label for label in styles if label != "vanilla"]
        for label, (color, marker) in styles.items():
            mine = sorted((r for r in records if r["graph"] == label), key=lambda r: r["value"])
            place = 0.0 if label == "vanilla" else refined.index(label) - (len(refined) - 1) / 2
            xs = [r["value"] * 1.02**place for r in mine]
            bars = [
                None if r.get("low") is None
                else (r["base_mean"] + r["low"], r["base_mean"] + r["high"])
                for r in mine
            ]  # fmt: skip
            draw_series(ax, xs, [r["mean"] for r in mine], bars, color, marker=marker,
                        markersize=3.6, linewidth=1.3)  # fmt: skip
        exact = next((r["exact"] for r in records if r.get("exact") is not None), None)
        if exact is not None:
            ax.axhline(exact, color=GREY, linestyle="--", linewidth=1)
        kept = values[:: math.ceil(len(values) / 5)]
        ax.set_xticks(kept, [str(v) for v in kept])
        ax.minorticks_off()
        ax.grid(axis="y", color=FAINT, linewidth=0.6)
        ax.set_xlabel(AXES[str(records[0]["mode"])])
    return figure


def difference_panel(records: Sequence[Record], styles: Styles, bars: bool) -> Figure:
    """Differences in points with 95 % intervals, a row per run and pair of graphs.

    Args:
        records: of one ranking, metric and point; the pair's name is the graph's against vanilla,
            else the control's. Filled: a gain or loss by interval and adjusted p.
        bars: draw bars from 0, else marks.
    """
    runs = list(dict.fromkeys(r["run"] for r in records))
    names = list(dict.fromkeys(_name(r) for r in records))
    step = 0.8 / len(names)
    with _figure(3.6, 0.8 + 0.19 * len(runs) * max(len(names), 2)) as (figure, ax):
        for r in records:
            color, marker = styles[_name(r)]
            y = runs.index(r["run"]) + step * (names.index(_name(r)) - (len(names) - 1) / 2)
            filled = color if r["shown"] in ("gain", "loss") else "none"
            if bars:
                ax.barh(y, r["difference"], 0.8 * step, color=filled, edgecolor=color, alpha=0.6)
            else:
                ax.plot([r["difference"]], [y], marker=marker, color=color, markersize=5,
                        markerfacecolor=filled)  # fmt: skip
            ax.hlines(y, r["low"], r["high"], color=color, linewidth=1.3)
        ax.axvline(0, color=GREY, linewidth=0.8)
        ax.set_yticks(range(len(runs)), [_wrapped(run) for run in runs])
        ax.set_ylim(len(runs) - 0.4, -0.6)
        ax.set_xlabel("points")
        ax.grid(axis="x", color=FAINT, linewidth=0.6)
        ax.spines[["left"]].set_visible(False)
    return figure


def svg(figure: Figure, name: str) -> str:
    """A figure as an SVG element whose ids start with a name, the same for the same figure; black
    becomes the text's colour."""
    buffer = io.StringIO()
    with mpl.rc_context(RC):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\1#{name}-", text).replace("#000000", "currentColor")
    return re.sub(r'^<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1">', text)


def png(figure: Figure) -> bytes:
    """A figure as a PNG on white."""
    buffer = io.BytesIO()
    with mpl.rc_context(RC):
        figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    return buffer.getvalue()


@contextmanager
def _figure(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    with mpl.rc_context(RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        yield figure, axes


def _name(record: Record) -> str:
    return str(record["graph"] if record["base"] == "vanilla" else record["base"])


def _wrapped(name: str, longest: int = 16) -> str:
    """A run's name on at most two lines of a narrow figure."""
    if len(name) <= longest:
        return name
    head = name[:longest].rpartition(" ")[0] or name[:longest]
    rest = name[len(head) :].strip()
    return f"{head}\n{rest if len(rest) <= longest else rest[: longest - 1] + chr(0x2026)}"
