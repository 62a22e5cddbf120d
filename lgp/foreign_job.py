"""One refinement of somebody's index file: inputs joined, nodes chosen, selector asked, the graph
repaired.

In: a `Request` and a configuration. Out: a refined index in memory, or an estimate, or a
comparison. Files are `lgp.foreign_files`', printing is `lgp.refine_index`'s.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from lgp.beir import read_records
from lgp.choices import Method, SelectorKind
from lgp.config import Config
from lgp.cost import DRY_NODES, Projection, project
from lgp.distance import GIB
from lgp.embed import Kind
from lgp.embeddings import stored_vectors
from lgp.foreign import (
    Layout,
    Probe,
    Quality,
    document_rows,
    make_probe,
    measure,
    node_vectors,
    read_documents,
    to_engine,
    with_judgments,
)
from lgp.foreign_latent import LatentVectors, query_rows, read_latent
from lgp.formats import ForeignIndex
from lgp.graph import changed_neighborhoods, reachable
from lgp.hardware import use_hardware
from lgp.hnsw import Hnsw
from lgp.index import Index, base_layer
from lgp.points import make_points
from lgp.refine.hnsw import refine_finished
from lgp.refine.log import Decisions, Edits
from lgp.refine.order import QUERY_ORDERS, node_priority
from lgp.refine.repair import decisions_of, miss_rate
from lgp.refine.step import Account, Refiner, chosen_nodes
from lgp.repairs import own_slots, repair_index, start_nodes
from lgp.selectors import make_selector, mean_encoder, step_settings
from lgp.store import Store

SELF_QUERIES = 500
"""Stored vectors that serve as queries where none are given."""


@dataclass(frozen=True)
class Request:
    """What to refine, and what the index file does not say.

    Attributes:
        docs: corpus.jsonl. vectors: in its order. labels_are_ids: a label is a document's `_id`,
            else its row.
        queries: vectors. query_ids: queries.jsonl in their order. qrels: judgments.
        latent: vectors of queries without judgments, to repair for and to order nodes by.
    """

    index: Path
    format: str
    layout: Layout
    docs: Path | None = None
    vectors: Path | None = None
    labels_are_ids: bool = False
    queries: Path | None = None
    query_ids: Path | None = None
    qrels: Path | None = None
    latent: Path | None = None


@dataclass(frozen=True)
class Refined:
    """A refinement in memory.

    Attributes:
        decisions: a selector's, or the repair's where none was asked. asked: nodes that saw the
            selector. repair: what a repair measured, see `lgp.repairs.repair_index`.
    """

    engine: Index
    edits: Edits
    decisions: Decisions
    account: Account
    asked: int
    seconds: float
    repair: Mapping[str, Any] | None = None


class Job:
    """Everything read and checked; then `refine`, `projection`, `missed`, `measure`."""

    def __init__(self, request: Request, config: Config, index: ForeignIndex) -> None:
        self.request, self.config, self.index = request, config, index
        self.device = use_hardware(config.device, config.threads)
        self.store = Store(Path(config.store_dir))
        self.documents = self._read_documents()
        self.alpha = config.index.alpha if index.format == "diskann" else 1.0
        self.engine = to_engine(index, self.alpha).to(self.device)
        vectors = node_vectors(index, request.vectors, self._label_ids)
        table_bytes = int(config.index.table_gib * GIB)
        self.points = make_points(vectors.to(self.device), index.metric, table_bytes)

    # --- inputs ---------------------------------------------------------------------------------

    def _read_documents(self) -> tuple[list[str], list[str]] | None:
        if self.request.docs is not None:
            return read_documents(self.request.docs)
        kind = self.config.refine.selector
        if kind in (SelectorKind.encoder, SelectorKind.llm):
            raise ValueError(f"the selector {kind.value} reads documents; give --docs")
        if self.request.labels_are_ids:
            raise ValueError("labels are ids of documents, but there are none; give --docs")
        return None

    @property
    def _label_ids(self) -> list[str] | None:
        if not self.request.labels_are_ids or self.documents is None:
            return None
        return self.documents[0]

    @cached_property
    def _by_node(self) -> tuple[list[str], list[str]]:
        """A document id and a text per node; a label stands for the id without documents."""
        if self.documents is None:
            return [str(label) for label in self.index.labels.tolist()], [""] * self.index.n
        ids, texts = self.documents
        rows = document_rows(self.index, len(ids), self._label_ids).tolist()
        return (
            [ids[row] if row >= 0 else "" for row in rows],
            [texts[row] if row >= 0 else "" for row in rows],
        )

    @cached_property
    def latent(self) -> LatentVectors:
        """The request's latent queries (ValueError: none given, or not of this index's space)."""
        if self.request.latent is None:
            raise ValueError("no latent queries; give --latent FILE, their vectors")
        return read_latent(self.request.latent, self.points)

    @property
    def _allowed(self) -> Tensor:
        return (~self.index.deleted).to(self.device)

    def anchors(self, limit: int | None = None) -> Tensor:
        """Nodes that see the selector, bool [N]."""
        c, repair = self.config.refine, self.config.repair
        queries, starts = None, None
        if c.node_order in QUERY_ORDERS:
            queries = self.latent.rows
            starts = start_nodes(self.engine, self.points, queries)
        priority = node_priority(
            c.node_order, base_layer(self.engine), self.points, queries, repair.width,
            repair.targets, starts, self._allowed,
        )  # fmt: skip
        return chosen_nodes(
            self.index.n, c.node_budget, c.seed, self.index.deleted, limit, priority
        )

    # --- refinement -----------------------------------------------------------------------------

    def refine(self, limit: int | None = None, answers: Path | None = None) -> Refined:
        """Refine in memory.

        Args:
            limit: nodes that see the selector, and latent queries that are repaired for, at most;
                they are among those of a full run.
            answers: folder of the answer log; None = that of the store.
        """
        if self.config.refine.method is Method.repair:
            return self._repaired(None, limit)
        selected = self._selected(limit, answers)
        if self.config.refine.method is Method.lgp:
            return selected
        return self._repaired(selected, limit)

    def _selected(self, limit: int | None, answers: Path | None) -> Refined:
        """What the selector chose, placed (paper §4)."""
        c = self.config.refine
        encoder = mean_encoder(c.encoder, c.encoder_tokens)
        texts = self._by_node[1]

        def encoded() -> Tensor:
            found = stored_vectors(self.store, texts, Kind.DOCUMENT, encoder, self.device)
            return found.to(self.device)

        selector = make_selector(
            c.selector, self.config, texts, encoded, answers or self.store.root / "answers",
            self.device,
        )  # fmt: skip
        refiner = Refiner(
            self.points, selector, step_settings(c, self.alpha), self.anchors(limit),
            allowed=self._allowed,
            fixed_degree=isinstance(self.engine, Hnsw) and c.keep_degree,
        )  # fmt: skip
        start = time.perf_counter()
        width = self.config.index.construction_width
        engine, edits = refine_finished(
            self.engine, self.points, refiner, width, c.batch_size, progress=True
        )
        return Refined(
            engine, edits, refiner.all_decisions(), refiner.account, int(refiner.eligible.sum()),
            time.perf_counter() - start,
        )  # fmt: skip

    def _repaired(self, selected: Refined | None, limit: int | None) -> Refined:
        """Edges where searches for the latent queries miss; after a selector's, or alone."""
        c = self.config.repair
        start, shielded, index = time.perf_counter(), None, self.engine
        if selected is not None:
            index = selected.engine
            shielded = own_slots(base_layer(index), selected.edits) if c.protect else None
        queries = self.latent.some(limit, c.seed)
        engine, edits, facts = repair_index(c, index, self.points, queries, shielded, self._allowed)
        facts = {"latent_queries": len(queries)} | facts
        spent = time.perf_counter() - start
        if selected is None:
            return Refined(engine, edits, decisions_of(edits), Account(), 0, spent, facts)
        return replace(
            selected, engine=engine, edits=Edits.join([selected.edits, edits]),
            seconds=selected.seconds + spent, repair=facts,
        )  # fmt: skip

    def missed(self) -> float:
        """Share of the latent queries' exact nearest nodes that searches miss as the index is."""
        c, queries = self.config.repair, self.latent.distinct
        starts = start_nodes(self.engine, self.points, queries)
        return miss_rate(
            base_layer(self.engine), self.points, queries, c.width, c.targets, starts, self._allowed
        )

    def facts(self, refined: Refined) -> dict[str, Any]:
        """What the refinement did, JSON-able."""
        before, after = base_layer(self.engine), base_layer(refined.engine)
        own = refined.edits.own()
        lost = reachable(before) & ~reachable(after)
        return {
            "method": self.config.refine.method.value,
            "nodes": self.index.n,
            "nodes_asked": refined.asked,
            "edits": int(own.sum()),
            "edges_back": int((~own & (refined.edits.added >= 0)).sum()),
            "changed_neighborhoods": changed_neighborhoods(before, after),
            "mean_degree_before": float(before.degrees().double().mean()),
            "mean_degree_after": float(after.degrees().double().mean()),
            "became_unreachable": int(lost.sum()),
            "seconds": refined.seconds,
            "account": asdict(refined.account),
        } | dict(refined.repair or {})

    def projection(self) -> Projection:
        """Cost of a full run, measured on a few nodes whose answers are thrown away."""
        with TemporaryDirectory(prefix="lgp-estimate-") as folder:
            rehearsed = self._selected(DRY_NODES, Path(folder))
        return project(rehearsed.account, rehearsed.asked, int(self.anchors().sum()))

    # --- before and after -----------------------------------------------------------------------

    def probe(self, k: int) -> Probe:
        """The request's queries, or some stored vectors, with their exact neighbors."""
        request, deleted = self.request, self.index.deleted
        if request.queries is None:
            order = torch.randperm(self.index.n, generator=torch.Generator().manual_seed(0))
            some = order[~deleted[order]][:SELF_QUERIES]
            vectors = self.points.vectors[some.to(self.device)]
            if self.points.origin is not None:
                vectors = vectors + self.points.origin
            return make_probe(self.points, vectors, deleted, k)
        queries = query_rows(request.queries, self.points)
        probe = make_probe(self.points, queries, deleted, k)
        if request.qrels is None:
            return probe
        if request.query_ids is None:
            names = [str(row) for row in range(len(queries))]
        else:
            names = [name for name, *_ in read_records(request.query_ids)]
        return with_judgments(probe, names, request.qrels, self._by_node[0])

    def measure(self, engine: Index, probe: Probe, widths: Sequence[int], k: int
                ) -> list[Quality]:  # fmt: skip
        """Quality at each width."""
        return [measure(engine, self.points, probe, self.index.deleted, w, k) for w in widths]
