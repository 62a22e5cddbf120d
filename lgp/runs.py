"""From graphs to per-query metric lines: search, expansion to documents, reranking, scoring.

In: a collection, its vectors and one index. Out: one record per (setting, query) as
`lgp.results` reads them. Averages are taken elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgp.data import Dataset
from lgp.distance import Points, exact_knn
from lgp.evaluate import MEASURES, evaluate, judged_queries
from lgp.index import Index, walk_index
from lgp.search import Walk, best_seen, query_blocks

Rerank = Callable[[Sequence[list[int]]], list[list[int]]]
"""Document rows of each query, best first, in order of `Collection.queries` -> the same rows
reordered. All queries of a setting at once, so that a language model gets full batches."""


@dataclass(frozen=True)
class Collection:
    """Documents as nodes: duplicates collapsed to one node each, ids kept in corpus order.

    Attributes:
        node_of_document: int64 [documents]. documents_of_node: rows per node, corpus order.
        queries: rows of `dataset.queries` that have a relevant document. vectors of those.
    """

    dataset: Dataset
    node_of_document: np.ndarray
    documents_of_node: list[list[int]]
    queries: list[int]
    query_vectors: Tensor
    n_left_out: int

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each document id."""
        return {name: row for row, name in enumerate(self.dataset.doc_ids)}

    @property
    def query_ids(self) -> list[str]:
        return [self.dataset.query_ids[q] for q in self.queries]


def make_collection(
    dataset: Dataset, classes: Tensor | None, query_vectors: Tensor, max_queries: int | None = None
) -> tuple[Collection, Tensor]:
    """Collapse duplicates and keep the queries that can be judged.

    Args:
        classes: duplicate classes of the document vectors, or None to keep every document.
        query_vectors: float32 [queries, D], in the order of `dataset.queries`.
    Returns:
        the collection, and the document rows that become nodes, int64 [N].
    """
    n = len(dataset.doc_ids)
    if classes is None:
        nodes = np.arange(n)
        node_of_document = nodes
    else:
        nodes, node_of_document = np.unique(classes.cpu().numpy(), return_inverse=True)
    documents_of_node: list[list[int]] = [[] for _ in range(len(nodes))]
    for document, node in enumerate(node_of_document.tolist()):
        documents_of_node[node].append(document)
    kept, left_out = judged_queries(dataset.qrels, dataset.relevance_level)
    wanted = set(kept)
    queries = [q for q, name in enumerate(dataset.query_ids) if name in wanted][:max_queries]
    return (
        Collection(
            dataset,
            node_of_document,
            documents_of_node,
            queries,
            query_vectors[queries],
            len(left_out),
        ),
        torch.from_numpy(nodes.astype(np.int64)),
    )


@dataclass(frozen=True)
class Setting:
    """One way to spend: `mode` "width" or "budget", and its value."""

    mode: str
    value: int


def evaluate_graph(
    collection: Collection,
    points: Points,
    graph: Index,
    label: dict[str, Any],
    widths: Sequence[int],
    budgets: Sequence[int],
    k: int,
    collect: bool = True,
    rerank: Rerank | None = None,
    depth: int | None = None,
    memory_bytes: int = 2 << 30,
) -> Iterator[dict[str, Any]]:
    """Search one graph at every width and budget and score each query.

    Distances spent above the base layer of an HNSW count: `n_dist` is everything, and a budget
    bounds everything (but the descent is always finished, and the base layer gets at least one).
    Lists and `reach` are of nodes seen on the base layer.

    Args:
        label: the fields `graph`, `selector`, `seed` of every record.
        k: documents a greedy list holds. depth: documents reranked; None = the whole list of a
            width, the top 20 of a budget (paper §5, §B.6).
    """
    settings = [Setting("width", w) for w in widths] + [Setting("budget", b) for b in budgets]
    lists: dict[Setting, list[list[int]]] = {s: [] for s in settings}
    spent: dict[Setting, list[int]] = {s: [] for s in settings}
    spent_above: list[int] = []
    seen_share: dict[Setting, list[float]] = {s: [] for s in settings}
    queries = collection.query_vectors.to(points.device)
    for block, distances in query_blocks(points, queries, memory_bytes):
        numbers = range(*block.indices(len(queries)))
        log, above = walk_index(graph, distances, widths, max(budgets, default=0))
        spent_above += above.tolist()
        excluded = _excluded(collection, log, numbers) if collect else None
        arrival = _arrivals(collection, log, numbers)
        counts = torch.stack(
            [
                log.stops[:, at]
                if s.mode == "width"
                else log.n_seen.minimum((s.value - above).clamp_min(1))
                for at, s in enumerate(settings)
            ],
            1,
        )  # [Q, S], on the base layer
        lengths = [k if rerank is None else max(k, _depth(s, depth)) for s in settings]
        # Filtered afterwards, a width's list is what is left of its whole frontier.
        kept = (
            lengths
            if collect
            else [max(n, s.value) for n, s in zip(lengths, settings, strict=True)]
        )
        nodes, _ = best_seen(log, counts, max(kept), excluded)
        for at, (setting, length) in enumerate(zip(settings, lengths, strict=True)):
            room = min(kept[at], setting.value) if setting.mode == "width" else kept[at]
            lists[setting] += [
                _documents(collection, row, q, length)
                for q, row in zip(numbers, nodes[:, at, :room].tolist(), strict=True)
            ]
            spent[setting] += (counts[:, at] + above).tolist()
            seen_share[setting] += [
                float((a < n).mean()) for a, n in zip(arrival, counts[:, at].tolist(), strict=True)
            ]
    for setting in settings:
        yield from _records(
            collection, label, setting, lists[setting], spent[setting], spent_above,
            seen_share[setting], k, rerank, _depth(setting, depth),
        )  # fmt: skip


def evaluate_exact(
    collection: Collection,
    points: Points,
    k: int,
    rerank: Rerank | None = None,
    depth: int = 20,
) -> Iterator[dict[str, Any]]:
    """The ceiling: exact nearest neighbors of every query, all N distances computed."""
    longest = max((len(x) for x in collection.dataset.excluded.values()), default=0)
    length = max(k, depth if rerank is not None else 0)
    want = min(points.n, length + longest)
    _, nodes = exact_knn(points, collection.query_vectors.to(points.device), want)
    lists = [_documents(collection, row, q, length) for q, row in enumerate(nodes.tolist())]
    label = {"graph": "exact", "selector": "none", "seed": -1}
    spent = [points.n] * len(lists)
    yield from _records(
        collection, label, Setting("exact", 0), lists, spent, [0] * len(lists),
        [None] * len(lists), k, rerank, depth,
    )  # fmt: skip


def _depth(setting: Setting, depth: int | None) -> int:
    """Documents reranked."""
    if depth is not None:
        return depth
    return setting.value if setting.mode == "width" else 20


def _documents(collection: Collection, nodes: list[int], query: int, length: int) -> list[int]:
    """Expand nodes to document rows in corpus order, without the query's excluded documents."""
    dataset = collection.dataset
    banned = dataset.excluded.get(dataset.query_ids[collection.queries[query]], frozenset())
    out: list[int] = []
    for node in nodes:
        if node < 0 or len(out) >= length:
            break
        out += [d for d in collection.documents_of_node[node] if dataset.doc_ids[d] not in banned]
    return out[:length]


def _excluded(collection: Collection, log: Walk, numbers: range) -> Tensor | None:
    """bool [Q, T]: seen nodes all of whose documents are excluded for the query."""
    dataset = collection.dataset
    if not dataset.excluded:
        return None
    row_of = collection.row_of
    nodes = log.nodes.cpu().numpy()
    mask = np.zeros(nodes.shape, bool)
    for at, query in enumerate(numbers):
        banned = dataset.excluded.get(dataset.query_ids[collection.queries[query]])
        if not banned:
            continue
        rows = {row_of[name] for name in banned if name in row_of}
        touched = {int(collection.node_of_document[row]) for row in rows}
        gone = [n for n in touched if rows.issuperset(collection.documents_of_node[n])]
        mask[at] = np.isin(nodes[at], gone)
    return torch.from_numpy(mask).to(log.nodes.device)


def _arrivals(collection: Collection, log: Walk, numbers: range) -> list[np.ndarray]:
    """Per query: when each relevant document was seen (distances before it), or never (huge)."""
    dataset = collection.dataset
    row_of = collection.row_of
    nodes = log.nodes.cpu().numpy()
    out = []
    for at, query in enumerate(numbers):
        judged = dataset.qrels[dataset.query_ids[collection.queries[query]]]
        relevant = [d for d, grade in judged.items() if grade >= dataset.relevance_level]
        targets = np.array([collection.node_of_document[row_of[d]] for d in relevant])
        order = np.argsort(nodes[at], kind="stable")
        place = np.searchsorted(nodes[at], targets, sorter=order)
        place = order[np.minimum(place, len(order) - 1)]
        out.append(np.where(nodes[at][place] == targets, place, np.iinfo(np.int64).max))
    return out


def _records(
    collection: Collection,
    label: dict[str, Any],
    setting: Setting,
    lists: list[list[int]],
    spent: list[int],
    spent_above: list[int],
    seen_share: Sequence[float | None],
    k: int,
    rerank: Rerank | None,
    depth: int,
) -> Iterator[dict[str, Any]]:
    dataset, names = collection.dataset, collection.query_ids
    qrels = {name: dataset.qrels[name] for name in names}
    rankings = {"greedy": [ranked[:k] for ranked in lists]}
    if rerank is not None:
        heads = rerank([ranked[:depth] for ranked in lists])
        rankings["rerank"] = [
            head + ranked[depth:] for head, ranked in zip(heads, lists, strict=True)
        ]
    for ranking, found in rankings.items():
        run = {
            name: [dataset.doc_ids[d] for d in ranked]
            for name, ranked in zip(names, found, strict=True)
        }
        scores = evaluate(qrels, run, dataset.relevance_level)
        for q, name in enumerate(names):
            yield {
                **label,
                "ranking": ranking,
                "mode": setting.mode,
                "value": setting.value,
                "query_id": name,
                "n_dist": int(spent[q]),
                "n_dist_above": int(spent_above[q]),
                "n_returned": len(found[q]),
                "reach": seen_share[q],
                **{measure: scores[name][measure] for measure in MEASURES},
            }
