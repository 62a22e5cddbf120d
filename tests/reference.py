"""The graph engine and the refinement step, slow and obvious: sets, heapq, loops, one number at a
time. Written from the definitions in DESIGN sections 3 and 4, not from `lgp`.

A graph is a list of rows, a row a list of node ids. On integer-valued vectors under squared L2
float32 is exact, so the fast paths must agree with this module bit for bit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Metric, Points
from lgp.graph import Graph
from lgp.points import make_points

Rows = list[list[int]]
BACKENDS = ["torch", "auto"]
TABLE = [0, 1 << 30]  # bytes: distances on demand, distances from the N x N table

# All tensors here are tiny: a second OpenMP thread only waits, on a busy machine for a minute.
# Tests of the thread count set it themselves.
torch.set_num_threads(1)


# --- distances ------------------------------------------------------------------------------


class Space:
    """Vectors and D(., .): 1 - cosine on unit rows or squared L2, clamped at 0, 0 if bit-equal."""

    def __init__(self, vectors: np.ndarray, metric: str = "l2") -> None:
        self.vectors = np.asarray(vectors, np.float32)
        self.metric = metric
        self._known: dict[tuple[int, int], np.float32] = {}

    @property
    def n(self) -> int:
        return len(self.vectors)

    def same(self, a: int, b: int) -> bool:
        return self.vectors[a].tobytes() == self.vectors[b].tobytes()

    def foreign(self, query: np.ndarray, node: int) -> np.float32:
        """D from a vector that is no node."""
        total = np.float32(0)
        for x, y in zip(query, self.vectors[node], strict=True):
            total += x * y if self.metric == "cosine" else (x - y) * (x - y)
        if self.metric == "cosine":
            total = np.float32(1) - total
        return max(total, np.float32(0))

    def between(self, a: int, b: int) -> np.float32:
        if (a, b) not in self._known:
            zero = self.same(a, b)
            self._known[a, b] = np.float32(0) if zero else self.foreign(self.vectors[a], b)
        return self._known[a, b]


def exact_knn(space: Space, query: np.ndarray, k: int) -> list[tuple[float, int]]:
    return sorted((float(space.foreign(query, node)), node) for node in range(space.n))[:k]


def medoid(space: Space) -> int:
    """The node nearest to the mean, exactly, for integer vectors: |n x - sum|^2 in integers."""
    whole = [[int(x) for x in row] for row in space.vectors]
    total = [sum(column) for column in zip(*whole, strict=True)]
    gaps = [sum((space.n * x - t) ** 2 for x, t in zip(row, total, strict=True)) for row in whole]
    return gaps.index(min(gaps))


# --- search ---------------------------------------------------------------------------------


@dataclass
class Found:
    """What a search did.

    Attributes:
        seen: nodes in the order their distance was computed. visited: nodes whose row was read.
        distance: of every seen node.
    """

    seen: list[int]
    visited: list[int]
    distance: dict[int, float]

    def best(self, k: int, excluded: Collection[int] = ()) -> list[int]:
        """The best k seen nodes that may be returned (search.exclude=collect)."""
        allowed = [node for node in self.seen if node not in excluded]
        return sorted(allowed, key=lambda node: (self.distance[node], node))[:k]

    def best_post(self, width: int, excluded: Collection[int]) -> list[int]:
        """The frontier without the excluded nodes (search.exclude=post): may come back short."""
        return [node for node in self.best(width) if node not in excluded]


def search_by_width(rows: Rows, entry: int, distance: Callable[[int], float], width: int) -> Found:
    """Expand the closest unvisited node of a frontier of `width` until all of it is visited."""
    found = Found([entry], [], {entry: distance(entry)})
    frontier = [entry]
    while True:
        unvisited = [node for node in frontier if node not in found.visited]
        if not unvisited:
            return found
        node = min(unvisited, key=lambda x: (found.distance[x], x))
        found.visited.append(node)
        for other in rows[node]:
            if other not in found.distance:
                found.distance[other] = distance(other)
                found.seen.append(other)
                frontier.append(other)
        frontier = sorted(frontier, key=lambda x: (found.distance[x], x))[:width]


def search_by_budget(
    rows: Rows, entry: int, distance: Callable[[int], float], budget: int
) -> Found:
    """Best-first with an unbounded list; never more than `budget` distances, rows cut in order."""
    found = Found([entry], [], {entry: distance(entry)})
    heap = [(found.distance[entry], entry)]
    while heap and len(found.seen) < budget:
        _, node = heapq.heappop(heap)
        found.visited.append(node)
        for other in rows[node]:
            if other in found.distance:
                continue
            if len(found.seen) == budget:
                return found
            found.distance[other] = distance(other)
            found.seen.append(other)
            heapq.heappush(heap, (found.distance[other], other))
    return found


# --- prune and build ------------------------------------------------------------------------


def robust_prune(
    space: Space,
    node: int,
    candidates: Iterable[int],
    alpha: float,
    max_degree: int,
    protected: Collection[int] = (),
) -> list[int]:
    pool = {c for c in candidates if c >= 0 and c != node}
    order = sorted(pool, key=lambda c: (space.between(node, c), c))
    kept = [c for c in order if c in protected][:max_degree]
    for c in order:
        if len(kept) == max_degree:
            break
        if c not in kept and not any(occludes(space, k, node, c, alpha) for k in kept):
            kept.append(c)
    return kept


def occludes(space: Space, kept: int, node: int, c: int, alpha: float) -> bool:
    closer = np.float32(alpha) * space.between(kept, c) < space.between(node, c)
    return bool(closer) or space.same(kept, c)


def add_reciprocals(
    space: Space,
    rows: Rows,
    sources: Sequence[int],
    alpha: float,
    max_degree: int,
    new: dict[int, set[int]] | None = None,
) -> None:
    """j -> i for each i -> j of the sources, grouped by j; those of `new` edges are protected."""
    wanted: dict[int, list[int]] = {}
    for i in sources:
        for j in rows[i]:
            if i not in rows[j]:
                wanted.setdefault(j, []).append(i)
    for j, incoming in wanted.items():
        incoming.sort(key=lambda i: (space.between(j, i), i))
        if len(rows[j]) + len(incoming) <= max_degree:
            rows[j] = rows[j] + incoming
        else:
            shield = {i for i in incoming if new is not None and j in new[i]}
            rows[j] = robust_prune(space, j, rows[j] + incoming, alpha, max_degree, shield)


def build(
    space: Space,
    start: Rows,
    order: Sequence[int],
    width: int,
    alpha: float,
    max_degree: int,
    batch: int = 1,
    refine: Callable[[Rows, int, list[int]], tuple[list[int], list[int]]] | None = None,
) -> tuple[Rows, int]:
    """The two-pass Vamana graph and its entry.

    Args:
        refine: (snapshot, node, visited) -> (final row, the nodes placed in it).
    """
    rows, entry = [list(row) for row in start], medoid(space)
    for last, slack in ((False, 1.0), (True, alpha)):
        for at in range(0, len(order), batch):
            anchors = order[at : at + batch]
            before = [list(row) for row in rows]
            visited = {i: visited_by(space, before, entry, i, width) for i in anchors}
            for i in anchors:
                pool = visited[i] + before[i]
                rows[i] = robust_prune(space, i, pool, slack, max_degree)
            new = None
            if last and refine is not None:
                snapshot = [list(row) for row in rows]
                new = {}
                for i in sorted(anchors):
                    rows[i], placed = refine(snapshot, i, visited[i])
                    new[i] = set(placed)
            add_reciprocals(space, rows, anchors, slack, max_degree, new)
    return rows, entry


def visited_by(space: Space, rows: Rows, entry: int, node: int, width: int) -> list[int]:
    """U_i: the nodes that a search for a node visits."""
    return search_by_width(rows, entry, lambda x: space.between(node, x), width).visited


# --- the refinement step --------------------------------------------------------------------


def two_hop(rows: Rows, i: int, row: Sequence[int]) -> set[int]:
    """N2(i), with N(i) = row."""
    return {x for j in row for x in rows[j]} - set(row) - {i}


def coverage_gain(rows: Rows, i: int, row: Sequence[int], c: int) -> int:
    covered = {i} | set(row) | two_hop(rows, i, row)
    return len(set(rows[c]) - covered)


def unique_coverage(rows: Rows, i: int, row: Sequence[int], z: int) -> int:
    others = {x for j in row if j != z for x in rows[j]}
    return len(set(rows[z]) - others - set(row) - {i})


def redundancy(space: Space, row: Sequence[int], z: int) -> float:
    """Distance to another neighbor; infinite where there is none."""
    return min((float(space.between(z, j)) for j in row if j != z), default=float("inf"))


def candidate_pool(rows: Rows, i: int, visited: Iterable[int]) -> set[int]:
    return (set(visited) | two_hop(rows, i, rows[i])) - set(rows[i]) - {i}


def separation(space: Space, row: Sequence[int], c: int) -> float:
    return min((float(space.between(c, j)) for j in row), default=float("inf"))


def ranking(space: Space, rows: Rows, i: int, pool: set[int], rule: str, alpha: float) -> list[int]:
    row = rows[i]
    by_distance = sorted(pool, key=lambda c: (space.between(i, c), c))
    if rule == "proximity":
        return [c for c in by_distance if not any(occludes(space, j, i, c, alpha) for j in row)]
    if rule == "coverage":
        return sorted(by_distance, key=lambda c: -coverage_gain(rows, i, row, c))
    return sorted(by_distance, key=lambda c: -separation(space, row, c))


def shortlist(
    space: Space,
    rows: Rows,
    i: int,
    visited: Iterable[int],
    size: int,
    rule: str = "balanced",
    alpha: float = 1.2,
) -> list[int]:
    pool = candidate_pool(rows, i, visited)
    if rule != "balanced":
        return ranking(space, rows, i, pool, rule, alpha)[:size]
    queues = [
        ranking(space, rows, i, pool, name, alpha)
        for name in ("proximity", "coverage", "separation")
    ]
    chosen: list[int] = []
    while any(queues):
        for queue in queues:
            while queue and queue[0] in chosen:
                queue.pop(0)
            if queue:
                chosen.append(queue.pop(0))
            if len(chosen) == size:
                return chosen
    return chosen


def victim(
    space: Space, rows: Rows, i: int, row: Sequence[int], placed: Sequence[int], rule: str
) -> int | None:
    """The neighbor to give up; an edge placed in this step is never one."""

    def cost(z: int) -> tuple[float, ...]:
        unique, gap = unique_coverage(rows, i, row, z), redundancy(space, row, z)
        return {
            "lexicographic": (unique, gap, z), "redundancy": (gap, z), "coverage": (unique, z),
        }[rule]  # fmt: skip

    return min((z for z in row if z not in placed), key=cost, default=None)


def place(
    space: Space,
    rows: Rows,
    i: int,
    picks: Iterable[int],
    quota: int,
    min_gain: int,
    max_degree: int,
    rule: str = "lexicographic",
) -> tuple[list[int], list[int]]:
    """The row after the accepted picks, and those picks in order; gains against the live row."""
    row, placed = list(rows[i]), []
    for c in picks:
        if len(placed) == quota:
            break
        if c in row or coverage_gain(rows, i, row, c) < min_gain:
            continue
        if len(row) < max_degree:
            row.append(c)
        else:
            out = victim(space, rows, i, row, placed, rule)
            if out is None:
                continue
            row[row.index(out)] = c
        placed.append(c)
    return row, placed


@dataclass(frozen=True)
class Step:
    """Knobs of one refinement step (B, M, g_min, ...), with a selector by name.

    Attributes:
        quota: edits to place at each node (matched controls); None = `edit_budget`.
    """

    space: Space
    max_degree: int
    edit_budget: int = 2
    shortlist_size: int = 24
    min_gain: int = 1
    alpha: float = 1.2
    selector: str = "farthest"
    rule: str = "balanced"
    victim: str = "lexicographic"
    quota: Sequence[int] | None = None

    def __call__(self, rows: Rows, i: int, visited: Iterable[int]) -> tuple[list[int], list[int]]:
        shown = shortlist(self.space, rows, i, visited, self.shortlist_size, self.rule, self.alpha)
        sign = {"first": 0, "nearest": 1, "farthest": -1}[self.selector]
        if sign:
            shown.sort(key=lambda c: (sign * self.space.between(i, c), c))
        quota = self.edit_budget if self.quota is None else self.quota[i]
        picks = shown[: self.edit_budget] if self.quota is None else shown
        return place(self.space, rows, i, picks, quota, self.min_gain, self.max_degree, self.victim)


def refine_post(
    step: Step, rows: Rows, entry: int, width: int, batch: int = 0
) -> tuple[Rows, dict[int, list[int]]]:
    """Own edits on a snapshot, then reciprocals by (target, distance, anchor), one by one.

    Returns:
        the rows, and what each node placed.
    """
    space, rows = step.space, [list(row) for row in rows]
    batch = batch or space.n
    made: dict[int, list[int]] = {}
    for at in range(0, space.n, batch):
        snapshot = [list(row) for row in rows]
        anchors = range(at, min(space.n, at + batch))
        for i in anchors:
            visited = visited_by(space, snapshot, entry, i, width)
            rows[i], made[i] = step(snapshot, i, visited)
        back = [(c, space.between(c, i), i) for i in anchors for c in made[i]]
        for c, _, i in sorted(back):
            if i in rows[c]:
                continue
            if len(rows[c]) < step.max_degree:
                rows[c].append(i)
            else:
                rows[c] = robust_prune(
                    space, c, [*rows[c], i], step.alpha, step.max_degree, protected={i}
                )
    return rows, made


# --- small cases and conversions ------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Integer vectors with duplicates and a random graph of uneven degrees over them."""

    space: Space
    rows: Rows
    entry: int
    max_degree: int
    rng: np.random.Generator

    def points(self, table_bytes: int = 0) -> Points:
        return make_points(torch.from_numpy(self.space.vectors), Metric.l2, table_bytes)

    def graph(self, alpha: float = 1.2) -> Graph:
        return Graph(table(self.rows, self.max_degree), self.entry, Metric.l2, alpha)

    def full(self) -> Case:
        """The same with every row at the degree bound."""
        rows = [
            row + [x for x in range(self.space.n) if x not in (i, *row)]
            for i, row in enumerate(self.rows)
        ]
        return replace(self, rows=[row[: self.max_degree] for row in rows])


def make_case(
    seed: int, n: int, dims: int, high: int, max_degree: int, least_degree: int = 0
) -> Case:
    rng = np.random.default_rng(seed)
    vectors = rng.integers(0, high + 1, (n, dims)).astype(np.float32)
    for _ in range(n // 8):
        vectors[rng.integers(n)] = vectors[rng.integers(n)]
    max_degree = min(max_degree, n - 1)
    degrees = rng.integers(min(least_degree, max_degree), max_degree + 1, n)
    rows = [[int(x + (x >= i)) for x in rng.permutation(n - 1)[: degrees[i]]] for i in range(n)]
    return Case(Space(vectors), rows, int(rng.integers(n)), max_degree, rng)


def table(rows: Iterable[Sequence[int]], width: int) -> Tensor:
    """Rows as int32 [N, width], -1 at the end."""
    padded = [[int(x) for x in row] + [-1] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.int32).view(len(padded), width)


def lists(rows: Tensor) -> Rows:
    """A table as rows without padding."""
    return [[x for x in row if x >= 0] for row in rows.tolist()]


def unit_clusters(n: int, dims: int, clusters: int, seed: int, noise: float = 0.6) -> Tensor:
    """Clustered unit rows, float32 [n, dims]; one seed shares its centres for every n."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(clusters, dims, generator=generator)
    own = torch.randint(clusters, (n,), generator=generator)
    rows = centres[own] + noise * torch.randn(n, dims, generator=generator)
    return torch.nn.functional.normalize(rows, dim=1)


def recall(found: Tensor, truth: Tensor) -> float:
    """Share of true ids [Q, k] among the found ids [Q, k]."""
    return float((found.unsqueeze(2) == truth.unsqueeze(1)).any(2).double().mean())
