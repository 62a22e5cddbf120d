"""The best-first walk, compiled: the twin of `lgp.search._walk_torch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lgp.kernels.backend import (
    EMPTY,
    NO_TABLE,
    between,
    distance_of,
    jit,
    key_of,
    point_arrays,
    run_ranges,
)
from lgp.kernels.greedy import FAR, insert_key

if TYPE_CHECKING:
    from lgp.search import QueryDistances


@jit
def _heap_push(heap, size, key):  # type: ignore[no-untyped-def]
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= key:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = key


@jit
def _heap_pop(heap, size):  # type: ignore[no-untyped-def]
    """Drop the smallest of `size` keys; the heap then holds size - 1."""
    size -= 1
    key = heap[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key


@jit
def _walk_range(  # type: ignore[no-untyped-def]
    lo, hi, neighbors, starts, rows, query_table, queries, points, widths, budget,
    out_keys, n_seen, stops, out_visited, n_visited
):  # fmt: skip
    """Walk queries lo..hi; returns False when a log is too short (the caller lengthens it)."""
    table, vectors, classes, cosine = points
    n, degree = neighbors.shape
    room = out_keys.shape[1]
    tabled = query_table.shape[0] > 0 or (rows.shape[0] > 0 and table.shape[0] > 0)
    near = np.empty(n if tabled else 0, np.float32)
    stamp = np.zeros(0 if tabled else n, np.int32)
    heap = np.empty(room, np.int64)
    n_widths = widths.shape[0]
    widest = widths[n_widths - 1] if n_widths else 0
    ahead = np.empty(widest + 1, np.int64)  # the best visited keys, ascending
    for q in range(lo, hi):
        mark = np.int32(q - lo + 1)
        own = rows[q] if rows.shape[0] else -1
        if query_table.shape[0]:
            for i in range(n):
                near[i] = query_table[q, i]
        elif tabled:
            for i in range(n):
                near[i] = table[own, i]
        count, size, visits, held, met = 0, 0, 0, 0, 0
        node = -1  # nothing expanded yet: the start is seen first
        while True:
            if count:
                best = heap[0] if size else EMPTY
                place = held
                while place > 0 and ahead[place - 1] > best:
                    place -= 1
                while met < n_widths and (size == 0 or place >= widths[met]):
                    stops[q, met] = count
                    met += 1
                if size == 0 or (met == n_widths and count >= budget):
                    break
                _heap_pop(heap, size)
                size -= 1
                if met < n_widths and place < widest:
                    for i in range(min(held, widest - 1), place, -1):
                        ahead[i] = ahead[i - 1]
                    ahead[place] = best
                    held = min(held + 1, widest)
                node = best & 0xFFFFFFFF
                if visits == out_visited.shape[1]:
                    return False
                out_visited[q, visits] = node
                visits += 1
            for r in range(degree if node >= 0 else 1):
                target = neighbors[node, r] if node >= 0 else starts[q]
                if target < 0:
                    break
                if tabled:
                    distance = near[target]
                    near[target] = FAR
                    if distance == FAR:
                        continue
                else:
                    if stamp[target] == mark:
                        continue
                    stamp[target] = mark
                    if own >= 0:
                        distance = between(own, target, table, vectors, classes, cosine)
                    else:
                        distance = distance_of(queries, q, vectors, target, cosine)
                key = key_of(distance, target)
                if count == room:
                    return False
                out_keys[q, count] = key
                count += 1
                # Behind `widest` visited nodes a node is never expanded by any width.
                if budget > 0 or held < widest or key < ahead[widest - 1]:
                    _heap_push(heap, size, key)
                    size += 1
        n_seen[q] = count
        n_visited[q] = visits
    return True


def walk(
    neighbors: Tensor, starts: Tensor, distances: QueryDistances, widths: Sequence[int], budget: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fields of `lgp.search.Walk`."""
    n_queries, n = distances.n_queries, len(neighbors)
    order = np.argsort(np.asarray(widths, np.int64), kind="stable")
    ascending = np.asarray(widths, np.int64)[order]
    rows = np.zeros(0, np.int64) if distances.nodes is None else distances.nodes.numpy()
    query_table = NO_TABLE if distances.table is None else distances.table.numpy()
    queries = NO_TABLE
    if distances.queries is not None:
        queries = distances.points.shifted(distances.queries).contiguous().numpy()
    degree = neighbors.shape[1]
    widest = int(ascending[-1]) if len(ascending) else 0
    room = min(n, max(budget + degree, 2 * widest * degree // 3 + 64))
    visits = min(n, max(widest + widest // 2 + 32, budget // 4))
    while True:
        keys = np.full((n_queries, room), EMPTY, np.int64)
        n_seen = np.zeros(n_queries, np.int64)
        stops = np.full((n_queries, len(widths)), -1, np.int64)
        visited = np.full((n_queries, visits), -1, np.int32)
        n_visited = np.zeros(n_queries, np.int64)
        enough: list[bool] = []

        def work(
            lo: int, hi: int, keys: Any = keys, n_seen: Any = n_seen, stops: Any = stops,
            visited: Any = visited, n_visited: Any = n_visited, enough: list[bool] = enough,
        ) -> None:  # fmt: skip
            enough.append(
                _walk_range(
                    lo, hi, neighbors.numpy(), starts.numpy(), rows, query_table, queries,
                    point_arrays(distances.points), ascending, budget, keys, n_seen, stops,
                    visited, n_visited,
                )
            )  # fmt: skip

        run_ranges(work, n_queries)
        if all(enough):
            break
        room, visits = min(n, 2 * room), min(n, 2 * visits)
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    longest = int(n_visited.max()) if n_queries else 0
    last = int(n_seen.max()) if n_queries else 0
    return (
        torch.from_numpy(keys[:, :last]),
        torch.from_numpy(n_seen),
        torch.from_numpy(stops[:, back]),
        torch.from_numpy(visited[:, :longest].copy()),
    )


@jit
def _best_range(lo, hi, keys, excluded, counts, order, out):  # type: ignore[no-untyped-def]
    k = out.shape[2]
    best = np.empty(k + 1, np.int64)
    for q in range(lo, hi):
        held, at = 0, 0
        for s in order[q]:  # settings by rising count: each prefix extends the one before
            while at < counts[q, s]:
                key = keys[q, at]
                if not (excluded.shape[0] and excluded[q, at]) and (
                    held < k or key < best[held - 1]
                ):
                    insert_key(best, min(held, k - 1), key)
                    held = min(held + 1, k)
                at += 1
            for i in range(held):
                out[q, s, i] = best[i]


def best_seen(keys: Tensor, counts: Tensor, k: int, excluded: Tensor | None) -> Tensor:
    """`lgp.search.best_seen`, compiled: keys int64 [Q, S, k]."""
    out = np.full((*counts.shape, k), EMPTY, np.int64)
    mask = np.zeros((0, 0), np.bool_) if excluded is None else excluded.numpy()
    limits = counts.numpy()
    order = np.argsort(limits, axis=1, kind="stable")
    run_ranges(
        lambda lo, hi: _best_range(lo, hi, keys.numpy(), mask, limits, order, out), len(keys)
    )
    return torch.from_numpy(out)
