"""The HNSW file: round trip, damage, and layers that disagree."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reference import table, unit_clusters
from safetensors.torch import load_file, save_file

from lgp.distance import Metric
from lgp.graph import Graph
from lgp.hnsw import Hnsw, UpperLevel
from lgp.hnsw_build import HnswSettings, build_hnsw
from lgp.hnsw_file import load_hnsw, save_hnsw, validate_hnsw
from lgp.points import make_points


def small() -> Hnsw:
    """Five nodes; 1, 3 and 4 reach layer 1, of these 3 layer 2, where it is alone."""
    base = Graph(table([[1], [0, 2], [3], [4, 2], [3]], 2), 3, Metric.l2, 1.0)
    one = UpperLevel(torch.tensor([1, 3, 4]), table([[3], [1], [3]], 2))
    two = UpperLevel(torch.tensor([3]), table([[]], 2))
    return Hnsw(base, torch.tensor([0, 1, 0, 2, 1], dtype=torch.int32), (one, two), 3)


def test_round_trip(tmp_path: Path) -> None:
    for index in (small(), build_hnsw(make_points(unit_clusters(80, 8, 4, 1)), HnswSettings(2, 4))):
        validate_hnsw(index)
        save_hnsw(index, tmp_path / "index")
        back = load_hnsw(tmp_path / "index")
        assert back.digest() == index.digest() == index.to("cpu").digest()
        assert (back.base.metric, back.base.alpha) == (index.base.metric, 1.0)
        assert (back.entry_node, len(back.upper)) == (index.entry_node, len(index.upper))
        assert torch.equal(back.base.neighbors, index.base.neighbors)
    one = build_hnsw(make_points(torch.tensor([[1.0, 0.0]])), HnswSettings())  # nothing above
    save_hnsw(replace(one, levels=one.levels.clone()), tmp_path / "one")
    assert load_hnsw(tmp_path / "one").digest() == one.digest()


def test_every_layer_counts_in_the_digest() -> None:
    index = small()
    lower = replace(index, levels=torch.tensor([0, 1, 0, 2, 0], dtype=torch.int32))
    one = UpperLevel(index.upper[0].nodes, index.upper[0].rows.flip(1))
    moved = replace(index, upper=(one, index.upper[1]))
    assert len({x.digest() for x in (index, lower, moved)}) == 3


def test_truncated_and_flipped_files_are_refused(tmp_path: Path) -> None:
    index, path = small(), tmp_path / "index"
    save_hnsw(index, path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match="index is not a readable lgp hnsw file"):
            load_hnsw(path)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            same = load_hnsw(path).digest() == index.digest()
        except ValueError as error:
            same = str(path) in str(error)
        assert same, at


def header_of(**changes: object) -> dict[str, str]:
    header = {
        "format": "lgp-hnsw", "version": 1, "entry_node": 3, "metric": "l2", "alpha": 1.0,
        "n_upper": 2,
    }  # fmt: skip
    return {"lgp": json.dumps(header | changes)}


def test_foreign_and_hostile_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with pytest.raises(ValueError, match="index is not a file; give the path of an lgp hnsw file"):
        load_hnsw(path)
    save_hnsw(small(), path)
    tensors = load_file(path)
    for header, told in (
        (None, "format None version None; lgp-hnsw version 1 is read"),
        ({"lgp": "[]"}, "format None"),
        ({"lgp": '"text"'}, "not a readable lgp hnsw file"),
        ({"lgp": "[1]"}, "not a readable lgp hnsw file"),
        (header_of(version=2), "version 2; lgp-hnsw version 1 is read"),
        (header_of(format="lgp-graph"), "format lgp-graph"),
        (header_of(), "checksum"),
        (header_of(sha256=7), "checksum"),
        (header_of(n_upper=10**12), "checksum"),
        (header_of(n_upper="2"), "checksum"),
        (header_of(entry_node=[3]), "checksum"),
        (header_of(metric="ip"), "checksum"),
        (header_of(alpha=None), "checksum"),
    ):
        save_file(tensors, path, header)
        with pytest.raises(ValueError, match=told) as error:
            load_hnsw(path)
        assert str(path) in str(error.value)


def upper(layer: int, **changes: torch.Tensor) -> Callable[[Hnsw], Hnsw]:
    def change(index: Hnsw) -> Hnsw:
        layers = list(index.upper)
        layers[layer] = replace(layers[layer], **changes)
        return replace(index, upper=tuple(layers))

    return change


def levels(*values: int) -> Callable[[Hnsw], Hnsw]:
    return lambda index: replace(index, levels=torch.tensor(values, dtype=torch.int32))


BROKEN: list[tuple[Callable[[Hnsw], Hnsw], str]] = [
    (lambda x: replace(x, levels=x.levels.long()), r"levels are torch.int64 \(5,\); int32 \[5\]"),
    (levels(0, 1, 0, 2), r"levels are torch.int32 \(4,\); int32 \[5\]"),
    (levels(0, 1, 0, 3, 1), "levels span 0..3 with 2 layers"),
    (levels(-1, 1, 0, 2, 1), "levels span -1..2 with 2 layers"),
    (levels(0, 1, 2, 1, 1), "entry_node=3 has level 1; the top layer is 2"),
    (levels(0, 1, 1, 2, 1), "layer 1: its nodes are not"),
    (lambda x: replace(x, entry_node=1), "entry_node=1, the base layer's is 3"),
    (lambda x: replace(x, base=replace(x.base, entry_node=5)), r"entry_node=5 is outside 0\.\.4"),
    (lambda x: replace(x, base=replace(x.base, neighbors=table([[0]] * 5, 2))), "edge to itself"),
    (upper(0, nodes=torch.tensor([3, 1, 4])), "layer 1: its nodes are not"),
    (upper(1, nodes=torch.tensor([3], dtype=torch.int32)), "layer 2: its nodes are not"),
    (upper(0, rows=table([[3], [1]], 2)), r"layer 1: rows are torch.int32 \(2, 2\); int32 \[3, M"),
    (upper(0, rows=table([[3], [1], [3]], 2).long()), "layer 1: rows are torch.int64"),
    (upper(0, rows=table([[3], [1], [4]], 2)), "1 rows hold an edge to itself; first node 4"),
    (upper(0, rows=table([[3, 3], [1], [3]], 2)), "a repeated id; first node 1"),
    (upper(0, rows=table([[3], [1], [5]], 2)), "an id above the last node 4; first node 4"),
    (upper(0, rows=table([[3], [1], [-2]], 2)), "an id below -1; first node 4"),
    (upper(0, rows=table([[3], [-1, 1], [3]], 2)), "an id after padding; first node 3"),
    (upper(0, rows=table([[3], [1], [2]], 2)), "layer 1: node 4 points to 2, which is not on it"),
    (upper(1, rows=table([[4]], 2)), "layer 2: node 3 points to 4"),
]


@pytest.mark.parametrize(("change", "told"), BROKEN)
def test_layers_that_disagree_are_refused_even_under_a_right_checksum(
    change: Callable[[Hnsw], Hnsw], told: str, tmp_path: Path
) -> None:
    broken = change(small())
    with pytest.raises(ValueError, match=told):
        validate_hnsw(broken)
    save_hnsw(broken, tmp_path / "broken")
    with pytest.raises(ValueError, match="broken"):
        load_hnsw(tmp_path / "broken")
