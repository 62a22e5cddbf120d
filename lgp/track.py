"""The wandb copy of a run folder. The folder is the truth; this decides nothing.

In: a finished run folder. Out: one wandb run per graph in it (vanilla, the selector's, each
control's), so that a dashboard can draw one line per graph over many datasets. A rerun of the same
job resumes the same wandb runs: their ids follow from the configuration and the code.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lgp.choices import TrackingMode
from lgp.comparison import Row, comparison_table, headline_value
from lgp.config import Config, to_plain
from lgp.cost import mean_cost, mean_of
from lgp.results import ELSEWHERE, RANKINGS, Results, read_queries
from lgp.store import digest_of
from lgp.summary import graphs_by_label

MEASURES = ("ndcg_at_10", "recall_at_10")
SERIES = (
    *(f"{ranking}_{measure}" for ranking in RANKINGS for measure in MEASURES),
    "n_dist",
    "reach",
)
"""Keys logged at every `width` and every `budget`, means over queries and graph seeds, 0-100 but
for `n_dist`, the distances a query. Letters, digits and underscores only: wandb sorts by those."""
GAINS = tuple(
    f"gain_{ranking}_ndcg_at_10_at_{mode}" for ranking in RANKINGS for mode in ("width", "budget")
)
"""Summary keys: paired difference to vanilla at the headline point, with `_low`, `_high`, `_p`."""
COSTS = ("refine_minutes", "llm_calls", "llm_million_tokens", "edits", "changed_neighborhoods_pct",
         "degree_mean", "unreachable")  # fmt: skip
"""Summary keys of a refined graph, means over graph seeds."""


def track(config: Config, run_dir: Path) -> None:
    """Copy a run folder to wandb, as `tracking.mode` says."""
    settings = config.tracking
    if settings.mode is TrackingMode.off:
        return
    if settings.mode is TrackingMode.offline:
        # wandb's error reports would look up their server's name even then.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    results = read_queries(run_dir)
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    versions = json.loads((run_dir / "versions.json").read_text(encoding="utf-8"))
    plain = to_plain(config)
    graphs = graphs_by_label(summary)
    tables = {x: comparison_table(results, "ndcg_at_10", x) for x in results.rankings()}
    facts = {"dataset_name": summary["dataset"], "versions": versions} | slurm_job(os.environ)
    for label in results.labels():
        run = wandb.init(
            mode=settings.mode.value,
            project=settings.project,
            entity=settings.entity,
            id=run_id(plain, versions, label),
            resume="allow" if settings.mode is TrackingMode.online else None,
            group=settings.group or config.name,
            job_type=label,
            tags=[config.name, summary["dataset"], label, *settings.tags],
            name=f"{config.name} {summary['dataset']} {label}",
            dir=str(run_dir),
            config=plain | facts | {"graph": label},
            settings=wandb.Settings(console="off"),
            reinit="finish_previous",
        )
        for row in series(results, label):
            run.log(row)
        run.summary.update(outcome(tables, graphs.get(label, []), label))
        columns, lines = metrics_of(run_dir, label)
        run.log({"metrics": wandb.Table(columns=columns, data=lines)})
        if label == "vanilla":  # of the whole folder, once
            for figure in sorted(run_dir.glob("*.png")):
                run.log({figure.stem: wandb.Image(str(figure))})
        for kind, digest, path in artifacts(config, graphs.get(label, []), run_dir, label):
            artifact = wandb.Artifact(f"{kind}-{digest[:16]}", kind, metadata={"sha256": digest})
            artifact.add_file(str(path))
            run.log_artifact(artifact)
        run.finish()


def run_id(config: Mapping[str, Any], versions: Mapping[str, Any], label: str) -> str:
    """The wandb id of a graph of a job: the same whenever and wherever the job is run again."""
    kept = {key: value for key, value in config.items() if key not in ELSEWHERE}
    return digest_of([kept, versions.get("source_sha256"), label])[:16]


def slurm_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Under SLURM, which job ran this: a key of the wandb configuration."""
    names = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_ID", "SLURM_RESTART_COUNT")
    return {name.lower(): environment[name] for name in names if name in environment}


def series(results: Results, label: str) -> Iterator[dict[str, float]]:
    """A graph's rows: `width` or `budget`, and what `SERIES` names."""
    points = sorted({p for ranking in results.rankings() for p in results.points(ranking)})
    for mode, value in points:
        row: dict[str, float] = {mode: value}
        for ranking in results.rankings():
            own = list(results.rows_by_seed(label, ranking, mode, value).values())
            for name in (*MEASURES, "n_dist", "reach") if own else ():
                key = name if name in ("n_dist", "reach") else f"{ranking}_{name}"
                factor = 1 if name == "n_dist" else 100
                row.setdefault(key, factor * float(results.columns[name][own].mean()))
        if len(row) > 1:
            yield row


def outcome(
    tables: Mapping[str, Sequence[Row]], graphs: Sequence[Mapping[str, Any]], label: str
) -> dict[str, float]:
    """A graph's summary: gains with intervals at the headline points, edits, structure, cost.

    Args:
        tables: NDCG@10 against vanilla by ranking. graphs: the label's, one per graph seed.
    """
    found: dict[str, float] = {}
    for ranking, rows in tables.items():
        for mode in ("width", "budget"):
            value = headline_value(rows, mode)
            for row in (r for r in rows if (r.mode, r.value, r.label) == (mode, value, label)):
                key = f"gain_{ranking}_ndcg_at_10_at_{mode}"
                if (c := row.comparison) is not None:
                    found |= {key: 100 * c.difference, f"{key}_low": 100 * c.low,
                              f"{key}_high": 100 * c.high, f"{key}_p": c.p}  # fmt: skip
                if row.exact is not None:
                    found[f"exact_{ranking}_ndcg_at_10"] = 100 * row.exact
    said = {"edits": mean_of(graphs, "n_edits"), "degree_mean": mean_of(graphs, "degree_mean"),
            "unreachable": mean_of(graphs, "n_unreachable")}  # fmt: skip
    if label != "vanilla" and graphs:
        cost = mean_cost(graphs)
        said |= {
            "refine_minutes": cost.minutes,
            "llm_calls": cost.asked,
            "llm_million_tokens": ((cost.read or 0) + (cost.written or 0)) / 1e6,
            "changed_neighborhoods_pct": 100 * (mean_of(graphs, "changed_neighborhoods") or 0),
        }
    return found | {key: value for key, value in said.items() if value is not None}


def metrics_of(run_dir: Path, label: str) -> tuple[list[str | int], list[list[str]]]:
    """The lines of `metrics.csv` that are a graph's."""
    with open(run_dir / "metrics.csv", newline="", encoding="utf-8") as file:
        head, *lines = list(csv.reader(file))
    graph, selector = head.index("graph"), head.index("selector")
    own = [x for x in lines if (x[selector] if x[graph] == "refined" else x[graph]) == label]
    return list(head), own


def artifacts(
    config: Config, graphs: Sequence[Mapping[str, Any]], run_dir: Path, label: str
) -> Iterator[tuple[str, str, Path]]:
    """(kind, sha256, file) of a label's graphs and edit logs, as far as the files are there."""
    for graph in graphs:
        path = Path(config.store_dir) / str(graph.get("stage")) / "graph.safetensors"
        if path.is_file():
            yield "graph", graph["graph_sha256"], path
        log = run_dir / f"edits-{label}-{graph['seed']}.safetensors"
        if log.is_file():
            yield "edit-log", graph["edits_sha256"], log
