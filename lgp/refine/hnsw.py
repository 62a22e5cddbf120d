"""LGP on HNSW: the base layer refined, everything above untouched (DESIGN 4.8, paper §E.1).

In: an `Hnsw` and a `Refiner` of fixed degree. Out: the refined index and every slot change.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from lgp.distance import KEY_MAX, Points, order_key
from lgp.graph import Graph
from lgp.hnsw import Hnsw, select_neighbors, visited_by_hnsw
from lgp.refine.log import Edits, Reason
from lgp.refine.post import (
    Reciprocals,
    Search,
    flat_search,
    refine_post,
    rounds,
    row_changes,
)
from lgp.refine.step import Refiner


def select_neighbors_reciprocals(bound: int) -> Reciprocals:
    """Edges back by HNSW's own rule, in order (target, distance, anchor).

    For the edge back i of a target c the heuristic runs over N0(c) and i: if it does not keep i
    nothing happens; if the row has room i is appended; else i takes the slot of the farthest
    entry (ties: larger id) that the heuristic rejected. A row never shrinks.

    Args:
        bound: degree bound of the base layer, 2M.
    """

    def insert(points: Points, rows: Tensor, sources: Tensor, targets: Tensor) -> list[Edits]:
        if rows.shape[1] != bound:
            raise ValueError(f"rows hold {rows.shape[1]} neighbors, the bound is {bound}")
        changes = []
        for source, target in rounds(points, rows, sources, targets):
            before = rows[target]
            new = source.unsqueeze(1).to(torch.int32)
            kept = select_neighbors(points, target, torch.cat([before, new], 1), bound)
            degree = (before >= 0).sum(1)
            slot = degree.clamp_max(bound - 1)
            full = degree == bound
            rejected = ~(before.unsqueeze(2) == kept.unsqueeze(1)).any(2) & (before >= 0)
            distance = points.between(target.unsqueeze(1), before).squeeze(1)
            farness = order_key(distance, before.clamp_min(0)).masked_fill(~rejected, -KEY_MAX)
            slot = torch.where(full, farness.argmax(1), slot)
            wanted = (kept == new).any(1).nonzero().flatten()
            after = before.clone()
            after[wanted, slot[wanted]] = new[wanted, 0]
            rows[target] = after
            append, swap = int(Reason.reciprocal_append), int(Reason.reciprocal_replace)
            reason = torch.where(full, swap, append)
            changes.append(row_changes(points, target, before, after, reason))
        made = Edits.join(changes)
        return [made.take(made.node.argsort(stable=True))]  # target by target, as defined

    return insert


def searcher(index: Graph | Hnsw, points: Points, width: int) -> Search:
    """U_i on snapshots of an index's base layer: by the hierarchical search of an HNSW, or flat."""
    if isinstance(index, Hnsw):
        return lambda graph, anchors: visited_by_hnsw(index, points, anchors, width, graph)
    return flat_search(points, width)


def refine_hnsw(
    index: Hnsw,
    points: Points,
    refiner: Refiner,
    width: int,
    batch_size: int = 0,
    progress: bool = False,
) -> tuple[Hnsw, Edits]:
    """Refine the base layer of a finished HNSW; upper layers, levels and entry stay as they are.

    Args:
        refiner: with `fixed_degree` an anchor's own edits keep its degree, as in the paper; else
            they fill free slots of its row first.
        width: of the hierarchical search whose visited base nodes are U_i.
        batch_size: anchors that share a snapshot; 0 = the whole graph.
    """
    back = select_neighbors_reciprocals(index.base.max_degree)
    base, edits = refine_post(
        index.base, points, refiner, width, batch_size, back, searcher(index, points, width),
        progress,
    )  # fmt: skip
    return replace(index, base=base), edits


def refine_finished(
    index: Graph | Hnsw,
    points: Points,
    refiner: Refiner,
    width: int,
    batch_size: int = 0,
    progress: bool = False,
) -> tuple[Graph | Hnsw, Edits]:
    """Refine either kind of finished index: a flat graph, or the base layer of an HNSW.

    Arguments as of `refine_post` and `refine_hnsw`.
    """
    if isinstance(index, Hnsw):
        return refine_hnsw(index, points, refiner, width, batch_size, progress)
    return refine_post(index, points, refiner, width, batch_size, progress=progress)
