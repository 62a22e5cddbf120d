"""The stages of one configuration: load what is stored, else compute.

`dataset -> embeddings -> graph -> refined graph`. No algorithm lives here, and no measurement.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from lgp.choices import EngineKind, IndexKind, SelectorKind, When
from lgp.config import Config, ConfigError, to_plain
from lgp.cost import DRY_NODES, Projection, project
from lgp.data import Dataset, load_dataset
from lgp.dataset import say_unread_images
from lgp.distance import GIB, Metric, Points, duplicate_classes
from lgp.embed import HfEncoder, Kind
from lgp.embeddings import dataset_vectors, stored_vectors
from lgp.graph import Graph, changed_neighborhoods, reachable
from lgp.hardware import use_hardware
from lgp.hnsw import Hnsw
from lgp.hnsw_build import HnswSettings
from lgp.images import Pictures
from lgp.index import (
    Index,
    Settings,
    base_layer,
    build_index,
    describe_index,
    load_index,
    save_index,
    settings_key,
)
from lgp.points import make_points
from lgp.refine.connect import connect
from lgp.refine.hnsw import refine_finished
from lgp.refine.listwise import Listwise
from lgp.refine.llm_select import Likelihood
from lgp.refine.log import EditLog, Edits
from lgp.refine.step import Refiner, chosen_nodes
from lgp.runs import Collection, make_collection
from lgp.selectors import (
    make_selector,
    mean_encoder,
    selector_inputs,
    step_settings,
    texts_digest,
)
from lgp.store import Store, digest_of
from lgp.vamana import VamanaSettings, build_vamana

log = logging.getLogger(__name__)

Compute = Callable[[Path], Mapping[str, Any]]

# Raise a version when the stage's code changes its results.
STAGE_VERSION = {"graph": 1, "refined": 2, "hnsw": 1, "hnsw_refined": 1}


@dataclass
class Stages:
    """One configuration, with its stages as lazily computed parts."""

    config: Config
    store: Store = field(init=False)
    device: str = field(init=False)
    match: EditLog | None = field(init=False)

    def __post_init__(self) -> None:
        self.store = Store(Path(self.config.store_dir))
        self.device = use_hardware(self.config.device, self.config.threads)
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
        return load_dataset(self.config.dataset)

    def embed(self, texts: list[str], kind: Kind, encoder: HfEncoder | None) -> Tensor:
        """Unit vectors of texts through the stage store, as `stored_vectors`."""
        storage = self.config.embedder.storage
        return stored_vectors(self.store, texts, kind, encoder, self.device, storage)

    def embed_all(self) -> None:
        """Have the vectors of documents and queries in the store, whoever embedded them."""
        for kind in Kind:
            self._vectors(kind)

    def _vectors(self, kind: Kind) -> Tensor:
        unit = self.metric is Metric.cosine
        return dataset_vectors(
            self.store, self.dataset, kind, self.config.embedder, self.device, unit
        )

    @property
    def metric(self) -> Metric:
        return Metric(self.config.index.metric.value)

    @cached_property
    def _indexed(self) -> tuple[Collection, Points, Tensor]:
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
        self.settings(c.index.seeds[0]).check(points.n)
        if c.search.k > points.n:
            raise ValueError(
                f"search.k={c.search.k} is above the number of nodes {points.n}; lower search.k"
            )
        return collection, points, rows

    @property
    def collection(self) -> Collection:
        return self._indexed[0]

    @property
    def points(self) -> Points:
        return self._indexed[1]

    @property
    def node_rows(self) -> Tensor:
        """The first document row of each node, int64 [N]."""
        return self._indexed[2]

    @cached_property
    def node_texts(self) -> list[str]:
        texts = self.dataset.texts
        return [texts[row] for row in self.node_rows.tolist()]

    @cached_property
    def pictures(self) -> Pictures | None:
        """The nodes' images, for a language model that reads them."""
        data = self.dataset
        if self.config.llm.engine is not EngineKind.vlm or data.image_folder is None:
            return None
        first = [rows[0] for rows in self.collection.documents_of_node]
        refs = [data.images[row] for row in first] if data.images else [""] * len(first)
        return Pictures(data.image_folder, refs)

    def _shown_digest(self, kind: SelectorKind) -> str:
        """What a selector may read of the nodes besides vectors and graph."""
        texts = texts_digest(self.node_texts)
        if kind is not SelectorKind.llm or self.pictures is None:
            return texts
        corrupt = self.config.embedder.corrupt_images.value
        return digest_of([texts, self.pictures.digests(), corrupt])

    @cached_property
    def vectors_digest(self) -> str:
        return hashlib.sha256(self.points.vectors.cpu().numpy().tobytes()).hexdigest()

    # --- graphs -----------------------------------------------------------------------------

    def settings(self, seed: int) -> Settings:
        """How the graph of a seed is built."""
        c = self.config.index
        if c.kind is IndexKind.hnsw:
            return HnswSettings(c.connectivity, c.construction_width, seed, c.batch_size)
        return VamanaSettings(c.max_degree, c.construction_width, c.alpha, c.batch_size, seed)

    def _graph_inputs(self, seed: int) -> dict[str, Any]:
        c = self.config.index
        more = {"metric": self.metric.value, "connect": c.connect}
        return {"vectors": self.vectors_digest, "index": settings_key(self.settings(seed)) | more}

    def _stored(
        self, seed: int, name: str, inputs: Mapping[str, Any], compute: Compute
    ) -> tuple[Index, Path]:
        stage = self.store.get(name, STAGE_VERSION[name], inputs, compute)
        index = load_index(stage / "graph.safetensors", self.settings(seed))
        return index.to(self.device), stage

    def vanilla(self, seed: int) -> Index:
        """The unrefined graph of a seed."""
        return self.vanilla_stage(seed)[0]

    def vanilla_stage(self, seed: int) -> tuple[Index, Path]:
        """The unrefined graph of a seed, and its stage folder."""

        def compute(folder: Path) -> Mapping[str, Any]:
            start = time.perf_counter()
            graph = build_index(self.points, self.settings(seed))
            if self.config.index.connect and isinstance(graph, Graph):
                graph, _ = connect(graph, self.points)
            save_index(graph, folder / "graph.safetensors")
            return describe_index(graph) | {"seconds": time.perf_counter() - start}

        name = "hnsw" if self.config.index.kind is IndexKind.hnsw else "graph"
        return self._stored(seed, name, self._graph_inputs(seed), compute)

    def refined(self, kind: SelectorKind, seed: int, matched: EditLog | None) -> tuple[Index, Path]:
        """The graph refined with a selector, and its stage folder.

        Args:
            matched: a log whose number of edits at each node is reproduced (DESIGN 4.10).
        """
        c = self.config.refine
        base = self.vanilla(seed)
        step = step_settings(c, base_layer(base).alpha)
        inputs = self._graph_inputs(seed) | {
            "step": to_plain(asdict(step)),
            "when": c.when.value,
            "batch_size": c.batch_size,
            "nodes": [c.node_budget, c.node_order.value, c.seed] if matched is None else "matched",
            "match": None if matched is None else matched.decisions.digest(),
            "selector": kind.value,
            "answers": selector_inputs(kind, self.config, self._shown_digest(kind)),
        }

        if isinstance(base, Hnsw) and not c.keep_degree:
            inputs["keep_degree"] = False

        def compute(folder: Path) -> Mapping[str, Any]:
            return self._refine(folder, kind, seed, base, matched)

        name = "hnsw_refined" if isinstance(base, Hnsw) else "refined"
        return self._stored(seed, name, inputs, compute)

    def _refiner(
        self,
        kind: SelectorKind,
        vanilla: Index,
        eligible: Tensor,
        quota: Tensor | None,
        answers: Path,
    ) -> Refiner:
        c = self.config.refine
        llm = self.config.llm.engine
        if kind is SelectorKind.encoder or (kind is SelectorKind.llm and llm is not EngineKind.vlm):
            say_unread_images(self.dataset, True, f"refine={kind.value}")
        encoder = mean_encoder(c.encoder, c.encoder_tokens)
        selector = make_selector(
            kind, self.config, self.node_texts,
            lambda: self.embed(self.dataset.texts, Kind.DOCUMENT, encoder)[self.node_rows].to(
                self.device
            ),
            answers, self.device, pictures=self.pictures,
        )  # fmt: skip
        fixed = isinstance(vanilla, Hnsw) and c.keep_degree
        step = step_settings(c, base_layer(vanilla).alpha)
        return Refiner(self.points, selector, step, eligible, quota, fixed_degree=fixed)

    def projection(self, seed: int) -> Projection:
        """What refining a seed's graph would cost, measured on a few nodes of the finished one;
        their answers are thrown away."""
        c, vanilla = self.config.refine, self.vanilla(seed)
        n = base_layer(vanilla).n
        wanted = chosen_nodes(n, c.node_budget, c.seed)
        few = chosen_nodes(n, c.node_budget, c.seed, limit=DRY_NODES)
        with TemporaryDirectory(prefix="lgp-estimate-") as folder:
            refiner = self._refiner(c.selector, vanilla, few, None, Path(folder))
            refine_finished(vanilla, self.points, refiner, self.settings(seed).construction_width)
        return project(refiner.account, int(few.sum()), int(wanted.sum()))

    def _refine(
        self,
        folder: Path,
        kind: SelectorKind,
        seed: int,
        vanilla: Index,
        matched: EditLog | None,
    ) -> Mapping[str, Any]:
        c, base = self.config.refine, base_layer(vanilla)
        quota = None
        if matched is None:
            eligible = chosen_nodes(base.n, c.node_budget, c.seed)
        else:
            quota = matched.decisions.quota(base.n)
            eligible = quota > 0
        refiner = self._refiner(kind, vanilla, eligible, quota, self.store.root / "answers")
        log.info("refine: %s on %d of %d nodes", kind.value, int(eligible.sum()), base.n)
        start = time.perf_counter()
        index, edits = self._edited(vanilla, seed, refiner)
        seconds = time.perf_counter() - start
        graph, selector = base_layer(index), refiner.selector
        decisions = refiner.all_decisions()
        header = {
            "when": c.when.value, "selector": kind.value, "seed": seed,
            "base_sha256": base.digest(), "result_sha256": graph.digest(),
        }  # fmt: skip
        EditLog(edits, decisions, header).save(folder / "edits.safetensors")
        if isinstance(selector, Listwise):
            selector.save_queries(folder / "latent_queries.jsonl")
        save_index(index, folder / "graph.safetensors")
        own = edits.own()
        kept = graph.neighbors[edits.node[own].long().to(graph.neighbors.device)]
        alive = (kept == edits.added[own].to(kept.device).unsqueeze(1)).any(1)
        wanted = int(quota.sum()) if quota is not None else None
        return describe_index(index) | {
            "n_eligible": int(eligible.sum()),
            "n_edits": int(own.sum()),
            "n_edits_surviving": int(alive.sum()),
            "n_edits_wanted": wanted,
            "n_became_unreachable": int((reachable(base) & ~reachable(graph)).sum()),
            "changed_neighborhoods": changed_neighborhoods(base, graph),
            "account": asdict(refiner.account),
            "seconds": seconds,
            "answers_sha256": selector.answers.digest(selector.keys_used)
            if isinstance(selector, Likelihood | Listwise)
            else None,
        }

    def _edited(self, vanilla: Index, seed: int, refiner: Refiner) -> tuple[Index, Edits]:
        """The refined index and its edits; in a build the vanilla one is built anew."""
        c, settings = self.config.refine, self.settings(seed)
        index: Index
        if c.when is When.build and isinstance(settings, VamanaSettings):
            index = build_vamana(self.points, settings, refiner, progress=True)
            edits = refiner.all_edits()
        else:
            index, edits = refine_finished(
                vanilla, self.points, refiner, settings.construction_width, c.batch_size,
                progress=True,
            )  # fmt: skip
        if self.config.index.connect and isinstance(index, Graph):
            index, joined = connect(index, self.points)
            edits = Edits.join([edits, joined])
        return index, edits
