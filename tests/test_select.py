"""Selectors that are no language model: orders, ties, padding, replay, tables."""

import json
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import table

from lgp.refine.log import Decisions, EditLog, Edits, Status
from lgp.refine.select import (
    Encoder,
    Recorded,
    Scripted,
    Selector,
    Uniform,
    farthest,
    first,
    from_scores,
    nearest,
)
from lgp.refine.shortlist import Shortlist

BLANK = -1


def shown(
    anchors: list[int],
    candidates: list[list[int]],
    distance: list[list[float]] | None = None,
    context: list[list[int]] | None = None,
    places: int = 0,
) -> Shortlist:
    """A shortlist; distances default to 0."""
    places = places or max(map(len, candidates))
    distance = distance or [[0.0] * len(row) for row in candidates]
    context = context or [[] for _ in anchors]
    padded = torch.full((len(anchors), places), torch.inf)
    for at, row in enumerate(distance):
        padded[at, : len(row)] = torch.tensor(row)
    zero = torch.zeros(padded.shape)
    return Shortlist(
        torch.tensor(anchors), table(context, max(map(len, context))), table(candidates, places),
        padded, zero.int(), zero,
    )  # fmt: skip


TWO = shown(
    [0, 9], [[5, 3, 8, 4], [7]], [[2.0, 1.0, 2.0, 0.5], [0.25]], context=[[1, 2], [6]]
)  # fmt: skip


def picks(selector: Selector, limit: int, shortlist: Shortlist = TWO) -> list[list[int]]:
    found = selector(shortlist, limit)
    assert found.picks.dtype == found.status.dtype == torch.int32
    chosen = [Status.chosen if any(c >= 0 for c in row) else Status.none for row in found.picks]
    assert found.status.tolist() == chosen
    assert (found.tokens, found.seconds, found.asked, found.replayed) == (0, 0.0, 0, 0)
    return found.picks.tolist()


def test_geometric_orders_by_hand() -> None:
    assert picks(first, 2) == [[5, 3], [7, BLANK]]
    assert picks(nearest, 3) == [[4, 3, 5], [7, BLANK, BLANK]]
    # 5 and 8 tie at 2.0: the smaller id.
    assert picks(farthest, 3) == [[5, 8, 3], [7, BLANK, BLANK]]
    tied = shown([0], [[8, 5, 9]], [[2.0, 2.0, 2.0]])
    assert picks(nearest, 3, tied) == picks(farthest, 3, tied) == [[5, 8, 9]]
    assert picks(first, 3, tied) == [[8, 5, 9]]


def test_distance_zero_and_padding_stay_apart() -> None:
    twin = shown([3], [[0, 6]], [[0.0, 1.0]], places=4)
    assert picks(farthest, 4, twin) == [[6, 0, BLANK, BLANK]]
    assert picks(nearest, 4, twin) == [[0, 6, BLANK, BLANK]]
    assert sorted(picks(Uniform(0), 4, twin)[0], reverse=True) == [6, 0, BLANK, BLANK]


@pytest.mark.parametrize(
    "selector", [first, nearest, farthest, Uniform(1), Encoder(torch.eye(10)), Scripted({})]
)
def test_no_candidates_give_no_picks(selector: Selector) -> None:
    empty = shown([4, 2], [[], []], places=3)
    found = selector(empty, 2)
    assert found.picks.tolist() == [[BLANK] * 2] * 2
    assert found.status.tolist() == [Status.none] * 2


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(1, 8), st.randoms(),
)  # fmt: skip
def test_scores_order_with_ties_in_shortlist_order(
    scores: list[list[int]], limit: int, rng: Random
) -> None:
    candidates = [rng.sample(range(20), len(row)) for row in scores]
    lists = shown(list(range(len(scores))), candidates)
    score = torch.full(lists.candidates.shape, 99.0)  # what stands under padding is ignored
    for at, row in enumerate(scores):
        score[at, : len(row)] = torch.tensor([-torch.inf if x == -3 else float(x) for x in row])
    found = from_scores(lists, score, limit)
    assert found.shape == (len(scores), limit)
    for at, row in enumerate(scores):
        ranked = sorted(range(len(row)), key=lambda i: -row[i])  # stable
        truth = [candidates[at][i] for i in ranked if row[i] > -3][:limit]
        assert found[at].tolist() == truth + [BLANK] * (limit - len(truth))


def test_encoder_by_hand() -> None:
    # Unit vectors at 0, 60, 90, 120 and 180 degrees: node 0 is the anchor, node 2 the context.
    #   node                          1 (60)        3 (120)       4 (180)
    #   relevance  cos to 0 degrees   0.5           -0.5          -1
    #   redundancy cos to 90          0.866         0.866         0
    #   weight 0.5                    0.067         -0.933        -1
    #   weight 2                      -1.232        -2.232        -1
    angle = torch.deg2rad(torch.tensor([0.0, 60.0, 90.0, 120.0, 180.0]))
    vectors = torch.stack([angle.cos(), angle.sin()], 1)
    asked = shown([0], [[4, 3, 1]], context=[[2, BLANK]])
    assert picks(Encoder(vectors, 0.5), 3, asked) == [[1, 3, 4]]
    assert picks(Encoder(vectors, 2.0), 3, asked) == [[4, 1, 3]]
    assert picks(Encoder(vectors, 2.0), 1, asked) == [[4]]
    # The largest cosine to a context neighbor counts: beside node 4 (180 degrees), node 3 is at
    # cos 60 = 0.5 to it and 0.866 to node 2; node 1 is at -0.5 and 0.866.
    both = shown([0], [[3, 1, 4]], context=[[4, 2]])
    # weight 2: node 3: -0.5 - 1.732; node 1: 0.5 - 1.732; node 4 (equal to one): -1 - 2.
    assert picks(Encoder(vectors, 2.0), 3, both) == [[1, 3, 4]]
    # Without context only relevance counts.
    for context in ([[]], [[BLANK]]):
        alone = shown([0], [[4, 3, 1]], context=context)
        assert picks(Encoder(vectors, 2.0), 3, alone) == [[1, 3, 4]]


def test_uniform_depends_on_seed_anchor_and_candidate_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    anchors = torch.randperm(5000, generator=generator)[:40].tolist()
    rows = [torch.randperm(5000, generator=generator)[:24].tolist() for _ in anchors]
    whole = picks(Uniform(3), 24, shown(anchors, rows))
    for at, anchor in enumerate(anchors):  # alone, reversed, among more places
        alone = shown([anchor], [rows[at][::-1]], places=30)
        assert picks(Uniform(3), 24, alone) == [whole[at]]
    # Leaving candidates out leaves the order of the others alone.
    fewer = picks(Uniform(3), 9, shown(anchors, [row[5:14] for row in rows]))
    for at, row in enumerate(rows):
        assert fewer[at] == [c for c in whole[at] if c in row[5:14]]
    assert picks(Uniform(3), 2, shown(anchors, rows)) == [row[:2] for row in whole]
    assert picks(Uniform(4), 24, shown(anchors, rows)) != whole


def test_uniform_is_roughly_uniform() -> None:
    # 6,000 anchors shown the same 12 candidates: each comes first about 500 times. Chi-square
    # with 11 degrees of freedom is below 31.3 with probability 0.999. Ranks of seeds 0 and 1 are
    # uncorrelated: the standard error of the mean product is 1 / sqrt(72,000).
    ids = list(range(100, 112))
    asked = shown(list(range(6000)), [ids] * 6000)
    orders = [Uniform(seed)(asked, 12).picks for seed in (0, 1)]
    for order in orders:
        for place in (0, 1, 11):
            counts = torch.bincount(order[:, place].long(), minlength=112)[100:].double()
            assert float(((counts - 500) ** 2 / 500).sum()) < 31.3
    ranks = [order.argsort(1).double() - 5.5 for order in orders]
    correlation = float((ranks[0] * ranks[1]).mean() / ranks[0].square().mean())
    assert abs(correlation) < 4 / 72_000**0.5


def log_of(anchors: list[int], rows: list[list[int]], status: list[Status]) -> EditLog:
    places = max((len(row) for row in rows), default=1)
    decisions = Decisions(
        torch.tensor(anchors, dtype=torch.int32), table(rows, places),
        torch.tensor([int(x) for x in status], dtype=torch.int32),
        torch.zeros(len(anchors), dtype=torch.int32),
    )  # fmt: skip
    return EditLog(Edits.empty(), decisions, {})


def test_recorded_answers_by_anchor_and_keeps_the_status() -> None:
    log = log_of([9, 0, 4], [[7], [8, 5], []], [Status.chosen, Status.chosen, Status.unreadable])
    recorded = Recorded.from_log(log, 10)
    found = recorded(shown([0, 4, 3, 9], [[5, 3, 8], [1], [1], [7, 2]]), 2)
    assert found.picks.tolist() == [[8, 5], [BLANK] * 2, [BLANK] * 2, [7, BLANK]]
    assert found.status.tolist() == [
        Status.chosen, Status.unreadable, Status.none, Status.chosen,
    ]  # fmt: skip
    assert recorded(TWO, 1).picks.tolist() == [[8], [7]]
    with pytest.raises(ValueError, match="the log names node 9, the graph has 9 nodes; give"):
        Recorded.from_log(log, 9)


def test_a_log_without_anchors_answers_nothing() -> None:
    found = Recorded.from_log(log_of([], [], []), 10)(TWO, 2)
    assert found.picks.shape[0] == 2 and int((found.picks >= 0).sum()) == 0
    assert found.status.tolist() == [Status.none, Status.none]


def test_scripted_answers_only_what_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text(json.dumps({"0": [4, 99, 5, 3], "1": [7]}))
    scripted = Scripted.from_file(path)
    # 99 was never shown; anchor 9 has no answer.
    assert picks(scripted, 2) == [[4, 5], [BLANK, BLANK]]
    assert picks(scripted, 6) == [[4, 5, 3, BLANK, BLANK, BLANK], [BLANK] * 6]
    for text in ("{", "[1, 2]", '{"a": [1]}', '{"1": 2}', '{"1": ["x"]}', "3"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"answers\.json is not a table of scripted answers"):
            Scripted.from_file(path)
    with pytest.raises(ValueError, match="absent is not a table of scripted answers"):
        Scripted.from_file(tmp_path / "absent")
