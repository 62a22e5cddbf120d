"""A run: every graph of a configuration, measured on the same queries, and reported.

In: a configuration. Out: a run folder, which is the truth about the run.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lgp.choices import EngineKind, Exclude, Method, RerankKind, SelectorKind
from lgp.comparison import comparison_table, sentences
from lgp.config import Config, to_plain
from lgp.config_refine import REPAIR
from lgp.cost import configured_prices
from lgp.dataset import say_unread_images
from lgp.distance import GIB
from lgp.embed import Kind
from lgp.engines import answer_log, language_model
from lgp.graph import Graph
from lgp.index import Index, base_layer
from lgp.one_edge_study import one_edge_study
from lgp.refine.log import EditLog
from lgp.report import print_report, write_report
from lgp.rerank import LikelihoodRerank, ListwiseRerank, by_encoder, ranking_engine
from lgp.results import ELSEWHERE, SHARD_FILE
from lgp.runs import Rerank, evaluate_exact, evaluate_graph
from lgp.search import QueryDistances
from lgp.selectors import mean_encoder
from lgp.stages import Stages
from lgp.store import MANIFEST, facts, file_digest, write_aside
from lgp.structure import structure
from lgp.summary import break_even_lines, graph_lines


def reranker(stages: Stages) -> Rerank | None:
    """The reranker a configuration names, its model loaded."""
    c = stages.config.rerank
    if c.kind is RerankKind.none:
        return None
    documents, rows = stages.dataset.texts, stages.collection.queries
    reads_images = c.kind is RerankKind.listwise and stages.config.llm.engine is EngineKind.vlm
    if not reads_images:
        for side in (True, False):
            say_unread_images(stages.dataset, side, f"rerank={c.kind.value}")
    if c.kind is RerankKind.encoder:
        encoder = mean_encoder(c.model or "minilm", c.max_tokens)
        queries = stages.embed(stages.dataset.queries, Kind.QUERY, encoder)[rows]
        return by_encoder(stages.embed(documents, Kind.DOCUMENT, encoder), queries)
    llm, prompt = stages.config.llm, stages.config.prompt
    if c.model is not None and c.model != llm.model:
        llm = replace(llm, model=c.model, revision=c.revision)
    texts = [stages.dataset.queries[row] for row in rows]
    answers = answer_log(llm, stages.device, stages.store.root / "answers")
    if c.kind is RerankKind.likelihood:
        lm = language_model(llm, stages.device)
        return LikelihoodRerank(
            lm, texts, documents, prompt.query_prefix, answers, c.document_tokens, c.query_tokens,
            llm.batch_tokens, progress=True,
        )  # fmt: skip
    data, corrupt = stages.dataset, stages.config.embedder.corrupt_images
    engine_for = cache(
        partial(
            ranking_engine, llm, stages.device, folder=data.image_folder, corrupt_images=corrupt
        )
    )
    return ListwiseRerank(
        engine_for, texts, documents, prompt, answers, c.window, c.step, c.repair,
        c.document_tokens, c.query_tokens, progress=True,
        query_images=[data.query_images[row] for row in rows if data.query_images]
        if reads_images
        else [],
        document_images=data.images if reads_images else [],
        instructions=[data.instructions[row] for row in rows if data.instructions],
    )  # fmt: skip


def graphs(stages: Stages) -> Iterator[tuple[dict[str, Any], Index, Path]]:
    """(label, graph, its stage) of every graph this configuration compares."""
    c = stages.config.refine
    for seed in stages.config.index.seeds:
        label = {"graph": "vanilla", "selector": "none", "seed": seed}
        yield label, *stages.vanilla_stage(seed)
        if c.label is None:
            continue
        graph, stage = stages.refined(c.selector, seed, stages.match, c.method)
        yield {"graph": "refined", "selector": c.label, "seed": seed}, graph, stage
        for control in c.controls:
            log = EditLog.load(stage / "edits.safetensors")
            graph, beside = stages.refined(control, seed, log)
            label = {"graph": "refined", "selector": control.value, "seed": seed}
            yield label, graph, beside
        if c.repair_beside:
            graph, stage = stages.refined(SelectorKind.none, seed, None, Method.repair)
            yield {"graph": "refined", "selector": REPAIR, "seed": seed}, graph, stage


def run(config: Config, run_dir: Path, quiet: bool = False) -> None:
    """Everything: graphs, per-query lines, facts, report, into the run folder.

    With `dry_run` a few nodes are refined instead, and what all of them would cost is printed. With
    `refine.shard` only that shard's decisions are made.

    Args:
        quiet: print the headline only; the folder's `report.md` holds the rest.
    """
    c, stages = config, Stages(config)
    if c.dry_run:
        print(stages.projection(c.index.seeds[0]).sentence(configured_prices(c.llm)))
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    write_aside(run_dir / "config.json", json.dumps(to_plain(c), indent=1))
    write_aside(run_dir / "versions.json", json.dumps(versions(stages.device), indent=1))
    if c.refine.shard is not None:
        made = [stages.decided(c.refine.selector, seed, stages.match) for seed in c.index.seeds]
        write_aside(run_dir / SHARD_FILE, json.dumps([stage.name for stage in made]))
        return
    collection, points = stages.collection, stages.points
    if stages.dataset.info.get("sampled"):
        drawn = "".join(f"{name}\n" for name in stages.dataset.query_ids)
        write_aside(run_dir / "sampled_queries.txt", drawn)
    rerank = reranker(stages)
    records: list[dict[str, Any]] = list(
        evaluate_exact(
            collection, points, c.search.k, rerank,
            c.rerank.depth or max(c.search.widths, default=20),
        )
    )  # fmt: skip
    notes: list[dict[str, Any]] = []
    for label, graph, stage in graphs(stages):
        records += evaluate_graph(
            collection, points, graph, label, c.search.widths, c.search.budgets, c.search.k,
            c.search.exclude is Exclude.collect, rerank, c.rerank.depth,
            int(c.search.memory_gib * GIB),
        )  # fmt: skip
        more = {
            "stage": stage.name,
            "graph_sha256": graph.digest(),
            "structure": structure(base_layer(graph), points),
        }
        if label["graph"] == "refined":
            name = f"edits-{label['selector']}-{label['seed']}.safetensors"
            copy_aside(stage / "edits.safetensors", run_dir / name)
            more["edits_sha256"] = file_digest(run_dir / name)
        notes.append(label | facts(stage) | more)
    if c.one_edge.enabled:
        seed = c.index.seeds[0]
        vanilla = stages.vanilla(seed)
        assert isinstance(vanilla, Graph)  # the configuration refuses an HNSW
        asked = collection.query_vectors.to(points.device)
        table = QueryDistances(points, queries=asked).with_table()
        one_edge_study(vanilla, table, collection, c.one_edge, seed, run_dir)
    short = sum(r["n_returned"] < c.search.k for r in records)
    summary = {
        "dataset": stages.dataset.name,
        "dataset_info": stages.dataset.info,
        "n_documents": len(stages.dataset.doc_ids),
        "n_nodes": points.n,
        "n_queries": len(collection.queries),
        "n_queries_without_relevant": collection.n_left_out,
        "n_short_lists": short,
        "graphs": notes,
        "prices": asdict(configured_prices(c.llm)),
    }
    if isinstance(rerank, LikelihoodRerank | ListwiseRerank):
        summary["rerank"] = {"kind": c.rerank.kind.value} | asdict(rerank.account)
    lines = "".join(json.dumps(r, ensure_ascii=True) + "\n" for r in records)
    write_aside(run_dir / "queries.jsonl", lines)
    write_aside(run_dir / "summary.json", json.dumps(summary, indent=1))
    main = c.refine.label if c.refine.controls else None
    results = write_report(run_dir, main)
    if quiet:
        print("\n".join(sentences(comparison_table(results))[: len(results.labels()) - 1]))
        return
    print_report(results, Console(), main)
    print("\n".join(graph_lines(run_dir) + break_even_lines(run_dir, comparison_table(results))))


def finished(config: Config, run_dir: Path) -> bool:
    """Whether a folder holds this run, complete and made by this code."""
    try:
        kept = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
        made = json.loads((run_dir / "versions.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    own = to_plain(config)
    for key in ELSEWHERE:
        kept.pop(key, None)
        own.pop(key)
    if config.refine.shard is None:
        complete = all((run_dir / name).is_file() for name in ("summary.json", "report.md"))
    else:
        complete = _decisions_are_there(config, run_dir)
    return complete and kept == own and made.get("source_sha256") == source_digest()


def _decisions_are_there(config: Config, run_dir: Path) -> bool:
    try:
        names = json.loads((run_dir / SHARD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return all((Path(config.store_dir) / name / MANIFEST).is_file() for name in names)


def copy_aside(source: Path, target: Path) -> None:
    """Copy a file so that the target is never seen half written."""
    aside = target.with_name(f".{target.name}.part")
    aside.write_bytes(source.read_bytes())
    aside.rename(target)


@cache
def source_digest() -> str:
    """sha256 of the package's Python files: what made a run, also where git cannot tell."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def versions(device: str) -> dict[str, Any]:
    """Commit, package versions and hardware of a run."""
    names = ("torch", "transformers", "numpy", "numba", "ir_measures", "hydra-core", "wandb")
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    here = Path(__file__).resolve().parent

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-C", str(here), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    git, status = ask("rev-parse", "--verify", "HEAD"), ask("status", "--porcelain", "-uno")
    hardware = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    return {
        "commit": git.stdout.strip() if git.returncode == 0 else None,
        "uncommitted_changes": bool(status.stdout.strip()) if git.returncode == 0 else None,
        "source_sha256": source_digest(),
        "packages": found,
        "python": platform.python_version(),
        "device": hardware,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }
