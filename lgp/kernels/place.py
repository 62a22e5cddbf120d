"""The placement of picks and the edges back, compiled.

Twins of `lgp.refine.replace.place` and of the loop of `lgp.refine.post.flat_reciprocals`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Points
from lgp.kernels.backend import (
    EMPTY,
    between,
    jit,
    key_gap,
    key_of,
    occludes,
    point_arrays,
    run_ranges,
)
from lgp.kernels.greedy import insert_key


@jit
def _victim(  # type: ignore[no-untyped-def]
    row, deg, anchor, shielded, neighbors, count, stamp, mark, points, by_coverage, by_gap
):
    """Slot to give up and its unique coverage; -1 where every slot is shielded.

    count, stamp: how many rows of N(i) hold a node; `mark` tells counts of this call.
    """
    table, vectors, classes, cosine = points
    degree = neighbors.shape[1]
    for r in range(deg):
        for s in range(degree):
            hop = neighbors[row[r], s]
            if hop < 0:
                break
            if stamp[hop] != mark:
                stamp[hop] = mark
                count[hop] = 0
            count[hop] += 1
    for r in range(deg):  # N(i) and i never count as brought by anyone
        stamp[row[r]] = mark
        count[row[r]] = degree + 1
    stamp[anchor] = mark
    count[anchor] = degree + 1
    best, best_key, best_unique, first_unique = -1, np.int64(EMPTY), 0, 0
    for r in range(deg):
        if shielded[r]:
            continue
        unique = 0
        for s in range(degree):
            hop = neighbors[row[r], s]
            if hop < 0:
                break
            unique += count[hop] == 1
        if by_coverage and best >= 0 and unique > first_unique:
            continue
        gap = np.float32(0.0)
        if by_gap:
            gap = np.float32(np.inf)
            for s in range(deg):
                if s != r:
                    gap = min(gap, between(row[r], row[s], table, vectors, classes, cosine))
        key = key_of(gap, row[r])
        if best < 0 or (by_coverage and unique < first_unique) or key < best_key:
            best, best_key, best_unique, first_unique = r, key, unique, unique
    return best, best_unique


@jit
def _place_range(  # type: ignore[no-untyped-def]
    lo, hi, neighbors, anchors, picks, quota, min_gain, rule, fixed, points, rows, new, placed,
    log
):  # fmt: skip
    """Place the picks of anchors lo..hi; log[a, e] = slot, removed, added, gain, unique."""
    n, degree = neighbors.shape
    reach = np.zeros(n, np.int32)
    count = np.zeros(n, np.int32)
    stamp = np.zeros(n, np.int32)
    mark = np.int32(0)
    for a in range(lo, hi):
        anchor = anchors[a]
        deg = 0
        while deg < degree and rows[a, deg] >= 0:
            deg += 1
        done = 0
        for p in range(picks.shape[1]):
            pick = picks[a, p]
            if done >= quota[a] or done == log.shape[1]:
                break
            if pick < 0 or pick == anchor:
                continue
            known = False
            for r in range(deg):
                known = known or rows[a, r] == pick
            if known:
                continue
            mark += np.int32(1)
            reach[anchor] = mark
            for r in range(deg):
                reach[rows[a, r]] = mark
                for s in range(degree):
                    hop = neighbors[rows[a, r], s]
                    if hop < 0:
                        break
                    reach[hop] = mark
            gain = 0
            for s in range(degree):
                hop = neighbors[pick, s]
                if hop < 0:
                    break
                gain += reach[hop] != mark
            if gain < min_gain:
                continue
            if deg < degree and not fixed:
                slot, removed, unique = deg, -1, -1
                deg += 1
            else:
                slot, unique = _victim(
                    rows[a], deg, anchor, new[a], neighbors, count, stamp, mark, points,
                    rule != 1, rule != 2,
                )  # fmt: skip
                if slot < 0:
                    continue
                removed = rows[a, slot]
            rows[a, slot] = pick
            new[a, slot] = True
            log[a, done, 0] = slot
            log[a, done, 1] = removed
            log[a, done, 2] = pick
            log[a, done, 3] = gain
            log[a, done, 4] = unique
            done += 1
        placed[a] = done


def place(
    points: Points,
    neighbors: Tensor,
    anchors: Tensor,
    picks: Tensor,
    quota: Tensor,
    min_gain: int,
    rule: int,
    fixed_degree: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, new-edge mask, edits placed, and a log int32 [A, E, 5] of the edits of each anchor.

    Args:
        rule: 0 lexicographic, 1 redundancy alone, 2 coverage alone.
    """
    table, wanted = neighbors.numpy(), quota.numpy()
    rows = table[anchors.numpy()].copy()
    new, placed = np.zeros(rows.shape, np.bool_), np.zeros(len(rows), np.int64)
    most = min(int(wanted.max()) if len(wanted) else 0, picks.shape[1])
    log = np.zeros((len(rows), most, 5), np.int32)
    nodes, chosen, arrays = anchors.numpy(), picks.contiguous().numpy(), point_arrays(points)
    run_ranges(
        lambda lo, hi: _place_range(
            lo, hi, table, nodes, chosen, wanted, min_gain, rule, fixed_degree, arrays, rows, new,
            placed, log,
        ),
        len(nodes),
    )  # fmt: skip
    return tuple(map(torch.from_numpy, (rows, new, placed, log)))  # type: ignore[return-value]


@jit
def _back_range(  # type: ignore[no-untyped-def]
    lo, hi, starts, targets, keys, rows, points, alpha, after, kind
):
    """Insert the edges back of target groups lo..hi one by one; kind 0 there, 1 append, 2 prune."""
    table, vectors, classes, cosine = points
    degree = rows.shape[1]
    pool = np.empty(degree + 1, np.int64)
    for g in range(lo, hi):
        node = targets[starts[g]]
        for e in range(starts[g], starts[g + 1]):
            source = keys[e] & 0xFFFFFFFF
            deg, known = 0, False
            while deg < degree and rows[node, deg] >= 0:
                known = known or rows[node, deg] == source
                deg += 1
            if known:
                kind[e] = 0
            elif deg < degree:
                kind[e] = 1
                rows[node, deg] = source
            else:
                kind[e] = 2
                for r in range(degree):
                    other = rows[node, r]
                    gap = between(node, other, table, vectors, classes, cosine)
                    insert_key(pool, r, key_of(gap, other))
                rows[node, 0] = source
                kept = 1
                for i in range(degree):
                    if kept == degree:
                        break
                    other, limit = pool[i] & 0xFFFFFFFF, key_gap(pool[i])
                    free = True
                    for j in range(kept):
                        mate = rows[node, j]
                        if occludes(mate, other, limit, alpha, table, vectors, classes, cosine):
                            free = False
                            break
                    if free:
                        rows[node, kept] = other
                        kept += 1
                for r in range(kept, degree):
                    rows[node, r] = -1
            for r in range(degree):
                after[e, r] = rows[node, r]


def edges_back(
    points: Points, rows: Tensor, targets: Tensor, keys: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """Insert edges back, in place, in the order given (sorted by target): append, or the prune
    that protects the new edge.

    Args:
        targets: int64 [E]. keys: int64 [E], `order_key` of (distance, source).
    Returns:
        the target's row after each, int32 [E, R], and what happened, int8 [E].
    """
    after = np.empty((len(targets), rows.shape[1]), np.int32)
    kind = np.zeros(len(targets), np.int8)
    ids = targets.numpy()
    first = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    starts = np.append(first, len(ids))
    table, arrays = rows.numpy(), point_arrays(points)
    run_ranges(
        lambda lo, hi: _back_range(
            lo, hi, starts, ids, keys.numpy(), table, arrays, np.float32(alpha), after, kind
        ),
        len(first),
        smallest=64,
    )
    return torch.from_numpy(after), torch.from_numpy(kind)
