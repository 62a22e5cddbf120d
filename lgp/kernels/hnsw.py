"""HNSW selection and search, compiled: the twins of `lgp.hnsw`, same order, same counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Points
from lgp.kernels.backend import (
    EMPTY,
    between,
    distance_of,
    jit,
    key_gap,
    key_of,
    point_arrays,
    run_ranges,
)
from lgp.kernels.greedy import greedy, insert_key, regions

NO_NODES = np.zeros(0, np.int64)


@jit
def _select(pool, size, bound, kept, points):  # type: ignore[no-untyped-def]
    """The heuristic over `size` ascending keys of (distance, node << 1 | clean); returns how many
    were put into `kept`. Two clean ones are known not to occlude each other."""
    table, vectors, classes, cosine = points
    if size < bound:
        for i in range(size):
            kept[i] = pool[i]
        return size
    n_kept = 0
    for i in range(size):
        key = pool[i]
        other = (key & 0xFFFFFFFF) >> 1
        limit = key_gap(key)
        free = True
        for j in range(n_kept):
            if kept[j] & key & 1:
                continue
            mate = (kept[j] & 0xFFFFFFFF) >> 1
            if between(mate, other, table, vectors, classes, cosine) < limit:
                free = False
                break
        if free:
            kept[n_kept] = key
            n_kept += 1
            if n_kept == bound:
                break
    return n_kept


@jit
def _select_range(lo, hi, nodes, candidates, out, points):  # type: ignore[no-untyped-def]
    table, vectors, classes, cosine = points
    bound = out.shape[1]
    pool = np.empty(candidates.shape[1] + 1, np.int64)
    kept = np.empty(bound, np.int64)
    for b in range(lo, hi):
        node = nodes[b]
        size = 0
        for c in range(candidates.shape[1]):
            other = np.int64(candidates[b, c])
            if other < 0 or other == node:
                continue
            gap = between(node, other, table, vectors, classes, cosine)
            insert_key(pool, size, key_of(gap, other << 1))
            size += 1
        distinct = 0
        before = np.int64(-1)
        for i in range(size):
            key = pool[i]
            pool[distinct] = key
            distinct += key != before
            before = key
        n_kept = _select(pool, distinct, bound, kept, points)
        for j in range(n_kept):
            out[b, j] = (kept[j] & 0xFFFFFFFF) >> 1


def select_neighbors(points: Points, nodes: Tensor, candidates: Tensor, bound: int) -> Tensor:
    """`lgp.hnsw.select_neighbors`, compiled."""
    out = np.full((len(nodes), bound), -1, np.int32)
    wanted, pool, arrays = nodes.numpy(), candidates.to(torch.int32).numpy(), point_arrays(points)
    run_ranges(lambda lo, hi: _select_range(lo, hi, wanted, pool, out, arrays), len(nodes))
    return torch.from_numpy(out)


@jit
def _descend(  # type: ignore[no-untyped-def]
    place, rows, top, low, entry, queries, q, own, points, stamp, mark
):
    """Greedy walk of width 1 through layers top .. low + 1: (start on layer low, distances)."""
    table, vectors, classes, cosine = points
    start = np.int64(entry)
    if top <= low:
        return start, 0
    if own >= 0:
        gap = between(own, start, table, vectors, classes, cosine)
    else:
        gap = distance_of(queries, q, vectors, start, cosine)
    best = key_of(gap, start)
    n_dist = 1
    for level in range(top, low, -1):
        stamp[start] = mark + level
        moving = True
        while moving:
            row = place[level - 1, start]
            for r in range(rows.shape[1]):
                target = np.int64(rows[row, r])
                if target < 0:
                    break
                if stamp[target] == mark + level:
                    continue
                stamp[target] = mark + level
                n_dist += 1
                if own >= 0:
                    gap = between(own, target, table, vectors, classes, cosine)
                else:
                    gap = distance_of(queries, q, vectors, target, cosine)
                best = min(best, key_of(gap, target))
            moving = best & 0xFFFFFFFF != start
            start = best & 0xFFFFFFFF
    return start, n_dist


@jit
def _search_range(  # type: ignore[no-untyped-def]
    lo, hi, turns, place, rows, neighbors, entry, width, queries, nodes, points, keys, visited,
    n_dist, n_above, n_visited
):  # fmt: skip
    """Descent and base-layer search; `nodes` of length 0 = rows of `queries` are foreign."""
    table, vectors, classes, cosine = points
    n, top = neighbors.shape[0], place.shape[0]
    tabled = table.shape[0] > 0 and nodes.shape[0] > 0
    near = np.empty(n if tabled else 0, np.float32)
    stamp = np.zeros(n, np.int32)
    frontier = np.empty(width + 1, np.int64)
    evicted = np.empty(n, np.int64)
    for turn in range(lo, hi):
        q = turns[turn]
        own = np.int64(-1)
        row = q
        if nodes.shape[0]:
            own = nodes[q]
            row = own
        if tabled:
            for i in range(n):
                near[i] = table[own, i]
        mark = np.int32((turn - lo) * (top + 1) + 1)
        start, n_above[q] = _descend(
            place, rows, top, 0, entry, queries, row, own, points, stamp, mark
        )
        size, _, n_visited[q], n_dist[q] = greedy(
            neighbors, start, width, frontier, evicted, visited[q], near, queries, row, vectors,
            stamp, mark, classes, own, cosine,
        )  # fmt: skip
        if size < 0:
            return False
        for i in range(min(size, keys.shape[1])):
            key = frontier[i]
            keys[q, i] = (key >> 32 << 32) | ((key & 0xFFFFFFFF) >> 1)
    return True


def search_hnsw(
    points: Points, neighbors: Tensor, stairs: tuple[Tensor, Tensor], entry: int, queries: Tensor,
    width: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Best k per query: keys int64 [Q, k] (`KEY_MAX` pads), base distances, those above."""
    place, rows = (part.numpy() for part in stairs)
    moved = points.shifted(queries).contiguous()
    turns, vectors = np.argsort(regions(points, moved), kind="stable"), moved.numpy()
    keys = np.full((len(vectors), k), EMPTY, np.int64)
    n_dist, n_above, unused = (np.zeros(len(vectors), np.int64) for _ in range(3))
    none = np.zeros((len(vectors), 0), np.int32)
    base, arrays = neighbors.numpy(), point_arrays(points)
    run_ranges(
        lambda lo, hi: _search_range(
            lo, hi, turns, place, rows, base, entry, width, vectors, NO_NODES, arrays, keys, none,
            n_dist, n_above, unused,
        ),
        len(vectors),
    )  # fmt: skip
    return torch.from_numpy(keys), torch.from_numpy(n_dist), torch.from_numpy(n_above)


def visited_by_hnsw(
    points: Points, neighbors: Tensor, stairs: tuple[Tensor, Tensor], entry: int, nodes: Tensor,
    width: int
) -> Tensor:  # fmt: skip
    """Base-layer nodes that a search for each node expands, in order: int32 [Q, V], -1 pads."""
    place, rows = (part.numpy() for part in stairs)
    wanted, base, arrays = nodes.numpy(), neighbors.numpy(), point_arrays(points)
    turns = np.argsort(regions(points)[wanted], kind="stable")
    no_keys = np.zeros((len(wanted), 0), np.int64)
    n_dist, n_above, n_visited = (np.zeros(len(wanted), np.int64) for _ in range(3))
    room = width + width // 2 + 32
    while True:
        visited = np.full((len(wanted), room), -1, np.int32)
        enough: list[bool] = []

        def work(lo: int, hi: int, visited: Any = visited, enough: list[bool] = enough) -> None:
            enough.append(
                _search_range(
                    lo, hi, turns, place, rows, base, entry, width, arrays[1], wanted, arrays,
                    no_keys, visited, n_dist, n_above, n_visited,
                )
            )  # fmt: skip

        run_ranges(work, len(wanted))
        if all(enough):
            return torch.from_numpy(visited[:, : int(n_visited.max())])
        room *= 2
