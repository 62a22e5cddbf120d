"""Finishing tiles of the N x N distance table, compiled: one pass instead of five."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from lgp.kernels.backend import jit, run_ranges

STRIP = 16
"""Columns of a tile done at a time: their mirrored rows are that many streams of writes."""


@jit
def _finish_range(  # type: ignore[no-untyped-def]
    lo, hi, dots, row_squares, column_squares, table, top, left, cosine
):
    height, width = dots.shape
    for s in range(lo, hi):
        for i in range(height):
            start = s * STRIP
            if top == left:
                start = max(start, i + 1)
            for j in range(start, min(width, s * STRIP + STRIP)):
                if cosine:
                    gap = np.float32(1.0) - dots[i, j]
                else:
                    gap = (row_squares[i] + column_squares[j]) - np.float32(2.0) * dots[i, j]
                gap = max(gap, np.float32(0.0))
                table[top + i, left + j] = gap
                table[left + j, top + i] = gap
    if top == left:
        for i in range(lo * STRIP, min(height, hi * STRIP)):
            table[top + i, top + i] = np.float32(0.0)


def finish_tile(
    dots: Tensor, rows: Tensor, columns: Tensor, table: Tensor, top: int, left: int, cosine: bool
) -> None:
    """Write D of a tile and its mirror image into the table.

    Args:
        dots: float32 [H, W], dot products. rows, columns: squared lengths, float32 [H], [W].
        top, left: the tile's place; on the diagonal (top = left) the upper half counts.
    """
    arrays = (dots.numpy(), rows.numpy(), columns.numpy(), table.numpy())
    run_ranges(
        lambda lo, hi: _finish_range(lo, hi, *arrays, top, left, cosine),
        -(-dots.shape[1] // STRIP),
    )
