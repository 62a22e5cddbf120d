"""Reports of run folders: terminal tables, `report.md`, `metrics.csv` and figures.

Input: folders holding `queries.jsonl`. Output: text and files. Numbers come from `results` and
`comparison`; here they only get columns and rounding, so a relative gain is never one of rounded
means. `lgp report` is `main`; the page it ends with is `lgp.page`.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lgp.averages import average_rows
from lgp.comparison import Row, comparison_table, headline_value, sentences
from lgp.figures import METRIC_NAMES, RANKING_NAMES, caption, draw_figure
from lgp.gather import common_parent
from lgp.grids import Grid, markdown, print_grid
from lgp.page import write_page
from lgp.results import METRICS, QUERIES_FILE, Results, read_queries, write_metrics_csv
from lgp.stats import holm
from lgp.store import write_aside
from lgp.summary import break_even_lines, graph_lines

__all__ = [
    "comparison_table",
    "main",
    "print_report",
    "read_queries",
    "write_metrics_csv",
    "write_report",
]


def print_report(
    results: Results, console: Console, main: str | None = None, metric: str = "ndcg_at_10"
) -> None:
    """Print tables and sentences; columns are dropped, with a word, on terminals too narrow.

    Raises:
        ValueError: unknown metric or main selector; see `comparison_table`.
    """
    for note in results.notes():
        console.print(f"Note: {note}", markup=False, highlight=False)
    for ranking in results.rankings():
        rows = comparison_table(results, metric, ranking, main)
        for grid in _grids(rows, metric, ranking, main):
            print_grid(grid, console)
        console.print()
        for line in sentences(rows, main):
            console.print(f"- {line}", markup=False, highlight=False)


def write_report(
    run_dir: Path | str, main: str | None = None, metric: str = "ndcg_at_10"
) -> Results:
    """Write `metrics.csv`, `report.md` and `<metric>.png` into a run folder; returns what it read.

    The figure shows the greedy ranking; a reranked one is drawn in `<metric>_rerank.png`.

    Raises:
        FileNotFoundError, ValueError: as `read_queries` and `comparison_table`.
    """
    results = read_queries(run_dir)
    _write_report(results, Path(run_dir), main, metric)
    return results


def find_runs(folder: Path) -> list[Path]:
    """List the run folders in a folder, itself included, by name.

    Raises:
        FileNotFoundError: there is none.
    """
    runs = sorted(path.parent for path in folder.rglob(QUERIES_FILE))
    if not runs:
        raise FileNotFoundError(
            f"no {QUERIES_FILE} in or under {folder}; give the folder of a finished run or sweep"
        )
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    """Run `lgp report RUN_DIR ... [--main SELECTOR] [--metric METRIC]`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="lgp report", description="Tables and figures of runs.")
    parser.add_argument("run_dir", nargs="+", type=Path, help="run folders, or folders of them")
    parser.add_argument("--main", help="compare this selector with every other one, too")
    parser.add_argument("--metric", default="ndcg_at_10", choices=METRICS)
    parser.add_argument("--out", type=Path, help="folder of the page (default: report/ beside)")
    args = parser.parse_args(argv)
    console = Console()
    tables: dict[str, dict[str, list[Row]]] = {}
    read: dict[Path, Results] = {}
    try:
        for run_dir in dict.fromkeys(run for folder in args.run_dir for run in find_runs(folder)):
            results = read[run_dir] = read_queries(run_dir)
            console.print(f"\n{run_dir}", style="bold", markup=False, highlight=False)
            print_report(results, console, args.main, args.metric)
            _write_report(results, run_dir, args.main, args.metric)
            for ranking in results.rankings():
                rows = comparison_table(results, args.metric, ranking)
                tables.setdefault(ranking, {})[str(run_dir)] = rows
        folders = list(dict.fromkeys(args.run_dir))
        out = args.out or (folders[0] if len(folders) == 1 else common_parent(folders)) / "report"
        page = write_page(read, folders, out, args.main, args.metric)
    except (OSError, ValueError) as error:
        print(f"lgp report: {error}", file=sys.stderr)
        return 2
    for ranking, runs in tables.items():
        if len(runs) > 1:
            said = f"{METRIC_NAMES[args.metric]} (0-100) {RANKING_NAMES[ranking]}"
            print_grid(_summary_grid(runs, said), console)
            print_grid(_average_grid(runs, said), console)
    print(page)
    return 0


def _write_report(results: Results, run_dir: Path, main: str | None, metric: str) -> None:
    lines = [f"# Report: {METRIC_NAMES[metric]}", ""]
    lines += [f"> {note}\n" for note in results.notes()]
    for ranking in results.rankings():
        rows = comparison_table(results, metric, ranking, main)
        figure = f"{metric}.png" if ranking == results.rankings()[0] else f"{metric}_{ranking}.png"
        draw_figure(rows, metric, ranking, run_dir / figure)
        lines += [f"## {RANKING_NAMES[ranking].capitalize()}", ""]
        lines += [f"- {line}" for line in sentences(rows, main)]
        text = caption(metric, ranking, rows)
        lines += ["", f"![{METRIC_NAMES[metric]} against search effort]({figure})", "", text, ""]
        for grid in _grids(rows, metric, ranking, main):
            lines += markdown(grid)
    said = graph_lines(run_dir)
    said += break_even_lines(run_dir, comparison_table(results, metric, results.rankings()[0]))
    if said:
        lines += ["## Graphs", "", *(f"- {line}" for line in said), ""]
    write_aside(run_dir / "report.md", "\n".join(lines))
    write_metrics_csv(results, run_dir / "metrics.csv")


def _grids(rows: Sequence[Row], metric: str, ranking: str, main: str | None) -> list[Grid]:
    grids = []
    for mode in ("width", "budget"):
        here = [r for r in rows if r.mode == mode]
        if not here:
            continue
        exact = "" if here[0].exact is None else f"; exact kNN {_percent(here[0].exact)}"
        head = f"{METRIC_NAMES[metric]} (0-100) {RANKING_NAMES[ranking]}, by {mode}"
        grids.append(_vanilla_grid(f"{head}{exact}", here, metric))
        if any(r.base not in (None, "vanilla") for r in here):
            grids.append(_control_grid(f"{head}: {main} minus its controls", here))
    return grids


def _vanilla_grid(title: str, rows: Sequence[Row], metric: str) -> Grid:
    own = [r for r in rows if r.base in (None, "vanilla")]
    layered = any(r.n_dist_above > 0 for r in own)  # distances above are a part of "dist"
    return Grid(
        title=title,
        columns=(
            *(own[0].mode, "graph", "dist", *(["above"] if layered else [])),
            *(METRIC_NAMES[metric], "diff", "95 % interval", "gain", "p", "reach", "of exact"),
        ),
        optional=("of exact", "reach", "above", "dist", "gain", "p", "95 % interval"),
        body=tuple(
            (
                *(str(r.value), r.label, f"{r.n_dist:.0f}"),
                *([f"{r.n_dist_above:.0f}"] if layered else []),
                *(_percent(r.mean), *_difference(r)),
                *(_percent(r.reach), _percent(r.share_of_exact, " %")),
            )
            for r in own
        ),
        groups=tuple(r.value for r in own),
    )


def _control_grid(title: str, rows: Sequence[Row]) -> Grid:
    versus = [r for r in rows if r.base not in (None, "vanilla")]
    body = []
    for value in dict.fromkeys(r.value for r in versus):
        here = [(r, r.comparison) for r in versus if r.value == value and r.comparison]
        for (row, c), adjusted in zip(here, holm([c.p for _, c in here]), strict=True):
            sides = (_percent(c.mean_other), _percent(c.mean_base))
            counts = f"{c.wins}/{c.ties}/{c.losses}"
            ends = (f"{adjusted:.4f}", counts)
            body.append((str(value), str(row.base), *sides, *_difference(row), *ends))
    return Grid(
        title=title,
        columns=(
            *(versus[0].mode, "control", versus[0].label, "control's", "diff", "95 % interval"),
            *("gain", "p", "Holm p", "win/tie/loss"),
        ),
        optional=("win/tie/loss", "gain", "control's", "p", versus[0].label, "Holm p"),
        body=tuple(body),
        groups=tuple(r.value for r in versus),
    )


def _summary_grid(tables: dict[str, list[Row]], said: str) -> Grid:
    """One line per run and selector at the headline width (or budget)."""
    body: list[tuple[str, ...]] = []
    groups: list[int] = []
    for group, (run, rows) in enumerate(tables.items()):
        mode = "width" if any(r.mode == "width" for r in rows) else "budget"
        point = (mode, headline_value(rows, mode))
        for row in rows:
            if (row.mode, row.value) == point and row.comparison is not None:
                c = row.comparison
                means = (_percent(c.mean_base), _percent(c.mean_other))
                body.append(
                    (Path(run).name, row.label, f"{mode} {row.value}", *means, *_difference(row))
                )
                groups.append(group)
    return Grid(
        title=f"{said} of all runs",
        columns=("run", "graph", "at", "vanilla", "mean", "diff", "95 % interval", "gain", "p"),
        optional=("gain", "p", "vanilla", "95 % interval", "at"),
        body=tuple(body),
        groups=tuple(groups),
    )


def _average_grid(tables: dict[str, list[Row]], said: str) -> Grid:
    """The means over the runs at every point that all of them have."""
    found = average_rows(list(tables.values()))
    body = []
    for a in found:
        gain = "-" if a.relative_pct is None else f"{a.relative_pct:+.1f} %"
        difference = "-" if a.difference is None else f"{100 * a.difference:+.2f}"
        vanilla, mean, exact = (  # two decimals, as the paper prints its averages
            "-" if x is None else f"{100 * x:.2f}" for x in (a.vanilla, a.mean, a.exact)
        )
        ends = (vanilla, mean, difference, gain, exact)
        body.append((f"{a.mode} {a.value}", a.label, f"{a.n_dist:.0f}", *ends))
    points = list(dict.fromkeys((a.mode, a.value) for a in found))
    return Grid(
        title=f"{said}, mean of {len(tables)} runs, each weighing the same",
        columns=("at", "graph", "dist", "vanilla", "mean", "diff", "gain", "exact"),
        optional=("dist", "exact", "vanilla"),
        body=tuple(body),
        groups=tuple(points.index((a.mode, a.value)) for a in found),
    )


def _difference(row: Row) -> tuple[str, str, str, str]:
    c = row.comparison
    if c is None:
        return ("-", "-", "-", "-")
    gain = "-" if math.isnan(c.relative_pct) else f"{c.relative_pct:+.1f} %"
    interval = f"[{100 * c.low:+.1f}, {100 * c.high:+.1f}]"
    return (f"{100 * c.difference:+.1f}", interval, gain, f"{c.p:.4f}")


def _percent(fraction: float | None, unit: str = "") -> str:
    return "-" if fraction is None or math.isnan(fraction) else f"{100 * fraction:.1f}{unit}"
