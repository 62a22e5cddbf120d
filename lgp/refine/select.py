"""The selector protocol and every selector that is no language model (DESIGN section 5).

In: a `Shortlist`. Out: a `Selection` of ordered picks per anchor. A gain over vanilla proves
nothing by itself: the geometric selectors are the controls that an LLM must beat.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from lgp.distance import KEY_MAX, order_key
from lgp.refine.log import EditLog, Status
from lgp.refine.shortlist import Shortlist


@dataclass(frozen=True)
class Selection:
    """Ordered picks of a batch of anchors, with what they cost.

    Attributes:
        picks: int32 [A, S], candidate ids, best first, -1 pads.
        status: int32 [A], a `Status`.
        tokens: prompt tokens the model read. output_tokens: tokens it wrote.
        seconds: time spent waiting for the model.
        asked, replayed: prompts sent to the model, prompts answered from the log.
        used_tokens: read and written for the answers that decided, replayed ones included: what
            these decisions cost without a log.
        shown_documents, cut_documents, cut_tokens: texts in the prompts, how many of them were
            cut to length, and by how many tokens in all.
    """

    picks: Tensor
    status: Tensor
    tokens: int = 0
    seconds: float = 0.0
    asked: int = 0
    replayed: int = 0
    output_tokens: int = 0
    used_tokens: int = 0
    shown_documents: int = 0
    cut_documents: int = 0
    cut_tokens: int = 0


class Selector(Protocol):
    """Choose among the candidates of each anchor, at most `limit` of them, best first."""

    def __call__(self, shortlist: Shortlist, limit: int) -> Selection: ...


def from_scores(shortlist: Shortlist, score: Tensor, limit: int) -> Tensor:
    """The `limit` highest-scored candidates, ties in shortlist order: int32 [A, limit].

    Args:
        score: float32 [A, M]; -inf is never picked.
    """
    out = (shortlist.candidates < 0) | (score == -torch.inf)
    order = score.masked_fill(out, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    picks = shortlist.candidates.masked_fill(out, -1).gather(1, order)[:, :limit]
    return torch.nn.functional.pad(picks, (0, limit - picks.shape[1]), value=-1)


def selection(picks: Tensor) -> Selection:
    """A selection without cost: chosen where there is a pick, none elsewhere."""
    status = torch.where((picks >= 0).any(1), int(Status.chosen), int(Status.none))
    return Selection(picks.to(torch.int32), status.int().cpu())


@dataclass(frozen=True)
class Uniform:
    """Seeded random picks: the same number of edits without judgment.

    The order of a candidate depends on (seed, anchor, candidate) alone, so batches and
    machines cannot change it.
    """

    seed: int

    def __call__(self, shortlist: Shortlist, limit: int) -> Selection:
        ids = shortlist.candidates.long()
        mixed = scramble(scramble(shortlist.anchors + (self.seed << 32)).unsqueeze(1) ^ ids)
        key = (mixed & (KEY_MAX - 1)).masked_fill(ids < 0, KEY_MAX)
        order = key.sort(dim=1, stable=True).indices
        return selection(shortlist.candidates.gather(1, order)[:, :limit])


def scramble(value: Tensor) -> Tensor:
    """Mix the bits of int64 values (the finaliser of splitmix64; wraps on overflow)."""

    def shifted(x: Tensor, by: int) -> Tensor:
        return (x >> by) & ((1 << (64 - by)) - 1)  # logical shift

    value = (value ^ shifted(value, 30)) * -4658895280553007687
    value = (value ^ shifted(value, 27)) * -7723592293110705685
    return value ^ shifted(value, 31)


def farthest(shortlist: Shortlist, limit: int) -> Selection:
    """The shortlisted candidates farthest from the anchor, ties by id."""
    key = order_key(
        shortlist.distance.masked_fill(shortlist.candidates < 0, 0.0),
        (torch.iinfo(torch.int32).max - shortlist.candidates).clamp_min(0),
    )
    key = key.masked_fill(shortlist.candidates < 0, -1)
    order = key.sort(1, descending=True).indices
    return selection(shortlist.candidates.gather(1, order)[:, :limit])


def nearest(shortlist: Shortlist, limit: int) -> Selection:
    """The shortlisted candidates nearest to the anchor, ties by id."""
    key = order_key(
        shortlist.distance.masked_fill(shortlist.candidates < 0, 0.0),
        shortlist.candidates.clamp_min(0),
    ).masked_fill(shortlist.candidates < 0, KEY_MAX)
    return selection(shortlist.candidates.gather(1, key.sort(1).indices)[:, :limit])


def first(shortlist: Shortlist, limit: int) -> Selection:
    """Shortlist order as it is."""
    return selection(shortlist.candidates[:, :limit])


@dataclass(frozen=True)
class Encoder:
    """A stronger embedding: relevance to the anchor minus weight x redundancy with the context.

    Relevance is the cosine to the anchor; redundancy the largest cosine to a context neighbor.

    Attributes:
        vectors: unit float32 [N, E] of the stronger model.
    """

    vectors: Tensor
    weight: float = 0.5

    def __call__(self, shortlist: Shortlist, limit: int) -> Selection:
        shown = self.vectors[shortlist.candidates.clamp_min(0).long()]  # [A, M, E]
        anchor = self.vectors[shortlist.anchors].unsqueeze(2)  # [A, E, 1]
        score = (shown @ anchor).squeeze(2)
        context = self.vectors[shortlist.context.clamp_min(0).long()]  # [A, K, E]
        if context.shape[1]:
            close = shown @ context.transpose(1, 2)  # [A, M, K]
            close = close.masked_fill((shortlist.context < 0).unsqueeze(1), -torch.inf)
            nearest_context = close.amax(2)
            score = score - self.weight * nearest_context.clamp_min(-1.0)
        return selection(from_scores(shortlist, score, limit))


@dataclass(frozen=True)
class Recorded:
    """Replay the decisions of a log; an anchor the log does not hold gets none.

    Attributes:
        picks: int32 [L, S], status: int32 [L]; row: int64 [N], anchor -> row of the log or -1.
    """

    picks: Tensor
    status: Tensor
    row: Tensor

    @staticmethod
    def from_log(log: EditLog, n: int) -> Recorded:
        anchors = log.decisions.anchors.long()
        log.decisions.quota(n)  # refuses a log of another graph
        row = torch.full((n,), -1, dtype=torch.int64)
        row[anchors] = torch.arange(len(anchors))
        return Recorded(log.decisions.picks, log.decisions.status, row)

    def __call__(self, shortlist: Shortlist, limit: int) -> Selection:
        at = self.row[shortlist.anchors.cpu()]
        if len(self.picks) == 0:
            return selection(torch.full((len(at), limit), -1, device=shortlist.candidates.device))
        picks = self.picks[at.clamp_min(0)].masked_fill((at < 0).unsqueeze(1), -1)
        status = self.status[at.clamp_min(0)].masked_fill(at < 0, int(Status.none))
        return Selection(picks[:, :limit].to(shortlist.candidates.device), status)


@dataclass(frozen=True)
class Scripted:
    """Answers from a table: anchor -> candidates, best first. For tests and rehearsals."""

    answers: Mapping[int, list[int]]

    @staticmethod
    def from_file(path: Path) -> Scripted:
        """Read {"anchor": [candidate, ...]} from JSON (ValueError when it is something else)."""
        try:
            table = json.loads(Path(path).read_text())
            return Scripted({int(a): [int(c) for c in picks] for a, picks in table.items()})
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise ValueError(
                f"{path} is not a table of scripted answers: {error}; "
                'write JSON like {"0": [3, 1]}'
            ) from error

    def __call__(self, shortlist: Shortlist, limit: int) -> Selection:
        picks = torch.full((len(shortlist.anchors), limit), -1, dtype=torch.int32)
        shown = shortlist.candidates.tolist()
        for at, anchor in enumerate(shortlist.anchors.tolist()):
            chosen = [c for c in self.answers.get(anchor, []) if c in shown[at]][:limit]
            picks[at, : len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
        return selection(picks.to(shortlist.candidates.device))
