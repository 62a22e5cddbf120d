"""Victim rules, acceptance against the live row and placement: reference and by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    BACKENDS,
    TABLE,
    Case,
    coverage_gain,
    lists,
    make_case,
    place,
    table,
    unique_coverage,
    victim,
)

from lgp.choices import VictimRule
from lgp.distance import Metric
from lgp.kernels import use_backend
from lgp.points import make_points
from lgp.refine import replace as r
from lgp.refine.log import Reason

CASES = st.builds(
    make_case, seed=st.integers(0, 9999), n=st.integers(2, 30), dims=st.integers(1, 3),
    high=st.integers(1, 6), max_degree=st.integers(1, 6),
)  # fmt: skip
RULES = list(VictimRule)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=50)
@given(CASES, st.sampled_from(RULES), st.sampled_from(TABLE), st.booleans())
def test_victims_equal_reference(
    backend: str, case: Case, rule: VictimRule, table_bytes: int, full: bool
) -> None:
    case = case.full() if full else case
    rows, n = case.graph().neighbors, case.space.n
    shielded = torch.from_numpy(case.rng.random(rows.shape) < 0.3)
    with use_backend(backend):
        slot, unique = r.choose_victim(
            case.points(table_bytes), rows, torch.arange(n), rows, shielded, rule
        )
    for i, row in enumerate(case.rows):
        safe = [z for at, z in enumerate(row) if shielded[i, at]]
        truth = victim(case.space, case.rows, i, row, safe, rule.value)
        if truth is None:
            assert int(slot[i]) == -1
        else:
            assert int(rows[i, slot[i]]) == truth
            assert int(unique[i]) == unique_coverage(case.rows, i, row, truth)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=80)
@given(CASES, st.sampled_from(RULES), st.integers(0, 4), st.integers(0, 3), st.booleans())
def test_placement_equals_reference(
    backend: str, case: Case, rule: VictimRule, most: int, min_gain: int, full: bool
) -> None:
    case = case.full() if full else case
    n, rng, degree = case.space.n, case.rng, case.max_degree
    anchors = rng.permutation(n)[:8].tolist()
    picks = [
        [c for c in rng.permutation(n)[:5].tolist() if c != i and c not in case.rows[i]]
        for i in anchors
    ]
    quota = rng.integers(0, most + 1, len(anchors))
    with use_backend(backend):
        found = r.place(
            case.points(), case.graph().neighbors, torch.tensor(anchors), table(picks, 5),
            torch.from_numpy(quota), min_gain, rule,
        )  # fmt: skip
    edits = found.edits
    at_edit = 0
    for at, i in enumerate(anchors):
        row, placed = place(
            case.space, case.rows, i, picks[at], int(quota[at]), min_gain, degree, rule.value
        )
        assert lists(found.rows)[at] == row
        assert int(found.placed[at]) == len(placed) <= quota[at]
        assert found.rows[at][found.new[at]].sort().values.tolist() == sorted(placed)
        live = list(case.rows[i])
        for c in placed:  # the log: what was removed where, with its scores
            slot, removed = int(edits.slot[at_edit]), int(edits.removed[at_edit])
            assert (int(edits.node[at_edit]), int(edits.added[at_edit])) == (i, c)
            assert int(edits.gain[at_edit]) == coverage_gain(case.rows, i, live, c) >= min_gain
            assert float(edits.distance[at_edit]) == case.space.between(i, c)
            if removed < 0:
                assert slot == len(live) and int(edits.reason[at_edit]) == Reason.append
                assert int(edits.victim_unique[at_edit]) == -1
                live.append(c)
            else:
                assert live[slot] == removed and int(edits.reason[at_edit]) == Reason.replace
                assert removed not in placed
                unique = unique_coverage(case.rows, i, live, removed)
                assert int(edits.victim_unique[at_edit]) == unique
                live[slot] = c
            at_edit += 1
        assert live == row
    assert at_edit == len(edits.node)


# Anchor 0 at 0 with the full row 1, 2, 3 at 1, 3, 4. 1>4, 2>4, 3>5.
#   unique coverage: 4 is brought by 1 and by 2: 0 and 0; 5 by 3 alone: 1.
#   redundancy: D(1,2) = 4, D(1,3) = 9, D(2,3) = 1: 4 for node 1, 1 for node 2, 1 for node 3.
ROWS = table([[1, 2, 3], [4], [4], [5], [6, 7], [7, 8], [], [], [1]], 3)
POINTS = make_points(
    torch.tensor([[0.0], [1.0], [3.0], [4.0], [9.0], [10.0], [11.0], [12.0], [13.0]]), Metric.l2
)
ZERO = torch.tensor([0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("rule", "expected", "second"),
    [
        (VictimRule.lexicographic, 2, 1),  # unique 0 of {1, 2}, then 2 is the more redundant
        (VictimRule.redundancy, 2, 3),  # 2 and 3 tie at 1: the smaller id
        (VictimRule.coverage, 1, 2),  # 1 and 2 tie at 0: the smaller id
    ],
)
def test_victims_by_hand(backend: str, rule: VictimRule, expected: int, second: int) -> None:
    shielded = torch.zeros(1, 3, dtype=torch.bool)
    with use_backend(backend):
        slot, unique = r.choose_victim(POINTS, ROWS, ZERO, ROWS[:1], shielded, rule)
        assert (ROWS[0, slot].tolist(), unique.tolist()) == ([expected], [0])
        shielded[0, slot] = True  # a shielded slot hands over to the next
        slot, _ = r.choose_victim(POINTS, ROWS, ZERO, ROWS[:1], shielded, rule)
        assert ROWS[0, slot].tolist() == [second]
        slot, _ = r.choose_victim(POINTS, ROWS, ZERO, ROWS[:1], ~shielded | True, rule)
        assert slot.tolist() == [-1]


def put(picks: list[int], quota: int, min_gain: int) -> r.Placement:
    return r.place(POINTS, ROWS, ZERO, table([picks], len(picks)), torch.tensor([quota]), min_gain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gains_count_against_the_row_as_edited_so_far(backend: str) -> None:
    # C(0) = {0, 1, 2, 3, 4, 5}. 4 brings {6, 7}: gain 2. 5 brings {7, 8}: gain 2.
    with use_backend(backend):
        alone = put([5], 2, 2)
        assert lists(alone.rows) == [[1, 5, 3]]  # slot of 2, the victim above
        both = put([4, 5], 2, 2)
        # After 4 took the slot of 2 the row is 1, 4, 3: C = {0, 1, 3, 4, 5, 6, 7}; 5 brings
        # {8}: gain 1, under 2.
        assert lists(both.rows) == [[1, 4, 3]] and both.placed.tolist() == [1]
        looser = put([4, 5], 2, 1)
    # Unique coverage in row 1, 4, 3: 1 brings {4}, in the row: 0; 3 brings {5}: 1. So 5 takes
    # the slot of 1.
    assert lists(looser.rows) == [[5, 4, 3]]
    assert looser.new.tolist() == [[True, True, False]]
    assert looser.edits.removed.tolist() == [2, 1] and looser.edits.gain.tolist() == [2, 1]
    assert looser.edits.victim_unique.tolist() == [0, 0]
    assert looser.edits.slot.tolist() == [1, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_edge_placed_here_is_never_its_own_steps_victim(backend: str) -> None:
    # R = 1: the first pick takes the only slot; the second passes g_min 0 but finds no victim.
    points = make_points(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), Metric.l2)
    rows = table([[1], [2], [3], [0]], 1)
    with use_backend(backend):
        found = r.place(
            points, rows, ZERO, table([[2, 3]], 2), torch.tensor([2]), 0, VictimRule.lexicographic
        )
    assert lists(found.rows) == [[2]] and found.placed.tolist() == [1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_with_room_grow_unless_the_degree_is_fixed(backend: str) -> None:
    rows = table([[1], [4], [4], [5], [6, 7], [7, 8], [], [], [1]], 3)
    quota, picks = torch.tensor([2]), table([[3, 5]], 2)
    with use_backend(backend):
        grown = r.place(POINTS, rows, ZERO, picks, quota, 1)
        fixed = r.place(POINTS, rows, ZERO, picks, quota, 1, fixed_degree=True)
    assert lists(grown.rows) == [[1, 3, 5]]
    assert grown.edits.reason.tolist() == [Reason.append, Reason.append]
    # Fixed: 3 takes the slot of 1; 5 then finds only 3, which was placed here.
    assert lists(fixed.rows) == [[3]] and fixed.edits.removed.tolist() == [1]


def test_picks_already_in_the_row_place_nothing_twice() -> None:
    assert lists(put([2, 4, 4], 3, 0).rows) == [[1, 4, 3]]


def test_an_anchor_never_points_to_itself() -> None:
    # A selector is no authority: with g_min 0 even the anchor has gain enough.
    assert lists(put([0], 2, 0).rows) == [[1, 2, 3]]
