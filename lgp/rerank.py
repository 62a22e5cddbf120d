"""Reranking: the documents found for each query put into a better order (paper section 5, B.6).

In: per query a list of document rows, best first. Out: the same rows reordered. All queries of a
search setting come at once, so that a language model gets full batches. Searching and scoring
are unknown here. What a model said goes through the answer log; nothing is asked twice.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lgp.answers import AnswerLog
from lgp.ask import Asked, Engine, ask_all
from lgp.choices import CorruptImages
from lgp.config_llm import LlmConfig, PromptConfig
from lgp.distance import row_blocks
from lgp.engines import make_engine
from lgp.images import ImageFolder
from lgp.llm import Continuations, LanguageModel
from lgp.packed import continuation_logprobs
from lgp.prompts import Piece, Shown, clean, fill, ranking_chat
from lgp.replies import read_ranking
from lgp.rerank_account import RerankAccount
from lgp.store import digest_of

SPARE_TOKENS = 16
"""Room in a ranking answer besides the list itself, for a few words before it."""


def by_encoder(
    documents: Tensor, queries: Tensor
) -> Callable[[Sequence[list[int]]], list[list[int]]]:
    """Reorder by similarity under a stronger encoder; ties in input order.

    Args:
        documents: unit rows, float32 [documents, E]. queries: [Q, E], a row per list.
    """

    def rerank(lists: Sequence[list[int]]) -> list[list[int]]:
        longest = max(map(len, lists), default=0)
        padded = torch.tensor([[*rows, *[-1] * (longest - len(rows))] for rows in lists])
        out: list[list[int]] = []
        for block in row_blocks(len(lists), longest * documents.shape[1]) if longest else []:
            rows = padded[block]
            # Sums, not a matrix product: that gives equal rows scores which differ in the last bit.
            score = (documents[rows.clamp_min(0)] * queries[block].unsqueeze(1)).sum(2)
            score = torch.where(rows >= 0, score, -torch.inf)
            order = rows.gather(1, score.sort(dim=1, descending=True, stable=True).indices)
            out += [row[:n] for row, n in zip(order.tolist(), map(len, lists[block]), strict=True)]
        return out or [[] for _ in lists]

    return rerank


def windows(n: int, size: int, step: int) -> list[range]:
    """Places that one prompt each reorders, from the end of a list of n to its start.

    Windows of `size` places move up by `step`; the one that reaches the start is the last, and
    shorter where the steps do not end there. Each hands its best `size` - `step` places on, so a
    perfect ranker brings the best `size` - `step` of all documents to the top in order. One
    document needs no window.
    """
    found: list[range] = []
    end = n
    while end > 1 and (not found or found[-1].start > 0):
        found.append(range(max(0, end - size), end))
        end -= step
    return found


def ranking_engine(
    llm: LlmConfig,
    device: str,
    n: int,
    folder: ImageFolder | None = None,
    corrupt_images: CorruptImages = CorruptImages.error,
) -> Engine:
    """An engine whose answers have room for a list of n passages, and end once it is complete.

    Args:
        folder, corrupt_images: of the images shown, as in `make_engine`.
    """

    def complete(text: str) -> bool:
        return len(read_ranking(text, n).listed) == n

    full = " > ".join(f"[{number}]" for number in range(1, n + 1))
    room = len(full) + SPARE_TOKENS  # a token has at least one character
    stop = f"{n} passages listed"
    return make_engine(llm, device, room, complete, stop, folder, corrupt_images)


@dataclass
class ListwiseRerank:
    """Reorder windows by the listwise prompt (paper C.2).

    The windows of all queries go forward together, round by round.

    Attributes:
        engine_for: the engine for windows of n documents; all have the same `cut`.
        queries: a text per list. documents: a text per row.
        size, step: of the windows. repair: how flawed answers are read, see `Ranking.order`.
        document_tokens, query_tokens: where texts are cut.
        query_images, document_images: references, "" for none; empty: no images.
        instructions: a task a list, for templates that hold {instruction}; empty: none.
    """

    engine_for: Callable[[int], Engine]
    queries: Sequence[str]
    documents: Sequence[str]
    prompt: PromptConfig
    answers: AnswerLog
    size: int = 20
    step: int = 10
    repair: bool = True
    document_tokens: int = 128
    query_tokens: int = 512
    progress: bool = False
    query_images: Sequence[str] = ()
    document_images: Sequence[str] = ()
    instructions: Sequence[str] = ()
    account: RerankAccount = field(default_factory=RerankAccount)
    _documents: dict[int, tuple[str, int]] = field(default_factory=dict)
    _queries: dict[int, str] = field(default_factory=dict)

    def __call__(self, lists: Sequence[list[int]]) -> list[list[int]]:
        start = time.perf_counter()
        out = [list(rows) for rows in lists]
        plans = [windows(len(rows), self.size, self.step) for rows in lists]
        for turn in range(max(map(len, plans), default=0)):
            due: dict[int, list[int]] = defaultdict(list)  # queries by length of their window
            for query, plan in enumerate(plans):
                if turn < len(plan):
                    due[len(plan[turn])].append(query)
            for n, queries in due.items():
                places = [slice(plans[q][turn].start, plans[q][turn].stop) for q in queries]
                shown = [out[q][place] for q, place in zip(queries, places, strict=True)]
                orders = self._orders(n, queries, shown)
                for q, place, rows, order in zip(queries, places, shown, orders, strict=True):
                    out[q][place] = [rows[at] for at in order]
        self.account.seconds += time.perf_counter() - start
        return out

    def _orders(
        self, n: int, queries: Sequence[int], shown: Sequence[list[int]]
    ) -> list[list[int]]:
        """The order of one window of n documents for each query."""
        engine = self.engine_for(n)
        prompts = [
            engine.encode(
                ranking_chat(
                    self.prompt,
                    self._query(engine, query),
                    [self._document(engine, row) for row in rows],
                    clean(self.instructions[query]) if self.instructions else "",
                )
            )
            for query, rows in zip(queries, shown, strict=True)
        ]
        keys = [
            digest_of([engine.identity, "generate", engine.decoding, prompt.content])
            for prompt in prompts
        ]
        asked = ask_all(
            self.answers, keys, [prompt.size for prompt in prompts], engine.batch_tokens,
            lambda places: engine.generate([prompts[at] for at in places]),
            "rerank listwise", self.progress,
        )  # fmt: skip
        self._add(asked)
        return [self._read(answer["text"], n) for answer in asked.answers]

    def _add(self, asked: Asked) -> None:
        fresh: list[dict[str, Any]] = [asked.answers[at] for at in asked.fresh]
        self.account.asked += len(fresh)
        self.account.replayed += asked.replayed
        self.account.prompt_tokens += sum(answer["prompt_tokens"] for answer in fresh)
        self.account.output_tokens += sum(answer["output_tokens"] for answer in fresh)

    def _read(self, text: str, n: int) -> list[int]:
        ranking, account = read_ranking(text, n), self.account
        account.windows += 1
        if not ranking.flawed:
            account.complete += 1
        elif not ranking.listed:
            account.unreadable += 1
        elif self.repair:
            account.repaired += 1
        else:
            account.kept += 1
        return ranking.order(strict=not self.repair)

    def _query(self, engine: Engine, query: int) -> Shown:
        if query not in self._queries:
            text, lost = engine.cut(clean(self.queries[query]), self.query_tokens)
            self.account.cut_queries += lost > 0
            self._queries[query] = text
        image = self.query_images[query] if self.query_images else ""
        return Shown(self._queries[query], image)

    def _document(self, engine: Engine, row: int) -> Shown:
        if row not in self._documents:
            self._documents[row] = engine.cut(clean(self.documents[row]), self.document_tokens)
        text, lost = self._documents[row]
        self.account.show(lost)
        return Shown(text, self.document_images[row] if self.document_images else "")


@dataclass
class LikelihoodRerank:
    """Reorder by query likelihood: mean over the query's tokens of log p(t | document, t<).

    For models too small to follow a listwise prompt. One score a (query, document), whatever
    list it stands in; ties in input order.

    Attributes:
        queries: a text per list. documents: a text per row.
        template: what stands before the query, with {document} in it.
        document_tokens, query_tokens: where texts are cut.
    """

    lm: LanguageModel
    queries: Sequence[str]
    documents: Sequence[str]
    template: str
    answers: AnswerLog
    document_tokens: int = 128
    query_tokens: int = 512
    batch_tokens: int = 4096
    progress: bool = False
    account: RerankAccount = field(default_factory=RerankAccount)
    _scores: dict[tuple[int, int], float] = field(default_factory=dict)
    _prefixes: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    _queries: dict[int, list[int]] = field(default_factory=dict)

    def __call__(self, lists: Sequence[list[int]]) -> list[list[int]]:
        start = time.perf_counter()
        pairs = [(query, row) for query, rows in enumerate(lists) for row in rows]
        self._score([pair for pair in dict.fromkeys(pairs) if pair not in self._scores])
        self.account.seconds += time.perf_counter() - start
        return [
            sorted(rows, key=lambda row: -self._scores[query, row])
            for query, rows in enumerate(lists)
        ]

    def _score(self, pairs: Sequence[tuple[int, int]]) -> None:
        items = [Continuations(self._prefix(row), [self._query(query)]) for query, row in pairs]
        keys = [
            digest_of([self.lm.identity, "likelihood", "query", item.prefix, item.options])
            for item in items
        ]

        def ask(places: list[int]) -> list[float]:
            scored = continuation_logprobs(self.lm, [items[at] for at in places])
            return [sum(option) for (option,) in scored]

        asked = ask_all(
            self.answers, keys, [item.n_tokens for item in items], self.batch_tokens, ask,
            "rerank likelihood", self.progress,
        )  # fmt: skip
        for pair, item, value in zip(pairs, items, asked.answers, strict=True):
            self._scores[pair] = value / max(1, len(item.options[0]))
        self.account.asked += len(asked.fresh)
        self.account.replayed += asked.replayed
        self.account.prompt_tokens += sum(items[at].n_tokens for at in asked.fresh)

    def _prefix(self, row: int) -> list[int]:
        """Token ids before a query. Texts and template are encoded apart; a blank between a
        template's word and a text goes with the text's first word, as tokenizers have it."""
        if row not in self._prefixes:
            document = [Piece(self.documents[row], data=True)]
            ids: list[int] = []
            lost, blank = 0, ""
            for piece in fill(self.template, {"document": document}):
                if piece.data:
                    tokens = self.lm.tokens(blank + piece.text)
                    lost = max(0, len(tokens) - self.document_tokens)
                    ids += tokens[: self.document_tokens]
                    blank = ""
                else:
                    blank = " " if piece.text.endswith(" ") else ""
                    ids += self.lm.tokenizer.encode(
                        piece.text.removesuffix(" "), add_special_tokens=False
                    )
            if not ids:  # nothing to predict the query's first token from
                start = self.lm.tokenizer.bos_token_id
                if start is None:
                    raise ValueError(
                        "a document has no tokens, prompt.query_prefix no text besides it and the "
                        "model no start token; put text into prompt.query_prefix"
                    )
                ids = [start]
            self._prefixes[row] = ids, lost
        ids, lost = self._prefixes[row]
        self.account.show(lost)
        return ids

    def _query(self, query: int) -> list[int]:
        if query not in self._queries:
            blank = " " if self.template.endswith(" ") else ""
            tokens = self.lm.tokens(blank + self.queries[query])
            self.account.cut_queries += len(tokens) > self.query_tokens
            self._queries[query] = tokens[: self.query_tokens]
        return self._queries[query]
