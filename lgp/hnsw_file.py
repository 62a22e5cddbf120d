"""The file of an HNSW and the checks of every invariant of its layers.

In: an `lgp.hnsw.Hnsw`. Out: one safetensors file, under the conventions of `lgp.graph`. Foreign
formats are read elsewhere (`lgp.formats`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lgp.distance import Metric
from lgp.graph import Graph, check_rows, load_sealed, save_sealed, validate, whole
from lgp.hnsw import Hnsw, UpperLevel

FORMAT = "lgp-hnsw"
FORMAT_VERSION = 1


def validate_hnsw(index: Hnsw) -> None:
    """Check base layer, levels, entry node and every layer above.

    Raises:
        ValueError: naming what disagrees, and the layer.
    """
    validate(index.base)
    levels, top = index.levels, len(index.upper)
    if levels.dtype != torch.int32 or levels.shape != (index.base.n,):
        raise ValueError(
            f"levels are {levels.dtype} {tuple(levels.shape)}; int32 [{index.base.n}] is needed"
        )
    lowest, highest = int(levels.min()), int(levels.max())
    if lowest < 0 or highest != top:
        raise ValueError(
            f"levels span {lowest}..{highest} with {top} layers above the base; 0..{top} is needed"
        )
    if index.entry_node != index.base.entry_node:
        raise ValueError(
            f"entry_node={index.entry_node}, the base layer's is {index.base.entry_node}; they "
            "must be one node"
        )
    if int(levels[index.entry_node]) != top:
        raise ValueError(
            f"entry_node={index.entry_node} has level {int(levels[index.entry_node])}; the top "
            f"layer is {top}"
        )
    for level, layer in enumerate(index.upper, 1):
        try:
            _check_layer(layer, levels >= level)
        except ValueError as error:
            raise ValueError(f"layer {level}: {error}") from error


def _check_layer(layer: UpperLevel, present: Tensor) -> None:
    nodes, rows = layer.nodes, layer.rows
    if nodes.dtype != torch.int64 or not torch.equal(nodes, present.nonzero().flatten()):
        raise ValueError("its nodes are not, rising, those whose level reaches it (int64)")
    if rows.ndim != 2 or rows.dtype != torch.int32 or len(rows) != len(nodes):
        raise ValueError(
            f"rows are {rows.dtype} {tuple(rows.shape)}; int32 [{len(nodes)}, M] is needed"
        )
    check_rows(rows, nodes, len(present))
    absent = (rows >= 0) & ~present[rows.clamp_min(0).long()]
    if bool(absent.any()):
        row, slot = absent.nonzero()[0].tolist()
        raise ValueError(
            f"node {int(nodes[row])} points to {int(rows[row, slot])}, which is not on it"
        )


def save_hnsw(index: Hnsw, path: Path) -> None:
    """Write an HNSW file: safetensors with a version and a checksum."""
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "entry_node": index.entry_node,
        "metric": index.base.metric.value,
        "alpha": index.base.alpha,
        "n_upper": len(index.upper),
    }
    tensors = {"neighbors": index.base.neighbors, "levels": index.levels}
    for level, layer in enumerate(index.upper, 1):
        tensors |= {f"nodes_{level}": layer.nodes, f"rows_{level}": layer.rows}
    save_sealed(path, tensors, header, index.digest())


def load_hnsw(path: Path) -> Hnsw:
    """Read and verify an HNSW file.

    Raises:
        ValueError: naming the file: not an HNSW file, another version, truncated, a wrong
            checksum, or layers that disagree.
    """

    def make(tensors: dict[str, Tensor], header: dict[str, Any]) -> Hnsw:
        entry, metric = whole(header["entry_node"]), Metric(header["metric"])
        base = Graph(tensors["neighbors"], entry, metric, float(header["alpha"]))
        upper = tuple(
            UpperLevel(tensors[f"nodes_{level}"], tensors[f"rows_{level}"])
            for level in range(1, whole(header["n_upper"]) + 1)
        )
        return Hnsw(base, tensors["levels"], upper, entry)

    return load_sealed(path, FORMAT, FORMAT_VERSION, make, validate_hnsw)
