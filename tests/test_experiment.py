"""Every table and figure of the paper at scale=tiny: its rows, its columns, its averages."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean

import pytest

from lgp.choices import BrightTask, MbeirTask
from lgp.cli import compose, config_dir, main
from lgp.experiment import count_jobs, sweep_words

BRIGHT = [f"toy-{task.value}" for task in BrightTask]
MBEIR = [f"toy-{task.value}" for task in MbeirTask]
PAIR, AVERAGE = ["toy-pony", "toy-psychology"], ["Average"]
WIDTHS, HNSW_WIDTHS = ["10", "20", "50", "100", "200"], ["10", "12", "14", "16", "18", "20", "50"]
BUDGETS = ["100", "200", "300", "500", "800", "1600", "3200"]
RANKINGS, MEASURES = ["greedy", "rerank"], ["ndcg_at_10", "recall_at_10"]
NDCG = ["ndcg_at_10"]
MOTIVATION = ["toy-biology", "toy-stackoverflow", "toy-psychology"]
HNSW = ["toy-biology", "toy-pony", "toy-theoremqa_theorems"]
ABLATION = ["toy-pony", "toy-psychology", "toy-biology"]


def cross(*facets: list[str]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [()]
    for facet in facets:
        found = [(*head, value) for head in found for value in facet]
    return found


def knobs(**values: list[str]) -> list[tuple[str, ...]]:
    return [(key.replace("__", "."), value) for key, found in values.items() for value in found]


PAPER = {
    "table1": (cross(BRIGHT + AVERAGE), cross(RANKINGS, MEASURES)),
    "table2": (cross(MBEIR + AVERAGE), cross(RANKINGS, MEASURES)),
    "table3": (cross(["text", "multimodal"], WIDTHS), cross(RANKINGS, MEASURES)),
    "table4": (cross(BUDGETS), cross(MEASURES)),
    "table5": (cross(HNSW + AVERAGE), cross(RANKINGS, MEASURES)),
    "table6": (
        cross(RANKINGS), cross(["ndcg_at_5", "ndcg_at_10", "recall_at_5", "recall_at_10"]),
    ),
    "table7": (
        knobs(refine__selector=["nearest", "farthest"], index__max_degree=["8", "16", "32", "64"]),
        cross(PAIR + AVERAGE, RANKINGS),
    ),
    "table7_left": (cross(["nearest", "farthest"]), cross(PAIR + AVERAGE, RANKINGS)),
    "table7_right": (cross(["8", "16", "32", "64"]), cross(PAIR + AVERAGE, RANKINGS)),
    "table13": (
        cross(["proximity", "coverage", "separation", "balanced"]),
        cross(ABLATION + AVERAGE, RANKINGS),
    ),
    "table14": (
        cross(["redundancy", "coverage", "lexicographic"]), cross(ABLATION + AVERAGE, RANKINGS),
    ),
    "table17": (cross(["text", "multimodal"], BUDGETS), cross(RANKINGS, MEASURES)),
    "fig2": (cross(MOTIVATION + AVERAGE, BUDGETS), cross(["reach"])),
    "fig3": (cross(BRIGHT + AVERAGE, WIDTHS), cross(RANKINGS)),
    "fig4": (
        knobs(refine__edit_budget=["1", "2", "4"], refine__shortlist_size=["12", "24", "48"],
              refine__node_budget=["0.25", "0.5", "1.0"]),
        cross(PAIR + AVERAGE, RANKINGS),
    ),
    "fig5": (cross(BRIGHT + AVERAGE, WIDTHS), cross(MEASURES)),
    "fig6": (cross(HNSW + AVERAGE, HNSW_WIDTHS), cross(RANKINGS)),
    "fig7": (cross(BRIGHT + AVERAGE, WIDTHS), cross(MEASURES)),
    "fig8": (cross(MBEIR + AVERAGE, WIDTHS), cross(RANKINGS)),
    "fig9": (cross(BRIGHT + AVERAGE, WIDTHS), cross(MEASURES)),
    "fig10": (cross(BRIGHT + AVERAGE, WIDTHS), cross(MEASURES)),
    "fig11": (
        knobs(refine__context_size=["0", "2", "4", "8"],
              refine__min_coverage_gain=["0", "6", "12"]),
        cross(PAIR + AVERAGE, RANKINGS),
    ),
    "batch_size": (cross(["1", "64", "1024"]), cross(PAIR + AVERAGE, RANKINGS)),
    "alpha": (cross(["1.0", "1.2", "1.44"]), cross(PAIR + AVERAGE, RANKINGS)),
    "collapse": (cross(["True", "False"]), cross(PAIR + AVERAGE, RANKINGS)),
    "when": (cross(["build", "post"]), cross(PAIR + AVERAGE, RANKINGS)),
    "llm": (cross(PAIR + AVERAGE), cross(RANKINGS, MEASURES)),
    "repair": (
        cross(["repair", "lgp_repair"], PAIR + AVERAGE),
        cross(["width 10", "width 20", "budget 100", "budget 200"]),
    ),
}  # fmt: skip
"""Rows and columns that the paper prints, Average added where it averages over datasets."""
WITHOUT_CELLS = {"table15", "table16", "fig1", "tokens"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


def make(place: Path, name: str) -> list[dict[str, str]]:
    """Run an experiment; the lines of its table."""
    words = [f"experiment={name}", "scale=tiny", f"run_dir={place}", f"store_dir={place / 'store'}"]
    assert main(words) == 0
    for file in ("table.md", "table.tex"):
        assert (place / name / file).stat().st_size > 300
    with open(place / name / "table.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_rows_columns_and_averages(place: Path, name: str) -> None:
    lines = make(place, name)
    table = compose([f"experiment={name}", "scale=tiny"]).table
    rows, columns = PAPER[name]
    ours = [x for x in lines if x["base"] == "vanilla"]
    keys = {
        tuple(tuple(x[facet] for facet in facets) for facets in (table.rows, table.columns))
        for x in ours
    }
    assert keys == {(row, column) for row in rows for column in columns}
    if table.figure is not None:
        assert (place / name / "figure.png").stat().st_size > 10_000
    assert len({x["graph"] for x in ours}) >= 2  # a main graph and at least one other
    for x in ours:
        if "Average" in x.values():
            key = [f for f in (*table.rows, *table.columns) if f != "dataset"]
            own = [
                y for y in ours
                if y["dataset"] != "Average" and y["graph"] == x["graph"]
                and all(y[f] == x[f] for f in key)
            ]  # fmt: skip
            assert len(own) == int(x["datasets"]) > 1
            for column in ("base_mean", "mean", "difference", "n_dist"):
                assert float(x[column]) == pytest.approx(fmean(float(y[column]) for y in own))
            gain = 100 * (float(x["mean"]) / float(x["base_mean"]) - 1)
            assert float(x["relative_pct"]) == pytest.approx(gain, abs=1e-9)


@pytest.mark.slow
def test_a_table_is_that_of_the_per_query_lines(place: Path) -> None:
    """All of Table 1 again, from the JSON lines, in plain Python."""
    lines = make(place, "table1")
    for number, dataset in enumerate(BRIGHT):
        text = (place / "text" / str(number) / "queries.jsonl").read_text()
        records = [json.loads(x) for x in text.splitlines()]
        for x in (x for x in lines if x["dataset"] == dataset):

            def values(graph: str, x: dict[str, str] = x, own: list[dict] = records) -> dict:  # type: ignore[type-arg]
                return {
                    r["query_id"]: r[x["metric"]] for r in own
                    if (r["mode"], r["value"], r["ranking"]) == ("width", 20, x["ranking"])
                    and graph == (r["selector"] if r["graph"] == "refined" else r["graph"])
                }  # fmt: skip

            base, other = values(x["base"]), values(x["graph"])
            assert float(x["base_mean"]) == pytest.approx(100 * fmean(base.values()))
            assert float(x["mean"]) == pytest.approx(100 * fmean(other.values()))
            better = sum(other[q] > base[q] + 1e-12 for q in base)
            worse = sum(other[q] < base[q] - 1e-12 for q in base)
            assert (int(x["wins"]), int(x["losses"])) == (better, worse)
            assert int(x["wins"]) + int(x["ties"]) + int(x["losses"]) == len(base)


@pytest.mark.slow
def test_structure_cost_and_one_edge(place: Path) -> None:
    structure = make(place, "table15")
    own = [x for x in structure if (x["sweep"], x["graph"]) == ("text", "farthest")]
    assert [x["dataset"] for x in own] == BRIGHT + AVERAGE
    assert float(own[-1]["changed %"]) == pytest.approx(
        fmean(float(x["changed %"]) for x in own[:-1])
    )
    assert {x["changed %"] for x in structure if x["graph"] == "vanilla"} == {"0.0"}
    summary = json.loads((place / "text" / "0" / "summary.json").read_text())
    (graph,) = [g for g in summary["graphs"] if g["selector"] == "farthest"]
    assert float(own[0]["changed %"]) == pytest.approx(100 * graph["changed_neighborhoods"])
    assert float(own[0]["hub share %"]) == pytest.approx(100 * graph["structure"]["hub_share"])
    cost = make(place, "table16")
    assert {x["dataset"] for x in cost} == set(PAIR)
    (line,) = [x for x in cost if (x["dataset"], x["graph"]) == (PAIR[0], "llm")]
    assert float(line["LLM calls"]) > 0 and float(line["read, M tokens"]) > 0
    assert float(line["s a node"]) == pytest.approx(
        60 * float(line["minutes"]) / float(line["nodes"])
    )
    study = make(place, "fig1")
    assert {x["dataset"] for x in study} == set(MOTIVATION)
    assert {(x["P"], x["C"]) for x in study} >= {("10.0", "4.0"), ("10.0", "16.0"), ("5.0", "8.0")}
    for x in study:
        assert float(x["oracle"]) >= float(x["uniform"])


@pytest.mark.slow
def test_gain_against_tokens(place: Path) -> None:
    lines = [x for x in make(place, "tokens") if x["base"] == "vanilla"]
    assert (place / "tokens" / "figure.png").stat().st_size > 10_000
    main_graphs = {"titles": "repair", "written": "repair", "titles_written": "repair",
                   "lgp": "llm", "lgp_titles": "llm+repair"}  # fmt: skip
    tokens: dict[tuple[str, str], dict[str, float]] = {}
    for x in lines:
        if x["graph"] == main_graphs[x["benchmark"]]:
            way = tokens.setdefault((x["benchmark"], x["refine.node_order"]), {})
            way[x["refine.node_budget"]] = float(x["tokens"])
    assert tokens.pop(("titles", "random")) == {"1.0": 0.0}
    assert set(tokens) == {
        *cross(["written", "titles_written"], ["random", "blind_spots"]),
        *cross(["lgp", "lgp_titles"], ["traffic"]),
    }
    for way in tokens.values():  # a larger budget costs more, whatever was asked before
        assert 0 < way["0.05"] < way["0.1"]
    for order in ("random", "blind_spots"):
        assert tokens["written", order] == tokens["titles_written", order]
    assert tokens["lgp", "traffic"] == tokens["lgp_titles", "traffic"]
    own = json.loads((place / "lgp" / "0" / "summary.json").read_text())["graphs"][1]["account"]
    assert 1000 * tokens["lgp", "traffic"]["0.05"] == pytest.approx(own["used_tokens"], abs=50)


def test_every_experiment_is_tested() -> None:
    names = {p.stem for p in (Path(config_dir()) / "experiment").glob("*.yaml")}
    assert names == {*PAPER, *WITHOUT_CELLS, "demo"}


@pytest.mark.parametrize("scale", ["paper", "local", "tiny"])
def test_every_sweep_composes(scale: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each job's settings pass the checks, at every scale."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    monkeypatch.setenv("LGP_TEST_DATA", str(tmp_path))
    seen: set[str] = set()
    for name in sorted({*PAPER, *WITHOUT_CELLS}):
        config = compose([f"experiment={name}", f"scale={scale}"])
        for listed in config.table.sweeps:
            sweep = config.scale.sweeps.get(listed.name, listed)
            if sweep.over not in config.scale.collections:
                assert (scale, sweep.over) == ("local", "multimodal")
                continue
            words = sweep_words(config, sweep, Path("runs"), [])
            if sweep.name in seen:
                continue
            seen.add(sweep.name)
            overrides = OverridesParser.create().parse_overrides(words)
            (jobs,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
            assert len(jobs) == count_jobs(words) > 0
            for job in (jobs[0], jobs[-1]):
                made = compose(list(job))
                assert made.table is None and made.name == sweep.name


def test_later_words_win() -> None:
    config = compose(["experiment=table5", "scale=paper"])
    words = sweep_words(config, config.table.sweeps[0], Path("base"), ["rerank=none", "+x=1"])
    assert words[:2] == ["name=hnsw", "run_dir=base/hnsw"]
    assert "rerank=none" in words and "rerank=listwise" not in words
    assert "index=hnsw" in words and "dataset.task=biology,pony,theoremqa_theorems" in words


def test_wrong_experiments_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["experiment=table99"]) == 2
    assert "table99" in capsys.readouterr().err
    assert main(["experiment=table1", "scale=huge"]) == 2
    assert "huge" in capsys.readouterr().err
    assert main(["experiment=table2", "scale=local"]) == 2
    assert "multimodal" in capsys.readouterr().err


@pytest.mark.slow
def test_finished_jobs_are_kept_and_failed_ones_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Jobs fail until their vectors are there; later only what is not finished runs."""
    from lgp.data import load_toy

    base = [
        "experiment=collapse", "scale=tiny", f"run_dir={tmp_path / 'runs'}",
        f"store_dir={tmp_path / 'store'}", "rerank=none",
        "dataset.task=pony,psychology", "dataset.topics=3", "refine.controls=[]",
    ]  # fmt: skip
    broken = tmp_path / "d.npy"
    words = [*base, "embedder=precomputed", f"embedder.document_vectors={broken}",
             f"embedder.query_vectors={tmp_path / 'q.npy'}"]  # fmt: skip
    assert main(words) == 2
    assert "no run of collapse finished" in capfd.readouterr().err
    errors = sorted((tmp_path / "runs" / "collapse").glob("*/error.txt"))
    assert len(errors) == 4 and "d.npy" in errors[0].read_text()
    import numpy as np

    toy = load_toy(n_topics=3, task="pony")
    rng = np.random.default_rng(0)
    for name, n in (("d", len(toy.doc_ids)), ("q", len(toy.query_ids))):
        np.save(tmp_path / f"{name}.npy", rng.random((n, 8), dtype=np.float32))
    assert main(words) == 0
    assert not list((tmp_path / "runs" / "collapse").glob("*/error.txt"))
    made = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("summary.json")}
    assert len(made) == 4
    lost = tmp_path / "runs" / "collapse" / "2"
    (lost / "summary.json").unlink()
    assert main(words) == 0
    now = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("summary.json")}
    assert {p for p in made if now[p] != made[p]} == {lost / "summary.json"}
