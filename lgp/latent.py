"""Latent queries: what somebody might ask for a document, before anybody has.

In: a collection and where its latent queries come from. Out: texts, and how many answers of a
language model were of no use. What is done with them is unknown here.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lgp.answers import AnswerLog
from lgp.ask import Engine, answer_tokens, ask_all, first_uses
from lgp.beir import DataError, find_file, read_lines, read_qrels, read_records
from lgp.config_llm import PromptConfig
from lgp.prompts import Chat, Piece, clean, fill
from lgp.store import digest_of

LONGEST = 400
"""Characters of a latent query; what follows is cut."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
_LEAD = re.compile(
    r"^[\s\-*•>#\"'`(\[]*(?:\d{1,2}[.):]\s+)?(?:(?:search\s+)?query\s*\d*\s*:\s*)?", re.I
)


@dataclass(frozen=True)
class Written:
    """Queries that a language model wrote, and what they cost.

    Attributes:
        queries: per document, those that could be used. unusable: documents without any.
        repeated: queries that stand for several documents, which says nothing about any of them.
        asked, replayed: prompts. tokens, output_tokens: read and written now, replayed answers
            left out. used_tokens: of all answers. seconds: waited for the model.
    """

    queries: list[tuple[str, ...]]
    unusable: int
    repeated: int
    asked: int
    replayed: int
    tokens: int
    output_tokens: int
    used_tokens: int
    seconds: float


def first_sentence(body: str) -> str:
    """A body's text up to the first sentence end, at most `LONGEST` characters."""
    return _SENTENCE_END.split(body.strip(), maxsplit=1)[0][:LONGEST].strip()


def read_query_file(path: Path) -> list[str]:
    """Queries of a file: JSON lines with "text" or "queries", or a plain query a line.

    Raises:
        DataError: no such file, no query in it, or a JSON line with neither key.
    """
    if not path.is_file():
        raise DataError(f"{path} is not a file; give a file of queries in repair.file")
    found: list[str] = []
    for number, line in read_lines(path):
        if not line.lstrip().startswith("{"):
            found.append(line.strip())
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number} is not JSON: {error}") from error
        texts = record.get("queries", [record.get("text")])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(f'{path}, line {number} has neither "text" nor "queries" as text')
        found += [text.strip() for text in texts]
    found = [text[:LONGEST] for text in found if text]
    if not found:
        raise DataError(f"{path} holds no query")
    return found


def read_split_queries(folder: Path, split: str) -> list[str]:
    """The queries that a split of a BEIR folder judges, in order of its judgments; the judgments
    themselves are not used.

    Raises:
        DataError: no such split, or none of its queries is in the queries file.
    """
    texts = {name: text for name, _, text in read_records(find_file(folder, "queries"))}
    found = [texts[name] for name in read_qrels(folder, split) if texts.get(name, "").strip()]
    if not found:
        raise DataError(f"{folder}: no query of qrels/{split}.tsv is in queries.jsonl")
    return found


def query_chat(prompt: PromptConfig, document: str, n: int) -> Chat:
    """The prompt for `n` queries of a document, its text cleaned and cut.

    Raises:
        DataError: the prompt configuration has no template for it.
    """
    if prompt.query_user is None:
        raise DataError(
            f"prompt={prompt.name} has no query_user, which repair.queries=llm needs; choose "
            "prompt=general or prompt=likelihood"
        )
    values = {
        "document": [Piece(document, data=True)], "n": [Piece(str(n))],
        "documents": [Piece(prompt.documents)],
    }  # fmt: skip
    return Chat(fill(prompt.query_system or "", values), fill(prompt.query_user, values))


def read_written(text: str, n: int) -> tuple[str, ...]:
    """The first `n` queries in an answer: lines with a letter, without marks, numbers and quotes
    around them, each once. What is thought before `</think>` does not count."""
    lines = text.rpartition("</think>")[2].splitlines()
    kept = (_LEAD.sub("", line[:LONGEST]).strip(" \t\"'`*)]") for line in lines)
    usable = [line for line in kept if sum(letter.isalpha() for letter in line) > 2]
    return tuple(dict.fromkeys(usable))[:n]


def is_written(n: int, text: str) -> bool:
    """Whether an answer holds `n` ended lines that are queries."""
    return len(read_written("\n".join(text.split("\n")[:-1]), n)) >= n


def ask_queries(
    make: Callable[[Callable[[str], bool], str], Engine],
    prompt: PromptConfig,
    documents: Sequence[str],
    answers: AnswerLog,
    n: int,
    document_tokens: int,
    progress: bool = False,
) -> Written:
    """Have queries written, one prompt a document; equal documents are asked about once.

    Args:
        make: an engine by its stop rule and that rule's name.
    """
    engine = make(partial(is_written, n), f"{n} lines")
    shown = [engine.cut(clean(text), document_tokens)[0] for text in documents]
    prompts = [engine.encode(query_chat(prompt, text, n)) for text in shown]
    keys = [digest_of([engine.identity, "queries", engine.decoding, p.content]) for p in prompts]

    start = time.perf_counter()

    def ask(places: list[int]) -> Sequence[Any]:
        return engine.generate([prompts[i] for i in places])

    sizes = [p.size for p in prompts]
    asked = ask_all(answers, keys, sizes, engine.batch_tokens, ask, "llm queries", progress)
    found = [read_written(answer["text"], n) for answer in asked.answers]
    fresh = [asked.answers[at] for at in asked.fresh]
    times = Counter(query for queries in found for query in queries)
    return Written(
        found,
        unusable=sum(not queries for queries in found),
        repeated=sum(count > 1 for count in times.values()),
        asked=len(fresh),
        replayed=asked.replayed,
        tokens=sum(answer["prompt_tokens"] for answer in fresh),
        output_tokens=sum(answer.get("output_tokens", 0) for answer in fresh),
        used_tokens=first_uses(keys, list(map(answer_tokens, asked.answers)), set()),
        seconds=time.perf_counter() - start,
    )


def split_queries(n: int, held_out: float, seed: int) -> tuple[Tensor, Tensor]:
    """Places of the queries to repair for and of those only measured, int64, each rising."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    aside = int(held_out * n)
    return order[aside:].sort().values, order[:aside].sort().values


def count_twins(latent: Tensor, asked: Tensor, similar: float) -> int:
    """How many latent queries are (nearly) a test query: cosine at least `similar`.

    Args:
        latent: unit rows, float32 [Q, D]. asked: unit rows, float32 [T, D].
    """
    blocks = latent.split(4096)
    return sum(int(((block @ asked.T).amax(1) >= similar).sum()) for block in blocks)
