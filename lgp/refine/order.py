"""Which nodes a selector or a language model sees first, where it cannot see all (beta < 1, §5).

In: a finished graph and vectors of queries that nobody judged. Out: a number per node, the larger
the earlier. The paper draws the nodes; these orders are ours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lgp.choices import NodeOrder
from lgp.distance import Points
from lgp.graph import Graph
from lgp.refine.repair import found_and_expanded, lost_targets, nearest
from lgp.search import query_blocks

QUERY_ORDERS = frozenset([NodeOrder.traffic, NodeOrder.blind_spots])
"""Orders that depend on queries."""


def node_priority(
    order: NodeOrder, graph: Graph, points: Points, queries: Tensor | None, width: int,
    targets: int, starts: Tensor | None = None, allowed: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """What an order ranks nodes by, int64 [N] on the CPU; None = at random.

    `traffic`: searches that expand the node. `blind_spots`: searches that should return the node
    (it is among the query's exact nearest) and do not. `in_degree`: edges that point to it;
    `low_in_degree`: the fewest first.

    Args:
        queries: float32 [Q, D], of traffic and blind_spots. width: of their searches.
        targets: exact nearest nodes of a query that its result should hold.
        starts: node each search starts from, int64 [Q]; None = the entry.
        allowed: bool [N], nodes that a search can be expected to return; None = all.
    Raises:
        ValueError: an order that reads queries, without any.
    """
    if order is NodeOrder.random:
        return None
    if order not in QUERY_ORDERS:
        degree = torch.bincount(graph.neighbors[graph.neighbors >= 0].long(), minlength=graph.n)
        return (degree if order is NodeOrder.in_degree else -degree).cpu()
    if queries is None or not len(queries):
        raise ValueError(
            f"refine.node_order={order.value} with 0 queries; name a source in repair.queries"
        )
    counts = torch.zeros(graph.n, dtype=torch.int64, device=graph.neighbors.device)
    for block, distances in query_blocks(points, queries):
        own = None if starts is None else starts[block]
        found, expanded = found_and_expanded(graph, distances, width, own)
        if order is NodeOrder.traffic:
            hit = expanded[expanded >= 0]
        else:
            exact = nearest(points, queries[block], targets, allowed)
            hit = exact[lost_targets(exact, found)]
        counts += torch.bincount(hit.long(), minlength=graph.n)
    return counts.cpu()
