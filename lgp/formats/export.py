"""Flat graphs for other people's searchers: faiss, hnswlib, CAGRA, pyterrier-adaptive.

In: a graph of ours. Out: a file or object that the unmodified library serves. To write an edited
base layer back into an existing index, use the `write_` function of its format instead.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lgp.distance import Metric, check_vectors
from lgp.formats.base import replacing
from lgp.formats.faiss_hnsw import load_faiss
from lgp.formats.hnswlib import HEADER, MAX_COUNT, SPACES
from lgp.formats.pyterrier import to_pyterrier_adaptive
from lgp.graph import Graph, validate

__all__ = ["to_cagra", "to_faiss_hnsw", "to_hnswlib", "to_pyterrier_adaptive"]

INVALID = 0xFFFFFFFF
"""CAGRA's search skips this id (cuVS `search_plan.cuh`), so it pads short rows."""

WRITE_ROWS = 1 << 14


def to_cagra(neighbors: Tensor, path: Path | str | None = None) -> NDArray[np.uint32]:
    """The table `cuvs.neighbors.cagra.from_graph` takes: uint32 [N, R], 0xFFFFFFFF pads.

    Args:
        neighbors: int32 [N, R], rows padded with -1 at the end.
        path: where to save it as .npy, too.
    CAGRA picks random start nodes, so the entry node has no place in it. Padding was read in
    cuVS's source, not tried on a GPU.
    """
    validate(Graph(neighbors, 0))
    rows = neighbors.cpu().numpy()
    table = np.where(rows >= 0, rows, INVALID).astype(np.uint32)
    if path is not None:
        with replacing(Path(path)) as aside, open(aside, "wb") as file:
            np.save(file, table)
    return table


def _connectivity(graph: Graph) -> int:
    """M of an HNSW whose base layer (2M) holds the graph's rows; at least 2: 1 / ln(M) exists."""
    return max(2, (graph.max_degree + 1) // 2)


def _check(graph: Graph, vectors: Tensor) -> None:
    validate(graph)
    check_vectors(vectors, graph.metric)
    if len(vectors) != graph.n:
        raise ValueError(f"{len(vectors)} vectors, {graph.n} nodes; give the graph's own vectors")


def to_faiss_hnsw(graph: Graph, vectors: Tensor) -> Any:
    """A stock `faiss.IndexHNSWFlat` with one layer, the graph's, searched from its entry node.

    Under cosine the metric is inner product (faiss then reports cosines), under squared L2 L2.
    Set `index.hnsw.efSearch` to the search width.

    Args:
        vectors: float32 [N, D]; of length 1 under cosine.
    Raises:
        ValueError: an invalid graph or vectors. ImportError: faiss is missing.
    """
    _check(graph, vectors)
    faiss = load_faiss()
    m = _connectivity(graph)
    metric = faiss.METRIC_INNER_PRODUCT if graph.metric is Metric.cosine else faiss.METRIC_L2
    index = faiss.IndexHNSWFlat(int(vectors.shape[1]), m, metric)
    index.storage.add(np.ascontiguousarray(vectors.cpu().numpy()))
    index.ntotal = graph.n
    slots = np.full((graph.n, 2 * m), -1, np.int32)
    slots[:, : graph.max_degree] = graph.neighbors.cpu().numpy()
    hnsw = index.hnsw
    faiss.copy_array_to_vector(np.ones(graph.n, np.int32), hnsw.levels)
    offsets = np.arange(graph.n + 1, dtype=np.uint64) * np.uint64(2 * m)
    faiss.copy_array_to_vector(offsets, hnsw.offsets)
    faiss.copy_array_to_vector(slots.ravel(), hnsw.neighbors)
    hnsw.entry_point = graph.entry_node
    hnsw.max_level = 0
    return index


def to_hnswlib(
    graph: Graph, vectors: Tensor, labels: Tensor | None, path: Path | str, space: str
) -> None:
    """Write a saved hnswlib index with one layer, the graph's, searched from its entry node.

    Load it with `hnswlib.Index(space, dim).load_index(path)` and set ef, which loading resets.

    Args:
        vectors: float32 [N, D]; of length 1 under "ip" and "cosine".
        labels: int64 [N], all different; None numbers them by node.
        space: "l2", "ip" or "cosine". A graph built under squared L2 goes into "l2" only.
    Raises:
        ValueError: an invalid graph, vectors, labels or space, or rows longer than 65,535.
    """
    _check(graph, vectors)
    if space not in SPACES:
        raise ValueError(f"space={space!r} is not one of {', '.join(SPACES)}")
    if space != "l2" and graph.metric is Metric.l2:
        raise ValueError(f"the graph was built under squared L2, not {space!r}; write space 'l2'")
    if labels is None:
        labels = torch.arange(graph.n)
    if labels.shape != (graph.n,) or len(labels.unique()) != graph.n:
        raise ValueError(
            f"labels of shape {tuple(labels.shape)}, {len(labels.unique())} different; "
            f"[{graph.n}] different ones are needed"
        )
    m, dim = _connectivity(graph), int(vectors.shape[1])
    if 2 * m > MAX_COUNT:
        raise ValueError(f"rows of {2 * m} neighbors; hnswlib counts up to {MAX_COUNT}")
    row = np.dtype(
        [("count", "<u4"), ("ids", "<u4", (2 * m,)), ("vector", "<f4", (dim,)), ("label", "<i8")]
    )
    label_at = 4 + 8 * m + 4 * dim
    header = HEADER.pack(
        0, graph.n, graph.n, row.itemsize, label_at, 4 + 8 * m, 0, graph.entry_node,
        m, 2 * m, m, 1 / math.log(m), 200,
    )  # fmt: skip
    with replacing(Path(path)) as aside, open(aside, "wb") as file:
        file.write(header)
        for start in range(0, graph.n, WRITE_ROWS):
            part = slice(start, start + WRITE_ROWS)
            ids = graph.neighbors[part].cpu().numpy()
            block = np.zeros(len(ids), row)
            block["count"] = (ids >= 0).sum(1)
            block["ids"][:, : graph.max_degree] = np.maximum(ids, 0)
            block["vector"] = vectors[part].cpu().numpy()
            block["label"] = labels[part].cpu().numpy()
            file.write(block.tobytes())
        file.write(bytes(4 * graph.n))  # nobody has upper lists
