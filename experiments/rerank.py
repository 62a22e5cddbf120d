"""Does reranking help? NDCG@10 before and after it, on the same lists, with paired intervals.

`python experiments/rerank.py DATA` runs SciFact and the MS MARCO pool below DATA (first 50
judged queries, top 20 of exact search and of a vanilla graph at width 20) and writes the table,
which `experiments/results/rerank.md` holds. Answers are logged in the store, so a second run asks
nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lgp.cli import compose
from lgp.pipeline import run
from lgp.results import Results, read_queries
from lgp.stats import Comparison, compare_arrays
from lgp.summary import graph_lines

COLLECTIONS = {
    "scifact": [],
    "msmarco-dl19-dl20-pool": ["dataset.relevance_level=2"],
}
POINTS = (("exact", "exact", 0), ("vanilla", "width", 20))
METRIC = "ndcg_at_10"
HEAD = ("collection", "top 20 of", "reranker", "before", "after", "difference", "95 % interval",
        "p", "better / equal / worse")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of BEIR-layout collections")
    parser.add_argument("--rerank", nargs="+", default=["likelihood", "encoder"])
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--runs", type=Path, default=Path("runs/rerank"))
    parser.add_argument("--out", type=Path, default=Path("runs/rerank/table.md"))
    parser.add_argument("words", nargs="*", help="further settings, KEY=VALUE")
    args = parser.parse_intermixed_args(argv)
    table = [_line(HEAD), _line(["---"] * 3 + ["---:"] * 5 + ["---"])]
    facts: list[str] = []
    for name, words in COLLECTIONS.items():
        for kind in args.rerank:
            folder = args.runs / f"{name}-{kind}"
            config = compose(
                [
                    "dataset=beir", f"dataset.path={args.data / name}", *words,
                    f"dataset.max_queries={args.queries}", "refine=none", "search.widths=[20]",
                    "search.budgets=[]", f"rerank={kind}", *args.words,
                ]
            )  # fmt: skip
            run(config, folder)
            results = read_queries(folder)
            for label, mode, value in POINTS:
                found = before_and_after(results, label, mode, value)
                table.append(_line([name, label, kind, *_cells(found)]))
            said = graph_lines(folder)
            facts += [f"- {said[0]}"] * (kind == args.rerank[0])
            facts += [f"- {name}, {said[-1]}"] * (kind in ("likelihood", "listwise"))
    text = "\n".join([*table, "", *facts])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(f"{text}\n", encoding="utf-8")
    print(text)
    return 0


def before_and_after(results: Results, label: str, mode: str, value: int) -> Comparison:
    """The reranked minus the greedy ranking of one setting, paired by query."""
    values = results.columns[METRIC]
    greedy, reranked = (
        values[list(results.rows_by_seed(label, ranking, mode, value).values())].T
        for ranking in ("greedy", "rerank")
    )
    return compare_arrays([(greedy, reranked)])[0]


def _cells(c: Comparison) -> list[str]:
    return [
        f"{100 * c.mean_base:.1f}", f"{100 * c.mean_other:.1f}", f"{100 * c.difference:+.1f}",
        f"[{100 * c.low:+.1f}, {100 * c.high:+.1f}]", f"{c.p:.4f}",
        f"{c.wins} / {c.ties} / {c.losses}",
    ]  # fmt: skip


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    raise SystemExit(main())
