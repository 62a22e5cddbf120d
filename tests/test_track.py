"""The wandb copy, read back without an account: its series are the run folder's."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lgp.cli import main
from lgp.store import file_digest
from lgp.track import COSTS, GAINS, SERIES, run_id, slurm_job

SMALL = [
    "search.widths=[10,20]", "search.budgets=[20,40]", "index.max_degree=6", "index.seeds=[0,1]",
    "refine.controls=[uniform]", "tracking.tags=[tried]", "rerank=encoder", "rerank.max_tokens=16",
    "dataset.topics=4",
]  # fmt: skip


def inspect(folder: Path) -> list[dict[str, Any]]:
    """The records of an offline run, by wandb's own reader."""
    (file,) = folder.glob("run-*.wandb")
    wandb = Path(sys.executable).with_name("wandb")
    made = subprocess.run(
        [str(wandb), "leet", "inspect", "--json", str(file)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in made.stdout.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tracked")
    words = ["tracking=offline", f"run_dir={place / 'run'}", f"store_dir={place / 'store'}", *SMALL]
    assert main(words) == 0
    return place / "run"


def runs(copied: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of every wandb run, by its graph."""
    found = {}
    for folder in sorted((copied / "wandb").glob("offline-run-*")):
        records = inspect(folder)
        (run,) = [r["run"] for r in records if r["type"] == "run"]
        found[run["job_type"]] = records
    return found


def history(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [r["history"]["item"] for r in records if r["type"] == "history"]


def summary_of(records: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for record in records:
        if record["type"] == "summary":
            found |= record["summary"]["update"]
    return found


@pytest.mark.slow
def test_series_are_those_of_the_run_folder(copied: Path) -> None:
    found = runs(copied)
    assert set(found) == {"vanilla", "farthest", "uniform"}
    with open(copied / "metrics.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    for label, records in found.items():
        rows = [row for row in history(records) if "budget" in row or "width" in row]
        assert len(rows) == 4
        for row in rows:
            mode = "budget" if "budget" in row else "width"
            for key in SERIES[:4]:
                ranking, metric = key.split("_", 1)
                own = [
                    float(x["mean"]) for x in lines
                    if (x["mode"], int(x["value"])) == (mode, row[mode])
                    and (x["ranking"], x["metric"]) == (ranking, metric)
                    and label == (x["selector"] if x["graph"] == "refined" else x["graph"])
                ]  # fmt: skip
                assert len(own) == 2  # graph seeds
                assert row[key] == pytest.approx(sum(own) / 2, abs=1e-3)
            assert set(row) >= set(SERIES)


@pytest.mark.slow
def test_facts_groups_and_artifacts(copied: Path) -> None:
    summary = json.loads((copied / "summary.json").read_text())
    for label, records in runs(copied).items():
        (run,) = [r["run"] for r in records if r["type"] == "run"]
        config = run["config"]["update"]
        assert (config["dataset_name"], config["graph"]) == ("toy", label)
        assert set(run["tags"]) == {"run", "toy", label, "tried"} and run["run_group"] == "run"
        own = [g for g in summary["graphs"]
               if g["selector"] == ("none" if label == "vanilla" else label)]  # fmt: skip
        assert len(own) == 2
        names = {r["artifact"]["name"] for r in records if r["type"] == "artifact"}
        wanted = {f"graph-{g['graph_sha256'][:16]}" for g in own}
        if label != "vanilla":
            for graph in own:
                path = copied / f"edits-{label}-{graph['seed']}.safetensors"
                assert graph["edits_sha256"] == file_digest(path)
                wanted.add(f"edit-log-{file_digest(path)[:16]}")
            said = summary_of(records)
            assert set(said) >= {*GAINS, *COSTS}
            assert said["edits"] == sum(g["n_edits"] for g in own) / 2
        assert names >= wanted
    images = [key for row in history(runs(copied)["vanilla"]) for key in row if ".png" in str(row)]
    assert images


def test_ids_follow_the_job_and_not_the_place() -> None:
    config = {"index": {"seeds": [0]}, "run_dir": "a", "device": "cpu", "threads": 1,
              "store_dir": "s", "tracking": {"mode": "offline"}}  # fmt: skip
    elsewhere = config | {"run_dir": "b", "device": "cuda", "store_dir": "t"}
    versions = {"source_sha256": "x"}
    one = run_id(config, versions, "llm")
    assert one == run_id(elsewhere, versions, "llm") and re.fullmatch("[0-9a-f]{16}", one)
    others = [
        run_id(config, versions, "vanilla"), run_id(config, {"source_sha256": "y"}, "llm"),
        run_id(config | {"index": {"seeds": [1]}}, versions, "llm"),
    ]  # fmt: skip
    assert len({one, *others}) == 4
    assert slurm_job({"SLURM_ARRAY_TASK_ID": "3", "HOME": "/"}) == {"slurm_array_task_id": "3"}


def keys_of(panel: Any) -> set[str]:
    """The metric names that a panel's JSON refers to."""
    config = panel["config"]
    names = [*config.get("metrics", []), config.get("xAxis")]
    return {str(n).removeprefix("summary:") for n in names if n}


@pytest.mark.slow
def test_the_dashboard_names_exactly_what_is_logged(copied: Path, tmp_path: Path) -> None:
    assert main(["dashboard", "--project", "p", "--out", str(tmp_path / "d.json")]) == 0
    made = json.loads((tmp_path / "d.json").read_text())
    panels = [
        panel for section in made["spec"]["section"]["panelBankConfig"]["sections"]
        for panel in section["panels"]
    ]  # fmt: skip
    named: Counter[str] = Counter(key for panel in panels for key in keys_of(panel))
    assert set(named) == {*SERIES, *GAINS, *COSTS, "budget", "width"}
    logged: set[str] = set()
    for records in runs(copied).values():
        logged |= {key for row in history(records) for key in row} | set(summary_of(records))
    assert set(named) <= logged
    assert "dataset_name" in json.dumps(made) and "graph" in json.dumps(made)


def test_saving_a_dashboard_needs_an_entity(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--save"]) == 2
    assert "--entity" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "offline"])
def test_no_connection_is_opened(mode: str, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: apt-get install strace")
    log = tmp_path / "strace.log"
    words = [f"tracking={mode}", f"run_dir={tmp_path / 'run'}", f"store_dir={tmp_path / 'store'}",
             "dataset.topics=3", "search.widths=[10]", "search.budgets=[]"]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [strace, "-f", "-e", "trace=connect", "-o", str(log), sys.executable, "-m", "lgp.cli"]
    made = subprocess.run([*command, *words], env=environment, capture_output=True, text=True)
    if "ptrace" in made.stderr:
        pytest.skip(f"strace may not trace here: {made.stderr.splitlines()[0]}")
    assert made.returncode == 0, made.stderr[-2000:]
    lines = log.read_text().splitlines()
    assert lines and not [x for x in lines if "AF_INET" in x]
    if mode == "offline":
        assert list((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
