"""HNSW indices of faiss, read and written through faiss's own vector helpers.

Read here: IndexHNSWFlat and IndexHNSWSQ, alone or inside IndexIDMap or IndexIDMap2. faiss
allocates what a file's size fields ask for, so `lgp.formats.faiss_layout` checks those against
the file's length first. Layout facts (faiss 1.15 `impl/HNSW.h`): levels count from 1; node i's
slots begin at offsets[i], layer l's at + cum_nneighbor_per_level[l]; a list ends at its first -1.
Not held by the format: deletions (HNSW has none in faiss), metadata.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgp.formats.base import (
    MAX_LEVELS,
    ForeignIndex,
    FormatError,
    Ints,
    check_count,
    check_levels,
    fail,
    replacing,
    require,
    resolve_metric,
)
from lgp.formats.faiss_layout import check_layout
from lgp.formats.lists import clean_rows, edited_rows, upper_level

IN_MEMORY = Path("<faiss index>")
"""Stands for the file in errors about an index that came as an object."""


def load_faiss() -> Any:
    """The faiss module (ImportError naming the extra that brings it)."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError("faiss is not installed: pip install 'lgp[faiss]'") from error
    return faiss


def read_faiss(source: Path | str | Any) -> ForeignIndex:
    """Read a faiss HNSW index.

    Args:
        source: a file written by `faiss.write_index`, or an index in memory. It is not changed.
    Returns:
        An index whose vectors are what faiss compares with: decoded ones for IndexHNSWSQ.
    Raises:
        FormatError: damaged, hostile, another index type (named), another metric, inner product
            over rows that are not of length 1.
        ImportError: faiss is missing.
    """
    faiss = load_faiss()
    path, index = IN_MEMORY, source
    if isinstance(source, Path | str):
        path = Path(source)
        check_layout(path)
        try:
            index = faiss.read_index(str(path))
        except (RuntimeError, MemoryError) as error:
            raise FormatError(f"{path}: faiss refuses it: {error}") from error
    inner, labels = _unwrap(path, faiss, index)
    n = int(inner.ntotal)
    check_count(path, "ntotal", n)
    levels, offsets, cum, ids = _graph_arrays(path, faiss, inner, n)
    bound = int(cum[1])
    lists = ids[offsets[:-1, None] + np.arange(bound)]  # [N, 2M]
    neighbors, repaired = clean_rows(path, "neighbor", lists, _lengths(lists), np.arange(n), n)
    upper = []
    for level in range(1, int(levels.max()) + 1):
        nodes = np.flatnonzero(levels >= level)
        slots = np.arange(int(cum[level]), int(cum[level + 1]))
        lists = ids[offsets[nodes, None] + slots]
        upper.append(upper_level(path, level, nodes, lists, _lengths(lists), levels))
    names = {faiss.METRIC_L2: "l2", faiss.METRIC_INNER_PRODUCT: "ip"}
    require(inner.metric_type in names, path, "metric", inner.metric_type, "L2 (1) or inner "
            "product (0)")  # fmt: skip
    vectors = torch.from_numpy(np.array(inner.storage.reconstruct_n(0, n), np.float32))
    return ForeignIndex(
        format="faiss",
        neighbors=neighbors,
        entry_node=int(inner.hnsw.entry_point),
        metric=resolve_metric(path, names[inner.metric_type], vectors),
        vectors=vectors,
        labels=labels,
        deleted=torch.zeros(n, dtype=torch.bool),
        levels=torch.from_numpy(levels.astype(np.int32)),
        upper=tuple(upper),
        n_repaired=repaired,
        raw=index,
    )


def _unwrap(path: Path, faiss: Any, index: Any) -> tuple[Any, Tensor]:
    """The HNSW inside, and its labels int64 [N]."""
    index = faiss.downcast_index(index)
    labels = None
    if type(index) in (faiss.IndexIDMap, faiss.IndexIDMap2):
        labels = torch.from_numpy(faiss.vector_to_array(index.id_map).astype(np.int64))
        index = faiss.downcast_index(index.index)
    known = "IndexHNSWFlat and IndexHNSWSQ are read, alone or in IndexIDMap or IndexIDMap2"
    if type(index) not in (faiss.IndexHNSWFlat, faiss.IndexHNSWSQ):
        fail(path, "index type", type(index).__name__, known)
    if labels is None:
        labels = torch.arange(int(index.ntotal))
    n = int(index.ntotal)
    require(len(labels) == n, path, "entries of the id map", len(labels), f"ntotal is {n}")
    stored = int(index.storage.ntotal)
    require(stored == n, path, "vectors in the storage", stored, f"ntotal is {n}")
    return index, labels


def _graph_arrays(path: Path, faiss: Any, inner: Any, n: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Checked arrays: levels (0 = base) [N], offsets [N + 1], slots per level, all slots."""
    hnsw = inner.hnsw
    if not getattr(hnsw.neighbors, "is_owned", True):
        fail(path, "neighbors", "a memory map", "load the index without IO_FLAG_MMAP_IFC")
    levels = faiss.vector_to_array(hnsw.levels).astype(np.int64) - 1
    # uint64 would turn into float64 with the next signed operand, and floats do not index.
    offsets = faiss.vector_to_array(hnsw.offsets).astype(np.int64)
    cum = faiss.vector_to_array(hnsw.cum_nneighbor_per_level).astype(np.int64)
    ids = faiss.vector_to_array(hnsw.neighbors)
    require(len(levels) == n, path, "levels", len(levels), f"ntotal is {n}")
    require(len(offsets) == n + 1, path, "offsets", len(offsets), f"ntotal + 1 is {n + 1}")
    check_levels(path, levels, int(hnsw.max_level), int(hnsw.entry_point))
    high = int(levels.max())
    require(high + 2 <= len(cum) <= MAX_LEVELS + 2, path, "cum_nneighbor_per_level", len(cum),
            f"{high + 2}..{MAX_LEVELS + 2} entries for the highest level {high}")  # fmt: skip
    rising = bool(cum[0] == 0 and cum[1] > 0 and (np.diff(cum[: high + 2]) >= 0).all())
    require(rising, path, "cum_nneighbor_per_level", cum[: high + 2].tolist(), "rising from 0")
    fits = bool(offsets[0] == 0 and (np.diff(offsets) == cum[levels + 1]).all())
    require(fits, path, "offsets", "not what the levels need", "slots of each level, summed")
    require(int(offsets[-1]) == len(ids), path, "neighbor slots", len(ids),
            f"the offsets end at {int(offsets[-1])}")  # fmt: skip
    return levels, offsets, cum, ids


def _lengths(lists: Ints) -> Ints:
    """Entries before the first -1, [A]: what lies behind it is not read by faiss."""
    ended = lists == -1
    lengths: Ints = np.where(ended.any(1), ended.argmax(1), lists.shape[1])
    return lengths


def write_faiss(index: ForeignIndex, neighbors: Tensor, path: Path | str) -> None:
    """Write the index with another base layer through `faiss.write_index`.

    The rest is what faiss itself writes for the index that was read: byte-identical for files of
    the installed version. Edited rows are padded with -1.

    Args:
        neighbors: int32 [N, up to 2M], rows padded with -1 at the end.
    Raises:
        ValueError: rows the format cannot hold (see `lgp.formats.lists.edited_rows`), or an
            in-memory index that has grown since it was read.
    """
    faiss = load_faiss()
    rows, changed = edited_rows(index, neighbors)
    clone = faiss.clone_index(index.raw)
    inner, _ = _unwrap(Path(path), faiss, clone)
    if int(inner.ntotal) != index.n:
        raise ValueError(f"the index holds {inner.ntotal} vectors, {index.n} were read: read again")
    ids = faiss.vector_to_array(inner.hnsw.neighbors)
    offsets = faiss.vector_to_array(inner.hnsw.offsets).astype(np.int64)
    slots = np.full((len(changed), index.bound), -1, np.int32)
    slots[:, : rows.shape[1]] = rows[changed]
    ids[offsets[changed, None] + np.arange(index.bound)] = slots
    faiss.copy_array_to_vector(ids, inner.hnsw.neighbors)
    with replacing(Path(path)) as aside:
        faiss.write_index(clone, str(aside))
