"""The core in five lines, without Hydra: build, refine, repair, search.

In: arrays. Out: graphs, edit logs, results. NumPy arrays and tensors are both taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Metric, Points, check_dimensions, check_vectors
from lgp.graph import Graph
from lgp.points import make_points
from lgp.refine.log import EditLog
from lgp.refine.post import refine_post
from lgp.refine.repair import RepairSettings, decisions_of
from lgp.refine.repair import repair as repair_graph
from lgp.refine.select import Selector, Uniform, farthest, first, nearest
from lgp.refine.step import Refiner, StepSettings, chosen_nodes
from lgp.search import SearchResult, search_nodes
from lgp.vamana import VamanaSettings, build_vamana

Array = np.ndarray | Tensor


def _same_number(points: Points, graph: Graph) -> None:
    if points.n != graph.n:
        raise ValueError(f"{points.n} vectors for a graph of {graph.n} nodes; give one per node")


def _metric(name: str) -> Metric:
    known = [m.value for m in Metric]
    if name not in known:
        raise ValueError(
            f"metric {name!r} is unknown; known: {', '.join(known)} (raw inner product is no "
            "metric to prune with: normalise and use cosine)"
        )
    return Metric(name)


def _points(vectors: Array, metric: Metric) -> Points:
    return make_points(torch.as_tensor(vectors, dtype=torch.float32), metric)


def _queries(points: Points, queries: Array) -> Tensor:
    asked = torch.as_tensor(queries, dtype=torch.float32)
    check_dimensions(points, asked)
    if len(asked):
        check_vectors(asked, points.metric, "queries")
    return asked


def build(vectors: Array, metric: str = "cosine", **settings: Any) -> Graph:
    """Build a Vamana graph over float32 vectors [N, D] (unit rows under cosine).

    Args:
        settings: fields of `lgp.vamana.VamanaSettings` (max_degree, construction_width, ...).
    Raises:
        ValueError: vectors or settings that cannot be indexed, naming the rows or the key.
    """
    return build_vamana(_points(vectors, _metric(metric)), VamanaSettings(**settings))


def refine(
    graph: Graph,
    vectors: Array,
    texts: Sequence[str] | None = None,
    selector: str | Selector = "farthest",
    *,
    construction_width: int = 125,
    node_budget: float = 1.0,
    seed: int = 0,
    **settings: Any,
) -> tuple[Graph, EditLog]:
    """Refine a finished graph (paper §4); returns the refined graph and the log of its edits.

    Args:
        texts: a text per node; needed by text selectors ("llm", "encoder") only.
        selector: "farthest", "nearest", "first", "uniform", "encoder", "llm" (the embedded
            demonstration model), or any `lgp.refine.select.Selector`.
        settings: fields of `lgp.refine.step.StepSettings` (edit_budget, shortlist_size, ...).
    Raises:
        ValueError: an unknown selector, texts missing or of another number than nodes.
    """
    points = _points(vectors, graph.metric)
    _same_number(points, graph)
    if texts is not None and len(texts) != graph.n:
        raise ValueError(f"{len(texts)} texts for a graph of {graph.n} nodes; give one per node")
    choose = _selector(selector, texts, seed)
    step = StepSettings(**{"alpha": graph.alpha, **settings})
    refiner = Refiner(points, choose, step, chosen_nodes(graph.n, node_budget, seed))
    refined, edits = refine_post(graph, points, refiner, construction_width)
    header = {
        "when": "post", "base_sha256": graph.digest(), "result_sha256": refined.digest(),
    }  # fmt: skip
    return refined, EditLog(edits, refiner.all_decisions(), header)


def _selector(selector: str | Selector, texts: Sequence[str] | None, seed: int) -> Selector:
    if not isinstance(selector, str):
        return selector
    plain: dict[str, Selector] = {
        "farthest": farthest, "nearest": nearest, "first": first, "uniform": Uniform(seed),
    }  # fmt: skip
    if selector in plain:
        return plain[selector]
    if selector not in ("encoder", "llm"):
        raise ValueError(
            f"selector {selector!r} is unknown; known: {', '.join([*plain, 'encoder', 'llm'])}"
        )
    if texts is None:
        raise ValueError(f"selector {selector!r} reads documents; give texts, one per node")
    from lgp.selectors import default_text_selector

    return default_text_selector(selector, list(texts))


def repair(
    graph: Graph, vectors: Array, queries: Array, held_out: Array | None = None, **settings: Any
) -> tuple[Graph, EditLog]:
    """Add edges to the exact nearest nodes that searches for some queries miss; ours, not in the
    paper. Returns the repaired graph and the log of its edits.

    Args:
        queries: float32 [Q, D], a query log, titles, ...: nobody has to judge them.
        held_out: float32 [H, D], others that are only measured: do they gain, too?
        settings: fields of `lgp.refine.repair.RepairSettings` (width, targets, edit_limit, ...).
    Returns:
        the log's header holds `miss_rate`, the share of nearest nodes missed before and after, and
        `miss_rate_held_out`.
    Raises:
        ValueError: vectors of another number or dimension than the graph's, or not searchable.
    """
    points = _points(vectors, graph.metric)
    _same_number(points, graph)
    asked = _queries(points, queries)
    unseen = None if held_out is None else _queries(points, held_out)
    done = repair_graph(graph, points, asked, RepairSettings(**settings), unseen)
    header = {
        "when": "post", "method": "repair", "base_sha256": graph.digest(),
        "result_sha256": done.graph.digest(), "miss_rate": [done.miss_before, done.miss_after],
        "miss_rate_held_out": list(done.held_out),
    }  # fmt: skip
    return done.graph, EditLog(done.edits, decisions_of(done.edits), header)


def search(
    graph: Graph, vectors: Array, queries: Array, k: int = 10, width: int = 0, budget: int = 0
) -> SearchResult:
    """The k best nodes of each query by search width or by distance budget (give one).

    Raises:
        ValueError: k, width or budget out of bounds, or dimensions that differ.
    """
    points = make_points(torch.as_tensor(vectors, dtype=torch.float32), graph.metric, table_bytes=0)
    _same_number(points, graph)
    return search_nodes(graph, points, _queries(points, queries), k, width, budget)
