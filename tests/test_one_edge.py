"""The one-edge study against brute force over whole graphs, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lgp.distance import Metric
from lgp.graph import Graph
from lgp.one_edge import pause, study, two_hop, variants
from lgp.points import make_points
from lgp.search import QueryDistances

N, R = 60, 4


def random_graph(seed: int, n: int = N, degree: int = R) -> tuple[Graph, torch.Tensor]:
    """Integer vectors, so that distances are exact and ties are many, and random rows."""
    draw = np.random.default_rng(seed)
    vectors = torch.from_numpy(draw.integers(-4, 5, (n, 3)).astype(np.float32))
    rows = np.full((n, degree), -1, np.int32)
    for node in range(n):
        others = draw.permutation([c for c in range(n) if c != node])
        length = draw.integers(1, degree + 1)
        rows[node, :length] = others[:length]
    return Graph(torch.from_numpy(rows), 0, Metric.l2), vectors


class Search:
    """Best-first search, one distance at a time, on a list of lists."""

    def __init__(self, rows: list[list[int]], distance: list[float], entry: int) -> None:
        self.rows, self.distance = rows, distance
        self.seen, self.open = [entry], [entry]

    def next(self) -> int | None:
        return min(self.open, key=lambda v: (self.distance[v], v), default=None)

    def expand(self, node: int, most: int | None = None) -> None:
        self.open.remove(node)
        for other in self.rows[node]:
            if other not in self.seen and (most is None or len(self.seen) < most):
                self.seen.append(other)
                self.open.append(other)


def brute_force(
    graph: Graph, distance: list[float], relevant: dict[int, int], budget: int, more: int
) -> tuple[float, float, float] | None:
    """(vanilla, uniform, oracle): every variant graph is searched from the entry node."""

    def run(rows: list[list[int]], limit: bool) -> Search:
        search = Search(rows, distance, graph.entry_node)
        while len(search.seen) < budget and search.open:
            search.expand(search.next())  # type: ignore[arg-type]
        if limit:
            stop = len(search.seen) + more
            while search.open and len(search.seen) < stop:
                search.expand(search.next(), stop)  # type: ignore[arg-type]
        return search

    rows = [[c for c in row if c >= 0] for row in graph.neighbors.tolist()]
    paused = run(rows, limit=False)
    node = paused.next()
    if len(paused.seen) < budget or node is None:
        return None
    two = {c for n in rows[node] for c in rows[n]} - set(rows[node]) - {node}
    total = sum(relevant.values())

    def share(changed: list[list[int]]) -> float:
        return sum(relevant.get(v, 0) for v in run(changed, limit=True).seen) / total

    tried = []
    for slot in range(len(rows[node])):
        for c in sorted(two):
            changed = [list(row) for row in rows]
            changed[node][slot] = c
            tried.append(share(changed))
    if not tried:
        return None
    return share(rows), float(np.mean(tried)), max(tried)


@pytest.mark.parametrize("seed", range(4))
def test_study_equals_brute_force(seed: int) -> None:
    graph, vectors = random_graph(seed)
    points = make_points(vectors, Metric.l2)
    draw = np.random.default_rng(seed)
    queries = torch.from_numpy(draw.integers(-4, 5, (6, 3)).astype(np.float32))
    distances = QueryDistances(points, queries=queries)
    relevant = [
        {int(v): int(draw.integers(1, 3)) for v in draw.choice(N, 7, replace=False)}
        for _ in range(6)
    ]
    each = ((queries[:, None] - vectors[None]) ** 2).sum(2).tolist()
    for budget in (5, 12):
        found = study(graph, distances, relevant, budget, (1, 3, 8, 20))
        kept = 0
        for query in range(6):
            for column, more in enumerate(found.continuations):
                expected = brute_force(graph, each[query], relevant[query], budget, more)
                if expected is None:
                    assert query not in found.queries
                    continue
                row = found.queries.tolist().index(query)
                got = (f[row, column] for f in (found.vanilla, found.uniform, found.oracle))
                assert tuple(got) == pytest.approx(expected, abs=1e-12)
                kept += 1
        assert kept > 8 and (found.uniform_error == 0).all()
        assert (found.oracle >= found.uniform - 1e-12).all()


def test_pairs_by_hand() -> None:
    rows = torch.tensor([[1, 2], [3, 0], [4, 1], [0, -1], [2, -1]], dtype=torch.int32)
    graph = Graph(rows, 0, Metric.l2)
    assert two_hop(graph, 0).tolist() == [3, 4]
    assert variants(graph, 0).tolist() == [[3, 2], [4, 2], [1, 3], [1, 4]]
    vectors = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]])
    distances = QueryDistances(make_points(vectors, Metric.l2), queries=torch.tensor([[9.0]]))
    (start,) = pause(graph, distances, 2)
    assert start is not None
    assert start.node == 2 and start.seen.tolist() == [0, 1, 2]  # a row is finished
    (exhausted,) = pause(graph, distances, 6)
    assert exhausted is None


def test_a_sample_of_pairs_estimates_the_mean() -> None:
    graph, vectors = random_graph(9, n=200, degree=8)
    distances = QueryDistances(make_points(vectors, Metric.l2), queries=vectors[:5] + 1)
    relevant = [{int(v): 1 for v in range(q, 200, 9)} for q in range(5)]
    full = study(graph, distances, relevant, 20, (30,))
    part = study(graph, distances, relevant, 20, (30,), max_pairs=30)
    drawn = full.n_pairs > 30
    assert drawn.sum() == 3 and (part.n_pairs == full.n_pairs).all()
    assert (part.uniform_error[drawn] > 0).all() and (part.uniform_error[~drawn] == 0).all()
    assert (abs(part.uniform - full.uniform) <= 5 * part.uniform_error + 1e-9).all()
    assert (part.oracle <= full.oracle + 1e-12).all()
    assert np.array_equal(part.vanilla, full.vanilla)


def test_no_query_to_pause_gives_empty_arrays() -> None:
    graph, vectors = random_graph(0)
    distances = QueryDistances(make_points(vectors, Metric.l2), queries=vectors[:2])
    found = study(graph, distances, [{1: 1}, {2: 1}], 1000, (3, 5))
    assert found.vanilla.shape == (0, 2) and len(found.queries) == 0


def test_wrong_input_is_told() -> None:
    graph, vectors = random_graph(0)
    distances = QueryDistances(make_points(vectors, Metric.l2), queries=vectors[:1])
    with pytest.raises(ValueError, match="one set a query"):
        study(graph, distances, [], 5, (3,))
    with pytest.raises(ValueError, match="no relevant document"):
        study(graph, distances, [{}], 5, (3,))
