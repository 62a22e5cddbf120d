"""Per-query retrieval quality of a run, through ir_measures.

Input: judgments `{query_id: {doc_id: grade}}` and rankings `{query_id: [doc_id, best first]}`.
Output: `{query_id: {measure: fraction}}`. Averages, rounding and statistics are left to `stats`
and `report`; excluded documents must have left the ranking before it comes here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import ir_measures

MEASURES = ("ndcg_at_5", "ndcg_at_10", "recall_at_5", "recall_at_10")

Qrels = Mapping[str, Mapping[str, int]]

# pytrec_eval compares scores as float32, which holds every integer up to here exactly.
MAX_RANKING = 2**24


def evaluate(
    qrels: Qrels,
    run: Mapping[str, Sequence[str]],
    relevance_level: int = 1,
    measures: Sequence[str] = MEASURES,
) -> dict[str, dict[str, float]]:
    """Compute NDCG and recall for each judged query.

    NDCG@k has gain = grade (negative grades count 0) and discount log2(rank + 1). Recall@k is the
    share of *all* documents with grade >= `relevance_level` found in the first k, not a hit rate.

    Args:
        qrels: `{query_id: {doc_id: grade}}`.
        run: `{query_id: [doc_id, ...]}`, best first. The order is kept as it is: documents get
            strictly falling surrogate scores, because pytrec_eval reorders ties by document id.
        relevance_level: lowest grade that counts as relevant, >= 1.
        measures: names `ndcg_at_K` and `recall_at_K`, any K >= 1.
    Returns:
        `{query_id: {measure: fraction}}` for the queries `judged_queries` keeps, in the order of
        `qrels`. A kept query that is missing from the run, or whose list is empty, counts 0.
    Raises:
        ValueError: a document twice in one ranking, run queries without judgments, unknown measure.
    """
    named = {name: _measure(name, relevance_level) for name in measures}
    kept, _ = judged_queries(qrels, relevance_level)
    _check_known(qrels, run, "run")
    result = {query_id: dict.fromkeys(measures, 0.0) for query_id in kept}
    scores = {q: _surrogate_scores(q, ranking) for q, ranking in run.items()}
    scores = {q: scored for q, scored in scores.items() if scored and q in result}
    if not scores:
        return result
    grades = {q: {d: max(int(g), 0) for d, g in qrels[q].items()} for q in scores}
    name_of = {measure: name for name, measure in named.items()}
    # The provider is named because ir_measures else takes whichever evaluator is installed.
    evaluator = ir_measures.pytrec_eval.evaluator(list(name_of), grades)
    for metric in evaluator.iter_calc(scores):
        result[metric.query_id][name_of[metric.measure]] = float(metric.value)
    return result


def judged_queries(qrels: Qrels, relevance_level: int = 1) -> tuple[list[str], list[str]]:
    """Split queries into those with a relevant document and those no metric can judge.

    Returns:
        (kept, left_out): query ids in the order of `qrels`; a kept query has at least one grade
        >= `relevance_level`.
    Raises:
        ValueError: `relevance_level` below 1, which would make unjudged and irrelevant the same.
    """
    if relevance_level < 1:
        raise ValueError(
            f"relevance_level={relevance_level} is below 1, but grade 0 means not relevant; "
            "use 1 or more"
        )
    kept: list[str] = []
    left_out: list[str] = []
    for query_id, grades in qrels.items():
        relevant = any(grade >= relevance_level for grade in grades.values())
        (kept if relevant else left_out).append(query_id)
    return kept, left_out


def _measure(name: str, relevance_level: int) -> ir_measures.Measure:
    match = re.fullmatch(r"(ndcg|recall)_at_([1-9]\d*)", name)
    if match is None:
        raise ValueError(
            f"unknown measure {name!r}; known: ndcg_at_K and recall_at_K, "
            f"such as {', '.join(MEASURES)}"
        )
    cutoff = int(match[2])
    family = ir_measures.nDCG if match[1] == "ndcg" else ir_measures.R(rel=relevance_level)
    measure: ir_measures.Measure = family @ cutoff
    return measure


def _check_known(qrels: Qrels, queries: Iterable[str], what: str) -> None:
    unknown = [query_id for query_id in queries if query_id not in qrels]
    if unknown:
        raise ValueError(
            f"{len(unknown)} queries of the {what} have no judgments, first: {unknown[:5]}; "
            "judge them or take them out"
        )


def _surrogate_scores(query_id: str, ranking: Sequence[str]) -> dict[str, float]:
    if len(ranking) > MAX_RANKING:
        raise ValueError(
            f"query {query_id!r}: {len(ranking)} documents exceed {MAX_RANKING}; cut the ranking"
        )
    scores = {doc_id: float(len(ranking) - rank) for rank, doc_id in enumerate(ranking)}
    if len(scores) < len(ranking):
        first = next(d for rank, d in enumerate(ranking) if d in ranking[:rank])
        places = [rank + 1 for rank, d in enumerate(ranking) if d == first]
        raise ValueError(
            f"query {query_id!r}: document {first!r} is ranked more than once, "
            f"at ranks {places[:5]}; keep its best rank only"
        )
    return scores
