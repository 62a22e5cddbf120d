"""The stages of one configuration: load what is stored, else compute.

`dataset -> embeddings -> graph -> refined graph`. No algorithm lives here, and no measurement.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lgp.choices import DatasetKind, EmbedderKind, SelectorKind, When
from lgp.config import Config, ConfigError, to_plain
from lgp.data import Dataset, load_beir, load_pydocs, load_toy
from lgp.distance import GIB, Metric, Points, duplicate_classes
from lgp.embed import HfEncoder, Kind, embed_hf, embed_precomputed, embed_wordllama, source_digest
from lgp.graph import Graph, changed_neighborhoods, describe, load_graph, reachable, save_graph
from lgp.points import make_points
from lgp.refine.connect import connect
from lgp.refine.llm_select import Likelihood
from lgp.refine.log import EditLog, Edits
from lgp.refine.post import refine_post
from lgp.refine.step import Refiner, StepSettings, chosen_nodes
from lgp.runs import Collection, make_collection
from lgp.selectors import make_selector, mean_encoder, selector_inputs, texts_digest
from lgp.store import Store
from lgp.vamana import VamanaSettings, build_vamana
from lgp.vectors import check_vectors

log = logging.getLogger(__name__)

# Raise a version when the stage's code changes its results.
STAGE_VERSION = {"vectors": 1, "graph": 1, "refined": 1}


@dataclass
class Stages:
    """One configuration, with its stages as lazily computed parts."""

    config: Config
    store: Store = field(init=False)
    device: str = field(init=False)
    match: EditLog | None = field(init=False)

    def __post_init__(self) -> None:
        self.store = Store(Path(self.config.store_dir))
        wanted = self.config.device
        auto = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = auto if wanted == "auto" else wanted
        if self.config.threads:
            torch.set_num_threads(self.config.threads)
        refine = self.config.refine
        self.match = EditLog.load(Path(refine.match)) if refine.match else None
        if self.match is not None and len(self.config.index.seeds) > 1:
            raise ConfigError(
                f"refine.match with index.seeds={self.config.index.seeds}: an edit log belongs to "
                "one graph; name one seed"
            )

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
        return hashlib.sha256(self.points.vectors.cpu().numpy().tobytes()).hexdigest()

    # --- graphs -----------------------------------------------------------------------------

    @property
    def vamana(self) -> VamanaSettings:
        c = self.config.index
        return VamanaSettings(c.max_degree, c.construction_width, c.alpha, c.batch_size)

    def _graph_inputs(self, seed: int) -> dict[str, Any]:
        settings = asdict(self.vamana) | {"seed": seed, "metric": self.metric.value}
        joined = {"connect": self.config.index.connect}
        return {"vectors": self.vectors_digest, "index": settings | joined}

    def vanilla(self, seed: int) -> Graph:
        """The unrefined graph of a seed."""
        settings = VamanaSettings(**(asdict(self.vamana) | {"seed": seed}))

        def compute(folder: Path) -> Mapping[str, Any]:
            graph = build_vamana(self.points, settings, progress=True)
            if self.config.index.connect:
                graph, _ = connect(graph, self.points)
            save_graph(graph, folder / "graph.safetensors")
            return describe(graph)

        stage = self.store.get("graph", STAGE_VERSION["graph"], self._graph_inputs(seed), compute)
        return load_graph(stage / "graph.safetensors").to(self.device)

    def refined(self, kind: SelectorKind, seed: int, matched: EditLog | None) -> tuple[Graph, Path]:
        """The graph refined with a selector, and its stage folder.

        Args:
            matched: a log whose number of edits at each node is reproduced (DESIGN 4.10).
        """
        c = self.config.refine
        base = self.vanilla(seed)
        step = StepSettings(
            c.edit_budget, c.shortlist_size, c.context_size, c.min_coverage_gain, c.shortlist,
            c.victim, self.config.index.alpha,
        )  # fmt: skip
        inputs = self._graph_inputs(seed) | {
            "step": to_plain(asdict(step)),
            "when": c.when.value,
            "batch_size": c.batch_size,
            "nodes": [c.node_budget, c.node_order.value, c.seed] if matched is None else "matched",
            "match": None if matched is None else matched.decisions.digest(),
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
            quota = matched.decisions.quota(base.n)
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
        if self.config.index.connect:
            graph, joined = connect(graph, self.points)
            edits = Edits.join([edits, joined])
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
            "answers_sha256": selector.answers.digest(selector.keys_used)
            if isinstance(selector, Likelihood)
            else None,
        }
