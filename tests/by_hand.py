"""A whole run computed again, slowly: lists from `reference`, metrics from their definitions.

For benchmark tests: integer vectors under squared L2, so distances are exact and ties are many.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from reference import Found, Rows, Space, lists, search_by_budget, search_by_width

from lgp.choices import RerankKind, SelectorKind
from lgp.cli import compose
from lgp.config import Config
from lgp.data import Dataset, load_dataset
from lgp.graph import Graph
from lgp.pipeline import run
from lgp.stages import Stages

K, WIDTHS, BUDGETS = 10, (10, 20), (15,)
SMALL = [
    "index.metric=l2", "index.max_degree=4", "index.construction_width=8", "device=cpu",
    "refine.min_coverage_gain=0", "refine.when=post", f"search.widths={list(WIDTHS)}",
    f"search.budgets={list(BUDGETS)}", "threads=1",
]  # fmt: skip


def make_vectors(dataset: Dataset, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers 0..3 in 6 dimensions; equal text and image, equal vector; a query lies one step
    from a document that is relevant to it, where it has one."""
    rng = np.random.default_rng(seed)
    known: dict[tuple[str, str], np.ndarray] = {}
    images = dataset.images or [""] * len(dataset.doc_ids)
    for key in zip(dataset.texts, images, strict=True):
        known.setdefault(key, rng.integers(0, 4, 6))
    documents = np.array([known[key] for key in zip(dataset.texts, images, strict=True)])
    row_of = {name: row for row, name in enumerate(dataset.doc_ids)}
    queries = []
    for name in dataset.query_ids:
        near = [row_of[d] for d, grade in dataset.qrels[name].items() if grade > 0][:1]
        start = documents[near[0]] if near else rng.integers(0, 4, 6)
        queries.append(start + rng.integers(0, 2, 6))
    return documents.astype(np.float32), np.array(queries, dtype=np.float32)


def run_task(
    words: Sequence[str], folder: Path, rerank: Sequence[str]
) -> tuple[Config, Path, Dataset]:
    """Run vanilla, a scripted refinement, the reranking that some words name, and the report."""
    dataset = load_dataset(compose([*words]).dataset)
    documents, queries = make_vectors(dataset, len(dataset.doc_ids))
    np.save(folder / "d.npy", documents)
    np.save(folder / "q.npy", queries)
    # Every node is asked; of its answers the shortlisted ones count.
    n = len(documents)
    answers = {str(node): [(node * 7 + step) % n for step in range(1, 30)] for node in range(n)}
    (folder / "answers.json").write_text(json.dumps(answers))
    config = compose(
        [
            *words, *SMALL, "embedder=precomputed", f"embedder.document_vectors={folder / 'd.npy'}",
            f"embedder.query_vectors={folder / 'q.npy'}", "refine=scripted",
            f"refine.answers={folder / 'answers.json'}", f"store_dir={folder / 'store'}",
            *rerank,
        ]
    )  # fmt: skip
    run(config, folder / "run")
    return config, folder / "run", dataset


def check_run(config: Config, run_dir: Path, dataset: Dataset) -> int:
    """Compare every line of a run with one computed here; returns how many there were."""
    stages = Stages(config)
    documents = np.load(str(config.embedder.document_vectors))
    queries = np.load(str(config.embedder.query_vectors))
    members: dict[bytes, list[int]] = {}
    for row, vector in enumerate(documents):
        members.setdefault(vector.tobytes(), []).append(row)
    nodes = list(members.values())  # equal vectors are one node, in corpus order
    space = Space(documents[[rows[0] for rows in nodes]])
    refined, _ = stages.refined(SelectorKind.scripted, 0, None)
    vanilla = stages.vanilla(0)
    assert isinstance(vanilla, Graph) and isinstance(refined, Graph)
    graphs = {"vanilla": vanilla, "refined": refined}
    assert refined.digest() != vanilla.digest(), "the scripted answers changed nothing"
    encodes = config.rerank.kind is RerankKind.encoder
    order = rerank_order(config, dataset) if encodes else backwards
    found = [json.loads(line) for line in (run_dir / "queries.jsonl").read_text().splitlines()]
    numbers = {name: at for at, name in enumerate(dataset.query_ids)}
    for line in found:
        query, graph = line["query_id"], graphs.get(line["graph"])
        vector = queries[numbers[query]]

        def distance(node: int, vector: np.ndarray = vector) -> float:
            return float(space.foreign(vector, node))

        seen = walk(line, graph, distance, space.n)
        depth = line["value"] if line["mode"] == "width" else 20
        length = max(K, depth)
        room = min(length, line["value"]) if line["mode"] == "width" else length
        got = document_list(dataset, query, nodes, seen, room)[:length]
        if line["ranking"] == "rerank":
            got[:depth] = order(query, got[:depth])
        else:
            got = got[:K]
        assert line["n_dist"] == len(seen.seen), line
        assert line["n_returned"] == len(got), line
        check_metrics(line, [dataset.doc_ids[row] for row in got], dataset.qrels[query])
    return len(found)


def walk(
    line: Mapping[str, Any], graph: Graph | None, distance: Callable[[int], float], n: int
) -> Found:
    """What the search of a line saw; exact search sees everything."""
    if graph is None:
        everything = list(range(n))
        return Found(everything, everything, {node: distance(node) for node in everything})
    rows: Rows = lists(graph.neighbors)
    search = search_by_width if line["mode"] == "width" else search_by_budget
    return search(rows, graph.entry_node, distance, line["value"])


def document_list(
    dataset: Dataset, query: str, nodes: Sequence[list[int]], seen: Found, room: int
) -> list[int]:
    """The best `room` nodes that are not excluded as a whole, as rows without excluded ones."""
    banned = dataset.excluded.get(query, frozenset())
    ranked = sorted(seen.seen, key=lambda node: (seen.distance[node], node))
    kept = [[row for row in nodes[node] if dataset.doc_ids[row] not in banned] for node in ranked]
    return [row for rows in [rows for rows in kept if rows][:room] for row in rows]


def encoder_words(encoder: Path) -> list[str]:
    """Reranking by a small encoder."""
    return ["rerank=encoder", f"rerank.model={encoder}", "rerank.max_tokens=32"]


def backwards(query: str, rows: list[int]) -> list[int]:
    """What a listwise reranker makes of a window when it always answers [20] > ... > [1]."""
    return rows[::-1]


def rerank_order(config: Config, dataset: Dataset) -> Callable[[str, list[int]], list[int]]:
    """Documents by the encoder's similarity, in float64; equal ones stay in order."""
    from lgp.embed import Kind, embed_hf
    from lgp.selectors import mean_encoder

    encoder = mean_encoder(str(config.rerank.model), config.rerank.max_tokens)
    documents = embed_hf(dataset.texts, Kind.DOCUMENT, encoder, "cpu", progress=False)
    queries = embed_hf(dataset.queries, Kind.QUERY, encoder, "cpu", progress=False)
    numbers = {name: at for at, name in enumerate(dataset.query_ids)}

    def order(query: str, rows: list[int]) -> list[int]:
        asked = queries[numbers[query]].astype(np.float64)
        score = {row: round(float(documents[row].astype(np.float64) @ asked), 6) for row in rows}
        return sorted(rows, key=lambda row: -score[row])

    return order


def check_metrics(line: Mapping[str, Any], ranked: list[str], judged: Mapping[str, int]) -> None:
    for k in (5, 10):
        assert math.isclose(line[f"ndcg_at_{k}"], ndcg(ranked, judged, k), abs_tol=1e-9), line
        assert math.isclose(line[f"recall_at_{k}"], recall(ranked, judged, k), abs_tol=1e-9), line


def ndcg(ranked: Sequence[str], judged: Mapping[str, int], k: int) -> float:
    """sum of grade / log2(rank + 1) over the first k, by that of the best possible order."""
    gained = sum(
        max(0, judged.get(name, 0)) / math.log2(rank + 1)
        for rank, name in enumerate(ranked[:k], start=1)
    )
    best = sorted((grade for grade in judged.values() if grade > 0), reverse=True)[:k]
    return gained / sum(grade / math.log2(rank + 1) for rank, grade in enumerate(best, start=1))


def recall(ranked: Sequence[str], judged: Mapping[str, int], k: int) -> float:
    """The share of all relevant documents that are among the first k; no hit rate."""
    relevant = {name for name, grade in judged.items() if grade >= 1}
    return len(relevant & set(ranked[:k])) / len(relevant)
