"""Collections: BEIR folders good and bad, the generated one, real ones where they are at hand."""

import gzip
import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from lgp.data import DataError, Dataset, EmptyDocuments, UnknownIds, load_beir, load_toy

DOCUMENTS: list[dict[str, Any]] = [
    {"_id": "d1", "title": "Cats", "text": "purr"},
    {"_id": "d2", "title": "", "text": ""},
    {"_id": 3, "text": "no title at all"},
    {"_id": "d4", "title": None, "text": "Cats purr"},
]
QUERIES = [
    {"_id": "q2", "text": "second"},
    {"_id": "unjudged", "text": "not in test"},
    {"_id": "q1", "text": "first"},
]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t1\nq2\t3\t1\nq2\td1\t-1\n"


def write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small valid collection; tests spoil one file of it."""
    path = tmp_path / "small"
    (path / "qrels").mkdir(parents=True)
    write_lines(path / "corpus.jsonl", DOCUMENTS)
    write_lines(path / "queries.jsonl", QUERIES)
    (path / "qrels" / "test.tsv").write_text(QRELS, encoding="utf-8")
    return path


def test_reads_a_folder(folder: Path) -> None:
    data = load_beir(folder)
    assert data.name == "small"
    assert data.doc_ids == ["d1", "d2", "3", "d4"]
    assert data.texts == ["Cats purr", "", "no title at all", "Cats purr"]
    assert data.query_ids == ["q2", "q1"], "judged queries in the order of the queries file"
    assert data.queries == ["second", "first"]
    assert data.qrels == {"q2": {"3": 1, "d1": -1}, "q1": {"d1": 2, "d2": 1}}
    assert data.excluded == {}
    assert data.info == {
        "n_docs": 4,
        "n_queries": 2,
        "n_qrels": 4,
        "n_empty": 1,
        "n_dropped_empty": 0,
        "n_duplicate_texts": 1,
        "n_dropped_qrels": 0,
        "n_dropped_excluded": 0,
        "n_excluded_relevant": 0,
        "n_empty_queries": 0,
        "n_queries_without_relevant": 0,
        "recall_at_10_ceiling": 1.0,
        "split": "test",
    }
    json.dumps(data.info)


def test_gzip_headerless_and_windows_files_read_the_same(folder: Path) -> None:
    plain = load_beir(folder)
    text = (folder / "corpus.jsonl").read_text(encoding="utf-8")
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    queries = (folder / "queries.jsonl").read_text(encoding="utf-8")
    (folder / "queries.jsonl").write_bytes(b"\xef\xbb\xbf" + queries.replace("\n", "\r\n").encode())
    rows = QRELS.split("\n", 1)[1]
    (folder / "qrels" / "test.tsv").write_text(rows, encoding="utf-8")
    assert load_beir(folder) == plain


def test_line_separators_inside_strings_do_not_split_records(folder: Path) -> None:
    line = '{"_id": "d1", "title": "", "text": "a\u2028b\u0085c"}\n'
    (folder / "corpus.jsonl").write_text(line, encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("q1\td1\t1\n", encoding="utf-8")
    assert load_beir(folder).bodies == ["a\u2028b\u0085c"]


def test_dropping_empty_documents_drops_their_judgments(folder: Path) -> None:
    data = load_beir(folder, empty=EmptyDocuments.drop)
    assert data.doc_ids == ["d1", "3", "d4"]
    assert data.qrels["q1"] == {"d1": 2}
    assert (data.info["n_empty"], data.info["n_dropped_empty"]) == (1, 1)
    assert data.info["n_dropped_qrels"] == 1


def test_relevance_level_decides_which_queries_count(folder: Path) -> None:
    assert load_beir(folder, relevance_level=2).info["n_queries_without_relevant"] == 1
    with pytest.raises(DataError, match="relevance_level=0 is below 1"):
        load_beir(folder, relevance_level=0)


def test_excluded_documents(folder: Path) -> None:
    path = folder / "excluded.tsv"
    path.write_text("query-id\tcorpus-id\tscore\nq1\td1\t-1\nq1\td4\nunjudged\td4\n")
    data = load_beir(folder, excluded_path=path)
    assert data.excluded == {"q1": frozenset({"d1", "d4"})}
    assert data.info["n_excluded_relevant"] == 1
    assert data.info["n_dropped_excluded"] == 0
    path.write_text("q1\td1\nq1\tgone\n")
    with pytest.raises(DataError, match=r"excluded.tsv names 1 document ids .*: gone; .*drop"):
        load_beir(folder, excluded_path=path)
    dropped = load_beir(folder, excluded_path=path, unknown_qrels=UnknownIds.drop)
    assert dropped.excluded == {"q1": frozenset({"d1"})}
    assert dropped.info["n_dropped_excluded"] == 1
    path.write_text("q1 d1\n")
    with pytest.raises(DataError, match=r"excluded.tsv, line 1: expected query-id<TAB>corpus-id"):
        load_beir(folder, excluded_path=path)
    with pytest.raises(DataError, match="is not a file"):
        load_beir(folder, excluded_path=folder / "nowhere.tsv")


def test_unknown_ids_are_refused_or_dropped_and_counted(folder: Path) -> None:
    path = folder / "qrels" / "test.tsv"
    path.write_text(QRELS + "".join(f"q1\tx{i}\t1\n" for i in range(7)))
    with pytest.raises(
        DataError, match=r"7 document ids .*: x0, x1, x2, x3, x4, .*unknown_qrels=d"
    ):
        load_beir(folder)
    path.write_text(QRELS + "q9\td1\t1\nq1\tx\t1\nunjudged\tx\t1\n")
    with pytest.raises(DataError, match="1 query ids that the queries file lacks: q9;"):
        load_beir(folder)
    data = load_beir(folder, unknown_qrels=UnknownIds.drop)
    assert data.info["n_dropped_qrels"] == 3
    assert data.query_ids == ["q2", "unjudged", "q1"]
    assert data.qrels["unjudged"] == {}, "kept, and counted as without relevant documents"
    assert data.info["n_queries_without_relevant"] == 1
    path.write_text("q9\td1\t1\n")
    with pytest.raises(DataError, match=r"no query of qrels/test.tsv is in the queries file"):
        load_beir(folder, unknown_qrels=UnknownIds.drop)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("corpus.jsonl", "", "corpus.jsonl holds no record"),
        ("corpus.jsonl", '{"_id": "d1", "text": ""}\n', "all 1 documents .* are empty"),
        ("corpus.jsonl", '\n{"_id": "d1", "text": \n', "corpus.jsonl, line 2: not JSON"),
        ("corpus.jsonl", '["d1"]\n', "line 1: a JSON object is expected, found a list"),
        ("corpus.jsonl", '{"id": "d1", "text": "a"}\n', "line 1: no '_id'; keys found: id, text"),
        ("corpus.jsonl", '{"_id": true, "text": "a"}\n', "line 1: '_id' is True"),
        ("corpus.jsonl", '{"_id": "", "text": "a"}\n', "line 1: '_id' is ''"),
        ("corpus.jsonl", '{"_id": "d1", "title": "a"}\n', "line 1: no 'text' in record 'd1'"),
        ("corpus.jsonl", '{"_id": "d1", "text": null}\n', "line 1: 'text' is null in record 'd1'"),
        ("corpus.jsonl", '{"_id": "d1", "title": 1, "text": ""}\n', "'title' of .* is a number"),
        ("corpus.jsonl", b'{"_id": "d1", "text": "\xff"}\n', "line 1: not UTF-8"),
        ("queries.jsonl", "", "queries.jsonl holds no record"),
        ("queries.jsonl", '{"_id": "q1"}\n', "queries.jsonl, line 1: no 'text'"),
        ("qrels/test.tsv", "query-id\tcorpus-id\tscore\n", "test.tsv holds no judgment"),
        ("qrels/test.tsv", "q1 0 d1 1\n", "line 1: expected .*, found 1 tab-separated columns"),
        (
            "qrels/test.tsv",
            QRELS + "q1\t\t1\n",
            "line 6: expected query-id<TAB>corpus-id<TAB>score",
        ),
        (
            "qrels/test.tsv",
            QRELS + "q1\td4\tSUPPORT\n",
            "line 6: grade 'SUPPORT' is not an integer",
        ),
        ("qrels/test.tsv", "q1\td4\t1.5\n", "line 1: grade '1.5' is not an integer"),
        ("qrels/test.tsv", QRELS + "q1\td1\t1\n", "line 6: .*'d1' have grade 1 here and 2 before"),
    ],
)
def test_bad_files_are_named(folder: Path, name: str, content: str | bytes, message: str) -> None:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message):
        load_beir(folder)


def test_repeated_ids_are_named(folder: Path) -> None:
    write_lines(folder / "corpus.jsonl", [{"_id": f"d{i // 2}", "text": "a"} for i in range(14)])
    with pytest.raises(DataError, match=r"7 records repeat .*: d0, d1, d2, d3, d4, \.\.\.;"):
        load_beir(folder)


def test_missing_files_and_splits(folder: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not a folder"):
        load_beir(folder / "nowhere")
    (folder / "qrels" / "dev.tsv").write_text(QRELS)
    with pytest.raises(DataError, match="no split 'train'; splits there: dev, test"):
        load_beir(folder, split="train")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(DataError, match=r"neither queries.jsonl nor queries.jsonl.gz"):
        load_beir(folder)


def test_cut_gzip_file_is_refused(folder: Path) -> None:
    (folder / "corpus.jsonl").unlink()
    records = [{"_id": sha256(b"%d" % i).hexdigest(), "text": "a"} for i in range(500)]
    packed = gzip.compress("".join(json.dumps(r) + "\n" for r in records).encode())
    (folder / "corpus.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match="damaged or cut gzip file"):
        load_beir(folder)
    (folder / "corpus.jsonl.gz").write_bytes(b"plain text")
    with pytest.raises(DataError, match="damaged or cut gzip file"):
        load_beir(folder)


def test_toy_is_what_its_docstring_says() -> None:
    data = load_toy()
    assert (len(data.doc_ids), len(data.query_ids)) == (240, 24)
    assert len(set(data.doc_ids)) == 240
    assert data.info["n_duplicate_texts"] == data.info["n_empty"] == 0
    for query, grades in data.qrels.items():
        assert sorted(grades.values()) == [1] * 10 + [2] * 10
        group = query.removeprefix("q-")
        assert all((grade == 2) == doc.startswith(group) for doc, grade in grades.items())
    assert data == load_toy(seed=0)
    assert data.texts != load_toy(seed=1).texts
    assert load_toy(n_topics=2, group_size=3).info["n_docs"] == 12
    with pytest.raises(DataError, match=r"n_topics=1 is outside 2\.\.100"):
        load_toy(n_topics=1)


def test_toy_text_is_frozen() -> None:
    # Committed figures rest on it: a change of the generator must be deliberate.
    assert load_toy().queries[0] == "lavitu kiriko lavitu vupezo keneme tudire keneme kesati vekufi"


def count_words(data: Dataset) -> float:
    """Share of each query's ten best documents, by words in common, that are relevant."""
    documents = [set(text.split()) for text in data.texts]
    hits = 0
    for query, text in zip(data.query_ids, data.queries, strict=True):
        common = [len(words & set(text.split())) for words in documents]
        best = sorted(range(len(documents)), key=lambda row: (-common[row], row))[:10]
        hits += sum(data.doc_ids[row] in data.qrels[query] for row in best)
    return hits / (10 * len(data.queries))


def test_toy_relevance_is_in_the_words() -> None:
    assert count_words(load_toy()) > 0.9  # measured 1.000


REAL = os.environ.get("LGP_TEST_DATA")
needs_real = pytest.mark.skipif(
    not REAL, reason="set LGP_TEST_DATA to a folder of BEIR collections (cranfield, scifact, ...)"
)


@needs_real
def test_cranfield_with_source_documents_excluded() -> None:
    folder = Path(REAL or "") / "cranfield"
    data = load_beir(folder, excluded_path=folder / "qrels" / "source_docs.tsv")
    assert (data.info["n_docs"], data.info["n_queries"], data.info["n_qrels"]) == (1400, 225, 1612)
    assert (data.info["n_empty"], data.info["n_duplicate_texts"]) == (2, 1)
    assert {grade for grades in data.qrels.values() for grade in grades.values()} == {1, 2, 3, 4}
    assert len(data.excluded) == 225
    assert data.excluded["1"] == frozenset({"486"})
    assert data.info["n_excluded_relevant"] == 0
    without = load_beir(folder, empty=EmptyDocuments.drop)
    assert without.info["n_docs"] == 1398
    assert not {"471", "995"} & set(without.doc_ids)


@needs_real
@pytest.mark.parametrize(
    ("name", "documents", "queries", "judgments", "duplicates"),
    [
        ("scifact", 5183, 300, 339, 0),
        ("nfcorpus", 3633, 323, 12334, 40),
        ("cacm", 3204, 52, 796, 191),
        ("npl", 11429, 93, 2083, 16),
        ("lisa", 6004, 35, 379, 5),
        ("cisi", 1460, 76, 3114, 2),
        ("adi", 82, 35, 170, 0),
    ],
)
def test_real_counts(
    name: str, documents: int, queries: int, judgments: int, duplicates: int
) -> None:
    data = load_beir(Path(REAL or "") / name)
    counts = [data.info[key] for key in ("n_docs", "n_queries", "n_qrels", "n_duplicate_texts")]
    assert counts == [documents, queries, judgments, duplicates]
    assert data.info["n_empty"] == data.info["n_empty_queries"] == 0


@needs_real
def test_graded_pool_has_queries_without_highly_relevant_passages() -> None:
    data = load_beir(Path(REAL or "") / "msmarco-dl19-dl20-pool", relevance_level=2)
    assert len(data.query_ids) == 97
    least = {query: max(grades.values()) for query, grades in data.qrels.items()}
    expected = sum(grade < 2 for grade in least.values())
    assert data.info["n_queries_without_relevant"] == expected


@needs_real
def test_real_files_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(DataError, match=r"evidence_labels_test.tsv, line 2: grade 'SUPPORT'"):
        load_beir(Path(REAL or "") / "scifact", split="evidence_labels_test")
    with pytest.raises(DataError, match=r"all 800 documents .* collection of images"):
        load_beir(Path(REAL or "") / "flickr8k-800")
