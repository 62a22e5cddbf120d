"""Which nodes are asked about under a budget (beta < 1, §5), as a configuration names them.

In: a finished index, the knobs, latent queries. Out: bool per node. The orders themselves are in
`lgp.refine.order`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lgp.config import Config
from lgp.distance import Points
from lgp.embeddings import query_vectors
from lgp.index import Index, base_layer
from lgp.refine.order import QUERY_ORDERS, node_priority
from lgp.refine.step import chosen_nodes
from lgp.repairs import Latent, Sources, free_sources, repair_inputs, start_nodes
from lgp.store import Store


def asked_inputs(config: Config, texts: str) -> list[Any]:
    """What decides which nodes are asked about, besides the graph: a part of a stage's key.

    Args:
        texts: digest of titles and bodies.
    """
    c = config.refine
    inputs: list[Any] = [c.node_budget, c.node_order.value, c.seed]
    if c.node_budget < 1 and c.node_order in QUERY_ORDERS:
        inputs.append(repair_inputs(config, texts, free_sources(config.repair)))
    return inputs


def asked_nodes(
    config: Config, index: Index, points: Points, latent: Callable[[Sources], Latent],
    store: Store, device: str, limit: int | None = None,
) -> Tensor:  # fmt: skip
    """The first nodes of the configured order that the budget pays for, bool [N].

    Args:
        latent: gathers latent queries of some sources; called where the order reads queries.
        limit: at most so many nodes.
    """
    c, graph = config.refine, base_layer(index)
    queries, starts, priority = None, None, None
    if c.node_budget < 1 or limit is not None:
        if c.node_order in QUERY_ORDERS:
            texts = latent(free_sources(config.repair)).texts
            queries = query_vectors(store, texts, config.embedder, device).to(points.device)
            starts = start_nodes(index, points, queries)
        priority = node_priority(
            c.node_order, graph, points, queries, config.repair.width, config.repair.targets, starts
        )
    return chosen_nodes(graph.n, c.node_budget, c.seed, limit=limit, priority=priority)
