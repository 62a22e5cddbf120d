"""What a run folder's summary.json says, in sentences: collection, graphs, cost, break-even.

In: a run folder. Out: lines for terminal and report. Scores are `lgp.comparison`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lgp.comparison import Row
from lgp.cost import Prices, break_even, cost_sentence
from lgp.repairs import miss_clause
from lgp.rerank_account import rerank_sentence

RERANKED_TOKENS = 128
"""Tokens of a reranked document where the run does not say."""


def graph_lines(run_dir: Path) -> list[str]:
    """What a reader must know of the graphs beside their scores; none without a summary.json."""
    path = run_dir / "summary.json"
    if not path.is_file():
        return []
    summary = json.loads(path.read_text(encoding="utf-8"))
    prices = Prices(**summary.get("prices", {}))
    lines = [
        f"{summary['dataset']}: {summary['n_documents']} documents in {summary['n_nodes']} nodes, "
        f"{summary['n_queries']} queries ({summary['n_queries_without_relevant']} more without "
        f"relevant documents left out), {summary['n_short_lists']} short lists."
    ]
    ceiling = summary.get("dataset_info", {}).get("recall_at_10_ceiling", 1)
    if ceiling < 0.9995:  # else it would read 100.0
        lines.append(
            f"Recall@10 cannot be above {100 * ceiling:.1f}: some queries have more than 10 "
            "relevant documents."
        )
    for graph in summary["graphs"]:
        text = (
            f"{graph['graph']} {graph['selector']}, seed {graph['seed']}: "
            + (f"base of {graph['n_layers']} layers, " if "n_layers" in graph else "")
            + "mean degree "
            f"{graph['degree_mean']:.2f} ({graph['degree_min']} to {graph['degree_max']}), largest "
            f"in-degree {graph['in_degree_max']}, "
            + (f"{structure_clause(graph['structure'])}, " if "structure" in graph else "")
            + f"{graph['n_unreachable']} nodes unreachable"
        )
        if graph["graph"] == "refined":
            account = graph["account"]
            wanted = graph["n_edits_wanted"]
            text += (
                f" ({graph['n_became_unreachable']} of them by the refinement); "
                f"{asked_clause(graph)}{graph['n_edits']} edits"
                + (f" of {wanted} to match" if wanted is not None else "")
                + f", {graph['n_edits_surviving']} of them in the final graph, "
                f"{100 * graph['changed_neighborhoods']:.1f} % of neighborhoods changed"
            )
            if "latent_queries" in graph:
                text += f"; {repair_clause(graph)}"
            cost = cost_sentence(account, graph.get("seconds"), prices)
            if cost:
                text += f"; {cost}"
            if cost and account["anchors"]:
                text += f"; {answer_shares(account)}"
        lines.append(text + ".")
    if "rerank" in summary:
        lines.append(rerank_sentence(summary["rerank"]))
    return lines


def graphs_by_label(summary: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The graphs of a summary, one per graph seed, by the names they have in results."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for graph in summary.get("graphs", []):
        label = "vanilla" if graph["graph"] == "vanilla" else str(graph["selector"])
        found.setdefault(label, []).append(graph)
    return found


def structure_clause(structure: Mapping[str, Any]) -> str:
    """How well connected a graph is, in a few words (`lgp.structure`)."""
    return (
        f"{100 * structure['strongly_connected_share']:.1f} % strongly connected, "
        f"{structure['path_length']['mean']:.2f} hops from the entry on average, "
        f"{100 * structure['hub_share']:.1f} % of edges to the 1 % best linked nodes"
    )


def asked_clause(graph: Mapping[str, Any]) -> str:
    """How many nodes a selector or the writer of queries saw; "" for a repair that asks nobody."""
    if graph["selector"] == "repair" and "written" not in graph:
        return ""
    who = "the writer of queries" if graph["selector"] == "repair" else "the selector"
    seen, nodes = graph["n_eligible"], graph["n_nodes"]
    return f"{seen} of {nodes} nodes seen by {who} (beta {seen / nodes:.2f}), "


def repair_clause(graph: Mapping[str, Any]) -> str:
    """The latent queries of a repair, and how often searches for them miss, in words."""
    sources = ", ".join(f"{n} {source}" for source, n in graph["latent_queries"].items())
    text = (
        f"repaired by latent queries ({sources}; {graph['latent_twins_of_test']} nearly a test "
        f"query) with {miss_clause(graph)}"
    )
    if written := graph.get("written"):
        text += (
            f"; {written['unusable']} answers without a query, {written['repeated']} queries for "
            "several documents"
        )
    return text


def answer_shares(account: Mapping[str, Any]) -> str:
    """Chosen, none and unreadable answers, and what was cut to length, in counts and shares."""
    counts = {name: account[name] for name in ("chosen", "none", "unreadable")}
    total = max(1, sum(counts.values()))
    text = ", ".join(f"{n} {name} ({100 * n / total:.1f} %)" for name, n in counts.items())
    if shown := account.get("shown_documents", 0):  # listwise prompts only
        text += (
            f"; {account['cut_documents']} of {shown} documents shown were cut, by "
            f"{account['cut_tokens']} tokens"
        )
    return text


def offline_tokens(account: Mapping[str, Any]) -> int | None:
    """Tokens read and written for a refinement's decisions, replayed answers included; None where
    none were, or where an older run's account does not tell."""
    if "used_tokens" in account:
        return account["used_tokens"] or None
    if not account.get("asked") or account.get("replayed"):
        return None
    return int(account["tokens"] + account.get("output_tokens", 0))


def break_even_lines(run_dir: Path, rows: Sequence[Row]) -> list[str]:
    """Per graph refined by a language model: when do its offline tokens pay?

    Args:
        rows: of one metric and ranking.
    """
    path, config = run_dir / "summary.json", run_dir / "config.json"
    if not path.is_file():
        return []
    summary = json.loads(path.read_text(encoding="utf-8"))
    settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    document_tokens = settings.get("rerank", {}).get("document_tokens") or RERANKED_TOKENS
    spent: dict[str, list[int]] = {}
    for graph in summary["graphs"]:
        account = graph.get("account", {})
        if spent_on := offline_tokens(account):
            spent.setdefault(graph["selector"], []).append(spent_on)
    lines = []
    for selector, counts in spent.items():
        tokens = sum(counts) / len(counts)  # a graph's, averaged over seeds
        for found in break_even(rows, selector, tokens, document_tokens):
            head = f"{selector} at width {found.at}, {tokens:.3g} offline tokens a graph: "
            if found.gain <= 0:
                lines.append(f"{head}no better than vanilla, nothing is earned back.")
            elif found.width is None or found.extra_dist is None:
                lines.append(f"{head}vanilla reaches this quality at no width searched.")
            elif found.extra_dist <= 0:
                lines.append(
                    f"{head}vanilla has this quality at width {found.width:.1f} with "
                    f"{-found.extra_dist:.0f} distances fewer, nothing is earned back."
                )
            else:
                text = (
                    f"{head}vanilla needs width {found.width:.1f}, "
                    f"{found.extra_dist:+.0f} distances a query"
                )
                if found.queries_rerank is not None:
                    text += (
                        f"; reranking that longer list by a language model ({document_tokens} "
                        f"tokens a document) reads as many tokens after "
                        f"{found.queries_rerank:.3g} queries"
                    )
                lines.append(f"{text}.")
    return lines
