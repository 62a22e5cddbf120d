"""Repair: edges where searches for stand-in queries get stuck. Ours, not in the paper.

In: a finished graph and vectors of queries that nobody judged (titles, a log, queries a language
model wrote). Out: the graph with edges added, every slot change, and how often the nearest
documents were missed before and after. For each query a search of some width runs; where one of the
query's exact nearest nodes is not in its result, an edge to it is added from a node that the search
did find. Edges added here are never replaced here; the degree bound holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from lgp.choices import RepairSource, VictimRule
from lgp.distance import Points, exact_knn
from lgp.graph import Graph
from lgp.refine.coverage import coverage_gain
from lgp.refine.log import Decisions, Edits, Reason, Status
from lgp.refine.replace import choose_victim
from lgp.search import QueryDistances, best_seen, query_blocks, walk


@dataclass(frozen=True)
class RepairSettings:
    """Knobs of a repair.

    Attributes:
        width: of the searches. targets: exact nearest nodes of a query that its result must hold.
        source: which found node gets the edge.
        batch_size: queries searched on one state of the graph; 1 = one after the other.
        passes: times all queries are gone through, at most; with held-out queries it ends earlier
            when their miss rate no longer falls.
        edit_limit: edges added in all, None = no bound. node_limit: edges added at a node, None =
            its degree bound.
        seed: of the order of queries.
    """

    width: int = 10
    targets: int = 3
    source: RepairSource = RepairSource.target
    batch_size: int = 64
    passes: int = 1
    edit_limit: int | None = None
    node_limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.targets <= self.width:
            raise ValueError(
                f"targets={self.targets} is outside 1..{self.width}, the results of a search of "
                "that width; raise width"
            )


@dataclass(frozen=True)
class Repaired:
    """A repaired graph.

    Attributes:
        miss_before, miss_after: share of (query, target) pairs not in the results of `width`,
            over the queries repaired for. held_out: the same of the held-out queries before and
            after each pass; empty without any.
        unplaced: missed targets for which no found node had a slot to give.
    """

    graph: Graph
    edits: Edits
    miss_before: float
    miss_after: float
    held_out: tuple[float, ...]
    unplaced: int


def repair(
    graph: Graph,
    points: Points,
    queries: Tensor,
    settings: RepairSettings,
    held_out: Tensor | None = None,
    shielded: Tensor | None = None,
    starts: Tensor | None = None,
    held_out_starts: Tensor | None = None,
    allowed: Tensor | None = None,
    progress: bool = False,
) -> Repaired:
    """Add the edges that searches for these queries lack.

    Args:
        queries: float32 [Q, D]. held_out: float32 [H, D], only measured.
        shielded: bool [N, R], slots that may not be given up; None = all may.
        starts, held_out_starts: node each search starts from, int64 [Q], [H]; None = the entry.
        allowed: bool [N], nodes that may get or be the end of an edge; None = all.
    """
    rows = graph.neighbors.clone()
    new = torch.zeros_like(rows, dtype=torch.bool) if shielded is None else shielded.clone()
    placed = torch.zeros(graph.n, dtype=torch.int64, device=rows.device)
    exact = nearest(points, queries, settings.targets, allowed)
    draw = torch.Generator().manual_seed(settings.seed)
    changes: list[Edits] = []
    unplaced = 0

    def now() -> Graph:
        return Graph(rows, graph.entry_node, graph.metric, graph.alpha)

    def measured() -> list[float]:
        if held_out is None or not len(held_out):
            return []
        return [miss_rate(now(), points, held_out, settings.width, settings.targets,
                          held_out_starts, allowed)]  # fmt: skip

    before = miss_rate(now(), points, queries, settings.width, settings.targets, starts,
                       allowed)  # fmt: skip
    unseen = measured()
    for _ in range(settings.passes):
        done = len(changes)
        order = torch.randperm(len(queries), generator=draw).to(rows.device)
        with tqdm(total=len(order), desc="repair", unit="query", disable=not progress) as bar:
            for batch in order.split(settings.batch_size):
                own = None if starts is None else starts[batch]
                for found, tried, target in missed(
                    now(), points, queries[batch], exact[batch], settings, own
                ):
                    if _full(settings, len(changes)):
                        break
                    if allowed is not None:
                        found, tried = found[allowed[found]], tried[allowed[tried]]
                    edit = _add(points, rows, new, placed, found, tried, target, settings)
                    unplaced += edit is None
                    changes += [edit] if edit is not None and len(edit.node) else []
                bar.update(len(batch))
        unseen += measured()
        if _full(settings, len(changes)) or len(changes) == done:
            break
        if len(unseen) > 1 and unseen[-1] >= unseen[-2]:
            break
    after = miss_rate(now(), points, queries, settings.width, settings.targets, starts,
                       allowed)  # fmt: skip
    return Repaired(now(), Edits.join(changes), before, after, tuple(unseen), unplaced)


def nearest(points: Points, queries: Tensor, n: int, allowed: Tensor | None = None) -> Tensor:
    """The exact nearest nodes of queries, int64 [Q, min(n, allowed nodes)], best first.

    Args:
        allowed: bool [N]; None = all.
    """
    if allowed is None or bool(allowed.all()):
        return exact_knn(points, queries, min(n, points.n))[1]
    kept = allowed.nonzero().flatten().to(points.device)
    part = Points(points.vectors[kept], points.metric, origin=points.origin)
    return kept[exact_knn(part, queries, min(n, len(kept)))[1]]


def miss_rate(
    graph: Graph, points: Points, queries: Tensor, width: int, targets: int,
    starts: Tensor | None = None, allowed: Tensor | None = None,
) -> float:  # fmt: skip
    """Share of the queries' exact nearest nodes that searches of a width do not return."""
    lost = wanted = 0
    for block, distances in query_blocks(points, queries):
        own = None if starts is None else starts[block]
        found = found_and_expanded(graph, distances, width, own)[0]
        exact = nearest(points, queries[block], targets, allowed)
        lost += int(lost_targets(exact, found).sum())
        wanted += exact.numel()
    return lost / max(1, wanted)


def missed(
    graph: Graph, points: Points, queries: Tensor, exact: Tensor, settings: RepairSettings,
    starts: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor, int]]:  # fmt: skip
    """(found nodes by distance to the query, expanded nodes in order, target) of every miss.

    All searches run before the first miss is told, so edges added meanwhile do not change them.
    """
    distances = QueryDistances(points, queries=queries).with_table()
    found, visited = found_and_expanded(graph, distances, settings.width, starts)
    lost = lost_targets(exact, found)
    for query, place in lost.nonzero().tolist():
        row, path = found[query], visited[query]
        yield row[row >= 0], path[path >= 0], int(exact[query, place])


def found_and_expanded(
    graph: Graph, distances: QueryDistances, width: int, starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(result of a width, int64 [Q, width], -1 pads; expanded nodes in order, int64 [Q, V])."""
    log = walk(graph, distances, [width], starts=starts)
    return best_seen(log, log.stops, width)[0][:, 0].long(), log.visited.long()


def lost_targets(exact: Tensor, found: Tensor) -> Tensor:
    """Which exact nearest nodes a result lacks, bool [Q, T].

    Args:
        exact: [Q, T]. found: [Q, width], -1 pads.
    """
    return ~(exact.unsqueeze(2) == found.unsqueeze(1)).any(2)


def decisions_of(edits: Edits) -> Decisions:
    """A repair's edits as decisions: how many edges each node got, and to where."""
    by_node: dict[int, list[int]] = {}
    for node, added in zip(edits.node.tolist(), edits.added.tolist(), strict=True):
        by_node.setdefault(node, []).append(added)
    widest = max(map(len, by_node.values()), default=1)
    picks = [[*added, *[-1] * (widest - len(added))] for added in by_node.values()]
    return Decisions(
        torch.tensor(list(by_node), dtype=torch.int32),
        torch.tensor(picks, dtype=torch.int32).view(-1, widest),
        torch.full((len(by_node),), int(Status.chosen), dtype=torch.int32),
        torch.tensor([len(added) for added in by_node.values()], dtype=torch.int32),
    )


def _full(settings: RepairSettings, edits: int) -> bool:
    return settings.edit_limit is not None and edits >= settings.edit_limit


def _add(
    points: Points, rows: Tensor, new: Tensor, placed: Tensor, found: Tensor, visited: Tensor,
    target: int, settings: RepairSettings,
) -> Edits | None:  # fmt: skip
    """Add an edge to the target from the first node in order that can take it; None if none can.

    Where that node points to the target since this batch was searched, nothing is added.
    """
    for source in _in_order(points, rows, found, visited, target, settings.source).tolist():
        if source == target:
            continue
        if bool((rows[source] == target).any()):
            return Edits.empty()
        if settings.node_limit is not None and int(placed[source]) >= settings.node_limit:
            continue
        anchor = torch.tensor([source], device=rows.device)
        slot, unique = int((rows[source] >= 0).sum()), -1
        reason = Reason.repair_append
        if slot == rows.shape[1]:
            victim, left = choose_victim(
                points, rows, anchor, rows[anchor], new[anchor], VictimRule.lexicographic
            )
            slot, unique, reason = int(victim), int(left), Reason.repair_replace
            if slot < 0:
                continue
        removed = int(rows[source, slot])
        rows[source, slot], new[source, slot] = target, True
        placed[source] += 1
        distance = points.between(anchor.unsqueeze(1), torch.tensor([[target]], device=rows.device))
        values = (source, slot, removed, target, int(reason), -1, unique)
        return Edits(*_columns(values, distance))
    return None


def _columns(values: Sequence[int], distance: Tensor) -> list[Tensor]:
    whole = [torch.tensor([value], dtype=torch.int32) for value in values]
    return [*whole, distance.flatten().cpu()]


def _in_order(
    points: Points, rows: Tensor, found: Tensor, visited: Tensor, target: int, source: RepairSource
) -> Tensor:
    """Nodes that may get the edge, best first."""
    if source is RepairSource.closest:
        return found
    nodes = visited if source is RepairSource.path else found
    gap = points.between(torch.tensor([[target]], device=nodes.device), nodes.unsqueeze(0))
    nodes = nodes[gap.flatten().sort(stable=True).indices]
    if source is not RepairSource.coverage:
        return nodes
    ends = torch.full((len(nodes), 1), target, dtype=rows.dtype, device=rows.device)
    gain = coverage_gain(rows, nodes, rows[nodes], ends).flatten()
    return nodes[gain.sort(descending=True, stable=True).indices]
