"""Readers of one BEIR-layout folder's files: corpus, queries, judgments, excluded documents.

Input is a path, output plain lists and dicts of strings. Each reader checks what can be checked
within its own file; what concerns two files (unknown ids, empty documents) is in `data.py`.
Files may be gzipped (`corpus.jsonl.gz`); where both forms lie side by side the plain one is read.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHOWN = 5  # how many offending ids an error names


class DataError(ValueError):
    """A collection that cannot be used as given; the message names file, value and way out."""


def some(items: list[str]) -> str:
    """The first five of `items` for a message, with a mark when there are more."""
    return ", ".join(items[:SHOWN]) + (", ..." if len(items) > SHOWN else "")


def find_file(folder: Path, stem: str) -> Path:
    """Path of `stem`.jsonl or `stem`.jsonl.gz in `folder`.

    Raises:
        DataError: no such folder, or neither file in it.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder that holds corpus.jsonl")
    for name in (f"{stem}.jsonl", f"{stem}.jsonl.gz"):
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder} holds neither {stem}.jsonl nor {stem}.jsonl.gz")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of every line that is not blank.

    Raises:
        DataError: not UTF-8, or a damaged or cut gzip file.
    """
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                # utf-8-sig: spreadsheet exports put a byte order mark before the first id.
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number}: not UTF-8 ({error.reason}); convert it") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path}: damaged or cut gzip file after line {number} ({error}); copy it again"
        ) from error


def read_records(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (id, title, text) of each JSON line; a missing or null title is "".

    Raises:
        DataError: a line that is not a JSON object, no `_id` or `text`, wrong types, an id used
            twice (the first five are named), or no record at all.
    """
    for identifier, title, text, _ in _read_fields(path, with_image=False):
        yield identifier, title, text


def read_items(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield (id, title, text, image) of each JSON line; "" for a missing or null title or image.

    Where there is an image, the text, too, may be missing or null.

    Raises:
        DataError: as `read_records`.
    """
    yield from _read_fields(path, with_image=True)


def _read_fields(path: Path, with_image: bool) -> Iterator[tuple[str, str, str, str]]:
    seen: set[str] = set()
    repeated: list[str] = []
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        record = parse_object(line, where)
        identifier = _read_id(record, where)
        image = _optional(record, "image", identifier, where) if with_image else ""
        text = record.get("text")
        if text is None and image:
            text = ""
        if not isinstance(text, str):
            problem = "no 'text'" if "text" not in record else f"'text' is {_json_type(text)}"
            raise DataError(
                f'{where}: {problem} in record {identifier!r}; it must be a string and may be ""'
            )
        if identifier in seen:
            repeated.append(identifier)
        seen.add(identifier)
        yield identifier, _optional(record, "title", identifier, where), text, image
    if not seen:
        raise DataError(f"{path} holds no record")
    if repeated:
        raise DataError(
            f"{path}: {len(repeated)} records repeat an earlier '_id': {some(repeated)}; "
            "ids must be unique"
        )


def _optional(record: dict[str, Any], key: str, identifier: str, where: str) -> str:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise DataError(
            f"{where}: {key!r} of record {identifier!r} is {_json_type(value)}; it must be a "
            "string or absent"
        )
    return value or ""


def parse_object(line: str, where: str) -> dict[str, Any]:
    """The JSON object of a line; `where` names it in the `DataError` raised for anything else."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg}, column {error.colno})") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: a JSON object is expected, found {_json_type(record)}")
    return record


def _read_id(record: dict[str, Any], where: str) -> str:
    if "_id" not in record:
        raise DataError(f"{where}: no '_id'; keys found: {some(sorted(record)) or 'none'}")
    value = record["_id"]
    # bool is a subclass of int; True as an id is a mistake, 17 is an export of numeric ids.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise DataError(f"{where}: '_id' is {value!r}; it must be a non-empty string or an integer")
    return value


def _json_type(value: object) -> str:
    names = {"NoneType": "null", "dict": "an object", "list": "a list", "str": "a string"}
    names |= {"bool": "true/false", "int": "a number", "float": "a number"}
    return names.get(type(value).__name__, type(value).__name__)


def list_splits(folder: Path) -> list[str]:
    """Names of the splits (files `qrels/<name>.tsv`) of a collection, sorted."""
    return sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))


def read_qrels(folder: Path, split: str) -> dict[str, dict[str, int]]:
    """Read `qrels/<split>.tsv` as `read_judgments` does.

    Raises:
        DataError: no such split (those present are listed), or a malformed file.
    """
    splits = list_splits(folder)
    if split not in splits:
        raise DataError(
            f"{folder / 'qrels'} has no split {split!r}; splits there: {some(splits) or 'none'}"
        )
    return read_judgments(folder / "qrels" / f"{split}.tsv")


def read_judgments(path: Path) -> dict[str, dict[str, int]]:
    """Read a file of judgments: {query id: {document id: grade}}, in file order.

    Columns are query-id, corpus-id, score, parted by tabs; the header line may be missing.

    Raises:
        DataError: no such file, a line without three columns, a grade that is not an integer, one
            pair with two grades, or no judgment at all.
    """
    if not path.is_file():
        raise DataError(f"{path} is not a file; give query-id<TAB>corpus-id<TAB>score lines")
    qrels: dict[str, dict[str, int]] = {}
    for number, line in read_lines(path):
        fields = [field.strip() for field in line.split("\t")]
        if number == 1 and _is_header(fields):
            continue
        if len(fields) != 3 or not fields[0] or not fields[1]:
            raise DataError(
                f"{path}, line {number}: expected query-id<TAB>corpus-id<TAB>score, "
                f"found {len(fields)} tab-separated columns: {line[:80]!r}"
            )
        query, document, written = fields
        try:
            grade = int(written)
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: grade {written!r} is not an integer; "
                "grades are whole numbers, larger is better"
            ) from error
        earlier = qrels.setdefault(query, {}).setdefault(document, grade)
        if earlier != grade:
            raise DataError(
                f"{path}, line {number}: query {query!r} and document {document!r} have grade "
                f"{grade} here and {earlier} before; keep one"
            )
    if not qrels:
        raise DataError(f"{path} holds no judgment")
    return qrels


def read_excluded(path: Path) -> dict[str, frozenset[str]]:
    """Read documents never to be returned: {query id: document ids}.

    Lines are query-id<TAB>corpus-id; a header and further columns are allowed, so a file with the
    columns of qrels serves as well. The score is not read.

    Raises:
        DataError: no such file, or a line with fewer than two columns.
    """
    if not path.is_file():
        raise DataError(f"{path} is not a file; give a file of query-id<TAB>corpus-id lines")
    excluded: dict[str, set[str]] = {}
    for number, line in read_lines(path):
        fields = [field.strip() for field in line.split("\t")]
        if number == 1 and _is_header(fields):
            continue
        if len(fields) < 2 or not fields[0] or not fields[1]:
            raise DataError(
                f"{path}, line {number}: expected query-id<TAB>corpus-id, found {line[:80]!r}"
            )
        excluded.setdefault(fields[0], set()).add(fields[1])
    return {query: frozenset(documents) for query, documents in excluded.items()}


def _is_header(fields: list[str]) -> bool:
    # By name, not by "the third column is no number": a file without header must not lose its
    # first judgment, and one with a broken first grade must be refused.
    names = [field.lower().replace("_", "-") for field in fields[:2]]
    return names == ["query-id", "corpus-id"]
