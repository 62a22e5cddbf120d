"""Structural check, victim rule and placement of selected candidates (paper §4, §B.3).

In: current rows and ordered picks of some anchors. Out: their new rows and one record per edit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lgp import kernels
from lgp.choices import VictimRule
from lgp.distance import KEY_MAX, Points, order_key
from lgp.refine.coverage import coverage_gain, redundancy, unique_coverage
from lgp.refine.log import Edits, Reason


@dataclass(frozen=True)
class Placement:
    """Rows after the anchors' own edits.

    Attributes:
        rows: int32 [A, R]. new: bool [A, R], slots that hold an edge placed here.
        placed: int64 [A], accepted edits. edits: one record per accepted edit, by anchor, then
            in the order of acceptance.
    """

    rows: Tensor
    new: Tensor
    placed: Tensor
    edits: Edits


def choose_victim(
    points: Points,
    neighbors: Tensor,
    anchors: Tensor,
    rows: Tensor,
    shielded: Tensor,
    rule: VictimRule,
) -> tuple[Tensor, Tensor]:
    """The neighbor to give up (§B.3): lowest unique coverage, then most redundant, then id.

    Args:
        shielded: bool [A, R], slots that may not be chosen.
        rule: `redundancy` and `coverage` use one criterion alone (Table 14).
    Returns:
        (slot int64 [A], -1 where every slot is shielded or empty; unique coverage int32 [A]).
    """
    unique = unique_coverage(neighbors, anchors, rows)
    gap = redundancy(points, rows)
    key = order_key(gap, rows.clamp_min(0))
    if rule is VictimRule.coverage:
        key = rows.long()
    key = key.masked_fill(shielded | (rows < 0), KEY_MAX)
    if rule is not VictimRule.redundancy:
        least = unique.masked_fill(key == KEY_MAX, torch.iinfo(torch.int32).max)
        key = key.masked_fill(least > least.amin(1, keepdim=True), KEY_MAX)
    best, slot = key.min(1)
    return torch.where(best == KEY_MAX, -1, slot), unique.gather(1, slot.unsqueeze(1)).squeeze(1)


def place(
    points: Points,
    neighbors: Tensor,
    anchors: Tensor,
    picks: Tensor,
    quota: Tensor,
    min_gain: int,
    rule: VictimRule = VictimRule.lexicographic,
    fixed_degree: bool = False,
) -> Placement:
    """Accept picks in order and put them into the anchors' rows (DESIGN 4, steps 5 and 6).

    A pick is accepted when its coverage gain against the row *as edited so far* reaches
    `min_gain`. It is appended below the degree bound (unless `fixed_degree`, as in HNSW), else
    it takes the victim's slot. An edge placed here is never a victim here.

    Args:
        picks: int32 [A, S], best first, -1 pads. quota: int64 [A], edits allowed at each.
    """
    if kernels.usable(neighbors):
        return _place_compiled(
            points, neighbors, anchors, picks, quota, min_gain, rule, fixed_degree
        )
    rows = neighbors[anchors].clone()
    each = torch.arange(len(anchors), device=rows.device)
    new = torch.zeros_like(rows, dtype=torch.bool)
    placed = torch.zeros(len(anchors), dtype=torch.int64, device=rows.device)
    records: list[tuple[Tensor, ...]] = []
    for turn in range(picks.shape[1]):
        pick = picks[:, turn]
        gain = coverage_gain(neighbors, anchors, rows, pick.unsqueeze(1)).squeeze(1)
        accept = (pick >= 0) & (placed < quota) & (gain >= min_gain)
        accept &= ~(rows == pick.unsqueeze(1)).any(1) & (pick != anchors)
        live = accept.nonzero().flatten()
        if len(live) == 0:
            if bool((placed >= quota).all()):
                break
            continue
        degree = (rows[live] >= 0).sum(1)
        has_room = (degree < rows.shape[1]) & (not fixed_degree)
        victim, unique = choose_victim(
            points, neighbors, anchors[live], rows[live], new[live], rule
        )
        slot = torch.where(has_room, degree, victim)
        usable = slot >= 0
        live, slot, has_room, unique = live[usable], slot[usable], has_room[usable], unique[usable]
        removed = torch.where(has_room, -1, rows[live, slot])
        rows[live, slot] = pick[live]
        new[live, slot] = True
        placed[live] += 1
        reason = torch.where(has_room, int(Reason.append), int(Reason.replace))
        distance = points.between(anchors[live].unsqueeze(1), pick[live].unsqueeze(1)).flatten()
        records.append(
            (
                each[live],
                anchors[live].int(),
                slot.int(),
                removed.int(),
                pick[live],
                reason.int(),
                gain[live],
                torch.where(has_room, -1, unique),
                distance,
            )
        )
    if not records:
        return Placement(rows, new, placed, Edits.empty())
    merged = [torch.cat(column).cpu() for column in zip(*records, strict=True)]
    order = merged[0].argsort(stable=True)
    return Placement(rows, new, placed, Edits(*(column[order] for column in merged[1:])))


_RULES = {VictimRule.lexicographic: 0, VictimRule.redundancy: 1, VictimRule.coverage: 2}


def _place_compiled(
    points: Points,
    neighbors: Tensor,
    anchors: Tensor,
    picks: Tensor,
    quota: Tensor,
    min_gain: int,
    rule: VictimRule,
    fixed_degree: bool,
) -> Placement:
    rows, new, placed, log = kernels.place(
        points, neighbors, anchors, picks, quota, min_gain, _RULES[rule], fixed_degree
    )
    done = torch.arange(log.shape[1]) < placed.unsqueeze(1)
    node = anchors.int().unsqueeze(1).expand(done.shape)[done]
    slot, removed, added, gain, unique = log[done].unbind(1)
    reason = torch.where(removed < 0, int(Reason.append), int(Reason.replace)).int()
    distance = points.between(node.unsqueeze(1), added.unsqueeze(1)).flatten()
    return Placement(
        rows, new, placed, Edits(node, slot, removed, added, reason, gain, unique, distance)
    )
