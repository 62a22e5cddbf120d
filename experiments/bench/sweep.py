"""The whole sweep of an experiment: five widths and seven budgets on three graphs.

In: contenders, rows and queries. Out: seconds for all of it and the recall of every setting. lgp
reads every setting from one walk a graph; a library is asked once for every ef.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import libraries as lib
import numpy as np
import torch
from inputs import Collection
from measure import interleaved, recall, summary

from lgp.distance import Points
from lgp.graph import Graph
from lgp.search import best_seen, query_blocks, walk

SWEEP_WIDTHS = (10, 20, 50, 100, 200)
SWEEP_BUDGETS = (100, 200, 300, 500, 800, 1600, 3200)
SWEEP_SEEDS = (0, 1, 2)


def sweep_lgp(graphs: Sequence[tuple[Points, Graph]], queries: torch.Tensor) -> list[np.ndarray]:
    """Top ten of every query at every width and budget on every graph: one table of distances,
    one walk a graph."""
    found: list[np.ndarray] = []
    budgets = torch.tensor(SWEEP_BUDGETS)
    for _, distances in query_blocks(graphs[0][0], queries):
        for _, graph in graphs:
            log = walk(graph, distances, list(SWEEP_WIDTHS), max(SWEEP_BUDGETS))
            spent = torch.cat([log.stops, torch.minimum(log.n_seen.unsqueeze(1), budgets)], 1)
            found.extend(best_seen(log, spent, lib.K)[0].numpy().swapaxes(0, 1))
    return found


def sweep_library(
    contender: lib.Library, indexes: Sequence[Any], queries: np.ndarray, efforts: Sequence[int]
) -> list[np.ndarray]:
    """The same from a library: one search for every ef and index."""
    return [contender.search(index, queries, ef) for index in indexes for ef in efforts]


def matching_efforts(points: Points, graph: Graph, queries: torch.Tensor) -> list[int]:
    """ef values that stand for the sweep: its widths, and for each budget the width (10 at
    least) whose mean number of distances on our graph is nearest to it."""
    grid = np.unique(np.geomspace(lib.K, min(4000, points.n), 80).astype(int)).tolist()
    total = torch.zeros(len(grid), dtype=torch.float64)
    for _, distances in query_blocks(points, queries):
        total += walk(graph, distances, grid).stops.double().sum(0)
    mean = (total / len(queries)).numpy()
    every = np.arange(lib.K, grid[-1] + 1)
    spent = np.interp(every, grid, mean)
    nearest = [int(every[np.abs(spent - budget).argmin()]) for budget in SWEEP_BUDGETS]
    return [*SWEEP_WIDTHS, *nearest]


def measure_sweep(
    contenders: Sequence[lib.Library], data: Collection, exact: np.ndarray, repeats: int
) -> Any:
    """Seconds for all settings on three graphs, and the recall of each setting."""
    vectors, queries = data.vectors.numpy(), data.queries.numpy()
    built = {c.name: [c.build(vectors, seed) for seed in SWEEP_SEEDS] for c in contenders}
    efforts = matching_efforts(*built["lgp"][0], data.queries)
    calls: dict[str, Callable[[], list[np.ndarray]]] = {
        c.name: partial(sweep_library, c, built[c.name], queries, efforts)
        for c in contenders if c.name != "lgp"
    }  # fmt: skip
    calls["lgp"] = partial(sweep_lgp, built["lgp"], data.queries)
    n_settings = len(efforts)
    found = {name: call()[:n_settings] for name, call in calls.items()}  # the warm-up, too
    taken = interleaved(calls, repeats)
    return {
        "settings": [
            *(f"width {w}" for w in SWEEP_WIDTHS),
            *(f"budget {b}" for b in SWEEP_BUDGETS),
        ],
        "efforts": efforts,
        "recall_at_10": {n: [recall(ids, exact) for ids in lists] for n, lists in found.items()},
        **{name: summary(s) for name, s in taken.items()},
    }
