"""The columns of the report page's tables: which records they show, under which heading, how."""

from __future__ import annotations

Column = tuple[str, str, str]
"""Key of the record, heading, format of numbers."""

QUALITY: tuple[Column, ...] = (
    ("run", "run", ""), ("graph", "graph", ""), ("base", "against", ""), ("mean", "mean", ".1f"),
    ("difference", "difference", "+.1f"), ("interval", "95 % interval", "s"),
    ("relative_pct", "gain %", "+.1f"), ("p", "p", ".4f"), ("p_holm", "Holm p", ".4f"),
    ("score", "win/tie/loss", "s"), ("shown", "shown", ""), ("n_dist", "distances", ".0f"),
    ("reach", "reach", ".1f"), ("exact", "exact", ".1f"),
)  # fmt: skip
RUNS: tuple[Column, ...] = (
    ("run", "run", ""), ("documents", "documents", "d"), ("nodes", "nodes", "d"),
    ("queries", "queries", "d"), ("index", "index", ""), ("seeds", "graph seeds", ""),
    ("graphs", "graphs", ""), ("when", "refined", ""), ("embedder", "embedder", ""),
    ("reranker", "reranker", ""), ("commit", "commit", ""), ("device", "device", ""),
    ("threads", "threads", "d"), ("torch", "torch", ""), ("python", "Python", ""),
)  # fmt: skip
EFFORT: tuple[Column, ...] = (
    ("run", "run", ""), ("ranking", "ranking", ""), ("graph", "graph", ""),
    ("quality", "quality", ".1f"), ("vanilla_needs", "vanilla needs", ".0f"),
    ("needs", "needs", ".0f"), ("change_pct", "change %", "+.0f"),
)  # fmt: skip
COST: tuple[Column, ...] = (
    ("run", "run", ""), ("graph", "graph", ""), ("nodes", "nodes", ".0f"),
    ("edits", "edits", ".0f"),
    ("surviving", "in the final graph", ".0f"), ("minutes", "minutes", ".2f"),
    ("s_a_node", "s a node", ".3f"), ("calls", "model calls", ".0f"),
    ("replayed", "replayed", ".0f"),
    ("read_m", "M tokens read", ".3f"), ("written_m", "M written", ".3f"),
    ("waiting_pct", "waiting %", ".0f"), ("price", "price", ".2f"),
)  # fmt: skip
PAPER: tuple[Column, ...] = (
    ("dataset", "benchmark", ""), ("setting", "at", ""), ("ranking", "ranking", ""),
    ("metric", "metric", ""), ("vanilla", "vanilla", "g"), ("lgp", "LGP", "g"),
    ("gain_percent", "gain %", "+.1f"), ("section", "section", ""),
)  # fmt: skip
POINT: tuple[Column, ...] = (("mode", "by", ""), ("value", "at", "d"))
HEADLINE = (*POINT, *QUALITY)
EVERYTHING = (("ranking", "ranking", ""), ("metric", "metric", ""), *POINT, *QUALITY)
AVERAGES: tuple[Column, ...] = (
    ("ranking", "ranking", ""), ("metric", "metric", ""), *POINT, ("graph", "graph", ""),
    ("base_mean", "vanilla", ".1f"), ("mean", "mean", ".1f"), ("difference", "difference", "+.1f"),
    ("relative_pct", "gain %", "+.1f"), ("n_dist", "distances", ".0f"), ("exact", "exact", ".1f"),
)  # fmt: skip
VERDICTS: tuple[Column, ...] = (
    ("ranking", "ranking", ""), ("at", "at", ""), ("graph", "graph", ""), ("base", "against", ""),
    ("gain", "gains", "d"), ("loss", "losses", "d"), ("none", "none shown", "d"),
    ("runs", "runs", "d"),
)  # fmt: skip
