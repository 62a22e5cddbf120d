"""`index.connect`: every node is reachable, by few edges, and the changes are data."""

from __future__ import annotations

import pytest
import torch

from lgp.distance import Metric
from lgp.graph import Graph, reachable, validate
from lgp.points import make_points
from lgp.refine.connect import connect
from lgp.refine.log import Decisions, EditLog, Reason, apply_edits, undo_edits

LINE = make_points(torch.tensor([[0.0], [1.0], [2.0], [3.0], [10.0]]), Metric.l2)


def test_an_edge_is_appended_at_the_nearest_reachable_node() -> None:
    rows = torch.tensor([[1, -1], [0, 2], [1, -1], [4, -1], [3, -1]], dtype=torch.int32)
    joined, edits = connect(Graph(rows, 0, Metric.l2), LINE)
    # 3 and 4 are cut off; the nearest reachable node of 3 is 2, which has room; 4 follows from 3.
    assert joined.neighbors.tolist() == [[1, -1], [0, 2], [1, 3], [4, -1], [3, -1]]
    assert edits.node.tolist() == [2] and edits.added.tolist() == [3]
    assert edits.reason.tolist() == [int(Reason.connect)]


def test_a_full_row_gives_up_its_victim() -> None:
    rows = torch.tensor([[1, 2], [0, 2], [1, 0], [2, 1], [3, -1]], dtype=torch.int32)
    joined, edits = connect(Graph(rows, 0, Metric.l2), LINE)
    # 3's nearest is 2 = [1, 0]: neither brings a node of its own, and their gap is shared, so the
    # smaller id 0 goes. 4's nearest is 3 = [2, 1]: 1 brings 0; 2 brings 3 itself and 1: 2 goes.
    assert joined.neighbors[2].tolist() == [1, 3]
    assert bool(reachable(joined).all()) and len(edits.node) == 2
    validate(joined)


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_become_connected_and_come_undone(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = make_points(torch.randn(80, 4, generator=generator), Metric.l2)
    rows = torch.full((80, 4), -1, dtype=torch.int32)
    for node in range(80):
        few = torch.randperm(80, generator=generator)
        few = few[few != node][: int(torch.randint(0, 5, (1,), generator=generator))]
        rows[node, : len(few)] = few.int()
    graph = Graph(rows, 0, Metric.l2)
    joined, edits = connect(graph, points)
    validate(joined)
    assert not bool(reachable(graph).all()) and bool(reachable(joined).all())
    none = torch.zeros(0, dtype=torch.int32)
    header = {
        "when": "post", "base_sha256": graph.digest(), "result_sha256": joined.digest(),
    }  # fmt: skip
    log = EditLog(edits, Decisions(none, none.view(0, 1), none, none), header)
    assert apply_edits(graph, log).digest() == joined.digest()
    assert undo_edits(joined, log).digest() == graph.digest()


def test_a_connected_graph_is_left_alone() -> None:
    rows = torch.tensor([[1], [2], [3], [4], [0]], dtype=torch.int32)
    graph = Graph(rows, 0, Metric.l2)
    joined, edits = connect(graph, LINE)
    assert torch.equal(joined.neighbors, rows) and len(edits.node) == 0
