"""The order of the stages: load what is stored, else compute; then measure and report.

`dataset -> embeddings -> graph -> refined graph -> runs -> report`. No algorithm lives here.
"""

from __future__ import annotations

import json
import logging
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor

from lgp.choices import DatasetKind, EmbedderKind, Exclude, RerankKind, SelectorKind, When
from lgp.config import Config, to_plain
from lgp.data import Dataset, load_beir, load_pydocs, load_toy
from lgp.distance import GIB, Metric, Points, make_points
from lgp.embed import HfEncoder, Kind, embed_hf, embed_precomputed, embed_wordllama, source_digest
from lgp.graph import Graph, changed_neighborhoods, describe, load_graph, reachable, save_graph
from lgp.refine.log import EditLog
from lgp.refine.post import refine_post
from lgp.refine.step import Refiner, StepSettings, chosen_nodes
from lgp.report import print_report, read_queries, write_report
from lgp.runs import Collection, Rerank, evaluate_exact, evaluate_graph, make_collection
from lgp.selectors import make_selector, mean_encoder, selector_inputs, texts_digest
from lgp.store import Store, digest_of, facts, write_aside
from lgp.vamana import VamanaSettings, build_vamana
from lgp.vectors import check_vectors

log = logging.getLogger(__name__)

# Raise a version when the stage's code changes its results.
STAGE_VERSION = {"vectors": 1, "graph": 1, "refined": 1}


@dataclass
class Pipeline:
    """One configuration, with its stages as lazily computed parts."""

    config: Config
    store: Store = field(init=False)
    device: str = field(init=False)

    def __post_init__(self) -> None:
        self.store = Store(Path(self.config.store_dir))
        wanted = self.config.device
        auto = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = auto if wanted == "auto" else wanted
        if self.config.threads:
            torch.set_num_threads(self.config.threads)

    # --- dataset and vectors ----------------------------------------------------------------

    @cached_property
    def dataset(self) -> Dataset:
        c = self.config.dataset
        if c.kind is DatasetKind.toy:
            return load_toy()
        if c.kind is DatasetKind.pydocs:
            return load_pydocs(c.packages)
        assert c.path is not None
        excluded = Path(c.excluded) if c.excluded else None
        return load_beir(
            Path(c.path), c.split, excluded, c.empty, c.unknown_qrels, c.relevance_level
        )

    def embed(self, texts: list[str], kind: Kind, encoder: HfEncoder | None) -> Tensor:
        """Unit vectors of texts through the stage store; each distinct text is embedded once.

        Args:
            encoder: None = the static wordllama vectors.
        """
        distinct = list(dict.fromkeys(texts))
        source = "wordllama" if encoder is None else encoder.model
        revision = None if encoder is None else encoder.revision
        inputs = {
            "texts": texts_digest(distinct),
            "kind": kind.value,
            "encoder": "wordllama" if encoder is None else to_plain(asdict(encoder)),
            "weights": source_digest(source, revision),
        }

        def compute(folder: Path) -> None:
            if encoder is None:
                vectors = embed_wordllama(distinct)
            else:
                vectors = embed_hf(distinct, kind, encoder, self.device)
            save_file({"vectors": torch.from_numpy(vectors)}, folder / "vectors.safetensors")

        stage = self.store.get("vectors", STAGE_VERSION["vectors"], inputs, compute)
        vectors = load_file(stage / "vectors.safetensors")["vectors"]
        row = {text: at for at, text in enumerate(distinct)}
        return vectors[[row[text] for text in texts]]

    def _vectors(self, kind: Kind) -> Tensor:
        c = self.config.embedder
        texts = self.dataset.texts if kind is Kind.DOCUMENT else self.dataset.queries
        unit = self.metric is Metric.cosine
        if c.kind is EmbedderKind.precomputed:
            path = c.document_vectors if kind is Kind.DOCUMENT else c.query_vectors
            given = embed_precomputed(Path(str(path)), len(texts))
            return torch.from_numpy(check_vectors(given, str(path), normalise=unit))
        if c.kind is EmbedderKind.wordllama:
            return self.embed(texts, kind, None)
        encoder = HfEncoder(
            model=str(c.model), revision=c.revision, pooling=c.pooling,
            query_template=c.query_template, document_template=c.document_template,
            max_tokens=c.max_tokens, batch_tokens=c.batch_tokens, dtype=c.dtype,
            expected_final_token=c.expected_final_token,
        )  # fmt: skip
        return self.embed(texts, kind, encoder)

    @property
    def metric(self) -> Metric:
        return Metric(self.config.index.metric.value)

    @cached_property
    def _indexed(self) -> tuple[Collection, Points, list[str]]:
        c = self.config
        documents, queries = self._vectors(Kind.DOCUMENT), self._vectors(Kind.QUERY)
        if documents.shape[1] != queries.shape[1]:
            raise ValueError(
                f"documents have {documents.shape[1]} dimensions, queries {queries.shape[1]}; "
                "embed both with the same model"
            )
        from lgp.distance import duplicate_classes

        classes = duplicate_classes(documents) if c.index.collapse_duplicates else None
        collection, rows = make_collection(self.dataset, classes, queries, c.dataset.max_queries)
        vectors = documents[rows].to(self.device)
        points = make_points(vectors, self.metric, int(c.index.table_gib * GIB))
        texts = self.dataset.texts
        self.vamana.check(points.n)
        if c.search.k > points.n:
            raise ValueError(
                f"search.k={c.search.k} is above the number of nodes {points.n}; lower search.k"
            )
        return collection, points, [texts[row] for row in rows.tolist()]

    @property
    def collection(self) -> Collection:
        return self._indexed[0]

    @property
    def points(self) -> Points:
        return self._indexed[1]

    @property
    def node_texts(self) -> list[str]:
        return self._indexed[2]

    @cached_property
    def vectors_digest(self) -> str:
        from hashlib import sha256

        return sha256(self.points.vectors.cpu().numpy().tobytes()).hexdigest()

    # --- graphs -----------------------------------------------------------------------------

    @property
    def vamana(self) -> VamanaSettings:
        c = self.config.index
        return VamanaSettings(c.max_degree, c.construction_width, c.alpha, c.batch_size)

    def _graph_inputs(self, seed: int) -> dict[str, Any]:
        settings = asdict(self.vamana) | {"seed": seed, "metric": self.metric.value}
        return {"vectors": self.vectors_digest, "index": settings}

    def vanilla(self, seed: int) -> Graph:
        """The unrefined graph of a seed."""
        settings = VamanaSettings(**(asdict(self.vamana) | {"seed": seed}))

        def compute(folder: Path) -> Mapping[str, Any]:
            graph = build_vamana(self.points, settings, progress=True)
            save_graph(graph, folder / "graph.safetensors")
            return describe(graph)

        stage = self.store.get("graph", STAGE_VERSION["graph"], self._graph_inputs(seed), compute)
        return load_graph(stage / "graph.safetensors").to(self.device)

    def refined(self, kind: SelectorKind, seed: int, match: Path | None) -> tuple[Graph, Path]:
        """The graph refined with a selector, and its stage folder.

        Args:
            match: an edit log whose number of edits at each node is reproduced (DESIGN 4.10).
        """
        c = self.config.refine
        base = self.vanilla(seed)
        step = StepSettings(
            c.edit_budget, c.shortlist_size, c.context_size, c.min_coverage_gain, c.shortlist,
            c.victim, self.config.index.alpha,
        )  # fmt: skip
        matched = EditLog.load(match) if match is not None else None
        inputs = self._graph_inputs(seed) | {
            "step": to_plain(asdict(step)),
            "when": c.when.value,
            "batch_size": c.batch_size,
            "nodes": [c.node_budget, c.node_order.value, c.seed] if match is None else "matched",
            "match": None if matched is None else digest_of(matched.decisions.placed.tolist()),
            "matched_anchors": None
            if matched is None
            else digest_of(matched.decisions.anchors.tolist()),
            "selector": kind.value,
            "answers": selector_inputs(kind, self.config, texts_digest(self.node_texts)),
        }

        def compute(folder: Path) -> Mapping[str, Any]:
            return self._refine(folder, kind, seed, base, step, matched)

        stage = self.store.get("refined", STAGE_VERSION["refined"], inputs, compute)
        return load_graph(stage / "graph.safetensors").to(self.device), stage

    def _refine(
        self,
        folder: Path,
        kind: SelectorKind,
        seed: int,
        base: Graph,
        step: StepSettings,
        matched: EditLog | None,
    ) -> Mapping[str, Any]:
        c = self.config.refine
        quota = None
        if matched is None:
            eligible = chosen_nodes(base.n, c.node_budget, c.seed)
        else:
            quota = torch.zeros(base.n, dtype=torch.int64)
            quota[matched.decisions.anchors.long()] = matched.decisions.placed.long()
            eligible = quota > 0
        encoder = mean_encoder(c.encoder, c.encoder_tokens)
        selector = make_selector(
            kind, self.config, self.node_texts,
            lambda: self.embed(self.node_texts, Kind.DOCUMENT, encoder).to(self.device),
            self.store.root / "answers", self.device,
        )  # fmt: skip
        refiner = Refiner(self.points, selector, step, eligible, quota)
        log.info("refine: %s on %d of %d nodes", kind.value, int(eligible.sum()), base.n)
        if c.when is When.build:
            settings = VamanaSettings(**(asdict(self.vamana) | {"seed": seed}))
            graph = build_vamana(self.points, settings, refiner, progress=True)
            edits = refiner.all_edits()
        else:
            width = self.config.index.construction_width
            graph, edits = refine_post(
                base, self.points, refiner, width, c.batch_size, progress=True
            )
        decisions = refiner.all_decisions()
        header = {
            "when": c.when.value, "selector": kind.value, "seed": seed,
            "base_sha256": base.digest(), "result_sha256": graph.digest(),
        }  # fmt: skip
        EditLog(edits, decisions, header).save(folder / "edits.safetensors")
        save_graph(graph, folder / "graph.safetensors")
        own = edits.own()
        kept = graph.neighbors[edits.node[own].long().to(graph.neighbors.device)]
        alive = (kept == edits.added[own].to(kept.device).unsqueeze(1)).any(1)
        wanted = int(quota.sum()) if quota is not None else None
        return describe(graph) | {
            "n_eligible": int(eligible.sum()),
            "n_edits": int(own.sum()),
            "n_edits_surviving": int(alive.sum()),
            "n_edits_wanted": wanted,
            "n_became_unreachable": int((reachable(base) & ~reachable(graph)).sum()),
            "changed_neighborhoods": changed_neighborhoods(base, graph),
            "account": asdict(refiner.account),
        }

    # --- measurement ------------------------------------------------------------------------

    def reranker(self) -> Rerank | None:
        """Reorder a query's documents by a stronger encoder, ties in greedy order."""
        c = self.config.rerank
        if c.kind is RerankKind.none:
            return None
        encoder = mean_encoder(c.model, c.max_tokens)
        documents = self.embed(self.dataset.texts, Kind.DOCUMENT, encoder)
        queries = self.embed(self.dataset.queries, Kind.QUERY, encoder)[self.collection.queries]

        def rerank(query: int, rows: list[int]) -> list[int]:
            score = documents[rows] @ queries[query]
            return [rows[i] for i in score.sort(descending=True, stable=True).indices.tolist()]

        return rerank

    def graphs(self) -> Iterator[tuple[dict[str, Any], Graph, Path | None]]:
        """(label, graph, refined stage) of every graph this configuration compares."""
        c = self.config.refine
        for seed in self.config.index.seeds:
            yield {"graph": "vanilla", "selector": "none", "seed": seed}, self.vanilla(seed), None
            if c.selector is SelectorKind.none:
                continue
            match = Path(c.match) if c.match else None
            graph, stage = self.refined(c.selector, seed, match)
            yield {"graph": "refined", "selector": c.selector.value, "seed": seed}, graph, stage
            for control in c.controls:
                graph, beside = self.refined(control, seed, stage / "edits.safetensors")
                label = {"graph": "refined", "selector": control.value, "seed": seed}
                yield label, graph, beside

    def run(self, run_dir: Path) -> None:
        """Everything: graphs, per-query lines, facts, report, into the run folder."""
        c = self.config
        run_dir.mkdir(parents=True, exist_ok=True)
        write_aside(run_dir / "config.json", json.dumps(to_plain(c), indent=1))
        write_aside(run_dir / "versions.json", json.dumps(versions(self.device), indent=1))
        collection, points = self.collection, self.points
        rerank = self.reranker()
        records: list[dict[str, Any]] = list(
            evaluate_exact(
                collection, points, c.search.k, rerank,
                c.rerank.depth or max(c.search.widths, default=20),
            )
        )  # fmt: skip
        notes: list[dict[str, Any]] = []
        for label, graph, stage in self.graphs():
            records += evaluate_graph(
                collection, points, graph, label, c.search.widths, c.search.budgets, c.search.k,
                c.search.exclude is Exclude.collect, rerank, c.rerank.depth,
                int(c.search.memory_gib * GIB),
            )  # fmt: skip
            notes.append(label | (describe(graph) if stage is None else facts(stage)))
            if stage is not None:
                name = f"edits-{label['selector']}-{label['seed']}.safetensors"
                copy_aside(stage / "edits.safetensors", run_dir / name)
        short = sum(r["n_returned"] < c.search.k for r in records)
        summary = {
            "dataset": self.dataset.name,
            "dataset_info": self.dataset.info,
            "n_documents": len(self.dataset.doc_ids),
            "n_nodes": points.n,
            "n_queries": len(collection.queries),
            "n_queries_without_relevant": collection.n_left_out,
            "n_short_lists": short,
            "graphs": notes,
        }
        lines = "".join(json.dumps(r, ensure_ascii=True) + "\n" for r in records)
        write_aside(run_dir / "queries.jsonl", lines)
        write_aside(run_dir / "summary.json", json.dumps(summary, indent=1))
        main = c.refine.selector.value if c.refine.controls else None
        write_report(run_dir, main)
        print_report(read_queries(run_dir), Console(), main)


def copy_aside(source: Path, target: Path) -> None:
    """Copy a file so that the target is never seen half written."""
    aside = target.with_name(f".{target.name}.part")
    aside.write_bytes(source.read_bytes())
    aside.rename(target)


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
    git = subprocess.run(
        ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    hardware = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    return {
        "commit": git.stdout.strip() or None,
        "packages": found,
        "python": platform.python_version(),
        "device": hardware,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }
