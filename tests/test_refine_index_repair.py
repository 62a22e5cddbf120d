"""`lgp refine-index --method repair` with somebody's query log: served, undone, refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from test_formats_diskann import random_lists, save
from test_refine_index import (
    DIM,
    FAST,
    HNSWLIB,
    N,
    foreign,
    hnswlib_file,
    refine,
    rows,
)

from lgp.foreign import to_engine
from lgp.formats import read_diskann, read_hnswlib
from lgp.index import base_layer
from lgp.points import make_points
from lgp.refine.log import EditLog
from lgp.refine.repair import miss_rate
from lgp.repairs import start_nodes

__all__ = ["foreign", "rows"]  # fixtures
REPAIR = ["--method", "repair"]
UNSEEN = ["repair.held_out=0"]


@pytest.fixture
def log(tmp_path: Path, rows: np.ndarray) -> Path:
    """A query log of 200 vectors near the stored ones, every tenth of them logged twice."""
    draw = np.random.default_rng(8)
    near = rows[draw.permutation(N)[:200]] + 0.15 * draw.normal(size=(200, DIM))
    path = tmp_path / "log.npy"
    np.save(path, np.concatenate([near, near[::10]]).astype(np.float32))
    return path


def facts_of(out: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(Path(f"{out}.json").read_text())
    return facts


@pytest.mark.parametrize("method", ["repair", "lgp+repair"])
@pytest.mark.parametrize("library", ["hnswlib", "faiss", "usearch"])
def test_a_stock_library_serves_a_repaired_index_and_undo_restores_it(
    library: str, method: str, tmp_path: Path, rows: np.ndarray, log: Path, foreign: ModuleType
) -> None:
    pytest.importorskip({"usearch": "usearch.index"}.get(library, library))
    build, search, options = foreign.LIBRARIES[library]
    index, out, back = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    build(index, rows)
    options = [word.format(dim=DIM) for word in options]
    words = ["--index", index, "--format", library, *options, "--out", out, "--store", tmp_path]
    settings = ["repair.width=4", *UNSEEN, *(FAST if method == "lgp+repair" else [])]
    assert refine(*words, "--method", method, "--latent", log, *settings) == 0
    facts, header = facts_of(out), EditLog.load(Path(f"{out}.edits.safetensors")).header
    assert facts["method"] == header["method"] == method and header["repair"]["width"] == 4
    assert facts["latent_queries"] == 200  # of 220 in the file
    assert facts["miss_rate"][1] < facts["miss_rate"][0]
    chosen = facts["edits"] - facts["n_repairs"]
    assert facts["n_repairs"] > 5 and (chosen > 50 if method == "lgp+repair" else chosen == 0)
    found = search(out, rows[:40], 60)
    assert found.shape == (40, 10) and (found[:, 0] == np.arange(40)).mean() >= 0.9
    assert refine("--index", out, "--undo", f"{out}.edits.safetensors", "--out", back) == 0
    assert back.read_bytes() == index.read_bytes()


def test_a_repaired_diskann_index_grows_and_comes_back(
    tmp_path: Path, rows: np.ndarray, log: Path
) -> None:
    index, out, back = tmp_path / "ann", tmp_path / "new", tmp_path / "old"
    save(index, random_lists(longest=6), rows)
    words = ["--index", index, "--format", "diskann", "--max-degree", "10", "--store", tmp_path]
    assert refine(*words, *REPAIR, "--latent", log, "--out", out) == 0
    facts, made = facts_of(out), read_diskann(out).neighbors
    for missed in (facts["miss_rate"], facts["miss_rate_held_out"]):
        assert missed[-1] < missed[0]
    assert made.ge(0).sum() > read_diskann(index).neighbors.ge(0).sum() and made.shape[1] <= 10
    assert refine("--index", out, "--undo", f"{out}.edits.safetensors", "--out", back) == 0
    for suffix in ("", ".data", "_metadata.bin"):
        assert Path(f"{back}{suffix}").read_bytes() == Path(f"{index}{suffix}").read_bytes()


def test_deleted_elements_are_neither_missed_nor_linked(
    tmp_path: Path, rows: np.ndarray, log: Path
) -> None:
    index, out = hnswlib_file(tmp_path, rows), tmp_path / "out"
    words = ["--index", index, *HNSWLIB, "--out", out, "--store", tmp_path, *REPAIR]
    assert refine(*words, "--latent", log, "repair.width=4", *UNSEEN) == 0
    read = read_hnswlib(index, "cosine", DIM)
    edits = EditLog.load(Path(f"{out}.edits.safetensors")).edits
    assert int(read.deleted.sum()) == 25 and len(edits.node) > 20
    assert not read.deleted[edits.added.long()].any()
    assert not read.deleted[edits.node.long()].any()
    engine = to_engine(read)
    points = make_points(read.unit_vectors(), read.metric)
    asked = torch.nn.functional.normalize(torch.from_numpy(np.load(log)[:200]))
    starts = start_nodes(engine, points, asked)
    want = miss_rate(base_layer(engine), points, asked, 4, 3, starts, ~read.deleted)
    assert facts_of(out)["miss_rate"][0] == want > 0


def test_an_order_of_nodes_reads_the_log(tmp_path: Path, rows: np.ndarray, log: Path) -> None:
    index = hnswlib_file(tmp_path, rows)
    seen = {}
    for order in ("random", "traffic", "blind_spots"):
        out = tmp_path / order
        latent = [] if order == "random" else ["--latent", log]
        words = ["--index", index, *HNSWLIB, "--out", out, "--store", tmp_path, *latent]
        budget = ["refine.node_budget=0.1", f"refine.node_order={order}", *FAST]
        assert refine(*words, *budget) == 0
        decisions = EditLog.load(Path(f"{out}.edits.safetensors")).decisions
        assert facts_of(out)["method"] == "lgp" and facts_of(out)["nodes_asked"] == 47
        seen[order] = tuple(sorted(decisions.anchors.tolist()))
    assert len(set(seen.values())) == 3


def test_pilot_and_dry_run_of_a_repair_write_nothing(
    tmp_path: Path, rows: np.ndarray, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = hnswlib_file(tmp_path, rows, np.arange(N))
    queries = np.load(log)[:30]
    queries[10:] += 1.0
    np.save(tmp_path / "q.npy", queries)
    words = ["--index", index, *HNSWLIB, "--latent", log, "--store", tmp_path / "store"]
    before = set(tmp_path.iterdir())

    def said(*more: str | Path) -> str:
        assert refine(*words, *more) == 0
        return " ".join(capsys.readouterr().out.split())

    text = said(*REPAIR, "--dry-run", "repair.width=4")
    assert "220 latent queries, 200 of them distinct" in text
    assert "Searches of width 4 for the latent queries miss" in text
    text = said(*REPAIR, "--pilot", "50", "--queries", tmp_path / "q.npy", "repair.width=4")
    assert "pilot, nothing written: repaired for 50 latent queries with" in text
    assert "Recall of exact 10 x 100, 30 queries" in text
    assert "10 latent queries are (nearly) measured ones" in text
    assert "The pilot repairs for 25.0 % of the latent queries" in text
    text = said("--method", "lgp+repair", "--dry-run", *FAST)
    assert "nodes would be refined, without a" in text and "latent queries miss" in text
    text = said("--method", "lgp+repair", "--pilot", "50", "--widths", "10", *FAST)
    assert "edges chosen at 50 of 500 nodes" in text and "repaired for 50 latent" in text
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "store"}


def test_a_request_that_cannot_be_repaired_names_the_way_out(
    tmp_path: Path, rows: np.ndarray, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, out = hnswlib_file(tmp_path, rows), tmp_path / "out"
    np.save(tmp_path / "narrow.npy", rows[:5, :7])
    np.save(tmp_path / "nan.npy", np.full((3, DIM), np.nan, np.float32))
    here = ["--index", index, "--out", out, "--store", tmp_path, *HNSWLIB]
    latent = ["--latent", log]
    for words, part in (
        (REPAIR, "--method repair needs --latent FILE"),
        (["--method", "lgp+repair"], "--method lgp+repair needs --latent FILE"),
        ([*REPAIR, *latent, "--selector", "nearest"], "asks no selector; drop --selector nearest"),
        ([*REPAIR, *latent, "refine.edit_budget=1"], "not read by refine-index --method repair"),
        ([*REPAIR, *latent, "repair.queries=[log]"], "not read by refine-index --method repair"),
        ([*REPAIR, *latent, "repair.targets=11"], "repair.targets=11 is above repair.width=10"),
        (["repair.width=4"], "not read by refine-index --method lgp without --latent"),
        (["refine.method=repair"], "not read by refine-index --method lgp"),
        (latent, "give one of them, or drop it"),
        (["refine.node_order=traffic"], "refine.node_order=traffic needs --latent FILE"),
        ([*REPAIR, "--latent", tmp_path / "narrow.npy"], "the index holds 16 dimensions"),
        ([*REPAIR, "--latent", tmp_path / "nan.npy"], "nan.npy (numbers 0, 1, 2) hold NaN"),
        ([*REPAIR, "--latent", tmp_path / "none.npy"], "none.npy"),
    ):
        assert refine(*here, *words) == 2, words
        assert part in capsys.readouterr().err, words
        assert not out.exists()
