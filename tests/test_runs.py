"""From graphs to per-query lines: duplicates, exclusions, reach, reranking, by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lgp.data import Dataset
from lgp.distance import duplicate_classes
from lgp.graph import Graph
from lgp.hnsw import Hnsw, UpperLevel
from lgp.points import make_points
from lgp.runs import evaluate_exact, evaluate_graph, make_collection

# Five documents on a circle; b2 repeats b. Degrees from d1: a 0, b 20, b2 20, c 60, d 90.
ANGLES = {"a": 0, "b": 20, "b2": 20, "c": 60, "d": 90}
QUERY = {"q": 1.0, "r": 88.0}


def on_circle(degrees: list[float]) -> torch.Tensor:
    turn = torch.tensor(degrees) * math.pi / 180
    return torch.stack([turn.cos(), turn.sin()], 1)


def dataset(qrels: dict[str, dict[str, int]], excluded: dict[str, frozenset[str]]) -> Dataset:
    names = list(ANGLES)
    return Dataset(
        "circle", names, [""] * 5, names, list(QUERY), list(QUERY), qrels, excluded, 1, {}
    )


def setup(
    qrels: dict[str, dict[str, int]], excluded: dict[str, frozenset[str]] | None = None
) -> tuple[Any, Any, Graph]:
    vectors = on_circle(list(map(float, ANGLES.values())))
    collection, rows = make_collection(
        dataset(qrels, excluded or {}), duplicate_classes(vectors), on_circle(list(QUERY.values()))
    )
    # Nodes: a=0, b(b2)=1, c=2, d=3, a path 0-1-2-3 entered at 0.
    path = torch.tensor([[1, -1], [0, 2], [1, 3], [2, -1]], dtype=torch.int32)
    return collection, make_points(vectors[rows]), Graph(path, 0)


QRELS = {"q": {"b2": 1, "d": 1}, "r": {"d": 1}}


def lines(**kwargs: Any) -> dict[tuple[str, str, int, str], dict[str, Any]]:
    collection, points, graph = setup(kwargs.pop("qrels", QRELS), kwargs.pop("excluded", None))
    label = {"graph": "vanilla", "selector": "none", "seed": 0}
    found = evaluate_graph(collection, points, graph, label, [2], [1, 3], 2, **kwargs)
    return {(r["ranking"], r["mode"], r["value"], r["query_id"]): r for r in found}


def test_duplicates_become_one_node_and_come_back_in_corpus_order() -> None:
    collection, points, _ = setup(QRELS)
    assert points.n == 4 and collection.documents_of_node == [[0], [1, 2], [3], [4]]
    exact = {r["query_id"]: r for r in evaluate_exact(collection, points, 3)}
    # q's order: a, then b and b2 as documents of one node; b2 is third: 1/log2(4) of 1 + 1/log2(3).
    assert exact["q"]["ndcg_at_10"] == pytest.approx(0.5 / (1 + 1 / math.log2(3)), abs=1e-6)
    assert exact["q"]["n_dist"] == 4 and exact["q"]["reach"] is None


def test_distances_lists_and_reach_by_hand() -> None:
    found = lines()
    # Width 2 from a: a, b seen; b visited: c seen (3 distances); best two are a and b: stop.
    q = found["greedy", "width", 2, "q"]
    assert (q["n_dist"], q["n_returned"], q["reach"]) == (3, 2, 0.5)
    # r walks the whole path: 4 distances, d seen.
    r = found["greedy", "width", 2, "r"]
    assert (r["n_dist"], r["reach"], r["ndcg_at_10"]) == (4, 1.0, 1.0)
    one = found["greedy", "budget", 1, "r"]
    assert (one["n_dist"], one["n_returned"], one["reach"], one["ndcg_at_10"]) == (1, 1, 0.0, 0.0)
    assert found["greedy", "budget", 3, "r"]["n_dist"] == 3


def test_distances_above_the_base_layer_count_by_hand() -> None:
    collection, points, path = setup(QRELS)
    # Nodes 0 (a) and 2 (c) are on layer 1, linked; 0 is the entry.
    upper = UpperLevel(torch.tensor([0, 2]), torch.tensor([[2], [0]], dtype=torch.int32))
    index = Hnsw(path, torch.tensor([1, 0, 1, 0], dtype=torch.int32), (upper,), 0)
    label = {"graph": "vanilla", "selector": "none", "seed": 0}
    found = {
        (r["mode"], r["value"], r["query_id"]): r
        for r in evaluate_graph(collection, points, index, label, [2], [1, 3, 4], 2)
    }

    def counts(mode: str, value: int, query: str) -> tuple[int, int, int]:
        r = found[mode, value, query]
        return r["n_dist"], r["n_dist_above"], r["n_returned"]

    # r (88 degrees): a and c above, down at c. There c; b, d seen; c and d are the best two: 3.
    assert counts("width", 2, "r") == (2 + 3, 2, 2)
    # q (1 degree): a and c above, down at a. There a, b, then c seen.
    assert counts("width", 2, "q") == (2 + 3, 2, 2)
    # A budget of 4 leaves 2 for the base layer: r sees c and b, whose two documents come too.
    assert counts("budget", 4, "r") == (4, 2, 2) and found["budget", 4, "r"]["reach"] == 0.0
    # 3 leaves one; of 1 the descent alone takes 2, and the node it ends at is seen all the same.
    assert counts("budget", 3, "r") == counts("budget", 1, "r") == (3, 2, 1)


def test_excluded_documents_are_walked_but_not_returned() -> None:
    banned = {"q": frozenset({"a"})}
    collect = lines(excluded=banned)["greedy", "width", 2, "q"]
    # a is out; the best two allowed seen nodes are b (two documents) and c.
    assert (collect["n_dist"], collect["n_returned"]) == (3, 2)
    assert collect["recall_at_5"] == 0.5
    post = lines(excluded=banned, collect=False)["greedy", "width", 2, "q"]
    assert (post["n_dist"], post["n_returned"]) == (3, 2)  # of {a, b} b's two documents are left
    partly = lines(excluded={"q": frozenset({"b"})})["greedy", "width", 2, "q"]
    assert partly["n_returned"] == 2 and partly["ndcg_at_10"] == pytest.approx(
        (1 / math.log2(3)) / (1 + 1 / math.log2(3)), abs=1e-6
    )  # a, b2: only b itself is dropped, its node stays


def test_post_filtering_can_leave_a_short_list() -> None:
    banned = {"q": frozenset({"a", "b", "b2"})}
    assert lines(excluded=banned, collect=False)["greedy", "width", 2, "q"]["n_returned"] == 0
    assert lines(excluded=banned)["greedy", "width", 2, "q"]["n_returned"] == 1  # c was seen


def test_queries_without_relevant_documents_are_left_out() -> None:
    collection, _, _ = setup({"q": {"a": 0}, "r": {"d": 1}})
    assert collection.query_ids == ["r"] and collection.n_left_out == 1


def backwards(lists: Sequence[list[int]]) -> list[list[int]]:
    return [rows[::-1] for rows in lists]


def test_rerank_reorders_the_list_of_its_depth() -> None:
    found = lines(rerank=backwards, depth=None)
    greedy, rerank = (found[name, "width", 2, "q"] for name in ("greedy", "rerank"))
    # Greedy a, b; a depth of 2 documents reversed: b, a. Neither holds a relevant document.
    assert greedy["ndcg_at_10"] == rerank["ndcg_at_10"] == 0.0
    deep = lines(rerank=backwards, depth=3)["rerank", "width", 2, "q"]
    assert deep["ndcg_at_10"] == pytest.approx(1 / (1 + 1 / math.log2(3)), abs=1e-6)  # b2 first
    # A depth below k = 2 leaves the rest of the list as it was.
    lists = lines(rerank=backwards, depth=1)
    for setting in ("width", 2, "r"), ("width", 2, "q"):
        assert lists["rerank", *setting] == lists["greedy", *setting] | {"ranking": "rerank"}
