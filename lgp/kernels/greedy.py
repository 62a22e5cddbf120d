"""Greedy search of one width, compiled: a bounded frontier for one query.

The build and the single-setting search share it. (`lgp.kernels.walk` answers many settings in one
walk and keeps the order of seen nodes; this one keeps the frontier alone and is faster.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Points
from lgp.kernels.backend import (
    distance_of,
    jit,
    key_gap,
    key_of,
    point_arrays,
    prefetch_row,
    run_ranges,
)

FAR = np.float32(np.inf)
AHEAD = 4
"""Vectors asked for before they are needed; 2 to 6 were equally good, 0 cost 1.5 times as much."""


@jit
def insert_key(keys, size, key):  # type: ignore[no-untyped-def]
    """Put a key into an ascending array of `size` keys; returns its place.

    Scanning from the end while shifting: a binary search and a block move took 1.5 times longer.
    """
    place = size
    while place > 0 and keys[place - 1] > key:
        keys[place] = keys[place - 1]
        place -= 1
    keys[place] = key
    return place


@jit
def greedy(  # type: ignore[no-untyped-def]
    neighbors, entry, width, frontier, evicted, visited, near, queries, q, vectors, stamp, mark,
    classes, own, cosine
):  # fmt: skip
    """Search one query; the frontier is left sorted, all of its entries visited.

    A frontier key holds (distance, node << 1 | visited).

    Args:
        evicted: int64, receives the keys of visited nodes that fall off the frontier.
        visited: int32, receives expanded nodes in order; length 0 = not wanted.
        near: float32 [N] with the query's distances, or length 0. It is consumed: a seen node
            reads as infinitely far, so one load tells seen and far nodes alike.
        queries, q: without `near`, the query is row q of queries; own: its node, or -1.
        stamp, mark: int32 [N], `mark` where seen, without `near`.
    Returns:
        (size of the frontier, evicted, visited, distances computed), -1 first when a log is full.
    """
    degree = neighbors.shape[1]
    fresh = np.empty(degree, np.int32)
    tabled = near.shape[0] > 0
    if tabled:
        gap = near[entry]
        near[entry] = FAR
    else:
        gap = distance_of(queries, q, vectors, entry, cosine)
        if own == entry or (own >= 0 and classes.shape[0] and classes[own] == classes[entry]):
            gap = np.float32(0.0)
        stamp[entry] = mark
    frontier[0] = key_of(gap, np.int64(entry) << 1)
    size, at, n_evicted, visits, n_dist = 1, 0, 0, 0, 1
    # Until the frontier is full nothing finite is too far (and a seen node is infinitely far).
    bound = frontier[0] if width == 1 else key_of(FAR, 0) - 1
    limit = key_gap(bound)
    while at < size:
        key = frontier[at]
        if key & 1:
            at += 1
            continue
        frontier[at] = key | 1
        expand = (key & 0xFFFFFFFF) >> 1
        if visited.shape[0]:
            if visits == visited.shape[0]:
                return -1, n_evicted, visits, n_dist
            visited[visits] = expand
        visits += 1
        at += 1
        count = degree
        if not tabled:  # collect first, so that vectors arrive while others are computed
            count = 0
            for r in range(degree):
                target = neighbors[expand, r]
                if target < 0:
                    break
                fresh[count] = target
                count += stamp[target] != mark
                stamp[target] = mark
            n_dist += count
            for r in range(min(count, AHEAD)):
                prefetch_row(vectors, fresh[r])
        for r in range(count):
            if tabled:
                target = neighbors[expand, r]
                if target < 0:
                    break
                gap = near[target]
                near[target] = FAR
                n_dist += gap < FAR
            else:
                target = fresh[r]
                if r + AHEAD < count:
                    prefetch_row(vectors, fresh[r + AHEAD])
                same = own == target
                if own >= 0 and classes.shape[0]:
                    same = classes[own] == classes[target]
                gap = np.float32(0.0)
                if not same:
                    gap = distance_of(queries, q, vectors, target, cosine)
            if gap > limit:
                continue
            key = key_of(gap, np.int64(target) << 1)
            if key > bound:
                continue
            if size == width:
                last = frontier[width - 1]
                if last & 1:
                    if n_evicted == evicted.shape[0]:
                        return -1, n_evicted, visits, n_dist
                    evicted[n_evicted] = last
                    n_evicted += 1
                size -= 1
            place = insert_key(frontier, size, key)
            size += 1
            at = min(at, place)
            if size == width:
                bound = frontier[width - 1]
                limit = key_gap(bound)
    return size, n_evicted, visits, n_dist


PIVOTS = 256


def regions(points: Points, vectors: Tensor | None = None) -> np.ndarray:
    """A rough neighborhood number of every vector, int64 [B]: that of its nearest pivot.

    Queries are independent, so their order changes nothing but time: neighbors searched one
    after the other find each other's vectors in the cache (a third less time at 29 MB of
    vectors). A table needs no such care: all zeros then.

    Args:
        vectors: float32 [B, D]; None = the points themselves.
    """
    wanted = points.vectors if vectors is None else vectors
    if points.table is not None or min(points.n, len(wanted)) <= PIVOTS:
        return np.zeros(len(wanted), np.int64)
    pivots = points.vectors[:: points.n // PIVOTS]
    near = [points.to_pivots(block, pivots) for block in wanted.split(65536)]
    return torch.cat(near).numpy()


@jit
def _search_range(  # type: ignore[no-untyped-def]
    lo, hi, turns, neighbors, entry, width, query_table, queries, points, keys, n_dist
):
    _, vectors, classes, cosine = points
    n, k = neighbors.shape[0], keys.shape[1]
    tabled = query_table.shape[0] > 0
    near = np.empty(n if tabled else 0, np.float32)
    stamp = np.zeros(0 if tabled else n, np.int32)
    frontier = np.empty(width + 1, np.int64)
    evicted = np.empty(n, np.int64)
    none = np.zeros(0, np.int32)
    for turn in range(lo, hi):
        q = turns[turn]
        if tabled:
            for i in range(n):
                near[i] = query_table[q, i]
        size, _, _, spent = greedy(
            neighbors, entry, width, frontier, evicted, none, near, queries, q, vectors, stamp,
            np.int32(turn - lo + 1), classes, -1, cosine,
        )  # fmt: skip
        n_dist[q] = spent
        for i in range(min(size, k)):
            key = frontier[i]
            keys[q, i] = (key >> 32 << 32) | ((key & 0xFFFFFFFF) >> 1)


def search(
    neighbors: Tensor, entry: int, distances: Any, width: int, k: int
) -> tuple[Tensor, Tensor]:
    """Best k of one width per query: keys int64 [Q, k] (`KEY_MAX` pads) and distances spent.

    Args:
        distances: a `lgp.search.QueryDistances` over foreign queries.
    """
    points = distances.points
    no_table = np.zeros((0, 0), np.float32)
    table = no_table if distances.table is None else distances.table.numpy()
    moved = points.shifted(distances.queries).contiguous()
    turns, queries = np.argsort(regions(points, moved), kind="stable"), moved.numpy()
    keys = np.full((len(queries), k), np.iinfo(np.int64).max, np.int64)
    n_dist = np.zeros(len(queries), np.int64)
    rows, arrays = neighbors.numpy(), point_arrays(points)
    run_ranges(
        lambda lo, hi: _search_range(
            lo, hi, turns, rows, entry, width, table, queries, arrays, keys, n_dist
        ),
        len(queries),
    )
    return torch.from_numpy(keys), torch.from_numpy(n_dist)


@jit
def _visited_range(  # type: ignore[no-untyped-def]
    lo, hi, turns, neighbors, entry, width, nodes, points, visited, n_visited
):
    table, vectors, classes, cosine = points
    n = neighbors.shape[0]
    tabled = table.shape[0] > 0
    near = np.empty(n if tabled else 0, np.float32)
    stamp = np.zeros(0 if tabled else n, np.int32)
    frontier = np.empty(width + 1, np.int64)
    evicted = np.empty(visited.shape[1], np.int64)
    for turn in range(lo, hi):
        q = turns[turn]
        node = nodes[q]
        if tabled:
            for i in range(n):
                near[i] = table[node, i]
        size, _, n_visited[q], _ = greedy(
            neighbors, entry, width, frontier, evicted, visited[q], near, vectors, node, vectors,
            stamp, np.int32(turn - lo + 1), classes, node, cosine,
        )  # fmt: skip
        if size < 0:
            return False
    return True


def visited_by(points: Points, neighbors: Tensor, entry: int, nodes: Tensor, width: int) -> Tensor:
    """Nodes that a search for each node expands, in order: int32 [Q, V], -1 pads."""
    room = width + width // 2 + 32
    turns = np.argsort(regions(points)[nodes.numpy()], kind="stable")
    rows, wanted, arrays = neighbors.numpy(), nodes.numpy(), point_arrays(points)
    while True:
        visited = np.full((len(wanted), room), -1, np.int32)
        n_visited = np.zeros(len(wanted), np.int64)
        enough: list[bool] = []

        def work(
            lo: int, hi: int, visited: Any = visited, n_visited: Any = n_visited,
            enough: list[bool] = enough,
        ) -> None:  # fmt: skip
            enough.append(
                _visited_range(
                    lo, hi, turns, rows, entry, width, wanted, arrays, visited, n_visited
                )
            )

        run_ranges(work, len(wanted))
        if all(enough):
            longest = int(n_visited.max()) if len(wanted) else 0
            return torch.from_numpy(visited[:, :longest])
        room *= 2
