"""`lgp refine-index`: refine an index file of another library, or take a refinement back.

In: words of the command line. Out: printed tables, files written by `lgp.foreign_files`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from lgp.choices import Method
from lgp.config import Config
from lgp.cost import configured_prices
from lgp.foreign import Layout, Probe, Quality, read_index
from lgp.foreign_files import save, undo
from lgp.foreign_job import Job, Refined, Request
from lgp.refine_index_options import (
    beside,
    check,
    check_latent,
    check_settings,
    log_path,
    options,
)
from lgp.repairs import miss_clause
from lgp.stats import paired_interval

Compose = Callable[[list[str]], Config]
"""Settings as KEY=VALUE words -> the checked configuration."""

WIDTHS = {"diskann": [10, 20, 50, 100, 200]}
HNSW_WIDTHS = [10, 12, 14, 16, 18, 20, 50]
BUILD_WIDTHS = {"diskann": 125}
HNSW_BUILD_WIDTH = 200


def main(argv: Sequence[str], compose: Compose) -> int:
    """Run `lgp refine-index ...`; returns the exit status."""
    args = options().parse_intermixed_args(argv)
    console = Console()
    try:
        check(args)
        if args.undo is not None:
            undo(args.index, args.undo, args.out)
            _say(console, f"{args.out}: the original, byte for byte")
        else:
            _run(args, compose, console)
    except (OSError, ValueError, ImportError) as error:
        print(f"lgp refine-index: {error}", file=sys.stderr)
        return 2
    return 0


def _run(args: argparse.Namespace, compose: Compose, console: Console) -> None:
    check_settings(args)
    repair_only = args.method == Method.repair.value
    layout = Layout(args.space, args.dim, args.dtype, args.max_degree)
    index = read_index(args.index, args.format, layout)
    width = BUILD_WIDTHS.get(args.format, HNSW_BUILD_WIDTH)
    config = compose(
        [
            "refine=repair" if repair_only else f"refine={args.selector or 'farthest'}",
            "refine.when=post", f"refine.method={args.method}", f"store_dir={args.store}",
            f"index.max_degree={index.bound}",
            f"index.construction_width={max(width, index.bound)}",
            *args.settings,  # of two words for one key the later wins
        ]
    )  # fmt: skip
    request = Request(
        args.index, args.format, layout, args.docs, args.vectors, args.labels == "ids",
        args.queries, args.query_ids, args.qrels, args.latent,
    )  # fmt: skip
    check_latent(args, config.refine.node_order)
    job = Job(request, config, index)
    _say(console, f"{args.index}: {index.n} nodes ({int(index.deleted.sum())} deleted), at most "
         f"{index.bound} neighbors each, {len(index.upper)} layers above")  # fmt: skip
    if args.latent is not None:
        _say(console, f"{args.latent}: {len(job.latent.rows)} latent queries, "
             f"{len(job.latent.distinct)} of them distinct")  # fmt: skip
    if args.dry_run:
        if not repair_only:
            _say(console, job.projection().sentence(configured_prices(config.llm)))
        if args.method != Method.lgp.value:
            _say(console, f"Searches of width {config.repair.width} for the latent queries miss "
                 f"{100 * job.missed():.1f} % of their {config.repair.targets} nearest documents: "
                 "what a repair can mend.")  # fmt: skip
        return
    compared = args.pilot is not None or args.queries is not None
    widths = _widths(args, index.n) if compared else []
    probe = job.probe(args.k) if compared else None  # bad queries are told before any work
    refined = job.refine(args.pilot)
    if args.pilot is None:
        facts = save(job, refined, args.out, log_path(args), beside(args.out, ".json"))
        _say(console, f"{args.out}: {facts_line(facts)}")
    else:
        _say(console, f"pilot, nothing written: {facts_line(job.facts(refined))}")
    if probe is not None:
        _compare(job, refined, probe, widths, args.k, console)
    if args.pilot is not None:
        whole, what = index.n, "nodes"
        if repair_only:
            whole, what = len(job.latent.distinct), "latent queries"
        share = 100 * min(1.0, args.pilot / whole)
        does = "repairs for" if repair_only else "edits"
        _say(console, f"The pilot {does} {share:.1f} % of the {what}; expect about that share of "
             "the whole refinement's effect.")  # fmt: skip


def _widths(args: argparse.Namespace, n: int) -> list[int]:
    """Search widths to compare at; the asked ones as they are, else those that k and N allow."""
    if args.widths:
        if max(args.widths) > n:
            raise ValueError(f"--widths holds {max(args.widths)}, above the {n} nodes; lower it")
        return list(args.widths)
    fitting = [w for w in WIDTHS.get(args.format, HNSW_WIDTHS) if args.k <= w <= n]
    return fitting or [min(n, 2 * args.k)]


def facts_line(facts: dict[str, Any]) -> str:
    """What a refinement did, in a sentence."""
    account = facts["account"]
    cost = f", {account['tokens']} tokens" if account["tokens"] else ""
    done = []
    if facts["method"] != Method.repair.value:
        chosen = facts["edits"] - facts.get("n_repairs", 0)
        done.append(
            f"{chosen} edges chosen at {facts['nodes_asked']} of {facts['nodes']} nodes, "
            f"{facts['edges_back']} edges back"
        )
    if facts["method"] != Method.lgp.value:
        done.append(
            f"repaired for {facts['latent_queries']} latent queries with {miss_clause(facts)}"
        )
    return (
        f"{'; '.join(done)}; {100 * facts['changed_neighborhoods']:.1f} % of rows "
        f"changed, mean degree {facts['mean_degree_before']:.1f} -> "
        f"{facts['mean_degree_after']:.1f}, {facts['became_unreachable']} nodes became "
        f"unreachable on the base layer; {facts['seconds']:.0f} s{cost}"
    )


def _compare(
    job: Job, refined: Refined, probe: Probe, widths: list[int], k: int, console: Console
) -> None:
    """Print quality before and after, per search width."""
    before = job.measure(job.engine, probe, widths, k)
    after = job.measure(refined.engine, probe, widths, k)
    count = len(probe.vectors)
    console.print(_table(f"Recall of exact {k} x 100, {count} queries", widths, before, after,
                         [q.recall for q in before], [q.recall for q in after]))  # fmt: skip
    if probe.qrels is not None:
        title = f"NDCG@{min(10, k)} x 100, {len(probe.qrels)} judged queries"
        console.print(_table(title, widths, before, after, [q.ndcg for q in before],
                             [q.ndcg for q in after]))  # fmt: skip
    if bool(job.index.deleted.any()):
        _say(console, "Deleted elements take places in the search list here; hnswlib keeps only "
             "living ones in it, so with many deleted its own figures are higher.")  # fmt: skip
    if job.request.queries is not None and job.request.latent is not None:
        twins = job.latent.twins(probe.vectors, job.config.repair.similar)
        _say(console, f"{twins} latent queries are (nearly) measured ones, cosine "
             f"{job.config.repair.similar:g} or more: they are known beforehand.")  # fmt: skip
    if job.request.queries is None:
        _say(console, f"The {count} queries are stored vectors: kinder than real queries, which "
             "--queries gives.")  # fmt: skip


def _table(
    title: str,
    widths: Sequence[int],
    before: Sequence[Quality],
    after: Sequence[Quality],
    old: Sequence[Any],
    new: Sequence[Any],
) -> Table:
    """A row per width: means of per-query values, paired difference with its 95 % interval, and
    distances computed."""
    table = Table(title=title)
    for name in ("width", "before", "after", "difference [95 %]", "distances", "after"):
        table.add_column(name, justify="right")
    for at, width in enumerate(widths):
        change = new[at] - old[at]
        low, high = paired_interval(change)
        table.add_row(
            str(width), f"{100 * old[at].mean():.1f}", f"{100 * new[at].mean():.1f}",
            f"{100 * change.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]",
            f"{before[at].n_dist:.0f}", f"{after[at].n_dist:.0f}",
        )  # fmt: skip
    return table


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)
