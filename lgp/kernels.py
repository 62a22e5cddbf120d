"""Compiled CPU twins of the walk and the prune (numba), chosen automatically on the CPU.

Same inputs, same outputs, same order and tie rules as the torch functions that call them; no
policy of their own. Work is cut into ranges of rows that threads run without the GIL; rows are
independent, so the thread count cannot change a bit. `LGP_BACKEND=torch` turns them off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Metric, Points

try:
    import numba
except ImportError:  # an optional dependency: the torch functions serve every device
    numba = None

if TYPE_CHECKING:
    from lgp.search import QueryDistances

_backend: ContextVar[str] = ContextVar("backend", default=os.environ.get("LGP_BACKEND", "auto"))
_EMPTY = 0x7FFFFFFFFFFFFFFF


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Choose "torch" or "auto" (numba on the CPU where it is installed) for a while."""
    token = _backend.set(name)
    try:
        yield
    finally:
        _backend.reset(token)


def usable(tensor: Tensor) -> bool:
    """Whether the compiled kernels serve this tensor."""
    return numba is not None and tensor.device.type == "cpu" and _backend.get() != "torch"


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for the CPU; "reassoc" lets dot products use SIMD, in one fixed order."""
    if numba is None:
        return function
    options = {"nogil": True, "cache": True, "fastmath": {"reassoc", "contract", "nsz"}}
    return numba.njit(**options)(function)  # type: ignore[no-any-return]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def run_ranges(work: Callable[[int, int], None], n: int, smallest: int = 8) -> None:
    """Call work(lo, hi) over range(n), on as many threads as torch uses."""
    threads = torch.get_num_threads()
    step = max(smallest, -(-n // (4 * threads)))
    ranges = [(lo, min(n, lo + step)) for lo in range(0, n, step)]
    if threads == 1 or len(ranges) == 1:
        for lo, hi in ranges:
            work(lo, hi)
    else:
        list(_pool(threads).map(lambda r: work(*r), ranges))


# --- distances ------------------------------------------------------------------------------


@jit
def _distance(a, b, cosine):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    if cosine:
        for i in range(a.shape[0]):
            total += a[i] * b[i]
        total = np.float32(1.0) - total
    else:
        for i in range(a.shape[0]):
            difference = a[i] - b[i]
            total += difference * difference
    return total if total > 0 else np.float32(0.0)


@jit
def _key(distance, node):  # type: ignore[no-untyped-def]
    return (np.int64(np.float32(distance).view(np.int32)) << 32) | np.int64(node)


@jit
def _between(a, b, table, vectors, classes, cosine):  # type: ignore[no-untyped-def]
    """D between two nodes, from the table where there is one."""
    if table.shape[0] > 0:
        return table[a, b]
    if a == b or (classes.shape[0] > 0 and classes[a] == classes[b]):
        return np.float32(0.0)
    return _distance(vectors[a], vectors[b], cosine)


_NO_TABLE = np.zeros((0, 0), np.float32)
_NO_CLASSES = np.zeros(0, np.int32)


def point_arrays(points: Points) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """(table, vectors, classes, cosine) of the points as the kernels take them."""
    table = _NO_TABLE if points.table is None else points.table.numpy()
    classes = _NO_CLASSES if points.duplicate_class is None else points.duplicate_class.numpy()
    return table, points.vectors.numpy(), classes, points.metric is Metric.cosine


# --- the walk -------------------------------------------------------------------------------


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
    lo, hi, neighbors, entry, rows, query_table, queries, points, widths, budget, log,
    out_keys, n_seen, stops, out_visited, n_visited
):  # fmt: skip
    """Walk queries lo..hi; returns False when a log is too short (the caller lengthens it)."""
    table, vectors, classes, cosine = points
    n, degree = neighbors.shape
    room = out_keys.shape[1]
    stamp = np.zeros(n, np.int32)
    heap = np.empty(room, np.int64)
    n_widths = widths.shape[0]
    widest = widths[n_widths - 1] if n_widths else 0
    ahead = np.empty(widest + 1, np.int64)  # the best visited keys, ascending
    for q in range(lo, hi):
        mark = np.int32(q - lo + 1)
        own = rows[q] if rows.shape[0] else -1
        count, size, visits, held, met = 0, 0, 0, 0, 0
        step_row = neighbors[entry]
        first = True
        while True:
            if first:
                fresh = 1
            else:
                best = heap[0] if size else _EMPTY
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
                    last = min(held, widest - 1)
                    for i in range(last, place, -1):
                        ahead[i] = ahead[i - 1]
                    ahead[place] = best
                    held = min(held + 1, widest)
                node = best & 0xFFFFFFFF
                if visits == out_visited.shape[1]:
                    return False
                out_visited[q, visits] = node
                visits += 1
                step_row = neighbors[node]
                fresh = degree
            for r in range(fresh):
                target = entry if first else step_row[r]
                if target < 0:
                    break
                if stamp[target] == mark:
                    continue
                stamp[target] = mark
                if query_table.shape[0]:
                    distance = query_table[q, target]
                elif own >= 0:
                    distance = _between(own, target, table, vectors, classes, cosine)
                else:
                    distance = _distance(queries[q], vectors[target], cosine)
                key = _key(distance, target)
                if count == room:
                    return False
                if log:
                    out_keys[q, count] = key
                count += 1
                # Behind `widest` visited nodes a node is never expanded by any width.
                if budget > 0 or held < widest or key < ahead[widest - 1]:
                    _heap_push(heap, size, key)
                    size += 1
            first = False
        n_seen[q] = count
        n_visited[q] = visits
    return True


def walk(
    neighbors: Tensor,
    entry: int,
    distances: QueryDistances,
    widths: Sequence[int],
    budget: int,
    log: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The fields of `lgp.search.Walk`; with log=False nodes and distances come back empty."""
    n_queries, n = distances.n_queries, len(neighbors)
    order = np.argsort(np.asarray(widths, np.int64), kind="stable")
    ascending = np.asarray(widths, np.int64)[order]
    no_rows = np.zeros(0, np.int64)
    rows = no_rows if distances.nodes is None else distances.nodes.numpy()
    query_table = _NO_TABLE if distances.table is None else distances.table.numpy()
    if distances.nodes is not None and distances.points.table is not None:
        query_table = _NO_TABLE  # read the N x N table in place
    queries = _NO_TABLE if distances.queries is None else distances.queries.numpy()
    degree = neighbors.shape[1]
    widest = int(ascending[-1]) if len(ascending) else 0
    room = min(n, max(budget + degree, 2 * widest * degree // 3 + 64))
    visits = min(n, max(widest + widest // 2 + 32, budget // 4))
    while True:
        keys = np.full((n_queries, room if log else 0), _EMPTY, np.int64)
        if not log:
            keys = np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (n_queries, room), (0, 0))
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
                    lo, hi, neighbors.numpy(), entry, rows, query_table, queries,
                    point_arrays(distances.points), ascending, budget, log, keys, n_seen, stops,
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
    last = int(n_seen.max()) if n_queries and log else 0
    packed = torch.from_numpy(keys[:, :last] if log else np.zeros((n_queries, 0), np.int64))
    return (
        torch.where(packed == _EMPTY, -1, packed & 0xFFFFFFFF).to(torch.int32),
        torch.where(
            packed == _EMPTY, torch.inf, (packed >> 32).to(torch.int32).view(torch.float32)
        ),
        torch.from_numpy(n_seen),
        torch.from_numpy(stops[:, back]),
        torch.from_numpy(visited[:, :longest].copy()),
    )


# --- the prune ------------------------------------------------------------------------------


@jit
def _prune_range(  # type: ignore[no-untyped-def]
    lo, hi, nodes, candidates, protected, alpha, max_degree, points, out
):
    table, vectors, classes, cosine = points
    keys = np.empty(candidates.shape[1], np.int64)
    shield = np.zeros(candidates.shape[1], np.bool_)
    for b in range(lo, hi):
        node = nodes[b]
        held = 0
        for c in range(candidates.shape[1]):
            other = candidates[b, c]
            if other >= 0 and other != node:
                keys[held] = _key(_between(node, other, table, vectors, classes, cosine), other)
                held += 1
        keys[:held].sort()
        if protected.shape[0]:
            for i in range(held):
                shield[i] = False
                for j in range(protected.shape[1]):
                    if protected[b, j] == keys[i] & 0xFFFFFFFF:
                        shield[i] = True
        kept = 0
        for turn in range(2 if protected.shape[0] else 1):
            for i in range(held):
                if kept == max_degree:
                    break
                if i > 0 and keys[i] == keys[i - 1]:
                    continue
                if protected.shape[0] and shield[i] != (turn == 0):
                    continue
                other = keys[i] & 0xFFFFFFFF
                limit = np.int32(keys[i] >> 32).view(np.float32)
                free = True
                if turn == 1 or not protected.shape[0]:
                    for j in range(kept):
                        mate = out[b, j]
                        if classes.shape[0] and classes[mate] == classes[other]:
                            free = False
                            break
                        gap = _between(mate, other, table, vectors, classes, cosine)
                        if alpha * gap < limit:
                            free = False
                            break
                if free:
                    out[b, kept] = other
                    kept += 1


_NO_IDS = np.zeros((0, 0), np.int32)


def robust_prune(
    points: Points,
    nodes: Tensor,
    candidates: Tensor,
    alpha: float,
    max_degree: int,
    protected: Tensor | None,
) -> Tensor:
    """`lgp.prune.robust_prune`, compiled."""
    out = np.full((len(nodes), max_degree), -1, np.int32)
    shield = _NO_IDS if protected is None else protected.to(torch.int32).numpy()
    arrays = point_arrays(points)
    ids, pool = nodes.numpy(), candidates.to(torch.int32).numpy()
    slack = np.float32(alpha)
    run_ranges(
        lambda lo, hi: _prune_range(lo, hi, ids, pool, shield, slack, max_degree, arrays, out),
        len(nodes),
    )
    return torch.from_numpy(out)
