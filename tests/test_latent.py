"""Latent queries: read from anywhere, written by a model, never trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from lgp.answers import AnswerLog
from lgp.ask import Prompt
from lgp.beir import DataError
from lgp.config_llm import PromptConfig
from lgp.latent import (
    LONGEST,
    ask_queries,
    count_twins,
    first_sentence,
    is_written,
    query_chat,
    read_query_file,
    read_split_queries,
    read_written,
    split_queries,
)
from lgp.prompts import Chat

PROMPT = PromptConfig(query_system="About {documents}.", query_user="Text: {document}\n{n} queries")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("how do wings stall\n", ("how do wings stall",)),
        ("1. first one\n2) second one\n", ("first one", "second one")),
        ("- 'quoted query'\n* \"other\"\n", ("quoted query", "other")),
        ("Query: lift of a wing\nSearch query 2: drag", ("lift of a wing", "drag")),
        ("**QUERY:** bold", ("bold",)),
        ("same\nsame\nother thing", ("same", "other thing")),
        ("\n\n  \n", ()),
        ("123 456\n!!!", ()),
        ("<think>no query\nhere</think>the query", ("the query",)),
        ("3d printing of wings", ("3d printing of wings",)),
        ("x" * 10_000, ("x" * LONGEST,)),
    ],
)
def test_what_a_model_wrote_is_read(text: str, found: tuple[str, ...]) -> None:
    assert read_written(text, 9) == found
    assert read_written(text, 1) == found[:1]


def test_an_answer_is_complete_when_its_last_line_has_ended() -> None:
    assert not is_written(2, "one query\ntwo quer")
    assert is_written(2, "one query\ntwo queries\n")
    assert not is_written(2, "one query\n\n123\n")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [("One. Two.", "One."), (" Is it? Yes", "Is it?"), ("v1.2 is out! Go", "v1.2 is out!"),
     ("no end", "no end"), ("", "")],
)  # fmt: skip
def test_first_sentence(body: str, sentence: str) -> None:
    assert first_sentence(body) == sentence
    assert len(first_sentence("y" * 5000)) == LONGEST


def test_query_files(tmp_path: Path) -> None:
    path = tmp_path / "q"
    path.write_text('plain one\n\n{"text": "as json"}\n{"node": 3, "queries": ["a b", " "]}\n')
    assert read_query_file(path) == ["plain one", "as json", "a b"]
    for text, said in (("", "no query"), ('{"x": 1}\n', "line 1"), ("{broken\n", "not JSON")):
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            read_query_file(path)
    with pytest.raises(DataError, match="not a file"):
        read_query_file(tmp_path / "absent")


def test_split_queries_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq2\td\t1\nq9\td\t1\n"
    )
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "test"}\n{"_id": "q2", "text": "train"}\n'
    )
    assert read_split_queries(tmp_path, "train") == ["train"]
    with pytest.raises(DataError, match="dev"):
        read_split_queries(tmp_path, "dev")


def test_held_out_queries_and_twins() -> None:
    own, aside = split_queries(20, 0.25, 1)
    assert len(aside) == 5 and sorted([*own.tolist(), *aside.tolist()]) == list(range(20))
    assert split_queries(20, 0.25, 1)[1].tolist() == aside.tolist()
    assert split_queries(20, 0.25, 2)[1].tolist() != aside.tolist()
    unit = torch.eye(4)
    near = torch.nn.functional.normalize(unit[:1] + 0.1 * unit[1:2], dim=1)
    assert count_twins(torch.cat([unit, near]), unit[:1], 0.95) == 2
    assert count_twins(torch.cat([unit, near]), unit[:1], 0.999) == 1


@dataclass
class Echo:
    """Answers with the document's first word, or with nothing for "mute"."""

    calls: list[list[str]] = field(default_factory=list)
    batch_tokens: int = 40
    decoding: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=lambda: {"engine": "echo"})

    def cut(self, text: str, limit: int) -> tuple[str, int]:
        words = text.split()
        return " ".join(words[:limit]), max(0, len(words) - limit)

    def encode(self, chat: Chat) -> Prompt:
        text = "".join(piece.text for piece in chat.user)
        return Prompt(text, len(text))

    def generate(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        self.calls.append([str(p.content) for p in prompts])
        words = [str(p.content).split()[1] for p in prompts]
        return [
            {"text": "..." if word == "mute" else f"Query: what is {word}\n", "prompt_tokens": 5,
             "output_tokens": 2} for word in words
        ]  # fmt: skip

    def choose(self, prompts: Sequence[Prompt], options: Sequence[str]) -> list[dict[str, Any]]:
        raise NotImplementedError


def test_queries_are_asked_once_and_counted(tmp_path: Path) -> None:
    engine = Echo()
    stops: list[str] = []

    def make(answered: Callable[[str], bool], stop: str) -> Echo:
        stops.append(stop)
        return engine

    texts = ["wing lift", "mute swan", "wing lift", "drag [2] force and more"]
    found = ask_queries(make, PROMPT, texts, AnswerLog(tmp_path), 1, 3)
    assert found.queries == [("what is wing",), (), ("what is wing",), ("what is drag",)]
    assert (found.unusable, found.asked, found.tokens, found.output_tokens) == (1, 3, 15, 6)
    assert sum(map(len, engine.calls)) == 3 and stops == ["1 lines"]
    assert any("drag (2) force\n" in text for call in engine.calls for text in call)
    again = ask_queries(make, PROMPT, texts, AnswerLog(tmp_path), 1, 3)
    assert again.queries == found.queries and (again.asked, again.replayed) == (0, 4)
    # Three distinct prompts of 5 + 2 tokens decided, whether asked now or before.
    assert (found.used_tokens, again.used_tokens, again.tokens) == (21, 21, 0)
    assert found.repeated == 1  # one query stands for both documents on wings


def test_documents_stay_data_and_prompts_must_fit() -> None:
    chat = query_chat(PROMPT, "ignore this", 3)
    assert [(p.text, p.data) for p in chat.user] == [
        ("Text: ", False), ("ignore this", True), ("\n3 queries", False),
    ]  # fmt: skip
    with pytest.raises(DataError, match="query_user"):
        query_chat(PromptConfig(name="bare"), "x", 1)
