"""Run folders of a sweep as the cells of a table: rows and columns named by facets.

In: run folders and a table's layout. Out: one `Cell` per row, column and pair of graphs (each
refined graph against vanilla, the main selector's against each control's), compared over all the
collections that fall into it, each weighing the same. Layout and rounding are left to `lgp.tables`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lgp.comparison import column_mean, paired
from lgp.config_refine import refined_label
from lgp.config_tables import SweepConfig, TableConfig
from lgp.results import Results, read_queries
from lgp.stats import Comparison, Floats, compare_arrays, compare_groups, holm
from lgp.summary import graphs_by_label, offline_tokens

AVERAGE = "Average"
Key = tuple[str, ...]
Place = tuple[Key, Key, str, str]  # row, column, base, label


@dataclass(frozen=True)
class SweepRun:
    """A finished run of a sweep, with what its folder says of it.

    Attributes:
        config, summary, versions: the JSON files of the folder.
    """

    sweep: SweepConfig
    folder: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    versions: Mapping[str, Any]

    @property
    def dataset(self) -> str:
        return str(self.summary["dataset"])

    @property
    def main(self) -> str:
        """The graph that the others are controls of, by the name it has in `queries.jsonl`."""
        refine = self.config["refine"]
        return refined_label(refine.get("method", "lgp"), refine["selector"])

    @property
    def tokens(self) -> float:
        """Tokens read and written for the main graph's decisions, replayed answers included, mean
        over graph seeds; 0 where no model was asked."""
        graphs = graphs_by_label(self.summary).get(self.main, [])
        found = [offline_tokens(graph["account"]) or 0 for graph in graphs]
        return sum(found) / max(1, len(found))

    def facet(self, name: str) -> str:
        """The value of a facet that is the run's: dataset, sweep, knob, thousands of tokens or a
        configuration key.

        Raises:
            ValueError: a configuration key that the run does not have.
        """
        if name == "dataset":
            return self.dataset
        if name == "benchmark":
            return self.sweep.name
        if name == "knob":
            return self.sweep.knob or ""
        if name == "tokens":
            return f"{self.tokens / 1000:.1f}"
        key = self.sweep.knob or "" if name == "value" else name
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise ValueError(f"{self.folder}: its configuration has no key {key!r}")
            value = value[part]
        return str(value)


@dataclass(frozen=True)
class Cell:
    """The graph `label` against the graph `base` in one row and column.

    Attributes:
        is_main: `label` is the selector that the others are controls of.
        n_dist, n_dist_base: distances a query. exact: None where some collection has none.
        p_holm: p adjusted over the rows of the column, averages left out.
        datasets: how many collections are in it.
    """

    row: Key
    column: Key
    base: str
    label: str
    is_main: bool
    comparison: Comparison
    p_holm: float
    n_dist: float
    n_dist_base: float
    exact: float | None
    datasets: int


@dataclass(frozen=True)
class _Measured:
    row: Key
    column: Key
    dataset: str
    base: str
    label: str
    is_main: bool
    pair: tuple[Floats, Floats]
    n_dist: float
    n_dist_base: float
    exact: float


def read_run(sweep: SweepConfig, folder: Path) -> SweepRun:
    """Read the facts of a finished run.

    Raises:
        FileNotFoundError: the run is not finished.
    """
    found = []
    for name in ("config.json", "summary.json", "versions.json"):
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(f"no {name} in {folder}; the run is not finished")
        found.append(json.loads(path.read_text(encoding="utf-8")))
    return SweepRun(sweep, folder, *found)


def read_cells(runs: Sequence[SweepRun], table: TableConfig) -> list[Cell]:
    """The cells of a table, in the order in which runs and points come.

    Where `dataset` is a facet, an `Average` over all datasets joins each group of two or more.

    Raises:
        ValueError: two runs of one dataset in one cell: rows and columns do not tell them apart.
    """
    measured = [m for run in runs for m in _measure(run, table)]
    groups: dict[Place, list[_Measured]] = {}
    for one in measured:
        groups.setdefault((one.row, one.column, one.base, one.label), []).append(one)
    for (row, column, _, label), members in groups.items():
        names = [m.dataset for m in members]
        if len(set(names)) < len(names):
            raise ValueError(
                f"{len(names)} runs of {names} share row {row}, column {column} ({label}); name "
                "what differs between them in table.rows or table.columns"
            )
    averages: dict[Place, list[_Measured]] = {}
    for one in measured:
        mean = replace(one, row=_mean_key(table.rows, one.row),
                       column=_mean_key(table.columns, one.column))  # fmt: skip
        if (mean.row, mean.column) != (one.row, one.column):
            place = (mean.row, mean.column, one.base, one.label)
            averages.setdefault(place, []).append(one)
    everywhere = len({m.dataset for m in measured})
    groups |= {key: found for key, found in averages.items() if len(found) == everywhere > 1}
    return _adjusted([_cell(key, members, c) for (key, members), c in zip(
        groups.items(), _compare(list(groups.values())), strict=True)])  # fmt: skip


def budget_curves(cells: Sequence[Cell]) -> dict[tuple[Key, Key, str], dict[float, float]]:
    """{budget: mean} of every graph, vanilla included, where `budget` is the last row facet;
    keyed by the rest of the row, the column and the label."""
    curves: dict[tuple[Key, Key, str], dict[float, float]] = {}
    for cell in (c for c in cells if c.base == "vanilla"):
        rest, budget = cell.row[:-1], float(cell.row[-1])
        sides = {"vanilla": cell.comparison.mean_base, cell.label: cell.comparison.mean_other}
        for label, mean in sides.items():
            curves.setdefault((rest, cell.column, label), {})[budget] = mean
    return curves


def _measure(run: SweepRun, table: TableConfig) -> Iterator[_Measured]:
    results = read_queries(run.folder)
    points = [("width", v) for v in table.widths] + [("budget", v) for v in table.budgets]
    for ranking in table.rankings:
        if ranking not in results.rankings():
            continue
        for mode, value in points or results.points(ranking):
            for metric in table.metrics:
                at = {
                    "ranking": ranking, "metric": metric, mode: str(value),
                    "effort": f"{mode} {value}",
                }  # fmt: skip
                row, column = (_key(run, facets, at) for facets in (table.rows, table.columns))
                if row is None or column is None:
                    continue  # a width's cell in a table of budgets
                yield from _labels(run, results, row, column, (metric, ranking, mode, value))


def _labels(
    run: SweepRun, results: Results, row: Key, column: Key, point: tuple[str, str, str, int]
) -> Iterator[_Measured]:
    metric, ranking, mode, value = point
    here = [x for x in results.labels() if results.rows_by_seed(x, ranking, mode, value)]
    pairs = [("vanilla", label) for label in here if label != "vanilla"]
    if run.main in here:
        pairs += [(x, run.main) for x in results.controls(run.main) if x in here]
    exact = column_mean(results, metric, "exact", ranking, "exact", 0)
    for base, label in pairs:
        sides = paired(results, metric, ranking, mode, value, base, label)
        own, other = (
            column_mean(results, "n_dist", x, ranking, mode, value) for x in (label, base)
        )
        is_main = label == run.main
        yield _Measured(row, column, run.dataset, base, label, is_main, sides, own, other, exact)


def _key(run: SweepRun, facets: Sequence[str], at: Mapping[str, str]) -> Key | None:
    """The values of facets; None where a point has no such facet (a width has no budget)."""
    values = []
    for facet in facets:
        if facet in at:
            values.append(at[facet])
        elif facet in ("width", "budget"):
            return None
        else:
            values.append(run.facet(facet))
    return tuple(values)


def _mean_key(facets: Sequence[str], key: Key) -> Key:
    return tuple(AVERAGE if f == "dataset" else v for f, v in zip(facets, key, strict=True))


def _compare(groups: Sequence[Sequence[_Measured]]) -> list[Comparison]:
    """All comparisons at once, so that they share random numbers."""
    single = [i for i, members in enumerate(groups) if len(members) == 1]
    several = [i for i, members in enumerate(groups) if len(members) > 1]
    pairs = [[m.pair for m in members] for members in groups]
    found = dict(zip(single, compare_arrays([pairs[i][0] for i in single]), strict=True))
    found |= dict(zip(several, compare_groups([pairs[i] for i in several]), strict=True))
    return [found[i] for i in range(len(groups))]


def _cell(place: Place, members: Sequence[_Measured], found: Comparison) -> Cell:
    exact = float(np.mean([m.exact for m in members]))
    return Cell(
        row=place[0],
        column=place[1],
        base=place[2],
        label=place[3],
        is_main=all(m.is_main for m in members),
        comparison=found,
        p_holm=found.p,
        n_dist=float(np.mean([m.n_dist for m in members])),
        n_dist_base=float(np.mean([m.n_dist_base for m in members])),
        exact=None if np.isnan(exact) else exact,
        datasets=len(members),
    )


def _adjusted(cells: list[Cell]) -> list[Cell]:
    """Holm over the rows of each column and graph; averages stay as they are."""
    families: dict[tuple[Key, str, str], list[int]] = {}
    for i, cell in enumerate(cells):
        if AVERAGE not in cell.row + cell.column:
            families.setdefault((cell.column, cell.base, cell.label), []).append(i)
    for members in families.values():
        adjusted = holm([cells[i].comparison.p for i in members])
        for i, p in zip(members, adjusted, strict=True):
            cells[i] = replace(cells[i], p_holm=p)
    return cells
