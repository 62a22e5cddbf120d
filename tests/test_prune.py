"""RobustPrune and reciprocal edges against the reference, and by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    BACKENDS,
    TABLE,
    Case,
    add_reciprocals,
    lists,
    make_case,
    robust_prune,
    table,
    unit_clusters,
)

import lgp.prune
from lgp.distance import Metric
from lgp.kernels import use_backend
from lgp.points import make_points

CASES = st.builds(
    make_case, seed=st.integers(0, 9999), n=st.integers(2, 30), dims=st.integers(1, 3),
    high=st.integers(1, 6), max_degree=st.integers(1, 6),
)  # fmt: skip
ALPHAS = st.sampled_from([1.0, 1.2, 1.5, 2.0])


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(CASES, ALPHAS, st.integers(1, 30), st.booleans(), st.sampled_from(TABLE))
def test_prune_equals_reference(
    backend: str, case: Case, alpha: float, size: int, protect: bool, table_bytes: int
) -> None:
    # Candidates with repeats, padding anywhere and the node itself; protected ids that are no
    # candidates protect nothing.
    n, rng = case.space.n, case.rng
    nodes = rng.integers(0, n, 4)
    pool = rng.integers(-1, n, (4, size))
    shield = rng.integers(-1, n, (4, 3)) if protect else None
    with use_backend(backend):
        rows = lgp.prune.robust_prune(
            case.points(table_bytes), torch.from_numpy(nodes), torch.from_numpy(pool), alpha,
            case.max_degree, None if shield is None else torch.from_numpy(shield),
        )  # fmt: skip
    assert rows.dtype == torch.int32 and rows.shape == (4, case.max_degree)
    for at, node in enumerate(nodes.tolist()):
        protected = () if shield is None else set(shield[at].tolist())
        truth = robust_prune(case.space, node, pool[at].tolist(), alpha, case.max_degree, protected)
        assert rows[at].tolist() == truth + [-1] * (case.max_degree - len(truth))


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(CASES, ALPHAS, st.integers(1, 30), st.booleans())
def test_reciprocals_of_a_batch_equal_reference(
    backend: str, case: Case, alpha: float, size: int, protect: bool
) -> None:
    rng = case.rng
    sources = rng.permutation(case.space.n)[:size]
    rows = table([case.rows[i] for i in sources.tolist()], case.max_degree)
    mask = torch.from_numpy(rng.random(rows.shape) < 0.4) & (rows >= 0)
    new = {i: set(rows[at][mask[at]].tolist()) for at, i in enumerate(sources.tolist())}
    truth = [list(row) for row in case.rows]
    add_reciprocals(
        case.space, truth, sources.tolist(), alpha, case.max_degree, new if protect else None
    )
    neighbors = case.graph().neighbors
    with use_backend(backend):
        lgp.prune.add_reciprocals(
            case.points(), neighbors, torch.from_numpy(sources), rows, alpha,
            mask if protect else None,
        )  # fmt: skip
    assert lists(neighbors) == truth


# Node 0 at 0; the others at 1, 2, -1 and 5: D(0, .) = 1, 4, 1, 25.
LINE = make_points(torch.tensor([[0.0], [1.0], [2.0], [-1.0], [5.0]]), Metric.l2)


def prune(alpha: float, max_degree: int, protected: list[int] | None = None) -> list[int]:
    shield = None if protected is None else torch.tensor([protected])
    pool = torch.tensor([[4, 3, 2, 1]])
    return lists(lgp.prune.robust_prune(LINE, torch.tensor([0]), pool, alpha, max_degree, shield))[
        0
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_alpha_by_hand(backend: str) -> None:
    # Walk: 1 (D 1), 3 (D 1), 2 (D 4), 4 (D 25).
    # D(1,3) = 4, D(1,2) = 1, D(1,4) = 16, D(3,2) = 9, D(3,4) = 36, D(2,4) = 9.
    with use_backend(backend):
        # alpha 1: 3 stays (4 < 1 is false); 2 goes (1 < 4); 4 goes (16 < 25).
        assert prune(1.0, 4) == [1, 3]
        # alpha 1.6: 4 stays (1.6 * 16 = 25.6 < 25 is false); 2 goes (1.6 < 4).
        assert prune(1.6, 4) == [1, 3, 4]
        # alpha 4: 2 stays, because 4 * 1 < 4 is false; 4 * 9 < 25 is false, too.
        assert prune(4.0, 4) == [1, 3, 2, 4]
        assert prune(4.0, 3) == [1, 3, 2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_protected_ids_enter_first_and_occlude_others(backend: str) -> None:
    with use_backend(backend):
        # 2 first. 1: D(2,1) = 1 < 1 is false; 3: 9 < 1 and 4 < 1 are false; 4: 9 < 25 goes.
        assert prune(1.0, 4, [2]) == [2, 1, 3]
        # 4 first: it occludes nobody nearer; 2 goes by 1 (1 < 4).
        assert prune(1.0, 4, [4]) == [4, 1, 3]
        # Two of them by distance, though 2 occludes 4; at most R.
        assert prune(1.0, 3, [4, 2]) == [2, 4, 1]
        assert prune(1.0, 1, [4, 2]) == [2]
        assert prune(1.0, 4, [-1]) == prune(1.0, 4) == [1, 3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_bit_equal_candidates_the_first_is_kept(backend: str) -> None:
    # 1, 2 and 3 are one point at distance 1 of node 0, and 4 is node 0's twin. Without the rule,
    # alpha * 0 < 1 prunes 2 and 3 but 4 at D 0 never, and a twin of 4 (here 5) would stay.
    points = make_points(torch.tensor([[0.0], [1.0], [1.0], [1.0], [0.0], [0.0]]), Metric.l2)
    pool = torch.tensor([[5, 3, 2, 4, 1]])
    with use_backend(backend):
        rows = lgp.prune.robust_prune(points, torch.tensor([0]), pool, 1.2, 5)
        # 4 (D 0) first, 5 equals it; 1: 1.2 * 1 < 1 is false.
        assert lists(rows) == [[4, 1]]
        shielded = lgp.prune.robust_prune(
            points, torch.tensor([0]), pool, 1.2, 5, torch.tensor([[5, 3]])
        )
        # Protected: 5 and 3, occluded by nothing. They occlude 4, 1 and 2.
        assert lists(shielded) == [[5, 3]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_protected_reciprocal_survives_only_its_own_prune(backend: str) -> None:
    # Node 0 has the full row [1, 3]; node 2 placed an edge to 0. Unprotected, 1 occludes 2 (see
    # above); protected, 2 leads, then 1 (D 1), and R = 2 is full.
    for protect, after in ((False, [1, 3]), (True, [2, 1])):
        neighbors = table([[1, 3], [], [0], [], []], 2)
        mask = torch.tensor([[protect, False]])
        with use_backend(backend):
            lgp.prune.add_reciprocals(
                LINE, neighbors, torch.tensor([2]), table([[0]], 2), 1.0, mask
            )
        assert lists(neighbors) == [after, [], [0], [], []]
    with use_backend(backend):  # a later overflow by 4 (D 25) prunes without protection
        lgp.prune.add_reciprocals(LINE, neighbors, torch.tensor([4]), table([[0]], 2), 1.0)
    assert lists(neighbors)[0] == [1]  # 2 by 1 (1 < 4), 4 by 1 (16 < 25)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_prune(backend: str) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    with use_backend(backend):
        rows = lgp.prune.robust_prune(LINE, none, torch.zeros(0, 4, dtype=torch.int64), 1.2, 3)
        assert rows.shape == (0, 3) and rows.dtype == torch.int32
        empty = torch.full((2, 3), -1)
        rows = lgp.prune.robust_prune(LINE, torch.tensor([0, 1]), empty, 1.2, 3)
        assert lists(rows) == [[], []]
        neighbors = table([[1], [0], [], [], []], 2)
        lgp.prune.add_reciprocals(LINE, neighbors, none, table([], 2), 1.0)
    assert lists(neighbors) == [[1], [0], [], [], []]


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_do_not_depend_on_the_thread_count(backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randint(-1, 500, (500, 60), generator=generator)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            points = make_points(unit_clusters(500, 40, 6, seed=4), table_bytes=0)
            with use_backend(backend):
                found.append(
                    lgp.prune.robust_prune(points, torch.arange(500), pool, 1.2, 12, pool[:, :2])
                )
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
