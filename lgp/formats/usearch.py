"""usearch's saved index, read and written byte by byte; usearch itself is not needed.

Layout (usearch 2.26 `index_dense.hpp: save_to_stream`, `index.hpp: save_to_stream`; little endian):

    vector matrix: u32 rows, u32 row bytes (or both u64, or no matrix at all), the rows
    64-byte head: "usearch", 3 x u16 version, 4 x u8 kinds (metric, scalar, key, slot),
        u64 present, u64 deleted, u64 dimensions, u8 multi
    5 x u64: size, connectivity, connectivity_base (2x), max_level, entry_slot
    size x i16 levels
    per node: u64 key, i16 level, base list u32 count + connectivity_base x u32 slots,
        per upper layer u32 count + connectivity x u32 slots

Read here: one vector a key; f32, f16 or bf16 vectors, all returned as float32; 64-bit keys, 32-bit
slots; metrics l2sq, cos and ip (ip on unit rows). A removed entry has the key 2^64 - 1. Not held
by the format: expansion widths (they are arguments of the search).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lgp.formats.base import (
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
from lgp.formats.lists import clean_rows, edited_rows, gather_bytes, patch_lists, upper_level
from lgp.hnsw import UpperLevel

MAGIC = b"usearch"
HEAD = struct.Struct("<7s3H4B3QB")
HEAD_BYTES = 64
SHAPE = struct.Struct("<5Q")
WHAT = "an index saved by usearch 2"
FREE_KEY = -1
"""2^64 - 1 read as int64."""

METRICS = {ord("e"): "l2", ord("c"): "cosine", ord("i"): "ip"}
METRIC_NAMES = {
    ord("p"): "pearson", ord("h"): "haversine", ord("d"): "divergence", ord("b"): "hamming",
    ord("t"): "tanimoto", ord("s"): "sorensen", ord("j"): "jaccard",
}  # fmt: skip
SCALARS = {4: "<u2", 11: "<f4", 12: "<f2"}
"""NumPy types; bf16 (usearch's default on many machines) is the upper half of a float32."""
KIND_NAMES = {
    1: "b1", 2: "u40", 3: "uuid", 4: "bf16", 5: "e5m2", 6: "e4m3", 7: "e2m3", 8: "e3m2", 10: "f64",
    11: "f32", 12: "f16", 14: "u64", 15: "u32", 16: "u16", 17: "u8", 20: "i64", 21: "i32",
    22: "i16", 23: "i8",
}  # fmt: skip
U64, U32 = 14, 15


@dataclass(frozen=True)
class Layout:
    """Counts in elements; `matrix_at` and `levels_at` in bytes."""

    n: int
    row_bytes: int
    matrix_at: int
    scalar: str
    metric: str
    connectivity: int
    base_bound: int
    max_level: int
    entry: int
    n_deleted: int
    levels_at: int

    @property
    def base_bytes(self) -> int:
        """Bytes of a node without upper lists."""
        return 10 + 4 + 4 * self.base_bound

    @property
    def layer_bytes(self) -> int:
        return 4 + 4 * self.connectivity


def read_usearch(path: Path | str) -> ForeignIndex:
    """Read a saved usearch index.

    Raises:
        FormatError: not such a file, damaged, hostile, or of a kind that is not read (named).
    Memory: the file twice (its bytes, and the vectors apart), 2.6 times at the peak.
    """
    path = Path(path)
    raw = read_bytes(path, HEAD_BYTES + SHAPE.size, WHAT)
    layout = _read_layout(path, raw)
    n = layout.n
    levels, starts = _place_nodes(path, raw, layout)
    nodes = gather_bytes(raw, starts, layout.base_bytes)
    own = nodes[:, 8:10].copy().view("<i2")[:, 0]
    wrong = np.flatnonzero(own != levels)
    if len(wrong):
        node = int(wrong[0])
        fail(path, f"level of node {node}", int(own[node]), f"the level table has {levels[node]}")
    counts = nodes[:, 10:14].copy().view("<u4")[:, 0]
    ids = nodes[:, 14:].copy().view("<u4")
    neighbors, repaired = clean_rows(path, "neighbor", ids, counts, np.arange(n), n)
    labels = torch.from_numpy(nodes[:, :8].copy().view("<i8")[:, 0])
    deleted = labels == FREE_KEY
    require(int(deleted.sum()) == layout.n_deleted, path, "count_deleted", layout.n_deleted,
            f"{int(deleted.sum())} nodes have the key of a removed entry")  # fmt: skip
    vectors = None
    if layout.row_bytes:
        stored = raw[layout.matrix_at : layout.matrix_at + n * layout.row_bytes].view(layout.scalar)
        if layout.scalar == "<u2":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        vectors = torch.from_numpy(stored.reshape(n, -1).astype(np.float32))
    return ForeignIndex(
        format="usearch",
        neighbors=neighbors,
        entry_node=layout.entry,
        metric=resolve_metric(path, layout.metric, vectors),
        vectors=vectors,
        labels=labels,
        deleted=deleted,
        levels=torch.from_numpy(levels.astype(np.int32)),
        upper=_read_upper(path, raw, layout, levels, starts),
        n_repaired=repaired,
        raw=(raw, starts),
    )


def _find_head(path: Path, raw: Bytes) -> tuple[int, int, int]:
    """(rows, row bytes, offset of the head); 0 rows where there is no matrix."""
    if raw[:7].tobytes() == MAGIC:
        return 0, 0, 0
    tried = []
    for sizes in (struct.Struct("<II"), struct.Struct("<QQ")):
        rows, row_bytes = sizes.unpack(raw[: sizes.size].tobytes())
        at = sizes.size + rows * row_bytes
        if at + HEAD_BYTES + SHAPE.size <= len(raw) and raw[at : at + 7].tobytes() == MAGIC:
            return rows, row_bytes, at
        tried.append(f"{rows} rows of {row_bytes} bytes")
    fail(path, "vector matrix", " or ".join(tried),
         f"no 'usearch' head follows it within the {len(raw)} bytes")  # fmt: skip


def _read_layout(path: Path, raw: Bytes) -> Layout:
    """Check heads and counts against each other and the file's length."""
    rows, row_bytes, at = _find_head(path, raw)
    _, major, minor, patch, metric, scalar, key, slot, present, deleted, dim, multi = HEAD.unpack(
        raw[at : at + HEAD.size].tobytes()
    )
    require(major == 2, path, "version", f"{major}.{minor}.{patch}", "version 2 files are read")
    name = METRIC_NAMES.get(metric, f"unknown ({metric})")
    require(metric in METRICS, path, "metric", name, "l2sq, cos and ip are read")
    name = KIND_NAMES.get(scalar, f"unknown ({scalar})")
    require(scalar in SCALARS, path, "scalar kind", name, "f32, f16 and bf16 are read")
    name = KIND_NAMES.get(key, f"unknown ({key})")
    require(key == U64, path, "key kind", name, "u64 keys are read")
    name = KIND_NAMES.get(slot, f"unknown ({slot})")
    require(slot == U32, path, "slot kind", name, "u32 slots are read")
    require(multi == 0, path, "multi", multi, "one vector a key is read; build with multi=False")
    n, connectivity, bound, max_level, entry = SHAPE.unpack(
        raw[at + HEAD_BYTES : at + HEAD_BYTES + SHAPE.size].tobytes()
    )
    check_count(path, "size", n)
    require(present + deleted == n, path, "count_present + count_deleted", present + deleted,
            f"size is {n}")  # fmt: skip
    levels_at = at + HEAD_BYTES + SHAPE.size
    left = len(raw) - levels_at
    require(1 <= connectivity <= left, path, "connectivity", connectivity, f"1..{left} fit")
    require(1 <= bound <= left, path, "connectivity_base", bound, f"1..{left} fit")
    if at:
        need = dim * np.dtype(SCALARS[scalar]).itemsize
        require(row_bytes == need and dim > 0, path, "row bytes of the matrix", row_bytes,
                f"{dim} dimensions of {KIND_NAMES[scalar]} need {need}")  # fmt: skip
        require(rows == n, path, "rows of the matrix", rows, f"size is {n}")
    layout = Layout(
        n=n, row_bytes=row_bytes, matrix_at=at - n * row_bytes, scalar=SCALARS[scalar],
        metric=METRICS[metric], connectivity=connectivity, base_bound=bound, max_level=max_level,
        entry=entry, n_deleted=deleted, levels_at=levels_at,
    )  # fmt: skip
    require(n * (2 + layout.base_bytes) <= left, path, "size", n,
            f"{left} bytes follow, one node takes {2 + layout.base_bytes}")  # fmt: skip
    return layout


def _place_nodes(path: Path, raw: Bytes, layout: Layout) -> tuple[Ints, Ints]:
    """Levels [N], and the byte each node starts at [N]; the file must end with the last node."""
    end = layout.levels_at + 2 * layout.n
    levels = raw[layout.levels_at : end].copy().view("<i2").astype(np.int64)
    check_levels(path, levels, layout.max_level, layout.entry)
    total = layout.n * layout.base_bytes + int(levels.sum()) * layout.layer_bytes
    require(end + total == len(raw), path, "file length", len(raw),
            f"the level table needs {end + total}")  # fmt: skip
    sizes = layout.base_bytes + levels * layout.layer_bytes
    return levels, end + np.cumsum(sizes) - sizes


def _read_upper(
    path: Path, raw: Bytes, layout: Layout, levels: Ints, starts: Ints
) -> tuple[UpperLevel, ...]:
    upper = []
    for level in range(1, layout.max_level + 1):
        nodes = np.flatnonzero(levels >= level)
        at = starts[nodes] + layout.base_bytes + (level - 1) * layout.layer_bytes
        lists = gather_bytes(raw, at, layout.layer_bytes).view("<u4")  # [n, 1 + M]
        upper.append(upper_level(path, level, nodes, lists[:, 1:], lists[:, 0], levels))
    return tuple(upper)


def write_usearch(index: ForeignIndex, neighbors: Tensor, path: Path | str) -> None:
    """Write the index with another base layer; every other byte is what was read.

    Edited rows get their count and slots; slots behind the count keep their old content, as in
    usearch itself. `path` may be the file that was read.

    Args:
        neighbors: int32 [N, up to connectivity_base], rows padded with -1 at the end.
    Raises:
        ValueError: rows the format cannot hold (see `lgp.formats.lists.edited_rows`).
    """
    rows, changed = edited_rows(index, neighbors)
    raw, starts = index.raw
    with replacing(Path(path)) as aside:
        raw.tofile(aside)
        if len(changed):
            patch_lists(aside, starts[changed] + 10, rows[changed], "<u4", 4)
