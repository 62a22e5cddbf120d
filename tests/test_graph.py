"""The graph file, its checks and its statistics."""

import json
from pathlib import Path

import pytest
import torch
from reference import make_case, table
from safetensors.torch import save_file

from lgp.distance import Metric
from lgp.graph import (
    Graph,
    changed_neighborhoods,
    describe,
    load_graph,
    reachable,
    save_graph,
    validate,
)


def small() -> Graph:
    rows = table([[1, 2], [0, 2], [3], []], 3)
    return Graph(rows, 1, Metric.l2, 1.4)


def test_a_saved_graph_comes_back_the_same(tmp_path: Path) -> None:
    for name, graph in (("a", small()), ("b", make_case(0, 50, 2, 9, 7).graph())):
        save_graph(graph, tmp_path / name)
        back = load_graph(tmp_path / name)
        assert torch.equal(back.neighbors, graph.neighbors)
        assert back.neighbors.dtype == torch.int32
        assert (back.entry_node, back.metric, back.alpha) == (
            graph.entry_node, graph.metric, graph.alpha,
        )  # fmt: skip
        assert back.digest() == graph.digest()


def test_the_digest_tells_graphs_apart() -> None:
    graph, rows = small(), small().neighbors.clone()
    rows[2, 0] = 0
    others = [
        Graph(rows, 1, Metric.l2, 1.4), Graph(graph.neighbors, 2, Metric.l2, 1.4),
        Graph(graph.neighbors.view(3, 4), 1, Metric.l2, 1.4),
    ]  # fmt: skip
    assert len({g.digest() for g in [graph, *others]}) == 4
    assert small().digest() == graph.digest()


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    save_graph(small(), tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    part = tmp_path / "part"
    for length in range(len(data)):
        part.write_bytes(data[:length])
        with pytest.raises(ValueError, match="part is not a readable lgp graph file"):
            load_graph(part)


def test_a_flipped_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    graph, path = small(), tmp_path / "graph"
    save_graph(graph, path)
    data = path.read_bytes()
    unnoticed = []
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            back = load_graph(path)
        except ValueError:
            continue
        except Exception as error:  # an error nobody expects from a damaged file
            unnoticed.append((at, data[at : at + 1], repr(error)))
            continue
        same = torch.equal(back.neighbors, graph.neighbors) and (
            (back.entry_node, back.metric, back.alpha) == (1, Metric.l2, 1.4)
        )
        if not same:
            unnoticed.append((at, data[at : at + 1], str(back)))
    assert not unnoticed


def test_foreign_files_and_other_versions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absent is not a file; give the path of an lgp graph"):
        load_graph(tmp_path / "absent")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="text is not a readable lgp graph file"):
        load_graph(tmp_path / "text")
    rows = {"neighbors": small().neighbors}
    save_file(rows, tmp_path / "bare")
    with pytest.raises(ValueError, match="format None version None; lgp-graph version 1 is read"):
        load_graph(tmp_path / "bare")
    save_graph(small(), tmp_path / "good")
    for header, told in (
        ({"format": "lgp-graph", "version": 2}, "lgp-graph version 2; lgp-graph version 1 is"),
        ({"format": "lgp-edits", "version": 1}, "format lgp-edits version 1; lgp-graph"),
    ):
        save_file(rows, tmp_path / "other", {"lgp": json.dumps(header)})
        with pytest.raises(ValueError, match=told):
            load_graph(tmp_path / "other")
    save_file({"vectors": torch.zeros(2, 2)}, tmp_path / "vectors")
    with pytest.raises(ValueError, match="vectors has format None version None; lgp-graph"):
        load_graph(tmp_path / "vectors")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([[1, 2], [0, -2], [1, 0]], r"1 rows hold an id below -1; first node 1: \[0, -2\]"),
        ([[1, 2], [0, 3], [3, 0]], r"2 rows hold an id above the last node 2; first node 1"),
        ([[1, 2], [0, 1], [1, 0]], r"1 rows hold an edge to itself; first node 1: \[0, 1\]"),
        ([[1, 2], [0, 2], [-1, 0]], r"1 rows hold an id after padding; first node 2: \[-1, 0\]"),
        ([[1, 1], [0, 2], [0, 0]], r"2 rows hold a repeated id; first node 0: \[1, 1\]"),
    ],
)
def test_broken_tables_are_refused(rows: list[list[int]], told: str) -> None:
    broken = torch.tensor(rows, dtype=torch.int32)
    with pytest.raises(ValueError, match=told):
        validate(Graph(broken, 0))
    whole = table([[1, 2], [0], []], 2)
    validate(Graph(whole, 2))
    with pytest.raises(ValueError, match=r"entry_node=3 is outside 0\.\.2"):
        validate(Graph(whole, 3))
    with pytest.raises(ValueError, match=r"torch.int64 \(3, 2\); int32 \[N, R\] is needed"):
        validate(Graph(whole.long(), 0))


def test_statistics_of_five_nodes_by_hand() -> None:
    # Edges 0>1 0>2 1>2 2>0 3>2; node 4 has none. From 0: {0, 1, 2}; nothing points to 3 and 4.
    graph = Graph(table([[1, 2], [2], [0], [2], []], 2), 0)
    assert reachable(graph).tolist() == [True, True, True, False, False]
    assert describe(graph) == {
        "n_nodes": 5, "n_edges": 5, "degree_mean": 5 / 5, "degree_min": 0, "degree_max": 2,
        "in_degree_max": 3, "n_in_degree_zero": 2, "n_unreachable": 2,
    }  # fmt: skip
    assert graph.degrees().tolist() == [2, 1, 1, 1, 0]
    # Row 0 in another order is the same set; rows 1 and 3 differ.
    after = Graph(table([[2, 1], [3], [0], [], []], 2), 0)
    assert changed_neighborhoods(graph, after) == 2 / 5
    assert changed_neighborhoods(graph, graph) == 0
