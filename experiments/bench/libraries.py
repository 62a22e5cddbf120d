"""lgp and the libraries it is measured against, behind one face.

In: vectors and settings. Out: an index, and ids for a search effort. Nothing is timed here. Unit
rows are expected: "ip" and inner product then order as cosine, and were no slower than L2.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from lgp.distance import Points
from lgp.graph import Graph
from lgp.points import make_points
from lgp.search import QueryDistances, frontier, search_nodes, walk
from lgp.vamana import VamanaSettings, build_vamana

Vectors = npt.NDArray[np.float32]
K = 10
WIDTHS = sorted({*range(10, 60, 2), *range(60, 120, 5), *range(120, 401, 20), 500, 700, 1000})
"""Efforts tried for ef and width; fine enough that linear interpolation between two is exact
within a percent."""


class Library(Protocol):
    """One way to index; `efforts` are its search knob's values, rising."""

    name: str
    efforts: Sequence[float]

    def build(self, vectors: Vectors, seed: int) -> Any:
        """Index all rows."""

    def search(self, index: Any, queries: Vectors, effort: float) -> npt.NDArray[Any]:
        """Ids of the ten nearest found for each query, in one call: [Q, 10]."""


class Lgp:
    """This package: the N x N table and the Vamana build; search with its distances inside."""

    name = "lgp"
    efforts: Sequence[float] = WIDTHS

    def __init__(self, max_degree: int = 16, construction_width: int = 125) -> None:
        self._settings = {"max_degree": max_degree, "construction_width": construction_width}

    def build(self, vectors: Vectors, seed: int) -> tuple[Points, Graph]:
        points = make_points(torch.from_numpy(vectors))
        settings = VamanaSettings(**self._settings, alpha=1.2, seed=seed)
        return points, build_vamana(points, settings)

    def search(
        self, index: tuple[Points, Graph], queries: Vectors, effort: float
    ) -> npt.NDArray[Any]:
        points, graph = index
        found = search_nodes(graph, points, torch.from_numpy(queries), K, width=int(effort))
        return found.nodes.numpy()


class LgpOnDemand(Lgp):
    """The same index searched without the query-node table: each distance when it is needed."""

    name = "lgp_on_demand"

    def search(
        self, index: tuple[Points, Graph], queries: Vectors, effort: float
    ) -> npt.NDArray[Any]:
        points, graph = index
        distances = QueryDistances(points, queries=torch.from_numpy(queries))
        log = walk(graph, distances, [int(effort)])
        return frontier(log, log.stops[:, 0], K)[0].numpy()


class Hnswlib:
    """hnswlib; its base layer has degree 2 * connectivity."""

    name = "hnswlib"
    efforts: Sequence[float] = WIDTHS

    def __init__(self, threads: int, connectivity: int = 8, construction_width: int = 125) -> None:
        self._threads = threads
        self._settings = {"M": connectivity, "ef_construction": construction_width}

    def build(self, vectors: Vectors, seed: int) -> Any:
        import hnswlib

        index = hnswlib.Index("ip", vectors.shape[1])
        index.init_index(len(vectors), **self._settings, random_seed=seed)
        index.set_num_threads(self._threads)
        index.add_items(vectors, num_threads=self._threads)
        return index

    def search(self, index: Any, queries: Vectors, effort: float) -> npt.NDArray[Any]:
        index.set_ef(int(effort))
        ids: npt.NDArray[Any] = index.knn_query(queries, K, num_threads=self._threads)[0]
        return ids.astype(np.int64)


class Faiss:
    """faiss IndexHNSWFlat; base degree as in hnswlib. Threads are set for the whole process."""

    name = "faiss"
    efforts: Sequence[float] = WIDTHS

    def __init__(self, connectivity: int = 8, construction_width: int = 125) -> None:
        self._connectivity, self._width = connectivity, construction_width

    def build(self, vectors: Vectors, seed: int) -> Any:
        import faiss

        index = faiss.IndexHNSWFlat(
            vectors.shape[1], self._connectivity, faiss.METRIC_INNER_PRODUCT
        )
        index.hnsw.efConstruction = self._width
        index.hnsw.rng = faiss.RandomGenerator(seed)
        index.add(vectors)
        return index

    def search(self, index: Any, queries: Vectors, effort: float) -> npt.NDArray[Any]:
        index.hnsw.efSearch = int(effort)
        ids: npt.NDArray[Any] = index.search(queries, K)[1]
        return ids


class PyNNDescent:
    """PyNNDescent; its knob is epsilon, how much farther than the tenth a node may be and still
    be expanded, so it has no counterpart of a width."""

    name = "pynndescent"
    efforts: Sequence[float] = [round(0.02 * step, 2) for step in range(31)]

    def __init__(self, threads: int, n_neighbors: int = 16) -> None:
        self._threads, self._n_neighbors = threads, n_neighbors

    def build(self, vectors: Vectors, seed: int) -> Any:
        import pynndescent

        index = pynndescent.NNDescent(
            vectors,
            metric="cosine",
            n_neighbors=self._n_neighbors,
            n_jobs=self._threads,
            random_state=seed,
            parallel_batch_queries=self._threads > 1,
        )
        index.prepare()
        return index

    def search(self, index: Any, queries: Vectors, effort: float) -> npt.NDArray[Any]:
        ids: npt.NDArray[Any] = index.query(queries, k=K, epsilon=effort)[0]
        return ids


LIBRARIES = ("hnswlib", "faiss", "pynndescent")


def installed(name: str) -> bool:
    """Whether a library can be imported."""
    return find_spec(name) is not None


def make_library(name: str, threads: int, **settings: int) -> Library:
    """A library by its name, at the settings that match lgp's unless others are given."""
    if name == "hnswlib":
        return Hnswlib(threads, **settings)
    if name == "faiss":
        return Faiss(**settings)
    if name == "pynndescent":
        return PyNNDescent(threads, **settings)
    raise ValueError(f"library {name!r} is unknown; known: {', '.join(LIBRARIES)}")


def set_threads(threads: int, names: Sequence[str]) -> None:
    """The same number of threads for everything in this process."""
    torch.set_num_threads(threads)
    if "faiss" in names:
        import faiss

        faiss.omp_set_num_threads(threads)
    if "pynndescent" in names:
        import numba

        numba.set_num_threads(threads)
