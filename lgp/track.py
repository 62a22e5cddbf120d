"""The wandb copy of a run folder. The folder is the truth; this decides nothing.

In: a finished run folder. Out: an offline or online wandb run, or nothing.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from lgp.choices import TrackingMode
from lgp.config import Config, to_plain


def track(config: Config, run_dir: Path) -> None:
    """Copy metrics, summary and figures of a run to wandb, as `tracking.mode` says."""
    settings = config.tracking
    if settings.mode is TrackingMode.off:
        return
    import wandb

    run = wandb.init(
        mode=settings.mode.value,
        project=settings.project,
        entity=settings.entity,
        group=settings.group or config.name,
        tags=settings.tags,
        name=run_dir.name,
        dir=str(run_dir),
        config=to_plain(config),
        settings=wandb.Settings(console="off"),
    )
    with open(run_dir / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    run.define_metric("budget")
    run.define_metric("width")
    series: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        # Letters, digits and underscores only: such keys can be sorted and filtered.
        line = "vanilla" if row["graph"] == "vanilla" else row["selector"]
        key = f"{line}_{row['ranking']}_{row['metric']}_seed{row['seed']}"
        if row["graph"] == "exact":
            run.summary[f"exact_{row['ranking']}_{row['metric']}"] = float(row["mean"])
            continue
        at = series.setdefault((row["mode"], int(row["value"])), {})
        at[key] = float(row["mean"])
        at[f"{line}_n_dist_seed{row['seed']}"] = float(row["n_dist"])
    for (mode, value), found in sorted(series.items()):
        run.log({mode: value, **{f"{mode}_{k}": v for k, v in found.items()}})
    run.summary["facts"] = json.loads((run_dir / "summary.json").read_text())
    for figure in sorted(run_dir.glob("*.png")):
        run.log({figure.stem: wandb.Image(str(figure))})
    run.finish()
