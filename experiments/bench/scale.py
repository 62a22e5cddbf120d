"""How lgp's build grows with the number of nodes: seconds, memory, recall, without any table.

In: sizes. Out: a table, a results file and `growth.png`. Every size runs in its own process,
because peak memory only ever rises within one.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from inputs import clustered
from measure import commit, machine, versions

from lgp.distance import Metric, exact_knn
from lgp.points import make_points
from lgp.search import QueryDistances, frontier, walk
from lgp.vamana import VamanaSettings, build_vamana

N_QUERIES = 1000
WIDTH = 100
K = 10


def peak_mib() -> float:
    """Largest resident size of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak) / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def measure_size(n: int, options: argparse.Namespace) -> dict[str, Any]:
    """Build and search n clustered points in this process."""
    torch.set_num_threads(options.threads)
    metric = Metric(options.metric)
    unit = metric is Metric.cosine
    settings = VamanaSettings(seed=options.seed)
    few, _ = clustered(500, options.dim, 1, 10, unit)
    warm = make_points(few, metric, table_bytes=0)
    walk(build_vamana(warm, settings), QueryDistances(warm, queries=few), [WIDTH])
    vectors, queries = clustered(n, options.dim, N_QUERIES, options.clusters, unit, options.seed)
    before_mib = peak_mib()
    start = time.perf_counter()
    points = make_points(vectors, metric, table_bytes=0)
    laid_out_s = time.perf_counter() - start
    graph = build_vamana(points, settings)
    build_s = time.perf_counter() - start
    build_mib = peak_mib()  # before the exact search, which needs more than the build
    start = time.perf_counter()
    log = walk(graph, QueryDistances(points, queries=queries), [WIDTH])
    found, _ = frontier(log, log.stops[:, 0], K)
    search_s = time.perf_counter() - start
    _, exact = exact_knn(points, queries, K)
    hits = (found.unsqueeze(2) == exact.unsqueeze(1)).any(1)
    return {
        "n": n,
        "build_s": build_s,
        "make_points_s": laid_out_s,
        "peak_mib": build_mib,
        "peak_before_build_mib": before_mib,
        "vectors_mib": vectors.nbytes / 2**20,
        "recall_at_10": float(hits.double().mean()),
        "n_dist_mean": float(log.stops.double().mean()),
        "search_us": search_s / N_QUERIES * 1e6,
    }


def guide(sizes: list[int], seconds: list[float]) -> list[float]:
    """N log N through the smallest size's seconds."""
    least = sizes.index(min(sizes))
    factor = seconds[least] / (sizes[least] * math.log(sizes[least]))
    return [factor * n * math.log(n) for n in sizes]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Build seconds against N, both logarithmic, with the guide line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sizes, seconds = [r["n"] for r in rows], [r["build_s"] for r in rows]
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.loglog(sizes, seconds, marker="o", label="measured")
    axes.loglog(sizes, guide(sizes, seconds), linestyle="--", color="gray", label="N log N")
    axes.set_xlabel("nodes N")
    axes.set_ylabel("build time (s)")
    axes.legend()
    figure.savefig(path, dpi=150)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    expected = guide([r["n"] for r in rows], [r["build_s"] for r in rows])
    lines = [
        f"| nodes | build s | / N log N | peak MiB | vectors MiB | recall@10 at {WIDTH} | "
        "distances a query | us a query |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row, guess in zip(rows, expected, strict=True):
        lines.append(
            f"| {row['n']:,} | {row['build_s']:.1f} | {row['build_s'] / guess:.2f} | "
            f"{row['peak_mib']:,.0f} | {row['vectors_mib']:,.0f} | {row['recall_at_10']:.3f} | "
            f"{row['n_dist_mean']:,.0f} | {row['search_us']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run every size in a process of its own, then write table, figure and results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--clusters", type=int, default=100)
    parser.add_argument("--metric", choices=[m.value for m in Metric], default="l2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/bench/scale"), help="a folder")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_size(options.one, options)))
        return
    passed = [f"--{name}={getattr(options, name)}"
              for name in ("dim", "clusters", "metric", "seed", "threads")]  # fmt: skip
    rows = []
    for size in sorted(int(text) for text in options.sizes.split(",")):
        ran = subprocess.run(
            [sys.executable, __file__, f"--one={size}", *passed], stdout=subprocess.PIPE, check=True
        )
        rows.append(json.loads(ran.stdout.splitlines()[-1]))
        print(table(rows).splitlines()[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.md").write_text(table(rows))
    draw(rows, options.out / "growth.png")
    report = {
        "commit": commit(), "machine": machine(), "versions": versions(("torch", "numpy", "numba")),
        "threads": options.threads, "dim": options.dim, "clusters": options.clusters,
        "metric": options.metric, "seed": options.seed, "width": WIDTH, "rows": rows,
    }  # fmt: skip
    (options.out / "growth.json").write_text(json.dumps(report, indent=1) + "\n")
    print(table(rows), end="")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
