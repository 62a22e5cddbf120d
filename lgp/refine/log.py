"""Edits as data: every row change of a refinement, its decisions, replay and undo.

In: edit columns. Out: an `EditLog` file, and graphs with the edits applied or taken back,
byte-exact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from lgp.graph import Graph
from lgp.store import digest_of

FORMAT = "lgp-edits"
FORMAT_VERSION = 1


class Reason(IntEnum):
    """Why a slot changed."""

    append = 0
    replace = 1
    reciprocal_append = 2
    reciprocal_prune = 3
    reciprocal_replace = 4
    connect = 5
    repair_append = 6
    repair_replace = 7


class Status(IntEnum):
    """What a selector's answer for an anchor was."""

    chosen = 0
    none = 1
    unreadable = 2


@dataclass(frozen=True)
class Edits:
    """Slot changes in the order they were made; every column has length E, on the CPU.

    Attributes:
        node, slot, removed, added: int32; -1 in removed / added = the slot was / became empty.
        reason: int32, a `Reason`. gain: int32, coverage gain when accepted (own edits).
        victim_unique: int32, unique coverage of what was removed; -1 where nothing was.
        distance: float32, D(node, added); 0 where nothing was added.
    """

    node: Tensor
    slot: Tensor
    removed: Tensor
    added: Tensor
    reason: Tensor
    gain: Tensor
    victim_unique: Tensor
    distance: Tensor

    @staticmethod
    def empty() -> Edits:
        none = torch.zeros(0, dtype=torch.int32)
        return Edits(none, none, none, none, none, none, none, torch.zeros(0))

    @staticmethod
    def join(parts: list[Edits]) -> Edits:
        if not parts:
            return Edits.empty()
        return Edits(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Edits)))

    def take(self, order: Tensor) -> Edits:
        """The records at some positions, int64, in that order."""
        return Edits(*(getattr(self, f.name)[order] for f in fields(Edits)))

    def own(self) -> Tensor:
        """bool [E]: edges chosen for their source, by a selector or a repair; no reciprocals."""
        return (self.reason <= int(Reason.replace)) | (self.reason >= int(Reason.repair_append))


@dataclass(frozen=True)
class Decisions:
    """What the selector said per anchor, in the order asked.

    Attributes:
        anchors: int32 [A]. picks: int32 [A, S], best first, -1 pads.
        status: int32 [A], a `Status`. placed: int32 [A], accepted edits.
    """

    anchors: Tensor
    picks: Tensor
    status: Tensor
    placed: Tensor

    @staticmethod
    def join(parts: list[Decisions]) -> Decisions:
        """All of them, in the order given; picks padded to the widest."""
        if not parts:
            none = torch.zeros(0, dtype=torch.int32)
            return Decisions(none, none.view(0, 1), none, none)
        widest = max(part.picks.shape[1] for part in parts)
        picks = [
            torch.nn.functional.pad(p.picks, (0, widest - p.picks.shape[1]), value=-1)
            for p in parts
        ]
        return Decisions(
            torch.cat([p.anchors for p in parts]),
            torch.cat(picks),
            torch.cat([p.status for p in parts]),
            torch.cat([p.placed for p in parts]),
        )

    def digest(self) -> str:
        """Names the edits per node, for stage keys of graphs matched to them."""
        return digest_of([self.anchors.tolist(), self.placed.tolist()])

    def quota(self, n: int) -> Tensor:
        """Accepted edits at every node of a graph of n nodes, int64 [N] (ValueError: too few)."""
        if len(self.anchors) and int(self.anchors.max()) >= n:
            raise ValueError(
                f"the log names node {int(self.anchors.max())}, the graph has {n} nodes; "
                "give the log of this graph"
            )
        quota = torch.zeros(n, dtype=torch.int64)
        return quota.index_add(0, self.anchors.long(), self.placed.long())


@dataclass(frozen=True)
class EditLog:
    """A refinement as data.

    For `post` the edits turn the base graph into the result and back. For `build` edits happen
    inside the construction and later prunes change rows again: the decisions are replayed by a
    rebuild with the `recorded` selector, and undo is the vanilla graph of the same seed.
    """

    edits: Edits
    decisions: Decisions
    header: dict[str, Any]

    def save(self, path: Path, beside: Mapping[str, Tensor] | None = None) -> None:
        """Write the log.

        Args:
            beside: further tensors to keep in the same file, by names of their own.
        """
        tensors = dict(beside or {})
        tensors |= {f"edit_{f.name}": getattr(self.edits, f.name) for f in fields(Edits)}
        tensors |= {
            f"decision_{f.name}": getattr(self.decisions, f.name) for f in fields(Decisions)
        }
        header = {"format": FORMAT, "version": FORMAT_VERSION} | self.header
        save_file(
            {k: v.contiguous() for k, v in tensors.items()}, path, {"lgp": json.dumps(header)}
        )

    @staticmethod
    def load(path: Path) -> EditLog:
        """Read an edit log (ValueError: missing, foreign, damaged)."""
        if not Path(path).is_file():
            raise ValueError(f"{path} is not a file; give the edits.safetensors of a refinement")
        try:
            with safe_open(path, "pt") as file:
                header = json.loads((file.metadata() or {}).get("lgp", "{}"))
                if header.get("format") != FORMAT or header.get("version") != FORMAT_VERSION:
                    raise ValueError(f"format {header.get('format')}, not {FORMAT} 1")
                edits = Edits(*(file.get_tensor(f"edit_{f.name}") for f in fields(Edits)))
                decisions = Decisions(
                    *(file.get_tensor(f"decision_{f.name}") for f in fields(Decisions))
                )
        except Exception as error:
            raise ValueError(f"{path} is not a readable lgp edit log: {error}") from error
        return EditLog(edits, decisions, header)


def apply_edits(graph: Graph, log: EditLog) -> Graph:
    """Replay a `post` log on its base graph.

    Raises:
        ValueError: another base graph, or a log of a build.
    """
    return _rewrite(graph, log, forward=True)


def undo_edits(graph: Graph, log: EditLog) -> Graph:
    """Take a `post` log back from its result, restoring the base graph bit for bit."""
    return _rewrite(graph, log, forward=False)


def _rewrite(graph: Graph, log: EditLog, forward: bool) -> Graph:
    if log.header.get("when") != "post":
        raise ValueError(
            f"this log is of refine.when={log.header.get('when')}; a build is replayed with "
            "refine.selector=recorded and undone by the vanilla graph of the same seed"
        )
    key = "base_sha256" if forward else "result_sha256"
    if graph.digest() != log.header[key]:
        raise ValueError(
            f"the graph's sha256 {graph.digest()[:12]}... is not the log's {key} "
            f"{log.header[key][:12]}...; give the graph the log belongs to"
        )
    rows = graph.neighbors.clone()
    edits = log.edits
    value = edits.added if forward else edits.removed
    flat = edits.node.long() * graph.max_degree + edits.slot.long()
    order = torch.arange(len(flat)) if forward else torch.arange(len(flat)).flip(0)
    # Of several changes to one slot the last in order stands; index_put leaves that open.
    flat, value = flat[order], value[order]
    last = torch.full((rows.numel(),), -1, dtype=torch.int64)
    last.scatter_reduce_(0, flat, torch.arange(len(flat)), "amax")
    touched = (last >= 0).nonzero().flatten()
    rows.view(-1)[touched.to(rows.device)] = value[last[touched]].to(rows.device)
    result = Graph(rows, graph.entry_node, graph.metric, graph.alpha)
    goal = log.header["result_sha256" if forward else "base_sha256"]
    if result.digest() != goal:
        raise ValueError(
            f"the edits lead to a graph of sha256 {result.digest()[:12]}..., the log promises "
            f"{goal[:12]}...; the log is damaged"
        )
    return result
