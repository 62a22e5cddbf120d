"""The HNSW build, compiled: the twin of `lgp.hnsw_build.TorchInserter`, same edges, same order.

Two things make it fast. Rows keep the distances to their owner. And a row remembers how many of
its entries came out of one selection together: those occlude none of each other, so a selection
that adds edges back compares pairs with a new edge only.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Points
from lgp.kernels.backend import (
    between,
    jit,
    key_gap,
    key_of,
    point_arrays,
    run_ranges,
)
from lgp.kernels.build import append_if_room
from lgp.kernels.greedy import greedy, insert_key, regions
from lgp.kernels.hnsw import _descend, _select


@jit
def _insert_range(  # type: ignore[no-untyped-def]
    lo, hi, turns, anchors, levels, place, upper, base, entry, top, width, points, out, gaps, clean
):
    """Descend, then search and select on each layer of anchors lo..hi.

    Args:
        upper: int32 [L, N, M]; place: int32 [L, N], the rows of all layers counted through.
    """
    table, vectors, classes, cosine = points
    n, m = base.shape[0], out.shape[2]
    tabled = table.shape[0] > 0
    flat = upper.reshape(upper.shape[0] * n, m)
    near = np.empty(n if tabled else 0, np.float32)
    stamp = np.zeros(n, np.int32)
    frontier = np.empty(width + 1, np.int64)
    evicted = np.empty(n, np.int64)
    none = np.zeros(0, np.int32)
    kept = np.empty(m, np.int64)
    for turn in range(lo, hi):
        b = turns[turn]
        node = anchors[b]
        own = min(np.int64(levels[b]), top)
        mark = np.int32((turn - lo) * (top + 1) + 1)
        start, _ = _descend(place, flat, top, own, entry, vectors, node, node, points, stamp, mark)
        for level in range(own, -1, -1):
            if tabled:
                for i in range(n):
                    near[i] = table[node, i]
            layer = base if level == 0 else upper[level - 1]
            size, _, _, _ = greedy(
                layer, start, width, frontier, evicted, none, near, vectors, node, vectors, stamp,
                np.int32(mark + level), classes, node, cosine,
            )  # fmt: skip
            for i in range(size):
                frontier[i] &= ~np.int64(1)  # "visited" there, "clean" here
            start = (frontier[0] & 0xFFFFFFFF) >> 1  # a mate has no row to start from
            for a in range(b):  # earlier mates of the batch, which the snapshot lacks
                if levels[a] >= level:
                    gap = between(node, anchors[a], table, vectors, classes, cosine)
                    key = key_of(gap, anchors[a] << 1)
                    if size < width or key < frontier[size - 1]:
                        insert_key(frontier, size, key)
                        size = min(size + 1, width)
            n_kept = _select(frontier, size, m, kept, points)
            for j in range(n_kept):
                out[b, level, j] = (kept[j] & 0xFFFFFFFF) >> 1
                gaps[b, level, j] = key_gap(kept[j])
            clean[b, level] = n_kept if size >= m else 0


@jit
def _link_range(  # type: ignore[no-untyped-def]
    lo, hi, targets, keys, starts, neighbors, gaps, clean, points
):
    """Insert the edges back of groups lo..hi: append where they fit, else one selection."""
    bound = neighbors.shape[1]
    kept = np.empty(bound, np.int64)
    for g in range(lo, hi):
        first, last = starts[g], starts[g + 1]
        node = targets[first]
        held, fitted = append_if_room(node, keys[first:last], neighbors, gaps)
        if fitted:
            continue
        pool = np.empty(held + last - first + 1, np.int64)
        size = 0
        for r in range(held):
            tag = np.int64(1) if r < clean[node] else np.int64(0)
            insert_key(pool, size, key_of(gaps[node, r], np.int64(neighbors[node, r]) << 1) | tag)
            size += 1
        for i in range(first, last):
            insert_key(pool, size, (keys[i] >> 32 << 32) | ((keys[i] & 0xFFFFFFFF) << 1))
            size += 1
        n_kept = _select(pool, size, bound, kept, points)
        for j in range(bound):
            neighbors[node, j] = -1
            if j < n_kept:
                neighbors[node, j] = (kept[j] & 0xFFFFFFFF) >> 1
                gaps[node, j] = key_gap(kept[j])
        clean[node] = n_kept


class CompiledInserter:
    """`lgp.hnsw.TorchInserter`, compiled; holds the rows' distances and clean counts."""

    def __init__(self, points: Points, base: Tensor, upper: Tensor, width: int) -> None:
        n, self._m, self._width = points.n, upper.shape[2], width
        self._points = point_arrays(points)
        self._upper = upper.numpy()
        self._layers = [base.numpy(), *self._upper]
        self._gaps = [np.zeros(layer.shape, np.float32) for layer in self._layers]
        self._clean = [np.zeros(n, np.int32) for _ in self._layers]
        self._place = np.arange(len(upper) * n, dtype=np.int64).reshape(len(upper), n)
        self._region = regions(points)
        self._batch_gaps = np.zeros((0, 0, 0), np.float32)
        self._batch_clean = np.zeros((0, 0), np.int32)
        self._batch_levels = np.zeros(0, np.int32)

    def new_rows(self, anchors: Tensor, levels: Tensor, entry: int, top: int) -> Tensor:
        """Selected neighbors on each layer up to `top`, int32 [A, top + 1, M], -1 pads."""
        nodes, own = anchors.numpy(), levels.numpy()
        out = np.full((len(nodes), top + 1, self._m), -1, np.int32)
        self._batch_gaps = np.zeros(out.shape, np.float32)
        self._batch_clean = np.zeros(out.shape[:2], np.int32)
        self._batch_levels = own
        turns = np.argsort(self._region[nodes], kind="stable")
        run_ranges(
            lambda lo, hi: _insert_range(
                lo, hi, turns, nodes, own, self._place, self._upper, self._layers[0], entry, top,
                self._width, self._points, out, self._batch_gaps, self._batch_clean,
            ),
            len(nodes),
        )  # fmt: skip
        return torch.from_numpy(out)

    def link(self, level: int, anchors: Tensor, rows: Tensor) -> None:
        """Write the rows that `new_rows` gave for a layer and insert the edges back."""
        nodes, new = anchors.numpy(), rows.numpy()
        here = self._batch_levels >= level
        new_gaps = self._batch_gaps[here, level]
        table, gaps, clean = self._layers[level], self._gaps[level], self._clean[level]
        table[nodes, : self._m] = new
        gaps[nodes, : self._m] = new_gaps
        clean[nodes] = self._batch_clean[here, level]
        at, slot = (new >= 0).nonzero()
        if len(at) == 0:
            return
        targets = new[at, slot].astype(np.int64)
        keys = (new_gaps[at, slot].view(np.int32).astype(np.int64) << 32) | nodes[at]
        order = np.lexsort((keys, targets))
        targets, keys = targets[order], keys[order]
        first = np.flatnonzero(np.append(True, targets[1:] != targets[:-1]))
        starts = np.append(first, len(targets))
        run_ranges(
            lambda lo, hi: _link_range(
                lo, hi, targets, keys, starts, table, gaps, clean, self._points
            ),
            len(starts) - 1,
            smallest=64,
        )
