"""Selection by a language model (DESIGN section 5). Mode `likelihood`: how much more likely a
candidate's text becomes once the anchor's text stands before it.

In: a `Shortlist` and texts. Out: a `Selection`. Every answer goes through the answer log.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from lgp.answers import AnswerLog
from lgp.ask import ask_all, first_uses
from lgp.llm import Continuations, LanguageModel
from lgp.packed import continuation_logprobs
from lgp.refine.select import Selection, from_scores, selection
from lgp.refine.shortlist import Shortlist
from lgp.store import digest_of


@dataclass(frozen=True)
class LikelihoodSettings:
    """What shapes a likelihood answer; part of its key.

    Attributes:
        prefix: text before a candidate, "{anchor}" in it; the prior has the anchor left empty.
        anchor_tokens, document_tokens: where texts are cut.
        batch_tokens: padded tokens a forward pass.
        min_score: picks below it are dropped; None keeps B picks.
    """

    prefix: str
    anchor_tokens: int = 256
    document_tokens: int = 128
    batch_tokens: int = 4096
    min_score: float | None = None


@dataclass
class Likelihood:
    """Score = mean over the candidate's tokens of log p(t | prefix, anchor, t<) minus
    log p(t | prefix, t<). The context is not used. Ties in shortlist order.

    Attributes:
        texts: a text per node.
        keys_used: keys of the answers that decided, in order of use.
    """

    lm: LanguageModel
    texts: Sequence[str]
    settings: LikelihoodSettings
    answers: AnswerLog
    progress: bool = False
    keys_used: list[str] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def __call__(self, shortlist: Shortlist, limit: int) -> Selection:
        start = time.perf_counter()
        shown = [[c for c in row if c >= 0] for row in shortlist.candidates.tolist()]
        nodes = sorted({c for row in shown for c in row})
        documents = {c: self._document(c) for c in nodes}
        alone = self._prefix(None)
        nodes = [c for c in nodes if documents[c]]
        prior, cost_prior = self._ask(
            "prior", [Continuations(alone, [documents[c]]) for c in nodes]
        )
        logp_prior = {c: value for c, (value,) in zip(nodes, prior, strict=True)}
        given, cost_given = self._ask(
            "given",
            [
                Continuations(self._prefix(anchor), [documents[c] for c in row])
                for anchor, row in zip(shortlist.anchors.tolist(), shown, strict=True)
            ],
        )
        score = torch.full(shortlist.candidates.shape, -torch.inf)
        for at, (row, values) in enumerate(zip(shown, given, strict=True)):
            for column, (candidate, value) in enumerate(zip(row, values, strict=True)):
                length = len(documents[candidate])
                if length:
                    score[at, column] = (value - logp_prior[candidate]) / length
        if self.settings.min_score is not None:
            score = score.masked_fill(score < self.settings.min_score, -torch.inf)
        chosen = selection(from_scores(shortlist, score.to(shortlist.candidates.device), limit))
        return Selection(
            chosen.picks,
            chosen.status,
            tokens=cost_prior[0] + cost_given[0],
            seconds=time.perf_counter() - start,
            asked=cost_prior[1] + cost_given[1],
            replayed=cost_prior[2] + cost_given[2],
            used_tokens=cost_prior[3] + cost_given[3],
        )

    def _document(self, node: int) -> list[int]:
        return self.lm.tokens(self.texts[node], self.settings.document_tokens)

    def _prefix(self, anchor: int | None) -> list[int]:
        """Token ids before a candidate; template pieces and the anchor are tokenised apart."""
        head, tail = self.settings.prefix.split("{anchor}")
        text = "" if anchor is None else self.texts[anchor]
        ids = (
            self.lm.tokens(head)
            + self.lm.tokens(text, self.settings.anchor_tokens)
            + self.lm.tokens(tail)
        )
        start = self.lm.tokenizer.bos_token_id
        return ids if ids or start is None else [start]

    def _ask(
        self, kind: str, prompts: list[Continuations]
    ) -> tuple[list[list[float]], tuple[int, int, int, int]]:
        """Summed log p of every option, from the log or the model.

        Returns:
            sums per prompt, and (tokens processed, prompts asked, prompts replayed, tokens of
            answers first used).
        """
        keys = [
            digest_of([self.lm.identity, "likelihood", kind, p.prefix, p.options]) for p in prompts
        ]

        def ask(places: list[int]) -> list[list[float]]:
            scored = continuation_logprobs(self.lm, [prompts[at] for at in places])
            return [[sum(option) for option in item] for item in scored]

        self.keys_used += keys
        sizes = [p.n_tokens for p in prompts]
        asked = ask_all(
            self.answers, keys, sizes, self.settings.batch_tokens, ask, f"llm {kind}",
            self.progress,
        )  # fmt: skip
        tokens = sum(sizes[at] for at in asked.fresh)
        used = first_uses(keys, sizes, self._seen)
        return asked.answers, (tokens, len(asked.fresh), asked.replayed, used)
