"""`lgp dashboard`: a wandb workspace as code, over the runs that `lgp.track` copies.

In: a project's name. Out: the workspace as JSON, built and checked without an account or network;
with `--save` it is created at wandb. It names only keys that are logged.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lgp.store import write_aside
from lgp.track import COSTS, GAINS, SERIES

RANKED = tuple(name for name in SERIES if name not in ("n_dist", "reach"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run `lgp dashboard`; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="lgp dashboard", description="A wandb workspace over tracked runs, as code."
    )
    parser.add_argument("--project", default="lgp", help="tracking.project of the runs")
    parser.add_argument("--entity", default="", help="user or team; needed with --save")
    parser.add_argument("--name", default="NDCG@10 against search effort")
    parser.add_argument("--out", type=Path, default=Path("dashboard.json"))
    parser.add_argument("--save", action="store_true", help="create it at wandb (needs an account)")
    args = parser.parse_args(argv)
    if args.save and not args.entity:
        print("lgp dashboard: --save needs --entity, your wandb user or team", file=sys.stderr)
        return 2
    try:
        made = workspace(args.project, args.entity, args.name)
    except ModuleNotFoundError as error:
        print(f"lgp dashboard: {error}; pip install 'lgp[dashboard]'", file=sys.stderr)
        return 2
    write_aside(args.out, json.dumps(as_json(made), indent=1))
    print(f"{args.out}: {sum(len(s.panels) for s in made.sections)} panels")
    if args.save:
        print(made.save().url)
    return 0


def workspace(project: str, entity: str = "", name: str = "lgp") -> Any:
    """The workspace: quality against budget and width, gains, cost; runs grouped by dataset, then
    by graph, so that a line is a graph's mean over the datasets shown."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    def lines(x: str, title: str) -> list[Any]:
        return [
            wr.LinePlot(
                title=f"{key} against {x}", x=x, y=[key], log_x=True, title_x=title,
                title_y=f"{key}, 0-100", smoothing_type="none", max_runs_to_show=100,
            )
            for key in RANKED
        ]  # fmt: skip

    spent = wr.LinePlot(
        title="greedy_ndcg_at_10 against distances spent at a width", x="n_dist",
        y=["greedy_ndcg_at_10"], title_x="distances a query", smoothing_type="none",
    )  # fmt: skip
    gains = [wr.BarPlot(title=f"{key}, points, against vanilla", metrics=[key]) for key in GAINS]
    costs = [wr.BarPlot(title=key, metrics=[key]) for key in COSTS]
    return ws.Workspace(
        entity=entity or "-",
        project=project,
        name=name,
        sections=[
            ws.Section("Quality against budget", lines("budget", "distances a query"), True),
            ws.Section("Quality against width", [*lines("width", "search width"), spent], True),
            ws.Section("Relevant documents seen", [
                wr.LinePlot(title=f"reach against {x}", x=x, y=["reach"], log_x=True)
                for x in ("budget", "width")
            ]),
            ws.Section("Gains over vanilla at the headline points", gains, True),
            ws.Section("Edits, structure and cost", costs),
        ],
        runset_settings=ws.RunsetSettings(
            groupby=[ws.Config("dataset_name"), ws.Config("graph")],
            pinned_columns=["config:dataset_name", "config:graph"],
        ),
    )  # fmt: skip


def as_json(made: Any) -> dict[str, Any]:
    """A workspace as wandb stores it."""
    # wandb-workspaces offers no public way to see what save() would send.
    found: dict[str, Any] = json.loads(
        made._to_model().model_dump_json(by_alias=True, exclude_none=True)
    )
    return found
