"""The one-edge study (paper section 3): what changing one edge ahead of a search is worth.

In: a graph, query distances, relevant nodes. Out: per query the share of relevant documents *seen*
with the graph as it is, with the best one-edge change, and on average over all of them. A search
is paused at the first expansion after P distances; for every neighbor z of the node v about to be
expanded and every node c two hops from v, v's edge to z becomes one to c and the search goes on for
C more distances. Only v's row differs and v is expanded once, so a variant is the same search with
another row at its next step: all variants of a query walk side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lgp.distance import KEY_MAX, key_node, order_key, row_blocks
from lgp.graph import Graph
from lgp.search import QueryDistances, walk

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pause:
    """A search just before its next expansion.

    Attributes:
        node: v, the node about to be expanded. seen: int64 [S], in order. open_keys: int64 [O],
            `order_key` of seen nodes still to be expanded, v's own left out.
    """

    node: int
    seen: Tensor
    open_keys: Tensor


@dataclass(frozen=True)
class OneEdge:
    """Share of relevant documents seen, fractions; row per query that could be paused.

    Attributes:
        queries: int64 [Q], their numbers. continuations: the values of C.
        vanilla, uniform, oracle: float64 [Q, C]. uniform_error: float64 [Q, C], standard error of
            the mean over pairs where only some were tried, else 0; oracle is then a lower bound.
        n_pairs: int64 [Q], pairs there are.
    """

    queries: NDArray[np.int64]
    continuations: tuple[int, ...]
    vanilla: Floats
    uniform: Floats
    oracle: Floats
    uniform_error: Floats
    n_pairs: NDArray[np.int64]


def pause(graph: Graph, distances: QueryDistances, budget: int) -> list[Pause | None]:
    """Stop every search at its first expansion after `budget` distances; None where the graph was
    exhausted before (ValueError: a budget below 1)."""
    log = walk(graph, distances, budget=budget)
    found: list[Pause | None] = []
    for keys, n_seen, visited in zip(log.keys, log.n_seen.tolist(), log.visited, strict=True):
        seen = key_node(keys[:n_seen])
        unvisited = ~torch.isin(seen, visited[visited >= 0].long())
        open_keys = keys[:n_seen][unvisited].sort().values
        if n_seen < budget or len(open_keys) == 0:
            found.append(None)
        else:
            found.append(Pause(int(key_node(open_keys[0])), seen, open_keys[1:]))
    return found


def two_hop(graph: Graph, node: int) -> Tensor:
    """Nodes reachable through a neighbor, neither neighbors nor the node itself; int64, rising."""
    row = graph.neighbors[node]
    row = row[row >= 0].long()
    reached = graph.neighbors[row].flatten().long()
    reached = reached[reached >= 0].unique()
    near = torch.isin(reached, torch.cat([row, row.new_tensor([node])]))
    far: Tensor = reached[~near]
    return far


def variants(graph: Graph, node: int) -> Tensor:
    """Every row of `node` with one neighbor exchanged for a node two hops away, int32 [V, R]."""
    row = graph.neighbors[node]
    degree = int((row >= 0).sum())
    candidates = two_hop(graph, node).to(torch.int32)
    rows: Tensor = row.repeat(degree, len(candidates), 1)  # [z, c, R]
    for slot in range(degree):
        rows[slot, :, slot] = candidates
    return rows.flatten(0, 1)


def resume(
    graph: Graph, to_query: Tensor, start: Pause, rows: Tensor, weights: Tensor,
    continuations: Sequence[int],
) -> Tensor:  # fmt: skip
    """Go on from a pause with other rows at its node.

    Args:
        to_query: float32 [N], D from the query to every node. rows: int32 [V, R].
        weights: float64 [N], relevant documents at each node.
        continuations: values of C, distances computed after the pause.
    Returns:
        relevant documents seen after the pause within each C, float64 [V, len(continuations)].
    """
    blocks = row_blocks(len(rows), graph.n + 64 * max(continuations))
    parts = [
        _resume(graph, to_query, start, rows[block], weights, continuations) for block in blocks
    ]
    return torch.cat(parts) if parts else torch.zeros(0, len(continuations), dtype=torch.float64)


def _resume(
    graph: Graph, to_query: Tensor, start: Pause, rows: Tensor, weights: Tensor,
    continuations: Sequence[int],
) -> Tensor:  # fmt: skip
    device, n, most = rows.device, len(rows), max(continuations)
    limits = torch.tensor(list(continuations), device=device)
    each = torch.arange(n, device=device)
    seen = torch.zeros(n, graph.n, dtype=torch.bool, device=device)
    seen[:, start.seen] = True
    room = most + graph.max_degree
    heap = torch.full((n, len(start.open_keys) + room), KEY_MAX, device=device)
    heap[:, : len(start.open_keys)] = start.open_keys
    spent = torch.zeros(n, dtype=torch.int64, device=device)
    found = torch.zeros(n, len(continuations), dtype=torch.float64, device=device)
    going = torch.ones(n, dtype=torch.bool, device=device)
    while bool(going.any()):
        safe = rows.clamp_min(0).long()
        fresh = (rows >= 0) & ~seen.gather(1, safe) & going.unsqueeze(1)
        arrival = spent.unsqueeze(1) + fresh.cumsum(1)  # 1 for the first distance after the pause
        fresh &= arrival <= most
        counted = fresh.unsqueeze(2) & (arrival.unsqueeze(2) <= limits)  # [V, R, C]
        found += (weights[safe].unsqueeze(2) * counted).sum(1)
        keys = order_key(to_query[safe], safe)
        place = torch.where(fresh, len(start.open_keys) + arrival - 1, heap.shape[1] - 1)
        heap.scatter_(1, place, torch.where(fresh, keys, KEY_MAX))
        seen[each.unsqueeze(1).expand_as(safe)[fresh], safe[fresh]] = True
        spent += fresh.sum(1)
        best, at = heap.min(1)
        going = going & (best != KEY_MAX) & (spent < most)
        heap[each, at] = torch.where(going, KEY_MAX, best)
        rows = torch.where(going.unsqueeze(1), graph.neighbors[key_node(best).clamp_min(0)], -1)
    return found


def study(
    graph: Graph,
    distances: QueryDistances,
    relevant: Sequence[dict[int, int]],
    budget: int,
    continuations: Sequence[int],
    max_pairs: int | None = None,
    seed: int = 0,
) -> OneEdge:
    """The whole study at one P.

    Args:
        relevant: per query {node: relevant documents at it}. budget: P.
        max_pairs: pairs (z, c) tried per query, drawn with the seed; None = all of them.
    Raises:
        ValueError: another number of queries, no C, or a query without a relevant document.
    """
    if len(relevant) != distances.n_queries or not continuations or min(continuations) < 1:
        raise ValueError(
            f"{len(relevant)} sets of relevant nodes for {distances.n_queries} queries, "
            f"C {list(continuations)}; give one set a query and C >= 1"
        )
    if not all(relevant):
        raise ValueError("a query has no relevant document; leave such queries out")
    draw = torch.Generator().manual_seed(seed)
    table = distances.table if distances.table is not None else distances.with_table().table
    assert table is not None
    numbers, rows = [], []
    for query, start in enumerate(pause(graph, distances, budget)):
        if start is None:
            continue
        pairs = variants(graph, start.node)
        if not len(pairs):
            continue
        n_pairs = len(pairs)
        if max_pairs is not None and n_pairs > max_pairs:
            pairs = pairs[torch.randperm(n_pairs, generator=draw)[:max_pairs].to(pairs.device)]
        weights = torch.zeros(graph.n, dtype=torch.float64)
        for node, count in relevant[query].items():
            weights[node] = count
        weights = weights.to(graph.neighbors.device)
        own = graph.neighbors[start.node].unsqueeze(0)
        found = resume(graph, table[query], start, torch.cat([own, pairs]), weights, continuations)
        share = ((found + weights[start.seen].sum()) / weights.sum()).cpu().numpy()
        tried = share[1:]
        sampled = len(tried) < n_pairs and len(tried) > 1
        spread = tried.std(0, ddof=1) if sampled else np.zeros(len(continuations))
        numbers.append((query, n_pairs))
        rows.append((share[0], tried.mean(0), tried.max(0), spread / len(tried) ** 0.5))
    stacked = [
        np.array([row[at] for row in rows]).reshape(-1, len(continuations)) for at in range(4)
    ]
    ids = np.array(numbers, dtype=np.int64).reshape(-1, 2)
    return OneEdge(
        ids[:, 0], tuple(continuations), stacked[0], stacked[1], stacked[2], stacked[3], ids[:, 1]
    )  # fmt: skip
