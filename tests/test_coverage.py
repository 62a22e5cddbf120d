"""Two-hop sets, coverage gain, unique coverage and redundancy: reference and by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    BACKENDS,
    Case,
    coverage_gain,
    make_case,
    redundancy,
    table,
    two_hop,
    unique_coverage,
)

from lgp.distance import Metric
from lgp.kernels import use_backend
from lgp.points import make_points
from lgp.refine import coverage as c

CASES = st.builds(
    make_case, seed=st.integers(0, 9999), n=st.integers(2, 30), dims=st.integers(1, 3),
    high=st.integers(1, 6), max_degree=st.integers(1, 6),
)  # fmt: skip


def live_rows(case: Case) -> list[list[int]]:
    """Rows of the anchors while edits are placed: not those of the table, of any degree."""
    n, rng = case.space.n, case.rng
    return [
        [int(x + (x >= i)) for x in rng.permutation(n - 1)[: rng.integers(case.max_degree + 1)]]
        for i in range(n)
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=50)
@given(CASES, st.booleans())
def test_signals_equal_reference(backend: str, case: Case, live: bool) -> None:
    n = case.space.n
    rows = live_rows(case) if live else case.rows
    neighbors, anchors, own = case.graph().neighbors, torch.arange(n), table(rows, case.max_degree)
    candidates = torch.from_numpy(case.rng.integers(-1, n, (n, 7))).to(torch.int32)
    with use_backend(backend):
        hops = c.two_hop(neighbors, own)
        gain = c.coverage_gain(neighbors, anchors, own, candidates)
        unique = c.unique_coverage(neighbors, anchors, own)
        gap = c.redundancy(case.points(), own)
    for i, row in enumerate(rows):
        pad = [0] * (case.max_degree - len(row))
        found = set(hops[i].flatten().tolist()) - {-1}
        assert found - set(row) - {i} == two_hop(case.rows, i, row)
        assert gain[i].tolist() == [
            coverage_gain(case.rows, i, row, x) if x >= 0 else 0 for x in candidates[i].tolist()
        ]
        assert unique[i].tolist() == [unique_coverage(case.rows, i, row, z) for z in row] + pad
        assert gap[i].tolist() == [redundancy(case.space, row, z) for z in row] + [
            float("inf") for _ in pad
        ]


# 0>1 0>2 | 1>2 1>3 1>4 | 2>0 2>3 | 3>4 3>5 | 4>5 4>0 | 5>1
ROWS = table([[1, 2], [2, 3, 4], [0, 3], [4, 5], [5, 0], [1]], 3)
ZERO = torch.tensor([0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_coverage_gain_by_hand(backend: str) -> None:
    # N(0) = {1, 2}; N2(0) = {2, 3, 4} + {0, 3} - N(0) - 0 = {3, 4}; C(0) = {0, 1, 2, 3, 4}.
    # Gains: 3 brings {4, 5} - C = {5}; 4 brings {5, 0} - C = {5}; 5 brings {1} - C = {}.
    candidates = torch.tensor([[3, 4, 5, -1]], dtype=torch.int32)
    with use_backend(backend):
        gain = c.coverage_gain(ROWS, ZERO, ROWS[:1], candidates)
        assert gain.tolist() == [[1, 1, 0, 0]] and gain.dtype == torch.int32
        # With 3 accepted, N(0) = {1, 2, 3} and C holds 5, too: 4 brings nothing any more.
        live = table([[1, 2, 3]], 3)
        assert c.coverage_gain(ROWS, ZERO, live, candidates).tolist() == [[0, 0, 0, 0]]
        # With an empty row C(0) = {0}: 3 brings {4, 5}, 4 brings {5}, 5 brings {1}.
        assert c.coverage_gain(ROWS, ZERO, table([[]], 3), candidates).tolist() == [[2, 1, 1, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_unique_coverage_by_hand(backend: str) -> None:
    with use_backend(backend):
        # 1: {2, 3, 4} - N(2) {0, 3} - N(0) {1, 2} - 0 = {4}; 2: {0, 3} - {2, 3, 4} - ... = {}.
        assert c.unique_coverage(ROWS, ZERO, ROWS[:1]).tolist() == [[1, 0, 0]]
        # Row {3, 4}: 3: {4, 5} - {5, 0} - {3, 4} = {}; 4: {5, 0} - {4, 5} - 0 = {}.
        # Row {2, 3}: 2: {0, 3} - {4, 5} - {2, 3} - 0 = {}; 3: {4, 5} - {0, 3} - {2, 3} = {4, 5}.
        own = table([[3, 4], [2, 3]], 3)
        unique = c.unique_coverage(ROWS, torch.tensor([0, 0]), own)
        assert unique.tolist() == [[0, 0, 0], [0, 2, 0]]


def test_redundancy_by_hand() -> None:
    # Positions 0, 1, 3, 4: of row {1, 2, 3}: D(1,2) = 4, D(1,3) = 9, D(2,3) = 1.
    points = make_points(torch.tensor([[0.0], [1.0], [3.0], [4.0]]), Metric.l2)
    gap = c.redundancy(points, table([[1, 2, 3], [2], []], 3))
    inf = float("inf")
    assert gap.tolist() == [[4.0, 1.0, 1.0], [inf, inf, inf], [inf, inf, inf]]


def test_membership_in_sorted_lists() -> None:
    held = torch.tensor([[1, 4, 4, c.NOBODY], [0, 2, 5, 9]], dtype=torch.int32)
    asked = torch.tensor([[4, 0, 9], [9, 1, 0]], dtype=torch.int32)
    assert c.is_in(held, asked).tolist() == [[True, False, False], [True, False, True]]
