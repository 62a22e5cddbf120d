"""Our flat graphs served by other people's code, unmodified."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_formats_base import vectors

from lgp.distance import Metric, Points, exact_knn
from lgp.formats import (
    read_faiss,
    read_hnswlib,
    to_cagra,
    to_faiss_hnsw,
    to_hnswlib,
    to_pyterrier_adaptive,
)
from lgp.formats.export import INVALID
from lgp.graph import Graph
from lgp.points import make_points
from lgp.search import search_nodes
from lgp.vamana import VamanaSettings, build_vamana

N, DIM, R, WIDTH, K = 500, 16, 13, 20, 10


def built(metric: Metric) -> tuple[Graph, Points, torch.Tensor]:
    """A Vamana graph of odd degree, its points, queries."""
    unit = metric is Metric.cosine
    points = make_points(torch.from_numpy(vectors(N, DIM, unit=unit)), metric)
    graph = build_vamana(points, VamanaSettings(max_degree=R, construction_width=40))
    return graph, points, torch.from_numpy(vectors(100, DIM, seed=5, unit=unit))


def raw_vectors(metric: Metric) -> torch.Tensor:
    """The vectors `built` used; points under squared L2 are shifted."""
    return torch.from_numpy(vectors(N, DIM, unit=metric is Metric.cosine))


def recall(found: np.ndarray, points: Points, queries: torch.Tensor) -> float:
    _, exact = exact_knn(points, queries, K)
    hits = [len(set(f) & set(e)) for f, e in zip(found.tolist(), exact.tolist(), strict=True)]
    return float(np.mean(hits)) / K


@pytest.mark.parametrize("metric", list(Metric))
def test_faiss_serves_a_flat_graph(tmp_path: Path, metric: Metric) -> None:
    faiss = pytest.importorskip("faiss")
    graph, points, queries = built(metric)
    index = to_faiss_hnsw(graph, raw_vectors(metric))
    faiss.write_index(index, str(tmp_path / "a.faiss"))
    loaded = faiss.read_index(str(tmp_path / "a.faiss"))
    loaded.hnsw.efSearch = WIDTH
    _, found = loaded.search(queries.numpy(), K)
    mine = search_nodes(graph, points, queries, K, width=WIDTH).nodes.numpy()
    ours, theirs = recall(mine, points, queries), recall(found, points, queries)
    # The same search over the same edges: measured 0.975 (cosine), 0.966 (l2), all nodes equal.
    assert ours > 0.9 and abs(ours - theirs) < 0.01 and (found == mine).mean() > 0.99
    index = read_faiss(tmp_path / "a.faiss")
    assert index.metric is metric and index.entry_node == graph.entry_node and index.bound == R + 1
    assert torch.equal(index.neighbors[:, :R], graph.neighbors) and not index.upper


@pytest.mark.parametrize(
    ("metric", "space"),
    [(Metric.cosine, "cosine"), (Metric.cosine, "ip"), (Metric.cosine, "l2"), (Metric.l2, "l2")],
)
def test_hnswlib_serves_a_flat_graph(tmp_path: Path, metric: Metric, space: str) -> None:
    hnswlib = pytest.importorskip("hnswlib")
    path = tmp_path / "a.bin"
    graph, points, queries = built(metric)
    labels = torch.arange(N) * 3 + 7
    to_hnswlib(graph, raw_vectors(metric), labels, path, space)
    loaded = hnswlib.Index(space, DIM)
    loaded.load_index(str(path))
    loaded.set_ef(WIDTH)
    found, _ = loaded.knn_query(queries.numpy(), K)
    mine = search_nodes(graph, points, queries, K, width=WIDTH).nodes.numpy()
    ours, theirs = recall(mine, points, queries), recall((found - 7) // 3, points, queries)
    assert ours > 0.9 and abs(ours - theirs) < 0.01
    loaded.save_index(str(tmp_path / "b.bin"))
    assert (tmp_path / "b.bin").read_bytes() == path.read_bytes()
    loaded.resize_index(N + 1)  # the file is a full citizen: it still grows
    loaded.add_items(vectors(1, DIM, seed=9, unit=True), [10_000])
    index = read_hnswlib(path, space, DIM)
    assert torch.equal(index.neighbors[:, :R], graph.neighbors)
    assert torch.equal(index.labels, labels)


def test_exports_refuse_what_does_not_fit(tmp_path: Path) -> None:
    graph, _, _ = built(Metric.l2)
    rows, path = raw_vectors(Metric.l2), tmp_path / "a.bin"
    with pytest.raises(ValueError, match="built under squared L2, not 'cosine'"):
        to_hnswlib(graph, rows, None, path, "cosine")
    with pytest.raises(ValueError, match="space='dot' is not one of l2, ip, cosine"):
        to_hnswlib(graph, rows, None, path, "dot")
    with pytest.raises(ValueError, match=r"1 different; .500. different ones are needed"):
        to_hnswlib(graph, rows, torch.zeros(N, dtype=torch.int64), path, "l2")
    with pytest.raises(ValueError, match="499 vectors, 500 nodes"):
        to_hnswlib(graph, rows[:-1], None, path, "l2")
    with pytest.raises(ValueError, match="do not have length 1"):
        to_hnswlib(Graph(graph.neighbors, 0, Metric.cosine), rows, None, path, "l2")
    assert list(tmp_path.iterdir()) == []


def test_cagra_rows_are_padded_with_the_invalid_id(tmp_path: Path) -> None:
    neighbors = torch.tensor([[1, 2], [0, -1], [-1, -1]], dtype=torch.int32)
    table = to_cagra(neighbors, tmp_path / "graph.npy")
    assert table.dtype == np.uint32
    assert table.tolist() == [[1, 2], [0, INVALID], [INVALID, INVALID]]
    assert np.array_equal(np.load(tmp_path / "graph.npy"), table)


def test_pyterrier_rows_by_hand(tmp_path: Path) -> None:
    neighbors = torch.tensor([[1, 2, 3], [2, -1, -1], [3, 0, -1], [-1, -1, -1]], dtype=torch.int32)
    distances = torch.tensor([[0.5, 0.25, 0.5], [1.0, 0, 0], [3.0, 1e9, 0], [9, 9, 9]])
    to_pyterrier_adaptive(tmp_path / "g", neighbors, distances, ["a", "bé", "d/1", "d/2"])
    edges = np.fromfile(tmp_path / "g" / "edges.u32.np", np.uint32).reshape(4, 3)
    weights = np.fromfile(tmp_path / "g" / "weights.f16.np", np.float16).reshape(4, 3)
    # Nearest first, ties by id; the document itself pads at weight 0; 1 - 1e9 is clipped.
    assert edges.tolist() == [[2, 1, 3], [2, 1, 1], [3, 0, 2], [3, 3, 3]]
    assert weights.tolist() == [[0.75, 0.5, 0.5], [0, 0, 0], [-2, -65504, 0], [0, 0, 0]]
    assert json.loads((tmp_path / "g" / "pt_meta.json").read_text()) == {
        "type": "corpus_graph", "format": "np_topk", "package_hint": "pyterrier-adaptive",
        "doc_count": 4, "k": 3,
    }  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g"]


@pytest.mark.parametrize("n", [1, 2, 300])
def test_names_are_found_by_npids(tmp_path: Path, n: int) -> None:
    npids = pytest.importorskip("npids")
    names = [f"doc {i * i}/é.txt" if i % 3 else f"{i}" for i in range(n)]
    neighbors = torch.full((n, 1), -1, dtype=torch.int32)
    to_pyterrier_adaptive(tmp_path / "g", neighbors, torch.zeros(n, 1), names)
    lookup = npids.Lookup(tmp_path / "g" / "docnos.npids")
    assert len(lookup) == n and list(lookup.fwd[list(range(n))]) == names
    assert lookup.inv[names] == list(range(n)) and lookup.inv[names[-1]] == n - 1
    assert lookup.inv[["no such name"]] == [-1]


def test_pyterrier_refuses_what_cannot_be_kept(tmp_path: Path) -> None:
    rows, far = torch.tensor([[1], [0]], dtype=torch.int32), torch.zeros(2, 1)
    for names, message in (
        (["a"], "1 docnos do not fit together"),
        (["a", "a"], "docno 'a' occurs twice"),
        (["a", ""], "docno 1 is ''"),
        (["a", "b\0"], "docno 1 is 'b"),
    ):
        with pytest.raises(ValueError, match=message):
            to_pyterrier_adaptive(tmp_path / "g", rows, far, names)
    with pytest.raises(ValueError, match="distance of node 1 is NaN"):
        nan = torch.tensor([[0.0], [float("nan")]])
        to_pyterrier_adaptive(tmp_path / "g", rows, nan, ["a", "b"])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "g").mkdir()
    with pytest.raises(ValueError, match="exists; remove it"):
        to_pyterrier_adaptive(tmp_path / "g", rows, far, ["a", "b"])
