"""Collections by name: BEIR folders, the toy corpus, installed packages, BRIGHT and M-BEIR.

Input is a folder in BEIR layout (`load_beir`), a seed (`load_toy`), installed Python packages
(`load_pydocs`) or settings that name any of these and the benchmarks (`load_dataset`); output is
one `Dataset`. What a file's lines look like is in `lgp.beir`, `lgp.bright` and `lgp.mbeir`.
"""

import platform
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from lgp.beir import DataError, find_file, read_excluded, read_qrels, read_records
from lgp.bright import SOURCE as BRIGHT
from lgp.bright import load_bright
from lgp.choices import BrightTask, DatasetKind, EmptyDocuments, MbeirTask, UnknownIds
from lgp.config_data import DatasetConfig
from lgp.dataset import Dataset, assemble, judged_dataset
from lgp.hub import HubSource
from lgp.image_text import load_image_text
from lgp.mbeir import SOURCE as MBEIR
from lgp.mbeir import load_mbeir
from lgp.pydocs import Page, package_versions, read_pages, resolve_targets
from lgp.toy import generate

__all__ = [
    "DataError",
    "Dataset",
    "EmptyDocuments",
    "UnknownIds",
    "load_beir",
    "load_dataset",
    "load_pydocs",
    "load_toy",
]


def load_dataset(c: DatasetConfig) -> Dataset:
    """The collection that checked settings name.

    Raises:
        DataError: as the loader of its kind.
    """
    if c.kind is DatasetKind.toy:
        return load_toy(n_topics=c.topics, task=c.task)
    if c.kind is DatasetKind.pydocs:
        return load_pydocs(c.packages)
    if c.kind is DatasetKind.bright:
        return load_bright(
            BrightTask(c.task), c.path, _source(c, BRIGHT), c.queries, c.long_documents,
            c.instruction, c.empty, c.unknown_qrels,
        )  # fmt: skip
    if c.kind is DatasetKind.mbeir:
        return load_mbeir(
            MbeirTask(c.task), c.path, c.split, _source(c, MBEIR), c.images, c.instruction,
            c.sample_queries, c.seed, c.empty, c.unknown_qrels,
        )  # fmt: skip
    assert c.path is not None
    excluded = Path(c.excluded) if c.excluded else None
    if c.kind is DatasetKind.image_text:
        return load_image_text(
            Path(c.path), c.split, c.direction, excluded, c.empty, c.unknown_qrels,
            c.relevance_level,
        )  # fmt: skip
    return load_beir(Path(c.path), c.split, excluded, c.empty, c.unknown_qrels, c.relevance_level)


def _source(c: DatasetConfig, standard: HubSource) -> HubSource:
    return HubSource(c.repository or standard.name, c.revision or standard.revision)


def load_beir(
    path: Path,
    split: str = "test",
    excluded_path: Path | None = None,
    empty: EmptyDocuments = EmptyDocuments.embed,
    unknown_qrels: UnknownIds = UnknownIds.error,
    relevance_level: int = 1,
) -> Dataset:
    """Load a folder in BEIR layout: corpus.jsonl[.gz], queries.jsonl[.gz], qrels/<split>.tsv.

    Args:
        excluded_path: query-id<TAB>corpus-id lines of documents never to be returned; ids of
            queries that this split does not judge are no error.
        empty: with `drop`, judgments and exclusions of dropped documents go too, and are counted.
        unknown_qrels: with `drop`, judgments and exclusions that name ids outside the collection
            are dropped and counted, instead of refused.
    Raises:
        DataError: a missing or empty file, a malformed line (file and line number are named),
            repeated or unknown ids, no such split, or nothing but empty documents.
    """
    path = Path(path)
    if relevance_level < 1:
        raise DataError(f"relevance_level={relevance_level} is below 1; grade 0 is not relevant")
    documents = list(read_records(find_file(path, "corpus")))
    queries = {identifier: text for identifier, _, text in read_records(find_file(path, "queries"))}
    qrels = read_qrels(path, split)
    excluded = read_excluded(Path(excluded_path)) if excluded_path is not None else {}

    return judged_dataset(
        path.resolve().name, documents, queries, qrels, excluded, f"qrels/{split}.tsv",
        empty, unknown_qrels, relevance_level, {"split": split}, excluded_where=str(excluded_path),
    )  # fmt: skip


def load_toy(
    seed: int = 0, n_topics: int = 12, group_size: int = 10, task: str | None = None
) -> Dataset:
    """Generate a small collection whose relevant documents are known by construction.

    Args:
        task: a name for the collection; other names draw other collections.
    Returns:
        2 * n_topics * group_size documents (default 240) in seeded order and 2 * n_topics queries
        (24) with grades 2 and 1, as `toy.generate` describes; the same text on every machine.
    Raises:
        DataError: n_topics or group_size outside 2..100.
    """
    for name, value in (("n_topics", n_topics), ("group_size", group_size)):
        if not 2 <= value <= 100:
            raise DataError(f"{name}={value} is outside 2..100; the default is 12 topics of 10")
    name = "toy" if task is None else f"toy-{task}"
    drawn = seed if task is None else seed + crc32(task.encode())
    documents, queries, qrels = generate(drawn, n_topics, group_size)
    return assemble(name, documents, queries, qrels, {}, 1, {"seed": drawn})


def load_pydocs(packages: Sequence[str] = ("numpy",)) -> Dataset:
    """Load the API documentation of installed packages, judged by their "See Also" sections.

    A document is the docstring of a public function or class under its shortest public path, its
    "See Also" section cut. A query is a function's summary sentence (query id = document id); the
    resolved targets of its section have grade 1; the function itself is excluded. Documents are in
    order of their names, which depend on package versions (recorded in `info`) only.

    Raises:
        DataError: no packages, one that is not installed, or no query at all.
    Side effects: none here; a child process imports the packages' public modules.
    """
    library = read_pages(packages)
    queries: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    n_targets = n_unresolved = 0
    for page in library.pages:
        targets = resolve_targets(page, library.aliases)
        n_targets += len(page.see_also)
        n_unresolved += sum(target is None for target in targets)
        relevant = {target: 1 for target in targets if target not in (None, page.name)}
        if page.is_function and page.summary and relevant:
            queries[page.name] = page.summary
            qrels[page.name] = {target: 1 for target in relevant if target is not None}
    if not queries:
        raise DataError(
            f"packages={list(packages)} give {len(library.pages)} documents but no query: no "
            "function with a resolvable See Also section; add numpy or scipy"
        )
    return assemble(
        name="pydocs",
        documents=[_document(page) for page in library.pages],
        queries=queries,
        qrels=qrels,
        excluded={query: frozenset([query]) for query in queries},
        relevance_level=1,
        info={
            "packages": package_versions(packages),
            "python": platform.python_version(),
            "n_modules": library.n_modules,
            "n_failed_modules": len(library.failed_modules),
            "failed_modules": list(library.failed_modules),
            "n_see_also": n_targets,
            "n_see_also_unresolved": n_unresolved,
        },
    )


def _document(page: Page) -> tuple[str, str, str]:
    return page.name, page.name, page.body
