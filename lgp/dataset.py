"""The `Dataset`: documents, judged queries, grades, documents never to be returned; and its checks.

Input is what the files of one collection said, as plain lists and dicts; output is one frozen
`Dataset` of strings. Ids are public strings here and nowhere else: later stages use row numbers,
which are positions in `Dataset.doc_ids`. Opening images, embeddings and the collapsing of
duplicates are left to later stages; duplicates are only counted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lgp.beir import DataError, some
from lgp.choices import EmptyDocuments, UnknownIds

if TYPE_CHECKING:
    from lgp.images import ImageFolder

log = logging.getLogger(__name__)


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
            relevant), n_empty_queries, n_queries_without_relevant (no grade >= relevance_level),
            recall_at_10_ceiling (what the best possible lists would have).
        images, query_images: references that `image_folder` opens, parallel to `doc_ids` and
            `query_ids`; "" = no image, an empty list = no images at all. With images, "empty" and
            "duplicate" speak of text and image together.
        instructions: what an embedder reads before each query's text, parallel to `query_ids`;
            an empty list = nothing. `queries` is the bare text, for rerankers and people.
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
    images: list[str] = field(default_factory=list)
    query_images: list[str] = field(default_factory=list)
    image_folder: ImageFolder | None = None
    instructions: list[str] = field(default_factory=list)

    @cached_property
    def texts(self) -> list[str]:
        """What is embedded for each document: title, a space, body, without outer white space."""
        return [join_text(*pair) for pair in zip(self.titles, self.bodies, strict=True)]

    @property
    def query_texts(self) -> list[str]:
        """What is embedded for each query: its instruction, then its text."""
        if not self.instructions:
            return self.queries
        return [head + text for head, text in zip(self.instructions, self.queries, strict=True)]


def say_unread_images(dataset: Dataset, documents: bool, reader: str) -> None:
    """Refuse images without any text, and warn of images beside text, that `reader` cannot see.

    Args:
        documents: look at the documents, else at the queries.
        reader: who reads text only, for the message, such as "embedder=wordllama".
    Raises:
        DataError: some have an image and no text.
    """
    images = dataset.images if documents else dataset.query_images
    texts = dataset.texts if documents else dataset.queries
    what = "documents" if documents else "queries"
    with_text = [bool(text) for image, text in zip(images, texts, strict=False) if image]
    if not all(with_text):
        raise DataError(
            f"{with_text.count(False)} of {len(texts)} {what} of {dataset.name} are images without "
            f"text, which {reader} does not read; choose one that reads images, or "
            "embedder=precomputed"
        )
    if with_text:
        log.warning("%s does not read the images of %d %s", reader, len(with_text), what)


def join_text(title: str, body: str) -> str:
    """Title, a space and body, without outer white space; "" for an empty document."""
    # Without a title the body itself comes back where it can: large corpora are then held once.
    return f"{title} {body}".strip() if title else body.strip()


def judged_dataset(
    name: str,
    documents: Sequence[tuple[str, str, str]],
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, int]],
    excluded: Mapping[str, frozenset[str]],
    where: str,
    empty: EmptyDocuments,
    unknown_qrels: UnknownIds,
    relevance_level: int,
    info: Mapping[str, Any],
    images: Mapping[str, str] | None = None,
    query_images: Mapping[str, str] | None = None,
    image_folder: ImageFolder | None = None,
    instructions: Mapping[str, str] | None = None,
    excluded_where: str = "excluded_ids",
    only: Collection[str] | None = None,
) -> Dataset:
    """What a benchmark's files say, checked against each other; only judged queries are kept.

    Args:
        documents: (id, title, body). queries: {id: text}, more than the judged ones, too.
        where, excluded_where: what messages call the judgments and the exclusions.
        images, query_images, instructions: {id: as in `Dataset`}; ids without one may be absent.
        only: the queries kept, of those judged; None = all.
    Raises:
        DataError: unknown ids in qrels or excluded, no judged query, or nothing but empty
            documents.
    """
    images, query_images = images or {}, query_images or {}
    corpus_ids = {identifier for identifier, _, _ in documents}
    empty_ids = {
        identifier
        for identifier, *parts in documents
        if not join_text(*parts) and not images.get(identifier)
    }
    if len(empty_ids) == len(documents):
        raise DataError(
            f"all {len(documents)} documents of {name} are empty; nothing to index (a collection "
            "of images is read by dataset=image_text)"
        )
    if unknown_qrels is UnknownIds.error:
        way_out = "correct the file or set unknown_qrels=drop"
        _refuse_unknown(qrels, queries, corpus_ids, where, way_out)
        _refuse_unknown(excluded, queries, corpus_ids, excluded_where, way_out)
    if only is not None:
        qrels = {query: found for query, found in qrels.items() if query in only}
    query_ids = [identifier for identifier in queries if identifier in qrels]
    if not query_ids:
        raise DataError(f"no query of {where} is in the queries file")

    gone = empty_ids if empty is EmptyDocuments.drop else set()
    kept_ids = corpus_ids - gone
    kept_documents = [record for record in documents if record[0] not in gone]
    kept_qrels = {
        query: {doc: grade for doc, grade in qrels[query].items() if doc in kept_ids}
        for query in query_ids
    }
    # Exclusions of unjudged queries are out of scope, not dropped.
    in_scope = {query: docs for query, docs in excluded.items() if query in kept_qrels}
    kept_excluded = {query: docs & kept_ids for query, docs in in_scope.items() if docs & kept_ids}
    return assemble(
        name=name,
        documents=kept_documents,
        queries={identifier: queries[identifier] for identifier in query_ids},
        qrels=kept_qrels,
        excluded=kept_excluded,
        relevance_level=relevance_level,
        info={
            "n_empty": len(empty_ids),
            "n_dropped_empty": len(gone),
            "n_dropped_qrels": _n_pairs(qrels) - _n_pairs(kept_qrels),
            "n_dropped_excluded": _n_pairs(in_scope) - _n_pairs(kept_excluded),
        }
        | dict(info),
        images=_parallel(images, (identifier for identifier, _, _ in kept_documents)),
        query_images=_parallel(query_images, query_ids),
        image_folder=image_folder,
        instructions=_parallel(instructions or {}, query_ids),
    )


def _parallel(found: Mapping[str, str], ids: Iterable[str]) -> list[str]:
    """The strings of ids in order, "" for one without; nothing at all where none has one."""
    return [found.get(identifier, "") for identifier in ids] if any(found.values()) else []


def assemble(
    name: str,
    documents: Sequence[tuple[str, str, str]],
    queries: Mapping[str, str],
    qrels: dict[str, dict[str, int]],
    excluded: dict[str, frozenset[str]],
    relevance_level: int,
    info: dict[str, Any],
    images: Sequence[str] = (),
    query_images: Sequence[str] = (),
    image_folder: ImageFolder | None = None,
    instructions: Sequence[str] = (),
) -> Dataset:
    """A `Dataset` of checked parts, with the counts its `info` promises; `info` is added to them.

    Args:
        documents: (id, title, body) in corpus order. queries: {id: text} of the judged queries.
        images, query_images, instructions: as `Dataset` has them.
    """
    titles, bodies = [title for _, title, _ in documents], [body for _, _, body in documents]
    texts = [join_text(title, body) for title, body in zip(titles, bodies, strict=True)]
    relevant = {
        query: {doc for doc, grade in qrels[query].items() if grade >= relevance_level}
        for query in queries
    }
    shown = list(images) or [""] * len(texts)
    asked = list(query_images) or [""] * len(queries)
    pairs = zip(queries.values(), asked, strict=True)
    counts = {
        "n_docs": len(documents),
        "n_queries": len(queries),
        "n_qrels": _n_pairs(qrels),
        "n_empty": sum(not (text or image) for text, image in zip(texts, shown, strict=True)),
        "n_dropped_empty": 0,
        "n_duplicate_texts": len(texts) - len(set(zip(texts, shown, strict=True))),
        "n_dropped_qrels": 0,
        "n_dropped_excluded": 0,
        "n_excluded_relevant": sum(len(relevant[q] & docs) for q, docs in excluded.items()),
        "n_empty_queries": sum(not (text.strip() or image) for text, image in pairs),
        "n_queries_without_relevant": sum(not docs for docs in relevant.values()),
        "recall_at_10_ceiling": _recall_ceiling([len(docs) for docs in relevant.values()], 10),
    }
    return Dataset(
        name=name,
        doc_ids=[identifier for identifier, _, _ in documents],
        titles=titles,
        bodies=bodies,
        query_ids=list(queries),
        queries=list(queries.values()),
        qrels=qrels,
        excluded=excluded,
        relevance_level=relevance_level,
        info=counts | info,
        images=list(images),
        query_images=list(query_images),
        image_folder=image_folder,
        instructions=list(instructions),
    )


def _recall_ceiling(n_relevant: Sequence[int], k: int) -> float:
    """The mean Recall@k of perfect lists, over queries with a relevant document; 0 if none has."""
    shares = [min(1.0, k / n) for n in n_relevant if n]
    return round(sum(shares) / len(shares), 6) if shares else 0.0


def _refuse_unknown(
    pairs: Mapping[str, Iterable[str]],
    queries: Iterable[str],
    documents: Iterable[str],
    where: str,
    way_out: str,
) -> None:
    """Raise a `DataError` that counts and names ids in `pairs` outside queries or documents."""
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
