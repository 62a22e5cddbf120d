"""Search by width and by budget against two separate definitions, on both backends."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    BACKENDS,
    Case,
    make_case,
    recall,
    search_by_budget,
    search_by_width,
    table,
    unit_clusters,
)

from lgp.distance import Metric, exact_knn
from lgp.graph import Graph, reachable
from lgp.kernels import use_backend
from lgp.points import make_points
from lgp.search import QueryDistances, frontier, query_blocks, search_nodes, walk
from lgp.vamana import VamanaSettings, build_vamana

CASES = st.builds(
    make_case, seed=st.integers(0, 9999), n=st.integers(2, 40), dims=st.integers(1, 3),
    high=st.integers(1, 6), max_degree=st.integers(1, 6),
)  # fmt: skip
MANY = settings(deadline=None, derandomize=True, max_examples=60)


def ask(
    case: Case, kind: str, n_queries: int = 3
) -> tuple[QueryDistances, list[Callable[[int], float]]]:
    """Queries as lgp takes them ("nodes" or foreign; with or without tables) and as functions."""
    space, points = case.space, case.points(1 << 30 if kind == "nodes, N x N" else 0)
    if kind.startswith("nodes"):
        nodes = case.rng.integers(0, space.n, n_queries).tolist()
        given = QueryDistances(points, nodes=torch.tensor(nodes))
        distances = [lambda x, i=i: float(space.between(i, x)) for i in nodes]
    else:
        shape = (n_queries, space.vectors.shape[1])
        queries = case.rng.integers(-1, 8, shape).astype(np.float32)
        given = QueryDistances(points, queries=torch.from_numpy(queries))
        distances = [lambda x, q=q: float(space.foreign(q, x)) for q in queries]
    return given.with_table() if kind.endswith("table") else given, distances


KINDS = ["foreign", "foreign, table", "nodes", "nodes, table", "nodes, N x N"]


@pytest.mark.parametrize("backend", BACKENDS)
@MANY
@given(CASES, st.sampled_from(KINDS), st.permutations([1, 2, 4, 4, 9, 60]))
def test_one_walk_answers_every_width(
    backend: str, case: Case, kind: str, widths: list[int]
) -> None:
    given_distances, distances = ask(case, kind)
    with use_backend(backend):
        log = walk(case.graph(), given_distances, widths)
        alone = {w: walk(case.graph(), given_distances, [w]) for w in set(widths)}
    for q, distance in enumerate(distances):
        for column, width in enumerate(widths):
            truth = search_by_width(case.rows, case.entry, distance, width)
            count = len(truth.seen)
            assert int(log.stops[q, column]) == count
            assert log.nodes[q, :count].tolist() == truth.seen
            assert log.distances[q, :count].tolist() == [truth.distance[x] for x in truth.seen]
            assert log.visited[q, : len(truth.visited)].tolist() == truth.visited
            nodes, gaps = frontier(log, log.stops[:, column], width)
            best = truth.best(width)
            assert nodes[q].tolist() == best + [-1] * (width - len(best))
            assert gaps[q, : len(best)].tolist() == [truth.distance[x] for x in best]
            single = alone[width]
            assert int(single.n_seen[q]) == int(single.stops[q, 0]) == count
            assert [x for x in single.nodes[q].tolist() if x >= 0] == truth.seen
            assert [x for x in single.visited[q].tolist() if x >= 0] == truth.visited
            assert torch.isinf(single.distances[q, count:]).all()


@pytest.mark.parametrize("backend", BACKENDS)
@MANY
@given(
    CASES, st.sampled_from(KINDS), st.lists(st.integers(1, 45), min_size=1, max_size=4),
    st.lists(st.integers(1, 12), max_size=2),
)  # fmt: skip
def test_the_same_walk_answers_every_budget(
    backend: str, case: Case, kind: str, budgets: list[int], widths: list[int]
) -> None:
    given_distances, distances = ask(case, kind)
    with use_backend(backend):
        log = walk(case.graph(), given_distances, widths, max(budgets))
    for q, distance in enumerate(distances):
        for budget in budgets:
            truth = search_by_budget(case.rows, case.entry, distance, budget)
            spent = log.n_seen.clamp_max(budget)
            assert int(spent[q]) == len(truth.seen) <= budget
            assert log.nodes[q, : len(truth.seen)].tolist() == truth.seen
            assert log.visited[q, : len(truth.visited)].tolist() == truth.visited
            best = truth.best(5)
            assert frontier(log, spent, 5)[0][q].tolist() == best + [-1] * (5 - len(best))
        for column, width in enumerate(widths):
            by_width = search_by_width(case.rows, case.entry, distance, width)
            assert int(log.stops[q, column]) == len(by_width.seen)


@pytest.mark.parametrize("backend", BACKENDS)
@MANY
@given(CASES, st.sampled_from(KINDS), st.integers(0, 9999))
def test_each_query_may_start_elsewhere(backend: str, case: Case, kind: str, seed: int) -> None:
    given_distances, distances = ask(case, kind)
    starts = np.random.default_rng(seed).integers(0, case.space.n, len(distances))
    with use_backend(backend):
        log = walk(case.graph(), given_distances, [4, 2], 20, torch.from_numpy(starts))
    for q, (start, distance) in enumerate(zip(starts.tolist(), distances, strict=True)):
        for column, width in enumerate((4, 2)):
            truth = search_by_width(case.rows, start, distance, width)
            count = int(log.stops[q, column])
            assert log.nodes[q, :count].tolist() == truth.seen
        budget = search_by_budget(case.rows, start, distance, 20)
        assert log.nodes[q, : len(budget.seen)].tolist() == budget.seen


@pytest.mark.parametrize("backend", BACKENDS)
@MANY
@given(CASES, st.integers(1, 12), st.integers(0, 9999))
def test_excluded_nodes_are_walked_but_never_returned(
    backend: str, case: Case, width: int, seed: int
) -> None:
    given_distances, distances = ask(case, "foreign")
    banned = set(np.flatnonzero(np.random.default_rng(seed).random(case.space.n) < 0.4).tolist())
    with use_backend(backend):
        log = walk(case.graph(), given_distances, [width])
    excluded = torch.isin(log.nodes, torch.tensor(sorted(banned), dtype=torch.int32))
    collect, _ = frontier(log, log.stops[:, 0], width, excluded)
    post, gaps = frontier(log, log.stops[:, 0], width, excluded, collect=False)
    for q, distance in enumerate(distances):
        truth = search_by_width(case.rows, case.entry, distance, width)
        for found, best in (
            (collect[q], truth.best(width, banned)), (post[q], truth.best_post(width, banned)),
        ):  # fmt: skip
            assert found.tolist() == best + [-1] * (width - len(best))
        assert torch.isinf(gaps[q][post[q] < 0]).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("budget", [0, 350])
def test_walks_longer_than_any_guess(backend: str, budget: int) -> None:
    # A path of 400 nodes: width 1 follows it to wherever the query stands, so the queries of a
    # block spend between 2 and 400 distances.
    n = 400
    points = make_points(torch.arange(float(n)).unsqueeze(1), Metric.l2)
    graph = Graph(table([*([i + 1] for i in range(n - 1)), []], 1), 0, Metric.l2)
    goals = torch.arange(0, n, 9)
    with use_backend(backend):
        log = walk(graph, QueryDistances(points, nodes=goals), [1, 3], budget)
    # The search of width L turns back when L nodes nearer than the next one are visited: behind
    # goal g these are g, then g and both its sides (width 3).
    assert log.stops[:, 0].tolist() == [min(n, g + 2) for g in goals.tolist()]
    assert log.stops[:, 1].tolist() == [min(n, max(g + 3, 4)) for g in goals.tolist()]
    spent = [max(int(stop), budget) for stop in log.stops[:, 1]]
    assert log.n_seen.tolist() == spent
    for row, count in zip(log.nodes.tolist(), spent, strict=True):
        assert row == list(range(count)) + [-1] * (len(row) - count)


# Six nodes on a line under squared L2. Node 3 is the closest of 0's row to the query at 10.
LINE = make_points(torch.tensor([[0.0], [1.0], [2.0], [6.0], [10.0], [8.0]]), Metric.l2)
SIX = Graph(table([[1, 2, 3], [0, 4, 5], [0], [0, 5, 4], [], [1]], 3), 0, Metric.l2)
AT_TEN = torch.tensor([[10.0]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_budget_cuts_a_row_in_its_order(backend: str) -> None:
    # Distances to 10: 100, 81, 64, 16, 0, 4. Node 0 costs one; its row 1, 2, 3 makes four. Node 3
    # (16) is expanded next: 0 is known, 5 is the fifth distance, 4 would be the sixth.
    with use_backend(backend):
        found = {b: search_nodes(SIX, LINE, AT_TEN, k=2, budget=b) for b in (1, 2, 4, 5, 6, 99)}
    expected = {1: [0, -1], 2: [1, 0], 4: [3, 2], 5: [5, 3], 6: [4, 5], 99: [4, 5]}
    assert {b: r.nodes[0].tolist() for b, r in found.items()} == expected
    assert {b: r.n_dist.tolist() for b, r in found.items()} == {
        1: [1], 2: [2], 4: [4], 5: [5], 6: [6], 99: [6],
    }  # fmt: skip
    assert found[1].distances[0].tolist() == [100.0, float("inf")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_width_one_and_two_by_hand(backend: str) -> None:
    # Width 1: expand 0 (sees 1, 2, 3), 3 (sees 5, 4), 4 (no edges): 6 distances, stop at 4.
    # From node 1, width 1 to the query at 0.4: D(1) = 0.36, D(0) = 0.16: expand 1, then 0, stop.
    with use_backend(backend):
        log = walk(SIX, QueryDistances(LINE, queries=AT_TEN), [1, 2])
        assert log.stops.tolist() == [[6, 6]]
        assert log.nodes.tolist() == [[0, 1, 2, 3, 5, 4]]
        assert log.visited.tolist() == [[0, 3, 4, 5]]
        back = walk(SIX, QueryDistances(LINE, queries=AT_TEN), [1])
        assert back.visited.tolist() == [[0, 3, 4]]
        near = Graph(SIX.neighbors, 1, Metric.l2)
        log = walk(near, QueryDistances(LINE, queries=torch.tensor([[0.4]])), [1])
    assert log.nodes.tolist() == [[1, 0, 4, 5, 2, 3]]
    assert log.visited.tolist() == [[1, 0]]


def test_post_filtering_comes_back_short_where_collect_does_not() -> None:
    # Seen: D 0:100 1:81 2:64 3:16 5:4 4:0. Best two are 4 and 5; without 4 the next is 3.
    log = walk(SIX, QueryDistances(LINE, queries=AT_TEN), [2])
    excluded = log.nodes == 4
    assert frontier(log, log.stops[:, 0], 2, excluded)[0].tolist() == [[5, 3]]
    assert frontier(log, log.stops[:, 0], 2, excluded, collect=False)[0].tolist() == [[5, -1]]
    everything = torch.ones_like(excluded)
    assert frontier(log, log.stops[:, 0], 2, everything)[0].tolist() == [[-1, -1]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_of_queries_change_nothing(backend: str) -> None:
    case = make_case(3, 60, 2, 7, 5)
    points, graph = case.points(), case.graph()
    queries = torch.from_numpy(case.rng.integers(0, 8, (200, 2)).astype(np.float32))
    with use_backend(backend):
        whole = search_nodes(graph, points, queries, 5, width=8)
        for memory, tables in ((100 * 4 * 60, True), (63 * 4 * 60, False)):
            nodes, spent = [], []
            blocks = list(query_blocks(points, queries, memory))
            assert all((distances.table is not None) == tables for _, distances in blocks)
            for _, distances in blocks:
                log = walk(graph, distances, [8])
                nodes.append(frontier(log, log.stops[:, 0], 5)[0])
                spent.append(log.stops[:, 0])
            assert torch.equal(torch.cat(nodes), whole.nodes)
            assert torch.equal(torch.cat(spent), whole.n_dist)
    assert len(list(query_blocks(points, queries, 100 * 4 * 60))) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_queries_give_no_results(backend: str) -> None:
    with use_backend(backend):
        found = search_nodes(SIX, LINE, torch.zeros(0, 1), k=2, width=3)
    assert found.nodes.shape == found.distances.shape == (0, 2)
    assert found.n_dist.shape == (0,)


def test_settings_that_cannot_be_searched_are_refused() -> None:
    def search(**changes: int) -> None:
        search_nodes(SIX, LINE, AT_TEN, **({"k": 2} | changes))

    for k in (0, 7):
        with pytest.raises(ValueError, match=rf"k={k} is outside 1\.\.6 .*lower k"):
            search(k=k, width=9)
    with pytest.raises(ValueError, match="search width 3 is below k=4; raise the width or lower k"):
        search(k=4, width=3)
    for budget in (0, -3):
        with pytest.raises(ValueError, match=rf"width=0 and budget={budget}; give exactly one"):
            search(budget=budget)
    with pytest.raises(ValueError, match="width=5 and budget=9; give exactly one of them, >= 1"):
        search(width=5, budget=9)
    with pytest.raises(ValueError, match=r"queries have shape \(1, 2\), the index holds 1 dim"):
        search_nodes(SIX, LINE, torch.zeros(1, 2), k=2, width=5)
    distances = QueryDistances(LINE, queries=AT_TEN)
    with pytest.raises(ValueError, match=r"starts have shape \(2,\) for 1 queries; give one node"):
        walk(SIX, distances, [4], starts=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="search width 0 is below 1; raise"):
        walk(SIX, distances, [4, 0])
    with pytest.raises(ValueError, match=r"budget=0 and widths=.*; give a width >= 1 or a budget"):
        walk(SIX, distances)


@pytest.mark.parametrize("backend", BACKENDS)
def test_recall_on_a_grid(backend: str) -> None:
    # 20 x 20 grid; queries between the points, so that the nearest ten are in one small patch.
    side = torch.arange(20.0)
    points = make_points(torch.cartesian_prod(side, side), Metric.l2)
    queries = 19 * torch.rand(100, 2, generator=torch.Generator().manual_seed(0))
    with use_backend(backend):
        graph = build_vamana(points, VamanaSettings(max_degree=8, construction_width=40))
        assert bool(reachable(graph).all())
        truth = exact_knn(points, queries, 10)[1]
        at = {w: search_nodes(graph, points, queries, 10, width=w) for w in (10, 20)}
        by_budget = search_nodes(graph, points, queries, 10, budget=120)
    assert recall(at[10].nodes, truth) >= 0.98  # measured 1.0 at 33.5 distances
    assert recall(at[20].nodes, truth) >= 0.99  # measured 1.0 at 45.0
    assert recall(by_budget.nodes, truth) >= 0.99  # measured 1.0
    assert float(at[20].n_dist.double().mean()) <= 50  # measured 45.0 of 400


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_do_not_depend_on_the_thread_count(backend: str) -> None:
    rows, queries = unit_clusters(250, 40, 8, seed=2), unit_clusters(150, 40, 8, seed=3)
    graph = Graph(make_case(1, 250, 1, 9, 12, least_degree=12).graph().neighbors, 7)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for table_bytes in (0, 1 << 30):
                points = make_points(rows, table_bytes=table_bytes)
                with use_backend(backend):
                    found.append(
                        [
                            search_nodes(graph, points, queries, 10, width=12),
                            search_nodes(graph, points, queries, 10, budget=90),
                            walk(graph, QueryDistances(points, queries=queries), [10, 15]),
                            walk(graph, QueryDistances(points, nodes=torch.arange(90)), [12]),
                        ]
                    )
    finally:
        torch.set_num_threads(threads)
    for one, two in zip(found[:2], found[2:], strict=True):
        for a, b in zip(one, two, strict=True):
            assert all(torch.equal(x, vars(b)[name]) for name, x in vars(a).items())
