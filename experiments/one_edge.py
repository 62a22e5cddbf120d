"""The paper's section 3 (Figures 1 and 2) on any collection: what one edge is worth.

`python experiments/one_edge.py dataset=beir dataset.path=DIR --out FOLDER` searches the vanilla
graph, tries every one-edge change at the pause, and writes `one_edge.csv`, `one_edge.md` and
`one_edge.png`: ground-truth recall (share of relevant documents seen) against C at a fixed P, and
against P at a fixed C. Oracle = per query and C the best change; Uniform = the mean over them. At
each P the queries are those whose search does not exhaust the graph before.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tqdm import tqdm

from lgp.cli import compose
from lgp.graph import Graph
from lgp.one_edge import OneEdge, study
from lgp.search import QueryDistances
from lgp.stages import Stages
from lgp.stats import paired_interval

FIXED_P, FIXED_C = 100, 64
CONTINUATIONS = (8, 16, 32, 64, 128, 256)
BUDGETS = (25, 50, 100, 200, 400)
COLOURS = {"oracle": "#D55E00", "vanilla": "#000000", "uniform": "#009E73"}


def relevant_nodes(stages: Stages) -> list[dict[int, int]]:
    """{node: relevant documents at it} of every judged query."""
    collection, dataset = stages.collection, stages.collection.dataset
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


def draw(table: Sequence[dict[str, float]], title: str, path: Path) -> None:
    """Recall against C at P = 100, and against P at C = 64."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=False)
    for axes, fixed, value, x in ((left, "P", FIXED_P, "C"), (right, "C", FIXED_C, "P")):
        points = [row for row in table if row[fixed] == value]
        for name, colour in COLOURS.items():
            axes.plot(
                [row[x] for row in points], [row[name] for row in points], "o-", color=colour,
                label=name,
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks([row[x] for row in points], [str(int(row[x])) for row in points])
        axes.minorticks_off()
        axes.set_xlabel({"C": "C: distances after the pause", "P": "P: distances before it"}[x])
        axes.set_ylabel("relevant documents seen, %")
        axes.set_title(f"{fixed} = {value}", fontsize=10)
        axes.grid(alpha=0.3)
    left.legend(frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=150)


def markdown(table: Sequence[dict[str, float]]) -> str:
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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/one_edge"))
    parser.add_argument("--max-pairs", type=int, help="pairs tried per query (default: all)")
    parser.add_argument("words", nargs="*", help="settings, KEY=VALUE")
    args = parser.parse_intermixed_args(argv)
    config = compose(["refine=none", *args.words])
    stages = Stages(config)
    seed = config.index.seeds[0]
    graph = stages.vanilla(seed)
    if not isinstance(graph, Graph):
        parser.error("index=hnsw has no single flat graph to change; use index=diskann")
    queries = stages.collection.query_vectors.to(stages.points.device)
    relevant = relevant_nodes(stages)
    distances = QueryDistances(stages.points, queries=queries).with_table()
    results = {}
    for budget in tqdm(BUDGETS, desc="one-edge study", unit="P"):
        more = CONTINUATIONS if budget == FIXED_P else (FIXED_C,)
        results[budget] = study(graph, distances, relevant, budget, more, args.max_pairs, seed)
    for budget in [p for p, found in results.items() if not len(found.queries)]:
        print(f"P = {budget}: every search exhausts the graph before; left out")
        del results[budget]
    if not results:
        parser.error("no search could be paused; the collection is too small for this study")
    table = rows(results)
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / "one_edge.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    text = markdown(table)
    (args.out / "one_edge.md").write_text(text, encoding="utf-8")
    draw(table, f"One edge exchanged ahead of the search, {stages.dataset.name}",
         args.out / "one_edge.png")  # fmt: skip
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
