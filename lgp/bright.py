"""BRIGHT, the benchmark of reasoning-intensive retrieval: 12 data sets of parquet files.

Input is a task's name and a folder in the hub's layout (`documents/<task>-*.parquet` with id and
content, `examples/<task>-*.parquet` with query, id, gold_ids and excluded_ids); output is one
`Dataset`. Ids look like paths and are opaque. Repeated texts are kept and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lgp.beir import DataError, some
from lgp.choices import BrightTask, EmptyDocuments, Instruction, QuerySource, UnknownIds
from lgp.dataset import Dataset, judged_dataset
from lgp.hub import HubSource, find_folder

log = logging.getLogger(__name__)

SOURCE = HubSource("mteb/BRIGHT", "c26703e6600d97c579ee2985f16cf307db13ed85")
"""The copy and commit whose sizes are in `SIZES`; xlangai/BRIGHT is the authors' own."""

SIZES = {
    BrightTask.biology: (57_359, 49_434, 103),
    BrightTask.earth_science: (121_249, 117_633, 116),
    BrightTask.economics: (50_220, 40_594, 103),
    BrightTask.psychology: (52_835, 43_756, 101),
    BrightTask.robotics: (61_961, 40_431, 101),
    BrightTask.stackoverflow: (107_081, 66_270, 117),
    BrightTask.sustainable_living: (60_792, 50_142, 108),
    BrightTask.leetcode: (413_932, 413_932, 142),
    BrightTask.pony: (7_894, 6_183, 112),
    BrightTask.aops: (188_002, 176_508, 111),
    BrightTask.theoremqa_questions: (188_002, 176_508, 205),
    BrightTask.theoremqa_theorems: (23_839, 23_839, 65),
}
"""Documents, distinct texts and queries of each task (short documents, queries as asked)."""

NOTHING = "N/A"
"""Stands in a list of ids for "there are none"."""

# How BRIGHT's own configurations speak of a task: who asks, for what, to help with what.
_POSTS = {
    BrightTask.biology: "Biology",
    BrightTask.earth_science: "Earth Science",
    BrightTask.economics: "Economics",
    BrightTask.psychology: "Psychology",
    BrightTask.robotics: "Robotics",
    BrightTask.stackoverflow: "Stack Overflow",
    BrightTask.sustainable_living: "Sustainable Living",
}
_OTHERS = {  # (as the Qwen form names the query, as the BGE form does, noun, what is sought)
    BrightTask.pony: ("pony question", "Pony question", "question", "passages"),
    BrightTask.leetcode: ("coding problem", "Coding problem", "problem", "examples"),
    BrightTask.aops: ("Math problem", "Math problem", "problem", "examples"),
    BrightTask.theoremqa_questions: ("Math problem", "Math problem", "problem", "examples"),
    BrightTask.theoremqa_theorems: ("Math problem", "Math problem", "problem", "theorems"),
}
LONG_TASKS = (*_POSTS, BrightTask.pony)
"""The tasks that have whole pages besides passages."""


def instruction(form: Instruction, task: BrightTask, long_documents: bool = False) -> str:
    """What is put before a query's text, as BRIGHT's configurations word it; "" for none.

    Raises:
        ValueError: a form that BRIGHT does not have.
    """
    if form is Instruction.none:
        return ""
    if task in _POSTS:
        qwen_name = bge_name = f"{_POSTS[task]} post"
        noun, sought = "post", "passages"
    else:
        qwen_name, bge_name, noun, sought = _OTHERS[task]
    if long_documents:
        sought = "documents"
    if form is Instruction.qwen:
        asked = f"Given a {qwen_name}, retrieve relevant {sought} that help answer the {noun}"
        return f"Instruct: {asked}\nQuery: "
    if form is Instruction.bge:
        return f"Represent this {bge_name} for searching relevant {sought}: "
    raise ValueError(f"instruction={form.value} is not one of BRIGHT's: none, qwen, bge")


def load_bright(
    task: BrightTask,
    path: str | None = None,
    source: HubSource = SOURCE,
    queries: QuerySource = QuerySource.original,
    long_documents: bool = False,
    form: Instruction = Instruction.none,
    empty: EmptyDocuments = EmptyDocuments.embed,
    unknown_ids: UnknownIds = UnknownIds.error,
) -> Dataset:
    """Load one task. Every gold document has grade 1; excluded ids are the query's own.

    Args:
        path: folder with the hub's layout; None = from the hub.
        long_documents: whole pages and `gold_ids_long`.
    Raises:
        DataError: missing or damaged files, missing columns, repeated or unknown ids, or a task
            without long documents.
    """
    if long_documents and task not in LONG_TASKS:
        names = ", ".join(t.value for t in LONG_TASKS)
        raise DataError(
            f"dataset.long_documents=true: BRIGHT has no long documents for {task.value}; they "
            f"exist for {names}"
        )
    part = "long_documents" if long_documents else "documents"
    patterns = [f"{folder}/{task.value}-*.parquet" for folder in (part, queries.value)]
    folder = find_folder(path, source, patterns)
    files = [sorted(folder.glob(pattern)) for pattern in patterns]

    documents, n_distinct = _documents(files[0])
    gold_column = "gold_ids_long" if long_documents else "gold_ids"
    texts: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    excluded: dict[str, frozenset[str]] = {}
    for row in _rows(files[1], ("id", "query", gold_column, "excluded_ids")):
        identifier = _identifier(row, files[1][0])
        if identifier in texts:
            raise DataError(f"{files[1][0]}: query id {identifier!r} is used twice")
        texts[identifier] = row["query"] or ""
        qrels[identifier] = dict.fromkeys(_ids(row[gold_column]), 1)
        if banned := frozenset(_ids(row["excluded_ids"])):
            excluded[identifier] = banned
    if not texts:
        raise DataError(f"{files[1][0]} holds no query")
    head = instruction(form, task, long_documents)
    dataset = judged_dataset(
        f"bright-{task.value}", documents, texts, qrels, excluded, f"{gold_column} of {task.value}",
        empty, unknown_ids, 1,
        {
            "source": path or f"{source.name}@{source.revision}", "queries": queries.value,
            "long_documents": long_documents, "instruction": form.value,
            "n_distinct_texts": n_distinct, "n_excluded": sum(map(len, excluded.values())),
        },
        instructions=dict.fromkeys(texts, head),
    )  # fmt: skip
    _compare_sizes(task, queries, long_documents, len(documents), n_distinct, len(texts))
    return dataset


def _documents(files: Sequence[Path]) -> tuple[list[tuple[str, str, str]], int]:
    """(id, "", content) of every document, and the number of distinct contents as written."""
    found: list[tuple[str, str, str]] = []
    ids: set[str] = set()
    contents: set[int] = set()
    repeated: list[str] = []
    for row in _rows(files, ("id", "content")):
        identifier, content = _identifier(row, files[0]), row["content"] or ""
        if identifier in ids:
            repeated.append(identifier)
        ids.add(identifier)
        contents.add(hash(content))  # the strings themselves are kept stripped, once
        found.append((identifier, "", content.strip()))
    if not found:
        raise DataError(f"{files[0]} holds no document")
    if repeated:
        raise DataError(
            f"{files[0]}: {len(repeated)} documents repeat an earlier id: {some(repeated)}; ids "
            "must be unique"
        )
    return found, len(contents)


def _rows(files: Sequence[Path], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of parquet files, a block at a time: a whole corpus twice would not fit everywhere.

    Raises:
        DataError: not a parquet file, a damaged one, or one without these columns.
    """
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    for file in files:
        try:
            with ParquetFile(file) as table:
                known = table.schema_arrow.names
                missing = [name for name in columns if name not in known]
                if missing:
                    raise DataError(
                        f"{file} lacks the columns {', '.join(missing)}; it has {', '.join(known)}"
                    )
                for block in table.iter_batches(4096, columns=list(columns)):
                    yield from block.to_pylist()
        except (ArrowException, OSError) as error:
            raise DataError(f"{file} cannot be read as parquet ({error}); copy it again") from error


def _identifier(row: dict[str, Any], file: Path) -> str:
    value = row["id"]
    if not isinstance(value, str) or not value:
        raise DataError(f"{file}: an id is {value!r}; ids are non-empty strings")
    return value


def _ids(values: Sequence[str] | None) -> list[str]:
    return [value for value in values or () if value != NOTHING]


def _compare_sizes(
    task: BrightTask,
    queries: QuerySource,
    long_documents: bool,
    n_docs: int,
    n_distinct: int,
    n_queries: int,
) -> None:
    """Say the counts, and warn where they are not those of the pinned revision."""
    known = dict(zip(("documents", "distinct texts", "queries"), SIZES[task], strict=True))
    found = {"documents": n_docs, "distinct texts": n_distinct, "queries": n_queries}
    log.info("bright %s: %d documents (%d distinct texts), %d queries", task.value, *found.values())
    if long_documents:
        del known["documents"], known["distinct texts"]
    if queries is not QuerySource.original:
        del known["queries"]
    for name, number in known.items():
        if found[name] != number:
            log.warning(
                "bright %s has %d %s here and %d at %s, revision %s; revisions differ, so compare "
                "results of one revision only", task.value, found[name], name, number,
                SOURCE.name, SOURCE.revision[:12],
            )  # fmt: skip
