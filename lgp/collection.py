"""The collection of one configuration as stages: documents, vectors, nodes.

`dataset -> embeddings -> nodes`. Graphs are built on these in `lgp.stages`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from lgp.choices import EngineKind, IndexKind, SelectorKind
from lgp.config import Config, ConfigError
from lgp.data import Dataset, load_dataset
from lgp.distance import GIB, Metric, Points, duplicate_classes
from lgp.embed import HfEncoder, Kind
from lgp.embeddings import dataset_vectors, stored_vectors
from lgp.hardware import use_hardware
from lgp.hnsw_build import HnswSettings
from lgp.images import Pictures
from lgp.index import Settings
from lgp.points import make_points
from lgp.refine.log import EditLog
from lgp.runs import Collection, make_collection
from lgp.selectors import texts_digest
from lgp.store import Store, digest_of
from lgp.vamana import VamanaSettings


@dataclass
class CollectionStages:
    """One configuration: its collection and vectors as lazily computed parts."""

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

    @cached_property
    def _texts_of_documents(self) -> str:
        return digest_of([self.dataset.titles, self.dataset.bodies])

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

    def settings(self, seed: int) -> Settings:
        """How the graph of a seed is built."""
        c = self.config.index
        if c.kind is IndexKind.hnsw:
            return HnswSettings(c.connectivity, c.construction_width, seed, c.batch_size)
        return VamanaSettings(c.max_degree, c.construction_width, c.alpha, c.batch_size, seed)
