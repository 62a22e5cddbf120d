"""The knobs of collections, with their checks; a part of `lgp.config`. No files here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from lgp.choices import (
    BrightTask,
    DatasetKind,
    Direction,
    EmptyDocuments,
    Instruction,
    MbeirTask,
    QuerySource,
    UnknownIds,
)
from lgp.config_llm import ConfigError
from lgp.config_llm import at_least as _at_least

TASKS: dict[DatasetKind, type[Enum]] = {
    DatasetKind.bright: BrightTask,
    DatasetKind.mbeir: MbeirTask,
}
INSTRUCTIONS = {
    DatasetKind.bright: (Instruction.none, Instruction.qwen, Instruction.bge),
    DatasetKind.mbeir: (Instruction.none, Instruction.uniir),
}


@dataclass
class DatasetConfig:
    kind: DatasetKind = DatasetKind.toy
    path: str | None = None  # folder: BEIR layout; bright, mbeir: the hub's, null = from the hub
    split: str = "test"  # beir: qrels/<split>.tsv; mbeir: query/<split>, qrels/<split>
    direction: Direction = Direction.text_to_image  # image_text: what is searched with what
    excluded: str | None = None  # beir, image_text: file of (query, document) pairs never returned
    empty: EmptyDocuments = EmptyDocuments.embed
    unknown_qrels: UnknownIds = UnknownIds.error
    relevance_level: int = 1  # smallest relevant grade for Recall (2 for the MS MARCO DL pools)
    packages: list[str] = field(default_factory=lambda: ["numpy"])  # pydocs
    max_queries: int | None = None  # evaluate the first so many judged queries only
    task: str | None = None  # bright, mbeir: one of their tasks; toy: any word, draws another one
    topics: int = 12  # toy: 20 documents and 2 queries each
    repository: str | None = None  # bright, mbeir: hub name; null = the benchmark's
    revision: str | None = None  # bright, mbeir: commit or tag; null = the pinned one
    queries: QuerySource = QuerySource.original  # bright
    long_documents: bool = False  # bright: whole pages instead of passages, gold_ids_long
    instruction: Instruction = Instruction.none  # bright, mbeir: read before a query's text
    images: str | None = None  # mbeir: folder that holds mbeir_images/ or tar files; null = path
    sample_queries: int | None = None  # mbeir: judged queries drawn uniformly; null = all (§5: 100)
    seed: int = 0  # mbeir: of the sample and of the choice of instructions

    def __post_init__(self) -> None:
        if self.kind in (DatasetKind.beir, DatasetKind.image_text) and not self.path:
            raise ConfigError(
                f"dataset.path is not set; dataset={self.kind.value} needs a BEIR-layout folder"
            )
        if not 2 <= self.topics <= 100:
            raise ConfigError(f"dataset.topics={self.topics} is outside 2..100; set it so")
        _at_least("dataset.relevance_level", self.relevance_level, 1, "grades below 1 are not")
        for key in ("max_queries", "sample_queries"):
            if (value := getattr(self, key)) is not None:
                _at_least(f"dataset.{key}", value, 1, "leave it null for all")
        if self.kind in TASKS:
            known = [task.value for task in TASKS[self.kind]]
            if self.task not in known:
                raise ConfigError(
                    f"dataset.task={self.task} is no task of dataset={self.kind.value}; known: "
                    f"{', '.join(known)}"
                )
        allowed = INSTRUCTIONS.get(self.kind, (Instruction.none,))
        if self.instruction not in allowed:
            raise ConfigError(
                f"dataset.instruction={self.instruction.value} is not offered for dataset="
                f"{self.kind.value}; known: {', '.join(i.value for i in allowed)}"
            )
        if self.sample_queries is not None and self.kind is not DatasetKind.mbeir:
            raise ConfigError(
                f"dataset.sample_queries={self.sample_queries} with dataset={self.kind.value}: "
                "only mbeir draws queries; use dataset.max_queries"
            )
