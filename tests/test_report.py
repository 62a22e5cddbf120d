"""Reports of small synthetic run folders whose true differences are known."""

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from lgp.comparison import comparison_table, sentences
from lgp.report import main, print_report, read_queries, write_metrics_csv, write_report

N_QUERIES = 60

Line = dict[str, Any]


def line(graph: str, selector: str, seed: int, mode: str, value: int, query: int, x: float) -> Line:
    return {
        **{"graph": graph, "selector": selector, "seed": seed, "ranking": "greedy"},
        **{"mode": mode, "value": value, "query_id": f"q{query:02}"},
        **{"n_dist": 10 * value + query % 2, "n_returned": 20},
        **{"reach": None if graph == "exact" else x, "ndcg_at_5": x / 2, "ndcg_at_10": x},
        **{"recall_at_5": x / 4, "recall_at_10": x / 5},
    }


def run_lines(gains: dict[str, float]) -> list[Line]:
    """Vanilla, exact and one refined graph per gain; all share the queries' own levels."""
    rng = np.random.default_rng(7)
    base = rng.uniform(0.2, 0.4, N_QUERIES)
    lines = [line("exact", "none", -1, "exact", 0, q, 0.9) for q in range(N_QUERIES)]
    for name, gain in {"none": 0.0, **gains}.items():
        graph = "vanilla" if name == "none" else "refined"
        for seed in (0, 1, 2):
            for mode, value in (("width", 10), ("width", 20), ("budget", 200), ("budget", 500)):
                more = 0.1 * (value > 10) + 0.1 * (value == 500)
                own = 0.03 * rng.standard_normal(N_QUERIES)
                for q, x in enumerate(base + gain + more + own):
                    lines.append(line(graph, name, seed, mode, value, q, float(np.clip(x, 0, 1))))
    return lines


def write_run(folder: Path, lines: list[Line], tail: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(x) + "\n" for x in lines)
    (folder / "queries.jsonl").write_text(text + tail, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gains = {"llm": 0.06, "farthest": 0.06, "uniform": 0.0}
    return write_run(tmp_path_factory.mktemp("runs") / "one", run_lines(gains))


def printed(folder: Path, width: int = 100, **choices: str) -> str:
    out = StringIO()
    print_report(read_queries(folder), Console(file=out, width=width), **choices)
    return out.getvalue()


def test_lines_become_dense_columns_whatever_their_order(run_dir: Path, tmp_path: Path) -> None:
    results = read_queries(run_dir)
    assert results.labels() == ["vanilla", "farthest", "llm", "uniform"]
    assert results.points("greedy") == [
        ("width", 10),
        ("width", 20),
        ("budget", 200),
        ("budget", 500),
    ]
    assert results.columns["ndcg_at_10"].shape == (1 + 4 * 3 * 4, N_QUERIES)
    assert results.notes() == []
    lines = run_lines({"llm": 0.06, "farthest": 0.06, "uniform": 0.0})
    backwards = read_queries(write_run(tmp_path, lines[::-1]))
    assert backwards.settings == results.settings and backwards.query_ids == results.query_ids
    for name, column in results.columns.items():
        np.testing.assert_array_equal(column, backwards.columns[name])


def test_metrics_csv_holds_means_on_the_0_to_100_scale(tmp_path: Path) -> None:
    lines = [line("vanilla", "none", 4, "width", 20, q, x) for q, x in enumerate((0.1, 0.5, 0.6))]
    lines += [line("exact", "none", -1, "exact", 0, q, 1.0) for q in range(3)]
    write_metrics_csv(read_queries(write_run(tmp_path, lines)), tmp_path / "metrics.csv")
    with (tmp_path / "metrics.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = "graph selector seed ranking mode value metric mean n_dist n_queries"
    assert list(rows[0]) == names.split()
    found = {(r["graph"], r["metric"]): r for r in rows}
    assert found["vanilla", "ndcg_at_10"]["mean"] == "40.0000"  # (0.1 + 0.5 + 0.6) / 3
    assert found["vanilla", "recall_at_10"]["mean"] == "8.0000"
    assert found["vanilla", "reach"]["mean"] == "40.0000"
    assert found["vanilla", "ndcg_at_5"]["n_dist"] == "200.3333"  # 200, 201, 200
    assert found["vanilla", "ndcg_at_5"]["seed"] == "4"
    assert ("exact", "reach") not in found and len(rows) == 5 + 4


def test_table_compares_with_vanilla_and_main_with_its_controls(run_dir: Path) -> None:
    rows = comparison_table(read_queries(run_dir), "ndcg_at_10", "greedy", "llm")
    here = [r for r in rows if (r.mode, r.value) == ("width", 20)]
    assert [(r.label, r.base) for r in here] == [
        *[("vanilla", None), ("farthest", "vanilla"), ("llm", "vanilla"), ("uniform", "vanilla")],
        *[("llm", "farthest"), ("llm", "uniform")],
    ]
    vanilla, _, llm = here[:3]
    c = llm.comparison
    assert c is not None and (c.n_queries, c.n_seeds) == (N_QUERIES, 3)
    assert (c.mean_base, c.mean_other) == pytest.approx((vanilla.mean, llm.mean))
    assert c.low < c.difference == pytest.approx(0.06, abs=0.01) and c.excludes_zero
    assert vanilla.exact == pytest.approx(0.9)
    assert vanilla.share_of_exact == pytest.approx(vanilla.mean / 0.9)
    assert llm.n_dist == 200.5 and llm.reach == pytest.approx(llm.mean)


def test_a_repair_is_compared_with_vanilla_and_is_no_control(tmp_path: Path) -> None:
    folder = write_run(tmp_path, run_lines({"llm": 0.06, "uniform": 0.0, "repair": 0.08}))
    rows = comparison_table(read_queries(folder), main="llm")
    here = {(r.label, r.base) for r in rows if (r.mode, r.value) == ("width", 20)}
    against_vanilla = {(x, "vanilla") for x in ("llm", "uniform", "repair")}
    assert here == {("vanilla", None), *against_vanilla, ("llm", "uniform")}
    # What places as many edits as a repair is its control as before.
    rows = comparison_table(read_queries(folder), main="repair")
    bases = {r.base for r in rows if r.label == "repair"}
    assert bases == {"vanilla", "llm", "uniform"}


def test_sentences_claim_what_is_shown_and_no_more(run_dir: Path) -> None:
    text = sentences(comparison_table(read_queries(run_dir), main="llm"), "llm")
    gain = next(x for x in text if x.startswith("llm vs vanilla at width 20: +6."))
    assert "60 queries, 3 graph seeds; the interval excludes 0: a gain." in gain
    none = next(x for x in text if x.startswith("uniform vs vanilla at width 20:"))
    assert none.endswith("the interval includes 0: no difference shown.")
    assert (
        "llm against its controls at width 20: better than uniform; "
        "no difference shown from farthest." in text
    )
    effort = next(x for x in text if x.startswith("llm reaches it"))
    assert "distances (-" in effort
    assert any(x.startswith("vanilla itself reaches vanilla's") for x in text)


def test_a_loss_and_a_missing_control_are_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path, run_lines({"llm": -0.05}))
    text = " ".join(sentences(comparison_table(read_queries(folder), main="llm"), "llm"))
    assert "the interval excludes 0: a loss" in text
    assert "no control was run, so a gain over vanilla says nothing" in text
    assert "llm does not reach vanilla's" in text


@pytest.mark.parametrize("width", [100, 70, 40, 20])
def test_terminal_tables_fit_and_keep_numbers_whole(run_dir: Path, width: int) -> None:
    text = printed(run_dir, width, main="llm")
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert ("Not shown at" in text) == (width in (70, 40))


def test_report_files(run_dir: Path) -> None:
    write_report(run_dir, main="llm")
    markdown = (run_dir / "report.md").read_text(encoding="utf-8")
    assert "](ndcg_at_10.png)" in markdown and "llm minus its controls" in markdown
    assert "| 20 | vanilla |" in markdown and str(run_dir) not in markdown
    image = imread(run_dir / "ndcg_at_10.png")
    assert image.shape[1] > 1200 and image[..., :3].std() > 0.05
    black = (image[..., :3].max(axis=2) < 0.1).sum()
    llm = (np.abs(image[..., :3] - np.array([0xD5, 0x5E, 0x00]) / 255).max(axis=2) < 0.02).sum()
    assert black > 1000 and llm > 1000  # vanilla's line and the selector's in its own colour
    first = (run_dir / "metrics.csv").read_bytes()
    write_report(run_dir, main="llm", metric="recall_at_5")
    assert (run_dir / "recall_at_5.png").is_file()
    assert (run_dir / "metrics.csv").read_bytes() == first


def test_a_truncated_last_line_is_dropped_and_counted(tmp_path: Path) -> None:
    lines = run_lines({"llm": 0.05})
    cut = json.dumps(lines[-1])[:-9]
    results = read_queries(write_run(tmp_path, lines[:-1], cut))
    assert results.dropped_lines == 1
    notes = " ".join(results.notes())
    assert "1 truncated last line" in notes and "59 of 60" in notes
    rows = comparison_table(results)
    counts = {(r.mode, r.value): r.comparison.n_queries for r in rows if r.comparison}
    assert counts["budget", 500] == 59 and counts["width", 20] == 60
    assert "Note: 1 truncated last line" in printed(tmp_path)


def test_only_common_seeds_are_compared_and_that_is_said(tmp_path: Path) -> None:
    lines = [x for x in run_lines({"llm": 0.05}) if x["selector"] != "llm" or x["seed"] == 1]
    results = read_queries(write_run(tmp_path, lines))
    assert {r.comparison.n_seeds for r in comparison_table(results) if r.comparison} == {1}
    assert "llm has graph seeds [1], vanilla [0, 1, 2]" in " ".join(results.notes())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"graph": "random"}, "line 3: unknown graph 'random'; known: vanilla, refined, exact"),
        ({"selector": "llm"}, "line 3: selector 'llm' with graph 'vanilla'"),
        ({"ndcg_at_10": 40.0}, r"line 3: ndcg_at_10=40.0 is outside \[0, 1\]"),
        ({"ndcg_at_5": None}, "line 3: ndcg_at_5=None is outside"),
        ({"query_id": 7}, "line 3: query_id 7 is not text"),
        ({"query_id": "q00"}, "'q00' 2 times"),
        ({"value": 2.5}, "line 3: seed=0 and value=2.5 must be integers"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, change: Line, message: str) -> None:
    lines = [line("vanilla", "none", 0, "width", 20, q, 0.5) for q in range(4)]
    lines[2] |= change
    with pytest.raises(ValueError, match=message):
        read_queries(write_run(tmp_path, lines))


def test_broken_lines_are_named(tmp_path: Path) -> None:
    lines = [line("vanilla", "none", 0, "width", 20, q, 0.5) for q in range(2)]
    with pytest.raises(ValueError, match="line 3 is not JSON"):
        read_queries(write_run(tmp_path, lines, '{"graph": "van\n'))
    del lines[1]["n_dist"]
    with pytest.raises(ValueError, match=r"line 2 lacks \['n_dist'\]"):
        read_queries(write_run(tmp_path, lines))
    with pytest.raises(ValueError, match="no complete line"):
        read_queries(write_run(tmp_path, []))


def test_command_reports_each_run_of_a_sweep_and_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        write_run(tmp_path / "sweep" / name, run_lines({"llm": 0.05}))
    assert main([str(tmp_path / "sweep")]) == 0
    output = capsys.readouterr().out
    assert "of all runs" in output and "mean of 2 runs" in output
    assert (tmp_path / "sweep" / "second" / "report.md").is_file()


def test_command_errors_say_the_way_out(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert "no queries.jsonl in or under" in capsys.readouterr().err
    assert main([str(run_dir), "--main", "encoder"]) == 2
    error = capsys.readouterr().err
    assert "unknown main selector 'encoder'; known here: vanilla, farthest, llm, uniform" in error
    with pytest.raises(FileNotFoundError, match="give the folder of a finished run"):
        write_report(tmp_path)
