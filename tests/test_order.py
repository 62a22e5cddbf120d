"""Orders of nodes under a budget, against searches counted one by one."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lgp.choices import NodeOrder
from lgp.cli import compose
from lgp.distance import Metric, Points, exact_knn
from lgp.graph import Graph
from lgp.points import make_points
from lgp.refine.log import EditLog
from lgp.refine.order import node_priority
from lgp.refine.step import chosen_nodes
from lgp.search import QueryDistances, best_seen, walk
from lgp.stages import Stages
from lgp.vamana import VamanaSettings, build_vamana

WIDTH, TARGETS = 4, 3


@pytest.fixture(scope="module")
def made() -> tuple[Points, Graph, Tensor]:
    draw = torch.Generator().manual_seed(4)
    points = make_points(torch.randint(0, 9, (120, 6), generator=draw).float(), Metric.l2)
    graph = build_vamana(points, VamanaSettings(5, 12, 1.2, 0, 0))
    return points, graph, torch.randint(0, 9, (70, 6), generator=draw).float()


def counted(made: tuple[Points, Graph, Tensor], order: NodeOrder, allowed: Tensor) -> Counter[int]:
    points, graph, queries = made
    counts: Counter[int] = Counter()
    for query in queries.split(1):
        log = walk(graph, QueryDistances(points, queries=query).with_table(), [WIDTH])
        if order is NodeOrder.traffic:
            counts.update(x for x in log.visited[0].tolist() if x >= 0)
        else:
            found = best_seen(log, log.stops, WIDTH)[0][0, 0].tolist()
            nearest = [x for x in exact_knn(points, query, points.n)[1][0].tolist() if allowed[x]]
            counts.update(set(nearest[:TARGETS]) - set(found))
    return counts


@pytest.mark.parametrize("left_out", [0, 40])
@pytest.mark.parametrize("order", [NodeOrder.traffic, NodeOrder.blind_spots])
def test_orders_by_queries_count_their_searches(
    made: tuple[Points, Graph, Tensor], order: NodeOrder, left_out: int
) -> None:
    points, graph, queries = made
    allowed = torch.arange(graph.n) >= left_out
    priority = node_priority(order, graph, points, queries, WIDTH, TARGETS, allowed=allowed)
    want = counted(made, order, allowed)
    assert priority is not None and len(want) > 10
    assert priority.tolist() == [want[node] for node in range(graph.n)]


def test_orders_by_degree(made: tuple[Points, Graph, Tensor]) -> None:
    points, graph, _ = made
    want = Counter(x for row in graph.neighbors.tolist() for x in row if x >= 0)
    many, few = (
        node_priority(order, graph, points, None, WIDTH, TARGETS)
        for order in (NodeOrder.in_degree, NodeOrder.low_in_degree)
    )
    assert many is not None and few is not None
    assert many.tolist() == [want[node] for node in range(graph.n)] == (-few).tolist()
    assert node_priority(NodeOrder.random, graph, points, None, WIDTH, TARGETS) is None


def test_orders_by_queries_need_some(made: tuple[Points, Graph, Tensor]) -> None:
    points, graph, queries = made
    with pytest.raises(ValueError, match=r"node_order=traffic with 0 queries; name a source"):
        node_priority(NodeOrder.traffic, graph, points, queries[:0], WIDTH, TARGETS)


def test_a_priority_goes_before_the_drawn_order_and_budgets_nest() -> None:
    priority = torch.tensor([3, 1, 3, 0, 2, 1, 1, 3, 0, 0])
    drawn = torch.randperm(10, generator=torch.Generator().manual_seed(7)).tolist()
    want = sorted(drawn, key=lambda node: -int(priority[node]))
    last = torch.zeros(10, dtype=torch.bool)
    for count in range(1, 11):
        chosen = chosen_nodes(10, count / 10, 7, priority=priority)
        assert chosen.nonzero().flatten().tolist() == sorted(want[:count])
        assert bool((chosen | ~last).all())
        last = chosen


def test_a_collection_asks_about_the_nodes_of_its_order(tmp_path: Path) -> None:
    def stages(*more: str) -> Stages:
        words = ["dataset=toy", "refine=farthest", "refine.when=post", "threads=1"]
        return Stages(compose([*words, f"store_dir={tmp_path}", *more]))

    kept, logs = {}, {}
    for order in ("random", "traffic", "blind_spots", "low_in_degree"):
        own = stages("refine.node_budget=0.2", f"refine.node_order={order}")
        chosen = own.chosen(own.vanilla(0))
        kept[order] = chosen.nonzero().flatten().tolist()
        assert len(kept[order]) == int(0.2 * own.points.n)
        _, stage = own.refined(own.config.refine.selector, 0, None)
        logs[order] = EditLog.load(stage / "edits.safetensors").decisions.anchors.tolist()
        assert sorted(logs[order]) == kept[order]
    assert len(set(map(tuple, kept.values()))) == 4
