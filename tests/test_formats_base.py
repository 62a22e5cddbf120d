"""Checks every foreign format shares, and the helpers of the other format tests."""

from __future__ import annotations

import heapq
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lgp.distance import Metric
from lgp.formats.base import ForeignIndex, FormatError, check_levels, read_bytes, resolve_metric
from lgp.formats.lists import changed_rows, clean_rows, edited_rows
from lgp.graph import validate

HERE = Path("some.index")


def vectors(n: int = 500, dim: int = 16, seed: int = 0, unit: bool = False) -> np.ndarray:
    """Seeded float32 [n, dim]."""
    rows = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if unit else rows


def check_index(index: ForeignIndex) -> None:
    """Every invariant a reader promises."""
    n = index.n
    validate(index.graph())
    assert index.labels.shape == (n,) and index.labels.dtype == torch.int64
    assert index.deleted.shape == (n,) and index.deleted.dtype == torch.bool
    assert index.levels.shape == (n,) and index.levels.dtype == torch.int32
    assert int(index.levels.min()) >= 0
    assert int(index.levels.max()) == len(index.upper) == int(index.levels[index.entry_node])
    if index.vectors is not None:
        assert index.vectors.shape[0] == n and index.vectors.dtype == torch.float32
    for level, layer in enumerate(index.upper, 1):
        assert torch.equal(layer.nodes, (index.levels >= level).nonzero().flatten())
        assert layer.rows.dtype == torch.int32 and len(layer.rows) == len(layer.nodes)
        targets = layer.rows[layer.rows >= 0].long()
        assert bool((targets < n).all()) and bool((index.levels[targets] >= level).all())


def layered_search(index: ForeignIndex, query: np.ndarray, width: int) -> list[int]:
    """HNSW search by squared L2, by the book: nodes of the frontier, nearest first."""
    assert index.vectors is not None
    far = ((index.vectors.double().numpy() - query.astype(np.float64)) ** 2).sum(1)
    here = index.entry_node
    for layer in reversed(index.upper):
        place = {int(node): row for row, node in enumerate(layer.nodes)}
        while True:
            near = [int(c) for c in layer.rows[place[here]] if c >= 0]
            best = min(near, key=lambda c: far[c], default=here)
            if far[best] >= far[here]:
                break
            here = best
    seen, todo, found = {here}, [(far[here], here)], [(-far[here], here)]
    while todo:
        distance, node = heapq.heappop(todo)
        if len(found) == width and distance > -found[0][0]:
            break
        for other in (int(c) for c in index.neighbors[node] if c >= 0):
            if other in seen:
                continue
            seen.add(other)
            if len(found) < width or far[other] < -found[0][0]:
                heapq.heappush(todo, (far[other], other))
                heapq.heappush(found, (-far[other], other))
                if len(found) > width:
                    heapq.heappop(found)
    return [node for _, node in sorted((-d, node) for d, node in found)]


def chain(index: ForeignIndex) -> tuple[Tensor, list[int]]:
    """A base layer where only entry -> a -> b is left, and those three nodes."""
    rows = torch.full_like(index.neighbors, -1)
    others = [node for node in range(index.n) if node != index.entry_node][100:102]
    nodes = [index.entry_node, *others]
    for here, there in pairwise(nodes):
        rows[here, 0] = there
    return rows, nodes


def with_edit(index: ForeignIndex) -> Tensor:
    """The index's rows with one edge exchanged and, where there is room, one appended."""
    rows = index.neighbors.clone()
    degree = (rows >= 0).sum(1)
    full, room = int(degree.argmax()), int(degree.argmin())
    for node, slot in ((full, 0), (room, int(degree[room]))):
        taken = {node, *rows[node].tolist()}
        rows[node, slot] = next(c for c in range(index.n) if c not in taken)
    return rows


def test_clean_rows_leaves_out_loops_and_repeats_and_closes_the_gaps() -> None:
    ids = np.array([[3, 1, 3, 2], [1, 0, 1, 9], [9, 9, 9, 9]], np.uint32)
    counts, owners = np.array([4, 3, 0]), np.array([0, 1, 2])
    rows, repaired = clean_rows(HERE, "neighbor", ids, counts, owners, 4)
    # Node 0 drops the second 3; node 1 drops itself twice; 9 stands behind the counts.
    assert rows.tolist() == [[3, 1, 2, -1], [0, -1, -1, -1], [-1, -1, -1, -1]]
    assert repaired == 3 and rows.dtype == torch.int32


def test_clean_rows_name_the_slot_that_is_out_of_range() -> None:
    ids, one = np.array([[1, 7]], np.uint32), np.array([2])
    with pytest.raises(FormatError, match=r"some\.index: neighbor 1 of node 0 is 7; .*0\.\.4"):
        clean_rows(HERE, "neighbor", ids, one, np.array([0]), 5)
    with pytest.raises(FormatError, match=r"neighbor count of node 0 is 3; .* at most 2"):
        clean_rows(HERE, "neighbor", ids, np.array([3]), np.array([0]), 9)


def test_levels_and_entry_node_must_agree() -> None:
    check_levels(HERE, np.array([0, 2, 1]), 2, 1)
    with pytest.raises(FormatError, match="level of the entry node is 1; max_level is 2"):
        check_levels(HERE, np.array([0, 2, 1]), 2, 2)
    with pytest.raises(FormatError, match=r"entry node is 3; nodes are 0\.\.2"):
        check_levels(HERE, np.array([0, 2, 1]), 2, 3)
    with pytest.raises(FormatError, match="highest level of a node is 2; max_level is 1"):
        check_levels(HERE, np.array([0, 2, 1]), 1, 2)
    with pytest.raises(FormatError, match="max_level is 70000"):
        check_levels(HERE, np.array([0, 70000]), 70000, 1)


def test_inner_product_is_cosine_on_unit_rows_and_refused_elsewhere() -> None:
    unit = torch.from_numpy(vectors(unit=True))
    assert resolve_metric(HERE, "ip", unit) is Metric.cosine
    unit[3] *= 1.01
    with pytest.raises(FormatError, match=r"length of vector 3 under inner product is 1.00"):
        resolve_metric(HERE, "ip", unit)
    assert resolve_metric(HERE, "cosine", unit) is Metric.cosine
    with pytest.raises(FormatError, match="without stored vectors"):
        resolve_metric(HERE, "ip", None)


def test_missing_and_short_files(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is not a file"):
        read_bytes(tmp_path, 4, "an index")
    short = tmp_path / "short"
    short.write_bytes(b"abc")
    with pytest.raises(FormatError, match="file length is 3; an index has at least 4 bytes"):
        read_bytes(short, 4, "an index")


def small(rows: list[list[int]]) -> ForeignIndex:
    table, n = torch.tensor(rows, dtype=torch.int32), len(rows)
    return ForeignIndex(
        "hnswlib", table, 0, Metric.l2, None, torch.arange(n), torch.zeros(n, dtype=torch.bool),
        torch.zeros(n, dtype=torch.int32), (), 0, None,
    )  # fmt: skip


def test_edits_are_found_whatever_the_width() -> None:
    index = small([[1, -1], [2, 0], [0, -1]])
    narrow = np.array([[1], [2], [0]], np.int32)
    assert changed_rows(index, narrow).tolist() == [1]
    wide = np.array([[1, -1, -1], [2, 0, -1], [1, -1, -1]], np.int32)
    assert changed_rows(index, wide).tolist() == [2]
    rows, changed = edited_rows(index, torch.from_numpy(wide))
    assert rows.shape == (3, 2) and changed.tolist() == [2]


def test_rows_the_format_cannot_hold_are_refused() -> None:
    index = small([[1, -1], [2, 0], [0, -1], [0, -1]])
    with pytest.raises(ValueError, match=r"node 0 has 3 neighbors; .* holds 2"):
        edited_rows(index, torch.tensor([[1, 2, 3], *[[0, -1, -1]] * 3], dtype=torch.int32))
    with pytest.raises(ValueError, match="this index has 4 nodes"):
        edited_rows(index, torch.tensor([[1], [0]], dtype=torch.int32))
    with pytest.raises(ValueError, match="an edge to itself"):
        edited_rows(index, torch.tensor([[0], [0], [0], [0]], dtype=torch.int32))


def test_unit_vectors_follow_the_metric() -> None:
    index = small([[-1], [-1]])
    with pytest.raises(ValueError, match="holds no vectors"):
        index.unit_vectors()
