"""Either kind of index behind one face: settings, build, file, facts and walk.

In: points, settings, paths. Out: a flat `Graph` (Vamana) or an `Hnsw`. What refinement edits is
the same for both, a `Graph`: the flat graph itself, or the base layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lgp.distance import Points
from lgp.graph import Graph, describe, load_graph, save_graph
from lgp.hnsw import Hnsw, walk_hnsw
from lgp.hnsw_build import HnswSettings, build_hnsw
from lgp.hnsw_file import load_hnsw, save_hnsw
from lgp.search import QueryDistances, Walk, walk
from lgp.vamana import VamanaSettings, build_vamana

Index = Graph | Hnsw
Settings = VamanaSettings | HnswSettings


def settings_key(settings: Settings) -> dict[str, Any]:
    """What names a build in stage keys; Vamana's has no kind, so keys made before HNSW stand."""
    kind = {"kind": "hnsw"} if isinstance(settings, HnswSettings) else {}
    return kind | asdict(settings)


def build_index(points: Points, settings: Settings) -> Index:
    """The unrefined index, with a progress bar."""
    if isinstance(settings, HnswSettings):
        return build_hnsw(points, settings, progress=True)
    return build_vamana(points, settings, progress=True)


def base_layer(index: Index) -> Graph:
    """What answers are found in and refinement edits."""
    return index.base if isinstance(index, Hnsw) else index


def save_index(index: Index, path: Path) -> None:
    """Write an index file of either kind."""
    if isinstance(index, Hnsw):
        save_hnsw(index, path)
    else:
        save_graph(index, path)


def load_index(path: Path, settings: Settings) -> Index:
    """Read and verify the file of an index built with such settings (ValueError: another)."""
    return load_hnsw(path) if isinstance(settings, HnswSettings) else load_graph(path)


def describe_index(index: Index) -> dict[str, float]:
    """Structure statistics of the base layer; of an HNSW also the number of layers."""
    layers = {"n_layers": 1 + len(index.upper)} if isinstance(index, Hnsw) else {}
    return describe(base_layer(index)) | layers


def walk_index(
    index: Index, distances: QueryDistances, widths: Sequence[int], budget: int
) -> tuple[Walk, Tensor]:
    """One walk for every width and budget, and the distances spent above it, int64 [Q].

    Above a flat graph is nothing: zeros. Arguments as of `walk_hnsw`.
    """
    if isinstance(index, Hnsw):
        return walk_hnsw(index, distances, widths, budget)
    log = walk(index, distances, widths, budget)
    return log, torch.zeros_like(log.n_seen)
