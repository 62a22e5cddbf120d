"""Repair: the batched code against the rule written out, and what a graph may never lose by it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lgp.choices import RepairSource, VictimRule
from lgp.cli import compose, main
from lgp.distance import Metric, Points, exact_knn
from lgp.graph import Graph, load_graph, validate
from lgp.hnsw_file import load_hnsw
from lgp.points import make_points
from lgp.refine.log import EditLog, Reason, apply_edits, undo_edits
from lgp.refine.repair import RepairSettings, decisions_of, miss_rate, repair
from lgp.refine.replace import choose_victim
from lgp.repairs import repair_inputs
from lgp.search import QueryDistances, best_seen, walk
from lgp.store import digest_of
from lgp.vamana import VamanaSettings, build_vamana


@pytest.fixture(scope="module")
def made() -> tuple[Points, Graph, Tensor]:
    draw = torch.Generator().manual_seed(3)
    points = make_points(torch.randint(0, 9, (150, 6), generator=draw).float(), Metric.l2)
    graph = build_vamana(points, VamanaSettings(5, 12, 1.2, 0, 0))
    return points, graph, torch.randint(0, 9, (90, 6), generator=draw).float()


def by_hand(
    points: Points, graph: Graph, queries: Tensor, settings: RepairSettings, allowed: set[int]
) -> tuple[list[list[int]], list[tuple[int, int, int]]]:
    """One query after the other: search, and an edge to every nearest allowed node it lacks.

    Returns: rows without padding, and the edges (source, removed or -1, target) in order.
    """
    rows = [[x for x in row if x >= 0] for row in graph.neighbors.tolist()]
    new: set[tuple[int, int]] = set()
    edges = []
    order = torch.randperm(len(queries), generator=torch.Generator().manual_seed(settings.seed))
    bound = graph.max_degree

    def table() -> Tensor:
        return torch.tensor([[*row, *[-1] * (bound - len(row))] for row in rows], dtype=torch.int32)

    for query in order.tolist():
        now = Graph(table(), graph.entry_node, graph.metric, graph.alpha)
        asked = queries[query : query + 1]
        log = walk(now, QueryDistances(points, queries=asked).with_table(), [settings.width])
        found = [x for x in best_seen(log, log.stops, settings.width)[0][0, 0].tolist()
                 if x in allowed]  # fmt: skip
        path = [x for x in log.visited[0].tolist() if x in allowed]
        nearest = [x for x in exact_knn(points, asked, points.n)[1][0].tolist() if x in allowed]
        for target in nearest[: settings.targets]:
            if target in found:
                continue
            to_target = points.rows(torch.tensor([target]))[0]

            def widened(source: int, target: int = target) -> int:
                reach = {source, *rows[source], *(y for x in rows[source] for y in rows[x])}
                return len(set(rows[target]) - reach)

            near = sorted(found, key=lambda x, d=to_target: float(d[x]))
            candidates = {
                RepairSource.closest: found,
                RepairSource.target: near,
                RepairSource.path: sorted(path, key=lambda x, d=to_target: float(d[x])),
                RepairSource.coverage: sorted(near, key=lambda x: -widened(x)),
            }[settings.source]
            for source in candidates:
                if source == target:
                    continue
                if target in rows[source]:
                    break
                if len(rows[source]) < bound:
                    rows[source].append(target)
                    edges.append((source, -1, target))
                else:
                    shield = torch.tensor([[(source, x) in new for x in rows[source]]])
                    anchor = torch.tensor([source])
                    slot = int(choose_victim(points, table(), anchor, table()[anchor], shield,
                                             VictimRule.lexicographic)[0])  # fmt: skip
                    if slot < 0:
                        continue
                    edges.append((source, rows[source][slot], target))
                    new.discard((source, rows[source][slot]))
                    rows[source][slot] = target
                new.add((source, target))
                break
    return rows, edges


@pytest.mark.parametrize("left_out", [0, 40])
@pytest.mark.parametrize("source", list(RepairSource))
def test_batch_1_is_the_rule(
    made: tuple[Points, Graph, Tensor], source: RepairSource, left_out: int
) -> None:
    points, graph, queries = made
    settings = RepairSettings(width=4, targets=2, source=source, batch_size=1, seed=5)
    allowed = torch.ones(graph.n, dtype=torch.bool)
    allowed[torch.randperm(graph.n, generator=torch.Generator().manual_seed(6))[:left_out]] = False
    kept = set(allowed.nonzero().flatten().tolist())
    done = repair(graph, points, queries, settings, allowed=allowed)
    rows, edges = by_hand(points, graph, queries, settings, kept)
    assert {node for source, _, target in edges for node in (source, target)} <= kept
    assert len(edges) > 20
    found = list(zip(done.edits.node.tolist(), done.edits.removed.tolist(),
                     done.edits.added.tolist(), strict=True))  # fmt: skip
    assert found == edges
    assert [[x for x in row if x >= 0] for row in done.graph.neighbors.tolist()] == rows


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_what_a_repair_keeps_and_what_it_gains(
    made: tuple[Points, Graph, Tensor], batch_size: int
) -> None:
    points, graph, queries = made
    settings = RepairSettings(width=4, targets=2, batch_size=batch_size)
    done = repair(graph, points, queries[:60], settings, queries[60:])
    validate(done.graph)
    assert done.graph.max_degree == graph.max_degree
    assert bool((done.graph.degrees() >= graph.degrees()).all())
    assert done.miss_after < done.miss_before
    assert done.miss_before == miss_rate(graph, points, queries[:60], 4, 2)
    assert done.held_out == (
        miss_rate(graph, points, queries[60:], 4, 2),
        miss_rate(done.graph, points, queries[60:], 4, 2),
    )
    # No edge of a repair was given up again: all are in the final rows.
    for node, added in zip(done.edits.node.tolist(), done.edits.added.tolist(), strict=True):
        assert added in done.graph.neighbors[node].tolist()
    header = {"when": "post", "base_sha256": graph.digest(), "result_sha256": done.graph.digest()}
    log = EditLog(done.edits, decisions_of(done.edits), header)
    assert apply_edits(graph, log).digest() == done.graph.digest()
    assert undo_edits(done.graph, log).digest() == graph.digest()
    assert bool(done.edits.own().all())
    assert int(log.decisions.quota(graph.n).sum()) == len(done.edits.node)


def test_the_miss_rate_counts_pairs(made: tuple[Points, Graph, Tensor]) -> None:
    points, graph, queries = made
    lost = 0
    for query in range(len(queries)):
        one = queries[query : query + 1]
        log = walk(graph, QueryDistances(points, queries=one).with_table(), [3])
        found = set(best_seen(log, log.stops, 3)[0][0, 0].tolist())
        lost += len(set(exact_knn(points, one, 2)[1][0].tolist()) - found)
    assert miss_rate(graph, points, queries, 3, 2) == lost / (2 * len(queries)) > 0
    assert miss_rate(graph, points, queries[:0], 3, 2) == 0.0


def test_limits_and_shields(made: tuple[Points, Graph, Tensor]) -> None:
    points, graph, queries = made
    settings = RepairSettings(width=4, targets=2)
    free = repair(graph, points, queries, settings)
    few = repair(graph, points, queries, replace(settings, edit_limit=7))
    assert len(few.edits.node) == 7
    assert few.edits.added.tolist() == free.edits.added[:7].tolist()
    capped = repair(graph, points, queries, replace(settings, node_limit=1))
    assert int(torch.bincount(capped.edits.node.long()).max()) == 1
    all_shielded = torch.ones_like(graph.neighbors, dtype=torch.bool)
    kept = repair(graph, points, queries, settings, shielded=all_shielded)
    assert set(kept.edits.reason.tolist()) <= {int(Reason.repair_append)}
    assert kept.unplaced > 0


def test_passes_end_when_unseen_queries_gain_no_more(made: tuple[Points, Graph, Tensor]) -> None:
    points, graph, queries = made
    settings = RepairSettings(width=4, targets=2, passes=50)
    done = repair(graph, points, queries[:60], settings, queries[60:])
    *earlier, last = done.held_out
    assert 2 <= len(done.held_out) < 51
    assert all(a > b for a, b in pairwise(earlier))
    # It ended because the last pass did not help the unseen, or because nothing was left to add.
    assert last >= earlier[-1] or done.miss_after == 0


SMALL = ["search.widths=[10,20]", "search.budgets=[40]", "index.max_degree=6", "refine=repair"]


def run(place: Path, *words: str) -> dict:  # type: ignore[type-arg]
    line = [*SMALL, *words, f"run_dir={place / 'run'}", f"store_dir={place / 'store'}"]
    assert main(line) == 0
    summary: dict = json.loads((place / "run" / "summary.json").read_text())  # type: ignore[type-arg]
    return summary


@pytest.mark.slow
def test_a_run_with_controls_and_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["refine.controls=[uniform]", "repair.held_out=0.5", "repair.width=5"]
    summary = run(tmp_path, *words)
    vanilla, repaired, control = summary["graphs"]
    assert (repaired["selector"], control["selector"]) == ("repair", "uniform")
    assert repaired["n_edits"] > 0 and control["n_edits_wanted"] == repaired["n_edits"]
    # Half of the 480 texts (a title and a first sentence a document, repeats once) is held out.
    total = sum(repaired["latent_queries"].values())
    assert set(repaired["latent_queries"]) == {"title", "first_sentence"}
    assert repaired["latent_held_out"] == total // 2
    before, after = repaired["miss_rate"]
    assert after < before and len(repaired["miss_rate_held_out"]) == 2
    log = EditLog.load(tmp_path / "run" / "edits-repair-0.safetensors")
    stages = tmp_path / "store"
    base = load_graph(stages / vanilla["stage"] / "graph.safetensors")
    result = load_graph(stages / repaired["stage"] / "graph.safetensors")
    assert apply_edits(base, log).digest() == result.digest()
    assert undo_edits(result, log).digest() == base.digest()
    assert "repair vs uniform" in (tmp_path / "run" / "report.md").read_text()
    # A repair's edges come after a selector's: they are no decisions that one could make again.
    log_word = f"refine.log={tmp_path / 'run' / 'edits-repair-0.safetensors'}"
    again = [*SMALL[:-1], "refine=recorded", log_word]
    capsys.readouterr()
    assert main([*again, f"run_dir={tmp_path / 'again'}", f"store_dir={stages}"]) == 2
    assert "is the log of refine.method=repair" in capsys.readouterr().err


@pytest.mark.slow
def test_both_methods_and_an_hnsw(tmp_path: Path) -> None:
    both = ["refine=farthest", "refine.method=lgp+repair", "refine.when=post", "repair.width=4",
            "repair.protect=true"]  # fmt: skip
    summary = run(tmp_path / "a", *both)
    vanilla, graph = summary["graphs"]
    assert graph["selector"] == "farthest+repair"
    log = EditLog.load(tmp_path / "a" / "run" / "edits-farthest+repair-0.safetensors")
    assert {int(Reason.append), int(Reason.replace)} & set(log.edits.reason.tolist())
    assert {int(Reason.repair_append), int(Reason.repair_replace)} & set(log.edits.reason.tolist())
    base = load_graph(tmp_path / "a" / "store" / vanilla["stage"] / "graph.safetensors")
    assert apply_edits(base, log).digest() == graph["graph_sha256"]
    hnsw = ["index=hnsw", "index.max_degree=16", "index.connectivity=3", "repair.width=3",
            "repair.targets=2", "search.widths=[10]"]  # fmt: skip
    summary = run(tmp_path / "b", *hnsw)
    vanilla, graph = summary["graphs"]
    before, after = (
        load_hnsw(tmp_path / "b" / "store" / g["stage"] / "graph.safetensors")
        for g in (vanilla, graph)
    )
    assert graph["n_edits"] > 0 and before.base.digest() != after.base.digest()
    assert [u.rows.tolist() for u in before.upper] == [u.rows.tolist() for u in after.upper]
    validate(after.base)


@pytest.mark.slow
def test_repaired_graphs_depend_on_what_they_are_made_of(tmp_path: Path) -> None:
    first = run(tmp_path, "repair.width=5")["graphs"][1]
    assert run(tmp_path, "repair.width=5")["graphs"][1]["stage"] == first["stage"]
    log = tmp_path / "log.txt"
    log.write_text("kapida losune\n")
    others = [
        run(tmp_path, "repair.width=6"), run(tmp_path, "repair.width=5", "repair.queries=[title]"),
        run(tmp_path, "repair.width=5", "repair.queries=[log]", f"repair.file={log}"),
    ]  # fmt: skip
    stages = [o["graphs"][1]["stage"] for o in others]
    log.write_text("kapida losune\nbavoti\n")
    changed = run(tmp_path, "repair.width=5", "repair.queries=[log]", f"repair.file={log}")
    assert len({first["stage"], *stages, changed["graphs"][1]["stage"]}) == 5


@pytest.mark.slow
def test_a_language_model_writes_for_the_nodes_that_the_budget_pays(
    tmp_path: Path, tiny_qwen3: Path
) -> None:
    line = [
        "repair.queries=[title,llm]", f"llm.model={tiny_qwen3}", "prompt=general", "repair.width=5",
        "repair.new_tokens=6", "repair.document_tokens=8", "refine.node_order=blind_spots",
    ]  # fmt: skip
    written, tokens = [], []
    for budget in (0.1, 0.2):
        repaired = run(tmp_path, *line, f"refine.node_budget={budget}")["graphs"][1]
        assert repaired["n_eligible"] == int(budget * 240)
        assert repaired["latent_queries"]["title"] == 232  # of 240 documents, repeats once
        facts, account = repaired["written"], repaired["account"]
        written.append(facts["asked"] + facts["replayed"])
        tokens.append(account["used_tokens"])
        assert account["used_tokens"] == facts["used_tokens"] >= account["tokens"] > 0
    assert written == [24, 48] and facts["replayed"] == 24  # the first budget's are not asked anew
    assert tokens[0] < tokens[1]
    both = ["refine.method=lgp+repair", "refine.selector=llm", "refine.when=post",
            "llm.mode=constrained", "llm.anchor_tokens=8", "llm.document_tokens=8",
            "refine.node_budget=0.1"]  # fmt: skip
    account = run(tmp_path, *line, *both)["graphs"][1]["account"]
    assert account["used_tokens"] > tokens[0] and account["replayed"] >= 24


def test_a_repair_depends_on_how_its_queries_are_embedded() -> None:
    """Document vectors may be equal where query vectors are not."""
    line = ["refine=repair", "embedder=hf", "embedder.model=minilm"]
    plain, told = (
        repair_inputs(compose([*line, *more]), "texts")
        for more in ([], ["embedder.query_template='query: {text}'"])
    )
    assert digest_of(plain) != digest_of(told)
    assert digest_of(plain) == digest_of(repair_inputs(compose(line), "texts"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["refine.selector=farthest"], "lgp+repair"),
        (["refine.method=lgp+repair"], "other than none"),
        (["repair.targets=11"], "repair.width"),
        (["repair.held_out=1"], "held_out"),
        (["repair.queries=[log]"], "repair.file"),
        (["repair.queries=[]"], "at least one"),
        (["repair.passes=0"], "repair.passes"),
        (["refine.node_budget=0.5"], "nothing is asked that could be rationed"),
        (["embedder=precomputed", "embedder.document_vectors=a", "embedder.query_vectors=b"], "a"),
    ],
)
def test_wrong_settings_are_told(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *words, f"run_dir={tmp_path}", f"store_dir={tmp_path / 's'}"]) == 2
    assert said in capsys.readouterr().err
