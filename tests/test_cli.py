"""The console command: every config composes, errors come before work, the demo runs on toy."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from lgp.choices import IndexKind, SelectorKind, When
from lgp.cli import config_dir, main, register, to_config
from lgp.config import Config, ConfigError

ROOT = Path(config_dir())


def compose(*overrides: str) -> Any:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(ROOT)):
        return hydra_compose(config_name="config", overrides=list(overrides))


# What an option needs beside its name.
NEEDS = {
    "dataset=beir": ["dataset.path=somewhere"],
    "dataset=bright": ["dataset.task=biology"],
    "dataset=image_text": ["dataset.path=somewhere"],
    "dataset=mbeir": ["dataset.task=webqa_task2"],
    "embedder=hf": ["embedder.model=somewhere"],
    "embedder=precomputed": ["embedder.document_vectors=d.npy", "embedder.query_vectors=q.npy"],
    "refine=recorded": ["refine.log=edits.safetensors"],
    "refine=scripted": ["refine.answers=answers.json"],
    "rerank=listwise": ["prompt=general"],
}
OPTIONS = sorted(f"{p.parent.relative_to(ROOT)}={p.stem}" for p in ROOT.glob("*/*.yaml"))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_config_composes(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGP_TEST_DATA", "somewhere")
    assert isinstance(to_config(compose(option, *NEEDS.get(option, []))), Config)


def test_defaults_are_the_papers() -> None:
    config = to_config(compose())
    index, refine = config.index, config.refine
    assert (index.max_degree, index.construction_width, index.alpha) == (16, 125, 1.2)
    assert (refine.edit_budget, refine.shortlist_size, refine.context_size) == (2, 24, 4)
    assert config.search.widths == [10, 20, 50, 100, 200]
    assert config.search.budgets == [100, 200, 300, 500, 800, 1600, 3200]


def test_hnsw_brings_its_widths_and_is_refined_when_finished() -> None:
    config = to_config(compose("index=hnsw"))
    assert (config.index.kind, config.index.connectivity) == (IndexKind.hnsw, 16)
    assert config.index.construction_width == 200
    assert config.search.widths == [10, 12, 14, 16, 18, 20, 50]  # §5
    assert config.search.budgets == [100, 200, 300, 500, 800, 1600, 3200]
    assert config.refine.when is When.post
    # Given words win over what the index brings, an experiment's, too.
    own = to_config(compose("index=hnsw", "search.widths=[11]", "refine=uniform"))
    assert (own.search.widths, own.refine.selector) == ([11], SelectorKind.uniform)
    demo = to_config(compose("experiment=demo", "index=hnsw"))
    assert demo.index.kind is IndexKind.hnsw and demo.refine.node_budget == 0.2
    assert to_config(compose("index=hnsw", "refine.min_coverage_gain=32")).index.max_degree == 16


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("search.widths=[5,20]", ["5", "search.k=10", "raise the width"]),
        ("search.budgets=[0]", ["search.budgets=0", "below 1"]),
        (
            "refine=repair refine.repair_beside=true",
            ["refine.method=repair", "same graph twice", "drop it"],
        ),
        ("refine.min_coverage_gain=17", ["17", "0..index.max_degree=16", "lower it"]),
        ("index.construction_width=8", ["8", "index.max_degree=16", "raise"]),
        ("refine.node_budget=0", ["refine.node_budget=0", "(0, 1]"]),
        ("refine.edit_budget=30", ["30", "refine.shortlist_size=24", "raise"]),
        ("refine.batch_size=4", ["refine.batch_size=4", "index.batch_size"]),
        ("refine.selector=recorded", ["refine.log"]),
        ("refine.controls=[farthest]", ["farthest", "once"]),
        ("dataset.kind=beir", ["dataset.path", "BEIR"]),
        ("index.seeds=[1,1]", ["[1, 1]", "different"]),
        ("prompt.prefix=plain", ["prompt.prefix", "{anchor}"]),
        ("rerank.depth=0", ["rerank.depth=0", "null"]),
        ("index.kind=hnsw", ["refine.when=build", "index.kind=hnsw", "refine.when=post"]),
        ("index.connectivity=8", ["index.connectivity=8", "index.kind=vamana", "index=hnsw"]),
        ("index=hnsw refine.when=build", ["refine.when=build", "refine.when=post"]),
        ("index=hnsw index.connectivity=1", ["index.connectivity=1", "below 2"]),
        ("index=hnsw index.construction_width=15", ["15", "index.connectivity=16", "raise"]),
        ("index=hnsw index.max_degree=8", ["index.max_degree=8", "not read", "index=diskann"]),
        ("index=hnsw index.alpha=1.1", ["index.alpha=1.1", "not read"]),
        ("index=hnsw index.connect=true", ["index.connect=true", "index.connect=false"]),
        ("index=hnsw refine.min_coverage_gain=33", ["33", "2 * index.connectivity=32", "lower"]),
    ],
)
def test_impossible_combinations_name_value_bound_and_way_out(
    override: str, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        to_config(compose(*override.split()))
    for part in parts:
        assert part in str(error.value)


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lgp"])
    return main(list(words))


def test_a_typo_fails_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, monkeypatch, "refine.edit_bugdet=3") == 2
    assert "edit_bugdet" in capsys.readouterr().err
    assert run(tmp_path, monkeypatch, "refine.shortlist=balancd") == 2
    assert "coverage" in capsys.readouterr().err  # the members are listed
    assert run(tmp_path, monkeypatch, "search.widths=[5]") == 2
    assert "raise the width" in capsys.readouterr().err
    assert run(tmp_path, monkeypatch, "refresh") == 2
    assert "subcommand" in capsys.readouterr().err
    assert list(tmp_path.glob("lgp-store")) == []


def test_help_is_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, monkeypatch, "--help")
    out = capsys.readouterr().out
    assert "experiment=demo" in out and "max_degree: 16" in out and "pydocs" in out


SMALL = ["embedder=wordllama", "search.widths=[10,20]", "search.budgets=[50,100]"]


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_demo_experiment_on_toy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_lm: Path
) -> None:
    words = ["experiment=demo", "dataset=toy", f"llm.model={tiny_lm}", "run_dir=out", *SMALL]
    assert run(tmp_path, monkeypatch, *words) == 0
    rows = read_csv(tmp_path / "out" / "metrics.csv")
    assert list(rows[0]) == [
        "graph", "selector", "seed", "ranking", "mode", "value", "metric", "mean", "n_dist",
        "n_queries",
    ]  # fmt: skip
    shown = {(r["graph"], r["selector"]) for r in rows}
    assert shown == {
        ("exact", "none"), ("vanilla", "none"), ("refined", "llm"), ("refined", "uniform"),
        ("refined", "farthest"), ("refined", "encoder"), ("refined", "repair"),
    }  # fmt: skip
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    llm, *controls, repaired = summary["graphs"][1:]
    assert repaired["n_edits_wanted"] is None and set(repaired["latent_queries"]) == {"title"}
    assert llm["n_eligible"] == 48 and llm["account"]["asked"] > 0
    assert all(c["n_edits_wanted"] == llm["n_edits"] for c in controls)
    assert (tmp_path / "out" / "ndcg_at_10.png").stat().st_size > 10_000
    assert "beta 0.20" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.slow
def test_a_second_run_reuses_stages_and_gives_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, monkeypatch, *SMALL, "run_dir=a", "index.seeds=[0,1]") == 0
    stages = {p: p.stat().st_mtime_ns for p in (tmp_path / "lgp-store").glob("*/manifest.json")}
    assert run(tmp_path, monkeypatch, *SMALL, "run_dir=b", "index.seeds=[0,1]") == 0
    assert {
        p: p.stat().st_mtime_ns for p in (tmp_path / "lgp-store").glob("*/manifest.json")
    } == stages
    first, second = ((tmp_path / d / "queries.jsonl").read_bytes() for d in "ab")
    assert first == second
    assert main(["report", str(tmp_path / "a")]) == 0


@pytest.mark.slow
def test_recorded_decisions_rebuild_the_same_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for when in ("build", "post"):
        extra = [*SMALL, f"refine.when={when}"]
        assert run(tmp_path, monkeypatch, "refine=uniform", f"run_dir={when}1", *extra) == 0
        log = tmp_path / f"{when}1" / "edits-uniform-0.safetensors"
        again = ["refine=recorded", f"refine.log={log}", f"run_dir={when}2", *extra]
        assert run(tmp_path, monkeypatch, *again) == 0
        from lgp.refine.log import EditLog

        first = EditLog.load(log).header["result_sha256"]
        second = EditLog.load(tmp_path / f"{when}2" / "edits-recorded-0.safetensors")
        assert second.header["result_sha256"] == first


@pytest.mark.slow
def test_multirun_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["-m", "refine.edit_budget=1,2", "run_dir=sweep", *SMALL]
    assert run(tmp_path, monkeypatch, *words) == 0
    for job in "01":
        assert (tmp_path / "sweep" / job / "metrics.csv").is_file()
    assert (tmp_path / "sweep" / "0" / "metrics.csv").read_text() != (
        tmp_path / "sweep" / "1" / "metrics.csv"
    ).read_text()


@pytest.mark.slow
def test_tracking_offline_writes_a_wandb_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, monkeypatch, "tracking=offline", "run_dir=out", *SMALL) == 0
    assert list((tmp_path / "out" / "wandb").glob("offline-run-*/run-*.wandb"))
