"""Reranking: windows by hand, answers repaired or kept, likelihood against one pass a pair."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from lgp.answers import AnswerLog
from lgp.ask import Prompt
from lgp.cli import compose
from lgp.config_llm import ConfigError, LlmConfig, PromptConfig
from lgp.generate import LocalEngine
from lgp.llm import LanguageModel, load_language_model
from lgp.pipeline import run
from lgp.prompts import Chat
from lgp.report import graph_lines
from lgp.rerank import LikelihoodRerank, ListwiseRerank, by_encoder, ranking_engine, windows
from lgp.rerank_account import rerank_sentence
from lgp.results import read_queries

PROMPT = PromptConfig(ranking_system="Rank {N}.", ranking_user="{QUERY}\n{passages}")


def key_of(text: str) -> int:
    return int(text.split("-")[1])


def perfect(query: str, passages: Sequence[str]) -> str:
    """Lists passages by the number in their text, largest first."""
    order = sorted(range(len(passages)), key=lambda at: -key_of(passages[at]))
    return " > ".join(f"[{at + 1}]" for at in order)


@dataclass
class Scripted:
    """An engine that answers a window by a function of query and passages; a token is a word."""

    answer: Callable[[str, list[str]], str] = perfect
    batch_tokens: int = 10_000
    windows: list[list[str]] = field(default_factory=list)
    calls: int = 0
    identity = {"engine": "scripted"}  # noqa: RUF012
    decoding = {"greedy": True}  # noqa: RUF012

    def cut(self, text: str, limit: int) -> tuple[str, int]:
        words = text.split(" ")
        return " ".join(words[:limit]), max(0, len(words) - limit)

    def encode(self, chat: Chat) -> Prompt:
        data = [piece.text for piece in chat.user if piece.data]
        return Prompt(data, sum(len(text.split()) for text in data))

    def generate(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        self.calls += 1
        out = []
        for prompt in prompts:
            query, *passages = prompt.content
            self.windows.append(passages)
            text = self.answer(query, passages)
            out.append({"text": text, "prompt_tokens": prompt.size, "output_tokens": 3})
        return out

    def choose(self, prompts: Sequence[Prompt], options: Sequence[str]) -> list[dict[str, Any]]:
        raise ValueError("no probabilities")


def listwise(
    engine: Scripted, documents: Sequence[str], folder: Path, n_queries: int = 9, **settings: Any
) -> ListwiseRerank:
    queries = [f"query {q}" for q in range(n_queries)]
    return ListwiseRerank(lambda n: engine, queries, documents, PROMPT, AnswerLog(folder),
                          **settings)  # fmt: skip


def documents_of(keys: Sequence[int]) -> list[str]:
    return [f"document-{key}" for key in keys]


def test_windows_by_hand() -> None:
    assert windows(0, 20, 10) == windows(1, 20, 10) == []
    assert windows(2, 20, 10) == [range(0, 2)]
    assert windows(20, 20, 10) == [range(0, 20)]
    assert windows(21, 20, 10) == [range(1, 21), range(0, 11)]
    assert windows(30, 20, 10) == [range(10, 30), range(0, 20)]  # not [0, 10) once more
    assert windows(35, 20, 10) == [range(15, 35), range(5, 25), range(0, 15)]
    assert [len(windows(n, 20, 10)) for n in (50, 100, 200)] == [4, 9, 19]
    assert windows(5, 2, 2) == [range(3, 5), range(1, 3)]  # one is left alone
    assert windows(4, 2, 1) == [range(2, 4), range(1, 3), range(0, 2)]


def test_a_sliding_window_by_hand(tmp_path: Path) -> None:
    # Seven documents, windows of 4 moving by 2; the keys say how good a document is.
    engine = Scripted()
    reranker = listwise(engine, documents_of([3, 1, 6, 2, 5, 0, 7]), tmp_path, size=4, step=2)
    found = reranker([list(range(7))])
    # 2 5 0 7 -> 7 5 2 0; then 1 6 7 5 -> 7 6 5 1; then 3 7 6 -> 7 6 3, the start is reached.
    shown = [[key_of(text) for text in window] for window in engine.windows]
    assert shown == [[2, 5, 0, 7], [1, 6, 7, 5], [3, 7, 6]]
    assert found == [[6, 2, 0, 4, 1, 3, 5]]  # keys 7 6 3 5 1 2 0


@pytest.mark.parametrize("n", [1, 2, 10, 19, 20, 21, 25, 30, 37, 50, 100])
def test_a_perfect_ranker_brings_up_the_ten_best(n: int, tmp_path: Path) -> None:
    keys = list(range(n))
    random.Random(n).shuffle(keys)
    engine = Scripted()
    (found,) = listwise(engine, documents_of(keys), tmp_path)([list(range(n))])
    assert [keys[row] for row in found[:10]] == sorted(keys, reverse=True)[:10]
    assert sorted(found) == list(range(n))
    expected = 0 if n < 2 else 1 + max(0, math.ceil((n - 20) / 10))
    assert len(engine.windows) == expected


def test_windows_of_all_queries_go_together(tmp_path: Path) -> None:
    engine = Scripted()
    lists = [list(range(n)) for n in (30, 10, 40, 0, 30, 1)]
    reranker = listwise(engine, documents_of(range(40)), tmp_path)
    found = reranker(lists)
    # Rounds: windows of 20 (three) and of 10 (one); 20 (three); 20 (the list of 40).
    assert engine.calls == 4 and len(engine.windows) == 4 + 3 + 1
    assert [rows[:10] for rows in found[:2]] == [list(range(29, 19, -1)), list(range(9, -1, -1))]
    assert found[3:] == [[], found[0], [0]]
    assert lists == [list(range(n)) for n in (30, 10, 40, 0, 30, 1)]  # the input is left alone
    account = reranker.account
    assert (account.windows, account.complete, account.asked) == (8, 8, 8)
    assert account.shown_documents == 7 * 20 + 10


ANSWERS = {
    "query 0": "[2] > [3] > [1]",  # complete
    "query 1": "Sure: [3] > [1]",  # one is missing
    "query 2": "[3] > [3] > [1] > [2]",  # one is repeated
    "query 3": "[2] > [9]",  # one is unknown
    "query 4": "I cannot rank these 3 passages.",
    "query 5": "",
}


@pytest.mark.parametrize("repair", [True, False])
def test_repaired_kept_and_unreadable_answers(repair: bool, tmp_path: Path) -> None:
    engine = Scripted(lambda query, passages: ANSWERS[query])
    documents = ["a [7] b", "c\nd", "e f g"]
    reranker = listwise(engine, documents, tmp_path, 6, repair=repair, document_tokens=2,
                        query_tokens=3)  # fmt: skip
    found = reranker([[0, 1, 2]] * 6)
    kept = [0, 1, 2]
    repaired = [[2, 0, 1], [2, 0, 1], [1, 0, 2]] if repair else [kept] * 3
    assert found == [[1, 2, 0], *repaired, kept, kept]
    account = asdict(reranker.account) | {"kind": "listwise"}
    counts = [account[k] for k in ("windows", "complete", "repaired", "kept", "unreadable")]
    assert counts == [6, 1, 3 if repair else 0, 0 if repair else 3, 2]
    assert engine.windows[0] == ["a (7)", "c d", "e f"]  # cleaned, then cut
    assert [account[k] for k in ("shown_documents", "cut_documents", "cut_tokens")] == [18, 12, 12]
    sentence = rerank_sentence(account)
    assert "6 windows, 1 complete (16.7 %)" in sentence and "2 unreadable (33.3 %)" in sentence
    assert f"{counts[2]} repaired (" in sentence and "12 of 18 documents shown were cut" in sentence


def test_raw_answers_are_logged_and_replayed(tmp_path: Path) -> None:
    engine = Scripted(lambda query, passages: ANSWERS[query])
    first = listwise(engine, ["a", "b", "c"], tmp_path, 6)([[0, 1, 2]] * 6)
    lines = [json.loads(x) for p in tmp_path.glob("*.jsonl") for x in p.read_text().splitlines()]
    texts = [answer["text"] for line in lines for answer in line.values()]
    assert sorted(texts) == sorted(ANSWERS.values())
    idle = Scripted(lambda query, passages: pytest.fail("asked again"))
    again = listwise(idle, ["a", "b", "c"], tmp_path, 6)
    assert again([[0, 1, 2]] * 6) == first
    assert (again.account.asked, again.account.replayed, again.account.windows) == (0, 6, 6)
    # Strict or repair is how answers are read, not how they are asked.
    strict = listwise(idle, ["a", "b", "c"], tmp_path, 6, repair=False)
    strict([[0, 1, 2]] * 6)
    assert strict.account.kept == 3


@pytest.fixture(scope="module")
def lm(tiny_lm: Path) -> LanguageModel:
    return load_language_model(str(tiny_lm))


TEMPLATE = "Passage: {document}\nQuery: "
DOCUMENTS = ["alpha beta gamma", "delta <|end|> x", "", "alpha beta gamma", "one two three four"]
QUERIES = ["what is beta?", "", "delta or alpha"]


def likelihood(lm: LanguageModel, folder: Path, **settings: Any) -> LikelihoodRerank:
    template = settings.pop("template", TEMPLATE)
    return LikelihoodRerank(lm, QUERIES, DOCUMENTS, template, AnswerLog(folder), **settings)


def plain_score(lm: LanguageModel, document: str, query: str, limit: int) -> float:
    """One full forward pass; pieces tokenised apart, blanks with the words they precede."""
    ids = (
        lm.tokenizer.encode("Passage:", add_special_tokens=False)
        + lm.tokens(" " + document)[:limit]
        + lm.tokenizer.encode("\nQuery:", add_special_tokens=False)
    )
    asked = lm.tokens(" " + query)
    logp = lm.model(torch.tensor([ids + asked])).logits[0].log_softmax(-1)
    return sum(float(logp[len(ids) - 1 + at, t]) for at, t in enumerate(asked)) / len(asked)


@pytest.mark.parametrize("batch_tokens", [4096, 60, 1])
def test_likelihood_equals_one_pass_a_pair(
    lm: LanguageModel, tmp_path: Path, batch_tokens: int
) -> None:
    reranker = likelihood(lm, tmp_path, document_tokens=12, batch_tokens=batch_tokens)
    lists = [[4, 3, 0, 2, 1], [2, 1], [1, 0]]
    found = reranker(lists)
    for query, rows in enumerate(lists):
        score = {row: plain_score(lm, DOCUMENTS[row], QUERIES[query], 12) for row in rows}
        for row in rows:
            assert reranker._scores[query, row] == pytest.approx(score[row], abs=1e-4)
        # Rows 0 and 3 are equal texts: a tie, in input order.
        place = {row: lists[query].index(row) for row in rows}
        key = {row: score[3] if row == 0 and 3 in rows else score[row] for row in rows}
        assert found[query] == sorted(rows, key=lambda row: (-key[row], place[row]))
    account = reranker.account
    # Rows 0 and 3 make one prompt of query 0.
    assert (account.asked, account.replayed, account.shown_documents) == (8, 1, 9)
    assert account.cut_documents == sum(
        len(lm.tokens(" " + DOCUMENTS[row])) > 12 for rows in lists for row in rows
    )
    assert account.cut_documents > 0 and account.cut_queries == 0


def test_one_score_a_pair_for_all_settings_and_runs(lm: LanguageModel, tmp_path: Path) -> None:
    reranker = likelihood(lm, tmp_path)
    reranker([[0, 1], [], [4]])
    assert reranker.account.asked == 3
    reranker([[1, 0], [], [4, 2]])  # another setting: one new pair
    assert (reranker.account.asked, reranker.account.replayed) == (4, 0)
    again = likelihood(lm, tmp_path)
    again([[1, 0], [], [2]])
    assert (again.account.asked, again.account.replayed) == (0, 3)
    assert again._scores.items() <= reranker._scores.items()
    other = likelihood(lm, tmp_path, template="{document}\n")
    other([[0], [], []])
    assert other.account.asked == 1  # the template is a part of the key


def test_queries_are_cut_and_counted(lm: LanguageModel, tmp_path: Path) -> None:
    reranker = likelihood(lm, tmp_path, query_tokens=2)
    reranker([[0, 1], [0], [0]])
    assert reranker.account.cut_queries == 2


def test_a_query_needs_something_before_it(lm: LanguageModel, tmp_path: Path) -> None:
    bare = likelihood(lm, tmp_path, template="{document}")
    bare([[0], [0], []])
    assert bare.account.asked == 2
    assert lm.tokenizer.bos_token_id is None
    with pytest.raises(ValueError, match=r"prompt\.query_prefix"):
        bare([[2], [], []])  # an empty document


def test_a_model_ranks_windows_with_room_for_the_whole_list(tiny_qwen3: Path) -> None:
    llm = LlmConfig(model=str(tiny_qwen3))
    full = " > ".join(f"[{at}]" for at in range(1, 21))
    engine, short = ranking_engine(llm, "cpu", 20), ranking_engine(llm, "cpu", 5)
    assert isinstance(engine, LocalEngine) and isinstance(short, LocalEngine)
    assert engine.new_tokens > len(engine.lm.tokens(full)) > short.new_tokens
    assert engine.answered(full + "\n") and not engine.answered(full.replace("[20]", "[2]") + "\n")
    assert engine.decoding != short.decoding
    assert engine.lm is short.lm  # loaded once


def test_an_encoder_reorders_each_list_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    documents, queries = (torch.randn(n, 8, generator=draw) for n in (30, 4))
    documents[7] = documents[3]  # a tie
    lists = [torch.randperm(30, generator=draw)[:n].tolist() for n in (30, 12, 1, 0)]
    for rows, query, found in zip(lists, queries, by_encoder(documents, queries)(lists),
                                  strict=True):  # fmt: skip
        score = documents[rows] @ query
        assert found == [rows[i] for i in score.argsort(descending=True, stable=True).tolist()]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["rerank=listwise"], ["prompt=likelihood", "ranking templates", "prompt=general"]),
        (
            ["rerank=likelihood", "llm=openai", "llm.base_url=http://127.0.0.1:1/v1"],
            ["rerank=likelihood", "llm.engine=openai", "rerank=listwise"],
        ),
        (["rerank.step=21"], ["rerank.step=21", "rerank.window=20", "lower"]),
        (["rerank.window=1"], ["rerank.window=1", "below 2"]),
        (["rerank.document_tokens=0"], ["rerank.document_tokens=0", "raise it"]),
        (["prompt.query_prefix=plain"], ["prompt.query_prefix", "{document}"]),
        (["prompt.query_prefix='{document} {query}'"], ["unknown placeholder {query}"]),
    ],
)
def test_settings_that_cannot_work_are_refused(words: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        compose(words)
    for part in parts:
        assert part in str(error.value)


WORDS = [
    "refine=none", "search.widths=[10,30]", "search.budgets=[100]", "rerank.document_tokens=8",
    "rerank.query_tokens=8", "dataset.max_queries=2", "llm.batch_tokens=2048",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["likelihood", "listwise"])
def test_a_run_reports_both_rankings_and_asks_once(
    kind: str, tmp_path: Path, tiny_qwen3: Path
) -> None:
    folder, store = tmp_path / "run", tmp_path / "store"
    config = compose(
        [*WORDS, f"rerank={kind}", "prompt=general", f"llm.model={tiny_qwen3}",
         f"run_dir={folder}", f"store_dir={store}"]
    )  # fmt: skip
    run(config, folder)
    results = read_queries(folder)
    assert results.rankings() == ["greedy", "rerank"]
    assert results.points("rerank") == [("width", 10), ("width", 30), ("budget", 100)]
    summary = json.loads((folder / "summary.json").read_text())
    account = summary["rerank"]
    assert account["kind"] == kind and account["asked"] > 0
    said = graph_lines(folder)[-1]
    assert said.startswith(f"reranking by {kind}: ") and said in (folder / "report.md").read_text()
    if kind == "listwise":
        # Per query: exact's 30 and width 30 take two windows, width 10 and budget 100 one.
        assert account["windows"] == 2 * (2 + 2 + 1 + 1)
        read = [account[k] for k in ("complete", "repaired", "kept", "unreadable")]
        assert sum(read) == account["windows"] and account["kept"] == 0
    logged = sum(len(p.read_text().splitlines()) for p in store.glob("answers/*.jsonl"))
    before = (folder / "queries.jsonl").read_bytes()
    run(config, folder)
    again = json.loads((folder / "summary.json").read_text())["rerank"]
    assert again["asked"] == 0 and again["replayed"] == account["asked"] + account["replayed"]
    assert sum(len(p.read_text().splitlines()) for p in store.glob("answers/*.jsonl")) == logged
    assert (folder / "queries.jsonl").read_bytes() == before


@pytest.mark.parametrize("dims", [32, 384])
def test_equal_documents_keep_their_order_under_an_encoder(dims: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for n in range(2, 40):  # a matrix product treats the last rows of a block differently
        one, query = torch.nn.functional.normalize(torch.randn(2, dims, generator=generator))
        order = list(range(n))[::-1]
        assert by_encoder(one.repeat(n, 1), query.unsqueeze(0))([order]) == [order]
