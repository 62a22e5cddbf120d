"""Tables from run folders: the numbers are those of the per-query lines, computed slowly."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from lgp.cells import AVERAGE, Cell, SweepRun, budget_curves, read_cells, read_run
from lgp.config_tables import SweepConfig, TableConfig
from lgp.curves import draw_curves
from lgp.stats import compare_arrays, compare_groups, holm
from lgp.tables import (
    difference_grid,
    effort_grid,
    escape_latex,
    exact_grid,
    latex,
    paper_grid,
    write_csv,
)

Scores = dict[str, list[list[float]]]  # graph -> seed -> query


def make_run(folder: Path, name: str, scores: dict[int, Scores], degree: int = 16) -> SweepRun:
    """A finished run: NDCG@10 by width, graph, seed and query."""
    folder.mkdir(parents=True)
    lines = []
    for width, graphs in scores.items():
        for mode, value in (("width", width), ("budget", 10 * width)):
            for label, seeds in graphs.items():
                refined = label != "vanilla"
                for seed, values in enumerate(seeds):
                    for query, x in enumerate(values):
                        lines.append({
                            "graph": "refined" if refined else "vanilla",
                            "selector": label if refined else "none", "seed": seed,
                            "ranking": "greedy", "mode": mode, "value": value,
                            "query_id": f"q{query}", "n_dist": 7 * value + refined,
                            "n_returned": 10, "reach": x, "ndcg_at_5": 0.0, "ndcg_at_10": x,
                            "recall_at_5": 0.0, "recall_at_10": x / 2,
                        })  # fmt: skip
    n = len(next(iter(next(iter(scores.values())).values()))[0])
    for query in range(n):
        lines.append({
            "graph": "exact", "selector": "none", "seed": 0, "ranking": "greedy", "mode": "exact",
            "value": 0, "query_id": f"q{query}", "n_dist": 50, "n_returned": 10, "reach": None,
            "ndcg_at_5": 0.0, "ndcg_at_10": 0.9, "recall_at_5": 0.0, "recall_at_10": 0.5,
        })  # fmt: skip
    (folder / "queries.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    config = {"refine": {"selector": "llm"}, "index": {"max_degree": degree}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps({"dataset": name, "graphs": []}))
    (folder / "versions.json").write_text("{}")
    return read_run(SweepConfig(name="s", knob="index.max_degree"), folder)


@pytest.fixture
def runs(tmp_path: Path) -> list[SweepRun]:
    rng = np.random.default_rng(0)

    def scores(n: int) -> dict[int, Scores]:
        return {
            width: {
                label: rng.random((2, n)).round(3).tolist()
                for label in ("vanilla", "llm", "farthest")
            }
            for width in (10, 20)
        }

    return [make_run(tmp_path / name, name, scores(n)) for name, n in (("a", 5), ("b", 31))]


def at(cells: Sequence[Cell], row: tuple[str, ...], base: str, label: str) -> Cell:
    (found,) = [c for c in cells if (c.row, c.base, c.label) == (row, base, label)]
    return found


def test_cells_hold_the_means_of_the_lines(runs: list[SweepRun]) -> None:
    table = TableConfig(rows=["dataset", "width"], columns=["metric"], widths=[10, 20],
                        metrics=["ndcg_at_10"], rankings=["greedy"])  # fmt: skip
    cells = read_cells(runs, table)
    by_dataset: dict[tuple[str, int, str], float] = {}
    for run in runs:
        lines = [json.loads(x) for x in (run.folder / "queries.jsonl").read_text().splitlines()]
        for width in (10, 20):
            for label in ("vanilla", "llm", "farthest"):
                by_dataset[run.dataset, width, label] = fmean(
                    x["ndcg_at_10"] for x in lines
                    if (x["mode"], x["value"]) == ("width", width)
                    and label == (x["selector"] if x["graph"] == "refined" else x["graph"])
                )  # fmt: skip
    for run in runs:
        for width in ("10", "20"):
            for base, label in (("vanilla", "llm"), ("vanilla", "farthest"), ("farthest", "llm")):
                c = at(cells, (run.dataset, width), base, label).comparison
                assert c.mean_base == pytest.approx(by_dataset[run.dataset, int(width), base])
                assert c.mean_other == pytest.approx(by_dataset[run.dataset, int(width), label])
    # The average weighs collections of 5 and 31 queries the same.
    mean = at(cells, (AVERAGE, "20"), "vanilla", "llm")
    sides = [fmean(by_dataset[name, 20, x] for name in "ab") for x in ("vanilla", "llm")]
    assert (mean.comparison.mean_base, mean.comparison.mean_other) == pytest.approx(sides)
    assert mean.comparison.relative_pct == pytest.approx(100 * (sides[1] / sides[0] - 1))
    assert mean.datasets == 2 and mean.exact == pytest.approx(0.9)
    assert at(cells, ("a", "20"), "vanilla", "llm").n_dist == 141
    assert at(cells, ("a", "20"), "vanilla", "llm").n_dist_base == 140
    assert {c.label for c in cells if c.is_main} == {"llm"}


def test_holm_runs_over_the_rows_of_a_column(runs: list[SweepRun]) -> None:
    table = TableConfig(rows=["dataset"], columns=["width", "metric"], widths=[10, 20])
    cells = read_cells(runs, replace(table, rankings=["greedy"]))
    for column in {c.column for c in cells}:
        for base, label in (("vanilla", "llm"), ("farthest", "llm")):
            own = [c for c in cells if (c.column, c.base, c.label) == (column, base, label)]
            rows = [c for c in own if c.row != (AVERAGE,)]
            assert [c.row for c in rows] == [("a",), ("b",)]
            assert [c.p_holm for c in rows] == holm([c.comparison.p for c in rows])
            (mean,) = [c for c in own if c.row == (AVERAGE,)]
            assert mean.p_holm == mean.comparison.p


def test_groups_of_collections_against_a_slow_bootstrap() -> None:
    rng = np.random.default_rng(1)
    sizes = (4, 9, 25)
    pairs = [(rng.random((n, 2)), rng.random((n, 2)) + 0.1) for n in sizes]
    (found,) = compare_groups([pairs])
    each = compare_arrays(pairs)
    assert found.mean_base == pytest.approx(fmean(c.mean_base for c in each))
    assert found.difference == pytest.approx(fmean(c.difference for c in each))
    signs = [c.difference > 0 for c in each]
    assert (found.wins, found.losses, found.n_queries) == (sum(signs), 3 - sum(signs), 38)
    means = []
    for _ in range(4000):
        drawn = []
        for (base, other), n in zip(pairs, sizes, strict=True):
            rows = rng.integers(0, n, n)
            drawn.append(float((other - base)[rows].mean()))
        means.append(fmean(drawn))
    low, high = np.percentile(means, [2.5, 97.5])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.02)
    # Batched with other groups, and with one of other sizes, the numbers stay.
    again = compare_groups([pairs, pairs[:2], [pairs[1]], pairs])
    for one in (again[0], again[3]):
        assert asdict(one) == pytest.approx(asdict(found), abs=1e-12)
    assert (again[2].low, again[2].p) == pytest.approx((each[1].low, each[1].p), abs=1e-12)


def test_flips_are_weighted_so_that_collections_count_the_same() -> None:
    """Three queries in all: the eight sign patterns by hand."""
    pairs = [
        (np.zeros((1, 1)), np.array([[0.4]])),
        (np.zeros((2, 1)), np.array([[0.3], [-0.1]])),
    ]
    (found,) = compare_groups([pairs])
    observed = (0.4 + (0.3 - 0.1) / 2) / 2
    patterns = [
        (a * 0.4 + (b * 0.3 - c * 0.1) / 2) / 2 for a in (1, -1) for b in (1, -1) for c in (1, -1)
    ]
    assert found.difference == pytest.approx(observed)
    assert found.p == sum(abs(x) >= observed - 1e-12 for x in patterns) / 8
    with pytest.raises(ValueError, match="0 collections"):
        compare_groups([[]])


def test_runs_that_rows_and_columns_do_not_tell_apart_are_refused(tmp_path: Path) -> None:
    scores: dict[int, Scores] = {20: {"vanilla": [[0.1, 0.2]], "llm": [[0.2, 0.2]]}}
    both = [make_run(tmp_path / str(d), "a", scores, degree=d) for d in (8, 16)]
    with pytest.raises(ValueError, match=r"table\.rows"):
        read_cells(both, TableConfig(widths=[20]))
    cells = read_cells(both, TableConfig(rows=["index.max_degree"], widths=[20]))
    assert {c.row for c in cells} == {("8",), ("16",)}
    cells = read_cells(both, TableConfig(rows=["knob", "value"], widths=[20]))
    assert {c.row for c in cells} == {("index.max_degree", "8"), ("index.max_degree", "16")}
    with pytest.raises(ValueError, match=r"index\.nothing"):
        read_cells(both, TableConfig(rows=["index.nothing"], widths=[20]))


def test_a_budget_table_tells_what_vanillas_quality_costs(tmp_path: Path) -> None:
    scores: dict[int, Scores] = {
        10: {"vanilla": [[0.2]], "llm": [[0.4]]},
        20: {"vanilla": [[0.4]], "llm": [[0.5]]},
        40: {"vanilla": [[0.5]], "llm": [[0.5]]},
        80: {"vanilla": [[0.6]], "llm": [[0.5]]},
    }
    run = make_run(tmp_path / "a", "a", scores)
    table = TableConfig(rows=["budget"], columns=["metric"], budgets=[100, 200, 400, 800],
                        metrics=["ndcg_at_10"], rankings=["greedy"])  # fmt: skip
    cells = read_cells([run], table)
    assert budget_curves(cells)[(), ("ndcg_at_10",), "llm"] == {
        100: 0.4, 200: 0.5, 400: 0.5, 800: 0.5,
    }  # fmt: skip
    grid = effort_grid(cells, table)
    assert grid is not None
    needed = {row[2]: row[5:] for row in grid.body}
    assert needed["200"] == ("100 or fewer", "-50 %")  # 0.4: vanilla needs 200
    assert needed["400"] == ("200", "-50 %")
    assert needed["800"] == ("never", "-")
    assert effort_grid(cells, replace(table, rows=["width"])) is None


def test_grids_csv_latex_and_figure(runs: list[SweepRun], tmp_path: Path) -> None:
    table = TableConfig(title="T_1 & more", rows=["dataset", "width"], columns=["metric"],
                        widths=[10, 20], figure="width")  # fmt: skip
    cells = read_cells(runs, table)
    grid = paper_grid(cells, table)
    assert [row[:2] for row in grid.body] == [
        ("a", "10"), ("a", "20"), ("b", "10"), ("b", "20"), (AVERAGE, "10"), (AVERAGE, "20"),
    ]  # fmt: skip
    ndcg = [c for c in cells if c.column == ("ndcg_at_10",)]
    c = at(ndcg, ("a", "10"), "vanilla", "llm").comparison
    sign = f"{c.relative_pct:+.1f}"
    assert grid.body[0][2] == f"{100 * c.mean_base:.1f} / {100 * c.mean_other:.1f} ({sign} %)"
    assert len(difference_grid(cells, table).body) == 6 * 3
    exact = exact_grid(cells, table)
    assert exact is not None and exact.body[0][2:] == ("90.0", "50.0")
    write_csv(cells, table, tmp_path / "t.csv")
    with open(tmp_path / "t.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(cells)
    for line, cell in zip(lines, cells, strict=True):
        assert float(line["difference"]) == pytest.approx(100 * cell.comparison.difference)
        assert float(line["p_holm"]) == pytest.approx(cell.p_holm)
        assert int(line["queries"]) == asdict(cell.comparison)["n_queries"]
    text = latex(grid)
    assert r"T\_1 \& more" in text and text.count(r"\\") == 1 + len(grid.body)
    assert escape_latex("50 % \\x{}") == r"50 \% \textbackslash{}x\{\}"
    for stem in ("one", "two"):
        draw_curves(cells, table, tmp_path / stem)
    assert (tmp_path / "one.png").stat().st_size > 10_000
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    with pytest.raises(ValueError, match=r"table\.figure"):
        draw_curves(cells, replace(table, figure="budget"), tmp_path / "x")


def test_an_unfinished_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not finished"):
        read_run(SweepConfig(name="s"), tmp_path)


def test_a_gain_over_nothing_is_no_number(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "a", {20: {"vanilla": [[0.0]], "llm": [[0.5]]}})
    table = TableConfig(widths=[20], metrics=["ndcg_at_10"], rankings=["greedy"])
    cells = read_cells([run], table)
    assert math.isnan(cells[0].comparison.relative_pct)
    assert paper_grid(cells, table).body[0][1] == "0.0 / 50.0 (-)"
