"""The refinement signals, the shortlist, the placement and the edges back, compiled.

Twins of `lgp.refine.shortlist.make_shortlist`, `lgp.refine.replace.place` and the loop of
`lgp.refine.post.flat_reciprocals`: one anchor after the other on small scratch arrays, with
stamps for the sets of the paper (§4, §B.3).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Points
from lgp.kernels.backend import EMPTY, between, jit, key_gap, key_of, point_arrays, run_ranges
from lgp.kernels.greedy import insert_key

FAR_BITS = np.int64(0x7F800000)
"""Bits of +inf: subtracting a distance's bits from them turns the order around."""


@jit
def _keep_best(best, held, key):  # type: ignore[no-untyped-def]
    """Put a key into the `len(best) - 1` smallest ones seen; returns how many are held."""
    room = best.shape[0] - 1
    if held == room and key >= best[held - 1]:
        return held
    insert_key(best, min(held, room - 1), key)
    return min(held + 1, room)


@jit
def _shortlist_range(  # type: ignore[no-untyped-def]
    lo, hi, neighbors, anchors, visited, allowed, points, alpha, use, out, distance, gain,
    separation
):  # fmt: skip
    """Pool, signals and turns of anchors lo..hi; use: which of the three rankings take turns."""
    table, vectors, classes, cosine = points
    n, degree = neighbors.shape
    size = out.shape[1]
    reach = np.zeros(n, np.int32)  # stamps of C(i)
    pooled = np.zeros(n, np.int32)  # stamps of the pool, N(i) and i
    room = visited.shape[1] + degree * degree
    keys = np.empty(room, np.int64)
    gains = np.empty(room, np.int32)
    gaps = np.empty(room, np.float32)
    taken = np.empty(room, np.bool_)
    occluded = np.empty(room, np.bool_)
    heads = np.empty((3, size + 1), np.int64)
    for a in range(lo, hi):
        mark = np.int32(a - lo + 1)
        anchor = anchors[a]
        reach[anchor] = mark
        pooled[anchor] = mark
        deg = 0
        while deg < degree and neighbors[anchor, deg] >= 0:
            reach[neighbors[anchor, deg]] = mark
            pooled[neighbors[anchor, deg]] = mark
            deg += 1
        count = 0
        for r in range(deg):
            mate = neighbors[anchor, r]
            for s in range(degree):
                hop = neighbors[mate, s]
                if hop < 0:
                    break
                reach[hop] = mark
                if pooled[hop] != mark:
                    pooled[hop] = mark
                    if allowed.shape[0] == 0 or allowed[hop]:
                        keys[count] = hop
                        count += 1
        for s in range(visited.shape[1]):
            node = visited[a, s]
            if node >= 0 and pooled[node] != mark:
                pooled[node] = mark
                if allowed.shape[0] == 0 or allowed[node]:
                    keys[count] = node
                    count += 1
        for c in range(count):
            keys[c] = key_of(between(anchor, keys[c], table, vectors, classes, cosine), keys[c])
        keys[:count].sort()
        for c in range(count):
            gaps[c] = np.float32(np.inf)
            occluded[c] = False
        for r in range(deg):  # neighbor by neighbor: its row or vector stays in the cache
            mate = neighbors[anchor, r]
            for c in range(count):
                node = keys[c] & 0xFFFFFFFF
                gap = between(mate, node, table, vectors, classes, cosine)
                gaps[c] = min(gaps[c], gap)
                occluded[c] |= alpha * gap < key_gap(keys[c])
                if classes.shape[0]:
                    occluded[c] |= classes[mate] == classes[node]
        held0, held1, held2 = 0, 0, 0
        for c in range(count):
            node = keys[c] & 0xFFFFFFFF
            new = 0
            for s in range(degree):
                hop = neighbors[node, s]
                if hop < 0:
                    break
                new += reach[hop] != mark
            gains[c] = new
            taken[c] = False
            if use[0] and not occluded[c] and held0 < size:
                heads[0, held0] = c
                held0 += 1
            if use[1]:
                held1 = _keep_best(heads[1], held1, (np.int64(degree - new) << 32) | c)
            if use[2]:
                flipped = FAR_BITS - (key_of(gaps[c], 0) >> 32)
                held2 = _keep_best(heads[2], held2, (flipped << 32) | c)
        # The three rankings take turns; what another one took is passed over.
        at0, at1, at2, picked = 0, 0, 0, 0
        while picked < size and (at0 < held0 or at1 < held1 or at2 < held2):
            for turn in range(3):
                column = -1
                if turn == 0:
                    while at0 < held0 and column < 0:
                        c = heads[0, at0]
                        at0 += 1
                        column = -1 if taken[c] else c
                elif turn == 1:
                    while at1 < held1 and column < 0:
                        c = heads[1, at1] & 0xFFFFFFFF
                        at1 += 1
                        column = -1 if taken[c] else c
                else:
                    while at2 < held2 and column < 0:
                        c = heads[2, at2] & 0xFFFFFFFF
                        at2 += 1
                        column = -1 if taken[c] else c
                if column >= 0 and picked < size:
                    taken[column] = True
                    out[a, picked] = keys[column] & 0xFFFFFFFF
                    distance[a, picked] = key_gap(keys[column])
                    gain[a, picked] = gains[column]
                    separation[a, picked] = gaps[column]
                    picked += 1


def shortlist(
    points: Points,
    neighbors: Tensor,
    anchors: Tensor,
    visited: Tensor,
    alpha: float,
    size: int,
    use: tuple[bool, bool, bool],
    allowed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Candidates int32 [A, M], distance, gain, separation; -1, inf, 0, 0 at padding.

    Args:
        use: whether proximity, coverage, separation take turns.
    """
    shape = (len(anchors), size)
    out = np.full(shape, -1, np.int32)
    distance, gain = np.full(shape, np.inf, np.float32), np.zeros(shape, np.int32)
    separation = np.zeros(shape, np.float32)
    rows, nodes, seen = neighbors.numpy(), anchors.numpy(), visited.contiguous().numpy()
    may = np.zeros(0, np.bool_) if allowed is None else allowed.numpy()
    arrays, slack = point_arrays(points), np.float32(alpha)
    run_ranges(
        lambda lo, hi: _shortlist_range(
            lo, hi, rows, nodes, seen, may, arrays, slack, use, out, distance, gain, separation
        ),
        len(nodes),
    )
    return (
        torch.from_numpy(out), torch.from_numpy(distance), torch.from_numpy(gain),
        torch.from_numpy(separation),
    )  # fmt: skip


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
                    other = pool[i] & 0xFFFFFFFF
                    free = True
                    for j in range(kept):
                        mate = rows[node, j]
                        if classes.shape[0] and classes[mate] == classes[other]:
                            free = False
                            break
                        gap = between(mate, other, table, vectors, classes, cosine)
                        if alpha * gap < key_gap(pool[i]):
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
