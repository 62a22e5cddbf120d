"""A miniature BRIGHT in the hub's layout: parquet files with every oddity of the real ones.

Ids with slashes, blanks and dots; documents of one character, of 233,622 characters and repeated
ones; `["N/A"]` where nothing is excluded or no long document exists; several files a split; columns
that newer revisions add; a query without gold documents; queries that repeat.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lgp.choices import BrightTask

N_DOCUMENTS, N_QUERIES = 48, 8
LONGEST = 233_622
SHARED_CORPUS = {BrightTask.theoremqa_questions: BrightTask.aops}
WITHOUT_LONG = {
    BrightTask.leetcode,
    BrightTask.aops,
    BrightTask.theoremqa_questions,
    BrightTask.theoremqa_theorems,
}
WITH_EXCLUDED = {BrightTask.leetcode, BrightTask.aops, BrightTask.theoremqa_questions}
WORDS = (
    "cell", "enzyme", "river", "basalt", "market", "price", "memory", "sleep", "robot", "wheel",
    "python", "thread", "compost", "solar", "array", "tree", "actor", "trait", "prime", "triangle",
    "limit", "group", "kernel", "integral",
)  # fmt: skip
SCHEMA = pa.schema(
    [("query", pa.string()), ("reasoning", pa.string()), ("id", pa.string())]
    + [(name, pa.list_(pa.string())) for name in ("excluded_ids", "gold_ids_long", "gold_ids")]
    + [("gold_answer", pa.string())]
)


def write_bright(folder: Path, seed: int = 0) -> Path:
    """Write all 12 tasks: `documents`, `long_documents`, `examples` and `gpt4_reason`."""
    for task in BrightTask:
        rng = random.Random(f"{seed}-{SHARED_CORPUS.get(task, task).value}")
        documents = corpus(task, rng)
        # Two files for one split: large ones come so.
        half = len(documents) // 2 if task is BrightTask.leetcode else len(documents)
        write_split(folder / "documents", task.value, [documents[:half], documents[half:]])
        if task not in WITHOUT_LONG:
            pages = sorted({page(d["id"]) for d in documents})
            whole = [
                {
                    "id": p,
                    "content": "\n".join(d["content"] for d in documents if page(d["id"]) == p),
                }
                for p in pages
            ]
            write_split(folder / "long_documents", task.value, [whole])
        rows = examples(task, documents, random.Random(f"{seed}-{task.value}-queries"))
        write_split(folder / "examples", task.value, [rows], SCHEMA)
        thought = [row | {"query": f"Let us think. {row['query']}"} for row in rows[:-1]]
        write_split(folder / "gpt4_reason", task.value, [thought], SCHEMA)
    return folder


def corpus(task: BrightTask, rng: random.Random) -> list[dict[str, str]]:
    """Documents as rows of id and content; about a fifth repeat an earlier text (not leetcode)."""
    rows: list[dict[str, str]] = []
    for at in range(N_DOCUMENTS):
        identifier = f"{task.value} notes/page_{at // 3}.v1 (a)/part {at % 3}.txt"
        topic = at % len(WORDS)
        content = " ".join([WORDS[topic]] * 3 + rng.choices(WORDS, k=rng.randint(2, 12)))
        if task is not BrightTask.leetcode:
            if at % 5 == 4:
                content = rows[rng.randrange(at)]["content"]
            if at == 10:
                content = "x"
        if at == 20 and task is BrightTask.biology:
            content = "cell " * (LONGEST // 5) + "ab"
            assert len(content) == LONGEST
        if at == 21:
            content = f'  "{content}"\r\n\u2028 caf\u00e9 \U0001f9ea \n'
        rows.append({"id": identifier, "content": content})
    return rows


def page(identifier: str) -> str:
    """The id of the long document that a passage is from."""
    return identifier.rsplit("/", 1)[0]


def examples(
    task: BrightTask, documents: list[dict[str, str]], rng: random.Random
) -> list[dict[str, Any]]:
    """Queries; the last has no gold document, and in theoremqa_questions two have one text."""
    ids = [document["id"] for document in documents]
    rows: list[dict[str, Any]] = []
    for at in range(N_QUERIES):
        gold = rng.sample(ids, 20 if task is BrightTask.pony and at == 0 else rng.randint(1, 4))
        if at == N_QUERIES - 1:
            gold = []
        text = " ".join(rng.choices(WORDS, k=6)) + '?\nWhy "so"?'
        if task is BrightTask.theoremqa_questions and at == 1:
            text = rows[0]["query"]
        banned = rng.sample([d for d in ids if d not in gold], 12)
        rows.append(
            {
                "query": text,
                "reasoning": "because",
                "id": str(at),
                "excluded_ids": banned if task in WITH_EXCLUDED and at != 2 else ["N/A"],
                "gold_ids_long": ["N/A"] if task in WITHOUT_LONG else sorted(set(map(page, gold))),
                "gold_ids": gold,
                "gold_answer": None,
            }
        )
    return rows


def write_split(
    folder: Path, split: str, parts: list[list[dict[str, Any]]], schema: pa.Schema | None = None
) -> None:
    """Parquet files of one split, named as the hub names them."""
    folder.mkdir(parents=True, exist_ok=True)
    filled = [part for part in parts if part]
    for number, part in enumerate(filled):
        name = f"{split}-{number:05d}-of-{len(filled):05d}.parquet"
        pq.write_table(pa.Table.from_pylist(part, schema), folder / name, row_group_size=16)
