"""The answer log survives torn writes and many writers."""

from __future__ import annotations

from pathlib import Path

from lgp.answers import AnswerLog


def test_an_answer_is_read_back_by_another_process(tmp_path: Path) -> None:
    first = AnswerLog(tmp_path)
    first.append({"a": [1.5, -2.0], "b": "text\nwith a line break"})
    again = AnswerLog(tmp_path)
    assert again["a"] == [1.5, -2.0] and again["b"] == "text\nwith a line break"
    assert "c" not in again and len(again) == 2 and again.torn == 0


def test_a_torn_last_batch_is_dropped_whole_and_counted(tmp_path: Path) -> None:
    first = AnswerLog(tmp_path)
    first.append({"a": 1})
    first.append({"b": 2, "c": 3})
    (segment,) = tmp_path.glob("*.jsonl")
    segment.write_bytes(segment.read_bytes()[:-7])
    log = AnswerLog(tmp_path)
    assert "a" in log and "b" not in log and "c" not in log and log.torn == 1
    log.append({"b": 3})  # a new segment: the torn line cannot swallow it
    assert AnswerLog(tmp_path)["b"] == 3


def test_the_first_record_by_segment_name_wins(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"k": "late"}\n')
    (tmp_path / "a.jsonl").write_text('{"k": "early"}\n{"k": "repeat"}\n')
    assert AnswerLog(tmp_path)["k"] == "early"


def test_floats_come_back_bit_for_bit(tmp_path: Path) -> None:
    values = [-1.2345678901234567, 1e-300, -0.1 - 0.2]
    AnswerLog(tmp_path).append({"k": values})
    assert AnswerLog(tmp_path)["k"] == values


def test_nothing_is_written_for_an_empty_batch(tmp_path: Path) -> None:
    AnswerLog(tmp_path / "answers").append({})
    assert not (tmp_path / "answers").exists()
