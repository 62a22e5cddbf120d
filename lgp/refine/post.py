"""Refine a finished flat graph: own edits on a snapshot, then reciprocals in order (DESIGN 4.8).

In: a graph and a `Refiner`. Out: the refined graph and every slot change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from tqdm import tqdm

from lgp import kernels
from lgp.distance import Points, key_node, order_key, row_blocks
from lgp.graph import Graph
from lgp.prune import robust_prune
from lgp.refine.log import Edits, Reason
from lgp.refine.step import Refiner
from lgp.vamana import visited_by

Reciprocals = Callable[[Points, Tensor, Tensor, Tensor], list[Edits]]
"""(points, neighbors in place, sources int64 [E], targets int64 [E]) -> the changes made."""
Search = Callable[[Graph, Tensor], Tensor]
"""(snapshot, anchors int64 [A]) -> U_i, the nodes that a search for each visits, int32 [A, V]."""

BLOCK_ANCHORS = 256
"""Anchors asked about together: a language model's batches fill, and a large graph has many blocks
for shards and for stopping between them."""


def anchor_blocks(anchors: Tensor, n: int) -> list[Tensor]:
    """Anchors that are searched, shortlisted and asked about together, in order.

    The blocks follow from the anchors and the number of nodes n alone, so that every process forms
    the same ones, and a language model the same batches.
    """
    return [
        part[block]
        for part in anchors.split(BLOCK_ANCHORS)
        for block in row_blocks(len(part), 4 * n, 1 << 30)
    ]


def flat_search(points: Points, width: int) -> Search:
    """U_i by the search of a flat graph."""
    return lambda graph, anchors: visited_by(points, graph, anchors, width)


def refine_post(
    graph: Graph,
    points: Points,
    refiner: Refiner,
    construction_width: int,
    batch_size: int = 0,
    reciprocals: Reciprocals | None = None,
    visited: Search | None = None,
    progress: bool = False,
) -> tuple[Graph, Edits]:
    """Refine every eligible node of a finished graph.

    Two phases per snapshot: all anchors' own edits, whose rows are independent, then all
    reciprocals in the order (target, distance, anchor).

    Args:
        construction_width: width of the search whose visited nodes are U_i.
        batch_size: anchors that share a snapshot, in node order; 0 = the whole graph.
        reciprocals: how an edge back is inserted; None = append, or the protected prune.
        visited: U_i for some anchors on a snapshot; None = the flat search.
    """
    insert = reciprocals or flat_reciprocals(graph.alpha)
    find = visited or flat_search(points, construction_width)
    anchors = refiner.eligible.nonzero().flatten().to(points.device)
    rows = graph.neighbors.clone()
    changes: list[Edits] = []
    with tqdm(total=len(anchors), desc="refine", unit="node", disable=not progress) as bar:
        for batch in anchors.split(batch_size or max(1, len(anchors))):
            snapshot = Graph(rows.clone(), graph.entry_node, graph.metric, graph.alpha)
            done = len(refiner.edits)
            for own in anchor_blocks(batch, graph.n):
                rows[own], _ = refiner(snapshot.neighbors, own, find(snapshot, own))
                bar.update(len(own))
            made = Edits.join(refiner.edits[done:])
            sources, targets = made.node.to(points.device), made.added.to(points.device)
            changes += [made, *insert(points, rows, sources.long(), targets.long())]
    return Graph(rows, graph.entry_node, graph.metric, graph.alpha), Edits.join(changes)


def flat_reciprocals(alpha: float) -> Reciprocals:
    """Append where there is room, else the prune that protects the new edge (§E.1)."""

    def insert(points: Points, rows: Tensor, sources: Tensor, targets: Tensor) -> list[Edits]:
        if kernels.usable(rows) and len(sources):
            return [_insert_compiled(points, rows, sources, targets, alpha)]
        changes = []
        for source, target in rounds(points, rows, sources, targets):
            before = rows[target]
            degree = (before >= 0).sum(1)
            room = degree < rows.shape[1]
            after = before.clone()
            after[room.nonzero().flatten(), degree[room]] = source[room].int()
            full = ~room
            if bool(full.any()):
                pool = torch.cat([before[full], source[full].unsqueeze(1).int()], 1)
                after[full] = robust_prune(
                    points, target[full], pool, alpha, rows.shape[1], source[full].unsqueeze(1)
                )
            rows[target] = after
            reason = torch.where(room, int(Reason.reciprocal_append), int(Reason.reciprocal_prune))
            changes.append(row_changes(points, target, before, after, reason))
        made = Edits.join(changes)
        return [made.take(made.node.argsort(stable=True))]  # target by target, as defined

    return insert


def rounds(
    points: Points, rows: Tensor, sources: Tensor, targets: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Edges back, in order (target, distance, anchor), at most one per target and round.

    Targets are independent of each other, so a round can be done as one batch. A source that
    its target points to when its turn comes is left out; `rows` changes between rounds.
    """
    if len(sources) == 0:
        return
    targets, keys = in_order(points, sources, targets)
    sources = key_node(keys)
    _, counts = torch.unique_consecutive(targets, return_counts=True)
    start = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.arange(len(targets), device=targets.device) - start
    for turn in range(int(counts.max())):
        source, target = sources[rank == turn], targets[rank == turn]
        missing = ~(rows[target] == source.unsqueeze(1)).any(1)
        yield source[missing], target[missing]


def in_order(points: Points, sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Edges back by (target, distance, anchor): targets int64 [E], (distance, source) keys."""
    distance = points.between(targets.unsqueeze(1), sources.unsqueeze(1)).flatten()
    keys = order_key(distance, sources)
    order = keys.argsort()
    order = order[targets[order].argsort(stable=True)]
    return targets[order], keys[order]


def _insert_compiled(
    points: Points, rows: Tensor, sources: Tensor, targets: Tensor, alpha: float
) -> Edits:
    targets, keys = in_order(points, sources, targets)
    untouched = rows[targets]
    after, kind = kernels.edges_back(points, rows, targets, keys, alpha)
    first = torch.ones(len(targets), dtype=torch.bool)
    first[1:] = targets[1:] != targets[:-1]
    before = torch.where(first.unsqueeze(1), untouched, after.roll(1, 0))
    appended = kind == 1
    reason = torch.where(appended, int(Reason.reciprocal_append), int(Reason.reciprocal_prune))
    return row_changes(points, targets, before, after, reason)


def row_changes(
    points: Points, nodes: Tensor, before: Tensor, after: Tensor, reason: Tensor
) -> Edits:
    """One record per slot that differs: rows int32 [T, R] of the nodes int64 [T]."""
    at, slot = (before != after).nonzero(as_tuple=True)
    added, removed = after[at, slot], before[at, slot]
    distance = points.between(nodes[at].unsqueeze(1), added.unsqueeze(1)).flatten()
    none = torch.full_like(added, -1).cpu()
    return Edits(
        nodes[at].int().cpu(),
        slot.int().cpu(),
        removed.cpu(),
        added.cpu(),
        reason[at].int().cpu(),
        none,
        none,
        distance.masked_fill(added < 0, 0.0).cpu(),
    )
