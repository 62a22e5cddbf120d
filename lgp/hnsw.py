"""HNSW: the index, the neighbor heuristic, hierarchical search (as in hnswlib).

In: an `Hnsw`, whose base layer is a `Graph` that anything may search or refine. Out: results.
With connectivity M a node has at most 2M neighbors on the base layer and M on each layer above,
so "M = 16" means base rows of up to 32. `lgp.hnsw_build` makes one, `lgp.refine.hnsw` refines it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lgp import kernels
from lgp.distance import (
    KEY_MAX,
    Points,
    check_dimensions,
    key_distance,
    key_node,
    order_key,
    row_blocks,
)
from lgp.graph import Graph
from lgp.prune import candidate_keys
from lgp.search import STEPS_PER_CHECK, QueryDistances, SearchResult, Walk, query_blocks, walk
from lgp.vamana import pad_cat


@dataclass(frozen=True, eq=False)
class UpperLevel:
    """One layer above the base, in the form that `lgp.formats.base` reads foreign ones.

    Attributes:
        nodes: int64 [n], the nodes that reach this layer, rising.
        rows: int32 [n, M], their neighbors there, padded with -1 at the end.
    """

    nodes: Tensor
    rows: Tensor


@dataclass(frozen=True, eq=False)
class Hnsw:
    """A hierarchy of graphs over the same N nodes.

    Attributes:
        base: rows of at most 2M; its entry node is `entry_node`, its alpha 1 (the heuristic is
            the prune with slack 1).
        levels: int32 [N], 0 = base layer only.
        upper: layers 1, 2, ..., rows of at most M.
        entry_node: where every search starts, on the top layer.
    """

    base: Graph
    levels: Tensor
    upper: tuple[UpperLevel, ...]
    entry_node: int

    def to(self, device: torch.device | str) -> Hnsw:
        upper = tuple(UpperLevel(u.nodes.to(device), u.rows.to(device)) for u in self.upper)
        return Hnsw(self.base.to(device), self.levels.to(device), upper, self.entry_node)

    def digest(self) -> str:
        """sha256 of base layer, levels and all layers above: equal digests are equal indexes."""
        hasher = hashlib.sha256(self.base.digest().encode())
        for part in (self.levels, *(x for u in self.upper for x in (u.nodes, u.rows))):
            hasher.update(f"{part.dtype} {tuple(part.shape)} ".encode())
            hasher.update(part.cpu().contiguous().numpy().tobytes())
        return hasher.hexdigest()

    @cached_property
    def stairs(self) -> tuple[Tensor, Tensor]:
        """Upper layers for the descent: the row number of a node on layer l + 1, int32 [L, N]
        (-1 = not there), and all rows one after the other, int32 [X, M]."""
        device = self.base.neighbors.device
        place = torch.full((len(self.upper), self.base.n), -1, dtype=torch.int32, device=device)
        rows, offset = [torch.empty(0, 1, dtype=torch.int32, device=device)], 0
        for at, layer in enumerate(self.upper):
            count = len(layer.nodes)
            place[at, layer.nodes] = torch.arange(
                offset, offset + count, dtype=torch.int32, device=device
            )
            rows.append(layer.rows)
            offset += count
        return place, pad_cat(rows).contiguous()


def select_neighbors(points: Points, nodes: Tensor, candidates: Tensor, bound: int) -> Tensor:
    """The heuristic of HNSW (hnswlib's getNeighborsByHeuristic2).

    Fewer than `bound` candidates are all kept. Else they are walked by (D(p, c), id), and c is
    kept unless some kept k has D(k, c) < D(p, c), strictly, until `bound` are kept. Of bit-equal
    candidates at some distance only the first is kept, since D between them is 0; but copies of p
    itself lie at 0, where nothing is smaller, so all of them are kept: more than `bound` copies
    link to each other alone. Collapse duplicates before.

    Args:
        nodes: int64 [B]. candidates: ids [B, C], -1 pads; repeats and the node are removed.
    Returns:
        int32 [B, bound], nearest first, -1 pads.
    """
    if kernels.usable(points.vectors):
        return kernels.select_neighbors(points, nodes, candidates, bound)
    parts = [torch.empty(0, bound, dtype=torch.int32, device=nodes.device)]
    n_candidates, dims = candidates.shape[1], points.vectors.shape[1]
    for block in row_blocks(len(nodes), n_candidates * max(n_candidates, 2 * dims)):
        keys = candidate_keys(points, nodes[block], candidates[block])
        parts.append(_select_block(points, keys, bound))
    return torch.cat(parts)


def _select_block(points: Points, keys: Tensor, bound: int) -> Tensor:
    ids, limit = key_node(keys), key_distance(keys)
    pair = points.between(ids, ids)  # [B, C, C]
    each = torch.arange(len(ids), device=ids.device)
    alive = keys != KEY_MAX
    few = (alive.sum(1) < bound).unsqueeze(1)
    rows = []
    for _ in range(bound):
        pick = alive.to(torch.int8).argmax(1)  # the first True
        found = alive[each, pick]
        rows.append(torch.where(found, ids[each, pick], -1))
        occluded = (pair[each, pick] < limit) & ~few
        occluded[each, pick] = True
        alive = alive & ~(occluded & found.unsqueeze(1))
    return torch.stack(rows, 1).to(torch.int32)


def beam(
    rows: Tensor, place: Tensor | None, starts: Tensor, distances: QueryDistances, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Search one layer from a start per query; the torch twin of `lgp.kernels.greedy`.

    Args:
        rows: neighbors, int32 [X, R]; place: row number of each node, int32 [N] (None = itself).
        starts: int64 [Q].
    Returns:
        keys int64 [Q, width] of the best seen (`KEY_MAX` pads), distances computed int64 [Q]
        (the start is one), visited nodes int32 [Q, V] (-1 pads).
    """
    device, n_queries = rows.device, len(starts)
    each = torch.arange(n_queries, device=device)
    seen = torch.zeros(n_queries, distances.points.n, dtype=torch.bool, device=device)
    seen[each, starts] = True
    # The lowest bit of a key marks visited nodes, above it is the node: the order stays.
    front = torch.full((n_queries, width), KEY_MAX, device=device)
    first = starts.unsqueeze(1)
    front[:, :1] = order_key(distances.at(first), first << 1)
    n_dist = torch.ones(n_queries, dtype=torch.int64, device=device)
    steps: list[Tensor] = []
    going = torch.ones(n_queries, dtype=torch.bool, device=device)
    while bool(going.any()):
        for _ in range(min(STEPS_PER_CHECK, width)):  # a search takes about that many
            best, at = front.masked_fill((front & 1) == 1, KEY_MAX).min(1)
            going = best != KEY_MAX
            front[each, at] = torch.where(going, best | 1, front[each, at])
            node = torch.where(going, (best & 0xFFFFFFFF) >> 1, starts)
            steps.append(torch.where(going, node, -1).to(torch.int32))
            row = rows[node if place is None else place[node].long()]  # [Q, R]
            safe = row.clamp_min(0).long()
            fresh = (row >= 0) & ~seen.gather(1, safe) & going.unsqueeze(1)
            seen[each.unsqueeze(1).expand_as(safe)[fresh], safe[fresh]] = True
            n_dist += fresh.sum(1)
            new = torch.where(fresh, order_key(distances.at(row), safe << 1), KEY_MAX)
            front = torch.cat([front, new], 1).sort(1).values[:, :width]
    keys = torch.where(front == KEY_MAX, KEY_MAX, (front >> 32 << 32) | ((front & 0xFFFFFFFF) >> 1))
    visited = torch.stack(steps, 1)
    return keys, n_dist, visited[:, : int((visited >= 0).sum(1).max())]


def descend(index: Hnsw, distances: QueryDistances) -> tuple[Tensor, Tensor]:
    """Where each query enters the base layer, int64 [Q], and distances computed above it."""
    starts = torch.full((distances.n_queries,), index.entry_node, device=distances.points.device)
    spent = torch.full_like(starts, min(1, len(index.upper)))
    place, rows = index.stairs
    for level in range(len(index.upper) - 1, -1, -1):
        keys, n_dist, _ = beam(rows, place[level], starts, distances, 1)
        starts = key_node(keys[:, 0])
        spent += n_dist - 1  # the start's distance came down with it
    return starts, spent


def search_hnsw(
    index: Hnsw, points: Points, queries: Tensor, k: int, width: int
) -> tuple[SearchResult, Tensor]:
    """The k best nodes of each query: greedy descent, then a base-layer search of some width.

    Returns:
        The result, whose n_dist counts the base layer as `lgp.search` does (the node where the
        descent ends is one), and the distances computed on the layers above, int64 [Q] (a node
        counts once per layer, but the start of a layer only on the top one; 0 without layers).
    Raises:
        ValueError: k outside 1..N, width below k.
    """
    if not 1 <= k <= points.n:
        raise ValueError(f"k={k} is outside 1..{points.n} (the number of nodes); lower k")
    if width < k:
        raise ValueError(f"search width {width} is below k={k}; raise the width or lower k")
    check_dimensions(points, queries)
    none = torch.empty(0, k, dtype=torch.int64, device=points.device)
    if len(queries) == 0:
        return SearchResult(none, none.float(), none[:, 0]), none[:, 0]
    if kernels.usable(points.vectors):
        keys, spent, above = kernels.search_hnsw(
            points, index.base.neighbors, index.stairs, index.entry_node, queries, width, k
        )
        return SearchResult(key_node(keys), key_distance(keys), spent), above
    parts = []
    for _, distances in query_blocks(points, queries):
        starts, above = descend(index, distances)
        keys, spent, _ = beam(index.base.neighbors, None, starts, distances, width)
        parts.append((keys[:, :k], spent, above))
    keys, spent, above = (torch.cat(part) for part in zip(*parts, strict=True))
    return SearchResult(key_node(keys), key_distance(keys), spent), above


def walk_hnsw(
    index: Hnsw, distances: QueryDistances, widths: Sequence[int] = (), budget: int = 0
) -> tuple[Walk, Tensor]:
    """Descend, then walk the base layer once for every width and budget (see `lgp.search.walk`).

    Args:
        budget: distances to spend at least, layers above included; 0 = only widths decide. The
            descent is always finished, and the node where it ends is always seen: a budget below
            its cost is exceeded. The base part of a budget b is max(1, b - n_above).
    Returns:
        The walk of the base layer, counted as by `search_hnsw`, and n_above, int64 [Q].
    """
    starts, above = descend(index, distances)
    if budget > 0 and len(above):
        budget = max(1, budget - int(above.min()))
    return walk(index.base, distances, widths, budget, starts), above


def visited_by_hnsw(
    index: Hnsw, points: Points, nodes: Tensor, width: int, base: Graph | None = None
) -> Tensor:
    """U_i: base-layer nodes that a hierarchical search for each node visits, int32 [A, V] (§4).

    -1 pads. The layers above only lead to the start.

    Args:
        base: a snapshot to search instead of the index's own base layer.
    Raises:
        ValueError: width below 1.
    """
    if width < 1:
        raise ValueError(f"search width {width} is below 1; raise index.construction_width")
    neighbors = (base or index.base).neighbors
    if len(nodes) == 0:
        return torch.empty(0, 0, dtype=torch.int32, device=nodes.device)
    if kernels.usable(points.vectors):
        return kernels.visited_by_hnsw(
            points, neighbors, index.stairs, index.entry_node, nodes, width
        )
    parts = []
    for block in row_blocks(len(nodes), 2 * points.n, 1 << 30):
        distances = QueryDistances(points, nodes=nodes[block])
        if points.table is not None:
            distances = distances.with_table()
        starts, _ = descend(index, distances)
        parts.append(beam(neighbors, None, starts, distances, width)[2])
    return pad_cat(parts)
