"""lgp on a GPU: the same graphs as on the CPU, and how long the paper's two shapes take.

In: a device and a scale. Out: figures on the screen, and in $OUT/gpu.json where OUT is set. Needs
torch, numpy and safetensors. With `--device cpu` the torch functions that a GPU runs are taken on
the CPU, too, instead of the compiled kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from inputs import clustered
from measure import commit, machine
from torch import Tensor

from lgp import kernels
from lgp.distance import GIB, Metric, Points, exact_knn, row_blocks
from lgp.graph import Graph, describe
from lgp.points import make_points
from lgp.refine.replace import place
from lgp.refine.select import farthest
from lgp.refine.shortlist import make_shortlist
from lgp.refine.step import StepSettings
from lgp.search import search_nodes
from lgp.vamana import VamanaSettings, build_vamana, visited_by

T = TypeVar("T")
WIDTHS = (10, 20, 50, 100, 200)
SHAPES = {"pony": (7894, 1.49), "psychology": (52835, 11.84)}
"""Nodes, and the minutes the paper states for its own vanilla build on an H200 (Table 16)."""
DIM = 2560
N_QUERIES = 1000
K = 10


@dataclass
class Clock:
    """Seconds on a device: it is waited for before and after."""

    device: torch.device

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time(self, call: Callable[[], T]) -> tuple[T, float]:
        """(what the call returned, seconds)."""
        self.wait()
        start = time.perf_counter()
        out = call()
        self.wait()
        return out, time.perf_counter() - start

    def forget_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_gib(self) -> float | None:
        """Most memory torch held on the GPU since `forget_peak`; None on a CPU."""
        if self.device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self.device) / GIB


@contextmanager
def torch_functions(device: torch.device) -> Iterator[None]:
    """What a GPU runs: no compiled kernel. (On a GPU nothing has to be turned off.)"""
    with kernels.use_backend("torch" if device.type == "cpu" else "auto"):
        yield


def whole_numbers(n: int, dim: int) -> Tensor:
    """Vectors of small integers: squared L2 is exact in float32, and ties are many."""
    return torch.randint(-8, 9, (n, dim), generator=torch.Generator().manual_seed(1)).float()


def compare_devices(device: torch.device, n: int, dim: int) -> dict[str, Any]:
    """The graph of the device beside the CPU's own: edge for edge, then by recall."""
    settings = VamanaSettings()
    real, queries = clustered(n, dim, N_QUERIES)
    truth = make_points(real)
    _, exact = exact_knn(truth, queries, K)

    def recall(graph: Graph, points: Points, where: torch.device) -> float:
        found = search_nodes(graph, points, queries.to(where), K, width=50).nodes.cpu()
        return float((found.unsqueeze(2) == exact.unsqueeze(1)).any(1).double().mean())

    whole = whole_numbers(n, dim)
    cpu = torch.device("cpu")
    here = build_vamana(make_points(whole, Metric.l2), settings)
    here_real = build_vamana(truth, settings)
    here_recall = recall(here_real, truth, cpu)
    compiled = kernels.usable(whole)
    with torch_functions(device):
        there = build_vamana(make_points(whole.to(device), Metric.l2), settings)
        points = make_points(real.to(device))
        there_real = build_vamana(points, settings)
        there_recall = recall(there_real, points, device)
    differing = int((here.neighbors != there.neighbors.cpu()).any(1).sum())
    differing_real = int((here_real.neighbors != there_real.neighbors.cpu()).any(1).sum())
    return {
        "n": n,
        "dim": dim,
        "cpu_backend": "compiled" if compiled else "torch",
        "integer_rows_differing": differing,
        "integer_equal": differing == 0 and here.entry_node == there.entry_node,
        "real_rows_differing": differing_real,
        "real_recall_cpu": here_recall,
        "real_recall_device": there_recall,
        "real_recall_equal": abs(here_recall - there_recall) <= 0.002,
    }


def warm_up(device: torch.device) -> None:
    """Load the libraries and allocate: a small build, search and refinement."""
    vectors, queries = clustered(600, 64, 32)
    points = make_points(vectors.to(device))
    graph = build_vamana(points, VamanaSettings(batch_size=300))
    search_nodes(graph, points, queries.to(device), K, width=50)
    refinement_signals(Clock(device), points, graph)


def refinement_signals(clock: Clock, points: Points, graph: Graph) -> dict[str, float]:
    """Seconds for all nodes: their visited nodes, shortlists, a geometric choice, placement.

    This is everything in a refinement except the language model and the edges back.
    """
    settings = StepSettings()
    spent = dict.fromkeys(("visited_s", "shortlist_s", "select_s", "place_s"), 0.0)
    placed = 0
    anchors = torch.arange(graph.n, device=points.device)
    for block in row_blocks(graph.n, 4 * graph.n, GIB):  # as lgp.refine.post cuts them
        own = anchors[block]
        visited, seconds = clock.time(partial(visited_by, points, graph, own, 125))
        spent["visited_s"] += seconds
        shortlist, seconds = clock.time(
            partial(
                make_shortlist, points, graph.neighbors, own, visited, graph.alpha,
                settings.shortlist_size, settings.context_size,
            )
        )  # fmt: skip
        spent["shortlist_s"] += seconds
        answer, seconds = clock.time(partial(farthest, shortlist, settings.edit_budget))
        spent["select_s"] += seconds
        quota = torch.full_like(own, settings.edit_budget)
        least = settings.min_gain(graph.max_degree)
        made, seconds = clock.time(
            partial(place, points, graph.neighbors, own, answer.picks, quota, least)
        )
        spent["place_s"] += seconds
        placed += int(made.placed.sum())
    return {**spent, "all_s": sum(spent.values()), "edits": float(placed)}


def measure_shape(clock: Clock, n: int, dim: int, paper_min: float) -> dict[str, Any]:
    """Build, search and refinement signals for one shape, table included in the build."""
    vectors, queries = (part.to(clock.device) for part in clustered(n, dim, N_QUERIES))
    clock.forget_peak()
    points, points_s = clock.time(partial(make_points, vectors, table_bytes=24 * GIB))
    graph, graph_s = clock.time(partial(build_vamana, points, VamanaSettings()))
    out: dict[str, Any] = {
        "n": n, "dim": dim, "points_s": points_s, "graph_s": graph_s,
        "build_min": (points_s + graph_s) / 60, "paper_build_min": paper_min,
        "build_peak_gib": clock.peak_gib(), "structure": describe(graph),
    }  # fmt: skip
    _, exact = exact_knn(points, queries, K)
    out["search"] = {}
    for width in WIDTHS:
        found, seconds = clock.time(partial(search_nodes, graph, points, queries, K, width))
        hits = (found.nodes.unsqueeze(2) == exact.unsqueeze(1)).any(1)
        out["search"][width] = {
            "queries_per_s": len(queries) / seconds,
            "recall_at_10": float(hits.double().mean()),
            "n_dist_mean": float(found.n_dist.double().mean()),
        }
    clock.forget_peak()
    out["refinement"] = refinement_signals(clock, points, graph)
    out["refinement_peak_gib"] = clock.peak_gib()
    return out


@dataclass
class Report:
    """What is known so far, rewritten to `path` after every step."""

    path: Path | None
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, value: Any) -> None:
        self.facts[name] = value
        if self.path is not None:
            self.path.write_text(json.dumps(self.facts, indent=1) + "\n")


def show_comparison(found: dict[str, Any], device: torch.device) -> None:
    """Print which of the two kinds of agreement held."""
    print(
        f"{device} against cpu ({found['cpu_backend']}), {found['n']:,} x {found['dim']}\n"
        f"  integers under L2: {found['integer_rows_differing']} rows differ -> "
        f"{'equal edge for edge' if found['integer_equal'] else 'NOT EQUAL'}\n"
        f"  real under cosine: {found['real_rows_differing']} rows differ, recall@10 "
        f"{found['real_recall_cpu']:.4f} and {found['real_recall_device']:.4f} -> "
        f"{'equal within 0.002' if found['real_recall_equal'] else 'NOT EQUAL'}"
    )


def show_shape(name: str, found: dict[str, Any], scale: float) -> None:
    """Print one shape's figures beside the paper's minutes."""
    stated = f"the paper states {found['paper_build_min']:.2f} at full scale"
    print(
        f"{name}: {found['n']:,} x {found['dim']} (scale {scale:g})\n"
        f"  vanilla build {found['build_min']:.3f} min; {stated}"
    )
    for width, at in found["search"].items():
        print(
            f"  search, width {width:3}: {at['queries_per_s']:9,.0f} queries/s, recall@10 "
            f"{at['recall_at_10']:.3f}, {at['n_dist_mean']:,.0f} distances"
        )
    parts = ", ".join(f"{k.removesuffix('_s')} {v:.2f}" for k, v in found["refinement"].items()
                      if k.endswith("_s"))  # fmt: skip
    print(f"  refinement signals, all nodes, s: {parts}")
    if found["build_peak_gib"] is not None:
        print(
            f"  peak memory: build {found['build_peak_gib']:.1f} GiB, "
            f"refinement {found['refinement_peak_gib']:.1f} GiB"
        )


def main() -> int:
    """Run every step; 1 when the device disagrees with the CPU, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="share of nodes and dimensions")
    options = parser.parse_args()
    device, scale = torch.device(options.device), options.scale
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here; run with --device cpu --scale 0.02")
    # Tiny tensors on busy cores: threads waiting for each other made the CPU mode 10 times slower.
    torch.set_num_threads(1 if device.type == "cpu" else 4)
    place_for = os.environ.get("OUT")
    report = Report(Path(place_for) / "gpu.json" if place_for else None)
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    report.add("ran_on", {"device": named, "commit": commit(), "scale": scale, **versions,
                          "machine": machine()})  # fmt: skip
    print(f"{named}, torch {torch.__version__}, scale {scale:g}")
    dim = max(64, round(DIM * scale))
    found = compare_devices(device, max(500, round(2000 * min(1.0, scale * 10))), 64)
    report.add("agreement", found)
    show_comparison(found, device)
    with torch_functions(device):
        warm_up(device)
        for name, (n, minutes) in SHAPES.items():
            shape = measure_shape(Clock(device), max(500, round(n * scale)), dim, minutes)
            report.add(name, shape)
            show_shape(name, shape, scale)
    return 0 if found["integer_equal"] and found["real_recall_equal"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
