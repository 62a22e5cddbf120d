"""Tables 15 and 16 of the paper: the structure of the graphs and what making them cost.

In: finished runs. Out: grids, and flat records for CSV. A dataset's figure is the mean over its
graph seeds; datasets weigh the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from lgp.cells import AVERAGE, SweepRun
from lgp.grids import Grid

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
        for label, graphs in _by_label(run).items():
            record: Record = {"sweep": run.sweep.name, "dataset": run.dataset, "graph": label}
            for name, (key, factor) in STRUCTURE.items():
                values = [_number(graph, key) for graph in graphs]
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
        labels = _by_label(run)
        minutes = {x: _mean_of(graphs, "seconds", 60) for x, graphs in labels.items()}
        for label, graphs in labels.items():
            if label == "vanilla":
                continue
            accounts = [g["account"] for g in graphs]
            nodes = fmean(g["n_eligible"] for g in graphs)
            record: Record = {"sweep": run.sweep.name, "dataset": run.dataset, "graph": label}
            if minutes.get("vanilla") is not None:
                record["vanilla minutes"] = float(minutes["vanilla"] or 0)
            own = float(minutes[label] or 0)
            record |= {"minutes": own, "nodes": nodes, "s a node": 60 * own / max(nodes, 1)}
            if any(a["asked"] or a["replayed"] for a in accounts):
                record["LLM calls"] = fmean(a["asked"] for a in accounts)
                record["replayed"] = fmean(a["replayed"] for a in accounts)
                record["read, M tokens"] = fmean(a["tokens"] for a in accounts) / 1e6
                record["written, M tokens"] = fmean(a["output_tokens"] for a in accounts) / 1e6
                waited = fmean(a["seconds"] for a in accounts) / 60
                record["waiting %"] = 100 * waited / max(own, 1e-9)
            records.append(record)
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


def _by_label(run: SweepRun) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for graph in run.summary["graphs"]:
        label = "vanilla" if graph["graph"] == "vanilla" else str(graph["selector"])
        found.setdefault(label, []).append(graph)
    return found


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


def _mean_of(graphs: Sequence[Mapping[str, Any]], key: str, unit: float) -> float | None:
    values = [v for v in (_number(graph, key) for graph in graphs) if v is not None]
    return fmean(values) / unit if len(values) == len(graphs) else None


def _number(graph: Mapping[str, Any], key: str) -> float | None:
    value: Any = graph
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def _said(value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"
