"""The options of `lgp refine-index` and what is refused before anything is read.

In: words of the command line. Out: an `argparse.Namespace`, or an error that names the way out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lgp.choices import Method, NodeOrder, SelectorKind
from lgp.cost import DRY_NODES
from lgp.foreign import FORMATS
from lgp.formats.diskann import companions
from lgp.refine.order import QUERY_ORDERS

IGNORED = (
    "refine.when", "refine.match", "refine.controls", "refine.method", "refine.shard",
    "index.metric", "index.connectivity", "index.kind", "index.seeds", "index.collapse",
    "index.connect=", "dataset", "embedder", "search", "rerank", "tracking",
    "repair.queries", "repair.file", "repair.split", "repair.per_document",
    "repair.document_tokens", "repair.new_tokens",
)  # fmt: skip
"""Settings of `lgp` that would change nothing here."""
SELECTING = ("refine", "llm", "prompt")
"""Settings that a repair alone does not read."""


def options() -> argparse.ArgumentParser:
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
        "--method", choices=[m.value for m in Method], default=Method.lgp.value,
        help="lgp (default): a selector chooses edges; repair: edges where searches for the "
        "queries of --latent miss; lgp+repair: one after the other",
    )  # fmt: skip
    p.add_argument(
        "--selector", help="of lgp, lgp+repair (default: farthest)",
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
        "--latent", type=Path, metavar="FILE",
        help="vectors of queries without judgments (a log, titles, ...), .npy or .safetensors: "
        "what a repair repairs for",
    )  # fmt: skip
    data.add_argument(
        "--labels", choices=("rows", "ids"), default="rows",
        help="the library's labels are rows of DOCS and VECTORS (default), or documents' _id",
    )  # fmt: skip
    first = p.add_argument_group("before paying for all of it")
    first.add_argument(
        "--dry-run", action="store_true",
        help=f"ask about {DRY_NODES} nodes and estimate calls, tokens and hours; repair: only "
        "tell how often searches miss",
    )  # fmt: skip
    first.add_argument(
        "--pilot", type=int, metavar="N",
        help="refine N nodes (repair: for N latent queries) in memory and show quality before "
        "and after",
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


def check(args: argparse.Namespace) -> None:
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
    repairs = args.method != Method.lgp.value
    if args.undo is None and repairs and args.latent is None:
        raise ValueError(f"--method {args.method} needs --latent FILE, vectors of queries")
    if args.method == Method.repair.value and args.selector is not None:
        raise ValueError(
            f"--method repair asks no selector; drop --selector {args.selector}, or give "
            "--method lgp+repair"
        )
    if args.qrels is not None and args.queries is None:
        raise ValueError("--qrels needs --queries, the vectors of the judged queries")
    if args.k < 1 or min(args.widths or [args.k]) < args.k:
        raise ValueError(f"--k {args.k} with --widths {args.widths}; 1 <= k <= width is needed")


def _check_outputs(args: argparse.Namespace, in_memory: bool) -> None:
    """No file may be written over another of this job, nor over an older one without --force."""
    made = [args.out]
    if args.undo is None:
        made += [log_path(args), beside(args.out, ".json")]
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


def log_path(args: argparse.Namespace) -> Path:
    """Where the edit log is written."""
    log: Path = args.log or beside(args.out, ".edits.safetensors")
    return log


def check_settings(args: argparse.Namespace) -> None:
    """Refuse words of `lgp` that this job would not read."""
    unread: tuple[str, ...] = IGNORED
    if args.method == Method.repair.value:
        unread += SELECTING
    if args.latent is None:
        unread += ("repair",)
    ignored = [word for word in args.settings if word.lstrip("+").startswith(unread)]
    if ignored:
        raise ValueError(
            f"{', '.join(ignored)}: not read by refine-index --method {args.method}"
            f"{' without --latent' if args.latent is None else ''}; drop it"
        )


def check_latent(args: argparse.Namespace, order: NodeOrder) -> None:
    """Refuse latent queries that nobody would read, and an order of nodes that lacks them."""
    ordered = order in QUERY_ORDERS
    if ordered and args.latent is None:
        raise ValueError(f"refine.node_order={order.value} needs --latent FILE, vectors of queries")
    if args.latent is not None and args.method == Method.lgp.value and not ordered:
        raise ValueError(
            "--latent is read by --method repair, --method lgp+repair and "
            "refine.node_order=traffic or blind_spots; give one of them, or drop it"
        )


def beside(path: Path, suffix: str) -> Path:
    """`path` with a suffix appended to its name."""
    return path.with_name(path.name + suffix)
