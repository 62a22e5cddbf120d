"""RobustPrune and reciprocal edges, batched over nodes (DiskANN; paper §E.1).

In: candidates per node. Out: rows of at most R neighbors. Which candidates, and when, is the
builder's business.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lgp import kernels
from lgp.distance import KEY_MAX, Points, key_distance, key_node, order_key, row_blocks


def candidate_keys(points: Points, nodes: Tensor, candidates: Tensor) -> Tensor:
    """Candidates per node in the order RobustPrune walks them, as (distance, id) keys.

    Args:
        nodes: int64 [B].
        candidates: ids [B, C], -1 pads; repeats and the node itself are removed.
    Returns:
        int64 [B, C] ascending; `KEY_MAX` where a place is empty (also between entries).
    """
    distance = points.between(nodes.unsqueeze(1), candidates).squeeze(1)
    keys = order_key(distance, candidates.clamp_min(0))
    keys = keys.masked_fill((candidates < 0) | (candidates == nodes.unsqueeze(1)), KEY_MAX)
    keys = keys.sort(1).values
    keys[:, 1:][keys[:, 1:] == keys[:, :-1]] = KEY_MAX
    return keys


def robust_prune(
    points: Points,
    nodes: Tensor,
    candidates: Tensor,
    alpha: float,
    max_degree: int,
    protected: Tensor | None = None,
) -> Tensor:
    """RobustPrune(p, C, alpha, R): keep c unless a kept k has alpha D(k,c) < D(p,c).

    Candidates are walked by (D(p, c), id); of bit-equal ones only the first is kept. The strict
    comparison follows DiskANN's code: with "<=" a bit-equal pair would prune everything else.

    Args:
        nodes: int64 [B]. candidates: ids [B, C], -1 pads, repeats allowed.
        protected: ids [B, P], -1 pads: those among the candidates enter the kept list first (by
            distance, id; at most R), occlude others and are occluded by nothing (§E.1).
    Returns:
        int32 [B, max_degree], nearest first (protected ones at the head), -1 pads.
    """
    if kernels.usable(points.vectors):
        return kernels.robust_prune(points, nodes, candidates, alpha, max_degree, protected)
    n_candidates = candidates.shape[1]
    parts = []
    for block in row_blocks(len(nodes), n_candidates * n_candidates):
        keys = candidate_keys(points, nodes[block], candidates[block])
        shield = None
        if protected is not None:
            shield = (key_node(keys).unsqueeze(2) == protected[block].unsqueeze(1)).any(2)
            shield &= keys != KEY_MAX
        parts.append(_prune_block(points, keys, alpha, max_degree, shield))
    if not parts:
        return torch.empty(0, max_degree, dtype=torch.int32, device=nodes.device)
    return torch.cat(parts)


def _prune_block(
    points: Points, keys: Tensor, alpha: float, max_degree: int, shield: Tensor | None
) -> Tensor:
    ids, limit = key_node(keys), key_distance(keys)
    pair = points.between(ids, ids)  # [B, C, C]
    each = torch.arange(len(ids), device=ids.device)
    alive = keys != KEY_MAX
    rows = []
    for _ in range(max_degree):
        choose = alive
        if shield is not None:
            first = alive & shield
            choose = torch.where(first.any(1, keepdim=True), first, alive)
        pick = choose.to(torch.int8).argmax(1)  # the first True
        found = choose[each, pick]
        node = ids[each, pick]
        rows.append(torch.where(found, node, -1))
        occluded = alpha * pair[each, pick] < limit
        occluded |= points.same(node.unsqueeze(1), ids)
        if shield is not None:
            occluded &= ~shield
        occluded[each, pick] = True
        alive = alive & ~(occluded & found.unsqueeze(1))
    return torch.stack(rows, 1).to(torch.int32)


def add_reciprocals(
    points: Points,
    neighbors: Tensor,
    sources: Tensor,
    rows: Tensor,
    alpha: float,
    protected: Tensor | None = None,
) -> None:
    """Insert j -> i for every new edge i -> j, in place, grouped by target j.

    A target with room appends its new sources by (distance, id); one that would overflow is
    pruned once over its row and all its new sources. With one source this is the sequential rule.

    Args:
        neighbors: int32 [N, R], changed in place.
        sources: int64 [B]; rows: int32 [B, R], the final rows of the sources.
        protected: bool [B, R], edges whose reciprocal survives this prune (§E.1).
    """
    max_degree = neighbors.shape[1]
    valid = rows >= 0
    target = rows[valid].long()
    source = sources.unsqueeze(1).expand_as(rows)[valid]
    shield = protected[valid] if protected is not None else None
    missing = ~(neighbors[target] == source.unsqueeze(1)).any(1)
    target, source = target[missing], source[missing]
    if len(target) == 0:
        return
    distance = points.between(target.unsqueeze(1), source.unsqueeze(1)).flatten()
    order = order_key(distance, source).argsort()
    order = order[target[order].argsort(stable=True)]
    target, source = target[order], source[order]
    shield = shield[missing][order] if shield is not None else None
    groups, group, counts = torch.unique_consecutive(
        target, return_inverse=True, return_counts=True
    )
    rank = torch.arange(len(target), device=target.device) - (counts.cumsum(0) - counts)[group]
    degree = (neighbors[groups] >= 0).sum(1)
    fits = degree + counts <= max_degree
    write = fits[group]
    neighbors[target[write], (degree[group] + rank)[write]] = source[write].to(torch.int32)
    if bool(fits.all()):
        return
    over = (~fits).nonzero().flatten()
    widest = int(counts[over].max())
    extra = torch.full((len(groups), widest), -1, dtype=torch.int32, device=target.device)
    spill = ~write
    extra[group[spill], rank[spill]] = source[spill].to(torch.int32)
    keep_first = None
    if shield is not None:
        keep_first = torch.full_like(extra, -1)
        kept = spill & shield
        keep_first[group[kept], rank[kept]] = source[kept].to(torch.int32)
        keep_first = keep_first[over]
    full = torch.cat([neighbors[groups[over]], extra[over]], 1)
    neighbors[groups[over]] = robust_prune(
        points, groups[over], full, alpha, max_degree, keep_first
    )
