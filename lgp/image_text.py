"""Collections of images and texts in BEIR layout, searched in either direction.

Input is a BEIR folder whose corpus or queries have an `image` field, a path inside the folder;
output is one `Dataset`. Opening the images is left to `lgp.images`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lgp.beir import DataError, find_file, read_excluded, read_items, read_qrels
from lgp.choices import Direction, EmptyDocuments, UnknownIds
from lgp.dataset import Dataset, join_text, judged_dataset
from lgp.images import ImageFolder


def load_image_text(
    path: Path,
    split: str = "test",
    direction: Direction = Direction.text_to_image,
    excluded_path: Path | None = None,
    empty: EmptyDocuments = EmptyDocuments.embed,
    unknown_qrels: UnknownIds = UnknownIds.error,
    relevance_level: int = 1,
) -> Dataset:
    """Load corpus.jsonl[.gz], queries.jsonl[.gz], qrels/<split>.tsv and references to images.

    Args:
        direction: `text_to_image` searches the corpus as it stands; `image_to_text` swaps both
            sides, so that the corpus asks and all queries are searched, judgments and exclusions
            inverted. (Named for corpora of images; what has which part is up to the files.)
        empty: documents with neither text nor image.
        excluded_path, unknown_qrels: as in `lgp.data.load_beir`, before any swap.
    Raises:
        DataError: as `lgp.data.load_beir`, or no record has an image.
    """
    path = Path(path)
    corpus, queries = (list(read_items(find_file(path, name))) for name in ("corpus", "queries"))
    qrels = read_qrels(path, split)
    excluded = read_excluded(Path(excluded_path)) if excluded_path is not None else {}
    if direction is Direction.image_to_text:
        corpus, queries = queries, corpus
        qrels = inverted(qrels)
        banned = inverted({query: dict.fromkeys(docs, 1) for query, docs in excluded.items()})
        excluded = {query: frozenset(docs) for query, docs in banned.items()}
    if not any(image for *_, image in (*corpus, *queries)):
        raise DataError(f"{path}: no record has an 'image'; choose dataset=beir")
    return judged_dataset(
        path.resolve().name,
        [(identifier, title, text) for identifier, title, text, _ in corpus],
        {identifier: join_text(title, text) for identifier, title, text, _ in queries},
        qrels, excluded, f"qrels/{split}.tsv", empty, unknown_qrels, relevance_level,
        {"split": split, "direction": direction.value},
        images={identifier: image for identifier, *_, image in corpus},
        query_images={identifier: image for identifier, *_, image in queries},
        image_folder=ImageFolder(path), excluded_where=str(excluded_path),
    )  # fmt: skip


def inverted(grades: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """{document: {query: grade}} of {query: {document: grade}}."""
    found: dict[str, dict[str, int]] = {}
    for query, row in grades.items():
        for document, grade in row.items():
            found.setdefault(document, {})[query] = grade
    return found
