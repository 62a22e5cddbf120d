"""The refinement step for a batch of anchors: shortlist, select, accept, place (Algorithm 8).

In: a snapshot and anchors. Out: their new rows. Which index calls it, and when, is unknown here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lgp.choices import ShortlistRule, VictimRule
from lgp.distance import Points
from lgp.refine.log import Decisions, Edits, Status
from lgp.refine.replace import Placement, place
from lgp.refine.select import Selection, Selector
from lgp.refine.shortlist import make_shortlist


@dataclass(frozen=True)
class StepSettings:
    """Knobs of one refinement step, the paper's defaults (§5, §B.4).

    Attributes:
        edit_budget: B. shortlist_size: M. context_size: K.
        min_coverage_gain: g_min in nodes; None = min(12, ceil(0.75 R)): the paper states 12 at
            R 16 and not how it follows R.
        alpha: slack of the occlusion test in the proximity ranking and of reciprocal prunes.
    """

    edit_budget: int = 2
    shortlist_size: int = 24
    context_size: int = 4
    min_coverage_gain: int | None = None
    shortlist: ShortlistRule = ShortlistRule.balanced
    victim: VictimRule = VictimRule.lexicographic
    alpha: float = 1.2

    def __post_init__(self) -> None:
        for name, least in (("edit_budget", 0), ("shortlist_size", 1), ("context_size", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} is below {least}; raise it")

    def min_gain(self, max_degree: int) -> int:
        """g_min for a degree bound (ValueError above it: no candidate could ever pass)."""
        if self.min_coverage_gain is None:
            return min(12, math.ceil(0.75 * max_degree))
        if not 0 <= self.min_coverage_gain <= max_degree:
            raise ValueError(
                f"min_coverage_gain={self.min_coverage_gain} is outside 0..{max_degree} (a "
                "candidate has at most max_degree neighbors); lower refine.min_coverage_gain"
            )
        return self.min_coverage_gain


@dataclass
class Account:
    """Running sums over all selector calls."""

    anchors: int = 0
    chosen: int = 0
    none: int = 0
    unreadable: int = 0
    picked: int = 0
    tokens: int = 0
    seconds: float = 0.0
    asked: int = 0
    replayed: int = 0
    output_tokens: int = 0
    used_tokens: int = 0
    shown_documents: int = 0
    cut_documents: int = 0
    cut_tokens: int = 0

    def add(self, answer: Selection) -> None:
        self.anchors += len(answer.status)
        for status in Status:
            count = int((answer.status == int(status)).sum())
            setattr(self, status.name, getattr(self, status.name) + count)
        self.picked += int((answer.picks >= 0).sum())
        self.charge(vars(answer))

    def charge(self, costs: Mapping[str, Any]) -> None:
        """Add costs by the names they have here; what is not among them is left out."""
        for cost in (
            "tokens", "seconds", "asked", "replayed", "output_tokens", "used_tokens",
            "shown_documents", "cut_documents", "cut_tokens",
        ):  # fmt: skip
            setattr(self, cost, getattr(self, cost) + costs.get(cost, 0))


def chosen_nodes(
    n: int, node_budget: float, seed: int, deleted: Tensor | None = None,
    limit: int | None = None, priority: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Which nodes see the selector (beta): the first floor(beta N) of an order, bool [N].

    A smaller beta, or a limit, chooses a subset of a larger one's nodes. The paper does not say in
    which order; ours is drawn, and by priority where one is given (ties as drawn).

    Args:
        deleted: bool [N], left out, and not counted in N. limit: at most so many.
        priority: int64 [N], larger first.
    """
    if not 0 < node_budget <= 1:
        raise ValueError(f"node_budget={node_budget} is outside (0, 1]; set refine.node_budget")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    if priority is not None:
        order = order[priority[order].sort(descending=True, stable=True).indices]
    if deleted is not None:
        order = order[~deleted[order]]
    chosen = torch.zeros(n, dtype=torch.bool)
    # 0.29 * 100 is 28.999...: a share that should be whole must not lose a node.
    count = math.floor(node_budget * len(order) + 1e-9)
    chosen[order[: count if limit is None else min(count, limit)]] = True
    return chosen


@dataclass
class Refiner:
    """Refines batches of anchors and remembers decisions and edits in the order made.

    Attributes:
        eligible: bool [N] on the CPU, nodes that see the selector.
        quota: int64 [N] on the CPU; with `matched` the exact number of edits to place at each
            node (DESIGN 4.10), else None: `edit_budget` everywhere.
        allowed: bool [N], nodes that may become candidates; None = all.
        fixed_degree: rows keep their degree (HNSW, §E.1).
    """

    points: Points
    selector: Selector
    settings: StepSettings
    eligible: Tensor
    quota: Tensor | None = None
    allowed: Tensor | None = None
    fixed_degree: bool = False
    account: Account = field(default_factory=Account)
    decisions: list[Decisions] = field(default_factory=list)
    edits: list[Edits] = field(default_factory=list)

    def step(self, neighbors: Tensor, anchors: Tensor, visited: Tensor) -> Placement:
        """Steps 1 to 6 of DESIGN 4 for anchors that are all eligible."""
        settings, max_degree = self.settings, neighbors.shape[1]
        shortlist = make_shortlist(
            self.points, neighbors, anchors, visited, settings.alpha, settings.shortlist_size,
            settings.context_size, settings.shortlist, self.allowed,
        )  # fmt: skip
        matched = self.quota is not None
        limit = settings.shortlist_size if matched else settings.edit_budget
        answer = self.selector(shortlist, limit)
        self.account.add(answer)
        if self.quota is None:
            quota = torch.full_like(anchors, settings.edit_budget)
        else:
            quota = self.quota[anchors.cpu()].to(anchors.device)
        placement = place(
            self.points, neighbors, anchors, answer.picks, quota,
            settings.min_gain(max_degree), settings.victim, self.fixed_degree,
        )  # fmt: skip
        self.edits.append(placement.edits)
        self.decisions.append(
            Decisions(
                anchors.int().cpu(),
                answer.picks.cpu(),
                answer.status.int().cpu(),
                placement.placed.int().cpu(),
            )
        )
        return placement

    def __call__(
        self, neighbors: Tensor, anchors: Tensor, visited: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Final rows int32 [A, R] and new-edge mask bool [A, R]; others pass unchanged."""
        rows = neighbors[anchors].clone()
        new = torch.zeros_like(rows, dtype=torch.bool)
        at = self.eligible[anchors.cpu()].nonzero().flatten().to(anchors.device)
        if len(at) and self.settings.edit_budget > 0:
            placement = self.step(neighbors, anchors[at], visited[at])
            rows[at], new[at] = placement.rows, placement.new
        return rows, new

    def all_edits(self) -> Edits:
        """The anchors' own edits so far, in order."""
        return Edits.join(self.edits)

    def all_decisions(self) -> Decisions:
        """Everything decided so far, in order."""
        return Decisions.join(self.decisions)
