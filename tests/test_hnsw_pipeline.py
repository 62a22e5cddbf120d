"""`lgp index=hnsw`: stages, matched controls, records, report; only base layers may change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lgp.cli import main
from lgp.distance import Metric
from lgp.hnsw_build import HnswSettings
from lgp.hnsw_file import load_hnsw
from lgp.index import settings_key
from lgp.refine.log import EditLog, apply_edits, undo_edits
from lgp.results import read_queries
from lgp.vamana import VamanaSettings

SMALL = ["dataset=toy", "search.widths=[10,20]", "search.budgets=[12,50,100]", "run_dir=out"]


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lgp"])
    return main(list(words))


def records(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "queries.jsonl").read_text().splitlines()]


def test_stage_keys_of_flat_graphs_are_those_from_before_hnsw() -> None:
    assert set(settings_key(VamanaSettings())) == {
        "max_degree", "construction_width", "alpha", "batch_size", "seed",
    }  # fmt: skip
    assert settings_key(HnswSettings(seed=3)) == {
        "kind": "hnsw", "connectivity": 16, "construction_width": 200, "seed": 3, "batch_size": 0,
    }  # fmt: skip


@pytest.mark.slow
def test_an_hnsw_is_refined_evaluated_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["index=hnsw", "refine=farthest", "refine.controls=[uniform]", *SMALL]
    assert run(tmp_path, monkeypatch, *words) == 0
    said = capsys.readouterr().out
    assert "above" in said and "base of 3 layers" in said
    out, store = tmp_path / "out", tmp_path / "lgp-store"
    [vanilla] = [load_hnsw(p) for p in store.glob("hnsw-*/graph.safetensors")]
    refined = {
        x.base.digest(): x
        for x in (load_hnsw(p) for p in store.glob("hnsw_refined-*/graph.safetensors"))
    }
    assert len(refined) == 2 and vanilla.base.metric is Metric.cosine
    for selector in ("farthest", "uniform"):
        log = EditLog.load(out / f"edits-{selector}-0.safetensors")
        after = refined[log.header["result_sha256"]]
        assert len(log.edits.node) > 0
        assert undo_edits(after.base, log).digest() == vanilla.base.digest()
        assert apply_edits(vanilla.base, log).digest() == after.base.digest()
        assert (after.base.degrees() >= vanilla.base.degrees()).all()
        assert torch.equal(after.levels, vanilla.levels)
        assert after.entry_node == vanilla.entry_node
        assert len(after.upper) == len(vanilla.upper) == 2
        for mine, other in zip(after.upper, vanilla.upper, strict=True):
            assert torch.equal(mine.nodes, other.nodes) and torch.equal(mine.rows, other.rows)
    graphs = json.loads((out / "summary.json").read_text())["graphs"]
    assert [g["n_layers"] for g in graphs] == [3, 3, 3]
    assert graphs[2]["n_edits_wanted"] == graphs[1]["n_edits"] > 0

    lines = records(out)
    above = {(r["query_id"], r["n_dist_above"]) for r in lines if r["mode"] != "exact"}
    assert len(above) == 24 and min(spent for _, spent in above) > 1  # one descent a query
    for r in lines:
        if r["mode"] == "budget":
            assert r["n_dist"] == max(r["value"], r["n_dist_above"] + 1)
    columns = read_queries(out).columns
    assert columns["n_dist_above"].max() > 1
    # Run folders from before the field stand for flat graphs.
    old = [{k: v for k, v in r.items() if k != "n_dist_above"} for r in lines]
    (tmp_path / "old").mkdir()
    text = "".join(json.dumps(r) + "\n" for r in old)
    (tmp_path / "old" / "queries.jsonl").write_text(text)
    before = read_queries(tmp_path / "old").columns
    assert (before.pop("n_dist_above") == 0).all()
    assert all((before[name] == columns[name])[1:].all() for name in before)  # 0: exact, no reach
    capsys.readouterr()
    assert main(["report", str(tmp_path / "old")]) == 0
    assert "above" not in capsys.readouterr().out


@pytest.mark.slow
def test_recorded_decisions_refine_an_hnsw_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, monkeypatch, "index=hnsw", "refine=uniform", *SMALL) == 0
    log = tmp_path / "out" / "edits-uniform-0.safetensors"
    again = ["index=hnsw", "refine=recorded", f"refine.log={log}", *SMALL]
    assert run(tmp_path, monkeypatch, *again) == 0
    second = EditLog.load(tmp_path / "out" / "edits-recorded-0.safetensors")
    assert second.header["result_sha256"] == EditLog.load(log).header["result_sha256"]
