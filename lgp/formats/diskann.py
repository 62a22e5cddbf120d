"""DiskANN's in-memory index (graph, vectors, metadata, tags); DiskANN itself is not needed.

Layout (microsoft/DiskANN cpp_main `in_mem_graph_store.cpp: save_graph`, `index.cpp: save`,
`utils.h: save_bin`, diskannpy `_builder.py`; little endian), files named by one prefix:

    <prefix>: u64 file size, u32 max observed degree, u32 start, u64 frozen points, then per node
        u32 degree, its u32 ids
    <prefix>.data: i32 points, i32 dim, rows (float32, int8 or uint8)
    <prefix>_metadata.bin: 4 x u64: type (0 float32, 1 int8, 2 uint8), metric (0 l2, 1 mips,
        2 cosine), points, dim; only diskannpy writes it
    <prefix>.tags: i32 points, i32 1, u32 or u64 tags; dynamic indices only
    <prefix>.del: i32 count, i32 1, u32 deleted nodes; only where some are

Frozen points (the start of a dynamic index, its last nodes) are walked through and never
returned, so they count as deleted here; their label is -1. Under cosine the rows of .data are
normalised already. Not held by the format: alpha, the width of the build.
"""

from __future__ import annotations

import shutil
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
    fail,
    read_bytes,
    replacing,
    require,
    resolve_metric,
)
from lgp.formats.lists import changed_rows, checked_rows, clean_rows

HEADER = struct.Struct("<QIIQ")
BIN = struct.Struct("<ii")
METADATA = struct.Struct("<4Q")
TYPES = {"float32": "<f4", "int8": "i1", "uint8": "u1"}
METRICS = {"l2": "l2", "mips": "ip", "cosine": "cosine"}
COMPANIONS = (
    ".data", "_metadata.bin", "_vectors.bin", ".tags", ".del", "_labels.txt", "_labels_map.txt",
    "_labels_to_medoids.txt", "_universal_label.txt",
)  # fmt: skip
TABLE_FACTOR = 16
TABLE_FREE = 64 << 20
"""A table [N, longest list] may take 64 MiB, or 16 times the files: one absurdly long list in a
small file would else ask for terabytes. The longest list of a real graph is a few times its mean.
"""


@dataclass(frozen=True)
class Raw:
    """What the writer needs: the graph file, where each node's list lies, whose files they are."""

    prefix: Path
    graph: Bytes
    starts: Ints
    degrees: Ints
    max_degree: int


def read_diskann(
    prefix: Path | str,
    metric: str | None = None,
    dtype: str | None = None,
    dim: int | None = None,
    max_degree: int | None = None,
) -> ForeignIndex:
    """Read an in-memory DiskANN index by its prefix (the path of the graph file).

    Args:
        metric: "l2", "mips" or "cosine". dtype: "float32", "int8" or "uint8". Both, and dim, are
            needed where there is no metadata file, and checked against it where there is one.
            "mips" needs stored rows of length 1.
        max_degree: room for appended edges: `neighbors` gets this many columns at least. Default:
            the file's longest list.
    Returns:
        An index without upper layers; int8 and uint8 vectors are converted to float32.
    Raises:
        FormatError: not such files, damaged, hostile, or disagreeing with each other.
        ValueError: an argument is missing or unknown.
    """
    prefix = Path(prefix)
    raw = read_bytes(prefix, HEADER.size, "a DiskANN in-memory graph")
    metric, dtype, dim, n_points = _read_metadata(prefix, metric, dtype, dim)
    vectors = _read_data(prefix, dtype, dim)
    n = len(vectors)
    size, header_degree, start, n_frozen = HEADER.unpack(raw[: HEADER.size].tobytes())
    require(size == len(raw), prefix, "file size in the header", size, f"{len(raw)} bytes are here")
    require(len(raw) % 4 == 0, prefix, "file length", size, "it is made of 4-byte words")
    require(start < n, prefix, "start", start, f"nodes are 0..{n - 1}")
    require(n_frozen < n, prefix, "frozen points", n_frozen, f"there are {n} points in all")
    if n_points not in (None, n, n - n_frozen):
        path = _beside(prefix, "_metadata.bin")
        fail(path, "points", n_points, f"there are {n} vectors, {n_frozen} of them frozen")
    starts, degrees = _place_lists(prefix, raw, n)
    longest = int(degrees.max())
    require(longest <= header_degree, prefix, "max observed degree", header_degree,
            f"node {int(degrees.argmax())} has {longest} neighbors")  # fmt: skip
    require(longest <= n, prefix, "longest list", longest, f"there are {n} nodes to point at")
    width = max(longest, max_degree or 1, 1)
    allowed = TABLE_FREE + TABLE_FACTOR * (len(raw) + vectors.numel() * 4)
    require(4 * n * width <= allowed, prefix, "max_degree", width,
            f"a table of {n} rows may take {allowed} bytes for these files")  # fmt: skip
    words = raw[HEADER.size :].view("<u4")
    table = np.zeros((n, width), np.uint32)
    for slot in range(longest):
        has = np.flatnonzero(degrees > slot)
        table[has, slot] = words[starts[has] + 1 + slot]
    neighbors, repaired = clean_rows(prefix, "neighbor", table, degrees, np.arange(n), n)
    deleted = _read_deleted(prefix, n)
    deleted[n - n_frozen :] = True
    labels = _read_tags(prefix, n)
    labels[n - n_frozen :] = -1
    return ForeignIndex(
        format="diskann",
        neighbors=neighbors,
        entry_node=start,
        metric=resolve_metric(prefix, METRICS[metric], vectors),
        vectors=vectors,
        labels=labels,
        deleted=deleted,
        levels=torch.zeros(n, dtype=torch.int32),
        upper=(),
        n_repaired=repaired,
        raw=Raw(prefix, raw, starts, degrees, header_degree),
    )


def _beside(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)


def _read_metadata(
    prefix: Path, metric: str | None, dtype: str | None, dim: int | None
) -> tuple[str, str, int, int | None]:
    """Metric, type, dimension and points: from the metadata file, else from the caller (None)."""
    path = _beside(prefix, "_metadata.bin")
    for name, value, known in (("metric", metric, METRICS), ("dtype", dtype, TYPES)):
        if value is not None and value not in known:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(known)}")
    if not path.is_file():
        if metric is None or dtype is None or dim is None:
            raise ValueError(
                f"{path} is missing, so metric ({', '.join(METRICS)}), dtype ({', '.join(TYPES)}) "
                f"and dim must be given; got metric={metric}, dtype={dtype}, dim={dim}"
            )
        return metric, dtype, dim, None
    raw = read_bytes(path, METADATA.size, "DiskANN metadata")
    require(len(raw) == METADATA.size, path, "file length", len(raw), f"{METADATA.size} bytes")
    type_id, metric_id, n_points, stored_dim = METADATA.unpack(raw.tobytes())
    require(type_id < len(TYPES), path, "type", type_id, "0 float32, 1 int8, 2 uint8")
    require(metric_id < len(METRICS), path, "metric", metric_id, "0 l2, 1 mips, 2 cosine")
    stored = list(METRICS)[metric_id], list(TYPES)[type_id], stored_dim
    for name, have, given in zip(("metric", "dtype", "dim"), stored, (metric, dtype, dim),
                                 strict=True):  # fmt: skip
        require(given is None or given == have, path, name, have, f"{given} was asked for")
    return *stored, n_points


def _read_bin(path: Path, what: str, item: int | None, columns: int) -> tuple[int, Bytes]:
    """A `save_bin` file of that many columns: rows, and the bytes behind its header."""
    raw = read_bytes(path, BIN.size, what)
    rows, width = BIN.unpack(raw[: BIN.size].tobytes())
    require(0 <= rows <= MAX_NODES, path, "rows", rows, f"0..{MAX_NODES} are read here")
    require(width == columns, path, "columns", width, f"{columns} expected")
    if item is not None:
        need = BIN.size + rows * width * item
        require(len(raw) == need, path, "file length", len(raw),
                f"{rows} x {width} values of {item} bytes need {need}")  # fmt: skip
    return rows, raw[BIN.size :]


def _read_data(prefix: Path, dtype: str, dim: int) -> Tensor:
    """Vectors, float32 [N, D]."""
    path = _beside(prefix, ".data")
    require(1 <= dim <= MAX_NODES, path, "dim", dim, f"1..{MAX_NODES}")
    kind = np.dtype(TYPES[dtype])
    rows, body = _read_bin(path, "DiskANN vectors", kind.itemsize, dim)
    check_count(path, "points", rows)
    return torch.from_numpy(body.view(kind).reshape(rows, dim).astype(np.float32))


def _place_lists(path: Path, raw: Bytes, n: int) -> tuple[Ints, Ints]:
    """Where each list's count lies (in words behind the header) and how long the list is."""
    left = len(raw) - HEADER.size
    require(4 * n <= left, path, "file length", len(raw), f"{n} lists need {24 + 4 * n} at least")
    words = raw[HEADER.size :].view("<u4").astype(np.uint32, copy=False).data
    starts = np.empty(n, np.int64)
    at = 0
    for node in range(n):
        if at >= len(words):
            fail(path, "file length", len(raw), f"it ends before the list of node {node} of {n}")
        starts[node] = at
        degree = words[at]
        at += 1 + degree
        if at > len(words):
            fail(path, f"degree of node {node}", degree, f"the file ends {at - len(words)} short")
    require(at == len(words), path, "file length", len(raw), f"{n} lists end at {24 + 4 * at}")
    ends = np.append(starts[1:], at)
    return starts, ends - starts - 1


def _read_tags(prefix: Path, n: int) -> Tensor:
    """Public ids, int64 [N]: the tags, else the node numbers."""
    path = _beside(prefix, ".tags")
    if not path.is_file():
        return torch.arange(n)
    rows, body = _read_bin(path, "DiskANN tags", None, 1)
    require(rows == n, path, "tags", rows, f"the index has {n} points")
    if len(body) == 8 * n:
        return torch.from_numpy(body.view("<i8").astype(np.int64))
    require(len(body) == 4 * n, path, "bytes of tags", len(body), f"{4 * n} or {8 * n} expected")
    return torch.from_numpy(body.view("<u4").astype(np.int64))


def _read_deleted(prefix: Path, n: int) -> Tensor:
    """bool [N]: the nodes of the delete list, where there is one."""
    deleted = torch.zeros(n, dtype=torch.bool)
    path = _beside(prefix, ".del")
    if path.is_file():
        _, body = _read_bin(path, "a DiskANN delete list", 4, 1)
        nodes = body.view("<u4").astype(np.int64)
        high = int(nodes.max(initial=0))
        require(high < n, path, "deleted node", high, f"nodes are 0..{n - 1}")
        deleted[torch.from_numpy(nodes)] = True
    return deleted


def write_diskann(index: ForeignIndex, neighbors: Tensor, prefix: Path | str) -> None:
    """Write the graph file with other lists; unedited ones keep their bytes.

    Where `prefix` is not the one that was read, the other files of the index are copied beside
    it first. Each file is replaced whole, the graph last.

    Args:
        neighbors: int32 [N, any width], rows padded with -1 at the end: lists have no bound in
            this format. The header's degree is raised where a list is longer.
    Raises:
        ValueError: ids out of range, self loops, repeats, gaps. FormatError: files that were
            read are gone.
    """
    prefix, raw = Path(prefix), index.raw
    assert isinstance(raw, Raw)
    rows = checked_rows(index, neighbors)
    changed = changed_rows(index, rows)
    degrees = raw.degrees.copy()
    degrees[changed] = (rows[changed] >= 0).sum(1)
    longest = max(raw.max_degree, int(degrees.max()))
    size = HEADER.size + 4 * int((degrees + 1).sum())
    old = HEADER.unpack(raw.graph[: HEADER.size].tobytes())
    if prefix.resolve() != raw.prefix.resolve():
        copy_companions(raw.prefix, prefix)
    with replacing(prefix) as aside, open(aside, "wb") as file:
        file.write(HEADER.pack(size, longest, *old[2:]))
        written = HEADER.size
        for node in changed.tolist():
            begin = HEADER.size + 4 * int(raw.starts[node])
            file.write(raw.graph[written:begin].data)
            file.write(degrees[node : node + 1].astype("<u4").tobytes())
            file.write(rows[node, : degrees[node]].astype("<u4").tobytes())
            written = begin + 4 + 4 * int(raw.degrees[node])
        file.write(raw.graph[written:].data)


def list_cuts(index: ForeignIndex) -> Ints:
    """Byte offsets that part the graph file: 0 (the header), then each node's list, [N + 1]."""
    return np.concatenate([[0], HEADER.size + 4 * index.raw.starts])


def companions(prefix: Path) -> list[Path]:
    """Where the files beside a graph file would lie."""
    return [_beside(prefix, suffix) for suffix in COMPANIONS]


def copy_companions(source: Path, target: Path) -> None:
    """Copy the files that stand beside a graph file, and drop stale ones at the target."""
    for suffix in COMPANIONS:
        have, there = _beside(source, suffix), _beside(target, suffix)
        if have.is_file():
            with replacing(there) as aside:
                shutil.copyfile(have, aside)
        elif suffix == ".data":
            fail(have, "vectors", "gone", "they were read from here and are part of the index")
        else:
            there.unlink(missing_ok=True)  # of an older index under this name: not ours
