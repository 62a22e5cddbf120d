"""Selection by the listwise prompt (DESIGN section 5): a language model sees an anchor, some of
its neighbors and numbered candidates, and names the ones worth an edge.

In: a `Shortlist` and texts. Out: a `Selection`. Mode `generate` reads what the model writes
(paper C.1); mode `constrained` compares the probabilities of the answers "[n]" with that of NONE.
Every answer goes through the answer log.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lgp.answers import AnswerLog
from lgp.ask import Asked, Engine, Prompt, answer_tokens, ask_all, first_uses
from lgp.choices import LlmMode
from lgp.config_llm import PromptConfig
from lgp.prompts import Shown, clean, selection_chat
from lgp.refine.log import Status
from lgp.refine.select import Selection
from lgp.refine.shortlist import Shortlist
from lgp.replies import read_selection
from lgp.store import digest_of

NONE = "NONE"


@dataclass(frozen=True)
class ListwiseSettings:
    """What shapes a listwise prompt besides texts and shortlist.

    Attributes:
        anchor_tokens, document_tokens: where texts are cut.
        shuffle: seed of the order in which candidates are shown; None = shortlist order.
    """

    mode: LlmMode
    anchor_tokens: int = 256
    document_tokens: int = 128
    shuffle: int | None = None


@dataclass
class Listwise:
    """Picks by number. Ties of `constrained` in the order shown.

    Attributes:
        texts: a text per node. images: a reference per node, "" for none; empty: no images.
        keys_used: keys of the answers that decided, in order of use.
        queries: latent queries the model wrote before its picks (`QUERY:` lines), by anchor.
    """

    engine: Engine
    texts: Sequence[str]
    prompt: PromptConfig
    settings: ListwiseSettings
    answers: AnswerLog
    progress: bool = False
    images: Sequence[str] = ()
    keys_used: list[str] = field(default_factory=list)
    queries: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _cuts: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def __call__(self, shortlist: Shortlist, limit: int) -> Selection:
        start = time.perf_counter()
        anchors = shortlist.anchors.tolist()
        shown = [
            self._ordered(anchor, [c for c in row if c >= 0])
            for anchor, row in zip(anchors, shortlist.candidates.tolist(), strict=True)
        ]
        asking = [at for at, row in enumerate(shown) if row]  # nothing to choose: nobody is asked
        cuts: list[int] = []  # tokens cut off every document shown
        prompts = [
            self._prompt(anchors[at], shortlist.context[at].tolist(), shown[at], limit, cuts)
            for at in asking
        ]
        asked, used = self._ask(prompts, [len(shown[at]) for at in asking])
        picks = torch.full((len(anchors), limit), -1, dtype=torch.int32)
        status = torch.full((len(anchors),), int(Status.none), dtype=torch.int32)
        for at, answer in zip(asking, asked.answers, strict=True):
            places, status[at] = self._read(anchors[at], answer, len(shown[at]), limit)
            picks[at, : len(places)] = torch.tensor([shown[at][p] for p in places])
        fresh = [asked.answers[at] for at in asked.fresh]
        return Selection(
            picks.to(shortlist.candidates.device),
            status,
            tokens=sum(answer["prompt_tokens"] for answer in fresh),
            seconds=time.perf_counter() - start,
            asked=len(fresh),
            replayed=asked.replayed,
            output_tokens=sum(answer.get("output_tokens", 0) for answer in fresh),
            used_tokens=used,
            shown_documents=len(cuts),
            cut_documents=sum(cut > 0 for cut in cuts),
            cut_tokens=sum(cuts),
        )

    def save_queries(self, path: Path) -> None:
        """The latent queries, one JSON line an anchor that has any."""
        lines = [
            json.dumps({"node": anchor, "queries": list(queries)}) + "\n"
            for anchor, queries in sorted(self.queries.items())
        ]
        path.write_text("".join(lines), encoding="utf-8")

    def _ordered(self, anchor: int, candidates: list[int]) -> list[int]:
        if self.settings.shuffle is not None:
            random.Random(f"{self.settings.shuffle}:{anchor}").shuffle(candidates)
        return candidates

    def _prompt(
        self, anchor: int, context: list[int], candidates: list[int], limit: int, cuts: list[int]
    ) -> Prompt:
        def cut(node: int, tokens: int) -> Shown:
            if (node, tokens) not in self._cuts:
                self._cuts[node, tokens] = self.engine.cut(clean(self.texts[node]), tokens)
            text, lost = self._cuts[node, tokens]
            cuts.append(lost)
            return Shown(text, self.images[node] if self.images else "")

        return self.engine.encode(
            selection_chat(
                self.prompt,
                cut(anchor, self.settings.anchor_tokens),
                [cut(node, self.settings.document_tokens) for node in context if node >= 0],
                [cut(node, self.settings.document_tokens) for node in candidates],
                limit,
            )
        )

    def _ask(self, prompts: list[Prompt], n_shown: list[int]) -> tuple[Asked, int]:
        """The answers, and the tokens of those used for the first time."""
        mode, engine = self.settings.mode, self.engine
        options = [NONE, *(f"[{n}]" for n in range(1, max(n_shown, default=0) + 1))]

        def ask(places: list[int]) -> list[dict[str, Any]]:
            batch = [prompts[at] for at in places]
            if mode is LlmMode.generate:
                return engine.generate(batch)
            # A prompt with fewer candidates has no use for the numbers above its own.
            return [
                answer | {"logp": answer["logp"][: 1 + n_shown[at]]}
                for at, answer in zip(places, engine.choose(batch, options), strict=True)
            ]

        how = engine.decoding if mode is LlmMode.generate else {}
        keys = [digest_of([engine.identity, mode.value, how, prompt.content]) for prompt in prompts]
        self.keys_used += keys
        asked = ask_all(
            self.answers, keys, [prompt.size for prompt in prompts], engine.batch_tokens, ask,
            f"llm {mode.value}", self.progress,
        )  # fmt: skip
        return asked, first_uses(keys, list(map(answer_tokens, asked.answers)), self._seen)

    def _read(
        self, anchor: int, answer: dict[str, Any], n_shown: int, limit: int
    ) -> tuple[tuple[int, ...], int]:
        """(places of the picks among the candidates shown, a `Status`)."""
        if self.settings.mode is LlmMode.generate:
            reply = read_selection(answer["text"], n_shown, limit)
            if reply.queries:
                self.queries[anchor] = reply.queries
            return reply.picks, int(Status[reply.status])
        picks = above_none(answer["logp"], limit)
        return picks, int(Status.chosen if picks else Status.none)


def above_none(logp: Sequence[float], limit: int) -> tuple[int, ...]:
    """Places of the numbers more probable than NONE, best first, at most `limit`.

    Args:
        logp: of NONE, then of [1], [2], ...
    """
    none, *numbers = logp
    best = sorted(
        (place for place, value in enumerate(numbers) if value > none),
        key=lambda place: (-numbers[place], place),
    )
    return tuple(best[:limit])
