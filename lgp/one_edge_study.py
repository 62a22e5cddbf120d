"""The one-edge study of a run (paper section 3, Figure 1): `one_edge.csv`, `.md` and `.png`.

In: the stages of a run. Out: ground-truth recall (share of relevant documents seen) against C at a
fixed P, and against P at a fixed C. Oracle = per query and C the best change; Uniform = the mean
over all of them. At each P the queries are those whose search does not exhaust the graph before.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tqdm import tqdm

from lgp.config_tables import OneEdgeConfig
from lgp.graph import Graph
from lgp.grids import records_csv
from lgp.one_edge import OneEdge, study
from lgp.runs import Collection
from lgp.search import QueryDistances
from lgp.stats import paired_interval
from lgp.store import write_aside

log = logging.getLogger(__name__)

COLOURS = {"oracle": "#D55E00", "vanilla": "#000000", "uniform": "#009E73"}


def relevant_nodes(collection: Collection) -> list[dict[int, int]]:
    """{node: relevant documents at it} of every judged query."""
    dataset = collection.dataset
    found = []
    for name in collection.query_ids:
        nodes: dict[int, int] = {}
        for document, grade in dataset.qrels[name].items():
            if grade >= dataset.relevance_level:
                node = int(collection.node_of_document[collection.row_of[document]])
                nodes[node] = nodes.get(node, 0) + 1
        found.append(nodes)
    return found


def rows(results: dict[int, OneEdge]) -> list[dict[str, float]]:
    """One row per (P, C): means in percent, differences to vanilla with 95 % intervals."""
    table = []
    for budget, found in results.items():
        for column, more in enumerate(found.continuations):
            row: dict[str, float] = {"P": budget, "C": more, "queries": len(found.queries)}
            base = found.vanilla[:, column]
            row["vanilla"] = 100 * base.mean()
            for name in ("uniform", "oracle"):
                values = getattr(found, name)[:, column]
                low, high = paired_interval(values - base)
                row |= {
                    name: 100 * values.mean(),
                    f"{name}_minus_vanilla": 100 * (values - base).mean(),
                    f"{name}_low": 100 * low,
                    f"{name}_high": 100 * high,
                }
            error = np.sqrt((found.uniform_error[:, column] ** 2).sum()) / len(base)
            row["uniform_sampling_error"] = 100 * float(error)
            row["pairs_mean"] = float(found.n_pairs.mean())
            table.append(row)
    return table


def draw(
    tables: Mapping[str, Sequence[Mapping[str, float]]], settings: OneEdgeConfig, path: Path
) -> None:
    """Per collection, recall against C at the fixed P, and against P at the fixed C."""
    figure = Figure(figsize=(9, 0.3 + 3.1 * len(tables)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(tables), 2, squeeze=False)
    at_budget, at_continuation = settings.fixed_budget, settings.fixed_continuation
    for (title, table), (left, right) in zip(tables.items(), panels, strict=True):
        for axes, fixed, value, x in (
            (left, "P", at_budget, "C"), (right, "C", at_continuation, "P"),
        ):  # fmt: skip
            points = [row for row in table if row[fixed] == value]
            for name, colour in COLOURS.items():
                xs, ys = [row[x] for row in points], [row[name] for row in points]
                axes.plot(xs, ys, "o-", color=colour, label=name)
            axes.set_xscale("log", base=2)
            axes.set_xticks([row[x] for row in points], [str(int(row[x])) for row in points])
            axes.minorticks_off()
            axes.set_xlabel({"C": "C: distances after the pause", "P": "P: distances before it"}[x])
            axes.set_ylabel("relevant documents seen, %")
            axes.set_title(f"{title}, {fixed} = {value}", fontsize=10)
            axes.grid(alpha=0.3)
    panels[0, 0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def markdown(table: Sequence[Mapping[str, float]]) -> str:
    """The table in percent."""
    lines = [
        "| P | C | queries | vanilla | uniform | minus vanilla | oracle | minus vanilla |",
        "| --: | --: | --: | --: | --: | --- | --: | --- |",
    ]
    for row in table:
        cells = [f"{row['P']:.0f}", f"{row['C']:.0f}", f"{row['queries']:.0f}",
                 f"{row['vanilla']:.1f}"]  # fmt: skip
        for name in ("uniform", "oracle"):
            cells += [
                f"{row[name]:.1f}",
                f"{row[f'{name}_minus_vanilla']:+.2f} "
                f"[{row[f'{name}_low']:+.2f}, {row[f'{name}_high']:+.2f}]",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def one_edge_study(
    graph: Graph, distances: QueryDistances, collection: Collection, settings: OneEdgeConfig,
    seed: int, folder: Path,
) -> None:  # fmt: skip
    """Run the study on a vanilla graph and write its table and figure into a run folder.

    Raises:
        ValueError: every search exhausts the graph before the smallest P.
    """
    relevant = relevant_nodes(collection)
    results = {}
    for budget in tqdm(settings.budgets, desc="one-edge study", unit="P"):
        at_fixed = budget == settings.fixed_budget
        more = settings.continuations if at_fixed else [settings.fixed_continuation]
        found = study(graph, distances, relevant, budget, more, settings.max_pairs, seed)
        if len(found.queries):
            results[budget] = found
        else:
            log.warning("P = %d: every search exhausts the graph before; left out", budget)
    if not results:
        raise ValueError(
            f"one_edge.budgets={settings.budgets}: every search exhausts the graph of {graph.n} "
            "nodes before; lower them or take a larger collection"
        )
    table = rows(results)
    write_aside(folder / "one_edge.csv", records_csv(table))
    write_aside(folder / "one_edge.md", markdown(table))
    draw({collection.dataset.name: table}, settings, folder / "one_edge.png")


def read_study(folder: Path) -> list[dict[str, float]]:
    """The rows that `one_edge_study` wrote into a run folder.

    Raises:
        FileNotFoundError: the run made no study.
    """
    path = folder / "one_edge.csv"
    if not path.is_file():
        raise FileNotFoundError(f"no one_edge.csv in {folder}; run it with one_edge.enabled=true")
    with open(path, newline="", encoding="utf-8") as file:
        return [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)]
