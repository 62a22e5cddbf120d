"""Greedy graph search, batched over queries, with exact counting of distance computations.

In: a graph, points, queries. Out: what each query *saw*, in the order it was computed. Vanilla
and refined graphs pass through the same lines; nothing here knows of refinement.

One walk answers every search setting. Best-first search always expands the closest unvisited
node, and a search of width L does the same until its L best seen nodes are all visited. So the
search of width L is a prefix of the unbounded walk, and so is the search by a budget of b
distances (its first b seen nodes). `Walk` keeps the unbounded order and where each width stops;
`frontier` reads any setting from it. Terms: *seen* = distance computed (each counts one);
*visited* = neighbors read; *frontier* = the best L seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

STEPS_PER_CHECK = 16
"""Expansions between two looks at the stop flags: each look makes a GPU wait."""


@dataclass(frozen=True)
class QueryDistances:
    """D from each of Q queries to any node, from a table where one is laid, else on demand.

    Exactly one of `queries` (foreign vectors, float32 [Q, D]) and `nodes` (int64 [Q], queries
    that are nodes of the graph) is given.
    """

    points: Points
    queries: Tensor | None = None
    nodes: Tensor | None = None
    table: Tensor | None = None

    @property
    def n_queries(self) -> int:
        given = self.nodes if self.queries is None else self.queries
        assert given is not None
        return len(given)

    def with_table(self) -> QueryDistances:
        """The same with its [Q, N] table laid by one GEMM."""
        if self.nodes is not None:
            table = self.points.rows(self.nodes)
        else:
            assert self.queries is not None
            table = self.points.to_queries(self.queries)
        return QueryDistances(self.points, self.queries, self.nodes, table)

    def at(self, nodes: Tensor) -> Tensor:
        """D to some nodes per query: int ids [Q, X] (negative = any) -> float32 [Q, X]."""
        if self.table is not None:
            return self.table.gather(1, nodes.clamp_min(0).long())
        if self.nodes is not None:
            return self.points.between(self.nodes.unsqueeze(1), nodes).squeeze(1)
        assert self.queries is not None
        shown = self.points.vectors[nodes.clamp_min(0).long()]
        own = Points(shown, self.points.metric, origin=self.points.origin)
        return own.to_queries(self.queries.unsqueeze(1)).squeeze(1)


@dataclass(frozen=True)
class Walk:
    """The unbounded best-first walk of Q queries, cut where no setting asked for more.

    Attributes:
        keys: int64 [Q, T], `order_key` of the seen nodes in the order of computation;
            `KEY_MAX` after the last.
        n_seen: int64 [Q].
        stops: int64 [Q, W], distances computed when the search of each width stopped.
        visited: int32 [Q, V], expanded nodes in order, -1 after the last.
    """

    keys: Tensor
    n_seen: Tensor
    stops: Tensor
    visited: Tensor

    @property
    def nodes(self) -> Tensor:
        """Seen nodes in order, int64 [Q, T], -1 after the last."""
        return key_node(self.keys)

    @property
    def distances(self) -> Tensor:
        """Their distances, float32 [Q, T], +inf after the last."""
        return key_distance(self.keys)


def walk(
    graph: Graph,
    distances: QueryDistances,
    widths: Sequence[int] = (),
    budget: int = 0,
    starts: Tensor | None = None,
) -> Walk:
    """Walk until every width has stopped and `budget` distances are spent, or all is seen.

    Args:
        widths: search widths L >= 1; `stops` has a column for each.
        budget: distances to spend at least (the row that crosses it is finished: the reader
            cuts it); 0 = only widths decide.
        starts: node each query starts from, int64 [Q]; None = the entry node.
    Raises:
        ValueError: a width or the budget below 1, or neither given; not one start per query.
    """
    if budget < 0 or (not widths and budget < 1):
        raise ValueError(
            f"budget={budget} and widths={list(widths)}; give a width >= 1 or a budget >= 1"
        )
    if widths and min(widths) < 1:
        raise ValueError(f"search width {min(widths)} is below 1; raise search.widths")
    device = graph.neighbors.device
    if starts is None:
        starts = torch.full((distances.n_queries,), graph.entry_node, device=device)
    elif starts.shape != (distances.n_queries,):
        raise ValueError(
            f"starts have shape {tuple(starts.shape)} for {distances.n_queries} queries; "
            "give one node per query"
        )
    if kernels.usable(graph.neighbors):
        return Walk(*kernels.walk(graph.neighbors, starts, distances, widths, budget))
    return _walk_torch(graph, starts, distances, widths, budget)


def _walk_torch(
    graph: Graph, starts: Tensor, distances: QueryDistances, widths: Sequence[int], budget: int
) -> Walk:
    device = graph.neighbors.device
    n_queries, degree = distances.n_queries, graph.max_degree
    each = torch.arange(n_queries, device=device)
    wanted = torch.tensor(list(widths), dtype=torch.int64, device=device)
    capacity = 2 + STEPS_PER_CHECK * degree
    keys = torch.full((n_queries, capacity), KEY_MAX, device=device)  # [Q, T]
    first = starts.unsqueeze(1)
    keys[:, :1] = order_key(distances.at(first), first)
    open_keys = keys.clone()  # unvisited nodes only
    seen = torch.zeros(n_queries, graph.n, dtype=torch.bool, device=device)
    seen[each, starts] = True
    n_seen = torch.ones(n_queries, dtype=torch.int64, device=device)
    stops = torch.full((n_queries, len(widths)), -1, dtype=torch.int64, device=device)
    visited_steps: list[Tensor] = []
    going = torch.ones(n_queries, dtype=torch.bool, device=device)
    while bool(going.any()):
        room = int(n_seen.max()) + STEPS_PER_CHECK * degree + 1
        if room > keys.shape[1]:
            more = torch.full((n_queries, room), KEY_MAX, device=device)
            keys, open_keys = torch.cat([keys, more], 1), torch.cat([open_keys, more], 1)
        for _ in range(STEPS_PER_CHECK):
            best, at = open_keys.min(1)
            ahead = (keys < best.unsqueeze(1)).sum(1)  # all visited, and closer than best
            done = (ahead.unsqueeze(1) >= wanted) | (best == KEY_MAX).unsqueeze(1)
            stops = torch.where(done & (stops < 0), n_seen.unsqueeze(1), stops)
            unmet = (stops < 0).any(1) | (n_seen < budget)
            going = (best != KEY_MAX) & unmet
            open_keys[each, at] = torch.where(going, KEY_MAX, best)
            node = torch.where(going, key_node(best), 0)
            visited_steps.append(torch.where(going, node, -1).to(torch.int32))
            row = graph.neighbors[node]  # [Q, R]
            safe = row.clamp_min(0).long()
            fresh = (row >= 0) & ~seen.gather(1, safe) & going.unsqueeze(1)
            place = n_seen.unsqueeze(1) + fresh.cumsum(1) - 1
            new = torch.where(fresh, order_key(distances.at(row), safe), KEY_MAX)
            # Padding all lands in the last column, which `room` keeps free of real entries.
            place = torch.where(fresh, place, keys.shape[1] - 1)
            keys.scatter_(1, place, new)
            open_keys.scatter_(1, place, new)
            seen[each.unsqueeze(1).expand_as(safe)[fresh], safe[fresh]] = True
            n_seen = n_seen + fresh.sum(1)
    keys = keys[:, : int(n_seen.max())]
    visited = torch.stack(visited_steps, 1)
    n_visited = int((visited >= 0).sum(1).max()) if visited.numel() else 0
    return Walk(keys, n_seen, stops, visited[:, :n_visited])


def best_seen(
    walk: Walk, counts: Tensor, k: int, excluded: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k best seen nodes of each query at each of S points of its walk, ties by node.

    Args:
        counts: int64 [Q, S], distances spent: columns of `stops`, or budgets cut at `n_seen`.
        excluded: bool [Q, T], seen nodes that may not be returned.
    Returns:
        nodes int64 [Q, S, k] (-1 pads) and distances float32 [Q, S, k] (+inf pads).
    """
    if kernels.usable(walk.keys):
        best = kernels.best_seen(walk.keys, counts, k, excluded)
        return key_node(best), key_distance(best)
    position = torch.arange(walk.keys.shape[1], device=walk.keys.device)
    out = torch.full((*counts.shape, k), KEY_MAX, device=walk.keys.device)
    for at in range(counts.shape[1]):
        keys = walk.keys.masked_fill(position >= counts[:, at : at + 1], KEY_MAX)
        if excluded is not None:
            keys = keys.masked_fill(excluded, KEY_MAX)
        found = keys.topk(min(k, keys.shape[1]), dim=1, largest=False, sorted=True).values
        out[:, at, : found.shape[1]] = found
    return key_node(out), key_distance(out)


def frontier(
    walk: Walk, n_dist: Tensor, width: int, excluded: Tensor | None = None, collect: bool = True
) -> tuple[Tensor, Tensor]:
    """The best nodes among the first `n_dist` seen ones, best first, ties by node.

    Args:
        n_dist: int64 [Q]: a column of `stops`, or a budget clamped by `n_seen`.
        width: how many to return at most.
        excluded: bool [Q, T], seen nodes that may not be returned.
        collect: True returns the best `width` allowed nodes; False takes the best `width`
            nodes first and drops the excluded ones afterwards, so a list may come back short.
    Returns:
        nodes int64 [Q, width] (-1 pads) and distances float32 [Q, width] (+inf pads).
    """
    counts = n_dist.unsqueeze(1)
    if excluded is None or collect:
        nodes, distances = best_seen(walk, counts, width, excluded)
        return nodes[:, 0], distances[:, 0]
    nodes, distances = (found[:, 0] for found in best_seen(walk, counts, width))
    banned = walk.nodes.masked_fill(~excluded, -2)
    out = (nodes.unsqueeze(2) == banned.unsqueeze(1)).any(2) | (nodes < 0)
    order = out.to(torch.int8).sort(dim=1, stable=True).indices  # those kept move up
    out = out.gather(1, order)
    nodes, distances = nodes.gather(1, order), distances.gather(1, order)
    return nodes.masked_fill(out, -1), distances.masked_fill(out, torch.inf)


def query_blocks(
    points: Points, queries: Tensor, memory_bytes: int = 1 << 30
) -> Iterator[tuple[slice, QueryDistances]]:
    """Cut queries into blocks whose distance tables fit in memory.

    Args:
        memory_bytes: a block's table takes at most this; below 64 rows' worth of it no table
            is laid and distances are computed on demand.
    """
    check_dimensions(points, queries)
    table_fits = 64 * 4 * points.n <= memory_bytes or len(queries) * 4 * points.n <= memory_bytes
    for block in row_blocks(len(queries), points.n, memory_bytes if table_fits else 1 << 30):
        distances = QueryDistances(points, queries=queries[block])
        yield block, distances.with_table() if table_fits else distances


@dataclass(frozen=True)
class SearchResult:
    """Ranked nodes of each query, best first.

    Attributes:
        nodes: int64 [Q, k], -1 pads short lists.
        distances: float32 [Q, k], +inf pads.
        n_dist: int64 [Q], query-node distances computed.
    """

    nodes: Tensor
    distances: Tensor
    n_dist: Tensor


def search_nodes(
    graph: Graph, points: Points, queries: Tensor, k: int, width: int = 0, budget: int = 0
) -> SearchResult:
    """The k best nodes of each query, by search width or by distance budget.

    Raises:
        ValueError: k outside 1..N, width below k, both or neither of width and budget.
    """
    if not 1 <= k <= points.n:
        raise ValueError(f"k={k} is outside 1..{points.n} (the number of nodes); lower k")
    if (width > 0) == (budget > 0):
        raise ValueError(f"width={width} and budget={budget}; give exactly one of them, >= 1")
    if 0 < width < k:
        raise ValueError(f"search width {width} is below k={k}; raise the width or lower k")
    check_dimensions(points, queries)
    if len(queries) == 0:
        none = torch.empty(0, k, dtype=torch.int64, device=points.device)
        return SearchResult(none, none.float(), none[:, 0])
    if width and kernels.usable(graph.neighbors):
        # One setting reads few of the N distances: computing those few beats a table.
        keys, spent = kernels.search(
            graph.neighbors, graph.entry_node, QueryDistances(points, queries), width, k
        )
        return SearchResult(key_node(keys), key_distance(keys), spent)
    parts = []
    for _, distances in query_blocks(points, queries):
        log = walk(graph, distances, [width] if width else [], budget)
        spent = log.stops[:, 0] if width else log.n_seen.clamp_max(budget)
        parts.append((*frontier(log, spent, k), spent))
    nodes, found, spent = (torch.cat(part) for part in zip(*parts, strict=True))
    return SearchResult(nodes, found, spent)
