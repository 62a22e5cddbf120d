"""The DiskANN graph: random start, medoid entry, two batched passes (paper §E.1, Algorithm 9).

In: points and build settings. Out: a `Graph`. Refinement is a callable that the last pass hands
each batch's freshly pruned rows; this module does not know what it does with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from lgp import kernels
from lgp.distance import Points, mean_vector, row_blocks
from lgp.graph import Graph
from lgp.prune import add_reciprocals, robust_prune
from lgp.search import QueryDistances, walk

Refine = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(neighbors int32 [N, R], anchors int64 [A], visited int32 [A, V]) -> (rows int32 [A, R],
new-edge mask bool [A, R]): the final rows of the anchors, for the builder to write."""


@dataclass(frozen=True)
class VamanaSettings:
    """Build settings, the paper's defaults (§5 Index Configurations).

    Attributes:
        max_degree: R. construction_width: L at build. alpha: prune slack of the second pass
            (the first uses 1), acting on D as `lgp.distance` defines it.
        batch_size: nodes that search the same snapshot; 1 = the paper's sequential order,
            0 = 2 % of N but at most 4096 (the share ParlayANN uses).
        seed: of the start graph and the node order.
    """

    max_degree: int = 16
    construction_width: int = 125
    alpha: float = 1.2
    batch_size: int = 0
    seed: int = 0

    def check(self, n: int) -> None:
        """Refuse settings that N nodes cannot serve (ValueError)."""
        if not 1 <= self.max_degree < n:
            raise ValueError(
                f"max_degree={self.max_degree} is outside 1..{n - 1} for {n} nodes; "
                "lower index.max_degree"
            )
        if self.construction_width < self.max_degree:
            raise ValueError(
                f"construction_width={self.construction_width} is below max_degree="
                f"{self.max_degree}; raise index.construction_width"
            )
        if self.alpha < 1:
            raise ValueError(f"alpha={self.alpha} is below 1; raise index.alpha")
        if self.batch_size < 0:
            raise ValueError(f"batch_size={self.batch_size} is below 0; 0 chooses it")

    def batch(self, n: int) -> int:
        return self.batch_size or max(1, min(4096, n // 50))


def medoid(points: Points) -> int:
    """The node nearest to the mean vector, ties to the smaller id (squared L2; float64)."""
    mean = mean_vector(points.vectors)
    distance = torch.cat(
        [(block.double() - mean).square().sum(1) for block in points.vectors.split(65536)]
    )
    return int(distance.argmin())


def random_graph(n: int, max_degree: int, generator: torch.Generator) -> Tensor:
    """A random R-regular directed graph without loops or repeats, int32 [N, R]."""
    if n <= 4 * max_degree:
        others = torch.rand(n, n - 1, generator=generator).argsort(1)[:, :max_degree]
    else:
        others = torch.randint(n - 1, (n, max_degree), generator=generator)
        while True:
            ordered = others.sort(1).values
            again = (ordered[:, 1:] == ordered[:, :-1]).any(1).nonzero().flatten()
            if len(again) == 0:
                break
            others[again] = torch.randint(n - 1, (len(again), max_degree), generator=generator)
    nodes = torch.arange(n).unsqueeze(1)
    return (others + (others >= nodes)).to(torch.int32)  # skip the node itself


def build_vamana(
    points: Points,
    settings: VamanaSettings,
    refine: Refine | None = None,
    progress: bool = False,
) -> Graph:
    """Build the two-pass Vamana graph, batched; the same bits for any thread count.

    Per batch: search on the graph as it stands, prune (visited nodes and current neighbors),
    write the rows, then reciprocal edges grouped by target. `refine` sees the rows of the last
    pass right after they are written and returns the final ones; only those get reciprocals,
    and the reciprocals of its new edges are protected in their own prune.

    Raises:
        ValueError: settings that do not fit the number of points.
    """
    settings.check(points.n)
    device = points.device
    generator = torch.Generator().manual_seed(settings.seed)
    neighbors = random_graph(points.n, settings.max_degree, generator).to(device)
    order = torch.randperm(points.n, generator=generator).to(device)
    entry = medoid(points)
    maker = kernels.CompiledBuilder if kernels.usable(neighbors) else TorchBuilder
    builder = maker(points, neighbors, entry, settings.construction_width)
    with tqdm(total=2 * points.n, desc="build", unit="node", disable=not progress) as bar:
        for alpha, last in ((1.0, False), (settings.alpha, True)):
            for anchors in order.split(settings.batch(points.n)):
                refining = last and refine is not None
                rows, visited = builder.pruned_rows(anchors, alpha, refining)
                builder.write(anchors, rows)
                new_edges = None
                if refining:
                    assert refine is not None
                    final, new_edges = refine(neighbors, anchors, visited)
                    builder.write(anchors, final, (final != rows).any(1))
                builder.add_reciprocals(anchors, alpha, new_edges)
                bar.update(len(anchors))
    return Graph(neighbors, entry, points.metric, settings.alpha)


class TorchBuilder:
    """The three steps of a batch as torch operations; `neighbors` is changed in place."""

    def __init__(self, points: Points, neighbors: Tensor, entry: int, width: int) -> None:
        self.neighbors = neighbors
        self._points, self._entry, self._width = points, entry, width

    def pruned_rows(
        self, anchors: Tensor, alpha: float, keep_visited: bool
    ) -> tuple[Tensor, Tensor]:
        """Rows int32 [A, R] after search and prune, and visited nodes int32 [A, V] if kept."""
        graph = Graph(self.neighbors, self._entry, self._points.metric, alpha)
        rows, logs = [], []
        for block in row_blocks(len(anchors), 2 * self._points.n, 1 << 30):
            own = anchors[block]
            visited = visited_by(self._points, graph, own, self._width)
            pool = torch.cat([visited, self.neighbors[own]], 1)
            rows.append(robust_prune(self._points, own, pool, alpha, graph.max_degree))
            logs.append(visited)
        return torch.cat(rows), pad_cat(logs) if keep_visited else logs[0][:0]

    def write(self, anchors: Tensor, rows: Tensor, changed: Tensor | None = None) -> None:
        """Set the anchors' rows."""
        self.neighbors[anchors] = rows

    def add_reciprocals(self, anchors: Tensor, alpha: float, protected: Tensor | None) -> None:
        """Insert the edges back from every neighbor of the anchors, grouped by target."""
        rows = self.neighbors[anchors]
        add_reciprocals(self._points, self.neighbors, anchors, rows, alpha, protected)


def visited_by(points: Points, graph: Graph, anchors: Tensor, width: int) -> Tensor:
    """U_i: the nodes that a search for each anchor visits, int32 [A, V], -1 pads (§4)."""
    if width < 1:
        raise ValueError(f"search width {width} is below 1; raise index.construction_width")
    if kernels.usable(points.vectors):
        return kernels.visited_by(points, graph.neighbors, graph.entry_node, anchors, width)
    distances = QueryDistances(points, nodes=anchors)
    if points.table is not None:
        distances = distances.with_table()
    return walk(graph, distances, [width]).visited


def pad_cat(parts: list[Tensor]) -> Tensor:
    """Stack id blocks of different widths, padding with -1 on the right."""
    widest = max(p.shape[1] for p in parts)
    return torch.cat(
        [torch.nn.functional.pad(p, (0, widest - p.shape[1]), value=-1) for p in parts]
    )
