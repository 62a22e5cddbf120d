"""Neighbor lists as they lie in foreign files: checked into tables, compared, patched back.

In: raw ids and counts. Out: rows that `lgp.graph.validate` accepts, and after a refinement the
changed rows alone written over their old bytes. Where the lists lie is each format's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lgp.formats.base import Bytes, ForeignIndex, Ints, fail
from lgp.graph import Graph, validate
from lgp.hnsw import UpperLevel

BLOCK_VALUES = 1 << 21
"""Index matrices are int64: made for a whole file at once they would outgrow it eightfold."""


def _blocks(n: int, row_values: int) -> Iterator[slice]:
    step = max(1, BLOCK_VALUES // max(1, row_values))
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


def clean_rows(
    path: Path, what: str, ids: Ints, counts: Ints, owners: Ints, n: int
) -> tuple[Tensor, int]:
    """Check neighbor lists and make them rows of a table.

    Args:
        ids: integers [A, W]; of row a the first counts[a] are in use.
        counts: [A]. owners: [A], the node a row belongs to.
    Returns:
        int32 [A, W], -1 padded at the end, without self loops and (later) repeats, and how many
        of those there were.
    Raises:
        FormatError: a count above W, an id outside 0..n-1.
    """
    width = ids.shape[1]
    over = np.flatnonzero(counts > width)
    if len(over):
        name = f"{what} count of node {owners[over[0]]}"
        fail(path, name, int(counts[over[0]]), f"a list holds at most {width}")
    out = np.empty((len(ids), width), np.int32)
    repaired = 0
    for part in _blocks(len(ids), width):
        used = np.arange(width) < counts[part, None]
        outside = used & ((ids[part] < 0) | (ids[part] >= n))
        if outside.any():
            row, slot = np.argwhere(outside)[0].tolist()
            name = f"{what} {slot} of node {owners[part.start + row]}"
            fail(path, name, int(ids[part.start + row, slot]), f"nodes are 0..{n - 1}")
        rows = np.where(used, ids[part], -1).astype(np.int32)
        repaired += _drop_loops_and_repeats(rows, owners[part])
        out[part] = rows
    return torch.from_numpy(out), repaired


def _drop_loops_and_repeats(rows: NDArray[np.int32], owners: Ints) -> int:
    """Clean rows [A, W] in place, close the gaps; how many entries went."""
    ordered = np.sort(rows, axis=1)
    repeats = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    hit = np.flatnonzero((rows == owners[:, None]).any(1) | repeats.any(1))
    if not len(hit):
        return 0
    some = rows[hit]
    order = np.argsort(some, axis=1, kind="stable")  # [H, W]; equal ids keep their file order
    ordered = np.take_along_axis(some, order, 1)
    later = np.zeros(some.shape, bool)
    np.put_along_axis(later, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], 1)
    keep = (some >= 0) & ~later & (some != owners[hit, None])
    gone = int(((some >= 0) & ~keep).sum())
    order = np.argsort(~keep, axis=1, kind="stable")
    some = np.where(np.take_along_axis(keep, order, 1), np.take_along_axis(some, order, 1), -1)
    rows[hit] = some
    return gone


def upper_level(
    path: Path, level: int, nodes: Ints, ids: Ints, counts: Ints, levels: Ints
) -> UpperLevel:
    """Check one layer's lists: every neighbor has to reach the layer itself."""
    rows, _ = clean_rows(path, f"layer {level} neighbor", ids, counts, nodes, len(levels))
    reached = np.where(rows.numpy() >= 0, levels[rows.numpy()], level)
    below = np.argwhere(reached < level)
    if len(below):
        row, slot = below[0].tolist()
        name = f"level of node {int(rows[row, slot])}, a layer {level} neighbor of {nodes[row]}"
        fail(path, name, int(reached[row, slot]), f"at least {level}")
    return UpperLevel(torch.from_numpy(nodes.astype(np.int64)), rows)


def gather_bytes(raw: Bytes, starts: Ints, length: int) -> Bytes:
    """Runs of `length` bytes at some offsets, uint8 [A, length]; the caller checked the bounds."""
    out = np.empty((len(starts), length), np.uint8)
    for part in _blocks(len(starts), length):
        out[part] = raw[starts[part, None] + np.arange(length)]
    return out


def checked_rows(index: ForeignIndex, neighbors: Tensor) -> NDArray[np.int32]:
    """A new base layer as int32 [N, W] on the CPU.

    Raises:
        ValueError: another number of nodes, ids out of range, self loops, repeats, gaps.
    """
    if neighbors.ndim != 2 or len(neighbors) != index.n:
        raise ValueError(
            f"neighbors have shape {tuple(neighbors.shape)}; this index has {index.n} nodes, so "
            f"[{index.n}, width] is needed"
        )
    validate(Graph(neighbors, index.entry_node))
    rows: NDArray[np.int32] = neighbors.cpu().numpy()
    return rows


def changed_rows(index: ForeignIndex, rows: NDArray[np.int32]) -> Ints:
    """Nodes whose rows [N, W] differ from `index.neighbors`, rising; widths may differ."""
    width = min(rows.shape[1], index.bound)
    old = index.neighbors.numpy()
    differs = (rows[:, :width] != old[:, :width]).any(1)
    # Padding stands at the end, so a row goes on behind the common width in its first column.
    for longer in (rows, old):
        if longer.shape[1] > width:
            differs |= longer[:, width] >= 0
    return np.flatnonzero(differs)


def edited_rows(index: ForeignIndex, neighbors: Tensor) -> tuple[NDArray[np.int32], Ints]:
    """Check a new base layer against a format of fixed slots, and find what changed.

    Returns:
        int32 [N, W], and the changed nodes, rising.
    Raises:
        ValueError: as `checked_rows`, or a row above the bound.
    """
    rows = checked_rows(index, neighbors)
    degree = (rows >= 0).sum(1)
    longest = int(degree.max())
    if longest > index.bound:
        raise ValueError(
            f"node {int(degree.argmax())} has {longest} neighbors; a row of this {index.format} "
            f"index holds {index.bound}; refine with max_degree at most {index.bound}"
        )
    return rows[:, : index.bound], changed_rows(index, rows)


def patch_lists(
    path: Path, starts: Ints, rows: NDArray[np.int32], count_type: str, ids_at: int
) -> None:
    """Overwrite neighbor lists of fixed size inside a file.

    Args:
        starts: byte offsets of the lists' counts, [A].
        rows: int32 [A, W], -1 padded at the end; only real ids are written.
        count_type: NumPy type of the count. ids_at: bytes from the count to the first id.
    """
    data = np.memmap(path, np.uint8, "r+")
    degree = (rows >= 0).sum(1).astype(count_type)
    wide = degree.dtype.itemsize
    data[starts[:, None] + np.arange(wide)] = degree.view(np.uint8).reshape(-1, wide)
    for slot in range(rows.shape[1]):
        has = rows[:, slot] >= 0
        if not has.any():
            break
        ids = rows[has, slot].astype("<u4").view(np.uint8).reshape(-1, 4)
        data[starts[has, None] + (ids_at + 4 * slot) + np.arange(4)] = ids
    data.flush()
