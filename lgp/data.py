"""Collections: documents, judged queries, relevance grades, documents never to be returned.

Input is a folder in BEIR layout (`load_beir`), a seed (`load_toy`) or installed Python packages
(`load_pydocs`); output is one frozen `Dataset` of strings. Ids are public strings here and nowhere
else: later stages use row numbers, which are positions in `Dataset.doc_ids`. Images, embeddings and
the collapsing of duplicate texts are left to later stages; duplicates are only counted.
"""

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lgp.beir import DataError, find_file, read_excluded, read_qrels, read_records, some
from lgp.choices import EmptyDocuments, UnknownIds
from lgp.pydocs import Page, package_versions, read_pages, resolve_targets
from lgp.toy import generate

__all__ = [
    "DataError",
    "Dataset",
    "EmptyDocuments",
    "UnknownIds",
    "load_beir",
    "load_pydocs",
    "load_toy",
]


@dataclass(frozen=True)
class Dataset:
    """A collection with its judged queries.

    Attributes:
        name: short name, for reports.
        doc_ids, titles, bodies: parallel, in corpus order; ids unique, texts may repeat or be "".
        query_ids, queries: the judged queries only, parallel, in the order of the queries file.
        qrels: {query id: {document id: grade}} for exactly `query_ids`; grades <= 0 as given. A
            query may have an empty dict when all its judgments were dropped.
        excluded: {query id: documents never returned}; queries without any are absent.
        relevance_level: smallest grade that counts as relevant for Recall@k.
        info: counts and versions, JSON-able: n_docs, n_queries, n_qrels, n_empty (seen, before any
            dropping), n_dropped_empty, n_duplicate_texts (equal to an earlier document's, after
            dropping), n_dropped_qrels, n_dropped_excluded, n_excluded_relevant (excluded although
            relevant), n_empty_queries, n_queries_without_relevant (no grade >= relevance_level).
    """

    name: str
    doc_ids: list[str]
    titles: list[str]
    bodies: list[str]
    query_ids: list[str]
    queries: list[str]
    qrels: dict[str, dict[str, int]]
    excluded: dict[str, frozenset[str]]
    relevance_level: int = 1
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """What is embedded for each document: title, a space, body, without outer white space."""
        return [join_text(*pair) for pair in zip(self.titles, self.bodies, strict=True)]


def join_text(title: str, body: str) -> str:
    """Title, a space and body, without outer white space; "" for an empty document."""
    return f"{title} {body}".strip()


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

    corpus_ids = {identifier for identifier, _, _ in documents}
    empty_ids = {identifier for identifier, *parts in documents if not join_text(*parts)}
    if len(empty_ids) == len(documents):
        raise DataError(
            f"all {len(documents)} documents of {path} are empty; a collection of images is not "
            "read by load_beir"
        )
    judged = {identifier for identifier in qrels if identifier in queries}
    if unknown_qrels is UnknownIds.error:
        way_out = "correct the file or set unknown_qrels=drop"
        _refuse_unknown(qrels, queries.keys(), corpus_ids, f"qrels/{split}.tsv", way_out)
        _refuse_unknown(excluded, queries.keys(), corpus_ids, str(excluded_path), way_out)
    if not judged:
        raise DataError(f"no query of qrels/{split}.tsv is in the queries file of {path}")

    gone = empty_ids if empty is EmptyDocuments.drop else set()
    kept_ids = corpus_ids - gone
    kept_documents = [record for record in documents if record[0] not in gone]
    query_ids = [identifier for identifier in queries if identifier in judged]
    kept_qrels = {
        query: {doc: grade for doc, grade in qrels[query].items() if doc in kept_ids}
        for query in query_ids
    }
    # Exclusions of unjudged queries are out of scope, not dropped.
    in_scope = {query: docs for query, docs in excluded.items() if query in judged}
    kept_excluded = {query: docs & kept_ids for query, docs in in_scope.items() if docs & kept_ids}
    return _assemble(
        name=path.resolve().name,
        documents=kept_documents,
        queries={identifier: queries[identifier] for identifier in query_ids},
        qrels=kept_qrels,
        excluded=kept_excluded,
        relevance_level=relevance_level,
        info={
            "split": split,
            "n_empty": len(empty_ids),
            "n_dropped_empty": len(gone),
            "n_dropped_qrels": _n_pairs(qrels) - _n_pairs(kept_qrels),
            "n_dropped_excluded": _n_pairs(in_scope) - _n_pairs(kept_excluded),
        },
    )


def load_toy(seed: int = 0, n_topics: int = 12, group_size: int = 10) -> Dataset:
    """Generate a small collection whose relevant documents are known by construction.

    Returns:
        2 * n_topics * group_size documents (default 240) in seeded order and 2 * n_topics queries
        (24) with grades 2 and 1, as `toy.generate` describes; the same text on every machine.
    Raises:
        DataError: n_topics or group_size outside 2..100.
    """
    for name, value in (("n_topics", n_topics), ("group_size", group_size)):
        if not 2 <= value <= 100:
            raise DataError(f"{name}={value} is outside 2..100; the default is 12 topics of 10")
    documents, queries, qrels = generate(seed, n_topics, group_size)
    return _assemble("toy", documents, queries, qrels, {}, 1, {"seed": seed})


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
    return _assemble(
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


def _assemble(
    name: str,
    documents: Sequence[tuple[str, str, str]],
    queries: Mapping[str, str],
    qrels: dict[str, dict[str, int]],
    excluded: dict[str, frozenset[str]],
    relevance_level: int,
    info: dict[str, Any],
) -> Dataset:
    texts = [join_text(title, body) for _, title, body in documents]
    relevant = {
        query: {doc for doc, grade in qrels[query].items() if grade >= relevance_level}
        for query in queries
    }
    n_empty = sum(not text for text in texts)
    counts = {
        "n_docs": len(documents),
        "n_queries": len(queries),
        "n_qrels": _n_pairs(qrels),
        "n_empty": n_empty,
        "n_dropped_empty": 0,
        "n_duplicate_texts": len(texts) - len(set(texts)),
        "n_dropped_qrels": 0,
        "n_dropped_excluded": 0,
        "n_excluded_relevant": sum(len(relevant[q] & docs) for q, docs in excluded.items()),
        "n_empty_queries": sum(not text.strip() for text in queries.values()),
        "n_queries_without_relevant": sum(not docs for docs in relevant.values()),
    }
    return Dataset(
        name=name,
        doc_ids=[identifier for identifier, _, _ in documents],
        titles=[title for _, title, _ in documents],
        bodies=[body for _, _, body in documents],
        query_ids=list(queries),
        queries=list(queries.values()),
        qrels=qrels,
        excluded=excluded,
        relevance_level=relevance_level,
        info=counts | info,
    )


def _refuse_unknown(
    pairs: Mapping[str, Iterable[str]],
    queries: Iterable[str],
    documents: Iterable[str],
    where: str,
    way_out: str,
) -> None:
    unknown_queries = sorted(set(pairs) - set(queries))
    if unknown_queries:
        raise DataError(
            f"{where} names {len(unknown_queries)} query ids that the queries file lacks: "
            f"{some(unknown_queries)}; {way_out}"
        )
    unknown_documents = sorted({doc for docs in pairs.values() for doc in docs} - set(documents))
    if unknown_documents:
        raise DataError(
            f"{where} names {len(unknown_documents)} document ids that the corpus lacks: "
            f"{some(unknown_documents)}; {way_out}"
        )


def _n_pairs(pairs: Mapping[str, Iterable[str]]) -> int:
    return sum(len(list(docs)) for docs in pairs.values())
