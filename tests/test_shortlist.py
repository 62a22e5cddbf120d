"""Candidates, signals and the shortlist rules against the reference, and by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    BACKENDS,
    TABLE,
    Case,
    candidate_pool,
    coverage_gain,
    lists,
    make_case,
    separation,
    shortlist,
    table,
    visited_by,
)

from lgp.choices import ShortlistRule
from lgp.distance import Metric
from lgp.kernels import use_backend
from lgp.points import make_points
from lgp.refine import shortlist as s

CASES = st.builds(
    make_case, seed=st.integers(0, 9999), n=st.integers(2, 30), dims=st.integers(1, 3),
    high=st.integers(1, 7), max_degree=st.integers(1, 6),
)  # fmt: skip


def visited_of(case: Case, anchors: list[int], width: int) -> list[list[int]]:
    return [visited_by(case.space, case.rows, case.entry, i, width) for i in anchors]


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    CASES, st.sampled_from(list(ShortlistRule)), st.integers(1, 12), st.integers(0, 5),
    st.sampled_from(TABLE), st.sampled_from([1.0, 1.2, 2.0]),
)  # fmt: skip
def test_shortlists_equal_reference(
    backend: str, case: Case, rule: ShortlistRule, size: int, context: int, table_bytes: int,
    alpha: float,
) -> None:  # fmt: skip
    space = case.space
    anchors = case.rng.permutation(space.n)[:6].tolist()
    visited = visited_of(case, anchors, 4)
    with use_backend(backend):
        found = s.make_shortlist(
            case.points(table_bytes), case.graph().neighbors, torch.tensor(anchors),
            table(visited, max(map(len, visited))), alpha, size, context, rule,
        )  # fmt: skip
    assert found.anchors.tolist() == anchors
    assert found.candidates.shape == (len(anchors), size)
    assert found.candidates.dtype == torch.int32
    assert found.context.shape == (len(anchors), context)
    for at, i in enumerate(anchors):
        row = case.rows[i]
        truth = shortlist(space, case.rows, i, visited[at], size, rule.value, alpha)
        gains = [coverage_gain(case.rows, i, row, c) for c in truth]
        count = len(truth)
        assert found.candidates[at].tolist() == truth + [-1] * (size - count)
        assert found.distance[at, :count].tolist() == [space.between(i, c) for c in truth]
        assert found.gain[at, :count].tolist() == gains
        assert found.separation[at, :count].tolist() == [separation(space, row, c) for c in truth]
        near = sorted(row, key=lambda j: (space.between(i, j), j))[:context]
        assert found.context[at].tolist() == near + [-1] * (context - len(near))


@settings(deadline=None, derandomize=True, max_examples=50)
@given(CASES, st.booleans())
def test_pools_hold_visited_and_two_hop_nodes(case: Case, restrict: bool) -> None:
    anchors = list(range(case.space.n))
    visited = visited_of(case, anchors, 3)
    allowed = torch.from_numpy(case.rng.random(case.space.n) < 0.6) if restrict else None
    pool = s.candidate_pool(
        case.graph().neighbors, torch.tensor(anchors), table(visited, max(map(len, visited))),
        allowed,
    )  # fmt: skip
    for i, row in enumerate(pool.tolist()):
        truth = candidate_pool(case.rows, i, visited[i])
        if allowed is not None:
            truth = {c for c in truth if allowed[c]}
        held = [c for c in row if c >= 0]
        assert len(held) == len(set(held)) and set(held) == truth
        assert row[: len(held)] == held  # padding at the end


# Anchor 0 at 0 has one neighbor, 1 at 1. N(1) = {2, 3, 4}; its search visited 5.
#   node      2    3    4    5
#   at       -2    3   -4    6
#   D(0, c)   4    9   16   36
#   D(1, c)   9    4   25   25
ROWS = table([[1], [2, 3, 4], [5, 6], [5, 6, 7], [0], [6], [], []], 3)
POINTS = make_points(
    torch.tensor([[0.0], [1.0], [-2.0], [3.0], [-4.0], [6.0], [50.0], [60.0]]), Metric.l2
)
ZERO, VISITED = torch.tensor([0]), table([[0, 5, 1]], 3)
# Proximity (alpha 1.2): 3 is occluded (1.2 * 4 = 4.8 < 9), 5 too (1.2 * 25 = 30 < 36);
#   2 (10.8 < 4 is false) and 4 (30 < 16 is false) stay: 2, 4.
# Coverage: C(0) = {0, 1, 2, 3, 4}; 3 brings 5, 6, 7; 2 brings 5, 6; 5 brings 6; 4 nothing.
# Separation is D(1, c), the only neighbor: 4 and 5 tie at 25, 4 is nearer to 0; then 2, 3.
BY_HAND = {
    ShortlistRule.proximity: [2, 4],
    ShortlistRule.coverage: [3, 2, 5, 4],
    ShortlistRule.separation: [4, 5, 2, 3],
    # Turns: proximity 2, coverage 3, separation 4, proximity has no more, coverage (2 is taken) 5.
    ShortlistRule.balanced: [2, 3, 4, 5],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", list(ShortlistRule))
def test_rankings_and_balanced_turns_by_hand(backend: str, rule: ShortlistRule) -> None:
    for size in (1, 2, 3, 4, 9):
        with use_backend(backend):
            found = s.make_shortlist(POINTS, ROWS, ZERO, VISITED, 1.2, size, 2, rule)
        truth = BY_HAND[rule][:size]
        assert found.candidates.tolist() == [truth + [-1] * (size - len(truth))]
        gains = {2: 2, 3: 3, 4: 0, 5: 1}
        assert found.gain[0, : len(truth)].tolist() == [gains[c] for c in truth]
    assert found.context.tolist() == [[1, -1]]
    assert found.distance.tolist()[0][: len(truth)] == [
        {2: 4.0, 3: 9.0, 4: 16.0, 5: 36.0}[c] for c in truth
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_of_a_shortlist_reads_the_same_with_and_without_candidates(backend: str) -> None:
    # Node 6 has no neighbors and its search visited only itself: no candidates at all. Node 0 has
    # four, so places are left over, too.
    with use_backend(backend):
        both = s.make_shortlist(
            POINTS, ROWS, torch.tensor([0, 6]), table([[0, 5, 1], [6]], 3), 1.2, 6, 2
        )
        alone = s.make_shortlist(POINTS, ROWS, torch.tensor([6]), table([[6]], 1), 1.2, 6, 2)
    assert lists(both.candidates) == [[2, 3, 4, 5], []]
    assert lists(alone.candidates) == [[]]
    for name in ("candidates", "distance", "gain", "separation", "context"):
        assert torch.equal(getattr(both, name)[1:], getattr(alone, name)), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_shortlists_do_not_depend_on_the_batch(backend: str) -> None:
    case = make_case(4, 60, 2, 9, 6)
    visited = visited_of(case, list(range(60)), 5)
    padded, neighbors = table(visited, max(map(len, visited))), case.graph().neighbors
    order = torch.from_numpy(case.rng.permutation(60))
    with use_backend(backend):
        whole = s.make_shortlist(case.points(), neighbors, torch.arange(60), padded, 1.2, 8, 3)
        for part in order.split(7):
            some = s.make_shortlist(case.points(), neighbors, part, padded[part], 1.2, 8, 3)
            assert torch.equal(some.candidates, whole.candidates[part])
            assert torch.equal(some.context, whole.context[part])
