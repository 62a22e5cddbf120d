"""Make `Points` ready to build on: checked, with duplicate classes, and a table where it pays.

In: float32 vectors. Out: `lgp.distance.Points`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lgp import kernels
from lgp.distance import (
    GIB,
    Metric,
    Points,
    check_vectors,
    duplicate_classes,
    mean_vector,
    row_blocks,
)

CPU_TABLE_NODES = 20_000
"""Above this a table's GEMM costs a CPU more than the distances a build looks up in it."""


def make_points(
    vectors: Tensor,
    metric: Metric = Metric.cosine,
    table_bytes: int = 2 * GIB,
    in_memory: bool = True,
) -> Points:
    """Check vectors, find duplicate rows, and lay down the N x N table where it fits.

    Args:
        vectors: float32 [N, D]; rows of length 1 (within 1e-3) under cosine.
        table_bytes: the table is made when 4 * N * N stays within this many bytes (and, on the
            CPU, N within `CPU_TABLE_NODES`).
        in_memory: False leaves vectors where they are (a memory-mapped file); under L2 they are
            then not moved to the origin, so keep their lengths near the distances that matter.
    Raises:
        ValueError: wrong shape or dtype, NaN or inf (row numbers), zero or non-unit rows.
    """
    check_vectors(vectors, metric)
    vectors, origin = huge_pages(vectors) if in_memory else vectors.contiguous(), None
    classes = duplicate_classes(vectors)
    if metric is Metric.l2 and in_memory:
        # |a|^2 + |b|^2 - 2ab cancels far from the origin; whole numbers keep integer data exact.
        origin = mean_vector(vectors).round().float()
        vectors -= origin
    points = Points(vectors, metric, classes, None, origin)
    too_many = vectors.device.type == "cpu" and points.n > CPU_TABLE_NODES
    if too_many or 4 * points.n * points.n > table_bytes:
        return points
    table = fill_table(points)
    return Points(vectors, metric, classes, table, origin)


def huge_pages(values: Tensor) -> Tensor:
    """A contiguous copy that, on the CPU, NumPy allocates: it asks for huge pages, torch does not.

    Walks and prunes read scattered rows; with 4 KiB pages most reads also miss the TLB.
    """
    if values.device.type != "cpu":
        return values.contiguous().clone()
    copy = np.empty(tuple(values.shape), np.float32)
    torch.from_numpy(copy).copy_(values)
    return torch.from_numpy(copy)


TILE = 1024


def fill_table(points: Points) -> Tensor:
    """All D(i, j), float32 [N, N], exactly symmetric: each tile is computed once and mirrored."""
    n, device = points.n, points.device
    if device.type == "cpu":
        table = torch.from_numpy(np.empty((n, n), np.float32))  # huge pages, see above
    else:
        table = torch.empty(n, n, device=device)
    cosine = points.metric is Metric.cosine
    squares = points.vectors.square().sum(1)
    for top in range(0, n, TILE):
        rows = slice(top, min(n, top + TILE))
        for left in range(top, n, TILE):
            columns = slice(left, min(n, left + TILE))
            dots = points.vectors[rows] @ points.vectors[columns].T
            if kernels.usable(dots):
                kernels.finish_tile(dots, squares[rows], squares[columns], table, top, left, cosine)
                continue
            lengths = squares[rows].unsqueeze(1) + squares[columns]
            tile = (1.0 - dots if cosine else lengths - 2.0 * dots).clamp_min_(0.0)
            if left == top:
                tile = tile.triu(1)
                tile += tile.T.clone()
            table[rows, columns] = tile
            table[columns, rows] = tile.T
    if points.duplicate_class is not None:
        for block in row_blocks(n, n):
            classes = points.duplicate_class[block]
            table[block].masked_fill_(classes.unsqueeze(1) == points.duplicate_class, 0.0)
    return table
