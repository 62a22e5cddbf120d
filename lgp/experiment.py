"""`lgp experiment=table1 scale=local`: the sweeps of a table of the paper, then the table.

In: a configuration with `table` and `scale`, and a function that runs the Hydra application. Out:
run folders under `runs/SCALE/SWEEP/`, shared by all tables that need the sweep, and the table under
`runs/SCALE/EXPERIMENT/`. A job of a sweep whose folder is finished is not run again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from lgp.cells import SweepRun, read_cells, read_run
from lgp.config import Config
from lgp.config_tables import OneEdgeConfig, SweepConfig, TableConfig, TableKind
from lgp.curves import draw_curves
from lgp.diagnostics import Record, cost_records, record_grid, structure_records
from lgp.grids import Grid, markdown, print_grid, records_csv
from lgp.one_edge_study import draw, read_study
from lgp.paper_numbers import paper_number_grid, paper_numbers
from lgp.store import write_aside
from lgp.tables import (
    difference_grid,
    effort_grid,
    exact_grid,
    latex,
    paper_grid,
    write_csv,
)
from lgp.token_curves import draw_tokens

log = logging.getLogger(__name__)

Launch = Callable[[list[str]], int]
"""Runs `lgp WORDS...`; returns the exit status."""


def sweep_words(config: Config, sweep: SweepConfig, base: Path, own: Sequence[str]) -> list[str]:
    """The command line of one sweep: later words win over earlier ones of the same key.

    Args:
        base: folder of all sweeps of the scale. own: the user's words.
    Raises:
        ValueError: the scale has no such collections.
    """
    scale = config.scale
    assert scale is not None
    sets = scale.collections
    if sweep.over not in sets:
        raise ValueError(
            f"scale={scale.name} has no collections {sweep.over!r} (sweep {sweep.name}); it has "
            f"{', '.join(sets)}"
        )
    varied = [f"{sweep.knob}={','.join(sweep.values)}"] if sweep.knob and sweep.values else []
    words = [
        f"name={sweep.name}", f"run_dir={base / sweep.name}", *scale.common, *sets[sweep.over],
        *sweep.words, *varied, *scale.words.get(sweep.name, []), *own,
    ]  # fmt: skip
    return list({word.split("=", 1)[0].lstrip("+~"): word for word in words}.values())


def count_jobs(words: Sequence[str]) -> int:
    """How many jobs a sweep has, by Hydra's own grammar."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    overrides = OverridesParser.create().parse_overrides(list(words))
    swept = [o for o in overrides if o.is_sweep_override()]
    return math.prod(len(list(o.sweep_string_iterator())) for o in swept)


def run_experiment(config: Config, name: str, words: Sequence[str], launch: Launch) -> int:
    """Run the sweeps of a table and write it.

    Args:
        name: of the experiment. words: the user's, as typed.
        launch: runs a command line; called once per sweep.
    Returns:
        0, or 1 where jobs are missing; the table is then made of the others.
    """
    table, scale = config.table, config.scale
    assert table is not None and scale is not None
    base, own = Path("runs") / scale.name, []
    for word in words:
        key = word.split("=", 1)[0]
        if key == "run_dir":
            base = Path(word.split("=", 1)[1])
        elif key not in ("experiment", "scale"):
            own.append(word)
    runs: list[SweepRun] = []
    missing: list[str] = []
    sweeps = [scale.sweeps.get(listed.name, listed) for listed in table.sweeps]
    absent = [sweep.name for sweep in sweeps if sweep.over not in scale.collections]
    if absent and len(absent) < len(sweeps):
        log.warning("scale=%s has no collections for %s; left out", scale.name, ", ".join(absent))
        sweeps = [sweep for sweep in sweeps if sweep.name not in absent]
    for sweep in sweeps:
        line = sweep_words(config, sweep, base, own)
        log.info("lgp -m %s", " ".join(line))
        launch(["-m", *line])
        for number in range(count_jobs(line)):
            folder = base / sweep.name / str(number)
            try:
                runs.append(read_run(sweep, folder))
            except FileNotFoundError:
                missing.append(str(folder))
    if not runs:
        raise ValueError(f"no run of {name} finished; see {missing[0]}")
    write_table(runs, table, f"{name}, scale={scale.name}", base / name, missing)
    return 1 if missing else 0


def write_table(
    runs: Sequence[SweepRun], table: TableConfig, name: str, folder: Path, missing: Sequence[str]
) -> None:
    """Write `table.md`, `table.csv`, `table.tex` and, where the table has one, its figure."""
    folder.mkdir(parents=True, exist_ok=True)
    grids = {
        TableKind.quality: _quality, TableKind.structure: _records, TableKind.cost: _records,
        TableKind.one_edge: _one_edge,
    }[table.kind](runs, table, folder)  # fmt: skip
    console = Console()
    for grid in grids[:1]:
        print_grid(grid, console)
    lines = [f"# {name}: {table.title}", "", *([table.note, ""] if table.note else [])]
    lines += [f"- **Missing**: {path} did not finish." for path in missing]
    for grid in grids:
        lines += ["", *markdown(grid)]
    if stated := paper_numbers(folder.name):
        lines += ["", *markdown(paper_number_grid(stated))]
    if (folder / "figure.png").is_file():
        lines += [f"![{table.title}](figure.png)", ""]
    lines += ["## Where this comes from", "", *(f"- {line}" for line in provenance(runs)), ""]
    write_aside(folder / "table.md", "\n".join(lines))
    write_aside(folder / "table.tex", "\n".join(latex(grid) for grid in grids))
    print(f"{folder}/table.md")


def provenance(runs: Sequence[SweepRun]) -> list[str]:
    """Commit, machine, seeds and settings of the runs, one line each."""

    def several(values: Sequence[object]) -> str:
        return ", ".join(dict.fromkeys(map(str, values)))

    first, packages = runs[0].versions, runs[0].versions["packages"]
    dirty = any(run.versions["uncommitted_changes"] for run in runs)
    embedders = [r.config["embedder"]["model"] or r.config["embedder"]["kind"] for r in runs]
    return [
        f"{len(runs)} runs; commit {several([r.versions['commit'] for r in runs])}"
        + (" with uncommitted changes" if dirty else ""),
        f"{several([r.versions['device'] for r in runs])} ({first['machine']}), threads "
        f"{several([r.versions['threads'] for r in runs])}, torch {packages['torch']}, Python "
        f"{first['python']}",
        f"graph seeds {several([r.config['index']['seeds'] for r in runs])}; selectors "
        f"{several([[r.main, *r.config['refine']['controls']] for r in runs])}; refinement "
        f"{several([r.config['refine']['when'] for r in runs])}; embedder {several(embedders)}; "
        f"reranker {several([r.config['rerank']['kind'] for r in runs])}",
        *(
            f"{r.dataset}: {r.summary['n_documents']} documents, {r.summary['n_queries']} queries"
            for r in {run.dataset: run for run in runs}.values()
        ),
    ]


def _quality(runs: Sequence[SweepRun], table: TableConfig, folder: Path) -> list[Grid]:
    cells = read_cells(runs, table)
    write_csv(cells, table, folder / "table.csv")
    if table.figure is not None:
        make = draw_tokens if table.figure == "tokens" else draw_curves
        make(cells, table, folder / "figure")
    grids = [paper_grid(cells, table), difference_grid(cells, table)]
    more = (effort_grid(cells, table), exact_grid(cells, table))
    return grids + [grid for grid in more if grid is not None]


def _records(runs: Sequence[SweepRun], table: TableConfig, folder: Path) -> list[Grid]:
    make = structure_records if table.kind is TableKind.structure else cost_records
    records = make(runs)
    write_aside(folder / "table.csv", records_csv(records))
    return [record_grid(table.title, records)]


def _one_edge(runs: Sequence[SweepRun], table: TableConfig, folder: Path) -> list[Grid]:
    studies = {run.dataset: read_study(run.folder) for run in runs}
    draw(studies, OneEdgeConfig(**runs[0].config["one_edge"]), folder / "figure.png")
    records: list[Record] = [
        {"dataset": dataset, **row} for dataset, rows in studies.items() for row in rows
    ]
    write_aside(folder / "table.csv", records_csv(records))
    return [record_grid(table.title, records)]
