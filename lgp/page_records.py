"""The evidence of a page as flat records: one dict per line of a CSV, nothing rounded.

In: gathered runs. Out: records; measures, differences and intervals on the 0-100 scale. Layout and
rounding are left to `lgp.page`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lgp.averages import average_rows
from lgp.cells import SweepRun
from lgp.comparison import Row, headline_value, outcome
from lgp.config_tables import SweepConfig
from lgp.cost import Prices, mean_cost, mean_of
from lgp.diagnostics import structure_records
from lgp.effort import effort_to_reach
from lgp.gather import PageRun, shown
from lgp.paper_numbers import paper_numbers
from lgp.stats import holm
from lgp.summary import graphs_by_label

Record = dict[str, Any]
MODES = ("width", "budget")


def run_records(runs: Sequence[PageRun]) -> list[Record]:
    """What was run: collection, index, selectors, code and machine of each run."""
    return [
        {
            "run": run.name,
            "folder": run.folder,
            "dataset": run.dataset,
            "documents": run.summary.get("n_documents"),
            "nodes": run.summary.get("n_nodes"),
            "queries": len(run.results.query_ids),
            "left_out": run.summary.get("n_queries_without_relevant"),
            "short_lists": run.summary.get("n_short_lists"),
            "index": _index(run),
            "seeds": ", ".join(map(str, _seeds(run.results.settings))),
            "graphs": ", ".join(map(shown, run.results.labels())),
            "main": None if run.main is None else shown(run.main),
            "when": _text(run.config, "refine", "when"),
            "embedder": _text(run.config, "embedder", "model")
            or _text(run.config, "embedder", "kind"),
            "reranker": _text(run.config, "rerank", "kind"),
            "commit": _text(run.versions, "commit"),
            "uncommitted": run.versions.get("uncommitted_changes"),
            "machine": _text(run.versions, "machine"),
            "device": _text(run.versions, "device"),
            "threads": run.versions.get("threads"),
            "python": _text(run.versions, "python"),
            "torch": _text(run.versions, "packages", "torch"),
            "lgp_source": _text(run.versions, "source_sha256"),
        }
        for run in runs
    ]


def quality_records(runs: Sequence[PageRun]) -> list[Record]:
    """One record per run, ranking, metric, point of effort and comparison (`base` None: vanilla).

    `mean` is over all queries of a graph; `paired_mean` and `base_mean` over those both sides have.
    `p_holm`: against vanilla over the runs; against controls over the runs and the controls, which
    for one run is what its own report says. `shown` is `gain`, `loss` or `none` by that p;
    `headline` marks the points that sentences speak about.
    """
    records = [
        _quality(run, ranking, metric, row, row.value == headline_value(rows, row.mode))
        for run in runs
        for (ranking, metric), rows in run.tables.items()
        for row in rows
    ]
    families: dict[tuple[Any, ...], list[int]] = {}
    for i, r in enumerate(records):
        if r["base"] is not None:
            against = "vanilla" if r["base"] == "vanilla" else "controls"
            point = (r["ranking"], r["metric"], r["mode"], r["value"])
            families.setdefault((*point, r["graph"], against), []).append(i)
    rows = [row for run in runs for found in run.tables.values() for row in found]
    for members in families.values():
        for i, p in zip(members, holm([records[i]["p"] for i in members]), strict=True):
            comparison = rows[i].comparison
            assert comparison is not None
            records[i] |= {"p_holm": p, "shown": outcome(comparison, p)}
    return records


def average_records(runs: Sequence[PageRun]) -> list[Record]:
    """Means over the runs, each weighing the same, where every run has the point."""
    keys = list(dict.fromkeys(key for run in runs for key in run.tables))
    return [
        {
            **{"runs": len(runs), "ranking": ranking, "metric": metric},
            **{"mode": a.mode, "value": a.value, "graph": shown(a.label)},
            **{"mean": 100 * a.mean, "base_mean": _scaled(a.vanilla)},
            **{"difference": _scaled(a.difference), "relative_pct": a.relative_pct},
            **{"exact": _scaled(a.exact), "n_dist": a.n_dist},
        }
        for ranking, metric in keys
        if len(runs) > 1
        for a in average_rows([run.tables.get((ranking, metric), []) for run in runs])
    ]


def effort_records(runs: Sequence[PageRun]) -> list[Record]:
    """Distances each graph needs for vanilla's quality at the headline budget.

    Interpolated on the graph's running best. `vanilla_needs` may be below the budget: what vanilla
    needs itself is the fair yardstick. `needs` None: never; `or_fewer`: the fewest run suffices.
    """
    records: list[Record] = []
    for run in runs:
        for (ranking, metric), rows in run.tables.items():
            own = [r for r in rows if r.mode == "budget" and r.base in (None, "vanilla")]
            curves: dict[str, dict[float, float]] = {}
            for row in own:
                curves.setdefault(row.label, {})[row.value] = row.mean
            budget, vanilla = headline_value(rows, "budget"), curves.pop("vanilla", {})
            if budget is None or budget not in vanilla:
                continue
            for label, curve in curves.items():
                effort = effort_to_reach(vanilla, curve, budget)
                records.append(
                    {
                        **{"run": run.name, "ranking": ranking, "metric": metric},
                        **{"graph": shown(label), "budget": budget},
                        **{"quality": 100 * vanilla[budget], "vanilla_needs": effort.vanilla},
                        **{"needs": effort.own, "or_fewer": effort.or_fewer},
                        "change_pct": effort.change_pct,
                    }
                )
    return records


def graph_records(runs: Sequence[PageRun]) -> list[Record]:
    """Structure of each run's graphs, means over graph seeds (`lgp.diagnostics.STRUCTURE`)."""
    records: list[Record] = []
    for run in runs:
        if not run.summary.get("graphs"):
            continue
        sweep = SweepRun(
            SweepConfig(run.name), run.path, run.config, run.summary, run.versions
        )  # one run a sweep: no averages over collections come out
        for record in structure_records([sweep]):
            del record["sweep"], record["dataset"]
            records.append({"run": run.name, **record, "graph": shown(record["graph"])})
    return records


def cost_records(runs: Sequence[PageRun]) -> list[Record]:
    """What refining cost, per run and selector: means over graph seeds; None where not known.

    `s_a_node` is the stage's time over the nodes the selector saw; `waiting_pct` the share of that
    time spent waiting for the model. Tokens in millions.
    """
    records: list[Record] = []
    for run in runs:
        prices = Prices(**run.summary.get("prices", {}))
        for label, graphs in graphs_by_label(run.summary).items():
            if label == "vanilla":
                continue
            c = mean_cost(graphs)
            records.append(
                {
                    **{"run": run.name, "graph": shown(label), "seeds": len(graphs)},
                    **{"nodes": c.nodes, "edits": mean_of(graphs, "n_edits")},
                    "surviving": mean_of(graphs, "n_edits_surviving"),
                    **{"minutes": c.minutes, "s_a_node": c.s_a_node},
                    **{"calls": c.asked, "replayed": c.replayed},
                    "read_m": c.read_m,
                    "written_m": c.written_m,
                    "waiting_pct": c.waiting_pct,
                    "price": prices.of(c.read or 0, c.written or 0) if c.asked_model else None,
                    "currency": shown(prices.currency),
                }
            )
    return records


def paper_records() -> list[Record]:
    """The numbers the paper states."""
    return [
        {
            **{key: entry[key] for key in ("id", "section", "dataset", "index")},
            "setting": " ".join(f"{key} {value}" for key, value in entry["setting"].items()),
            **{key: entry[key] for key in ("ranking", "metric")},
            **{key: entry.get(key) for key in ("vanilla", "lgp", "gain_percent")},
        }
        for entry in paper_numbers()
    ]


def _quality(run: PageRun, ranking: str, metric: str, row: Row, headline: bool) -> Record:
    c = row.comparison
    record: Record = {
        **{"run": run.name, "dataset": run.dataset, "ranking": ranking, "metric": metric},
        **{"mode": row.mode, "value": row.value, "headline": headline},
        **{"graph": shown(row.label), "base": None if row.base is None else shown(row.base)},
        "mean": 100 * row.mean,
        "paired_mean": None if c is None else 100 * c.mean_other,
        "base_mean": None if c is None else 100 * c.mean_base,
        "difference": None if c is None else 100 * c.difference,
        "low": None if c is None else 100 * c.low,
        "high": None if c is None else 100 * c.high,
        **{
            name: None if c is None else getattr(c, name)
            for name in ("p", "wins", "ties", "losses", "n_queries", "n_seeds")
        },
        # NaN where vanilla's mean is 0.
        "relative_pct": None if c is None or c.relative_pct != c.relative_pct else c.relative_pct,
        **{"p_holm": None, "shown": None},
        **{"n_dist": row.n_dist, "n_dist_above": row.n_dist_above},
        **{"reach": _scaled(row.reach), "exact": _scaled(row.exact)},
    }
    return record


def _scaled(fraction: float | None) -> float | None:
    return None if fraction is None or fraction != fraction else 100 * fraction


def _text(source: Mapping[str, Any], *keys: str) -> str | None:
    value: Any = source
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else shown(value)


def _seeds(settings: Sequence[Any]) -> list[int]:
    return sorted({s.seed for s in settings if s.graph != "exact"})


def _index(run: PageRun) -> str | None:
    """Kind and degree bound; of an HNSW both of its bounds."""
    kind, when = _text(run.config, "index", "kind"), run.config.get("index", {})
    if kind == "hnsw":
        m = int(when.get("connectivity", 0))
        return f"hnsw, M {m} (base layer up to {2 * m})"
    if not isinstance(when, Mapping) or "max_degree" not in when:
        return kind
    return f"{kind or 'vamana'}, R {shown(when['max_degree'])}, alpha {shown(when.get('alpha'))}"
