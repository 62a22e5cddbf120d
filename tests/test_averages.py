"""Averages over runs: every data set weighs the same, and rounding comes last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lgp.averages import average_rows
from lgp.choices import BrightTask, MbeirTask
from lgp.comparison import comparison_table
from lgp.report import main
from lgp.results import read_queries

Run = dict[str, list[float]]


def write(folder: Path, scores: Run, exact: float | None = 0.5, value: int = 20) -> Path:
    """A run folder: the NDCG@10 of each query by graph; reranking adds a tenth to all."""
    folder.mkdir(parents=True)
    lines = []
    for ranking, more in (("greedy", 0.0), ("rerank", 0.1)):
        graphs = dict(scores) | ({} if exact is None else {"exact": [exact] * len(scores["none"])})
        for name, values in graphs.items():
            graph = {"none": "vanilla", "exact": "exact"}.get(name, "refined")
            for query, x in enumerate(values):
                lines.append(
                    {
                        "graph": graph, "selector": name if graph == "refined" else "none",
                        "seed": 0, "ranking": ranking, "query_id": f"q{query}",
                        "mode": "exact" if graph == "exact" else "width",
                        "value": 0 if graph == "exact" else value, "n_dist": 100 + query,
                        "n_returned": 20, "reach": None, "ndcg_at_5": 0.0, "ndcg_at_10": x + more,
                        "recall_at_5": 0.0, "recall_at_10": 0.0,
                    }
                )  # fmt: skip
    (folder / "queries.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder


def averages(folders: list[Path], ranking: str = "greedy") -> dict[str, tuple[float, ...]]:
    rows = average_rows([comparison_table(read_queries(f), "ndcg_at_10", ranking) for f in folders])
    return {a.label: (a.mean, a.vanilla or 0.0, a.relative_pct or 0.0, a.n_dist) for a in rows}


def test_runs_of_unlike_size_weigh_the_same(tmp_path: Path) -> None:
    folders = [
        write(tmp_path / "a", {"none": [0.10], "llm": [0.40]}),
        write(tmp_path / "b", {"none": [0.20, 0.40], "llm": [0.10, 0.50]}),
        write(tmp_path / "c", {"none": [0.0, 0.2, 0.4, 0.6], "llm": [0.2, 0.2, 0.4, 0.8]}),
    ]
    # vanilla (0.10 + 0.30 + 0.30) / 3; llm (0.40 + 0.30 + 0.40) / 3. Over all seven queries it
    # would be 1.9 / 7 = 0.271 and 2.6 / 7 = 0.371.
    found = averages(folders)
    assert found["vanilla"][0] == pytest.approx(0.7 / 3)
    assert found["llm"][:2] == pytest.approx((1.1 / 3, 0.7 / 3))
    # The gain of the means, (1.1 - 0.7) / 0.7; the mean of the gains would be (300 + 0 + 33.3) / 3.
    assert found["llm"][2] == pytest.approx(100 * 0.4 / 0.7)
    # Distances: queries cost 100, 101, ...: means 100, 100.5 and 101.5.
    assert found["llm"][3] == pytest.approx(302 / 3)
    assert averages(folders, "rerank")["llm"][:2] == pytest.approx((1.4 / 3, 1.0 / 3))


@pytest.mark.parametrize("tasks", [list(BrightTask), list(MbeirTask)], ids=["bright", "mbeir"])
def test_a_benchmarks_average_is_rounded_last(
    tasks: list[BrightTask] | list[MbeirTask],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Task number t = 1 .. T has t queries, vanilla 0.01 + 0.0001 t and refined 0.0012 more. The
    # mean of t is (T + 1) / 2: 6.5 of 12 tasks, 8.5 of 16.
    n = len(tasks)
    for t, task in enumerate(tasks, start=1):
        low = 0.01 + 0.0001 * t
        scores = {"none": [low] * t, "llm": [low + 0.0012] * t}
        write(tmp_path / "runs" / task.value, scores, exact=0.02 + 0.0001 * t)
    monkeypatch.setenv("COLUMNS", "120")
    assert main([str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out.split("mean of")
    assert len(said) == 3, "one table of averages in search order, one after reranking"
    assert all(part.startswith(f" {n} runs, each weighing the same") for part in said[1:])
    (line,) = [x.split() for x in said[1].splitlines() if "width 20  llm" in x]
    vanilla, refined, exact, gain = {
        # 1.065, 1.185 and 2.065: two decimals round to even or by the last bit; the gain is
        # 100 * 0.0012 / 0.01065 = 11.27 %, of rounded figures it would be 11.2 or 12.1 %.
        12: ({"1.06", "1.07"}, {"1.18", "1.19"}, {"2.06", "2.07"}, "+11.3"),
        # 1.085, 1.205, 2.085; 100 * 0.0012 / 0.01085 = 11.06 %.
        16: ({"1.08", "1.09"}, {"1.20", "1.21"}, {"2.08", "2.09"}, "+11.1"),
    }[n]
    assert line[4] in vanilla and line[5] in refined and line[9] in exact
    assert line[6:9] == ["+0.12", gain, "%"]


def test_only_what_every_run_has_is_averaged(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"none": [0.1], "llm": [0.2], "uniform": [0.3]}, exact=None)
    b = write(tmp_path / "b", {"none": [0.3], "llm": [0.2]})
    tables = [comparison_table(read_queries(folder)) for folder in (a, b)]
    found = average_rows(tables)
    assert [(x.label, x.exact) for x in found] == [("vanilla", None), ("llm", None)]
    assert found[0].difference is None and found[1].difference == pytest.approx(0.0)
    c = write(tmp_path / "c", {"none": [0.3], "llm": [0.2]}, value=10)
    assert average_rows([*tables, comparison_table(read_queries(c))]) == []
    assert average_rows([]) == []
