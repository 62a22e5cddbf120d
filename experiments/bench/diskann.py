"""Stock DiskANN serves a graph refined by lgp: the same neighbors as our own search?

    python experiments/bench/diskann.py --data FOLDER [--collection scifact] [--venv FOLDER]

diskannpy 0.7.0 pins a NumPy that lgp cannot use, so it lives in an environment of its own, made
here on first use. This script writes what the two sides exchange as .npy files: the library
builds and searches in its environment (`STOCK` below), `lgp refine-index` runs in this one. Where
diskannpy cannot be installed the script says why and ends with status 77.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from lgp.cli import main as lgp
from lgp.data import load_beir
from lgp.embed import embed_wordllama
from lgp.formats import read_diskann
from lgp.points import make_points
from lgp.search import search_nodes

PACKAGE = "diskannpy==0.7.0"
SKIPPED = 77
K = 10
WIDTHS = (10, 20, 50, 100)

STOCK = """
import sys
import diskannpy as da, numpy as np

job, folder, width, k = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if job == "build":
    da.build_memory_index(
        data=np.load(f"{folder}/vectors.npy"), distance_metric="l2", index_directory=folder,
        complexity=125, graph_degree=16, num_threads=1, alpha=1.2, index_prefix="ann",
    )
else:
    index = da.StaticMemoryIndex(
        index_directory=folder, num_threads=1, initial_search_complexity=width, index_prefix=job
    )
    found = index.batch_search(np.load(f"{folder}/queries.npy"), k, width, 1).identifiers
    np.save(f"{folder}/{job}-{width}.npy", found.astype(np.int64))
"""
"""What runs in the library's environment."""


def make_environment(folder: Path) -> Path:
    """The interpreter of an environment that has diskannpy (OSError: it cannot be had)."""
    python = folder / "bin" / "python"
    if not python.is_file():
        venv.create(folder, with_pip=True)
    ready = subprocess.run([python, "-c", "import diskannpy"], capture_output=True, check=False)
    if ready.returncode:
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", PACKAGE],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise OSError(f"{PACKAGE} cannot be installed: {done.stderr.strip()[-400:]}")
    return python


def stock(python: Path, job: str, folder: Path, width: int) -> None:
    """Build, or search the index of prefix `job`, in the library's environment."""
    command = [str(python), "-c", STOCK, job, str(folder), str(width), str(K)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"diskannpy failed: {done.stdout[-500:]}{done.stderr[-1500:]}")


def agreement(
    python: Path, vectors: np.ndarray, queries: np.ndarray, selector: str, folder: Path
) -> dict[int, tuple[float, float]]:
    """Per width: share of queries with the same ten ids in the same order, and of the same ids.

    The graph is built by DiskANN, refined by `lgp refine-index` and searched by both. Under unit
    rows squared L2 orders as cosine does.
    """
    np.save(folder / "vectors.npy", vectors)
    np.save(folder / "queries.npy", queries)
    stock(python, "build", folder, 0)
    words = [
        "refine-index", "--index", str(folder / "ann"), "--format", "diskann", "--selector",
        selector, "--max-degree", "16", "--out", str(folder / "refined"), "--force",
    ]  # fmt: skip
    if lgp(words) != 0:
        raise RuntimeError(f"lgp {' '.join(words)} failed")
    index = read_diskann(folder / "refined")
    assert index.vectors is not None
    points = make_points(index.vectors, index.metric)
    found = {}
    for width in WIDTHS:
        stock(python, "refined", folder, width)
        theirs = np.load(folder / f"refined-{width}.npy")
        ours = search_nodes(index.graph(), points, torch.from_numpy(queries), K, width).nodes
        same = theirs == ours.numpy()
        shared = (theirs[:, :, None] == ours.numpy()[:, None, :]).any(2)
        found[width] = float(same.all(1).mean()), float(shared.mean())
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of BEIR collections")
    parser.add_argument("--collection", default="scifact")
    parser.add_argument("--selector", default="farthest")
    parser.add_argument("--venv", type=Path, default=Path(".venv-diskannpy"))
    args = parser.parse_args(argv)
    try:
        python = make_environment(args.venv)
    except OSError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return SKIPPED
    dataset = load_beir(args.data / args.collection)
    vectors, queries = embed_wordllama(dataset.texts), embed_wordllama(dataset.queries)
    with tempfile.TemporaryDirectory() as folder:
        found = agreement(python, vectors, queries, args.selector, Path(folder))
    print("| width | same ten in order | same ids |\n| --- | --- | --- |")
    for width, (ordered, shared) in found.items():
        print(f"| {width} | {100 * ordered:.1f} % | {100 * shared:.2f} % |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
