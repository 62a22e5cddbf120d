"""A graph as a pyterrier-adaptive corpus graph, so GAR and its kin can walk it.

Out: a folder (pyterrier_adaptive 0.2 `corpus_graph.py: NpTopKCorpusGraph`): `edges.u32.np` uint32
[N, k], `weights.f16.np` float16 [N, k], `docnos.npids`, `pt_meta.json`. Read by the package as it
is; nothing of it is needed here.

docnos.npids (npids 0.1.3 `utils.py`, `codecs/fwd_fixedbytes.py`, `codecs/inv_hash.py`) is a chain
of blocks: u32 type, i64 offset of the next block (-1: last), i64 documents, u32 length of a JSON
text, that text, data. First a magic block; then (type 0) the names as bytes of one length, padded
with NUL; then (type 1) a hash table: u32 [buckets + 1] offsets, u32 [N] document numbers.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lgp.graph import Graph, validate

BLOCK = struct.Struct("<IqqI")
MAGIC = int.from_bytes(b"NPID", "little")
NAMES, LOOKUP = 0, 1
HALF_MAX = 65504.0


def to_pyterrier_adaptive(
    folder: Path | str, neighbors: Tensor, distances: Tensor, docnos: Sequence[str]
) -> None:
    """Write a corpus graph folder.

    Rows are reordered by (distance, id), nearest first, because the package's `to_limit_k` keeps
    the first k columns. Short rows are padded with the document itself at weight 0, as the
    package does.

    Args:
        folder: must not exist; it appears complete or not at all.
        neighbors: int32 [N, R], rows padded with -1 at the end.
        distances: float32 [N, R], D of each edge; anything at padding. Weights are 1 - D (the
            cosine on unit rows), clipped to what float16 holds.
        docnos: N names, all different, none empty.
    Raises:
        ValueError: shapes or names that do not fit, NaN distances, or the folder exists.
    """
    folder = Path(folder)
    validate(Graph(neighbors, 0))
    if distances.shape != neighbors.shape or len(docnos) != len(neighbors):
        raise ValueError(
            f"neighbors {tuple(neighbors.shape)}, distances {tuple(distances.shape)} and "
            f"{len(docnos)} docnos do not fit together; [N, R] twice and N names are needed"
        )
    edges, weights = _nearest_first(neighbors, distances)
    names = _encode(docnos)
    if folder.exists():
        raise ValueError(f"{folder} exists; remove it or give another folder")
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        edges.astype("<u4").tofile(aside / "edges.u32.np")
        weights.astype("<f2").tofile(aside / "weights.f16.np")
        _write_npids(aside / "docnos.npids", names)
        meta = {
            "type": "corpus_graph",
            "format": "np_topk",
            "package_hint": "pyterrier-adaptive",
            "doc_count": len(docnos),
            "k": int(neighbors.shape[1]),
        }
        (aside / "pt_meta.json").write_text(json.dumps(meta))
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _nearest_first(
    neighbors: Tensor, distances: Tensor
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows by (distance, id), padded with the own node at weight 0: [N, R] each."""
    ids = neighbors.cpu().numpy().astype(np.int64)
    used = ids >= 0
    far = np.where(used, distances.cpu().numpy().astype(np.float32), np.inf)
    if np.isnan(far).any():
        row = int(np.isnan(far).any(1).argmax())
        raise ValueError(f"a distance of node {row} is NaN; recompute it from the vectors")
    order = np.lexsort((ids, far), axis=1)
    # A -1 sorts before the ids only among infinite distances, where `used` must lead.
    order = np.take_along_axis(
        order, np.argsort(~np.take_along_axis(used, order, 1), axis=1, kind="stable"), 1
    )
    used = np.take_along_axis(used, order, 1)
    own = np.arange(len(ids))[:, None]
    edges = np.where(used, np.take_along_axis(ids, order, 1), own)
    weights = np.where(used, 1.0 - np.take_along_axis(far, order, 1), 0.0)
    return edges, np.clip(weights, -HALF_MAX, HALF_MAX).astype(np.float32)


def _encode(docnos: Sequence[str]) -> NDArray[np.bytes_]:
    """Names as UTF-8 bytes of one length, NUL padded (ValueError: empty, repeated, with NUL)."""
    encoded = [name.encode() for name in docnos]
    met: set[bytes] = set()
    for row, name in enumerate(encoded):
        if name in met:
            raise ValueError(f"docno {docnos[row]!r} occurs twice; names must differ")
        met.add(name)
        if not name or b"\0" in name:
            raise ValueError(f"docno {row} is {docnos[row]!r}; empty names and NUL cannot be kept")
    return np.array(encoded)


def _write_npids(path: Path, names: NDArray[np.bytes_]) -> None:
    """Magic block, names, hash table."""
    bits = (len(names) - 1).bit_length()
    buckets = _fnv(names) & np.uint32((1 << bits) - 1)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(buckets, minlength=1 << bits))])
    width = names.dtype.itemsize
    blocks: list[tuple[int, int, dict[str, Any], bytes]] = [
        (MAGIC, 0, {"version": 1}, b""),
        (
            NAMES,
            len(names),
            {"format": "fixedbytes", "length": width, "prefix": ""},
            names.tobytes(),
        ),
        (
            LOOKUP,
            len(names),
            {"format": "hash", "hash_bits": bits, "hash_fn": "fnv1_32"},
            offsets.astype("<u4").tobytes()
            + np.argsort(buckets, kind="stable").astype("<u4").tobytes(),
        ),
    ]
    at = 0
    with open(path, "wb") as file:
        for position, (kind, count, config, data) in enumerate(blocks):
            text = json.dumps(config).encode()
            at += BLOCK.size + len(text) + len(data)
            last = position == len(blocks) - 1
            file.write(BLOCK.pack(kind, -1 if last else at, count, len(text)) + text + data)


def _fnv(names: NDArray[np.bytes_]) -> NDArray[np.uint32]:
    """32-bit FNV hashes (xor, then multiply) of the bytes that are not padding, [N]."""
    letters = names.view(np.uint8).reshape(len(names), -1)
    hashes = np.full(len(names), 2166136261, np.uint32)
    for column in letters.T:
        mixed = (hashes ^ column) * np.uint32(16777619)
        hashes = np.where(column != 0, mixed, hashes)
    return hashes
