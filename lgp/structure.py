"""Structure of a graph beyond degree bounds: hubs, components, edge lengths, hops (Table 15).

In: a flat graph, or the base layer of an HNSW, and its points. Out: plain numbers for
summary.json. They describe a finished graph and name no stage, so more can be added at any time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from lgp.distance import Points, row_blocks
from lgp.graph import Graph

Numbers = npt.NDArray[Any]

HUB_NODES = 100
"""One node in so many counts as a hub: the 1 % with the largest in-degree."""


def structure(graph: Graph, points: Points) -> dict[str, Any]:
    """What the edges look like as a whole; Python ints and floats, all finite, JSON-able.

    Hops and reachability start at `graph.entry_node`, as `n_unreachable` does. On the base layer
    of an HNSW that is the node where the descent *starts*, on the top layer; where it lands
    depends on the query and is nearer to it, so walks there take fewer hops than stated here.

    Args:
        points: what the graph was built on, same N, same device.
    Returns:
        degree_histogram: out-degrees.
        in_degree: mean, median, p90, p99, max, zero (nodes nothing points to), histogram.
        hub_share: edges that point to the 1 % of nodes (rounded down, at least one) with the
            largest in-degree, over all edges. Ties cannot change it.
        strongly_connected_share: nodes of the largest strongly connected component over N;
            n_strong_components: how many there are, single nodes included.
        reachable_share: nodes a walk from the entry can reach, itself included, over N.
        edge_length: mean, p10, median, p90, max of D over all edges, in the metric's D.
        path_length: mean, median, max, histogram of hops from the entry over reachable nodes, the
            entry with its 0 hops included.
    Histograms are lists of [low, high, count], both ends included: of in-degrees in powers of two
    (0, 1, 2 to 3, 4 to 7, ...), of the others a line per value that occurs. Percentiles are
    interpolated linearly. Without edges shares of edges and edge lengths are 0.
    """
    degree = graph.degrees().cpu().numpy()
    targets = graph.neighbors[graph.neighbors >= 0].cpu().numpy()  # rows one after the other
    starts = np.concatenate([[0], degree.cumsum()])
    links = csr_array((np.ones(len(targets), np.int8), targets, starts), shape=(graph.n, graph.n))
    n_components, component = connected_components(links, directed=True, connection="strong")
    hops = dijkstra(links, indices=graph.entry_node, unweighted=True)
    hops = hops[np.isfinite(hops)].astype(np.int64)
    in_degree = np.bincount(targets, minlength=graph.n)
    largest = np.sort(in_degree)[-max(1, graph.n // HUB_NODES) :]
    return {
        "degree_histogram": _histogram(degree),
        "in_degree": _spread(in_degree, {"p90": 90, "p99": 99})
        | {"zero": int((in_degree == 0).sum()), "histogram": _doubling_histogram(in_degree)},
        "hub_share": int(largest.sum()) / max(1, len(targets)),
        "strongly_connected_share": int(np.bincount(component).max()) / graph.n,
        "n_strong_components": int(n_components),
        "reachable_share": len(hops) / graph.n,
        "edge_length": _spread(_edge_lengths(graph, points), {"p10": 10, "p90": 90}),
        "path_length": _spread(hops, {}) | {"histogram": _histogram(hops)},
    }


def _edge_lengths(graph: Graph, points: Points) -> Numbers:
    """D of every edge, float32 [edges], rows one after the other."""
    nodes = torch.arange(graph.n, device=graph.neighbors.device)
    parts = [np.empty(0, np.float32)]
    values = max(1, graph.max_degree) * points.vectors.shape[1]
    for block in row_blocks(graph.n, values, 16 << 20):  # what fits a cache is twice as fast
        rows = graph.neighbors[block]
        lengths = points.between(nodes[block].unsqueeze(1), rows).squeeze(1)  # [B, R]
        parts.append(lengths[rows >= 0].cpu().numpy())
    return np.concatenate(parts)


def _spread(values: Numbers, percentiles: dict[str, int]) -> dict[str, Any]:
    """Mean, median, maximum and the named percentiles; zeros for no values."""
    values = values if len(values) else np.zeros(1, values.dtype)
    asked = {"median": 50} | percentiles
    found = np.percentile(values.astype(np.float64), list(asked.values())).tolist()
    spread = {"mean": float(values.mean(dtype=np.float64))} | dict(zip(asked, found, strict=True))
    return spread | {"max": values.max().item()}


def _histogram(values: Numbers) -> list[list[int]]:
    """[value, value, count] of each value that occurs."""
    found, counts = np.unique(values, return_counts=True)
    return [[v, v, n] for v, n in zip(found.tolist(), counts.tolist(), strict=True)]


def _doubling_histogram(values: Numbers) -> list[list[int]]:
    """[low, high, count] of 0, 1, 2 to 3, 4 to 7, ... up to the largest value."""
    n_bits = np.frexp(values.astype(np.float64))[1]  # 0 -> 0, 1 -> 1, 2 and 3 -> 2, 4 to 7 -> 3
    return [
        [1 << (bits - 1) if bits else 0, (1 << bits) - 1, count]
        for bits, count in enumerate(np.bincount(n_bits).tolist())
    ]
