"""Refinement of a finished graph, its edit log, replay and undo."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    BACKENDS,
    TABLE,
    Case,
    Step,
    lists,
    make_case,
    refine_post,
    table,
    unit_clusters,
)
from safetensors.torch import load_file, save_file

from lgp.choices import ShortlistRule, VictimRule
from lgp.distance import Metric
from lgp.graph import Graph, validate
from lgp.kernels import use_backend
from lgp.points import make_points
from lgp.refine import post
from lgp.refine.log import Decisions, EditLog, Edits, Reason, apply_edits, undo_edits
from lgp.refine.select import Recorded, Scripted, Selector, farthest, first, nearest
from lgp.refine.step import Refiner, StepSettings, chosen_nodes
from lgp.vamana import VamanaSettings, build_vamana

SELECTORS: dict[str, Selector] = {"first": first, "nearest": nearest, "farthest": farthest}
CASES = st.builds(
    make_case, seed=st.integers(0, 9999), n=st.integers(3, 30), dims=st.integers(1, 3),
    high=st.integers(1, 7), max_degree=st.integers(1, 5),
)  # fmt: skip


def everyone(n: int) -> torch.Tensor:
    return torch.ones(n, dtype=torch.bool)


def refined(case: Case, refiner: Refiner, width: int = 5, batch: int = 0) -> tuple[Graph, EditLog]:
    base = case.graph(refiner.settings.alpha)
    graph, edits = post.refine_post(base, refiner.points, refiner, width, batch)
    header = {"when": "post", "base_sha256": base.digest(), "result_sha256": graph.digest()}
    return graph, EditLog(edits, refiner.all_decisions(), header)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    CASES, st.sampled_from(sorted(SELECTORS)), st.sampled_from(list(ShortlistRule)),
    st.sampled_from(list(VictimRule)), st.integers(0, 2), st.sampled_from([0, 1, 4]),
    st.booleans(), st.sampled_from(TABLE),
)  # fmt: skip
def test_post_refinement_equals_reference_and_comes_undone(
    backend: str, case: Case, selector: str, rule: ShortlistRule, victim: VictimRule,
    least_gain: int, batch: int, full: bool, table_bytes: int,
) -> None:  # fmt: skip
    case = case.full() if full else case
    degree, base = case.max_degree, case.graph()
    least_gain = min(least_gain, degree)
    step = StepSettings(2, 6, 2, least_gain, rule, victim, 1.2)
    refiner = Refiner(case.points(table_bytes), SELECTORS[selector], step, everyone(case.space.n))
    with use_backend(backend):
        graph, log = refined(case, refiner, 5, batch)
    slow = Step(case.space, degree, 2, 6, least_gain, 1.2, selector, rule.value, victim.value)
    rows, made = refine_post(slow, case.rows, case.entry, 5, batch)
    own = log.edits.own()
    fast: dict[int, list[int]] = {i: [] for i in range(case.space.n)}
    pairs = zip(log.edits.node[own].tolist(), log.edits.added[own].tolist(), strict=True)
    for node, added in pairs:
        fast[node].append(added)
    assert fast == made
    assert lists(graph.neighbors) == rows
    validate(graph)
    assert (graph.entry_node, graph.metric, graph.alpha) == (base.entry_node, Metric.l2, 1.2)
    assert apply_edits(base, log).digest() == graph.digest()
    assert undo_edits(graph, log).digest() == base.digest()


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=40)
@given(CASES, st.integers(0, 2), st.booleans())
def test_edits_keep_their_bounds(backend: str, case: Case, least_gain: int, full: bool) -> None:
    case = case.full() if full else case
    step = StepSettings(2, 6, 2, min(least_gain, case.max_degree))
    eligible = torch.from_numpy(case.rng.random(case.space.n) < 0.6)
    refiner = Refiner(case.points(), farthest, step, eligible)
    with use_backend(backend):
        graph, log = refined(case, refiner)
    validate(graph)
    own = log.edits.own()
    counts = torch.bincount(log.edits.node[own].long(), minlength=case.space.n)
    assert int(counts.max()) <= 2
    assert int(counts[~eligible].sum()) == 0
    assert log.decisions.anchors.tolist() == eligible.nonzero().flatten().tolist()
    assert log.decisions.placed.tolist() == counts[eligible].tolist()
    assert (log.edits.gain[own] >= step.min_gain(case.max_degree)).all()
    for node in log.edits.node[own].unique().tolist():  # never its own step's victim
        here = own & (log.edits.node == node)
        added, removed = log.edits.added[here].tolist(), log.edits.removed[here].tolist()
        assert not set(added) & set(removed)
    changed = (graph.neighbors != case.graph().neighbors).any(1).nonzero().flatten()
    assert set(changed.tolist()) <= set(log.edits.node.tolist())


@pytest.mark.parametrize("backend", BACKENDS)
@settings(deadline=None, derandomize=True, max_examples=40)
@given(CASES, st.integers(0, 2), st.integers(0, 3))
def test_matched_controls_honour_quotas_and_count_what_is_missing(
    backend: str, case: Case, least_gain: int, most: int
) -> None:
    n, least_gain = case.space.n, min(least_gain, case.max_degree)
    quota = case.rng.integers(0, most + 1, n).tolist()
    step = StepSettings(2, 6, 2, least_gain)
    refiner = Refiner(case.points(), nearest, step, everyone(n), torch.tensor(quota))
    with use_backend(backend):
        graph, log = refined(case, refiner)
    slow = Step(case.space, case.max_degree, 2, 6, least_gain, 1.2, "nearest", quota=quota)
    rows, made = refine_post(slow, case.rows, case.entry, 5)
    assert lists(graph.neighbors) == rows
    assert log.decisions.placed.tolist() == [len(made[i]) for i in range(n)]
    unmatched = torch.tensor(quota) - log.decisions.placed
    assert (unmatched >= 0).all()
    assert int(unmatched.sum()) == sum(quota) - int(log.edits.own().sum())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("selector", [nearest, first])
def test_a_control_matches_a_log_node_by_node_where_candidates_suffice(
    backend: str, selector: Selector
) -> None:
    case = make_case(9, 120, 3, 30, 6, least_degree=5)
    step = StepSettings(min_coverage_gain=2)
    with use_backend(backend):
        _, log = refined(case, Refiner(case.points(), farthest, step, everyone(120)), 20)
        placed = log.decisions.placed.long()
        control = Refiner(case.points(), selector, step, placed > 0, placed)
        _, matched = refined(case, control, 20)
    assert int(placed.sum()) > 150
    assert matched.decisions.placed.tolist() == placed[placed > 0].tolist()


# --- reciprocals by hand ----------------------------------------------------------------------

# On a line: 0 at 0, 1 at 1, 2 at 2, 3 at -1, 4 at 5, 5 at -3 (squared L2).
LINE = make_points(torch.tensor([[0.0], [1.0], [2.0], [-1.0], [5.0], [-3.0]]), Metric.l2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_reciprocals_append_or_prune_with_protection(backend: str) -> None:
    # Edges 2>0 and 4>0 are new; node 0 has 1 and room for one: D(0,2) = 4 comes before
    # D(0,4) = 25. 2 is appended: row 1, 2. Then 4 overflows: protected it leads, and of the rest
    # 1 (D(4,1) = 16 < 1 is false) is the nearest: row 4, 1.
    rows = table([[1], [], [0], [], [0], []], 2)
    sources, targets = torch.tensor([4, 2]), torch.tensor([0, 0])
    with use_backend(backend):
        changes = Edits.join(post.flat_reciprocals(1.0)(LINE, rows, sources, targets))
    assert lists(rows) == [[4, 1], [], [0], [], [0], []]
    named = [
        (slot, removed, added, Reason(reason).name)
        for slot, removed, added, reason in zip(
            changes.slot.tolist(), changes.removed.tolist(), changes.added.tolist(),
            changes.reason.tolist(), strict=True,
        )
    ]  # fmt: skip
    assert named == [
        (1, -1, 2, "reciprocal_append"), (0, 1, 4, "reciprocal_prune"),
        (1, 2, 1, "reciprocal_prune"),
    ]  # fmt: skip
    assert changes.node.tolist() == [0, 0, 0]
    assert changes.distance.tolist() == [4.0, 25.0, 1.0]
    assert not changes.own().any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reciprocal_that_an_earlier_one_pruned_away_is_inserted_again(backend: str) -> None:
    # Edges 1>0 and 2>0 are new, in this order (D(0,1) = 1, D(0,2) = 4). Node 0's row is 2, 5 and
    # full. 1 is inserted first: protected it leads, occludes 2 (1 < 4) but not 5 (16 < 9 is
    # false): row 1, 5. Now 2, which the row held before, is missing when its turn comes: it
    # leads, 1 stays (1 < 1 is false), R = 2: row 2, 1.
    rows = table([[2, 5], [0], [0], [], [], []], 2)
    with use_backend(backend):
        post.flat_reciprocals(1.0)(LINE, rows, torch.tensor([1, 2]), torch.tensor([0, 0]))
    assert lists(rows)[0] == [2, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_edge_back_that_exists_changes_nothing(backend: str) -> None:
    rows = table([[2, 3], [], [0], [], [], []], 2)
    with use_backend(backend):
        none = post.flat_reciprocals(1.2)(LINE, rows, torch.tensor([2]), torch.tensor([0]))
        empty = torch.zeros(0, dtype=torch.int64)
        nothing = post.flat_reciprocals(1.2)(LINE, rows, empty, empty)
    assert len(Edits.join(none).node) == len(Edits.join(nothing).node) == 0
    assert lists(rows)[0] == [2, 3]


# --- vanilla, seeds, threads -------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_refinement_without_edits_is_vanilla_bit_for_bit(backend: str) -> None:
    # 40 nodes with rows of 10: some 30 nodes are within two hops, so no candidate brings 10 more.
    case = make_case(7, 40, 3, 9, 10, least_degree=10)
    with use_backend(backend):
        for step in (StepSettings(edit_budget=0), StepSettings(min_coverage_gain=10)):
            refiner = Refiner(case.points(), farthest, step, everyone(40))
            graph, log = refined(case, refiner)
            assert graph.digest() == case.graph().digest()
            assert len(log.edits.node) == 0
            assert (refiner.account.picked > 40) == (step.edit_budget > 0)
        nobody = Refiner(case.points(), farthest, StepSettings(), ~everyone(40))
        assert refined(case, nobody)[0].digest() == case.graph().digest()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("table_bytes", TABLE)
def test_refinement_does_not_depend_on_the_thread_count(backend: str, table_bytes: int) -> None:
    rows, threads, digests = unit_clusters(300, 40, 8, seed=8), torch.get_num_threads(), []
    base = Graph(make_case(2, 300, 1, 9, 10, least_degree=9).graph().neighbors, 3)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            points = make_points(rows, table_bytes=table_bytes)
            refiner = Refiner(points, farthest, StepSettings(min_coverage_gain=3), everyone(300))
            with use_backend(backend):
                digests.append(post.refine_post(base, points, refiner, 20)[0].digest())
    finally:
        torch.set_num_threads(threads)
    assert digests[0] == digests[1] != base.digest()


def test_a_smaller_node_budget_chooses_a_subset() -> None:
    small, large = chosen_nodes(100, 0.25, 3), chosen_nodes(100, 0.8, 3)
    assert (int(small.sum()), int(large.sum())) == (25, 80)
    assert bool((large | ~small).all())
    assert not torch.equal(small, chosen_nodes(100, 0.25, 4))
    assert bool(chosen_nodes(7, 1.0, 0).all())
    for beta in (0.0, 1.01):
        with pytest.raises(ValueError, match=rf"node_budget={beta} is outside \(0, 1\]; set"):
            chosen_nodes(10, beta, 0)


def test_shares_of_nodes_are_not_lost_to_rounding() -> None:
    # 0.29 * 100 is 28.999999999999996 and 0.07 * 100 is 7.000000000000001 in floats.
    for percent in range(1, 101):
        assert int(chosen_nodes(100, percent / 100, 0).sum()) == percent


def test_g_min_follows_the_degree_and_is_refused_above_it() -> None:
    # min(12, ceil(0.75 R)): R 16 gives the paper's 12; R 8: 6; R 5: ceil(3.75) = 4; R 64: 12.
    assert [StepSettings().min_gain(r) for r in (1, 5, 8, 16, 64)] == [1, 4, 6, 12, 12]
    assert StepSettings(min_coverage_gain=0).min_gain(4) == 0
    for gain in (-1, 5):
        with pytest.raises(ValueError, match=rf"min_coverage_gain={gain} is outside 0\.\.4"):
            StepSettings(min_coverage_gain=gain).min_gain(4)


# --- the log ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample() -> tuple[Case, Graph, EditLog]:
    case = make_case(12, 60, 2, 12, 5, least_degree=4)
    step = StepSettings(min_coverage_gain=1)
    return (case, *refined(case, Refiner(case.points(), farthest, step, everyone(60)), 12))


def test_a_saved_log_comes_back_the_same(
    sample: tuple[Case, Graph, EditLog], tmp_path: Path
) -> None:
    case, graph, log = sample
    log.save(tmp_path / "edits")
    back = EditLog.load(tmp_path / "edits")
    assert len(log.edits.node) > 100
    assert set(log.edits.reason.tolist()) >= {Reason.replace, Reason.reciprocal_prune}
    for part, kind in (("edits", Edits), ("decisions", Decisions)):
        for field in fields(kind):
            old, new = (getattr(getattr(x, part), field.name) for x in (log, back))
            assert torch.equal(old, new) and old.dtype == new.dtype, field.name
    assert log.header.items() <= back.header.items()
    assert apply_edits(case.graph(), back).digest() == graph.digest()
    assert undo_edits(graph, back).digest() == case.graph().digest()


def test_replay_wants_the_graph_and_the_kind_of_its_header(
    sample: tuple[Case, Graph, EditLog],
) -> None:
    case, graph, log = sample
    base = case.graph()
    told = f"sha256 {graph.digest()[:12]}... is not the log's base_sha256 {base.digest()[:12]}"
    with pytest.raises(ValueError, match=told):
        apply_edits(graph, log)
    told = f"sha256 {base.digest()[:12]}... is not the log's result_sha256 {graph.digest()[:12]}"
    with pytest.raises(ValueError, match=told):
        undo_edits(base, log)
    of_build = EditLog(log.edits, log.decisions, log.header | {"when": "build"})
    for rewrite in (apply_edits, undo_edits):
        with pytest.raises(ValueError, match=r"refine\.when=build; a build is replayed with"):
            rewrite(base, of_build)


def test_damaged_and_foreign_logs_are_refused(
    sample: tuple[Case, Graph, EditLog], tmp_path: Path
) -> None:
    path = tmp_path / "edits"
    with pytest.raises(ValueError, match=r"edits is not a file; give the edits\.safetensors"):
        EditLog.load(path)
    sample[2].save(path)
    data = path.read_bytes()
    for length in (0, 7, 8, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match="edits is not a readable lgp edit log"):
            EditLog.load(path)
    path.write_bytes(data)
    tensors = load_file(path)
    for header in ({"format": "lgp-graph", "version": 1}, {"format": "lgp-edits", "version": 2}):
        save_file(tensors, path, {"lgp": json.dumps(header)})
        with pytest.raises(ValueError, match="is not a readable lgp edit log: format"):
            EditLog.load(path)
    del tensors["edit_gain"]
    header = {"format": "lgp-edits", "version": 1}
    save_file(tensors, path, {"lgp": json.dumps(header)})
    with pytest.raises(ValueError, match="is not a readable lgp edit log"):
        EditLog.load(path)


def test_a_damaged_log_never_replays_to_another_graph(
    sample: tuple[Case, Graph, EditLog], tmp_path: Path
) -> None:
    # One added id is changed to another valid one: neither load nor replay may pass it over.
    case, _, log = sample
    added = log.edits.added.clone()
    at = int(log.edits.own().nonzero()[-1])
    added[at] = (added[at] + 1) % 60
    with pytest.raises(ValueError):
        apply_edits(case.graph(), replace(log, edits=replace(log.edits, added=added)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("when", ["build", "post"])
def test_recorded_decisions_rebuild_the_same_graph(backend: str, when: str) -> None:
    case = make_case(5, 80, 3, 20, 6, least_degree=6)
    step, seen = StepSettings(min_coverage_gain=2), chosen_nodes(80, 0.7, 1)

    def run(selector: Selector) -> tuple[Graph, EditLog]:
        refiner = Refiner(case.points(), selector, step, seen)
        if when == "post":
            return refined(case, refiner, 12)
        graph = build_vamana(refiner.points, VamanaSettings(6, 12, 1.2, 8), refiner)
        return graph, EditLog(refiner.all_edits(), refiner.all_decisions(), {"when": "build"})

    with use_backend(backend):
        graph, log = run(farthest)
        again, second = run(Recorded.from_log(log, 80))
    assert int(log.decisions.placed.sum()) > 40
    assert again.digest() == graph.digest()
    for field in fields(Edits):
        assert torch.equal(getattr(log.edits, field.name), getattr(second.edits, field.name))


def test_an_account_of_the_answers() -> None:
    case = make_case(3, 30, 2, 9, 4, least_degree=3)
    answers = {i: [x for x in range(30) if x != i] for i in range(10)}
    step = StepSettings(min_coverage_gain=0)
    refiner = Refiner(case.points(), Scripted(answers), step, everyone(30))
    _, log = refined(case, refiner)
    account = refiner.account
    assert (account.anchors, account.chosen, account.none, account.unreadable) == (30, 10, 20, 0)
    assert account.picked == 20 == int(log.decisions.placed.sum())


def test_another_index_may_bring_its_own_search_and_reciprocals() -> None:
    case = make_case(3, 30, 2, 9, 4, least_degree=4)
    asked: list[int] = []

    def visited(graph: Graph, anchors: torch.Tensor) -> torch.Tensor:
        asked.extend(anchors.tolist())
        return torch.full((len(anchors), 1), -1, dtype=torch.int32)

    refiner = Refiner(
        case.points(), farthest, StepSettings(min_coverage_gain=1), everyone(30), fixed_degree=True
    )
    graph, edits = post.refine_post(
        case.graph(), case.points(), refiner, 5, 0, lambda *args: [], visited
    )
    assert asked == list(range(30))
    assert torch.equal(graph.degrees(), case.graph().degrees())
    assert bool(edits.own().all()) and len(edits.node) > 10
