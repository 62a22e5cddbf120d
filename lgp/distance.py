"""The only definition of D(., .), exact nearest neighbors, and the order that breaks ties.

In: float32 vectors. Out: distances, and ids ordered by (distance, id). Graphs are left out.
D is 1 - cosine on unit rows, or squared L2, clamped at 0. Bit-equal rows have D = 0 by
definition: they are recognised by a duplicate class id, never by arithmetic, because float32
dot products of equal unit rows come out anywhere within 1e-7 of 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from lgp.vectors import refuse_rows

KEY_MAX = torch.iinfo(torch.int64).max
"""Sorts after every (distance, node) key; marks an empty place."""

GIB = 1 << 30


class Metric(Enum):
    """Which D the graph is built and searched with."""

    cosine = "cosine"
    l2 = "l2"


def order_key(distance: Tensor, node: Tensor) -> Tensor:
    """Pack (distance, node) into one int64 that sorts by distance, ties by node.

    Works because the bits of non-negative float32 numbers grow with their value.

    Args:
        distance: float32 >= 0, any shape.
        node: integer ids >= 0, same shape.
    """
    return (distance.contiguous().view(torch.int32).to(torch.int64) << 32) | node.to(torch.int64)


def key_node(key: Tensor) -> Tensor:
    """int64 node ids of the keys; -1 where the key is `KEY_MAX`."""
    return torch.where(key == KEY_MAX, -1, key & 0xFFFFFFFF)


def key_distance(key: Tensor) -> Tensor:
    """float32 distances of the keys; +inf where the key is `KEY_MAX`."""
    distance = (key >> 32).to(torch.int32).view(torch.float32)
    return torch.where(key == KEY_MAX, torch.inf, distance)


@dataclass(frozen=True)
class Points:
    """The indexed vectors with everything D needs.

    Attributes:
        vectors: float32 [N, D]; unit rows under `Metric.cosine`.
        duplicate_class: int32 [N], equal for bit-equal rows; None when all rows differ.
        table: all D(i, j), float32 [N, N], where memory allows; None means compute on demand.
        origin: float32 [D], what was subtracted from the vectors under L2; None = nothing.
    """

    vectors: Tensor
    metric: Metric = Metric.cosine
    duplicate_class: Tensor | None = None
    table: Tensor | None = None
    origin: Tensor | None = None

    @property
    def n(self) -> int:
        return int(self.vectors.shape[0])

    @property
    def device(self) -> torch.device:
        return self.vectors.device

    def between(self, a: Tensor, b: Tensor) -> Tensor:
        """D between two lists of nodes per row: ids [B, X] and [B, Y] -> float32 [B, X, Y].

        Negative (padding) ids give the distances of node 0: mask them.
        """
        a, b = a.clamp_min(0).long(), b.clamp_min(0).long()
        if self.table is not None:
            return self.table[a.unsqueeze(2), b.unsqueeze(1)]
        out = _distance_matmul(self.metric, self.vectors[a], self.vectors[b])
        return out.masked_fill(self.same(a.unsqueeze(2), b.unsqueeze(1)), 0.0)

    def same(self, a: Tensor, b: Tensor) -> Tensor:
        """Whether nodes are bit-equal rows (broadcast ids -> bool); a node equals itself."""
        if self.duplicate_class is None:
            return a == b
        return (
            self.duplicate_class[a.clamp_min(0).long()]
            == (self.duplicate_class[b.clamp_min(0).long()])
        )

    def rows(self, nodes: Tensor) -> Tensor:
        """D from some nodes to all nodes: int ids [B] -> float32 [B, N]."""
        nodes = nodes.long()
        if self.table is not None:
            return self.table[nodes]
        out = _distance_matmul(self.metric, self.vectors[nodes], self.vectors)
        out[torch.arange(len(nodes), device=out.device), nodes] = 0.0
        if self.duplicate_class is not None:
            classes = self.duplicate_class
            out = out.masked_fill(classes[nodes].unsqueeze(1) == classes.unsqueeze(0), 0.0)
        return out

    def to_queries(self, queries: Tensor) -> Tensor:
        """D from foreign vectors to all nodes: float32 [Q, D] -> [Q, N]."""
        return _distance_matmul(self.metric, self.shifted(queries), self.vectors)

    def to_pivots(self, vectors: Tensor, pivots: Tensor) -> Tensor:
        """The nearest of some pivots to each vector: [B, D], [P, D] -> int64 [B]."""
        return _distance_matmul(self.metric, vectors, pivots).argmin(1)

    def shifted(self, queries: Tensor) -> Tensor:
        """Queries moved by the same origin as the vectors."""
        return queries if self.origin is None else queries - self.origin


def _distance_matmul(metric: Metric, a: Tensor, b: Tensor) -> Tensor:
    """D for every pair: [..., X, D] and [..., Y, D] -> [..., X, Y]; one (batched) GEMM."""
    dot = a @ b.transpose(-1, -2)
    # In place: at these sizes each further pass over the result costs as much as the GEMM.
    if metric is Metric.cosine:
        return dot.neg_().add_(1.0).clamp_min_(0.0)
    squares = a.square().sum(-1).unsqueeze(-1) + b.square().sum(-1).unsqueeze(-2)
    return squares.sub_(dot.mul_(2.0)).clamp_min_(0.0)


def check_vectors(vectors: Tensor, metric: Metric, what: str = "vectors") -> None:
    """Refuse what D is not defined on, naming the rows."""
    if vectors.ndim != 2 or vectors.dtype != torch.float32:
        raise ValueError(
            f"{what} are {vectors.dtype} of shape {tuple(vectors.shape)}; "
            "float32 [N, D] is needed (.float())"
        )
    if len(vectors) == 0:
        raise ValueError(f"there are 0 {what}; at least 1 is needed")
    norm = vectors.norm(dim=1)
    refuse_rows((~torch.isfinite(norm)).tolist(), what, "hold NaN or infinity; drop them")
    if metric is Metric.cosine:
        off = ((norm - 1).abs() > 1e-3).tolist()
        refuse_rows(off, what, "do not have length 1; normalise them, or use metric l2")


def duplicate_classes(vectors: Tensor) -> Tensor | None:
    """Class ids of bit-equal rows, int32 [N] (the smallest row number); None if all differ."""
    bits = vectors.view(torch.int32).to("cpu")
    generator = torch.Generator().manual_seed(0)
    mix = torch.randint(1 << 62, (bits.shape[1],), generator=generator) | 1
    digest = torch.cat([(b.long() * mix).sum(1) for b in bits.split(65536)])
    order = torch.argsort(digest, stable=True)
    run = torch.cat([torch.tensor([True]), digest[order][1:] != digest[order][:-1]])
    if bool(run.all()):
        return None
    classes = torch.arange(len(bits), dtype=torch.int32)
    first_of_run = order[run]
    representative = first_of_run[run.cumsum(0) - 1]
    for row, first in zip(order[~run].tolist(), representative[~run].tolist(), strict=True):
        # Equal digests are not yet equal rows; a clash just leaves the row its own class.
        if torch.equal(bits[row], bits[first]):
            classes[row] = first
    if bool((classes == torch.arange(len(bits), dtype=torch.int32)).all()):
        return None
    return classes.to(vectors.device)


def mean_vector(vectors: Tensor) -> Tensor:
    """The mean row, float64 [D], summed in blocks: a float64 copy would double the memory."""
    total = torch.zeros(vectors.shape[1], dtype=torch.float64, device=vectors.device)
    for block in vectors.split(65536):
        total += block.double().sum(0)
    return total / len(vectors)


def row_blocks(n: int, row_values: int, block_bytes: int = 256 << 20) -> Iterator[slice]:
    """Slices over range(n) such that a float32 block of that many rows stays near block_bytes."""
    step = max(1, block_bytes // max(1, 4 * row_values))
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


def top_k(distance: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row, ties by id: [Q, N] -> (float32 [Q, k], int64 [Q, k])."""
    ids = torch.arange(distance.shape[1], device=distance.device).expand_as(distance)
    keys = order_key(distance, ids).topk(k, dim=1, largest=False, sorted=True).values
    return key_distance(keys), key_node(keys)


def exact_knn(points: Points, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Exact nearest neighbors in blocks: (distances float32 [Q, k], nodes int64 [Q, k]).

    Raises:
        ValueError: k is below 1 or above N, or the dimensions differ.
    """
    if not 1 <= k <= points.n:
        raise ValueError(f"k={k} is outside 1..{points.n} (the number of vectors); lower k")
    check_dimensions(points, queries)
    if len(queries) == 0:
        return queries.new_empty(0, k), torch.empty(0, k, dtype=torch.int64, device=points.device)
    parts = [
        top_k(points.to_queries(queries[block]), k) for block in row_blocks(len(queries), points.n)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def check_dimensions(points: Points, queries: Tensor) -> None:
    """Refuse queries of another width than the points."""
    if queries.ndim != 2 or queries.shape[1] != points.vectors.shape[1]:
        raise ValueError(
            f"queries have shape {tuple(queries.shape)}, the index holds "
            f"{points.vectors.shape[1]} dimensions; embed both with the same model"
        )
