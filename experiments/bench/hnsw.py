"""lgp's HNSW beside hnswlib's at equal settings: recall and distances at every ef, seed by seed.

In: BEIR folders under static embeddings. Out: a table a collection and a results file. Documents
are inserted in corpus order (as both libraries do) and, to see what the order does, in a permuted
one; hnswlib runs on one thread, so it inserts one by one. hnswlib does not tell how many distances
it computes: its file is read and searched by lgp, which must find what hnswlib found. Given
hnswlib's levels, lgp's index is compared with its file row by row. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import libraries as lib
import numpy as np
import torch
from inputs import Collection, clustered, load_collection, make_collection
from measure import commit, exact_ids, machine, recall, versions

from lgp.formats.hnswlib import read_hnswlib
from lgp.hnsw import Hnsw, search_hnsw
from lgp.hnsw_build import HnswSettings, build_hnsw
from lgp.points import make_points

EFS = (10, 12, 14, 16, 18, 20, 50)
CONNECTIVITY, WIDTH = 16, 200
ORDERS = ("corpus", "permuted")


def read_back(index: Any, dim: int) -> Hnsw:
    """An index of hnswlib as lgp reads its file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "index.bin"
        index.save_index(str(path))
        read = read_hnswlib(path, "ip", dim)
    return Hnsw(read.graph(), read.levels, read.upper, read.entry_node)


def equal_rows(a: Hnsw, b: Hnsw) -> float:
    """Share of nodes with the same base-layer neighbors."""
    one, other = (index.base.neighbors.sort(1).values for index in (a, b))
    return float((one == other).all(1).double().mean())


def measure_seed(vectors: np.ndarray, queries: np.ndarray, seed: int) -> dict[str, Any]:
    """Every index of one seed: recall@10 and mean distances (base layer, above) at each ef."""
    points = make_points(torch.from_numpy(vectors))
    exact = exact_ids(vectors, queries, lib.K)
    theirs = lib.Hnswlib(1, CONNECTIVITY, WIDTH)
    index = theirs.build(vectors, seed)
    file = read_back(index, vectors.shape[1])

    def build(batch_size: int, levels: torch.Tensor | None = None) -> Hnsw:
        settings = HnswSettings(CONNECTIVITY, WIDTH, seed, batch_size)
        return build_hnsw(points, settings, levels=levels)

    indexes = {
        "hnswlib": file,
        "lgp": build(0),
        "lgp, batch 1": build(1),
        "lgp, hnswlib's levels": build(0, file.levels),
    }
    curves: dict[str, Any] = {}
    for name, one in indexes.items():
        curve: dict[str, list[float]] = {"recall_at_10": [], "n_dist": [], "n_dist_above": []}
        for ef in EFS:
            result, above = search_hnsw(one, points, torch.from_numpy(queries), lib.K, ef)
            curve["recall_at_10"].append(recall(result.nodes.numpy(), exact))
            curve["n_dist"].append(float((result.n_dist + above).double().mean()))
            curve["n_dist_above"].append(float(above.double().mean()))
        curves[name] = curve
    own = [recall(theirs.search(index, queries, ef), exact) for ef in EFS]
    curves["hnswlib"] |= {
        "recall_at_10": own, "recall_of_its_file_in_lgp": curves["hnswlib"]["recall_at_10"],
    }  # fmt: skip
    return {
        "seed": seed,
        "indexes": curves,
        "equal_rows_of_hnswlib": {
            "batches": equal_rows(indexes["lgp, hnswlib's levels"], file),
            "batch 1": equal_rows(build(1, file.levels), file),
        },
    }


def measure(data: Collection, seeds: Sequence[int]) -> dict[str, Any]:
    """All seeds in both orders of insertion."""
    vectors, queries = data.vectors.numpy(), data.queries[: data.n_distinct].numpy()
    report: dict[str, Any] = {"n": len(vectors), "dim": vectors.shape[1], "queries": len(queries)}
    for order in ORDERS:
        report[order] = []
        for seed in seeds:
            shown = np.random.default_rng(seed).permutation(len(vectors))
            rows = vectors if order == "corpus" else vectors[shown]
            report[order].append(measure_seed(rows, queries, seed))
    return report


def over_seeds(runs: Sequence[dict[str, Any]], name: str, what: str) -> np.ndarray:
    """One index's figures, float [seeds, efs]."""
    return np.array([run["indexes"][name][what] for run in runs])


def worst_difference(runs: Sequence[dict[str, Any]]) -> float:
    """The least, over ef, of lgp's mean recall minus hnswlib's."""
    ours, theirs = (over_seeds(runs, n, "recall_at_10").mean(0) for n in ("lgp", "hnswlib"))
    return float((ours - theirs).min())


def table(report: dict[str, Any]) -> str:
    """Means over seeds as a Markdown table; in brackets the span of the seeds at the least ef."""
    lines = [
        "| order | index | " + " | ".join(f"ef {ef}" for ef in EFS) + " | seeds at ef 10 |",
        "| --- | --- |" + " --: |" * len(EFS) + " --- |",
    ]
    for order in ORDERS:
        runs = report[order]
        for name in runs[0]["indexes"]:
            scores, spent = (over_seeds(runs, name, w) for w in ("recall_at_10", "n_dist"))
            means = zip(scores.mean(0), spent.mean(0), strict=True)
            cells = [f"{r:.3f} ({d:.0f})" for r, d in means]
            span = f"{scores[:, 0].min():.3f} to {scores[:, 0].max():.3f}"
            lines.append(f"| {order} | {name} | " + " | ".join(cells) + f" | {span} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every collection and write tables and results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="*", default=["scifact", "msmarco-dl19-dl20-pool"],
                        help="folders in $LGP_TEST_DATA, paths, or `synthetic`")  # fmt: skip
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--nodes", type=int, default=2000, help="of the synthetic set")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/hnsw.json"))
    options = parser.parse_args()
    root = Path(os.environ.get("LGP_TEST_DATA", "."))
    report: dict[str, Any] = {
        "commit": commit(), "machine": machine(), "efs": EFS, "connectivity": CONNECTIVITY,
        "construction_width": WIDTH, "versions": versions(("torch", "numpy", "numba", "hnswlib")),
        "datasets": {},
    }  # fmt: skip
    for name in options.datasets:
        if name == "synthetic":
            data = make_collection(name, *clustered(options.nodes, 32, 1000))
        else:
            data = load_collection(root / name)
        found = report["datasets"][data.name] = measure(data, options.seeds)
        print(f"\n{data.name}: {found['n']:,} x {found['dim']}, {found['queries']} queries, "
              f"{len(options.seeds)} seeds; recall@10 (distances a query)\n")  # fmt: skip
        print(table(found), flush=True)
        for order in ORDERS:
            same = [run["equal_rows_of_hnswlib"] for run in found[order]]
            found[f"worst_difference_{order}"] = worst_difference(found[order])
            print(
                f"{order} order: lgp minus hnswlib at the worst ef "
                f"{found[f'worst_difference_{order}']:+.4f}; rows equal to hnswlib's under its "
                f"levels {min(s['batches'] for s in same):.4f}, "
                f"in batches of 1 {min(s['batch 1'] for s in same):.4f}",
                flush=True,
            )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
