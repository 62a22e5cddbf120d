"""The Vamana build, compiled: the twin of `lgp.vamana.TorchBuilder`, same edges, same order.

Three things make it fast. The walk's visited nodes leave it sorted with their distances, so the
prune starts at once. Rows keep the distances to their owner. And a row remembers how many of its
entries came out of one prune together: those occlude none of each other (a later alpha is never
smaller), so a prune that adds reciprocal edges compares pairs with a new edge only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Points
from lgp.kernels.backend import (
    between,
    jit,
    key_gap,
    key_of,
    occludes,
    point_arrays,
    run_ranges,
)
from lgp.kernels.greedy import greedy, regions


@jit
def _sort_small(keys, size):  # type: ignore[no-untyped-def]
    """Sort the first `size` keys in place, by insertion: they are few."""
    for i in range(1, size):
        key = keys[i]
        at = i
        while at > 0 and keys[at - 1] > key:
            keys[at] = keys[at - 1]
            at -= 1
        keys[at] = key


@jit
def _build_range(  # type: ignore[no-untyped-def]
    lo, hi, turns, anchors, neighbors, gaps, entry, points, width, slack, alpha, rows, row_gaps,
    visited, n_visited
):  # fmt: skip
    """Search, then RobustPrune over visited nodes and the current row, for anchors lo..hi.

    Returns False when a log is too short (the caller lengthens it).
    """
    table, vectors, classes, cosine = points
    n, degree = neighbors.shape
    tabled = table.shape[0] > 0
    near = np.empty(n if tabled else 0, np.float32)
    stamp = np.zeros(0 if tabled else n, np.int32)
    frontier = np.empty(width + 1, np.int64)
    pool = np.empty(width + degree + slack, np.int64)
    for turn in range(lo, hi):
        b = turns[turn]
        node = anchors[b]
        if tabled:  # reading a row in order is far cheaper than the walk's scattered misses
            for i in range(n):
                near[i] = table[node, i]
        size, evicted, visits, _ = greedy(
            neighbors, entry, width, frontier, pool[:slack], visited[b], near, vectors, node,
            vectors, stamp, np.int32(turn - lo + 1), classes, node, cosine,
        )  # fmt: skip
        if size < 0:
            return False
        n_visited[b] = visits
        # The candidates, ascending: the frontier, what fell off it, and the current row.
        held = evicted
        extra = evicted
        for r in range(degree):
            if neighbors[node, r] < 0:
                break
            pool[extra] = key_of(gaps[node, r], np.int64(neighbors[node, r]) << 1) | 1
            extra += 1
        _sort_small(pool, extra)
        held = size + extra
        left, right = size - 1, extra - 1  # merge from the back, in place
        for i in range(held - 1, -1, -1):
            if left >= 0 and (right < 0 or frontier[left] > pool[right]):
                pool[i] = frontier[left]
                left -= 1
            elif left < 0:
                break
            else:
                pool[i] = pool[right]
                right -= 1
        # Drop repeats and the node itself.
        left = 0
        before = np.int64(-1)
        for i in range(held):
            key = pool[i]
            pool[left] = key
            left += key != before and (key & 0xFFFFFFFF) >> 1 != node
            before = key
        kept = 0
        if table.shape[0]:
            # Each kept node filters all candidates left: independent loads, no branch to miss.
            while left > 0 and kept < degree:
                mate = (pool[0] & 0xFFFFFFFF) >> 1
                rows[b, kept] = mate
                row_gaps[b, kept] = key_gap(pool[0])
                kept += 1
                alive = 0
                for i in range(1, left):
                    key = pool[i]
                    other = (key & 0xFFFFFFFF) >> 1
                    pool[alive] = key
                    stays = not alpha * table[mate, other] < key_gap(key)
                    if classes.shape[0]:
                        stays = stays and classes[mate] != classes[other]
                    alive += stays
                left = alive
        else:
            # Distances cost more than branches: stop at the first kept node that occludes.
            for i in range(left):
                other = (pool[i] & 0xFFFFFFFF) >> 1
                limit = key_gap(pool[i])
                free = True
                for j in range(kept):
                    mate = rows[b, j]
                    if occludes(mate, other, limit, alpha, table, vectors, classes, cosine):
                        free = False
                        break
                if free:
                    rows[b, kept] = other
                    row_gaps[b, kept] = limit
                    kept += 1
                    if kept == degree:
                        break
        for j in range(kept, degree):
            rows[b, j] = -1
    return True


@jit
def _new_edges(anchors, neighbors, gaps, protected):  # type: ignore[no-untyped-def]
    """Reciprocals to insert, sorted by (target, distance, source).

    Returns:
        (targets, keys of (distance, source), shields, start of each target's group and the end).
    """
    n_anchors, degree = len(anchors), neighbors.shape[1]
    targets = np.empty(n_anchors * degree, np.int64)
    keys = np.empty(n_anchors * degree, np.int64)
    shields = np.empty(n_anchors * degree, np.bool_)
    count = 0
    for b in range(n_anchors):
        node = anchors[b]
        for r in range(degree):
            target = neighbors[node, r]
            if target < 0:
                break
            known = False
            for s in range(degree):
                if neighbors[target, s] == node:
                    known = True
                    break
            if not known:
                targets[count] = target
                keys[count] = key_of(gaps[node, r], node)
                shields[count] = protected.shape[0] > 0 and protected[b, r]
                count += 1
    order = np.argsort(keys[:count])
    order = order[np.argsort(targets[:count][order], kind="mergesort")]
    targets, keys, shields = targets[:count][order], keys[:count][order], shields[:count][order]
    starts = np.empty(count + 1, np.int64)
    groups = 0
    for i in range(count):
        if i == 0 or targets[i] != targets[i - 1]:
            starts[groups] = i
            groups += 1
    starts[groups] = count
    return targets, keys, shields, starts[: groups + 1]


@jit
def append_if_room(node, keys, neighbors, gaps):  # type: ignore[no-untyped-def]
    """Append edges back, keys of (distance, source), to a row if all of them fit.

    Returns:
        (entries the row held before, whether they were appended).
    """
    held = 0
    while held < neighbors.shape[1] and neighbors[node, held] >= 0:
        held += 1
    if held + len(keys) > neighbors.shape[1]:
        return held, False
    for i in range(len(keys)):
        neighbors[node, held + i] = keys[i] & 0xFFFFFFFF
        gaps[node, held + i] = key_gap(keys[i])
    return held, True


@jit
def _insert_range(  # type: ignore[no-untyped-def]
    lo, hi, targets, keys, shields, starts, neighbors, gaps, clean, points, alpha
):
    """Insert the reciprocals of groups lo..hi: append where they fit, else one prune."""
    table, vectors, classes, cosine = points
    degree = neighbors.shape[1]
    for g in range(lo, hi):
        first, last = starts[g], starts[g + 1]
        node = targets[first]
        held, fitted = append_if_room(node, keys[first:last], neighbors, gaps)
        if fitted:
            continue
        # Bit 0: pruned together before; bit 1: protected. Ids are shifted by two.
        pool = np.empty(held + last - first, np.int64)
        for r in range(held):
            tag = np.int64(1) if r < clean[node] else np.int64(0)
            pool[r] = key_of(gaps[node, r], 0) | (np.int64(neighbors[node, r]) << 2) | tag
        guarded = False
        for i in range(first, last):
            tag = np.int64(0)
            if shields[i]:
                tag = np.int64(2)
                guarded = True
            pool[held + i - first] = (keys[i] >> 32 << 32) | ((keys[i] & 0xFFFFFFFF) << 2) | tag
        if len(pool) <= 64:
            _sort_small(pool, len(pool))
        else:
            pool.sort()
        kept = np.empty(degree, np.int64)
        n_kept = 0
        for turn in range(2 if guarded else 1):
            for i in range(len(pool)):
                if n_kept == degree:
                    break
                key = pool[i]
                if guarded and ((key & 2) != 0) != (turn == 0):
                    continue
                other = (key & 0xFFFFFFFF) >> 2
                limit = key_gap(key)
                free = True
                if key & 2 == 0:
                    for j in range(n_kept):
                        if kept[j] & key & 1:
                            continue
                        mate = (kept[j] & 0xFFFFFFFF) >> 2
                        if occludes(mate, other, limit, alpha, table, vectors, classes, cosine):
                            free = False
                            break
                if free:
                    kept[n_kept] = key
                    n_kept += 1
        for j in range(degree):
            if j < n_kept:
                neighbors[node, j] = (kept[j] & 0xFFFFFFFF) >> 2
                gaps[node, j] = key_gap(kept[j])
            else:
                neighbors[node, j] = -1
        clean[node] = 0 if guarded else n_kept


@jit
def _row_gaps(nodes, rows, points, out):  # type: ignore[no-untyped-def]
    table, vectors, classes, cosine = points
    for b in range(len(nodes)):
        for r in range(rows.shape[1]):
            if rows[b, r] >= 0:
                out[b, r] = between(nodes[b], rows[b, r], table, vectors, classes, cosine)


class CompiledBuilder:
    """`lgp.vamana.TorchBuilder`, compiled; holds the rows' distances and clean counts."""

    def __init__(self, points: Points, neighbors: Tensor, entry: int, width: int) -> None:
        if points.n >= 1 << 29:
            raise ValueError(f"{points.n} nodes; the compiled build holds fewer than 2^29")
        self.neighbors = neighbors
        self._points = point_arrays(points)
        self._rows = neighbors.numpy()
        self._entry, self._width = entry, width
        self._gaps = np.zeros(self._rows.shape, np.float32)
        self._clean = np.zeros(points.n, np.int32)
        every = np.arange(points.n)
        run_ranges(
            lambda lo, hi: _row_gaps(
                every[lo:hi], self._rows[lo:hi], self._points, self._gaps[lo:hi]
            ),
            points.n,
        )
        self._batch_gaps = self._gaps[:0]
        self._region = regions(points)

    def pruned_rows(
        self, anchors: Tensor, alpha: float, keep_visited: bool
    ) -> tuple[Tensor, Tensor]:
        """Rows int32 [A, R] after search and prune, and visited nodes int32 [A, V] if kept."""
        nodes, degree = anchors.numpy(), self._rows.shape[1]
        rows = np.empty((len(nodes), degree), np.int32)
        self._batch_gaps = np.empty((len(nodes), degree), np.float32)
        turns = np.argsort(self._region[nodes], kind="stable")
        room = self._width + self._width // 2 + 32
        while True:
            visited = np.full((len(nodes), room if keep_visited else 0), -1, np.int32)
            n_visited = np.zeros(len(nodes), np.int64)
            short: list[bool] = []

            def work(
                lo: int, hi: int, room: int = room, visited: Any = visited,
                n_visited: Any = n_visited, short: list[bool] = short,
            ) -> None:  # fmt: skip
                enough = _build_range(
                    lo, hi, turns, nodes, self._rows, self._gaps, self._entry, self._points,
                    self._width, room, np.float32(alpha), rows, self._batch_gaps, visited,
                    n_visited,
                )  # fmt: skip
                if not enough:
                    short.append(True)

            run_ranges(work, len(nodes))
            if not short:
                break
            room *= 2
        longest = int(n_visited.max()) if keep_visited else 0
        return torch.from_numpy(rows), torch.from_numpy(visited[:, :longest])

    def write(self, anchors: Tensor, rows: Tensor, changed: Tensor | None = None) -> None:
        """Set the anchors' rows; `changed` rows (bool [A]) are not the prune's any more."""
        nodes, new = anchors.numpy(), rows.numpy()
        self._rows[nodes] = new
        if changed is None:
            self._gaps[nodes] = self._batch_gaps
            self._clean[nodes] = (new >= 0).sum(1)
            return
        at = changed.numpy().nonzero()[0]
        gaps = np.zeros((len(at), new.shape[1]), np.float32)
        _row_gaps(nodes[at], new[at], self._points, gaps)
        self._gaps[nodes[at]] = gaps
        self._clean[nodes[at]] = 0

    def add_reciprocals(self, anchors: Tensor, alpha: float, protected: Tensor | None) -> None:
        """Insert the edges back from every neighbor of the anchors, grouped by target."""
        shield = np.zeros((0, 0), np.bool_) if protected is None else protected.numpy()
        targets, keys, shields, starts = _new_edges(anchors.numpy(), self._rows, self._gaps, shield)
        run_ranges(
            lambda lo, hi: _insert_range(
                lo, hi, targets, keys, shields, starts, self._rows, self._gaps, self._clean,
                self._points, np.float32(alpha),
            ),
            len(starts) - 1,
            smallest=64,
        )  # fmt: skip
