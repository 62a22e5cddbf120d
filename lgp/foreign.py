"""Somebody's index as the engine sees it: opened, joined with documents, refined, measured.

In: a file of another library, vectors and documents named by its labels. Out: a new base layer,
its edits, and quality before and after. Byte layouts are in `lgp.formats`, the command line in
`lgp.refine_index`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lgp import formats
from lgp.beir import read_judgments, read_records
from lgp.dataset import join_text
from lgp.distance import Points, check_dimensions
from lgp.evaluate import evaluate, judged_queries
from lgp.formats import ForeignIndex
from lgp.hnsw import Hnsw, search_hnsw
from lgp.index import Index
from lgp.refine.repair import nearest
from lgp.search import search_nodes
from lgp.vectors import check_vectors, embed_precomputed

FORMATS = ("hnswlib", "faiss", "usearch", "diskann")
SAME_DIRECTION = 0.9
"""Smallest median cosine of given to stored vectors: quantised rows pass, shuffled ones do not."""


@dataclass(frozen=True)
class Layout:
    """What a file does not say about itself; None where it does.

    Attributes:
        space: hnswlib and DiskANN: the metric. dim: their dimension. dtype: DiskANN's.
        max_degree: DiskANN: longest list a refined row may have.
    """

    space: str | None = None
    dim: int | None = None
    dtype: str | None = None
    max_degree: int | None = None


def read_index(path: Path, kind: str, layout: Layout) -> ForeignIndex:
    """Read an index file of one of `FORMATS`.

    Raises:
        FormatError: damaged, or of a kind that is not read.
        ValueError: space, dim or dtype is needed and missing.
    """
    if kind == "hnswlib":
        return formats.read_hnswlib(path, layout.space, layout.dim)
    if kind == "faiss":
        return formats.read_faiss(path)
    if kind == "usearch":
        return formats.read_usearch(path)
    if kind == "diskann":
        return formats.read_diskann(path, layout.space, layout.dtype, layout.dim, layout.max_degree)
    raise ValueError(f"format {kind!r} is unknown; known: {', '.join(FORMATS)}")


def write_index(index: ForeignIndex, neighbors: Tensor, path: Path) -> None:
    """Write the index with another base layer, int32 [N, bound], in its own format."""
    write: Mapping[str, Callable[[ForeignIndex, Tensor, Path], None]] = {
        "hnswlib": formats.write_hnswlib,
        "faiss": formats.write_faiss,
        "usearch": formats.write_usearch,
        "diskann": formats.write_diskann,
    }
    write[index.format](index, neighbors, path)


# --- documents and vectors --------------------------------------------------------------------


def read_documents(path: Path) -> tuple[list[str], list[str]]:
    """Ids and texts (title and text joined) of a corpus.jsonl[.gz]."""
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give a corpus.jsonl with _id, title and text")
    records = list(read_records(path))
    return [name for name, *_ in records], [join_text(title, text) for _, title, text in records]


def document_rows(index: ForeignIndex, n: int, ids: Sequence[str] | None = None) -> Tensor:
    """The document (and vector) of each node by the library's label, int64 [N].

    Args:
        n: number of documents. ids: their ids where labels are ids; None = a label is a row
            number.
    Returns:
        -1 only for deleted nodes without a document.
    Raises:
        ValueError: a living node whose label names no document.
    """
    labels = index.labels.tolist()
    if ids is None:
        rows = [label if 0 <= label < n else -1 for label in labels]
    else:
        place = {name: row for row, name in enumerate(ids)}
        rows = [place.get(str(label), -1) for label in labels]
    found = torch.tensor(rows)
    lost = ((found < 0) & ~index.deleted).nonzero().flatten()
    if len(lost):
        node = int(lost[0])
        rule = f"row numbers 0..{n - 1}" if ids is None else f"the _id of {n} documents"
        other = "ids" if ids is None else "rows"
        raise ValueError(
            f"{len(lost)} labels name no document, first {labels[node]} (node {node}); they are "
            f"read as {rule}; give the documents the index was built from, or --labels {other}"
        )
    return found


def node_vectors(index: ForeignIndex, given: Path | None, ids: Sequence[str] | None) -> Tensor:
    """The vectors that distances are computed from, float32 [N, D], of length 1 under cosine.

    Args:
        given: .npy or .safetensors of vectors in document order; None = those in the file.
        ids: as `document_rows`.
    Raises:
        ValueError: no vectors anywhere, other dimensions, vectors that are not those of the index.
    """
    unit = index.metric.value == "cosine"
    if given is None:
        if index.vectors is None:
            raise ValueError(f"this {index.format} file holds no vectors; give --vectors FILE")
        own = check_vectors(index.vectors.numpy(), "the index's vectors", normalise=unit)
        return torch.from_numpy(own)
    vectors = torch.from_numpy(check_vectors(embed_precomputed(given), str(given), normalise=unit))
    rows = document_rows(index, len(vectors), ids)
    here = rows >= 0
    if index.vectors is None:
        if not bool(here.all()):
            raise ValueError(
                f"{int((~here).sum())} deleted nodes have no vector, neither in the index nor in "
                f"{given}; rebuild the index without them"
            )
        return vectors[rows]
    stored = index.unit_vectors()
    if stored.shape[1] != vectors.shape[1]:
        raise ValueError(
            f"{given} has {vectors.shape[1]} dimensions, the index {stored.shape[1]}; give the "
            "vectors the index was built from"
        )
    chosen: Tensor = torch.where(here.unsqueeze(1), vectors[rows.clamp_min(0)], stored)
    likeness = torch.nn.functional.cosine_similarity(chosen[here], stored[here])
    if len(likeness) and float(likeness.median()) < SAME_DIRECTION:
        raise ValueError(
            f"{given} and the index hold different vectors (median cosine "
            f"{float(likeness.median()):.2f}, at least {SAME_DIRECTION} expected); give them in "
            "document order, or see --labels"
        )
    return chosen


def to_engine(index: ForeignIndex, alpha: float | None = None) -> Index:
    """What the engine searches and refines: an `Hnsw`, or a flat graph for DiskANN.

    Args:
        alpha: slack of the prunes of a flat graph.
    """
    if index.format == "diskann":
        return index.graph(alpha)
    return Hnsw(index.graph(), index.levels, index.upper, index.entry_node)


# --- before and after -------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """Queries to measure an index with.

    Attributes:
        vectors: float32 [Q, D]. exact: int64 [Q, k], nearest living nodes, best first, -1 pads.
        names: query ids and qrels: {query: {document id: grade}}; both empty without judgments.
        doc_of_node: the document id of each node.
    """

    vectors: Tensor
    exact: Tensor
    names: tuple[str, ...] = ()
    qrels: Mapping[str, Mapping[str, int]] | None = None
    doc_of_node: Sequence[str] = ()


def make_probe(points: Points, queries: Tensor, deleted: Tensor, k: int) -> Probe:
    """Queries with their exact k nearest living nodes: recall needs no judgments.

    Args:
        queries: float32 [Q, D] as the metric compares them.
    """
    check_dimensions(points, queries)
    nodes = nearest(points, queries, k, ~deleted)
    return Probe(queries, torch.nn.functional.pad(nodes, (0, k - nodes.shape[1]), value=-1))


def with_judgments(
    probe: Probe, names: Sequence[str], qrels_file: Path, doc_of_node: Sequence[str]
) -> Probe:
    """The same queries with judgments; those without a relevant document keep recall only.

    Raises:
        ValueError: another number of names than queries, or judgments of none of them.
    """
    if len(names) != len(probe.vectors):
        raise ValueError(
            f"{len(names)} query ids for {len(probe.vectors)} query vectors; give one for each"
        )
    asked = set(names)
    given = {q: grades for q, grades in read_judgments(qrels_file).items() if q in asked}
    kept, _ = judged_queries(given)
    if not kept:
        raise ValueError(
            f"{qrels_file} judges none of the {len(names)} queries (first id {names[0]!r}); give "
            "--query-ids of the same collection"
        )
    judged = {document for q in kept for document in given[q]}
    if judged.isdisjoint(doc_of_node):
        raise ValueError(
            f"{qrels_file} judges none of the index's documents (such as {doc_of_node[0]!r}); give "
            "the --docs it was built from"
        )
    return replace(
        probe, names=tuple(names), qrels={q: given[q] for q in kept}, doc_of_node=doc_of_node
    )


def drop(nodes: Tensor, deleted: Tensor, k: int) -> Tensor:
    """The first k living nodes of each list [Q, X], int64 [Q, k], -1 pads."""
    gone = (nodes < 0) | deleted.to(nodes.device)[nodes.clamp_min(0)]
    order = gone.to(torch.int8).sort(dim=1, stable=True).indices[:, :k]
    kept = nodes.masked_fill(gone, -1).gather(1, order)
    return torch.nn.functional.pad(kept, (0, k - kept.shape[1]), value=-1)


@dataclass(frozen=True)
class Quality:
    """One index at one search width.

    Attributes:
        recall: of the exact k nearest, per query [Q]. n_dist: mean distances, all layers.
        ndcg: NDCG@10 per judged query, None without judgments.
    """

    recall: np.ndarray
    n_dist: float
    ndcg: np.ndarray | None


def measure(
    engine: Index, points: Points, probe: Probe, deleted: Tensor, width: int, k: int
) -> Quality:
    """Search at one width (`ef`) and score: recall of exact, and NDCG@10 where judged."""
    if isinstance(engine, Hnsw):
        result, above = search_hnsw(engine, points, probe.vectors, width, width)
        spent = result.n_dist + above
    else:
        result = search_nodes(engine, points, probe.vectors, width, width)
        spent = result.n_dist
    nodes = drop(result.nodes, deleted, k)
    hits = (nodes.unsqueeze(2) == probe.exact.unsqueeze(1)) & (nodes >= 0).unsqueeze(2)
    there = (probe.exact >= 0).sum(1).clamp_min(1)
    recall = (hits.any(2).sum(1) / there).cpu().numpy()
    ndcg = None
    if probe.qrels is not None:
        run = {
            # Chunks of one document share its label: the best one stands for it.
            name: list(dict.fromkeys(probe.doc_of_node[node] for node in row if node >= 0))
            for name, row in zip(probe.names, nodes.tolist(), strict=True)
            if name in probe.qrels
        }
        name = f"ndcg_at_{min(10, k)}"
        scores = evaluate(probe.qrels, run, measures=(name,))
        ndcg = np.array([score[name] for score in scores.values()])
    return Quality(recall, float(spent.double().mean()), ndcg)
