"""`lgp refine-index`: refine an index file of another library, or take a refinement back.

In: words of the command line. Out: printed tables, files written by `lgp.foreign_job`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lgp.choices import SelectorKind
from lgp.config import Config
from lgp.cost import DRY_NODES, configured_prices
from lgp.foreign import FORMATS, Layout, Probe, Quality, read_index
from lgp.foreign_job import Job, Refined, Request, undo
from lgp.formats.diskann import companions
from lgp.stats import paired_interval

Compose = Callable[[list[str]], Config]
"""Settings as KEY=VALUE words -> the checked configuration."""

WIDTHS = {"diskann": [10, 20, 50, 100, 200]}
HNSW_WIDTHS = [10, 12, 14, 16, 18, 20, 50]
BUILD_WIDTHS = {"diskann": 125}
HNSW_BUILD_WIDTH = 200
IGNORED = (
    "refine.when", "refine.match", "refine.controls", "refine.node_order", "refine.shard",
    "index.metric", "index.connectivity", "index.kind", "index.seeds", "index.collapse",
    "index.connect=", "dataset", "embedder", "search", "rerank", "tracking",
)  # fmt: skip
"""Settings of `lgp` that would change nothing here."""


def parser() -> argparse.ArgumentParser:
    """Every option of the command."""
    p = argparse.ArgumentParser(
        prog="lgp refine-index",
        description="Refine the graph of an index file. The library that made it serves the "
        "result unchanged.",
        epilog="Further KEY=VALUE words are settings as of lgp itself: refine.edit_budget=1, "
        "refine.node_budget=0.2, llm=qwen3_8b, prompt=general, device=cuda, threads=4, ...",
    )
    p.add_argument("--index", type=Path, required=True, help="the file (DiskANN: its prefix)")
    p.add_argument("--format", choices=FORMATS, help="the library that wrote it")
    p.add_argument("--out", type=Path, help="file to write (DiskANN: prefix)")
    p.add_argument("--force", action="store_true", help="replace OUT where it exists")
    p.add_argument("--undo", type=Path, metavar="LOG", help="write the original of INDEX to OUT")
    p.add_argument(
        "--selector", default="farthest",
        choices=[k.value for k in SelectorKind if k is not SelectorKind.none],
    )  # fmt: skip
    p.add_argument(
        "--store", type=Path, default=Path("lgp-store"),
        help="folder of embeddings and model answers; a rerun goes on from there",
    )  # fmt: skip
    p.add_argument("--log", type=Path, help="edit log (default: OUT.edits.safetensors)")
    about = p.add_argument_group("what the file does not say")
    about.add_argument("--space", help="hnswlib: l2, ip or cosine; DiskANN: l2, mips or cosine")
    about.add_argument("--dim", type=int, help="hnswlib, DiskANN: dimension of the vectors")
    about.add_argument("--dtype", help="DiskANN: float32, int8 or uint8")
    about.add_argument("--max-degree", type=int, help="DiskANN: R, room for more edges")
    data = p.add_argument_group("documents and vectors")
    data.add_argument("--docs", type=Path, help="corpus.jsonl[.gz] with _id, title, text")
    data.add_argument("--vectors", type=Path, help=".npy or .safetensors, in document order")
    data.add_argument(
        "--labels", choices=("rows", "ids"), default="rows",
        help="the library's labels are rows of DOCS and VECTORS (default), or documents' _id",
    )  # fmt: skip
    first = p.add_argument_group("before paying for all of it")
    first.add_argument(
        "--dry-run", action="store_true",
        help=f"ask about {DRY_NODES} nodes and estimate calls, tokens and hours",
    )  # fmt: skip
    first.add_argument(
        "--pilot", type=int, metavar="N",
        help="refine N nodes in memory and show quality before and after",
    )  # fmt: skip
    shown = p.add_argument_group("queries to measure with (default: some stored vectors)")
    shown.add_argument("--queries", type=Path, help="their vectors, .npy or .safetensors")
    shown.add_argument("--qrels", type=Path, help="judgments: query-id, corpus-id, score by tabs")
    shown.add_argument(
        "--query-ids", type=Path, help="queries.jsonl in the order of QUERIES (default: its rows)"
    )
    shown.add_argument("--widths", type=_numbers, metavar="EF,EF", help="search widths")
    shown.add_argument("--k", type=int, default=10, help="results of a search (default 10)")
    p.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    return p


def _numbers(text: str) -> list[int]:
    """Whole numbers parted by commas."""
    return [int(word) for word in text.split(",")]


def main(argv: Sequence[str], compose: Compose) -> int:
    """Run `lgp refine-index ...`; returns the exit status."""
    args = parser().parse_intermixed_args(argv)
    console = Console()
    try:
        _check(args)
        if args.undo is not None:
            undo(args.index, args.undo, args.out)
            _say(console, f"{args.out}: the original, byte for byte")
        else:
            _run(args, compose, console)
    except (OSError, ValueError, ImportError) as error:
        print(f"lgp refine-index: {error}", file=sys.stderr)
        return 2
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot work before anything is read."""
    in_memory = args.dry_run or args.pilot is not None
    if args.undo is not None and in_memory:
        raise ValueError("--undo goes with --index and --out only; drop --dry-run and --pilot")
    if args.undo is None and args.format is None:
        raise ValueError(f"--format is missing; give one of {', '.join(FORMATS)}")
    if args.out is None and not in_memory:
        raise ValueError("--out is missing; name the file to write (or --dry-run, --pilot N)")
    if args.out is not None:
        _check_outputs(args, in_memory)
    if args.pilot is not None and args.pilot < 1:
        raise ValueError(f"--pilot {args.pilot} is below 1; refine at least one node")
    if args.qrels is not None and args.queries is None:
        raise ValueError("--qrels needs --queries, the vectors of the judged queries")
    if args.k < 1 or min(args.widths or [args.k]) < args.k:
        raise ValueError(f"--k {args.k} with --widths {args.widths}; 1 <= k <= width is needed")


def _check_outputs(args: argparse.Namespace, in_memory: bool) -> None:
    """No file may be written over another of this job, nor over an older one without --force."""
    made = [args.out]
    if args.undo is None:
        made += [_log(args), beside(args.out, ".json")]
    places = [path.resolve() for path in (args.index, *made)]
    if places[0] == places[1]:
        raise ValueError(f"--out {args.out} is the index itself; write beside it, then swap them")
    if len(set(places)) < len(places):
        raise ValueError(f"--log {args.log} is a file this job reads or writes; name another")
    if in_memory:
        return
    for path in made:
        if not path.parent.is_dir():
            raise ValueError(f"{path.parent} is no folder; make it first")
    if args.format == "diskann":
        made += companions(args.out)
    there = [str(path) for path in made if path.exists()]
    if there and not args.force:
        raise ValueError(
            f"{', '.join(there)}: exists, and an edit log is the only way back from the index it "
            "belongs to; name another --out (and --log), or give --force"
        )


def _log(args: argparse.Namespace) -> Path:
    log: Path = args.log or beside(args.out, ".edits.safetensors")
    return log


def _run(args: argparse.Namespace, compose: Compose, console: Console) -> None:
    ignored = [word for word in args.settings if word.lstrip("+").startswith(IGNORED)]
    if ignored:
        raise ValueError(f"{', '.join(ignored)}: not read by refine-index; drop it")
    layout = Layout(args.space, args.dim, args.dtype, args.max_degree)
    index = read_index(args.index, args.format, layout)
    width = BUILD_WIDTHS.get(args.format, HNSW_BUILD_WIDTH)
    config = compose(
        [
            f"refine={args.selector}", "refine.when=post", f"store_dir={args.store}",
            f"index.max_degree={index.bound}",
            f"index.construction_width={max(width, index.bound)}",
            *args.settings,  # of two words for one key the later wins
        ]
    )  # fmt: skip
    request = Request(
        args.index, args.format, layout, args.docs, args.vectors, args.labels == "ids",
        args.queries, args.query_ids, args.qrels,
    )  # fmt: skip
    job = Job(request, config, index)
    _say(console, f"{args.index}: {index.n} nodes ({int(index.deleted.sum())} deleted), at most "
         f"{index.bound} neighbors each, {len(index.upper)} layers above")  # fmt: skip
    if args.dry_run:
        _say(console, job.projection().sentence(configured_prices(config.llm)))
        return
    compared = args.pilot is not None or args.queries is not None
    widths = _widths(args, index.n) if compared else []
    probe = job.probe(args.k) if compared else None  # bad queries are told before any work
    refined = job.refine(args.pilot)
    if args.pilot is None:
        facts = job.save(refined, args.out, _log(args), beside(args.out, ".json"))
        _say(console, f"{args.out}: {facts_line(facts)}")
    else:
        _say(console, f"pilot, nothing written: {facts_line(job.facts(refined))}")
    if probe is not None:
        _compare(job, refined, probe, widths, args.k, console)
    if args.pilot is not None:
        share = 100 * min(1.0, args.pilot / index.n)
        _say(console, f"The pilot edits {share:.1f} % of the nodes; expect about that share of the "
             "whole refinement's effect.")  # fmt: skip


def _widths(args: argparse.Namespace, n: int) -> list[int]:
    """Search widths to compare at; the asked ones as they are, else those that k and N allow."""
    if args.widths:
        if max(args.widths) > n:
            raise ValueError(f"--widths holds {max(args.widths)}, above the {n} nodes; lower it")
        return list(args.widths)
    fitting = [w for w in WIDTHS.get(args.format, HNSW_WIDTHS) if args.k <= w <= n]
    return fitting or [min(n, 2 * args.k)]


def beside(path: Path, suffix: str) -> Path:
    """`path` with a suffix appended to its name."""
    return path.with_name(path.name + suffix)


def facts_line(facts: dict[str, Any]) -> str:
    """What a refinement did, in a sentence."""
    account = facts["account"]
    cost = f", {account['tokens']} tokens" if account["tokens"] else ""
    return (
        f"{facts['edits']} edges chosen at {facts['nodes_asked']} of {facts['nodes']} nodes, "
        f"{facts['edges_back']} edges back; {100 * facts['changed_neighborhoods']:.1f} % of rows "
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
