"""The benchmark scripts run at a tiny size and write what they promise."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parent.parent / "experiments" / "bench"


def run(command: list[str], **environment: str) -> str:
    """Standard output of a script; its errors are shown when it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_measure", BENCH / "measure.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_time_at_a_recall_is_interpolated(measure: ModuleType) -> None:
    curve = [(10, 0.80), (20, 0.92), (30, 0.96)]
    assert measure.bracket(curve, 0.90) == (0, 1)
    assert measure.bracket(curve, 0.75) == (0, 0)  # the least effort suffices
    assert measure.bracket(curve, 0.99) is None
    # From 0.80 at 1 s to 0.92 at 4 s: 0.88 lies two thirds of the way.
    assert measure.at_level((0.80, 1.0), (0.92, 4.0), 0.88) == pytest.approx(3.0)
    assert measure.at_level((0.80, 1.0), (0.80, 1.0), 0.75) == 1.0
    assert measure.worst([0.5, None, 1.5]) == 1.5
    assert measure.worst([None]) is None and measure.ratio(1.0, None) is None


def test_recall_counts_found_neighbors_in_any_order(measure: ModuleType) -> None:
    exact = np.array([[0, 1], [2, 3]])
    assert measure.recall(np.array([[1, 0], [2, 9]]), exact) == 0.75
    vectors = np.eye(3, dtype=np.float32)
    assert measure.exact_ids(vectors, vectors, 1).tolist() == [[0], [1], [2]]


@pytest.mark.slow
def test_gpu_script_on_the_cpu(tmp_path: Path) -> None:
    command = [str(BENCH / "gpu.sh"), "--device", "cpu", "--scale", "0.02"]
    printed = run(command, OUT=str(tmp_path), PYTHON=sys.executable)
    found = load(tmp_path / "gpu.json")
    assert found["agreement"]["integer_equal"] and found["agreement"]["real_recall_equal"]
    for name, minutes in (("pony", "1.49"), ("psychology", "11.84")):
        assert minutes in printed
        assert found[name]["search"]["50"]["recall_at_10"] > 0.95  # 0.999 and more measured
        assert found[name]["refinement"]["edits"] > 0


@pytest.mark.slow
def test_graph_script_on_a_tiny_set(tmp_path: Path) -> None:
    pytest.importorskip("hnswlib")
    out = tmp_path / "results.json"
    size = ["--dataset", "synthetic", "--nodes", "600", "--dim", "32", "--repeats", "1"]
    script = str(BENCH / "graph.py")
    printed = run([sys.executable, script, *size, "--libraries", "hnswlib", "--out", str(out)])
    found = load(out)
    for what in ("build", "search", "sweep"):
        key = f"{what}_ratio_hnswlib"
        assert found[key] > 0 and key in printed
    one = found["datasets"]["synthetic"]
    assert (one["n"], one["n_queries"], len(one["sweep"]["efforts"])) == (600, 1000, 12)
    assert found["threads"] == 1 and found["versions"]["hnswlib"]


@pytest.mark.slow
def test_hnsw_script_on_a_tiny_set(tmp_path: Path) -> None:
    pytest.importorskip("hnswlib")
    out = tmp_path / "hnsw.json"
    size = ["--datasets", "synthetic", "--nodes", "400", "--seeds", "0", "--out", str(out)]
    printed = run([sys.executable, str(BENCH / "hnsw.py"), *size])
    found = load(out)["datasets"]["synthetic"]
    for order in ("corpus", "permuted"):
        assert abs(found[f"worst_difference_{order}"]) < 0.02  # 0.0004 at 800 nodes
        [one] = found[order]
        assert one["equal_rows_of_hnswlib"]["batch 1"] > 0.99
        theirs = one["indexes"]["hnswlib"]
        assert theirs["recall_at_10"] == pytest.approx(
            theirs["recall_of_its_file_in_lgp"], abs=1e-3
        )
        assert f"| {order} | lgp, hnswlib's levels |" in printed


@pytest.mark.slow
def test_scale_script_on_two_sizes(tmp_path: Path) -> None:
    sizes = ["--sizes", "500,1000", "--dim", "16", "--threads", "1", "--out", str(tmp_path)]
    run([sys.executable, str(BENCH / "scale.py"), *sizes])
    rows = load(tmp_path / "growth.json")["rows"]
    assert [row["n"] for row in rows] == [500, 1000]
    assert all(row["recall_at_10"] > 0.95 and row["peak_mib"] > 0 for row in rows)
    assert (tmp_path / "growth.png").stat().st_size > 1000
    assert (tmp_path / "growth.md").read_text().count("\n") == 4
