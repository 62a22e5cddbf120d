"""usearch files: read, edited, written, loaded by the unmodified library."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_formats_base import chain, check_index, layered_search, vectors, with_edit

from lgp.distance import Metric
from lgp.formats import FormatError, read_usearch, write_usearch
from lgp.points import make_points

usearch = pytest.importorskip("usearch.index")
N, DIM, M = 500, 16, 8
KEYS = np.arange(N) * 3 + 7
GONE = [10, 13, 7 + 3 * 400]
HEAD = 8 + N * DIM * 4
LISTS = HEAD + 64 + 40 + 2 * N


def build(path: Path, gone: list[int] | None = None, **settings: Any) -> np.ndarray:
    """Save an index; its vectors."""
    settings = {"metric": "l2sq", "dtype": "f32", "connectivity": M} | settings
    rows = vectors(unit=settings["metric"] == "ip")
    index = usearch.Index(ndim=DIM, **settings)
    index.add(KEYS, rows, threads=1)
    for key in gone or []:
        index.remove(key)
    index.save(str(path))
    return rows


def load(path: Path, width: int = 50) -> Any:
    index = usearch.Index.restore(str(path))
    index.expansion_search = width
    return index


@pytest.mark.parametrize(
    ("metric", "dtype"),
    [("l2sq", "f32"), ("l2sq", "f16"), ("l2sq", "bf16"), ("cos", "f32"), ("ip", "f32")],
)
def test_read_agrees_with_the_library_and_round_trips(
    tmp_path: Path, metric: str, dtype: str
) -> None:
    path, out = tmp_path / "a.usearch", tmp_path / "b.usearch"
    rows = build(path, GONE, metric=metric, dtype=dtype)
    index = read_usearch(path)
    check_index(index)
    assert index.neighbors.shape == (N, 2 * M) and index.n_repaired == 0 and len(index.upper) >= 2
    assert index.metric is (Metric.l2 if metric == "l2sq" else Metric.cosine)
    kept = ~np.isin(KEYS, GONE)
    assert index.labels[~index.deleted].tolist() == KEYS[kept].tolist()
    assert index.deleted.tolist() == (~kept).tolist()
    stored = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    expected = torch.from_numpy(rows).to(stored).float().numpy()
    assert index.vectors is not None and np.array_equal(index.vectors.numpy(), expected)
    make_points(index.unit_vectors(), index.metric)
    write_usearch(index, index.neighbors, out)
    assert out.read_bytes() == path.read_bytes()
    write_usearch(index, index.neighbors, path)
    assert out.read_bytes() == path.read_bytes() and len(list(tmp_path.iterdir())) == 2


def test_layers_are_read_as_the_library_walks_them(tmp_path: Path) -> None:
    build(tmp_path / "a.usearch")
    index = read_usearch(tmp_path / "a.usearch")
    queries = vectors(50, seed=5)
    found = load(tmp_path / "a.usearch", 20).search(queries, 10, threads=1).keys
    mine = [index.labels[layered_search(index, q, 20)[:10]].tolist() for q in queries]
    assert mine == found.astype(np.int64).tolist()


def test_edited_edges_are_seen_by_the_library(tmp_path: Path) -> None:
    path, out, again = tmp_path / "a.usearch", tmp_path / "b.usearch", tmp_path / "c.usearch"
    build(path, GONE)
    index = read_usearch(path)
    rows = with_edit(index)
    write_usearch(index, rows, out)
    assert torch.equal(read_usearch(out).neighbors, rows)
    loaded = load(out)
    found = loaded.search(vectors(50, seed=5), 10).keys
    assert found.shape == (50, 10) and not np.isin(found, GONE).any()
    loaded.save(str(again))
    assert again.read_bytes() == out.read_bytes()


def test_only_lists_change(tmp_path: Path) -> None:
    path, out = tmp_path / "a.usearch", tmp_path / "b.usearch"
    build(path)
    index = read_usearch(path)
    write_usearch(index, with_edit(index), out)
    before, after = (np.frombuffer(p.read_bytes(), np.uint8) for p in (path, out))
    places = np.flatnonzero(before != after)
    allowed = np.zeros(len(before), bool)
    at = LISTS
    for level in index.levels.tolist():
        allowed[at + 10 : at + 14 + 8 * M] = True
        at += 14 + 8 * M + level * (4 + 4 * M)
    assert at == len(before) and 0 < len(places) <= 2 * 3 * 4 and allowed[places].all()


def test_search_follows_the_edges_we_wrote(tmp_path: Path) -> None:
    path = tmp_path / "a.usearch"
    rows = build(path)
    index = read_usearch(path)
    edges, nodes = chain(index)
    write_usearch(index, edges, path)
    found = load(path).search(rows[index.entry_node], 3).keys
    assert set(found.tolist()) == set(index.labels[nodes].tolist())


def test_loops_and_repeats_stay_in_the_file(tmp_path: Path) -> None:
    path, out = tmp_path / "a.usearch", tmp_path / "b.usearch"
    build(path)
    raw = bytearray(path.read_bytes())
    first = struct.unpack_from("<I", raw, LISTS + 14)[0]
    struct.pack_into("<IIII", raw, LISTS + 10, 3, first, 0, first)
    path.write_bytes(raw)
    index = read_usearch(path)
    check_index(index)
    assert index.n_repaired == 2 and index.neighbors[0].tolist() == [first] + [-1] * (2 * M - 1)
    write_usearch(index, index.neighbors, out)
    assert out.read_bytes() == raw


def test_wide_and_missing_matrices(tmp_path: Path) -> None:
    """The library's C++ options: 64-bit matrix sizes, or no vectors in the file."""
    path, out = tmp_path / "a.usearch", tmp_path / "b.usearch"
    rows = build(path)
    raw = path.read_bytes()
    path.write_bytes(struct.pack("<QQ", N, DIM * 4) + raw[8:])
    wide = read_usearch(path)
    assert wide.vectors is not None and np.array_equal(wide.vectors.numpy(), rows)
    path.write_bytes(raw[HEAD:])
    bare = read_usearch(path)
    check_index(bare)
    assert bare.vectors is None and torch.equal(bare.neighbors, wide.neighbors)
    write_usearch(bare, bare.neighbors, out)
    assert out.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("dtype", ["i8", "f64"])
def test_other_scalars_are_refused_by_name(tmp_path: Path, dtype: str) -> None:
    build(tmp_path / "a.usearch", metric="cos", dtype=dtype)
    with pytest.raises(FormatError, match=f"scalar kind is {dtype}; f32, f16 and bf16 are"):
        read_usearch(tmp_path / "a.usearch")


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.usearch"
    build(path, multi=True)
    with pytest.raises(FormatError, match="multi is 1; one vector a key"):
        read_usearch(path)
    build(path, metric="pearson")
    with pytest.raises(FormatError, match="metric is pearson; l2sq, cos and ip are read"):
        read_usearch(path)
    usearch.Index(ndim=DIM, dtype="f32").save(str(path))
    with pytest.raises(FormatError, match="size is 0"):
        read_usearch(path)


@pytest.mark.parametrize(
    ("at", "layout", "value", "message"),
    [
        (0, "I", 499, "vector matrix is 499 rows of 64 bytes or"),
        (HEAD + 7, "H", 3, "version is 3.26"),
        (HEAD + 17, "Q", 4, "count_present [+] count_deleted is 4; size is 500"),
        (HEAD + 33, "Q", 15, "row bytes of the matrix is 64; 15 dimensions of f32 need 60"),
        (HEAD + 64, "Q", 2**40, "size is 1099511627776"),
        (HEAD + 64 + 8, "Q", 2**40, "connectivity is 1099511627776"),
        (HEAD + 64 + 16, "Q", 17, "file length is"),
        (HEAD + 64 + 24, "Q", 300, "max_level is 300"),
        (HEAD + 64 + 32, "Q", 500, r"entry node is 500; nodes are 0\.\.499"),
        (LISTS, "q", -1, "count_deleted is 0; 1 nodes"),
        (LISTS + 8, "h", 1, "level of node 0 is 1; the level table has 0"),
        (LISTS + 10, "I", 2**31, "neighbor count of node 0 is 2147483648"),
        (LISTS + 14, "I", 500, r"neighbor 0 of node 0 is 500; nodes are 0\.\.499"),
    ],
)
def test_damage_is_named(tmp_path: Path, at: int, layout: str, value: int, message: str) -> None:
    path = tmp_path / "a.usearch"
    build(path)
    raw = bytearray(path.read_bytes())
    struct.pack_into("<" + layout, raw, at, value)
    path.write_bytes(raw)
    with pytest.raises(FormatError, match=message) as error:
        read_usearch(path)
    assert str(path) in str(error.value)
