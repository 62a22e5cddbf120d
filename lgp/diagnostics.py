"""Tables 15 and 16 of the paper: the structure of the graphs and what making them cost.

In: finished runs. Out: grids, and flat records for CSV. A dataset's figure is the mean over its
graph seeds; datasets weigh the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from lgp.cells import AVERAGE, SweepRun
from lgp.cost import mean_cost, number_at
from lgp.grids import Grid
from lgp.summary import graphs_by_label

Record = dict[str, str | float]

STRUCTURE = {
    "changed %": ("changed_neighborhoods", 100.0),
    "mean degree": ("degree_mean", 1.0),
    "min": ("degree_min", 1.0),
    "max": ("degree_max", 1.0),
    "unreachable": ("n_unreachable", 1.0),
    "largest in-degree": ("in_degree_max", 1.0),
    "in-degree p99": ("structure.in_degree.p99", 1.0),
    "in-degree 0": ("n_in_degree_zero", 1.0),
    "hub share %": ("structure.hub_share", 100.0),
    "strongly connected %": ("structure.strongly_connected_share", 100.0),
    "edge length": ("structure.edge_length.mean", 1.0),
    "hops from entry": ("structure.path_length.mean", 1.0),
}
"""Columns of Table 15 (the first four) and ours: where they stand in summary.json, and a factor."""


def structure_records(runs: Sequence[SweepRun]) -> list[Record]:
    """One record per sweep, dataset and graph, then the averages over datasets."""
    records: list[Record] = []
    for run in runs:
        for label, graphs in graphs_by_label(run.summary).items():
            record: Record = {"sweep": run.sweep.name, "dataset": run.dataset, "graph": label}
            for name, (key, factor) in STRUCTURE.items():
                values = [number_at(graph, key) for graph in graphs]
                if label == "vanilla" and name == "changed %":
                    values = [0.0]
                known = [v for v in values if v is not None]
                if known:
                    record[name] = factor * fmean(known)
            records.append(record)
    return records + _averages(records, tuple(STRUCTURE))


def cost_records(runs: Sequence[SweepRun]) -> list[Record]:
    """One record per dataset: minutes, calls, tokens (paper Table 16), of graphs whose selector is
    a language model; the others' minutes stand beside."""
    records: list[Record] = []
    for run in runs:
        labels = graphs_by_label(run.summary)
        vanilla = mean_cost(labels.get("vanilla", [])).minutes
        for label, graphs in labels.items():
            if label == "vanilla":
                continue
            c = mean_cost(graphs)
            said = {"vanilla minutes": vanilla, "minutes": c.minutes, "nodes": c.nodes,
                    "s a node": c.s_a_node}  # fmt: skip
            if c.asked_model:
                said |= {"LLM calls": c.asked, "replayed": c.replayed, "read, M tokens": c.read_m,
                         "written, M tokens": c.written_m, "waiting %": c.waiting_pct}  # fmt: skip
            record: Record = {"sweep": run.sweep.name, "dataset": run.dataset, "graph": label}
            records.append(record | {k: value for k, value in said.items() if value is not None})
    return records


def record_grid(title: str, records: Sequence[Record]) -> Grid:
    """Records as a grid: their keys are its columns."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    return Grid(
        title=title,
        columns=tuple(columns),
        optional=(),
        body=tuple(tuple(_said(record.get(key)) for key in columns) for record in records),
        groups=tuple(int(record.get("dataset") == AVERAGE) for record in records),
    )


def _averages(records: Sequence[Record], names: Sequence[str]) -> list[Record]:
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((str(record["sweep"]), str(record["graph"])), []).append(record)
    found: list[Record] = []
    for (sweep, graph), members in groups.items():
        if len(members) > 1:
            mean: Record = {"sweep": sweep, "dataset": AVERAGE, "graph": graph}
            for name in names:
                values = [float(m[name]) for m in members if name in m]
                if len(values) == len(members):
                    mean[name] = fmean(values)
            found.append(mean)
    return found


def _said(value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"
