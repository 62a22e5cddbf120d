"""The builder: edge for edge against the reference, between backends, and its invariants."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    BACKENDS,
    TABLE,
    Case,
    Step,
    build,
    lists,
    make_case,
    medoid,
    recall,
    unit_clusters,
)

from lgp.distance import Metric, Points, exact_knn
from lgp.graph import Graph, describe, validate
from lgp.kernels import use_backend
from lgp.points import make_points
from lgp.refine.select import Selector, farthest, first, nearest
from lgp.refine.step import Refiner, StepSettings
from lgp.search import search_nodes
from lgp.vamana import VamanaSettings, build_vamana, random_graph
from lgp.vamana import medoid as fast_medoid

SELECTORS: dict[str, Selector] = {"first": first, "nearest": nearest, "farthest": farthest}
CASES = st.builds(
    make_case, seed=st.integers(0, 9999), n=st.integers(4, 30), dims=st.integers(1, 3),
    high=st.integers(2, 7), max_degree=st.integers(1, 5),
)  # fmt: skip


def start_of(n: int, settings: VamanaSettings) -> tuple[list[list[int]], list[int]]:
    """The start graph and the node order of a seed."""
    generator = torch.Generator().manual_seed(settings.seed)
    rows = random_graph(n, settings.max_degree, generator)
    return rows.tolist(), torch.randperm(n, generator=generator).tolist()


def refiner(points: Points, selector: str = "farthest", **settings: int) -> Refiner:
    everyone = torch.ones(points.n, dtype=torch.bool)
    return Refiner(points, SELECTORS[selector], StepSettings(**settings), everyone)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(CASES)
def test_medoid_equals_exact_arithmetic(case: Case) -> None:
    assert fast_medoid(case.points()) == medoid(case.space)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=12)
@given(CASES, st.integers(0, 99), st.sampled_from([1, 1, 3, 7, 30]), st.sampled_from(TABLE))
def test_build_equals_reference(
    backend: str, case: Case, seed: int, batch: int, table_bytes: int
) -> None:
    n, degree = case.space.n, case.max_degree
    chosen = VamanaSettings(degree, degree + 4, 1.3, batch, seed)
    with use_backend(backend):
        graph = build_vamana(case.points(table_bytes), chosen)
    start, order = start_of(n, chosen)
    rows, entry = build(case.space, start, order, degree + 4, 1.3, degree, batch)
    assert graph.entry_node == entry
    assert lists(graph.neighbors) == rows
    assert (graph.metric, graph.alpha) == (Metric.l2, 1.3)
    validate(graph)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=12)
@given(
    CASES, st.integers(0, 99), st.sampled_from([1, 1, 3, 7]), st.sampled_from(sorted(SELECTORS)),
    st.integers(0, 2),
)  # fmt: skip
def test_refined_build_equals_reference(
    backend: str, case: Case, seed: int, batch: int, selector: str, least_gain: int
) -> None:
    n, degree = case.space.n, case.max_degree
    chosen = VamanaSettings(degree, degree + 4, 1.3, batch, seed)
    points, least_gain = case.points(), min(least_gain, degree)
    refine = refiner(
        points, selector, edit_budget=2, shortlist_size=5, min_coverage_gain=least_gain, alpha=1.3
    )
    with use_backend(backend):
        graph = build_vamana(points, chosen, refine)
    step = Step(case.space, degree, 2, 5, least_gain, 1.3, selector)
    placed: dict[int, list[int]] = {}

    def slow(rows: list[list[int]], i: int, visited: list[int]) -> tuple[list[int], list[int]]:
        row, placed[i] = step(rows, i, visited)
        return row, placed[i]

    start, order = start_of(n, chosen)
    rows, _ = build(case.space, start, order, degree + 4, 1.3, degree, batch, slow)
    assert lists(graph.neighbors) == rows
    validate(graph)
    edits = refine.all_edits()
    made: dict[int, list[int]] = {i: [] for i in range(n)}
    for node, added in zip(edits.node.tolist(), edits.added.tolist(), strict=True):
        made[node].append(added)
    assert made == placed


@pytest.mark.parametrize("refined", [False, True])
def test_backends_agree_edge_for_edge_at_the_default_batch(refined: bool) -> None:
    # 160 integer points with ties and copies: batches of 3, rows of 8, table and no table.
    case = make_case(0, 160, 3, 9, 8)
    graphs, edits = [], []
    for backend in BACKENDS:
        for table_bytes in TABLE:
            points = case.points(table_bytes)
            refine = refiner(points, min_coverage_gain=3) if refined else None
            with use_backend(backend):
                graphs.append(build_vamana(points, VamanaSettings(8, 20), refine))
            edits.append(len(refine.all_edits().node) if refine else 0)
    assert len({graph.digest() for graph in graphs}) == 1
    assert len(set(edits)) == 1 and (edits[0] > 30) == refined


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("table_bytes", TABLE)
def test_builds_do_not_depend_on_the_thread_count(backend: str, table_bytes: int) -> None:
    rows, threads, digests = unit_clusters(200, 40, 8, seed=5), torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            points = make_points(rows, table_bytes=table_bytes)
            with use_backend(backend):
                graph = build_vamana(
                    points, VamanaSettings(10, 20, 1.2, 100), refiner(points, min_coverage_gain=3)
                )
            digests.append(graph.digest())
    finally:
        torch.set_num_threads(threads)
    assert digests[0] == digests[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_names_a_graph(backend: str) -> None:
    points = make_points(unit_clusters(90, 16, 4, seed=6))
    with use_backend(backend):
        graphs = [build_vamana(points, VamanaSettings(6, 15, 1.2, 9, s)) for s in (0, 0, 1)]
    assert graphs[0].digest() == graphs[1].digest() != graphs[2].digest()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", [1, 7])
def test_refinement_without_edits_is_vanilla_bit_for_bit(backend: str, batch: int) -> None:
    # 40 nodes with rows of 10: some 30 nodes are within two hops, so no candidate brings 10 more.
    points = make_points(torch.from_numpy(make_case(7, 40, 3, 9, 1).space.vectors), Metric.l2)
    chosen = VamanaSettings(10, 16, batch_size=batch)
    with use_backend(backend):
        vanilla = build_vamana(points, chosen)
        silent = refiner(points, edit_budget=0)
        assert build_vamana(points, chosen, silent).digest() == vanilla.digest()
        strict = refiner(points, min_coverage_gain=10)
        assert build_vamana(points, chosen, strict).digest() == vanilla.digest()
    assert strict.account.picked > 40 and len(strict.all_edits().node) == 0
    assert int(strict.all_decisions().placed.sum()) == 0


@pytest.mark.parametrize(("n", "degree"), [(2, 1), (9, 8), (30, 7), (31, 7), (500, 40)])
def test_random_graphs_are_regular(n: int, degree: int) -> None:
    rows = random_graph(n, degree, torch.Generator().manual_seed(0))
    validate(Graph(rows, 0))
    assert rows.shape == (n, degree) and bool((rows >= 0).all())
    # Every other node is equally likely: in-degrees spread like a binomial around `degree`.
    counts = np.bincount(rows.flatten().numpy(), minlength=n)
    assert abs(counts - degree).max() <= 6 * np.sqrt(degree) + 1


@settings(deadline=None, derandomize=True, max_examples=15)
@given(
    st.builds(
        make_case, seed=st.integers(0, 9999), n=st.integers(3, 90), dims=st.integers(1, 4),
        high=st.integers(1, 9), max_degree=st.integers(1, 9),
    ),
    st.booleans(),
)  # fmt: skip
def test_built_tables_keep_their_invariants(case: Case, refined: bool) -> None:
    points, degree = case.points(), case.max_degree
    refine = refiner(points, min_coverage_gain=1, alpha=1.2) if refined else None
    graph = build_vamana(points, VamanaSettings(degree, degree + 3), refine)
    validate(graph)  # ids, loops, repeats, padding
    assert graph.neighbors.shape == (case.space.n, degree)
    if refine is not None:
        edits = refine.all_edits()
        per_node = torch.bincount(edits.node.long(), minlength=case.space.n)
        assert int(per_node.max()) <= 2
        for node in edits.node.unique().tolist():  # what a step placed, it did not remove
            own = edits.node == node
            assert not set(edits.added[own].tolist()) & set(edits.removed[own].tolist())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"max_degree": 20}, r"max_degree=20 is outside 1\.\.19 for 20 nodes; lower index"),
        ({"max_degree": 0}, r"max_degree=0 is outside 1\.\.19 for 20 nodes"),
        ({"max_degree": 8, "construction_width": 7}, "construction_width=7 is below max_degree=8"),
        ({"alpha": 0.9}, "alpha=0.9 is below 1; raise index.alpha"),
        ({"batch_size": -1}, "batch_size=-1 is below 0; 0 chooses it"),
    ],
)
def test_settings_that_cannot_be_built_are_refused(changes: dict[str, float], told: str) -> None:
    points = make_points(torch.arange(20.0).unsqueeze(1), Metric.l2)
    with pytest.raises(ValueError, match=told):
        build_vamana(points, VamanaSettings(**({"max_degree": 4} | changes)))  # type: ignore[arg-type]


def test_max_degree_of_all_others_is_allowed() -> None:
    points = make_points(torch.arange(5.0).unsqueeze(1), Metric.l2)
    validate(build_vamana(points, VamanaSettings(4, 4)))


# --- real-valued data: backends and tables need not share bits, but must share quality -----


def clustered() -> tuple[torch.Tensor, torch.Tensor]:
    """1,500 documents and 400 queries around the same 30 centres, 48 dimensions."""
    rows = unit_clusters(1900, 48, 30, seed=11)
    return rows[:1500], rows[1500:]


def quality(backend: str, table_bytes: int, refined: bool) -> torch.Tensor:
    """recall@10 at widths 10, 20 and budget 120, then mean counts of the widths; float64 [5]."""
    rows, queries = clustered()
    points = make_points(rows, table_bytes=table_bytes)
    truth = exact_knn(points, queries, 10)[1]
    with use_backend(backend):
        graph = build_vamana(points, VamanaSettings(16, 60), refiner(points) if refined else None)
        by_width = [search_nodes(graph, points, queries, 10, width=w) for w in (10, 20)]
        by_budget = search_nodes(graph, points, queries, 10, budget=120)
    return torch.tensor(
        [recall(found.nodes, truth) for found in (*by_width, by_budget)]
        + [float(found.n_dist.double().mean()) for found in by_width],
        dtype=torch.float64,
    )


def assert_close_quality(a: torch.Tensor, b: torch.Tensor) -> None:
    assert ((a[:3] - b[:3]).abs() <= 0.002).all(), (a, b)
    assert ((a[3:] - b[3:]).abs() <= 0.005 * b[3:]).all(), (a, b)


@pytest.mark.parametrize("refined", [False, True])
def test_tables_do_not_change_quality_on_real_valued_data(refined: bool) -> None:
    assert_close_quality(quality("auto", 0, refined), quality("auto", 1 << 30, refined))


@pytest.mark.slow
@pytest.mark.parametrize("refined", [False, True])
@pytest.mark.parametrize("table_bytes", TABLE)
def test_backends_agree_in_quality_on_real_valued_data(table_bytes: int, refined: bool) -> None:
    assert_close_quality(
        quality("torch", table_bytes, refined), quality("auto", table_bytes, refined)
    )


def test_recall_on_clustered_data() -> None:
    rows, queries = clustered()
    points = make_points(rows)
    graph = build_vamana(points, VamanaSettings(16, 60))
    truth = exact_knn(points, queries, 10)[1]
    at = {w: search_nodes(graph, points, queries, 10, width=w) for w in (10, 20)}
    assert recall(at[10].nodes, truth) >= 0.98  # measured 0.988 at 100.5 distances of 1,500
    assert recall(at[20].nodes, truth) >= 0.995  # measured 0.9998 at 115.6
    assert float(at[10].n_dist.double().mean()) <= 110
    facts = describe(graph)
    assert facts["n_unreachable"] == 0 and facts["degree_max"] <= 16
