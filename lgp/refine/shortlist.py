"""From local candidates to at most M: proximity, coverage, separation, balanced (§4, §B.3).

In: the snapshot, anchors and their visited nodes. Out: a `Shortlist`. No LLM is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lgp import kernels
from lgp.choices import ShortlistRule
from lgp.distance import Points, key_node, row_blocks
from lgp.prune import candidate_keys
from lgp.refine.coverage import coverage_gain, is_in, two_hop

RANKINGS = (ShortlistRule.proximity, ShortlistRule.coverage, ShortlistRule.separation)
"""The three rankings, in the order of their turns."""


@dataclass(frozen=True)
class Signals:
    """All candidates of each anchor, by (distance, id), with the three signals (§4).

    Attributes:
        candidates: int32 [A, C], -1 pads at the end.
        distance: float32 [A, C], D(i, c). gain: int32 [A, C].
        separation: float32 [A, C], min over j in N(i) of D(c, j); +inf for an empty row.
        occluded: bool [A, C], a current neighbor prunes c (alpha D(j, c) < D(i, c)).
    """

    candidates: Tensor
    distance: Tensor
    gain: Tensor
    separation: Tensor
    occluded: Tensor


@dataclass(frozen=True)
class Shortlist:
    """What a selector is shown, a row per anchor.

    Attributes:
        anchors: int64 [A]. context: int32 [A, K], the nearest current neighbors.
        candidates: int32 [A, M] in shortlist order; -1 pads.
        distance, separation: float32 [A, M]. gain: int32 [A, M].
    """

    anchors: Tensor
    context: Tensor
    candidates: Tensor
    distance: Tensor
    gain: Tensor
    separation: Tensor


def candidate_pool(
    neighbors: Tensor, anchors: Tensor, visited: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """(U_i + N2(i)) minus N(i) minus {i}, sorted by id without repeats: int32 [A, C], -1 pads.

    Args:
        visited: int32 [A, V], U_i, -1 pads.
        allowed: bool [N]; others are never candidates (deleted elements of a foreign index).
    """
    rows = neighbors[anchors]
    ids = torch.cat([visited, two_hop(neighbors, rows).flatten(1)], 1)
    own = torch.cat([anchors.unsqueeze(1).to(torch.int32), rows], 1).sort(1).values
    drop = (ids < 0) | is_in(own, ids)
    if allowed is not None:
        drop |= ~allowed[ids.clamp_min(0).long()]
    ids = ids.masked_fill(drop, -1).sort(1, descending=True).values
    ids[:, 1:][ids[:, 1:] == ids[:, :-1]] = -1
    ids = ids.sort(1, descending=True).values
    return ids[:, : int((ids >= 0).sum(1).max())] if ids.numel() else ids


def signals(
    points: Points, neighbors: Tensor, anchors: Tensor, pool: Tensor, alpha: float
) -> Signals:
    """Order the pool by (distance, id) and compute the three signals of §4."""
    keys = candidate_keys(points, anchors, pool)
    candidates = key_node(keys).to(torch.int32)
    rows = neighbors[anchors]
    own = points.between(anchors.unsqueeze(1), candidates).squeeze(1)
    gap = points.between(rows, candidates)  # [A, R, C]
    missing = (rows < 0).unsqueeze(2)
    covering = alpha * gap < own.unsqueeze(1)
    if points.duplicate_class is not None:
        covering |= points.same(rows.unsqueeze(2), candidates.unsqueeze(1))
    return Signals(
        candidates=candidates,
        distance=own.masked_fill(candidates < 0, torch.inf),
        gain=coverage_gain(neighbors, anchors, rows, candidates),
        separation=gap.masked_fill(missing, torch.inf).amin(1),
        occluded=(covering & ~missing).any(1),
    )


def rankings(found: Signals, rule: ShortlistRule) -> list[Tensor]:
    """The rankings a rule draws from: int64 [A, C] places; C = not in this ranking."""
    absent = found.candidates < 0
    width = found.candidates.shape[1]

    def places(value: Tensor, out: Tensor) -> Tensor:
        # Columns are by (distance, id), so a stable sort breaks ties that way.
        order = value.masked_fill(out, torch.inf).sort(dim=1, stable=True).indices
        place = torch.empty_like(order)
        place.scatter_(1, order, torch.arange(width, device=order.device).expand_as(order))
        return place.masked_fill(out, width)

    made = {
        ShortlistRule.proximity: lambda: places(found.distance, absent | found.occluded),
        ShortlistRule.coverage: lambda: places(-found.gain.float(), absent),
        ShortlistRule.separation: lambda: places(-found.separation, absent),
    }
    names = list(made) if rule is ShortlistRule.balanced else [rule]
    return [made[name]() for name in names]


def pick_columns(places: list[Tensor], size: int) -> Tensor:
    """Take in turn the next unseen candidate of each ranking: int64 [A, size] columns, -1 pads.

    A ranking that is exhausted is passed over. Balanced shortlisting is not specified beyond
    "combines candidates from all three rankings" (§B.3); turns are our choice.
    """
    n_anchors, width = places[0].shape
    device = places[0].device
    each = torch.arange(n_anchors, device=device)
    out = torch.full((n_anchors, size + 1), -1, dtype=torch.int64, device=device)
    if width == 0:
        return out[:, :size]
    held = torch.zeros(n_anchors, dtype=torch.int64, device=device)
    left = [place.clone() for place in places]
    # Two of three rankings hold every candidate, so a round of turns adds at least two.
    rounds = size if len(places) == 1 else -(-size // 2)
    for turn in range(rounds * len(places)):
        place = left[turn % len(places)]
        best, column = place.min(1)
        take = (best < width) & (held < size)
        out[each, torch.where(take, held, size)] = column
        held += take
        for other in left:
            other[each, column] = torch.where(take, width, other[each, column])
    out[torch.arange(size + 1, device=device) >= held.unsqueeze(1)] = -1
    return out[:, :size]


def make_shortlist(
    points: Points,
    neighbors: Tensor,
    anchors: Tensor,
    visited: Tensor,
    alpha: float,
    size: int,
    context_size: int,
    rule: ShortlistRule = ShortlistRule.balanced,
    allowed: Tensor | None = None,
) -> Shortlist:
    """Steps 1-3 of the refinement (DESIGN 4) for a batch of anchors on one snapshot.

    Memory: per anchor about C * (D + 2 R) float32, C = |U_i| + R^2; cut into blocks.
    """
    context = nearest_context(points, neighbors, anchors, context_size)
    if kernels.usable(neighbors):
        takes_turns = [rule in (ShortlistRule.balanced, one) for one in RANKINGS]
        use = (takes_turns[0], takes_turns[1], takes_turns[2])
        best = kernels.shortlist(points, neighbors, anchors, visited, alpha, size, use, allowed)
        return Shortlist(anchors, context, *best)
    per_anchor = (visited.shape[1] + neighbors.shape[1] ** 2) * (
        (0 if points.table is not None else points.vectors.shape[1]) + 4 * neighbors.shape[1]
    )
    parts = []
    for block in row_blocks(len(anchors), per_anchor):
        own = anchors[block]
        pool = candidate_pool(neighbors, own, visited[block], allowed)
        found = signals(points, neighbors, own, pool, alpha)
        columns = pick_columns(rankings(found, rule), size)
        safe, blank = columns.clamp_min(0), columns < 0
        if pool.shape[1] == 0:
            empty = torch.full(columns.shape, -1, dtype=torch.int32, device=own.device)
            zero = torch.zeros(columns.shape, device=own.device)
            parts.append((empty, zero + torch.inf, zero.int(), zero))
            continue
        parts.append(
            (
                found.candidates.gather(1, safe).masked_fill(blank, -1),
                found.distance.gather(1, safe).masked_fill(blank, torch.inf),
                found.gain.gather(1, safe).masked_fill(blank, 0),
                found.separation.gather(1, safe).masked_fill(blank, 0.0),
            )
        )
    candidates, distance, gain, separation = (
        torch.cat(list(part)) for part in zip(*parts, strict=True)
    )
    return Shortlist(
        anchors,
        context,
        candidates,
        distance,
        gain,
        separation,
    )


def nearest_context(points: Points, neighbors: Tensor, anchors: Tensor, size: int) -> Tensor:
    """The K nearest current neighbors, nearest first: int32 [A, K], -1 pads (§4)."""
    keys = candidate_keys(points, anchors, neighbors[anchors])
    context = key_node(keys).to(torch.int32)[:, :size]
    return torch.nn.functional.pad(context, (0, size - context.shape[1]), value=-1)
