"""DiskANN files, written here by hand: no DiskANN package runs with this NumPy."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from test_formats_base import check_index, vectors, with_edit

from lgp.distance import Metric
from lgp.formats import FormatError, read_diskann, write_diskann
from lgp.graph import Graph
from lgp.points import make_points
from lgp.search import search_nodes
from lgp.vamana import VamanaSettings, build_vamana

N, DIM = 500, 16
DTYPES = [np.float32, np.int8, np.uint8]


def random_lists(n: int = N, longest: int = 12) -> list[list[int]]:
    """Lists of 0..longest ids in random order, no loops, no repeats."""
    rng = np.random.default_rng(3)
    lists = [rng.choice(n - 1, rng.integers(0, longest + 1), replace=False) for _ in range(n)]
    return [[int(c) + (c >= node) for c in row] for node, row in enumerate(lists)]


def graph_bytes(lists: list[list[int]], start: int, frozen: int = 0) -> bytes:
    """The graph file, from the layout of `in_mem_graph_store.cpp: save_graph`."""
    body = b"".join(struct.pack(f"<I{len(row)}I", len(row), *row) for row in lists)
    longest = max(len(row) for row in lists)
    return struct.pack("<QIIQ", 24 + len(body), longest, start, frozen) + body


def save(
    prefix: Path, lists: list[list[int]], rows: np.ndarray, start: int = 17, frozen: int = 0,
    metric: int | None = 0,
) -> None:  # fmt: skip
    """Graph, vectors and, unless metric is None, the metadata diskannpy writes."""
    prefix.write_bytes(graph_bytes(lists, start, frozen))
    Path(f"{prefix}.data").write_bytes(struct.pack("<ii", *rows.shape) + rows.tobytes())
    if metric is not None:
        kind = [np.dtype(d) for d in DTYPES].index(rows.dtype)
        meta = struct.pack("<4Q", kind, metric, *rows.shape)
        Path(f"{prefix}_metadata.bin").write_bytes(meta)


def test_read_and_round_trip(tmp_path: Path) -> None:
    prefix, lists, rows = tmp_path / "ann", random_lists(), vectors()
    save(prefix, lists, rows)
    index = read_diskann(prefix)
    check_index(index)
    assert index.entry_node == 17 and index.metric is Metric.l2 and index.bound == 12
    assert [[c for c in row if c >= 0] for row in index.neighbors.tolist()] == lists
    assert index.labels.tolist() == list(range(N)) and not index.deleted.any()
    assert index.vectors is not None and np.array_equal(index.vectors.numpy(), rows)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_diskann(index, index.neighbors, prefix)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "new").mkdir()
    write_diskann(index, index.neighbors, tmp_path / "new" / "ann")
    assert {p.name: p.read_bytes() for p in (tmp_path / "new").iterdir()} == before


def test_edits_change_their_lists_and_the_sizes(tmp_path: Path) -> None:
    prefix, lists = tmp_path / "ann", random_lists()
    save(prefix, lists, vectors())
    index = read_diskann(prefix, max_degree=20)
    assert index.bound == 20
    rows = with_edit(index)
    rows[3] = -1
    rows[4, :20] = torch.arange(100, 120, dtype=torch.int32)
    write_diskann(index, rows, prefix)
    expected = [[c for c in row if c >= 0] for row in rows.tolist()]
    assert prefix.read_bytes() == graph_bytes(expected, 17)
    assert torch.equal(read_diskann(prefix).neighbors, rows)
    write_diskann(read_diskann(prefix), index.neighbors, prefix)
    size, longest = struct.unpack_from("<QI", prefix.read_bytes())
    # The header's bound is not lowered: it is what the owner may have configured.
    assert prefix.read_bytes()[24:] == graph_bytes(lists, 17)[24:]
    assert longest == 20 and size == len(graph_bytes(lists, 17))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_small_integers_become_float32(tmp_path: Path, dtype: type) -> None:
    rows = np.random.default_rng(0).integers(-100, 100, (N, DIM)).astype(dtype)
    save(tmp_path / "ann", random_lists(), rows)
    index = read_diskann(tmp_path / "ann")
    assert index.vectors is not None and index.vectors.dtype == torch.float32
    assert np.array_equal(index.vectors.numpy(), rows.astype(np.float32))


def test_without_metadata_the_caller_says(tmp_path: Path) -> None:
    prefix = tmp_path / "ann"
    save(prefix, random_lists(), vectors(unit=True), metric=None)
    with pytest.raises(ValueError, match=r"_metadata\.bin is missing, so metric .* dtype"):
        read_diskann(prefix)
    index = read_diskann(prefix, metric="mips", dtype="float32", dim=DIM)
    assert index.metric is Metric.cosine
    with pytest.raises(ValueError, match="dtype='half' is not one of float32, int8, uint8"):
        read_diskann(prefix, metric="l2", dtype="half", dim=DIM)
    with pytest.raises(FormatError, match=r"\.data: columns is 16; 8 expected"):
        read_diskann(prefix, metric="l2", dtype="float32", dim=8)
    with pytest.raises(FormatError, match=r"file length is .* values of 1 bytes need"):
        read_diskann(prefix, metric="l2", dtype="int8", dim=DIM)
    save(prefix, random_lists(), vectors(), metric=1)
    with pytest.raises(FormatError, match="under inner product"):
        read_diskann(prefix)
    with pytest.raises(FormatError, match=r"_metadata\.bin: metric is mips; l2 was asked for"):
        read_diskann(prefix, metric="l2")


@pytest.mark.parametrize("layout", ["<u4", "<u8"])
def test_tags_frozen_points_and_deletions(tmp_path: Path, layout: str) -> None:
    prefix = tmp_path / "ann"
    save(prefix, random_lists(), vectors(), start=N - 1, frozen=1)
    tags = (np.arange(N) * 3 + 7).astype(layout)
    tags[-1] = 0
    Path(f"{prefix}.tags").write_bytes(struct.pack("<ii", N, 1) + tags.tobytes())
    Path(f"{prefix}.del").write_bytes(struct.pack("<iiII", 2, 1, 5, 9))
    index = read_diskann(prefix)
    check_index(index)
    assert index.labels.tolist() == [*tags[:-1].tolist(), -1]
    assert index.deleted.nonzero().flatten().tolist() == [5, 9, N - 1]
    (tmp_path / "new").mkdir()
    write_diskann(index, index.neighbors, tmp_path / "new" / "ann")
    assert {p.name: p.read_bytes() for p in (tmp_path / "new").iterdir()} == {
        p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()
    }


def test_loops_and_repeats_stay_in_the_file(tmp_path: Path) -> None:
    prefix, lists = tmp_path / "ann", random_lists()
    lists[5] = [8, 5, 9, 8]
    save(prefix, lists, vectors())
    before = prefix.read_bytes()
    index = read_diskann(prefix)
    check_index(index)
    assert index.n_repaired == 2 and index.neighbors[5, :3].tolist() == [8, 9, -1]
    write_diskann(index, index.neighbors, prefix)
    assert prefix.read_bytes() == before


def test_our_search_runs_on_what_was_read(tmp_path: Path) -> None:
    points = make_points(torch.from_numpy(vectors(unit=True)))
    graph = build_vamana(points, VamanaSettings(max_degree=12, construction_width=30))
    lists = [[c for c in row if c >= 0] for row in graph.neighbors.tolist()]
    save(tmp_path / "ann", lists, vectors(unit=True), start=graph.entry_node, metric=2)
    index = read_diskann(tmp_path / "ann", max_degree=graph.max_degree)
    assert isinstance(index.graph(), Graph) and index.graph().digest() == graph.digest()
    queries = torch.from_numpy(vectors(20, seed=5, unit=True))
    read_points = make_points(index.unit_vectors())
    mine = search_nodes(graph, points, queries, 5, width=10)
    assert torch.equal(
        search_nodes(index.graph(), read_points, queries, 5, width=10).nodes, mine.nodes
    )


@pytest.mark.parametrize(
    ("at", "layout", "value", "message"),
    [
        (0, "Q", 2**60, "file size in the header is 1152921504606846976"),
        (8, "I", 3, "max observed degree is 3; node"),
        (12, "I", N, r"start is 500; nodes are 0\.\.499"),
        (16, "Q", N, "frozen points is 500; there are 500 points in all"),
        (24, "I", 2**32 - 1, "degree of node 0 is 4294967295; the file ends"),
        (28, "I", N, r"neighbor 0 of node 0 is 500; nodes are 0\.\.499"),
    ],
)
def test_damage_is_named(tmp_path: Path, at: int, layout: str, value: int, message: str) -> None:
    prefix, lists = tmp_path / "ann", random_lists()
    lists[0] = [1, 2]
    save(prefix, lists, vectors())
    raw = bytearray(prefix.read_bytes())
    struct.pack_into("<" + layout, raw, at, value)
    prefix.write_bytes(raw)
    with pytest.raises(FormatError, match=message) as error:
        read_diskann(prefix)
    assert str(prefix) in str(error.value)


def test_one_absurd_list_does_not_make_a_giant_table(tmp_path: Path) -> None:
    n = 60_000
    lists: list[list[int]] = [[]] * n
    lists[0] = list(range(1, n))
    save(tmp_path / "ann", lists, np.zeros((n, 1), np.float32))
    with pytest.raises(FormatError, match="max_degree is 59999; a table of 60000 rows may take"):
        read_diskann(tmp_path / "ann")


def test_missing_vectors(tmp_path: Path) -> None:
    save(tmp_path / "ann", random_lists(), vectors())
    index = read_diskann(tmp_path / "ann")
    (tmp_path / "ann.data").unlink()
    with pytest.raises(FormatError, match=r"ann\.data is not a file"):
        read_diskann(tmp_path / "ann")
    with pytest.raises(FormatError, match=r"ann\.data: vectors is gone"):
        write_diskann(index, index.neighbors, tmp_path / "other")
    assert not (tmp_path / "other").exists()
