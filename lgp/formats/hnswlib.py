"""hnswlib's saved index, read and written byte by byte; hnswlib itself is not needed.

Layout (hnswlib 0.8 `hnswalg.h: saveIndex`; no magic, little endian):

    96-byte header: u64 offsetLevel0, max_elements, cur_element_count, size_data_per_element,
        label_offset, offsetData; i32 maxlevel; u32 enterpoint; u64 maxM, maxM0, M; f64 mult;
        u64 ef_construction
    cur_element_count rows: u16 count, u8 delete mark (bit 0), u8 unused, maxM0 x u32 ids,
        vector, u64 label
    per element: u32 bytes of its upper lists, then per layer u32 count (low half), maxM x u32 ids

Space and dimension are not in the file. Not held by the format: distances between neighbors,
metadata, the random state.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lgp.formats.base import (
    MAX_NODES,
    Bytes,
    ForeignIndex,
    Ints,
    check_count,
    check_levels,
    fail,
    read_bytes,
    replacing,
    require,
    resolve_metric,
)
from lgp.formats.lists import clean_rows, edited_rows, patch_lists, upper_level
from lgp.hnsw import UpperLevel

HEADER = struct.Struct("<QQQQQQiIQQQdQ")
SPACES = ("l2", "ip", "cosine")
WHAT = "an index saved by hnswlib"
MAX_COUNT = 65535
"""A list's count is a u16."""


@dataclass(frozen=True)
class Layout:
    """The header fields that place everything else."""

    n: int
    row_bytes: int
    connectivity: int
    base_bound: int
    max_level: int
    entry: int


def read_hnswlib(
    path: Path | str, space: str | None = None, dim: int | None = None
) -> ForeignIndex:
    """Read a saved hnswlib index.

    Args:
        space: "l2", "ip" or "cosine", as given to `hnswlib.Index`; the file does not say.
            "ip" needs stored rows of length 1.
        dim: the vectors' dimension, checked against the file's row size.
    Raises:
        FormatError: not such a file, damaged, hostile, or of another dimension.
        ValueError: space or dim is missing or unknown.
    Memory: the file twice (its bytes, and the vectors apart), 2.6 times at the peak.
    """
    path = Path(path)
    raw = read_bytes(path, HEADER.size, WHAT)
    if space not in SPACES or dim is None or dim < 1:
        raise ValueError(
            f"space={space!r}, dim={dim}: hnswlib files hold neither; give dim, and space as one "
            f"of {', '.join(SPACES)}, as they were given to hnswlib.Index"
        )
    layout = _read_header(path, raw, dim)
    n, bound = layout.n, layout.base_bound
    end = HEADER.size + n * layout.row_bytes
    rows = raw[HEADER.size : end].reshape(n, layout.row_bytes)
    head = np.ascontiguousarray(rows[:, : 4 + 4 * bound])
    counts = head[:, :2].copy().view("<u2")[:, 0]
    ids = head[:, 4:].copy().view("<u4")
    neighbors, repaired = clean_rows(path, "neighbor", ids, counts, np.arange(n), n)
    start = 4 + 4 * bound
    vectors = torch.from_numpy(rows[:, start : start + 4 * dim].copy().view("<f4"))
    labels = torch.from_numpy(rows[:, -8:].copy().view("<i8")[:, 0])
    levels, upper = _read_upper(path, raw[end:], layout)
    return ForeignIndex(
        format="hnswlib",
        neighbors=neighbors,
        entry_node=layout.entry,
        metric=resolve_metric(path, space, vectors),
        vectors=vectors,
        labels=labels,
        deleted=torch.from_numpy((head[:, 2] & 1).astype(bool)),
        levels=torch.from_numpy(levels.astype(np.int32)),
        upper=upper,
        n_repaired=repaired,
        raw=(raw, layout.row_bytes),
    )


def _read_header(path: Path, raw: Bytes, dim: int) -> Layout:
    """Check the header against itself, the dimension and the file's length."""
    (
        offset, capacity, n, row_bytes, label_at, data_at, max_level, entry,
        connectivity, bound, m, mult, _,
    ) = HEADER.unpack(raw[: HEADER.size].tobytes())  # fmt: skip
    require(offset == 0, path, "offsetLevel0", offset, f"{WHAT} has 0: another kind of file?")
    check_count(path, "cur_element_count", n)
    # The library allocates by this one, whatever it then loads.
    fits = n <= capacity <= MAX_NODES
    require(fits, path, "max_elements", capacity, f"{n} (cur_element_count)..{MAX_NODES}")
    require(1 <= bound <= MAX_COUNT, path, "maxM0", bound, f"1..{MAX_COUNT} are possible")
    require(1 <= connectivity <= MAX_COUNT, path, "maxM", connectivity, f"1..{MAX_COUNT} possible")
    require(m == connectivity, path, "M", m, f"maxM is {connectivity}")
    require(bool(np.isfinite(mult)), path, "mult", mult, "a finite number is needed")
    require(data_at == 4 + 4 * bound, path, "offsetData", data_at, f"maxM0 {bound} needs "
            f"{4 + 4 * bound}")  # fmt: skip
    require(label_at + 8 == row_bytes, path, "size_data_per_element", row_bytes,
            f"label_offset {label_at} + 8 is needed")  # fmt: skip
    require(label_at == data_at + 4 * dim, path, "bytes of a vector", label_at - data_at,
            f"dim={dim} of float32 needs {4 * dim}")  # fmt: skip
    left = len(raw) - HEADER.size
    # Each element has a row and at least an empty word for its upper lists.
    require(n * (row_bytes + 4) <= left, path, "cur_element_count", n,
            f"{left} bytes follow the header, one element takes {row_bytes + 4}")  # fmt: skip
    require(left % 4 == 0, path, "file length", len(raw), "it is made of 4-byte words")
    return Layout(n, row_bytes, connectivity, bound, max_level, entry)


def _read_upper(path: Path, tail: Bytes, layout: Layout) -> tuple[Ints, tuple[UpperLevel, ...]]:
    """Levels [N] and the layers above the base; the tail must be used up exactly."""
    words = tail.view("<u4").astype(np.uint32, copy=False)
    view = words.data
    per_layer = layout.connectivity + 1
    levels = np.zeros(layout.n, np.int64)
    starts = np.zeros(layout.n, np.int64)
    at = 0
    for node in range(layout.n):
        if at >= len(view):
            fail(path, "bytes of upper lists", len(tail), f"they end before node {node}")
        size = view[at]
        at += 1
        if size:
            level, rest = divmod(size, 4 * per_layer)
            if rest or at + level * per_layer > len(view):
                fail(path, f"linkListSize of node {node}", size,
                     f"a multiple of {4 * per_layer}, at most the {4 * (len(view) - at)} bytes left"
                     )  # fmt: skip
            levels[node], starts[node] = level, at
            at += level * per_layer
    require(at == len(view), path, "file length", f"{4 * (len(view) - at)} bytes too long",
            "nothing follows the last upper list")  # fmt: skip
    check_levels(path, levels, layout.max_level, layout.entry)
    upper = []
    for level in range(1, layout.max_level + 1):
        nodes = np.flatnonzero(levels >= level)
        at_lists = starts[nodes] + (level - 1) * per_layer
        lists = words[at_lists[:, None] + np.arange(per_layer)]  # [n, 1 + M]
        counts = lists[:, 0] & 0xFFFF
        upper.append(upper_level(path, level, nodes, lists[:, 1:], counts, levels))
    return levels, tuple(upper)


def write_hnswlib(index: ForeignIndex, neighbors: Tensor, path: Path | str) -> None:
    """Write the index with another base layer; every other byte is what was read.

    Edited rows get their count and ids; slots behind the count keep their old content, as in
    hnswlib itself. `path` may be the file that was read.

    Args:
        neighbors: int32 [N, up to 2M], rows padded with -1 at the end.
    Raises:
        ValueError: rows the format cannot hold (see `lgp.formats.lists.edited_rows`).
    """
    rows, changed = edited_rows(index, neighbors)
    raw, row_bytes = index.raw
    with replacing(Path(path)) as aside:
        raw.tofile(aside)
        if len(changed):
            patch_lists(aside, HEADER.size + changed * row_bytes, rows[changed], "<u2", 4)
