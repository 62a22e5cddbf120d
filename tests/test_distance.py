"""D(., .), duplicate classes, exact neighbors and tie order against the reference."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TABLE, Case, Space, exact_knn, make_case, recall, unit_clusters
from torch.nn.functional import normalize

import lgp.distance as d
from lgp.distance import Metric
from lgp.points import make_points
from lgp.search import search_nodes
from lgp.vamana import VamanaSettings, build_vamana

CASES = st.builds(
    make_case, seed=st.integers(0, 9999), n=st.integers(2, 30), dims=st.integers(1, 4),
    high=st.integers(1, 5), max_degree=st.just(1),
)  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=30)
@given(CASES, st.sampled_from(TABLE))
def test_all_distances_and_duplicate_classes(case: Case, table_bytes: int) -> None:
    space, points, n = case.space, case.points(table_bytes), case.space.n
    truth = torch.tensor([[float(space.between(a, b)) for b in range(n)] for a in range(n)])
    ids = torch.arange(n)
    assert torch.equal(points.rows(ids), truth)
    assert torch.equal(points.between(ids.unsqueeze(0), ids.unsqueeze(0))[0], truth)
    same = torch.tensor([[space.same(a, b) for b in range(n)] for a in range(n)])
    assert torch.equal(points.same(ids.unsqueeze(1), ids.unsqueeze(0)), same)
    classes = points.duplicate_class
    if classes is None:
        assert torch.equal(same, torch.eye(n, dtype=torch.bool))
    else:  # the smallest row number
        assert classes.tolist() == [row.index(True) for row in same.tolist()]


@settings(deadline=None, derandomize=True, max_examples=30)
@given(CASES, st.integers(1, 30))
def test_exact_neighbors_with_ties(case: Case, k: int) -> None:
    k = min(k, case.space.n)
    queries = case.rng.integers(-1, 6, (3, case.space.vectors.shape[1])).astype(np.float32)
    distance, nodes = d.exact_knn(case.points(), torch.from_numpy(queries), k)
    truth = [exact_knn(case.space, q, k) for q in queries]
    assert nodes.tolist() == [[node for _, node in row] for row in truth]
    assert distance.tolist() == [[gap for gap, _ in row] for row in truth]


def test_cosine_is_one_minus_the_dot_product_and_never_negative() -> None:
    rows = unit_clusters(40, 24, 3, seed=0)
    space = Space(rows.numpy(), "cosine")
    truth = torch.tensor([[float(space.between(a, b)) for b in range(40)] for a in range(40)])
    for table_bytes in TABLE:
        points = make_points(rows, table_bytes=table_bytes)
        found = points.rows(torch.arange(40))
        assert torch.allclose(found, truth, atol=1e-6)
        assert not torch.signbit(found).any()
    assert not torch.signbit(points.to_queries(rows)).any()


@pytest.mark.parametrize("table_bytes", TABLE)
@pytest.mark.parametrize("copies", [False, True])
def test_bit_equal_rows_are_at_zero_by_definition(table_bytes: int, copies: bool) -> None:
    # 1 - dot(x, x) of these unit rows comes out at up to 2e-7 for some of them.
    rows = unit_clusters(60, 48, 2, seed=1)
    if copies:
        rows = torch.cat([rows, rows[:5]])
    assert (1 - (rows * rows).sum(1)).abs().max() > 0
    points = make_points(rows, table_bytes=table_bytes)
    each = torch.arange(60).unsqueeze(1)
    assert points.between(each, each).flatten().tolist() == [0.0] * 60
    assert points.rows(torch.arange(60)).diagonal().tolist() == [0.0] * 60
    if copies:
        twins = torch.arange(5)
        assert points.between(twins.unsqueeze(1), 60 + twins.unsqueeze(1)).max() == 0
        assert points.rows(twins)[twins, 60 + twins].max() == 0


def test_distances_do_not_depend_on_the_thread_count() -> None:
    rows, queries = unit_clusters(900, 384, 9, seed=2), unit_clusters(130, 384, 9, seed=3)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            points = make_points(rows, table_bytes=0)
            some = torch.arange(40).view(2, 20)
            table = make_points(rows).table
            assert table is not None
            found.append([table, points.to_queries(queries), points.between(some, some)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_order_keys_sort_by_distance_then_node_and_unpack() -> None:
    distance = torch.tensor([0.5, 0.0, 0.5, float("inf"), 1e-40, 0.0])
    node = torch.tensor([7, 2**31 - 1, 3, 0, 1, 9])
    keys = d.order_key(distance, node)
    order = sorted(range(6), key=lambda i: (distance[i].item(), node[i].item()))
    assert keys.argsort().tolist() == order
    assert d.key_node(keys).tolist() == node.tolist()
    assert torch.equal(d.key_distance(keys), distance)
    empty = torch.tensor([d.KEY_MAX])
    assert d.key_node(empty).tolist() == [-1]
    assert d.key_distance(empty).tolist() == [float("inf")]
    assert (keys < d.KEY_MAX).all()


def test_top_k_breaks_ties_by_id() -> None:
    _, nodes = d.top_k(torch.tensor([[2.0, 1.0, 2.0, 1.0, 0.0]]), 4)
    assert nodes.tolist() == [[4, 1, 3, 0]]


def test_blocks_do_not_change_exact_neighbors(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(5, 30, 3, 4, 1)
    queries = torch.from_numpy(case.rng.integers(0, 5, (17, 3)).astype(np.float32))
    whole = d.exact_knn(case.points(), queries, 10)
    blocks = [slice(i, min(17, i + 3)) for i in range(0, 17, 3)]
    monkeypatch.setattr(d, "row_blocks", lambda n, values: iter(blocks))
    parts = d.exact_knn(case.points(), queries, 10)
    assert torch.equal(whole[0], parts[0]) and torch.equal(whole[1], parts[1])


def test_row_blocks_cover_the_range_once() -> None:
    blocks = list(d.row_blocks(10, 256, block_bytes=3 * 4 * 256))
    assert blocks == [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 10)]
    assert list(d.row_blocks(2, 1000, block_bytes=1)) == [slice(0, 1), slice(1, 2)]


def test_bad_vectors_are_refused_with_value_bound_and_way_out() -> None:
    good = normalize(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    for value in (float("nan"), float("inf"), -float("inf")):
        bad = good.clone()
        bad[2, 1] = bad[5, 0] = value
        for metric in Metric:
            with pytest.raises(ValueError, match=r"2 vectors \(numbers 2, 5\) hold NaN or inf"):
                make_points(bad, metric)
    zero = good.clone()
    zero[3] = 0
    with pytest.raises(ValueError, match=r"1 vectors \(numbers 3\) do not have length 1; norm"):
        make_points(zero)
    assert make_points(zero, Metric.l2).n == 8
    with pytest.raises(ValueError, match=r"8 vectors \(numbers 0, 1, 2, 3, 4, \.\.\.\) do not"):
        make_points(2 * good)
    with pytest.raises(ValueError, match=r"torch.float64 of shape \(8, 4\); float32 \[N, D\]"):
        make_points(good.double())
    with pytest.raises(ValueError, match=r"shape \(8,\); float32 \[N, D\] is needed"):
        make_points(good[:, 0])
    with pytest.raises(ValueError, match="there are 0 vectors; at least 1"):
        make_points(good[:0])


@pytest.mark.parametrize("k", [0, -1, 9])
def test_k_outside_the_number_of_vectors_is_refused(k: int) -> None:
    points = make_points(torch.arange(16.0).view(8, 2), Metric.l2)
    with pytest.raises(ValueError, match=rf"k={k} is outside 1\.\.8 .*lower k"):
        d.exact_knn(points, torch.zeros(1, 2), k)
    with pytest.raises(ValueError, match=r"queries have shape \(1, 3\), the index holds 2 dim"):
        d.exact_knn(points, torch.zeros(1, 3), 2)


def test_squared_l2_far_from_the_origin_keeps_its_neighbors() -> None:
    # |a|^2 + |b|^2 - 2 a.b cancels: with |a|^2 = 1.6e7 float32 steps are 1 or 2, near pairs are at
    # distances around 5.
    rows = 1000 + torch.randn(400, 16, generator=torch.Generator().manual_seed(0))
    _, found = d.exact_knn(make_points(rows, Metric.l2), rows[:50], 10)
    truth = torch.cdist(rows[:50].double(), rows.double()).topk(10, largest=False).indices
    assert recall(found, truth) >= 0.99


def test_no_queries_give_no_neighbors() -> None:
    points = make_points(torch.arange(16.0).view(8, 2), Metric.l2)
    distance, nodes = d.exact_knn(points, torch.zeros(0, 2), 3)
    assert distance.shape == nodes.shape == (0, 3)


def test_memory_mapped_vectors_are_left_where_they_are(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    np.save(tmp_path / "v.npy", values)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mapped array is read-only
        vectors = torch.from_numpy(mapped)
    points = make_points(vectors, Metric.l2, table_bytes=0, in_memory=False)
    assert points.vectors.data_ptr() == vectors.data_ptr() and points.origin is None
    graph = build_vamana(points, VamanaSettings(max_degree=8, construction_width=20))
    whole = make_points(torch.from_numpy(values), Metric.l2, table_bytes=0)
    queries = torch.from_numpy(values[:20] + np.float32(0.01))
    found = search_nodes(graph, points, queries, 5, width=40).nodes
    assert float((found[:, 0] == d.exact_knn(whole, queries, 1)[1][:, 0]).float().mean()) == 1.0
