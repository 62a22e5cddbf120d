"""Indices of hnswlib, faiss and usearch refined by `lgp refine-index` and served by the stock
library: recall of exact and NDCG@10 at each ef, before and after.

    python experiments/bench/foreign.py --data FOLDER [--collection scifact] [--out FILE.md]
        [--selectors farthest repair nearest+repair]

`repair` repairs for titles and first sentences, `nearest+repair` after what `nearest` chose. Every
number is of the library's own search. A row that the library could not answer would stop the
script. Needs the packages of the extra `libraries`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lgp.choices import Method
from lgp.cli import main as lgp
from lgp.data import Dataset, load_beir
from lgp.distance import exact_knn
from lgp.embed import embed_wordllama
from lgp.evaluate import evaluate
from lgp.latent import first_sentence
from lgp.points import make_points
from lgp.stats import paired_interval

Vectors = npt.NDArray[np.float32]
Search = Callable[[Path, Vectors, int], npt.NDArray[Any]]
K = 10
EF = (10, 12, 14, 16, 18, 20, 50)
M, EF_CONSTRUCTION = 16, 200


def build_hnswlib(path: Path, vectors: Vectors) -> None:
    import hnswlib

    index = hnswlib.Index("cosine", vectors.shape[1])
    index.init_index(len(vectors), ef_construction=EF_CONSTRUCTION, M=M, random_seed=100)
    index.set_num_threads(1)  # insertion order, hence the graph, is then fixed
    index.add_items(vectors, np.arange(len(vectors)))
    index.save_index(str(path))


def search_hnswlib(path: Path, queries: Vectors, ef: int) -> npt.NDArray[Any]:
    import hnswlib

    index = hnswlib.Index("cosine", queries.shape[1])
    index.load_index(str(path))
    index.set_ef(ef)
    labels: npt.NDArray[Any] = index.knn_query(queries, K)[0].astype(np.int64)
    return labels


def build_faiss(path: Path, vectors: Vectors) -> None:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexHNSWFlat(vectors.shape[1], M, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = EF_CONSTRUCTION
    index.add(vectors)
    faiss.write_index(index, str(path))


def search_faiss(path: Path, queries: Vectors, ef: int) -> npt.NDArray[Any]:
    import faiss

    index = faiss.read_index(str(path))
    index.hnsw.efSearch = ef
    labels: npt.NDArray[Any] = index.search(queries, K)[1]
    return labels


def build_usearch(path: Path, vectors: Vectors) -> None:
    from usearch.index import Index

    index = Index(
        ndim=vectors.shape[1], metric="cos", connectivity=M, expansion_add=EF_CONSTRUCTION,
        dtype="f32",
    )  # fmt: skip
    index.add(np.arange(len(vectors)), vectors, threads=1)
    index.save(str(path))


def search_usearch(path: Path, queries: Vectors, ef: int) -> npt.NDArray[Any]:
    from usearch.index import Index

    index = Index.restore(str(path))
    index.expansion_search = ef
    labels: npt.NDArray[Any] = index.search(queries, K, threads=1).keys.astype(np.int64)
    return labels


LIBRARIES: dict[str, tuple[Callable[[Path, Vectors], None], Search, list[str]]] = {
    "hnswlib": (build_hnswlib, search_hnswlib, ["--space", "cosine", "--dim", "{dim}"]),
    "faiss": (build_faiss, search_faiss, []),
    "usearch": (build_usearch, search_usearch, []),
}


def compare(
    name: str, data: Path, dataset: Dataset, vectors: Vectors, queries: Vectors,
    selectors: Sequence[str], folder: Path, settings: Sequence[str] = (),
    latent: Path | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row per selector and ef, quality as fractions per query.

    Args:
        latent: vectors of queries that selectors named `repair` or `...+repair` repair for.
    """
    build, search, options = LIBRARIES[name]
    options = [word.format(dim=vectors.shape[1]) for word in options]
    index = folder / f"{name}.index"
    build(index, vectors)
    exact = exact_knn(make_points(torch.from_numpy(vectors)), torch.from_numpy(queries), K)[1]
    rows = []
    for selector in selectors:
        out = folder / f"{name}.{selector}"
        words = [
            "refine-index", "--index", str(index), "--format", name, *options, "--docs", str(data),
            *how(selector, latent, settings), "--out", str(out), "--store", str(folder / "store"),
        ]  # fmt: skip
        if lgp(words) != 0:
            raise RuntimeError(f"lgp {' '.join(words)} failed")
        facts = json.loads(Path(f"{out}.json").read_text())
        for ef in EF:
            before, after = (
                quality(dataset, exact.numpy(), search(path, queries, ef)) for path in (index, out)
            )
            rows.append(
                {"library": name, "selector": selector, "ef": ef, "edits": facts["edits"],
                 "before": before, "after": after}
            )  # fmt: skip
    return rows


def how(selector: str, latent: Path | None, settings: Sequence[str]) -> list[str]:
    """The words that name a way to refine, and the settings that it reads."""
    chosen, _, repaired = selector.rpartition("+")
    if repaired != Method.repair.value:
        return ["--selector", selector, *settings]
    queries = ["--latent", str(latent)]
    if chosen:
        return ["--method", Method.lgp_repair.value, *queries, "--selector", chosen, *settings]
    own = [word for word in settings if not word.startswith("refine.")]
    return ["--method", Method.repair.value, *queries, *own]


def latent_vectors(dataset: Dataset) -> Vectors:
    """Titles and first sentences, the queries that every collection has, embedded."""
    asked = [*dataset.titles, *(first_sentence(text) for text in dataset.bodies)]
    return embed_wordllama(list(dict.fromkeys(text for text in asked if text.strip())))


def quality(dataset: Dataset, exact: npt.NDArray[Any], found: npt.NDArray[Any]) -> dict[str, Any]:
    """Recall of exact and NDCG@10 per query; `found` holds document rows [Q, 10]."""
    if found.shape != exact.shape or found.min() < 0:
        raise RuntimeError(f"the library returned {found.shape}, ids from {found.min()}")
    hits = (found[:, :, None] == exact[:, None, :]).any(2).mean(1)
    run = {
        name: [dataset.doc_ids[row] for row in ranked]
        for name, ranked in zip(dataset.query_ids, found.tolist(), strict=True)
    }
    scores = evaluate(dataset.qrels, run, dataset.relevance_level, ["ndcg_at_10"])
    return {"recall": hits, "ndcg": np.array([s["ndcg_at_10"] for s in scores.values()])}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table, x 100, differences with paired 95 % intervals."""
    lines = [
        "| library | selector | ef | recall before | after | difference | NDCG@10 before | after "
        "| difference |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [row["library"], f"{row['selector']} ({row['edits']} edits)", str(row["ef"])]
        for measure in ("recall", "ndcg"):
            old, new = row["before"][measure], row["after"][measure]
            low, high = paired_interval(new - old)
            cells += [
                f"{100 * old.mean():.1f}", f"{100 * new.mean():.1f}",
                f"{100 * (new - old).mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]",
            ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of BEIR collections")
    parser.add_argument("--collection", default="scifact")
    parser.add_argument("--libraries", nargs="+", default=list(LIBRARIES), choices=list(LIBRARIES))
    parser.add_argument("--selectors", nargs="+", default=["farthest", "encoder"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("settings", nargs="*", help="KEY=VALUE for lgp refine-index")
    args = parser.parse_intermixed_args(argv)
    data = args.data / args.collection
    dataset = load_beir(data)
    vectors, queries = embed_wordllama(dataset.texts), embed_wordllama(dataset.queries)
    corpus = next(p for p in (data / "corpus.jsonl", data / "corpus.jsonl.gz") if p.is_file())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        latent = Path(folder) / "latent.npy"
        np.save(latent, latent_vectors(dataset))
        for name in args.libraries:
            rows += compare(
                name, corpus, dataset, vectors, queries, args.selectors, Path(folder),
                args.settings, latent,
            )  # fmt: skip
    table = markdown(rows)
    print(table)
    if args.out is not None:
        args.out.write_text(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
