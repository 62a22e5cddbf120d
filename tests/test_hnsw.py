"""HNSW: heuristic, build, search, and LGP on it, against a slow sequential version."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import BACKENDS, TABLE, Rows, Space, lists, make_case, recall, table, unit_clusters

from lgp.distance import Metric, Points, exact_knn
from lgp.formats.hnswlib import read_hnswlib
from lgp.graph import reachable
from lgp.hnsw import Hnsw, search_hnsw, select_neighbors, visited_by_hnsw, walk_hnsw
from lgp.hnsw_build import HnswSettings, build_hnsw, draw_levels, insertion_batches
from lgp.hnsw_file import validate_hnsw
from lgp.kernels import use_backend
from lgp.points import make_points
from lgp.refine.hnsw import refine_hnsw, select_neighbors_reciprocals
from lgp.refine.log import EditLog, Reason, apply_edits, undo_edits
from lgp.refine.select import farthest, nearest
from lgp.refine.step import Refiner, StepSettings
from lgp.search import QueryDistances, frontier

Layers = list[dict[int, list[int]]]

# --- the slow version: one node at a time, sets and heaps ------------------------------------


def search_layer(
    rows: dict[int, list[int]], start: int, distance: Callable[[int], float], width: int
) -> tuple[list[tuple[float, int]], int, list[int]]:
    """(the best seen, ascending; how many were seen; the visited ones in order)."""
    first = (distance(start), start)
    opened, best, seen = [first], [first], {start}
    visited = []
    while opened:
        here = heapq.heappop(opened)
        if here not in best:
            break
        visited.append(here[1])
        for other in rows[here[1]]:
            if other not in seen:
                seen.add(other)
                pair = (distance(other), other)
                heapq.heappush(opened, pair)
                best = heapq.nsmallest(width, [*best, pair])
    return best, len(seen), visited


def heuristic(space: Space, node: int, candidates: Iterable[int], bound: int) -> list[int]:
    ranked = sorted((space.between(node, c), c) for c in set(candidates) - {node})
    if len(ranked) < bound:
        return [c for _, c in ranked]
    kept: list[int] = []
    for gap, c in ranked:
        if len(kept) < bound and not any(space.between(k, c) < gap for k in kept):
            kept.append(c)
    return kept


def build_slowly(
    space: Space, m: int, width: int, levels: list[int], batches: Iterable[range]
) -> tuple[Layers, int]:
    layers: Layers = [{} for _ in range(max(levels) + 1)]
    entry, top = 0, -1
    for batch in batches:
        chosen: Layers = [{} for _ in layers]
        for node in batch:
            start, gap = entry, partial(space.between, node)
            for level in range(top, -1, -1):
                inside = level <= levels[node]
                best, _, _ = search_layer(layers[level], start, gap, width if inside else 1)
                start = best[0][1]
                if inside:
                    best += [(gap(c), c) for c in batch if c < node and levels[c] >= level]
                    pool = [c for _, c in sorted(best)[:width]]
                    chosen[level][node] = heuristic(space, node, pool, m)
        for level, (rows, new) in enumerate(zip(layers, chosen, strict=True)):
            rows |= {node: list(row) for node, row in new.items()}
            bound = m if level else 2 * m
            for c in sorted({c for row in new.values() for c in row}):
                back = sorted((space.between(c, i), i) for i, row in new.items() if c in row)
                grown = rows[c] + [i for _, i in back if i not in rows[c]]
                rows[c] = grown if len(grown) <= bound else heuristic(space, c, grown, bound)
        if levels[batch[0]] > top:
            for level in range(top + 1, levels[batch[0]] + 1):
                layers[level][batch[0]] = []
            entry, top = batch[0], levels[batch[0]]
    return layers, entry


def search_slowly(
    layers: Layers, entry: int, distance: Callable[[int], float], width: int
) -> tuple[list[tuple[float, int]], int, int, list[int]]:
    above = 1 if len(layers) > 1 else 0
    for rows in layers[:0:-1]:
        best, seen, _ = search_layer(rows, entry, distance, 1)
        entry = best[0][1]
        above += seen - 1
    best, seen, visited = search_layer(layers[0], entry, distance, width)
    return best, seen, above, visited


# --- what is compared -------------------------------------------------------------------------


def plan(n: int, settings: HnswSettings) -> tuple[list[int], list[range]]:
    levels = draw_levels(n, settings.connectivity, torch.Generator().manual_seed(settings.seed))
    batches = insertion_batches(levels, settings.batch_size)
    return levels.tolist(), [range(batch.start, batch.stop) for batch in batches]


def layers_of(index: Hnsw) -> Layers:
    layers = [dict(enumerate(lists(index.base.neighbors)))]
    for level in index.upper:
        layers.append(dict(zip(level.nodes.tolist(), lists(level.rows), strict=True)))
    return layers


def integer_points(seed: int, n: int, dims: int, high: int, table_bytes: int) -> Points:
    return make_points(torch.from_numpy(integers(seed, n, dims, high)), Metric.l2, table_bytes)


def integers(seed: int, n: int, dims: int, high: int) -> np.ndarray:
    return make_case(seed, n, dims, high, 1).space.vectors


def check_shape(index: Hnsw, connectivity: int) -> None:
    """Bounds, ids, levels and layers agree."""
    validate_hnsw(index)
    assert (index.base.max_degree, index.base.alpha) == (2 * connectivity, 1.0)
    assert all(layer.rows.shape[1] == connectivity for layer in index.upper)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=24)
@given(
    st.integers(0, 9999), st.one_of(st.integers(1, 9), st.integers(1, 32)), st.integers(1, 3),
    st.integers(1, 20), st.integers(2, 6), st.integers(0, 8), st.sampled_from(TABLE),
)  # fmt: skip
def test_sequential_build_and_search_equal_the_slow_version(
    backend: str, seed: int, n: int, dims: int, high: int, m: int, more: int, table_bytes: int
) -> None:
    knobs = HnswSettings(m, m + more, seed, batch_size=1)
    space = Space(integers(seed, n, dims, high))
    points = make_points(torch.from_numpy(space.vectors), Metric.l2, table_bytes)
    layers, entry = build_slowly(space, m, knobs.construction_width, *plan(n, knobs))
    rng = np.random.default_rng(seed)
    queries = rng.integers(0, high + 1, (3, dims)).astype(np.float32)
    k, width = min(2, n), 4
    with use_backend(backend):
        index = build_hnsw(points, knobs)
        found, above = search_hnsw(index, points, torch.from_numpy(queries), k, width)
        visited = visited_by_hnsw(index, points, torch.arange(n), width)
    assert layers_of(index) == layers
    assert index.entry_node == entry
    check_shape(index, m)
    for q, query in enumerate(queries):
        best, seen, up, _ = search_slowly(layers, entry, partial(space.foreign, query), width)
        best = best[:k]
        assert found.nodes[q, : len(best)].tolist() == [node for _, node in best]
        assert found.distances[q, : len(best)].tolist() == [float(gap) for gap, _ in best]
        assert found.nodes[q, len(best) :].tolist() == [-1] * (k - len(best))
        assert (int(found.n_dist[q]), int(above[q])) == (seen, up)
    for node, row in enumerate(lists(visited)):
        assert row == search_slowly(layers, entry, partial(space.between, node), width)[3]


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.integers(0, 9999), st.integers(1, 60), st.integers(2, 4), st.sampled_from(TABLE))
def test_one_walk_answers_every_width_and_budget(
    backend: str, seed: int, n: int, m: int, table_bytes: int
) -> None:
    rows, queries = integers(seed, n, 2, 9), integers(seed + 1, 7, 2, 9)
    points = make_points(torch.from_numpy(rows), Metric.l2, table_bytes)
    asked = torch.from_numpy(queries)
    index = build_hnsw(points, HnswSettings(m, 2 * m, seed))
    distances, widths, budget = QueryDistances(points, queries=asked), [9, 1, 4], 25
    for given_distances in (distances, distances.with_table()):
        with use_backend(backend):
            log, above = walk_hnsw(index, given_distances, widths, budget)
            by_budget, _ = walk_hnsw(index, given_distances, [], budget)
            for at, width in enumerate(widths):
                k = min(width, n)
                alone, up = search_hnsw(index, points, asked, k, width)
                nodes, gaps = frontier(log, log.stops[:, at], width)
                assert torch.equal(nodes[:, :k], alone.nodes)
                assert torch.equal(gaps[:, :k], alone.distances)
                assert torch.equal(log.stops[:, at], alone.n_dist) and torch.equal(above, up)
        # The budget is spent to the last distance, or the base layer's part from there is seen.
        part = (budget - above).clamp_min(1)
        for q, start in enumerate(log.nodes[:, 0].tolist()):
            alive = reachable(replace(index.base, entry_node=start))
            assert min(int(part[q]), int(alive.sum())) <= int(by_budget.n_seen[q])


def test_node_0_is_found_once_in_frontiers_that_are_not_full() -> None:
    """The compiled walk over a table meets node 0 again; degrees and U_i must not show it."""
    knobs = HnswSettings(6, 12, batch_size=1)
    for seed in range(20):
        points = integer_points(seed, 3 + seed % 5, 2, 30, 1 << 30)
        indexes = []
        for backend in BACKENDS:
            with use_backend(backend):
                index = build_hnsw(points, knobs)
                visited = visited_by_hnsw(index, points, torch.arange(points.n), 9)
            indexes.append((layers_of(index), lists(visited)))
        assert indexes[0] == indexes[1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("table_bytes", TABLE)
def test_batched_build_equals_the_slow_version(backend: str, table_bytes: int) -> None:
    for seed in range(3):
        space = Space(integers(seed, 260, 3, 9))
        points = make_points(torch.from_numpy(space.vectors), Metric.l2, table_bytes)
        knobs = HnswSettings(3, 5, seed)
        levels, batches = plan(260, knobs)
        assert max(len(batch) for batch in batches) == 5
        layers, entry = build_slowly(space, 3, 5, levels, batches)
        with use_backend(backend):
            index = build_hnsw(points, knobs)
        validate_hnsw(index)
        assert len(index.upper) >= 3
        assert layers_of(index) == layers and index.entry_node == entry


def test_batches_lose_nothing_where_like_nodes_follow_each_other() -> None:
    """As passages of a document do in a corpus."""
    rows = unit_clusters(3100, 16, 60, 7)
    queries, rows = rows[:100], rows[100:]
    rows = rows[(rows @ rows[:60].T).argmax(1).argsort(stable=True)]
    points, truth = make_points(rows), exact_knn(make_points(rows), queries, 10)[1]
    found = [
        search_hnsw(build_hnsw(points, HnswSettings(6, 40, batch_size=b)), points, queries, 10, 10)
        for b in (0, 1)
    ]
    batched, alone = (recall(result.nodes, truth) for result, _ in found)
    assert batched > alone - 0.02  # 0.941 and 0.945; 0.847 where a batch does not see itself


def test_thread_count_changes_nothing() -> None:
    points = make_points(unit_clusters(1200, 8, 20, 5), table_bytes=0)
    knobs = HnswSettings(6, 24)
    queries = unit_clusters(50, 8, 20, 5)
    one = build_hnsw(points, knobs)
    seen = [search_hnsw(one, points, queries, 5, 10)[0]]
    torch.set_num_threads(2)
    try:
        two = build_hnsw(points, knobs)
        seen.append(search_hnsw(two, points, queries, 5, 10)[0])
    finally:
        torch.set_num_threads(1)
    assert layers_of(one) == layers_of(two)
    assert torch.equal(seen[0].distances, seen[1].distances)
    assert torch.equal(seen[0].n_dist, seen[1].n_dist)


def test_recall_on_clusters() -> None:
    rows = unit_clusters(2200, 16, 30, 7)
    points, queries = make_points(rows[200:]), rows[:200]
    index = build_hnsw(points, HnswSettings(8, 64))
    check_shape(index, 8)
    truth = exact_knn(points, queries, 10)[1]
    # hnswlib 0.8 at M 8, ef_construction 64 reaches 0.958, 0.998 and 1 on these rows.
    for width, floor in ((10, 0.94), (30, 0.99), (100, 0.999)):
        found, above = search_hnsw(index, points, queries, 10, width)
        assert recall(found.nodes, truth) >= floor
        assert (above > 0).all() and (found.n_dist < 1000).all()
    assert int((~reachable(index.base)).sum()) <= 2


def test_backends_agree_on_real_data() -> None:
    rows = unit_clusters(440, 16, 10, 7)
    points, queries = make_points(rows[40:]), rows[:40]
    index = build_hnsw(points, HnswSettings(6, 24))
    fast, above = search_hnsw(index, points, queries, 5, 12)
    with use_backend("torch"):
        slow, up = search_hnsw(index, points, queries, 5, 12)
    assert recall(fast.nodes, slow.nodes) > 0.99
    assert torch.allclose(fast.n_dist.double().mean(), slow.n_dist.double().mean(), rtol=5e-3)
    assert torch.allclose(above.double().mean(), up.double().mean(), rtol=5e-3)


def test_hnswlib_builds_and_searches_the_same(tmp_path: Path) -> None:
    """With hnswlib's levels all rows but a few (ties) are the same."""
    hnswlib = pytest.importorskip("hnswlib")
    rng = np.random.default_rng(0)
    vectors, queries = (rng.integers(0, 1000, (n, 8)).astype(np.float32) for n in (800, 50))
    theirs = hnswlib.Index("l2", 8)
    theirs.init_index(len(vectors), ef_construction=30, M=6)
    theirs.add_items(vectors, num_threads=1)
    theirs.save_index(str(tmp_path / "index.bin"))
    read = read_hnswlib(tmp_path / "index.bin", "l2", 8)
    points = make_points(torch.from_numpy(vectors), Metric.l2)
    ours = build_hnsw(points, HnswSettings(6, 30, batch_size=1), levels=read.levels)

    def same(mine: torch.Tensor, other: torch.Tensor) -> float:
        equal = mine.sort(1).values == other.sort(1).values
        return float(equal.all(1).double().mean())

    assert same(ours.base.neighbors, read.neighbors) > 0.995
    assert ours.entry_node == read.entry_node and len(ours.upper) == len(read.upper) > 1
    for mine, other in zip(ours.upper, read.upper, strict=True):
        assert torch.equal(mine.nodes, other.nodes)
        assert same(mine.rows, other.rows) > 0.98
    foreign = Hnsw(read.graph(), read.levels, read.upper, read.entry_node)  # type: ignore[arg-type]
    theirs.set_ef(12)
    expected = torch.from_numpy(theirs.knn_query(queries, 5, num_threads=1)[0].astype(np.int64))
    found, _ = search_hnsw(foreign, points, torch.from_numpy(queries), 5, 12)
    assert recall(found.nodes, expected) > 0.99


@pytest.mark.parametrize("backend", BACKENDS)
def test_heuristic_by_hand(backend: str) -> None:
    """On a line at 0 2 3 -2 -5 with copies of 0 and 3; the node is 0 at 0.

    Squared distances to it: 1 at 2: 4; 2 at 3: 9; 3 at -2: 4; 4 at -5: 25; 5 at 0: 0; 6 at 3: 9.
    """
    points = make_points(torch.tensor([[0.0], [2], [3], [-2], [-5], [0], [3]]), Metric.l2)

    def chosen(candidates: list[int], bound: int) -> list[int]:
        ids = torch.tensor([candidates], dtype=torch.int32)
        with use_backend(backend):
            row = select_neighbors(points, torch.tensor([0]), ids, bound)
        return [x for x in row[0].tolist() if x >= 0]

    assert chosen([4, 2, 1, -1, 1, 0], 4) == [1, 2, 4]  # three candidates: fewer than 4, all kept
    # 1 is kept; 3 is (D(1, 3) = 16 > 4); 2 falls to 1 (1 < 9); 4 falls to 3 (9 < 25).
    assert chosen([4, 2, 1, 3], 3) == [1, 3]
    assert chosen([4, 2, 1, 3], 4) == [1, 3]
    # The copy 5 of the node lies at 0; D(5, c) = D(0, c) is not smaller, so it prunes nothing.
    assert chosen([5, 1, 3], 3) == [5, 1, 3]
    assert chosen([5, 1, 3], 2) == [5, 1]
    # Of the copies 2 and 6 the first prunes the second: 0 < 9.
    assert chosen([2, 6], 2) == [2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_reciprocals_by_hand(backend: str) -> None:
    """The target is node 0 at the origin of a plane, bound 3.

    Its row: 1 at (2, 0), 2 at (3, 0), 3 at (4, 0), squared distances 4, 9, 16. In order of
    distance the edges back come from 4 at (0, 1): 1; 5 at (1, 2): 5; 6 at (-3, 0): 9.
    4: of 4, 1, 2, 3 the rule keeps 4; 1 (D(4, 1) = 5 > 4); drops 2 (D(1, 2) = 1 < 9) and 3. The
       farthest dropped one, 3, makes room: slot 2.
    5: D(4, 5) = 2 < 5: not kept, nothing happens.
    6: of 4, 1, 6, 2 (6 and 2 tie at 9; 2 comes first): 2 is dropped, 6 is kept (D(4, 6) = 10,
       D(1, 6) = 25): 6 replaces 2 in slot 1.
    Node 7 at (9, 9) has an empty row: 4 is appended.
    """
    spots = [[0, 0], [2, 0], [3, 0], [4, 0], [0, 1], [1, 2], [-3, 0], [9, 9]]
    points = make_points(torch.tensor(spots).float(), Metric.l2)
    rows = torch.full((8, 3), -1, dtype=torch.int32)
    rows[0] = torch.tensor([1, 2, 3])
    sources, targets = torch.tensor([4, 6, 5, 4]), torch.tensor([7, 0, 0, 0])
    with use_backend(backend):
        [edits] = select_neighbors_reciprocals(3)(points, rows, sources, targets)
    assert rows[0].tolist() == [1, 6, 4]
    assert rows[7].tolist() == [4, -1, -1]
    assert (rows[1:7] == -1).all()
    log = zip(
        edits.node.tolist(), edits.slot.tolist(), edits.removed.tolist(), edits.added.tolist(),
        edits.reason.tolist(), edits.distance.tolist(), strict=True,
    )  # fmt: skip
    swap, append = int(Reason.reciprocal_replace), int(Reason.reciprocal_append)
    assert list(log) == [
        (0, 2, 3, 4, swap, 1.0), (0, 1, 2, 6, swap, 9.0), (7, 0, -1, 4, append, 81 + 64.0),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="bound is 4"):
        select_neighbors_reciprocals(4)(points, rows, sources, targets)


def reciprocals_slowly(
    space: Space, rows: Rows, bound: int, edges: Iterable[tuple[int, int]]
) -> None:
    for c, _, i in sorted((c, space.between(c, i), i) for i, c in edges):
        kept = heuristic(space, c, [*rows[c], i], bound)
        if i in rows[c] or i not in kept:
            continue
        if len(rows[c]) < bound:
            rows[c].append(i)
        else:
            victim = max((space.between(c, x), x) for x in rows[c] if x not in kept)[1]
            rows[c][rows[c].index(victim)] = i


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=15)
@given(st.integers(0, 9999), st.integers(4, 24), st.integers(1, 3), st.integers(1, 5))
def test_reciprocals_equal_the_slow_version(
    backend: str, seed: int, n: int, dims: int, bound: int
) -> None:
    case = make_case(seed, n, dims, 6, bound)
    bound = case.max_degree
    pairs = {tuple(pair) for pair in case.rng.integers(0, n, (3 * n, 2)).tolist()}
    edges = sorted((i, c) for i, c in pairs if i != c)
    rows = [list(row) for row in case.rows]
    reciprocals_slowly(case.space, rows, bound, edges)
    fast = table(case.rows, bound)
    sources, targets = (torch.tensor(part) for part in zip(*edges, strict=True))
    with use_backend(backend):
        select_neighbors_reciprocals(bound)(case.points(), fast, sources, targets)
    assert lists(fast) == rows


@pytest.mark.parametrize("batch", [0, 50])
def test_refinement_keeps_everything_it_must(batch: int) -> None:
    points = make_points(unit_clusters(300, 8, 12, 11))
    index = build_hnsw(points, HnswSettings(4, 16))
    kept = (index.levels.clone(), [(u.nodes.clone(), u.rows.clone()) for u in index.upper])
    before = index.base.neighbors.clone()
    step = StepSettings(2, 12, 4, 2)
    eligible = torch.arange(300) % 3 > 0
    refiner = Refiner(points, nearest, step, eligible, fixed_degree=True)
    after, edits = refine_hnsw(index, points, refiner, 16, batch)
    assert torch.equal(index.base.neighbors, before)  # the input stands
    assert torch.equal(after.levels, kept[0]) and after.entry_node == index.entry_node
    assert after.base.entry_node == index.base.entry_node
    for layer, (nodes, rows) in zip(after.upper, kept[1], strict=True):
        assert torch.equal(layer.nodes, nodes) and torch.equal(layer.rows, rows)
    check_shape(after, 4)
    own = edits.own()
    assert int(own.sum()) > 100
    assert (edits.reason[own] == int(Reason.replace)).all()  # an anchor's own degree stays
    assert set(edits.node[own].tolist()) <= set(eligible.nonzero().flatten().tolist())
    assert (edits.added >= 0).all()  # no slot is emptied
    assert (after.base.degrees() >= index.base.degrees()).all()
    grown = edits.reason == int(Reason.reciprocal_append)
    gain = torch.bincount(edits.node[grown].long(), minlength=300)
    assert torch.equal(after.base.degrees() - index.base.degrees(), gain)
    assert int((edits.reason == int(Reason.reciprocal_replace)).sum()) > 0
    header = {
        "when": "post",
        "base_sha256": index.base.digest(),
        "result_sha256": after.base.digest(),
    }
    log = EditLog(edits, refiner.all_decisions(), header)
    assert apply_edits(index.base, log).digest() == after.base.digest()
    assert undo_edits(after.base, log).digest() == index.base.digest()


def test_refinement_is_the_same_on_both_backends() -> None:
    points = integer_points(5, 90, 3, 7, 0)
    index = build_hnsw(points, HnswSettings(3, 8))
    digests = set()
    for backend in BACKENDS:
        refiner = Refiner(
            points, farthest, StepSettings(2, 8, 2, 1), torch.ones(90, dtype=torch.bool),
            fixed_degree=True,
        )  # fmt: skip
        with use_backend(backend):
            digests.add(refine_hnsw(index, points, refiner, 8)[0].base.digest())
    assert len(digests) == 1 and index.base.digest() not in digests


def test_without_fixed_degree_own_edits_fill_free_slots_first() -> None:
    points = integer_points(5, 90, 3, 7, 0)
    index = build_hnsw(points, HnswSettings(3, 8))
    refiner = Refiner(points, farthest, StepSettings(2, 8, 2, 1), torch.ones(90, dtype=torch.bool))
    after, edits = refine_hnsw(index, points, refiner, 8)
    own = edits.take(edits.own().nonzero().flatten())
    room = index.base.degrees()[own.node.long()] < index.base.max_degree
    first = torch.ones(len(own.node), dtype=torch.bool)
    first[1:] = own.node[1:] != own.node[:-1]
    assert int(room.sum()) > 0
    assert bool((own.reason[first & room] == int(Reason.append)).all())
    assert bool((own.reason[~room] == int(Reason.replace)).all())
    assert bool((after.base.degrees() >= index.base.degrees()).all())
    assert int(after.base.degrees().max()) <= index.base.max_degree


def test_levels_fall_off_geometrically() -> None:
    levels = draw_levels(100_000, 16, torch.Generator().manual_seed(0))
    for level in (1, 2, 3):
        share = float((levels >= level).double().mean())
        assert share == pytest.approx(16.0**-level, rel=0.2)


def test_batches_grow_and_records_stand_alone() -> None:
    levels = torch.zeros(1000, dtype=torch.int32)
    levels[[0, 150, 500, 801]] = torch.tensor([1, 1, 3, 2], dtype=torch.int32)
    batches = [(b.start, b.stop) for b in insertion_batches(levels, 0)]
    assert [a for a, _ in batches] == [0, *(b for _, b in batches[:-1])] and batches[-1][1] == 1000
    assert (500, 501) in batches and (150, 151) not in batches
    assert all(b - a <= max(1, a // 50) for a, b in batches)
    assert batches[:3] == [(0, 1), (1, 2), (2, 3)]
    assert max(b.stop - b.start for b in insertion_batches(levels, 7)) == 7
    assert len(list(insertion_batches(levels, 1))) == 1000


def test_what_is_refused() -> None:
    points = integer_points(0, 10, 2, 5, 0)
    for knobs, named in (
        (HnswSettings(1), "connectivity=1"),
        (HnswSettings(8, 7), "construction_width=7"),
        (HnswSettings(batch_size=-1), "batch_size=-1"),
    ):
        with pytest.raises(ValueError, match=named):
            build_hnsw(points, knobs)
    index = build_hnsw(points, HnswSettings(2, 4))
    queries = torch.zeros(2, 2)
    for k, width, named in ((11, 20, "k=11"), (0, 5, "k=0"), (5, 4, "width 4")):
        with pytest.raises(ValueError, match=named):
            search_hnsw(index, points, queries, k, width)
    with pytest.raises(ValueError, match="2 dimensions"):
        search_hnsw(index, points, torch.zeros(2, 3), 1, 5)
    with pytest.raises(ValueError, match="width 0"):
        visited_by_hnsw(index, points, torch.arange(3), 0)
    assert search_hnsw(index, points, queries[:0], 3, 5)[0].nodes.shape == (0, 3)
    assert visited_by_hnsw(index, points, torch.arange(0), 3).shape == (0, 0)
