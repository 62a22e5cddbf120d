"""`lgp report`: one self-contained HTML page over any set of run folders, and its parts as files.

In: run folders. Out: `index.html` (figures inline, no request, no script), `figures/*.png, *.svg`,
`tables/*.csv` (unrounded) and `tables/*.tex`. The same runs give the same bytes. What comes from
files is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lgp import multiples
from lgp import page_records as records
from lgp.comparison import sentences
from lgp.figures import METRIC_NAMES, RANKING_NAMES, graph_styles
from lgp.gather import PageRun, gather, missing_jobs, page_metrics
from lgp.grids import Grid, records_csv
from lgp.page_columns import (
    AVERAGES,
    COST,
    EFFORT,
    EVERYTHING,
    HEADLINE,
    PAPER,
    RUNS,
    VERDICTS,
)
from lgp.page_html import Drawing, Section, Table, cell_text, html_page
from lgp.results import Results
from lgp.store import write_aside
from lgp.summary import break_even_lines
from lgp.tables import latex

Record = Mapping[str, Any]


def write_page(
    results: Mapping[Path, Results], folders: Sequence[Path], out: Path, main: str | None,
    metric: str,
) -> Path:  # fmt: skip
    """Write the page of some runs; returns the path of `index.html`.

    Args:
        results: the runs read. folders: as given, searched for jobs that are missing.
        main: the selector the others are controls of; None takes each run's own.
    Raises:
        ValueError: a JSON file of a run that is none; an unknown metric or selector.
    """
    runs = gather(results, main, metric)
    for part in ("figures", "tables"):
        (out / part).mkdir(parents=True, exist_ok=True)
    sections = list(_sections(runs, missing_jobs(folders), metric, out))
    for table in (table for section in sections for table in section.tables):
        _write_table(table, out / "tables")
    title = f"{METRIC_NAMES[metric]} of {', '.join(dict.fromkeys(r.dataset for r in runs))}"
    write_aside(out / "index.html", html_page(title, sections))
    return out / "index.html"


def _sections(
    runs: Sequence[PageRun], missing: Sequence[str], metric: str, out: Path
) -> Iterator[Section]:
    quality = records.quality_records(runs)
    yield Section(
        "runs", "What was run", missing or ["Nothing is missing."],
        tables=[
            Table("runs", "Runs, collections, code and machine", RUNS, records.run_records(runs))
        ],
    )  # fmt: skip
    yield _headline(runs, quality, metric)
    for name in page_metrics(metric):
        yield _curves(runs, quality, name, out)
    for ranking in dict.fromkeys(r["ranking"] for r in quality):
        yield _differences(quality, metric, ranking, out)
    effort = [r for r in records.effort_records(runs) if r["metric"] == metric]
    if effort:
        yield Section(
            "effort", "Distances to reach vanilla's quality",
            [f"Quality is vanilla's at budget {effort[0]['budget']}, interpolated on each graph's "
             "budget curve; no number: never reached."],
            tables=[Table("effort", f"Distances a query, {METRIC_NAMES[metric]}", EFFORT, effort)],
        )  # fmt: skip
    structure = records.graph_records(runs)
    if structure:
        keys = list(dict.fromkeys(key for record in structure for key in record))
        columns = [(key, key, "" if key in ("run", "graph") else ".4g") for key in keys]
        yield Section("structure", "Structure of the graphs", [], tables=[
            Table("structure", "Means over graph seeds", columns, structure)])  # fmt: skip
    cost = records.cost_records(runs)
    if cost:
        lines = [f"{run.name}: {line}" for run in runs for key, rows in run.tables.items()
                 if key == (run.results.rankings()[0], metric)
                 for line in break_even_lines(run.path, rows)]  # fmt: skip
        yield Section("cost", "What refining cost", lines, tables=[
            Table("cost", "Means over graph seeds", COST, cost)])  # fmt: skip
    everything = [_worded(r) for r in quality]
    tables = [Table("quality", "Every run, graph and point of effort", EVERYTHING, everything)]
    if averages := records.average_records(runs):
        tables.insert(0, Table("averages", f"Means over {len(runs)} runs, each weighing the same",
                               AVERAGES, averages))  # fmt: skip
    yield Section("all", "All numbers", [], tables=tables)
    yield Section(
        "paper", "What the paper states",
        ["The paper's own numbers, on its benchmarks with its models: another setting than the "
         "runs above."],
        tables=[Table("paper", "Stated in the paper's text", PAPER, records.paper_records())],
    )  # fmt: skip


def _headline(runs: Sequence[PageRun], quality: Sequence[Record], metric: str) -> Section:
    """What is shown at the headline points: sentences of one run, counts over many."""
    if len(runs) == 1:
        lines = [
            f"{RANKING_NAMES[ranking].capitalize()}: {line}"
            for ranking in runs[0].results.rankings()
            for line in sentences(runs[0].tables[ranking, metric], runs[0].main)
        ]
        return Section("headline", "In words", lines)
    groups: dict[tuple[str, ...], list[Record]] = {}
    for r in quality:
        if r["headline"] and r["metric"] == metric and r["base"] is not None:
            key = (r["ranking"], f"{r['mode']} {r['value']}", r["graph"], r["base"])
            groups.setdefault(key, []).append(r)
    verdicts = [
        dict(zip(("ranking", "at", "graph", "base"), key, strict=True))
        | {word: sum(r["shown"] == word for r in own) for word in ("gain", "loss", "none")}
        | {"runs": len(own)}
        for key, own in groups.items()
    ]
    lines = [
        "In how many runs a difference is shown: the interval excludes 0 and p, adjusted by Holm "
        "over the runs and, against controls, over the controls, is at most 0.05."
    ]
    text = f"{METRIC_NAMES[metric]} at the headline points"
    return Section("headline", "In short", lines, tables=[
        Table("verdicts", text, VERDICTS, verdicts)])  # fmt: skip


def _curves(runs: Sequence[PageRun], quality: Sequence[Record], metric: str, out: Path) -> Section:
    """A panel per run, and one for their mean where there are several."""
    averages = [{**r, "run": "Mean of the runs"} for r in records.average_records(runs)]
    drawings = []
    for ranking in dict.fromkeys(r["ranking"] for r in quality):
        for mode in records.MODES:
            here = [
                r for r in [*quality, *averages]
                if (r["metric"], r["ranking"], r["mode"]) == (metric, ranking, mode)
                and r.get("base") in (None, "vanilla")
            ]  # fmt: skip
            if not here:
                continue
            name = f"{metric}-{ranking}-{mode}"
            styles = graph_styles(_vanilla_first(r["graph"] for r in here))
            panels = []
            for number, run in enumerate(dict.fromkeys(r["run"] for r in here)):
                own = [r for r in here if r["run"] == run]
                figure = multiples.curve_panel(own, styles)
                panels.append((run, _keep(figure, f"{name}-{number}", out)))
            by = "search width" if mode == "width" else "distance budget"
            text = f"{METRIC_NAMES[metric]} (0-100) {RANKING_NAMES[ranking]} by {by}."
            exact = any(r.get("exact") is not None for r in here)
            drawings.append(Drawing(name, text, styles, panels, exact))
    lines = [
        "Bars: 95 % interval of the paired difference to vanilla, drawn from vanilla's mean. A bar "
        "that does not reach vanilla's point excludes 0."
    ]
    return Section(
        f"curves-{metric}", f"{METRIC_NAMES[metric]} against search effort", lines, drawings
    )


def _differences(quality: Sequence[Record], metric: str, ranking: str, out: Path) -> Section:
    own = [r for r in quality if (r["metric"], r["ranking"]) == (metric, ranking) and r["headline"]]
    drawings = []
    for mode in records.MODES:
        here = [r for r in own if r["mode"] == mode and r["base"] is not None]
        for what, against_vanilla in (("gains", True), ("controls", False)):
            group = [r for r in here if (r["base"] == "vanilla") is against_vanilla]
            if not group:
                continue
            names = [r["graph"] if against_vanilla else r["base"] for r in group]
            styles = graph_styles(_vanilla_first(names))
            figure = multiples.difference_panel(group, styles, bars=not against_vanilla)
            name = f"{what}-{ranking}-{mode}"
            minus = "vanilla" if against_vanilla else "each control"
            who = "each graph" if against_vanilla else "the main selector"
            point = f"{mode} {group[0]['value']}"
            text = f"{METRIC_NAMES[metric]} of {who} minus that of {minus} at {point}."
            drawings.append(Drawing(name, text, styles, [("", _keep(figure, name, out))]))
    table = Table(
        f"headline-{ranking}", f"Headline points, {RANKING_NAMES[ranking]}", HEADLINE,
        [_worded(r) for r in own],
    )  # fmt: skip
    lines = ["With 95 % intervals. Filled: a gain or a loss by interval and by p, adjusted by Holm "
             "over the runs and, against controls, over the controls."]  # fmt: skip
    title = f"Gains and controls {RANKING_NAMES[ranking]}"
    return Section(f"gains-{ranking}", title, lines, drawings, [table])


def _vanilla_first(names: Iterable[str]) -> list[str]:
    return sorted(set(names), key=lambda name: (name != "vanilla", name))


def _worded(record: Record) -> Record:
    """A record with its interval and its wins, ties and losses in words."""
    if record["base"] is None:
        return record
    ends = f"[{record['low']:+.1f}, {record['high']:+.1f}]"
    score = f"{record['wins']}/{record['ties']}/{record['losses']}"
    return {**record, "interval": ends, "score": score}


def _keep(figure: Any, name: str, out: Path) -> str:
    text = multiples.svg(figure, name)
    write_aside(out / "figures" / f"{name}.svg", _standalone(text))
    (out / "figures" / f"{name}.png").write_bytes(multiples.png(figure))
    return text


def _standalone(text: str) -> str:
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return text.replace("<svg ", f"<svg {spaces} ", 1) + "\n"


def _write_table(table: Table, folder: Path) -> None:
    write_aside(folder / f"{table.name}.csv", records_csv(table.records))
    body = tuple(
        tuple(cell_text(record.get(key), form) for key, _, form in table.columns)
        for record in table.records
    )
    heads = tuple(head for _, head, _ in table.columns)
    grid = Grid(table.caption, heads, (), body, tuple([0] * len(body)))
    write_aside(folder / f"{table.name}.tex", latex(grid))
