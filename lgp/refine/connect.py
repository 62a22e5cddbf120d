"""Make every node reachable from the entry (`index.connect`, DESIGN section 3).

In: a graph. Out: the same with an edge added to each unreachable node, and the slot changes. The
paper's vanilla graph may leave nodes unreachable, so this is off by default.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lgp.choices import VictimRule
from lgp.distance import KEY_MAX, Points, order_key
from lgp.graph import Graph, reachable
from lgp.refine.log import Edits, Reason
from lgp.refine.replace import choose_victim

ROUNDS = 20
"""A victim's removal can cut off others, hence several rounds; edges added here stay."""


def connect(graph: Graph, points: Points) -> tuple[Graph, Edits]:
    """Add an edge from the nearest reachable node to each unreachable one, by node number.

    The edge is appended, or takes the slot of the section-4 victim; an edge added here is never
    a victim here. A node whose nearest reachable nodes hold nothing but such edges stays cut off
    when `ROUNDS` are spent (count it with `describe`).
    """
    rows = graph.neighbors.clone()
    added = torch.zeros_like(rows, dtype=torch.bool)
    changes: list[Edits] = []
    for _ in range(ROUNDS):
        now = Graph(rows, graph.entry_node, graph.metric, graph.alpha)
        found = reachable(now)
        lost = (~found).nonzero().flatten()
        if len(lost) == 0:
            break
        for node in lost.tolist():
            if found[node]:
                continue
            source, slot = _slot_for(points, rows, added, found, node)
            if source < 0:
                continue
            changes.append(_change(points, rows, source, slot, node))
            rows[source, slot] = node
            added[source, slot] = True
            _spread(rows, found, node)
    return Graph(rows, graph.entry_node, graph.metric, graph.alpha), Edits.join(changes)


def _slot_for(
    points: Points, rows: Tensor, added: Tensor, found: Tensor, node: int
) -> tuple[int, int]:
    """The nearest reachable node that can take one more edge, and the slot; -1 if none can."""
    target = torch.tensor([node], device=rows.device)
    ids = torch.arange(len(rows), device=rows.device)
    usable = found & ~((rows >= 0) & added).all(1)
    key = order_key(points.rows(target)[0], ids).masked_fill(~usable, KEY_MAX)
    best, source = key.min(0)
    if int(best) == KEY_MAX:
        return -1, -1
    degree = int((rows[source] >= 0).sum())
    if degree < rows.shape[1]:
        return int(source), degree
    anchor = source.unsqueeze(0)
    slot, _ = choose_victim(
        points, rows, anchor, rows[anchor], added[anchor], VictimRule.lexicographic
    )
    return int(source), int(slot)


def _spread(rows: Tensor, found: Tensor, node: int) -> None:
    """Mark what a newly reachable node reaches."""
    found[node] = True
    front = torch.tensor([node], device=rows.device)
    while len(front):
        targets = rows[front].flatten().long()
        targets = targets[targets >= 0].unique()
        front = targets[~found[targets]]
        found[front] = True


def _change(points: Points, rows: Tensor, source: int, slot: int, node: int) -> Edits:
    def whole(value: int) -> Tensor:
        return torch.tensor([value], dtype=torch.int32)

    pair = (
        torch.tensor([[source]], device=rows.device),
        torch.tensor([[node]], device=rows.device),
    )
    return Edits(
        whole(source), whole(slot), whole(int(rows[source, slot])), whole(node),
        whole(Reason.connect), whole(-1), whole(-1), points.between(*pair).flatten().cpu(),
    )  # fmt: skip
