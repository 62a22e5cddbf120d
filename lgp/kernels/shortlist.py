"""The refinement signals and the shortlist, compiled.

The twin of `lgp.refine.shortlist.make_shortlist`: one anchor after the other on small scratch
arrays, with stamps for the sets of the paper (§4, §B.3).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Points
from lgp.kernels.backend import between, jit, key_gap, key_of, point_arrays, run_ranges
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
