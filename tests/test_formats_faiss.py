"""faiss HNSW indices: read, edited, written, loaded by the unmodified library."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_formats_base import chain, check_index, layered_search, vectors, with_edit

from lgp.distance import Metric
from lgp.formats import FormatError, read_faiss, write_faiss
from lgp.points import make_points

faiss = pytest.importorskip("faiss")
N, DIM, M = 500, 16, 8
LABELS = np.arange(N) * 3 + 7
KINDS = ["flat", "sq", "map flat", "map2 sq", "map2 flat ip"]


def build(path: Path, kind: str = "flat") -> np.ndarray:
    """Write an index; its vectors."""
    faiss.omp_set_num_threads(1)
    rows = vectors(unit="ip" in kind)
    metric = faiss.METRIC_INNER_PRODUCT if "ip" in kind else faiss.METRIC_L2
    if "sq" in kind:
        inner = faiss.IndexHNSWSQ(DIM, faiss.ScalarQuantizer.QT_8bit, M, metric)
        inner.train(rows)
    else:
        inner = faiss.IndexHNSWFlat(DIM, M, metric)
    index = inner
    if "map" in kind:
        index = (faiss.IndexIDMap2 if "map2" in kind else faiss.IndexIDMap)(inner)
        index.add_with_ids(rows, LABELS)
    else:
        index.add(rows)
    faiss.write_index(index, str(path))
    return rows


def load(path: Path, width: int = 50) -> Any:
    index = faiss.read_index(str(path))
    inner = faiss.downcast_index(index)
    if isinstance(inner, faiss.IndexIDMap):
        inner = faiss.downcast_index(inner.index)
    inner.hnsw.efSearch = width
    return index


@pytest.mark.parametrize("kind", KINDS)
def test_read_agrees_with_the_library_and_round_trips(tmp_path: Path, kind: str) -> None:
    path, out = tmp_path / "a.faiss", tmp_path / "b.faiss"
    rows = build(path, kind)
    index = read_faiss(path)
    check_index(index)
    assert index.neighbors.shape == (N, 2 * M) and index.n_repaired == 0 and len(index.upper) >= 2
    assert index.metric is (Metric.cosine if "ip" in kind else Metric.l2)
    assert index.labels.tolist() == (LABELS.tolist() if "map" in kind else list(range(N)))
    assert index.vectors is not None
    assert np.allclose(index.vectors.numpy(), rows, atol=0.02 if "sq" in kind else 0)
    make_points(index.unit_vectors(), index.metric)
    write_faiss(index, index.neighbors, out)
    assert out.read_bytes() == path.read_bytes()
    write_faiss(index, index.neighbors, path)
    assert out.read_bytes() == path.read_bytes() and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("kind", ["flat", "map2 sq"])
def test_layers_are_read_as_the_library_walks_them(tmp_path: Path, kind: str) -> None:
    build(tmp_path / "a.faiss", kind)
    index = read_faiss(tmp_path / "a.faiss")
    queries = vectors(50, seed=5)
    _, found = load(tmp_path / "a.faiss", 20).search(queries, 10)
    mine = [index.labels[layered_search(index, q, 20)[:10]].tolist() for q in queries]
    assert np.mean(np.array(mine) == found) > 0.99  # its float32 sums may swap near ties


@pytest.mark.parametrize("kind", KINDS)
def test_edited_edges_are_seen_by_the_library(tmp_path: Path, kind: str) -> None:
    path, out, again = tmp_path / "a.faiss", tmp_path / "b.faiss", tmp_path / "c.faiss"
    build(path, kind)
    index = read_faiss(path)
    rows = with_edit(index)
    write_faiss(index, rows, out)
    edited = read_faiss(out)
    assert torch.equal(edited.neighbors, rows) and torch.equal(edited.labels, index.labels)
    for before, after in zip(index.upper, edited.upper, strict=True):
        assert torch.equal(before.rows, after.rows)
    loaded = load(out, 16)
    _, found = loaded.search(vectors(50, seed=5), 10)
    assert found.shape == (50, 10) and (found >= 0).all()
    assert np.isin(found, index.labels.numpy()).all()
    faiss.write_index(loaded, str(again))
    assert again.read_bytes() == out.read_bytes()
    changed = np.frombuffer(out.read_bytes(), np.uint8) != np.frombuffer(
        path.read_bytes(), np.uint8
    )
    assert 0 < changed.sum() <= 2 * 4


def test_search_follows_the_edges_we_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a.faiss"
    rows = build(path)
    index = read_faiss(path)
    edges, nodes = chain(index)
    write_faiss(index, edges, path)
    _, found = load(path).search(rows[index.entry_node][None], 4)
    assert set(found[0].tolist()) == {*nodes, -1}
    write_faiss(read_faiss(path), index.neighbors, path)
    assert torch.equal(read_faiss(path).neighbors, index.neighbors)


def test_an_index_in_memory(tmp_path: Path) -> None:
    build(tmp_path / "a.faiss")
    loaded = faiss.read_index(str(tmp_path / "a.faiss"))
    index = read_faiss(loaded)
    write_faiss(index, with_edit(index), tmp_path / "b.faiss")
    write_faiss(index, index.neighbors, tmp_path / "c.faiss")  # the object itself kept its edges
    assert (tmp_path / "c.faiss").read_bytes() == (tmp_path / "a.faiss").read_bytes()
    loaded.add(vectors(3, seed=9))
    with pytest.raises(ValueError, match="holds 503 vectors, 500 were read"):
        write_faiss(index, index.neighbors, tmp_path / "c.faiss")


def test_a_memory_mapped_index_is_refused(tmp_path: Path) -> None:
    if not hasattr(faiss, "IO_FLAG_MMAP_IFC"):
        pytest.skip("this faiss does not map index files")
    build(tmp_path / "a.faiss")
    mapped = faiss.read_index(str(tmp_path / "a.faiss"), faiss.IO_FLAG_MMAP_IFC)
    with pytest.raises(FormatError, match="neighbors is a memory map; load the index without"):
        read_faiss(mapped)


def test_loops_repeats_and_ids_behind_the_end(tmp_path: Path) -> None:
    path, out = tmp_path / "a.faiss", tmp_path / "b.faiss"
    build(path)
    loaded = faiss.read_index(str(path))
    ids = faiss.vector_to_array(loaded.hnsw.neighbors)
    at = int(faiss.vector_to_array(loaded.hnsw.offsets)[5])
    ids[at : at + 6] = [8, 5, 9, 8, -1, 77]
    faiss.copy_array_to_vector(ids, loaded.hnsw.neighbors)
    faiss.write_index(loaded, str(path))
    index = read_faiss(path)
    check_index(index)
    assert index.n_repaired == 2 and index.neighbors[5, :3].tolist() == [8, 9, -1]
    write_faiss(index, index.neighbors, out)
    assert out.read_bytes() == path.read_bytes()


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    rows, path = vectors(), tmp_path / "a.faiss"
    pca = faiss.IndexPreTransform(faiss.PCAMatrix(DIM, 8), faiss.IndexHNSWFlat(8, M))
    pca.train(rows)
    pca.add(rows)
    faiss.write_index(pca, str(path))
    with pytest.raises(FormatError, match=r"index type is 'IxPT' [(]IndexPreTransform[)]"):
        read_faiss(path)
    with pytest.raises(FormatError, match="index type is IndexPreTransform; IndexHNSWFlat and"):
        read_faiss(pca)
    flat = faiss.IndexFlatL2(DIM)
    with pytest.raises(FormatError, match="index type is IndexFlatL2"):
        read_faiss(flat)
    l1 = faiss.IndexHNSWFlat(DIM, M, faiss.METRIC_L1)
    l1.add(rows)
    faiss.write_index(l1, str(path))
    with pytest.raises(FormatError, match="metric of the HNSW is 2"):
        read_faiss(path)
    with pytest.raises(FormatError, match=r"metric is 2; L2 [(]1[)] or inner"):
        read_faiss(l1)
    raw_ip = faiss.IndexHNSWFlat(DIM, M, faiss.METRIC_INNER_PRODUCT)
    raw_ip.add(rows)
    with pytest.raises(FormatError, match="under inner product"):
        read_faiss(raw_ip)
    with pytest.raises(FormatError, match="ntotal is 0"):
        read_faiss(faiss.IndexHNSWFlat(DIM, M))


def test_sizes_are_checked_before_faiss_allocates(tmp_path: Path) -> None:
    path = tmp_path / "a.faiss"
    build(path)
    raw = path.read_bytes()
    at = raw.index(b"IxF2") + 4 + 33  # the storage's header, then the length of its vectors
    path.write_bytes(raw[:at] + struct.pack("<Q", 2**38) + raw[at + 8 :])
    with pytest.raises(FormatError, match=r"length of the vectors is 274877906944; .* are left"):
        read_faiss(path)
    path.write_bytes(raw[:-1])
    with pytest.raises(FormatError, match="length of the vectors is 8000; 31999 bytes are left"):
        read_faiss(path)
    path.write_bytes(raw + b"x")
    with pytest.raises(FormatError, match=r"file length is .*; the index ends at"):
        read_faiss(path)


def test_quantizers_of_other_sizes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.faiss"
    build(path, "sq")
    raw = bytearray(path.read_bytes())
    at = raw.index(b"IxSQ") + 4 + 33
    struct.pack_into("<i", raw, at, 4)  # fp16 needs twice the bytes and no training
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="code size is 16; fp16 of 16 values takes 32"):
        read_faiss(path)
    struct.pack_into("<i", raw, at, 99)
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="quantizer type is 99; 8bit, 4bit"):
        read_faiss(path)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ImportError, match=r"pip install 'lgp\[faiss\]'"):
        read_faiss("a.faiss")
