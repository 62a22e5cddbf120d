"""Structural signals around an anchor: two-hop sets, coverage, redundancy (paper §3, §4, §B.3).

In: the neighbor table and current rows of some anchors. Out: counts and distances. Choosing is
elsewhere. The rows are passed apart from the table because an anchor's own row is live while
edits are placed; all other rows are the snapshot's.

Notation for anchor i: N(i) its row; N2(i) the union of N(j), j in N(i), minus N(i) and i;
C(i) = {i} + N(i) + N2(i). The paper gives no formulas for the gains; those here follow
DESIGN section 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lgp.distance import Points

NOBODY = torch.iinfo(torch.int32).max
"""Sorts after every node id in a sorted id list."""


def two_hop(neighbors: Tensor, rows: Tensor) -> Tensor:
    """Rows of the neighbors, source by source: int32 [A, R] -> int32 [A, R, R], -1 pads."""
    hops = neighbors[rows.clamp_min(0).long()]
    return hops.masked_fill((rows < 0).unsqueeze(2), -1)


def covered(neighbors: Tensor, anchors: Tensor, rows: Tensor) -> Tensor:
    """C(i) as a sorted id list with repeats: int32 [A, 1 + R + R*R], `NOBODY` pads."""
    own = anchors.unsqueeze(1).to(torch.int32)
    ids = torch.cat([own, rows, two_hop(neighbors, rows).flatten(1)], 1)
    return torch.where(ids < 0, NOBODY, ids).sort(1).values


def is_in(sorted_ids: Tensor, values: Tensor) -> Tensor:
    """Membership per row: sorted int32 [A, S], int32 [A, V] -> bool [A, V]."""
    at = torch.searchsorted(sorted_ids, values.contiguous()).clamp_max(sorted_ids.shape[1] - 1)
    return sorted_ids.gather(1, at) == values


def coverage_gain(neighbors: Tensor, anchors: Tensor, rows: Tensor, candidates: Tensor) -> Tensor:
    """|N(c) minus C(i)|: the nodes each candidate would newly bring within two hops (§4).

    Args:
        anchors: int64 [A]. rows: int32 [A, R], their current neighbors.
        candidates: int32 [A, C], -1 pads.
    Returns:
        int32 [A, C], in nodes, at most deg(c); 0 at padding.
    """
    reach = covered(neighbors, anchors, rows)
    hops = two_hop(neighbors, candidates)  # [A, C, R]
    fresh = (hops >= 0) & ~is_in(reach, hops.flatten(1)).view_as(hops)
    return fresh.sum(2, dtype=torch.int32)


def unique_coverage(neighbors: Tensor, anchors: Tensor, rows: Tensor) -> Tensor:
    """Nodes within two hops that only this neighbor brings (§B.3): int32 [A, R], 0 at padding.

    For neighbor z: |N(z) minus (union of N(j), j in N(i), j != z) minus N(i) minus {i}|.
    """
    hops = two_hop(neighbors, rows).flatten(1)  # [A, R*R]
    ordered, order = torch.where(hops < 0, NOBODY, hops).sort(1)
    equal_next = torch.nn.functional.pad(ordered[:, 1:] == ordered[:, :-1], (0, 1))
    equal_last = torch.nn.functional.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    single_sorted = ~(equal_next | equal_last) & (ordered != NOBODY)
    single = torch.zeros_like(single_sorted).scatter_(1, order, single_sorted)
    own = torch.cat([anchors.unsqueeze(1).to(torch.int32), rows], 1).sort(1).values
    single &= ~is_in(own, hops)
    return single.view(len(rows), rows.shape[1], -1).sum(2, dtype=torch.int32)


def redundancy(points: Points, rows: Tensor) -> Tensor:
    """Distance of each neighbor to the closest other neighbor (§B.3): small = redundant.

    Returns:
        float32 [A, R]; +inf at padding and where a neighbor is alone.
    """
    pair = points.between(rows, rows)
    blank = (rows < 0).unsqueeze(1) | (rows < 0).unsqueeze(2)
    alone = torch.eye(rows.shape[1], dtype=torch.bool, device=rows.device)
    return pair.masked_fill(blank | alone, torch.inf).amin(2)
