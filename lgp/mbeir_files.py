"""Readers of M-BEIR's files: queries, candidates, judgments, instructions; its normal form of text.

Input is a path, output plain dicts. Each reader checks what can be checked within its own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lgp.beir import DataError, parse_object, read_lines, some

DOCUMENTS_A_DATASET, QUERIES_A_DATASET = 10_000_000, 500_000
"""An id "d:n" may be written as the number d * this + n."""


@dataclass(frozen=True)
class Entry:
    """A query or candidate as its file has it, text and image reference "" where there is none.

    `positives`: the ids a query's line lists.
    """

    text: str
    image: str
    modality: str
    positives: tuple[str, ...] = ()


def normalise(text: str) -> str:
    """UniIR's normal form of any text: no carriage returns, outer white space, then outer double
    quotes; a capital first, and a full stop where the end is not one of . ? !"""
    text = text.replace("\r", "").strip().strip('"')
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")


def read_entries(path: Path, id_key: str, text_key: str, image_key: str) -> dict[str, Entry]:
    """Read a file of queries or candidates: {id: entry}, in file order.

    Null text or image is "". Both spellings of a mixed modality are one, "image,text".

    Raises:
        DataError: a malformed line, a repeated id, or no line at all.
    """
    found: dict[str, Entry] = {}
    repeated: list[str] = []
    n_ids = QUERIES_A_DATASET if id_key == "qid" else DOCUMENTS_A_DATASET
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        record = parse_object(line, where)
        identifier = _plain_id(record.get(id_key), n_ids, f"{where}: {id_key}")
        if identifier in found:
            repeated.append(identifier)
        listed = record.get("pos_cand_list") or []
        if not isinstance(listed, list):
            raise DataError(f"{where}: pos_cand_list is {listed!r}; it must be a list")
        found[identifier] = Entry(
            _text(record, text_key, where),
            _text(record, image_key, where),
            _modality(record, where),
            tuple(
                _plain_id(
                    item.get("did") if isinstance(item, dict) else item,
                    DOCUMENTS_A_DATASET,
                    f"{where}: pos_cand_list",
                )
                for item in listed
            ),
        )
    if not found:
        raise DataError(f"{path} holds no record")
    if repeated:
        raise DataError(
            f"{path}: {len(repeated)} records repeat an earlier {id_key}: {some(repeated)}; ids "
            "must be unique"
        )
    return found


def read_mbeir_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read `qid 0 did relevance task_id` lines: {query id: {document id: grade}}.

    Raises:
        DataError: a line without five columns, a grade that is not a whole number, one pair with
            two grades, or no line at all.
    """
    qrels: dict[str, dict[str, int]] = {}
    for number, line in read_lines(path):
        where, columns = f"{path}, line {number}", line.split()
        if len(columns) != 5 or not columns[3].lstrip("-").isdecimal():
            raise DataError(
                f"{where}: expected 'qid 0 did relevance task_id', relevance a whole number, "
                f"found {line[:80]!r}"
            )
        query = _plain_id(columns[0], QUERIES_A_DATASET, where)
        document = _plain_id(columns[2], DOCUMENTS_A_DATASET, where)
        grade = int(columns[3])
        earlier = qrels.setdefault(query, {}).setdefault(document, grade)
        if earlier != grade:
            raise DataError(
                f"{where}: query {query!r} and document {document!r} have grade {grade} here and "
                f"{earlier} before; keep one"
            )
    if not qrels:
        raise DataError(f"{path} holds no judgment")
    return qrels


def read_instructions(path: Path) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """Read the instructions: {(data set number, query modality, candidate modality): prompts}.

    Columns after a header: query modality, candidate modality, one unused, data set number, then
    the prompts; empty ones are left out.

    Raises:
        DataError: a line with fewer than four columns.
    """
    found: dict[tuple[str, str, str], tuple[str, ...]] = {}
    for number, line in read_lines(path):
        columns = line.strip().split("\t")
        if number == 1:
            continue
        if len(columns) < 4:
            raise DataError(
                f"{path}, line {number}: expected two modalities, a column, a data set number and "
                f"prompts, found {len(columns)} columns"
            )
        key = (columns[3], one_spelling(columns[0]), one_spelling(columns[1]))
        found[key] = tuple(filter(None, map(normalise, columns[4:])))
    return found


def _plain_id(value: object, n_a_dataset: int, where: str) -> str:
    """An id as "data set:number", from that or from the number UniIR makes of it."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value // n_a_dataset}:{value % n_a_dataset}"
    if not isinstance(value, str) or not value:
        raise DataError(f"{where}: {value!r} is no id; ids look like 2:17")
    return value


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where}: {key} is {value!r}; it must be a string or null")
    return value or ""


def _modality(record: Mapping[str, Any], where: str) -> str:
    value = record.get("modality", record.get("query_modality"))
    spelled = one_spelling(value) if isinstance(value, str) else value
    if spelled not in ("text", "image", "image,text"):
        raise DataError(f"{where}: modality {value!r} is unknown; known: text, image, image,text")
    return str(spelled)


def one_spelling(modality: str) -> str:
    return ",".join(sorted(part.strip() for part in modality.split(",")))
