"""What every foreign index reader returns, and the checks and writes they share.

In: bytes somebody else wrote. Out: a `ForeignIndex` whose base-layer table obeys every invariant
of `lgp.graph.validate`, or a `FormatError`. Sizes are checked against the file's length before
anything is allocated, ids before anything is followed. How a given library lays out its bytes is
the business of one file a format.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lgp.distance import Metric
from lgp.graph import Graph
from lgp.hnsw import UpperLevel

Ints = NDArray[np.integer[Any]]
Bytes = NDArray[np.uint8]

MAX_NODES = 2**31 - 1
"""Ids are int32 here."""

MAX_LEVELS = 255
"""Levels fall off geometrically, so real files have fewer than 30; more would only stall us."""

UNIT_TOLERANCE = 1e-3
"""How far from 1 a row's length may be where inner product has to act as cosine."""


class FormatError(ValueError):
    """A foreign file is damaged, hostile, or of a kind that is not read here."""


def fail(path: Path, name: str, value: object, bound: str) -> NoReturn:
    """Raise a `FormatError` naming the file, the field, its value and what it has to be."""
    raise FormatError(f"{path}: {name} is {value}; {bound}")


def require(ok: bool, path: Path, name: str, value: object, bound: str) -> None:
    """`fail` unless ok."""
    if not ok:
        fail(path, name, value, bound)


@dataclass(frozen=True, eq=False)
class ForeignIndex:
    """Somebody's index: its base-layer graph to refine, and all that is needed to write it back.

    Attributes:
        format: "hnswlib", "usearch", "diskann" or "faiss".
        neighbors: int32 [N, bound], base layer, -1 padded at the end, without self loops and
            repeats. bound is what a row of the file can hold: 2M for HNSW; the longest list, or
            the room asked for, for DiskANN.
        entry_node: internal number of the node where a search starts (HNSW: on the top layer).
        metric: D the graph was built with. Inner product is only accepted on unit rows, where it
            is cosine.
        vectors: float32 [N, D] as stored, values unchecked (`lgp.points.make_points` refuses NaN
            with row numbers); None where the file holds none. Rows may have any length even under
            cosine: see `unit_vectors`.
        labels: int64 [N], the library's public ids (unsigned 64-bit ones keep their bits).
        deleted: bool [N], walked through but never returned by the library.
        levels: int32 [N], 0 = base layer only.
        upper: layers 1, 2, ... of an HNSW; empty for flat graphs.
        n_repaired: self loops and repeats of the file's base lists that `neighbors` leaves out.
            They stay in the file as long as their row is not edited.
        raw: what the writer of this format needs.
    """

    format: str
    neighbors: Tensor
    entry_node: int
    metric: Metric
    vectors: Tensor | None
    labels: Tensor
    deleted: Tensor
    levels: Tensor
    upper: tuple[UpperLevel, ...]
    n_repaired: int
    raw: Any = field(repr=False)

    @property
    def n(self) -> int:
        return int(self.neighbors.shape[0])

    @property
    def bound(self) -> int:
        """How many neighbors a row of the file can hold."""
        return int(self.neighbors.shape[1])

    def graph(self, alpha: float | None = None) -> Graph:
        """The base layer as a `Graph`.

        Args:
            alpha: slack for later reciprocal prunes. No format stores it; the default is 1 for
                HNSW, whose neighbor rule is the prune with alpha 1, and 1.2 for DiskANN.
        """
        if alpha is None:
            alpha = 1.2 if self.format == "diskann" else 1.0
        return Graph(self.neighbors, self.entry_node, self.metric, alpha)

    def unit_vectors(self) -> Tensor:
        """Rows as `metric` compares them, float32 [N, D]: of length 1 under cosine.

        Raises:
            ValueError: the file holds no vectors. A zero row stays zero.
        """
        if self.vectors is None:
            raise ValueError(f"this {self.format} file holds no vectors; read them elsewhere")
        if self.metric is Metric.l2:
            return self.vectors
        length: Tensor = self.vectors.norm(dim=1, keepdim=True)
        return self.vectors / length.clamp_min(1e-30)


def read_bytes(path: Path, least: int, what: str) -> Bytes:
    """A whole file, uint8, read-only (FormatError: not a file, or shorter than its header)."""
    if not path.is_file():
        raise FormatError(f"{path} is not a file; give the path of {what}")
    size = path.stat().st_size
    require(size >= least, path, "file length", size, f"{what} has at least {least} bytes")
    raw = np.fromfile(path, np.uint8)
    raw.flags.writeable = False
    return raw


def check_count(path: Path, name: str, n: int) -> None:
    """Refuse an empty index and more nodes than int32 ids can name."""
    require(1 <= n <= MAX_NODES, path, name, n, f"1..{MAX_NODES} nodes are read here")


def check_levels(path: Path, levels: Ints, max_level: int, entry: int) -> None:
    """Entry node and levels must agree, or the library's descent leaves its own lists.

    Args:
        levels: [N], 0 = base only.
    """
    n = len(levels)
    require(0 <= entry < n, path, "entry node", entry, f"nodes are 0..{n - 1}")
    require(
        0 <= max_level <= MAX_LEVELS, path, "max_level", max_level, f"0..{MAX_LEVELS} are read here"
    )
    low, high = int(levels.min()), int(levels.max())
    require(low >= 0, path, "lowest level of a node", low, "levels start at 0")
    require(high == max_level, path, "highest level of a node", high, f"max_level is {max_level}")
    top = int(levels[entry])
    require(top == max_level, path, "level of the entry node", top, f"max_level is {max_level}")


def resolve_metric(path: Path, name: str, vectors: Tensor | None) -> Metric:
    """The D behind a library's metric name: "l2", "cosine", or "ip" if all rows are unit.

    Raises:
        FormatError: "ip" over rows that are not of length 1, or over no rows at all.
    """
    if name == "l2":
        return Metric.l2
    if name == "ip":
        way_out = "raw inner product is no metric; build the index on normalised vectors"
        if vectors is None:
            fail(path, "metric", "inner product without stored vectors", way_out)
        off = (vectors.norm(dim=1) - 1).abs()
        bad = ~(off <= UNIT_TOLERANCE)  # NaN is bad, too
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            what = f"length of vector {row} under inner product"
            fail(path, what, float(vectors[row].norm()), f"1 within {UNIT_TOLERANCE}: {way_out}")
    return Metric.cosine


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write in place of `path`: renamed over it at the end, removed on an error."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield aside
        with open(aside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
