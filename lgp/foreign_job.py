"""One refinement of somebody's index file: inputs joined, nodes chosen, selector asked, files
written so that a kill loses nothing.

In: a `Request` and a configuration. Out: the refined file and its edit log, or an estimate, or a
comparison. Printing is `lgp.refine_index`'s.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from lgp.beir import read_records
from lgp.choices import SelectorKind
from lgp.config import Config, to_plain
from lgp.cost import DRY_NODES, Projection, project
from lgp.distance import GIB, Metric
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
    read_index,
    to_engine,
    with_judgments,
    write_index,
)
from lgp.formats import ForeignIndex
from lgp.formats.diskann import companions, copy_companions, list_cuts
from lgp.formats.lists import changed_rows
from lgp.formats.patch import Patch, apply_patch, make_patch
from lgp.graph import changed_neighborhoods, reachable
from lgp.hardware import use_hardware
from lgp.hnsw import Hnsw
from lgp.index import Index, base_layer
from lgp.points import make_points
from lgp.refine.hnsw import refine_finished
from lgp.refine.log import EditLog, Edits
from lgp.refine.step import Refiner, chosen_nodes
from lgp.selectors import make_selector, mean_encoder, step_settings
from lgp.store import Store, file_digest, write_aside
from lgp.vectors import check_vectors, embed_precomputed

SELF_QUERIES = 500
"""Stored vectors that serve as queries where none are given."""


@dataclass(frozen=True)
class Request:
    """What to refine, and what the index file does not say.

    Attributes:
        docs: corpus.jsonl. vectors: in its order. labels_are_ids: a label is a document's `_id`,
            else its row.
        queries: vectors. query_ids: queries.jsonl in their order. qrels: judgments.
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


@dataclass(frozen=True)
class Refined:
    """A refinement in memory."""

    engine: Index
    edits: Edits
    refiner: Refiner
    seconds: float


class Job:
    """Everything read and checked; then `refine`, `projection`, `measure`, `save`."""

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

    def anchors(self, limit: int | None = None) -> Tensor:
        """Nodes that see the selector, bool [N]."""
        c = self.config.refine
        return chosen_nodes(self.index.n, c.node_budget, c.seed, self.index.deleted, limit)

    # --- refinement -----------------------------------------------------------------------------

    def refine(self, limit: int | None = None, answers: Path | None = None) -> Refined:
        """Refine in memory.

        Args:
            limit: nodes that see the selector, at most; they are among those of a full run.
            answers: folder of the answer log; None = that of the store.
        """
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
            allowed=(~self.index.deleted).to(self.device),
            fixed_degree=isinstance(self.engine, Hnsw) and c.keep_degree,
        )  # fmt: skip
        start = time.perf_counter()
        width = self.config.index.construction_width
        engine, edits = refine_finished(
            self.engine, self.points, refiner, width, c.batch_size, progress=True
        )
        return Refined(engine, edits, refiner, time.perf_counter() - start)

    def facts(self, refined: Refined) -> dict[str, Any]:
        """What the refinement did, JSON-able."""
        before, after = base_layer(self.engine), base_layer(refined.engine)
        own = refined.edits.own()
        lost = reachable(before) & ~reachable(after)
        return {
            "nodes": self.index.n,
            "nodes_asked": int(refined.refiner.eligible.sum()),
            "edits": int(own.sum()),
            "edges_back": int((~own & (refined.edits.added >= 0)).sum()),
            "changed_neighborhoods": changed_neighborhoods(before, after),
            "mean_degree_before": float(before.degrees().double().mean()),
            "mean_degree_after": float(after.degrees().double().mean()),
            "became_unreachable": int(lost.sum()),
            "seconds": refined.seconds,
            "account": asdict(refined.refiner.account),
        }

    def projection(self) -> Projection:
        """Cost of a full run, measured on a few nodes whose answers are thrown away."""
        with TemporaryDirectory(prefix="lgp-estimate-") as folder:
            refiner = self.refine(DRY_NODES, Path(folder)).refiner
        return project(refiner.account, int(refiner.eligible.sum()), int(self.anchors().sum()))

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
        unit = self.index.metric is Metric.cosine
        given = embed_precomputed(request.queries)
        queries = torch.from_numpy(check_vectors(given, str(request.queries), normalise=unit))
        probe = make_probe(self.points, queries.to(self.device), deleted, k)
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

    # --- files ----------------------------------------------------------------------------------

    def save(self, refined: Refined, out: Path, log: Path, report: Path) -> dict[str, Any]:
        """Write the index, its log and a report of the facts: aside, checked by reading the index
        back, then moved into place, the index last.

        Returns:
            the facts, which also stand in the log's header.
        """
        aside = out.with_name(f".{out.name}.{os.getpid()}.part")
        aside.mkdir()
        try:
            return self._save(refined, aside, out, log, report)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _save(
        self, refined: Refined, aside: Path, out: Path, log: Path, report: Path
    ) -> dict[str, Any]:
        neighbors = base_layer(refined.engine).neighbors.cpu()
        written = aside / out.name
        write_index(self.index, neighbors, written)
        back = read_index(written, self.index.format, self.request.layout)
        if len(changed_rows(back, neighbors.numpy())):
            raise ValueError(f"{written} does not hold what was written; the disk may be failing")
        cuts = None
        if self.index.format == "diskann":
            cuts = list_cuts(self.index), list_cuts(back)
        patch = make_patch(self.request.index, written, cuts)
        facts = self.facts(refined)
        header = {
            "when": "post",
            "selector": self.config.refine.selector.value,
            "settings": to_plain(self.config.refine),
            "index_format": self.index.format,
            "original_sha256": file_digest(self.request.index),
            "refined_sha256": file_digest(written),
            "base_sha256": base_layer(self.engine).digest(),
            "result_sha256": base_layer(refined.engine).digest(),
            "facts": facts,
        }
        decisions = refined.refiner.all_decisions()
        kept = log.with_name(f".{log.name}.{os.getpid()}.part")
        EditLog(refined.edits, decisions, header).save(kept, patch.tensors())
        kept.rename(log)
        write_aside(report, json.dumps(facts, indent=1))
        move_index(aside, out, companions(out) if self.index.format == "diskann" else [])
        return facts


def move_index(aside: Path, out: Path, beside: Sequence[Path]) -> None:
    """Move the files of a folder beside `out`, the index itself last.

    Args:
        beside: files that would belong to the index; those of an older one go.
    """
    for stale in beside:
        if not (aside / stale.name).exists():
            stale.unlink(missing_ok=True)
    for path in sorted(aside.iterdir(), key=lambda path: path.name == out.name):
        path.replace(out.with_name(path.name))


def undo(refined: Path, log: Path, out: Path) -> None:
    """Write the file that a refinement started from, byte for byte.

    Args:
        log: the edit log written beside the refined file.
    Raises:
        ValueError: a log of something else, a file that is not the one the log belongs to.
    """
    header = EditLog.load(log).header
    if "refined_sha256" not in header:
        raise ValueError(f"{log} is not the log of a refined index file; use lgp.refine.log")
    if not refined.is_file():
        raise ValueError(f"{refined} is not a file; give the refined index (DiskANN: its prefix)")
    found = file_digest(refined)
    if found != header["refined_sha256"]:
        raise ValueError(
            f"{refined} has sha256 {found[:12]}..., the log belongs to "
            f"{header['refined_sha256'][:12]}...; the index changed since, or it is another one"
        )
    with safe_open(log, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    try:
        patch = Patch.from_tensors(tensors)
    except KeyError as error:
        raise ValueError(f"{log} lacks {error}; it cannot take edits back") from error
    apply_patch(refined, patch, out, header["original_sha256"])
    if header.get("index_format") == "diskann":
        copy_companions(refined, out)
