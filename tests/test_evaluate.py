"""Metrics against arithmetic by hand, and the cases evaluators are known to get wrong."""

from math import log2

import pytest

from lgp.evaluate import MEASURES, evaluate, judged_queries


def test_ndcg_with_grades_by_hand() -> None:
    qrels = {"q": {"a": 3, "b": 1, "c": 2, "d": 0, "e": -2}}
    run = {"q": ["b", "x", "e", "a", "c"]}
    # Gains at ranks 1..5: 1, 0 (unjudged), 0 (negative), 3, 2.
    dcg = 1 / log2(2) + 3 / log2(5) + 2 / log2(6)
    ideal = 3 / log2(2) + 2 / log2(3) + 1 / log2(4)
    result = evaluate(qrels, run)["q"]
    assert result["ndcg_at_5"] == pytest.approx(dcg / ideal)
    assert evaluate(qrels, run, measures=("ndcg_at_1",))["q"] == {"ndcg_at_1": pytest.approx(1 / 3)}


def test_recall_is_the_share_of_all_relevant_documents() -> None:
    relevant = {f"d{i}": 1 for i in range(8)}
    run = {"q": ["d0", "x", "d1", "y", "z", "d2"]}
    result = evaluate({"q": relevant}, run)["q"]
    assert result["recall_at_5"] == pytest.approx(2 / 8)
    assert result["recall_at_10"] == pytest.approx(3 / 8)


def test_relevance_level_moves_recall_but_not_ndcg() -> None:
    qrels = {"q": {"a": 1, "b": 2, "c": 3}}
    run = {"q": ["a", "b"]}
    low, high = evaluate(qrels, run, 1)["q"], evaluate(qrels, run, 2)["q"]
    assert low["recall_at_5"] == pytest.approx(2 / 3)
    assert high["recall_at_5"] == pytest.approx(1 / 2)  # b of {b, c}; a is below the level
    assert low["ndcg_at_10"] == high["ndcg_at_10"]
    dcg, ideal = 1 / log2(2) + 2 / log2(3), 3 / log2(2) + 2 / log2(3) + 1 / log2(4)
    assert high["ndcg_at_10"] == pytest.approx(dcg / ideal)


def test_missing_and_empty_queries_count_zero_and_unjudgeable_ones_leave() -> None:
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 1}, "q4": {"a": 0}, "q5": {}}
    result = evaluate(qrels, {"q3": [], "q1": ["a"], "q4": ["a"]})
    assert list(result) == ["q1", "q2", "q3"]
    assert result["q1"] == dict.fromkeys(MEASURES, 1.0)
    assert result["q2"] == result["q3"] == dict.fromkeys(MEASURES, 0.0)
    assert evaluate(qrels, {})["q1"] == dict.fromkeys(MEASURES, 0.0)
    assert judged_queries(qrels) == (["q1", "q2", "q3"], ["q4", "q5"])
    assert judged_queries({"q": {"a": 1, "b": 2}}, 3) == ([], ["q"])


@pytest.mark.parametrize("names", [["a", "z"], ["z", "a"]])
def test_the_given_order_survives_whatever_the_ids(names: list[str]) -> None:
    # With tied scores pytrec_eval puts the larger id first, so one of the two orders would change.
    relevant = names[1]
    result = evaluate({"q": {relevant: 1}}, {"q": names}, measures=("ndcg_at_1", "ndcg_at_5"))
    assert result["q"] == {"ndcg_at_1": 0.0, "ndcg_at_5": pytest.approx(1 / log2(3))}


def test_a_long_ranking_keeps_neighbouring_ranks_apart() -> None:
    ranking = [f"d{i}" for i in range(50_000)]
    qrels = {"q": {"d9": 1, "d10": 1}}
    assert evaluate(qrels, {"q": ranking})["q"]["recall_at_10"] == pytest.approx(1 / 2)


def test_errors_name_what_is_wrong() -> None:
    qrels = {"q": {"a": 1}}
    with pytest.raises(ValueError, match=r"'b' is ranked more than once, at ranks \[2, 4\]"):
        evaluate(qrels, {"q": ["a", "b", "c", "b"]})
    with pytest.raises(
        ValueError, match=r"6 queries of the run .* \['x0', 'x1', 'x2', 'x3', 'x4'\]"
    ):
        evaluate(qrels, {f"x{i}": ["a"] for i in range(6)})
    with pytest.raises(ValueError, match="unknown measure 'map'"):
        evaluate(qrels, {}, measures=("map",))
    with pytest.raises(ValueError, match="relevance_level=0 is below 1"):
        evaluate(qrels, {}, 0)
