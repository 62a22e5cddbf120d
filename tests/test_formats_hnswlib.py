"""hnswlib files: read, edited, written, loaded by the unmodified library."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from test_formats_base import chain, check_index, layered_search, vectors, with_edit

from lgp.distance import Metric
from lgp.formats import FormatError, read_hnswlib, write_hnswlib
from lgp.points import make_points

hnswlib = pytest.importorskip("hnswlib")
N, DIM, M = 500, 16, 8
ROW = 4 + 8 * M + 4 * DIM + 8
LABELS = np.arange(N) * 3 + 7
GONE = [10, 13, 7 + 3 * 400]


def build(path: Path, space: str = "l2", gone: list[int] | None = None) -> np.ndarray:
    """Save an index; its vectors."""
    rows = vectors(unit=space == "ip")
    index = hnswlib.Index(space, DIM)
    index.init_index(N, M=M, ef_construction=100, random_seed=1)
    index.set_num_threads(1)
    index.add_items(rows, LABELS)
    for label in gone or []:
        index.mark_deleted(label)
    index.save_index(str(path))
    return rows


def load(path: Path, space: str = "l2", width: int = 50) -> hnswlib.Index:
    index = hnswlib.Index(space, DIM)
    index.load_index(str(path))
    index.set_ef(width)
    return index


@pytest.mark.parametrize("space", ["l2", "ip", "cosine"])
def test_read_agrees_with_the_library_and_round_trips(tmp_path: Path, space: str) -> None:
    path, out = tmp_path / "a.bin", tmp_path / "b.bin"
    rows = build(path, space, GONE)
    index = read_hnswlib(path, space, DIM)
    check_index(index)
    assert index.neighbors.shape == (N, 2 * M) and index.n_repaired == 0 and len(index.upper) >= 2
    assert index.metric is (Metric.l2 if space == "l2" else Metric.cosine)
    assert index.labels.tolist() == LABELS.tolist()
    assert index.labels[index.deleted].tolist() == GONE
    if space == "cosine":  # the library normalises what it stores
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert index.vectors is not None and np.allclose(index.vectors.numpy(), rows, atol=1e-6)
    make_points(index.unit_vectors(), index.metric)
    write_hnswlib(index, index.neighbors, out)
    assert out.read_bytes() == path.read_bytes()
    write_hnswlib(index, index.neighbors[:, :], path)
    assert out.read_bytes() == path.read_bytes() and len(list(tmp_path.iterdir())) == 2


def test_layers_are_read_as_the_library_walks_them(tmp_path: Path) -> None:
    build(tmp_path / "a.bin")
    index = read_hnswlib(tmp_path / "a.bin", "l2", DIM)
    queries = vectors(50, seed=5)
    found, _ = load(tmp_path / "a.bin", width=20).knn_query(queries, 10, num_threads=1)
    mine = [index.labels[layered_search(index, q, 20)[:10]].tolist() for q in queries]
    assert mine == found.tolist()


def test_edited_edges_are_seen_by_the_library(tmp_path: Path) -> None:
    path, out, again = tmp_path / "a.bin", tmp_path / "b.bin", tmp_path / "c.bin"
    build(path, gone=GONE)
    index = read_hnswlib(path, "l2", DIM)
    rows = with_edit(index)
    write_hnswlib(index, rows, out)
    assert torch.equal(read_hnswlib(out, "l2", DIM).neighbors, rows)
    loaded = load(out)
    loaded.save_index(str(again))
    assert again.read_bytes() == out.read_bytes()
    found, _ = loaded.knn_query(vectors(50, seed=5), 10)
    assert found.shape == (50, 10) and not np.isin(found, GONE).any()


def test_only_lists_change(tmp_path: Path) -> None:
    path, out = tmp_path / "a.bin", tmp_path / "b.bin"
    build(path, gone=GONE)
    index = read_hnswlib(path, "l2", DIM)
    write_hnswlib(index, with_edit(index), out)
    before, after = (np.frombuffer(p.read_bytes(), np.uint8) for p in (path, out))
    places = np.flatnonzero(before != after)
    assert 0 < len(places) <= 2 * 3 * 4
    assert (places >= 96).all() and (places < 96 + N * ROW).all()
    within = (places - 96) % ROW
    # The count's two bytes and the ids; never the delete mark in byte 2.
    assert ((within < 2) | ((within >= 4) & (within < 4 + 8 * M))).all()


def test_search_follows_the_edges_we_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    rows = build(path)
    index = read_hnswlib(path, "l2", DIM)
    edges, nodes = chain(index)
    write_hnswlib(index, edges, path)
    found, _ = load(path).knn_query(rows[index.entry_node][None], 3)
    assert set(found[0].tolist()) == set(index.labels[nodes].tolist())
    # An edit taken back leaves the rows equal; only slots behind the counts may differ.
    write_hnswlib(read_hnswlib(path, "l2", DIM), index.neighbors, path)
    assert torch.equal(read_hnswlib(path, "l2", DIM).neighbors, index.neighbors)


def test_loops_and_repeats_stay_in_the_file(tmp_path: Path) -> None:
    path, out = tmp_path / "a.bin", tmp_path / "b.bin"
    build(path)
    raw = bytearray(path.read_bytes())
    at = 96 + 5 * ROW
    first = struct.unpack_from("<I", raw, at + 4)[0]
    struct.pack_into("<HxxIII", raw, at, 3, first, 5, first)
    path.write_bytes(raw)
    index = read_hnswlib(path, "l2", DIM)
    check_index(index)
    assert index.n_repaired == 2 and index.neighbors[5].tolist() == [first] + [-1] * (2 * M - 1)
    write_hnswlib(index, index.neighbors, out)
    assert out.read_bytes() == raw


@pytest.mark.parametrize(
    ("at", "layout", "value", "message"),
    [
        (0, "Q", 8, "offsetLevel0 is 8"),
        (8, "Q", 10, r"max_elements is 10; 500 .cur_element_count."),
        (8, "Q", 2**63, r"max_elements is 9223372036854775808; .*\.\.2147483647"),
        (16, "Q", 0, "cur_element_count is 0"),
        (16, "Q", 2**62, "cur_element_count is 4611686018427387904"),
        (48, "i", 1, "highest level of a node is"),
        (52, "I", 500, r"entry node is 500; nodes are 0\.\.499"),
        (64, "Q", 15, "offsetData is 68; maxM0 15 needs 64"),
        (96, "H", 17, "neighbor count of node 0 is 17; a list holds at most 16"),
        (100, "I", 500, r"neighbor 0 of node 0 is 500; nodes are 0\.\.499"),
        (96 + N * ROW, "I", 12, "linkListSize of node 0 is 12; a multiple of 36"),
    ],
)
def test_damage_is_named(tmp_path: Path, at: int, layout: str, value: int, message: str) -> None:
    path = tmp_path / "a.bin"
    build(path)
    raw = bytearray(path.read_bytes())
    struct.pack_into("<" + layout, raw, at, value)
    path.write_bytes(raw)
    with pytest.raises(FormatError, match=message) as error:
        read_hnswlib(path, "l2", DIM)
    assert str(path) in str(error.value)


def test_what_the_file_does_not_say_must_be_given(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    build(path)
    with pytest.raises(ValueError, match="hnswlib files hold neither"):
        read_hnswlib(path)
    with pytest.raises(ValueError, match="l2, ip, cosine"):
        read_hnswlib(path, "euclid", DIM)
    with pytest.raises(FormatError, match="bytes of a vector is 64; dim=17 of float32 needs 68"):
        read_hnswlib(path, "l2", 17)
    with pytest.raises(FormatError, match="under inner product"):
        read_hnswlib(path, "ip", DIM)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(FormatError, match="they end before node 499"):
        read_hnswlib(path, "l2", DIM)
