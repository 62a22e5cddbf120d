"""Graph-structure diagnostics: against slow definitions, by hand, on HNSW, and in a run folder."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import Rows, lists, make_case, table, unit_clusters

from lgp.cli import main
from lgp.distance import Metric
from lgp.graph import Graph, describe, reachable
from lgp.hnsw_build import HnswSettings, build_hnsw
from lgp.points import make_points
from lgp.structure import structure
from lgp.summary import graph_lines, structure_clause


def line_points(n: int) -> Any:
    """Nodes at 0, 1, 2, ... on a line, under squared L2."""
    return make_points(torch.arange(n).float().unsqueeze(1), Metric.l2, 0)


# --- the definitions again, slowly ------------------------------------------------------------


def hops_from(rows: Rows, start: int) -> dict[int, int]:
    """Fewest edges from a node to each node it reaches."""
    found, queue = {start: 0}, deque([start])
    while queue:
        node = queue.popleft()
        for other in rows[node]:
            if other not in found:
                found[other] = found[node] + 1
                queue.append(other)
    return found


def components(rows: Rows) -> list[frozenset[int]]:
    """Strongly connected components: nodes that reach each other, both ways looked at."""
    reach = [set(hops_from(rows, node)) for node in range(len(rows))]
    mutual = (
        frozenset(b for b in reach[a] if a in reach[b]) for a in range(len(rows))
    )  # a node reaches itself
    return sorted(set(mutual), key=len, reverse=True)


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest ranks."""
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def doubling(values: Sequence[int]) -> list[list[int]]:
    bins = [[0, 0, values.count(0)]]
    low = 1
    while low <= max(values):
        high = 2 * low - 1
        bins.append([low, high, sum(low <= v <= high for v in values)])
        low *= 2
    return bins


def exact(values: Sequence[int]) -> list[list[int]]:
    return [[v, v, count] for v, count in sorted(Counter(values).items())]


def slow(rows: Rows, entry: int, lengths: Sequence[float]) -> dict[str, Any]:
    n, n_edges = len(rows), sum(map(len, rows))
    in_degree = [sum(node in row for row in rows) for node in range(n)]
    hubs = sorted(range(n), key=lambda node: (-in_degree[node], node))[: max(1, n // 100)]
    hops = list(hops_from(rows, entry).values())
    parts = components(rows)

    def spread(values: Sequence[float], **asked: int) -> dict[str, float]:
        values = values or [0.0]
        found = {name: percentile(values, at) for name, at in asked.items()}
        middle = {"mean": sum(values) / len(values), "median": percentile(values, 50)}
        return found | middle | {"max": max(values)}

    return {
        "degree_histogram": exact([len(row) for row in rows]),
        "in_degree": spread(in_degree, p90=90, p99=99)
        | {"zero": in_degree.count(0), "histogram": doubling(in_degree)},
        "hub_share": sum(in_degree[node] for node in hubs) / max(1, n_edges),
        "strongly_connected_share": len(parts[0]) / n,
        "n_strong_components": len(parts),
        "reachable_share": len(hops) / n,
        "edge_length": spread(lengths, p10=10, p90=90),
        "path_length": spread(hops) | {"histogram": exact(hops)},
    }


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(place, leaf) of nested dicts and lists."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from flat(inner, f"{path}[{at}]")
    else:
        yield path, value


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert dict(flat(found)) == pytest.approx(dict(flat(expected)), rel=1e-9, abs=1e-12)


# --- tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("table_bytes", [0, 1 << 30])
@pytest.mark.parametrize("seed", range(12))
def test_equals_the_slow_definitions(seed: int, table_bytes: int) -> None:
    # 250 nodes have two hubs; degree bounds of 1 and 2 leave many nodes out of reach.
    n, bound = [(1, 1), (2, 1), (9, 2), (40, 1), (40, 3), (250, 2)][seed % 6]
    case = make_case(seed, n, 3, 6, bound)
    lengths = [float(case.space.between(i, z)) for i, row in enumerate(case.rows) for z in row]
    graph = case.graph()
    found = structure(graph, case.points(table_bytes))
    assert_same(found, slow(case.rows, case.entry, lengths))
    facts = describe(graph)
    assert found["in_degree"]["max"] == facts["in_degree_max"]
    assert found["in_degree"]["zero"] == facts["n_in_degree_zero"]
    assert found["reachable_share"] == float(reachable(graph).double().mean())


def test_a_graph_by_hand() -> None:
    # 0 -> 1 -> 2 -> 0 is a cycle, 2 -> 3 -> 4 leads out of it, 5 -> 0 into it; 4 has no edge.
    graph = Graph(table([[1], [2], [0, 3], [4], [], [0]], 2), 1, Metric.l2)
    assert structure(graph, line_points(6)) == {
        "degree_histogram": [[0, 0, 1], [1, 1, 4], [2, 2, 1]],
        # in-degrees 2 1 1 1 1 0
        "in_degree": {
            "mean": 1.0, "median": 1.0, "p90": 1.5, "p99": pytest.approx(1.95), "max": 2,
            "zero": 1, "histogram": [[0, 0, 1], [1, 1, 4], [2, 3, 1]],
        },
        "hub_share": pytest.approx(2 / 6),
        "strongly_connected_share": 0.5,
        "n_strong_components": 4,
        "reachable_share": pytest.approx(5 / 6),
        # squared lengths 1 1 4 1 1 25
        "edge_length": {
            "mean": 5.5, "median": 1.0, "p10": 1.0, "p90": pytest.approx(14.5), "max": 25.0,
        },
        # from 1: itself 0, 2 by 1, 0 and 3 by 2, 4 by 3; 5 is out of reach
        "path_length": {
            "mean": pytest.approx(8 / 5), "median": 2.0, "max": 3,
            "histogram": [[0, 0, 1], [1, 1, 1], [2, 2, 2], [3, 3, 1]],
        },
    }  # fmt: skip


def test_one_node_without_edges_gives_finite_plain_numbers() -> None:
    found = structure(Graph(table([[]], 4), 0), make_points(torch.tensor([[0.6, 0.8]])))
    assert found["strongly_connected_share"] == found["reachable_share"] == 1.0
    assert found["hub_share"] == found["edge_length"]["max"] == found["path_length"]["max"] == 0
    assert found["in_degree"]["histogram"] == [[0, 0, 1]]
    assert all(type(leaf) in (int, float) and math.isfinite(leaf) for _, leaf in flat(found))
    assert json.loads(json.dumps(found)) == found


def test_hubs_are_one_node_in_a_hundred_and_ties_do_not_matter() -> None:
    # 200 nodes have two hubs. Node i < 197 points to 197, 198 or 199 in turn: 66, 66 and 65 edges.
    rows = [[197 + i % 3] for i in range(197)] + [[], [], []]
    found = structure(Graph(table(rows, 1), 0, Metric.l2), line_points(200))
    assert found["hub_share"] == pytest.approx((66 + 66) / 197)
    even = [[(i + 1) % 200] for i in range(200)]  # a ring: everyone is tied
    ring = structure(Graph(table(even, 1), 5, Metric.l2), line_points(200))
    assert ring["hub_share"] == pytest.approx(2 / 200)
    assert (ring["strongly_connected_share"], ring["n_strong_components"]) == (1.0, 1)
    assert ring["path_length"]["max"] == 199


def test_lengths_are_in_the_metric_of_the_points() -> None:
    half = math.sqrt(0.5)
    vectors = torch.tensor([[1.0, 0.0], [half, half], [0.0, 1.0], [1.0, 0.0]])
    rows = table([[1, 2, 3], [], [], [0]], 3)
    cosine = structure(Graph(rows, 0), make_points(vectors))["edge_length"]
    assert cosine["max"] == 1.0  # 1 - cos of a right angle
    assert cosine["mean"] == pytest.approx((1 - half + 1) / 4)  # copies lie at 0 exactly
    squared = structure(Graph(rows, 0, Metric.l2), make_points(vectors, Metric.l2))["edge_length"]
    assert squared["max"] == 2.0


def test_the_base_layer_of_an_hnsw_is_walked_from_the_entry_of_the_index() -> None:
    points = make_points(unit_clusters(150, 8, 5, 3))
    index = build_hnsw(points, HnswSettings(connectivity=3, construction_width=20, seed=1))
    assert index.upper
    rows = lists(index.base.neighbors)
    lengths = [float(points.rows(torch.tensor([i]))[0, z]) for i, r in enumerate(rows) for z in r]
    found = structure(index.base, points)
    expected = slow(rows, index.entry_node, lengths)
    close = found.pop("edge_length"), expected.pop("edge_length")
    assert_same(found, expected)
    assert close[0] == pytest.approx(close[1], abs=1e-6)  # two ways to the same float32 product


def test_the_sentence_of_a_graph_says_it_shortly_and_old_folders_still_read(tmp_path: Path) -> None:
    said = structure_clause(
        {"strongly_connected_share": 0.987, "path_length": {"mean": 4.256}, "hub_share": 0.0444}
    )
    assert said == (
        "98.7 % strongly connected, 4.26 hops from the entry on average, 4.4 % of edges to the "
        "1 % best linked nodes"
    )
    old = {
        "dataset": "d", "n_documents": 2, "n_nodes": 2, "n_queries": 1,
        "n_queries_without_relevant": 0, "n_short_lists": 0,
        "graphs": [
            {
                "graph": "vanilla", "selector": "none", "seed": 0, "degree_mean": 1.0,
                "degree_min": 1, "degree_max": 1, "in_degree_max": 1, "n_unreachable": 0,
            }
        ],
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(old))
    assert graph_lines(tmp_path)[1].endswith("largest in-degree 1, 0 nodes unreachable.")


@pytest.mark.slow
@pytest.mark.parametrize("index", ["diskann", "hnsw"])
def test_a_run_writes_it_beside_every_graph_and_not_into_stages(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lgp"])
    words = ["search.widths=[10]", "search.budgets=[]", "run_dir=out", f"index={index}"]
    assert main(["dataset=toy", "refine=farthest", *words]) == 0
    graphs = json.loads((tmp_path / "out" / "summary.json").read_text())["graphs"]
    assert [g["graph"] for g in graphs] == ["vanilla", "refined"]
    for graph in graphs:
        found = graph["structure"]
        assert found["in_degree"]["max"] == graph["in_degree_max"]
        assert found["reachable_share"] == pytest.approx(1 - graph["n_unreachable"] / 240)
        assert sum(count for _, _, count in found["degree_histogram"]) == 240
        assert sum(low * count for low, _, count in found["degree_histogram"]) == graph["n_edges"]
        assert structure_clause(found) in (tmp_path / "out" / "report.md").read_text()
    for manifest in (tmp_path / "lgp-store").glob("*/manifest.json"):
        assert "structure" not in manifest.read_text()
