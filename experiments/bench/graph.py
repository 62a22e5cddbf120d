"""lgp's build, search and sweep beside hnswlib, faiss and PyNNDescent, in one process.

In: BEIR folders, or a clustered synthetic set. Out: a results file of times, recalls and ratios
ours / theirs (below 1 is faster). Every contender gets the same rows, queries, thread count and
base degree; each is warmed up first, then all are timed in turn and medians taken.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import libraries as lib
import numpy as np
from inputs import Collection, clustered, load_collection, make_collection
from measure import (
    at_level,
    bracket,
    commit,
    exact_ids,
    interleaved,
    machine,
    ratio,
    recall,
    summary,
    versions,
    worst,
)
from sweep import measure_sweep

LEVELS = (0.90, 0.95, 0.99)
GRID_CONNECTIVITY = (4, 6, 8, 12, 16)
GRID_WIDTH = (20, 40, 60, 80, 125, 200)
PACKAGES = ("torch", "numpy", "numba", "hnswlib", "faiss-cpu", "pynndescent")
Indexes = dict[str, Any]


def measure_build(contenders: Sequence[lib.Library], data: Collection, repeats: int) -> Any:
    """Build seconds of each contender; ours include its distance table."""
    vectors = data.vectors.numpy()
    for contender in contenders:
        contender.build(vectors[:1000], 0)
    calls = {c.name: partial(c.build, vectors, 0) for c in contenders}
    return {name: summary(s) for name, s in interleaved(calls, repeats).items()}


def find_cheapest(
    name: str, threads: int, data: Collection, exact: np.ndarray, target: float
) -> dict[str, int] | None:
    """The setting of a small grid that builds fastest among those as good as `target` at ef 50.

    One build each: a setting is not tried where a smaller width of the same connectivity already
    sufficed or took longer than the best.
    """
    best, best_s = None, float("inf")
    for connectivity in GRID_CONNECTIVITY:
        for width in GRID_WIDTH:
            settings = {"connectivity": connectivity, "construction_width": width}
            contender = lib.make_library(name, threads, **settings)
            built: list[Any] = []
            call = partial(_keep, built, contender, data)
            seconds = interleaved({name: call}, 1)[name][0]
            found = contender.search(built[0], data.queries.numpy(), 50)
            good = recall(found, exact) >= target
            if good and seconds < best_s:
                best, best_s = settings, seconds
            if good or seconds >= best_s:
                break
    return best


def _keep(into: list[Any], contender: lib.Library, data: Collection) -> None:
    into.append(contender.build(data.vectors.numpy(), 0))


def measure_cheapest(
    ours: lib.Library, indexes: Indexes, data: Collection, exact: np.ndarray, options: Any
) -> Any:
    """Build seconds of each library's cheapest setting as good as ours at width 50."""
    target = recall(ours.search(indexes[ours.name], data.queries.numpy(), 50), exact)
    vectors = data.vectors.numpy()
    calls: dict[str, Callable[[], Any]] = {ours.name: partial(ours.build, vectors, 0)}
    settings: dict[str, Any] = {}
    for name in ("hnswlib", "faiss"):  # PyNNDescent has no width to match
        if name not in indexes:
            continue
        settings[name] = find_cheapest(name, options.threads, data, exact, target)
        if settings[name] is not None:
            contender = lib.make_library(name, options.threads, **settings[name])
            calls[name] = partial(contender.build, vectors, 0)
    taken = {name: summary(s) for name, s in interleaved(calls, options.repeats).items()}
    return {"target_recall_at_10": target, "settings": settings, "build": taken}


def measure_search(
    contenders: Sequence[lib.Library],
    indexes: Indexes,
    data: Collection,
    exact: np.ndarray,
    repeats: int,
) -> Any:
    """Microseconds a query at each recall level; None where a level is not reached.

    The recall of every effort is found in an untimed pass (the warm-up, too). Only the efforts on
    either side of a level are then timed, and the time is interpolated at the level.
    """
    queries = data.queries.numpy()
    curves: dict[str, list[tuple[float, float]]] = {}
    calls: dict[tuple[str, float], Callable[[], Any]] = {}
    for contender in contenders:
        curve = curves.setdefault(contender.name, [])
        for effort in contender.efforts:
            found = contender.search(indexes[contender.name], queries, effort)
            curve.append((effort, recall(found, exact)))
            if curve[-1][1] >= max(LEVELS):
                break
    for level in LEVELS:
        for contender in contenders:
            for place in bracket(curves[contender.name], level) or ():
                effort = curves[contender.name][place][0]
                call = partial(contender.search, indexes[contender.name], queries, effort)
                calls[contender.name, effort] = call
    seconds = {key: median(s) for key, s in interleaved(calls, repeats).items()}
    out: dict[str, Any] = {}
    for name, curve in curves.items():
        us_at: dict[str, float | None] = {}
        for level in LEVELS:
            places = bracket(curve, level)
            us_at[f"{level:.2f}"] = None
            if places is not None:
                low, high = ((curve[p][1], seconds[name, curve[p][0]]) for p in places)
                us_at[f"{level:.2f}"] = at_level(low, high, level) / len(queries) * 1e6
        timed = {str(e): s / len(queries) * 1e6 for (n, e), s in seconds.items() if n == name}
        out[name] = {"us_at_recall": us_at, "us_at_effort": timed, "recall_at_effort": curve}
    return out


def bench(data: Collection, names: Sequence[str], options: Any) -> dict[str, Any]:
    """Everything about one collection, ratios last."""
    ours = lib.Lgp()
    others = [lib.make_library(name, options.threads) for name in names]
    vectors, queries = data.vectors.numpy(), data.queries.numpy()
    exact = exact_ids(vectors, queries, lib.K)
    build = measure_build([ours, *others], data, options.repeats)
    indexes = {c.name: c.build(vectors, 0) for c in [ours, *others]}
    on_demand = lib.LgpOnDemand()
    indexes[on_demand.name] = indexes[ours.name]
    cheapest = measure_cheapest(ours, indexes, data, exact, options)
    search = measure_search([ours, on_demand, *others], indexes, data, exact, options.repeats)
    with_width = [c for c in others if c.name != "pynndescent"]
    sweep = measure_sweep([ours, *with_width], data, exact, options.repeats)
    out: dict[str, Any] = {
        "n": len(vectors), "dim": vectors.shape[1], "n_queries": len(queries),
        "n_distinct_queries": data.n_distinct, "n_dropped": data.n_dropped,
        "build": build, "cheapest": cheapest, "search": search, "sweep": sweep,
    }  # fmt: skip
    for name in names:
        levels = {
            level: ratio(us, search[name]["us_at_recall"][level])
            for level, us in search["lgp"]["us_at_recall"].items()
        }
        at_equal = cheapest["build"]
        out[f"search_ratios_{name}"] = levels
        out[f"build_ratio_cheapest_{name}"] = (
            ratio(at_equal["lgp"]["median_s"], at_equal[name]["median_s"])
            if name in at_equal else None
        )  # fmt: skip
        out[f"build_ratio_{name}"] = ratio(build["lgp"]["median_s"], build[name]["median_s"])
        out[f"search_ratio_{name}"] = worst(list(levels.values()))
        if name in sweep:
            out[f"sweep_ratio_{name}"] = ratio(sweep["lgp"]["median_s"], sweep[name]["median_s"])
    return out


def show(name: str, result: dict[str, Any]) -> None:
    """Print one collection's figures."""
    print(f"{name}: {result['n']:,} x {result['dim']}, {result['n_queries']:,} queries")
    for library, taken in result["build"].items():
        print(f"  build {library:14} {taken['median_s']:8.3f} s")
    same = result["cheapest"]
    print(f"  cheapest builds with recall@10 >= {same['target_recall_at_10']:.3f} at ef 50")
    for library, taken in same["build"].items():
        chosen = same["settings"].get(library, "")
        print(f"  build {library:14} {taken['median_s']:8.3f} s {chosen}")
    for library, taken in result["search"].items():
        at = taken["us_at_recall"].items()
        text = ", ".join(f"{level}: {'-' if us is None else f'{us:.1f}'}" for level, us in at)
        print(f"  us a query at recall@10, {library:14} {text}")
    for library in ("lgp", *lib.LIBRARIES):
        if library in result["sweep"]:
            print(f"  sweep {library:14} {result['sweep'][library]['median_s']:8.3f} s")


def main() -> None:
    """Read the command line, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dataset", action="append", help="BEIR folder, or 'synthetic'; repeatable"
    )
    parser.add_argument("--vectors", choices=["wordllama"], default="wordllama")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/graph.json"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--libraries", nargs="*", choices=lib.LIBRARIES, default=lib.LIBRARIES)
    parser.add_argument("--nodes", type=int, default=10_000, help="of the synthetic set")
    parser.add_argument("--dim", type=int, default=256, help="of the synthetic set")
    options = parser.parse_args()
    names = [name for name in options.libraries if lib.installed(name)]
    missing = [name for name in options.libraries if name not in names]
    if missing:
        print(f"not installed, left out: {', '.join(missing)} (pip install -e '.[bench]')")
    root = os.environ.get("LGP_TEST_DATA")
    real = [str(Path(root) / x) for x in ("scifact", "msmarco-dl19-dl20-pool")] if root else []
    lib.set_threads(options.threads, names)
    before, results = machine(), {}
    for place in options.dataset or real or ["synthetic"]:
        if place == "synthetic":
            data = make_collection("synthetic", *clustered(options.nodes, options.dim, 1000))
        else:
            data = load_collection(Path(place))
        results[data.name] = bench(data, names, options)
        show(data.name, results[data.name])
    report: dict[str, Any] = {
        "commit": commit(), "machine": before, "load_average_after": machine()["load_average"],
        "versions": versions(PACKAGES), "threads": options.threads, "repeats": options.repeats,
        "settings": {"max_degree": 16, "construction_width": 125, "alpha": 1.2,
                     "connectivity": 8, "n_neighbors": 16, "levels": LEVELS},
        "datasets": results,
    }  # fmt: skip
    print("ratios ours / theirs, the worst over the collections; below 1 is faster")
    for what in ("build", "search", "sweep"):
        for name in names:
            key = f"{what}_ratio_{name}"
            if any(key in r for r in results.values()):
                report[key] = worst([r.get(key) for r in results.values()])
                print(f"  {key:28} {'-' if report[key] is None else f'{report[key]:.2f}'}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
