"""The listwise selector: what is asked, read and logged, and that nothing is paid twice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
import torch

from lgp.answers import AnswerLog
from lgp.ask import Prompt, ask_all
from lgp.choices import LlmMode, SelectorKind
from lgp.cli import compose
from lgp.config_llm import PromptConfig
from lgp.generate import LocalEngine
from lgp.llm import LanguageModel, load_language_model
from lgp.pipeline import run
from lgp.prompts import Chat
from lgp.refine.listwise import Listwise, ListwiseSettings, above_none
from lgp.refine.log import Status
from lgp.refine.select import Selection
from lgp.refine.shortlist import Shortlist
from lgp.refine.step import Account
from lgp.replies import is_answered
from lgp.selectors import selector_inputs
from lgp.summary import graph_lines

PROMPT = PromptConfig(
    selection_system="At most {B}.", selection_user="{anchor}\n{keep_block}\n{cand_block}"
)
TEXTS = ["zero [7]", "one", "two two two two two two", "three", "four", "five"]


@dataclass
class Canned:
    """An engine that answers from a table of texts by anchor; a token is a word."""

    table: dict[str, str]
    batch_tokens: int = 40
    seen: list[list[str]] = field(default_factory=list)
    identity = {"engine": "canned"}  # noqa: RUF012
    decoding = {"greedy": True}  # noqa: RUF012

    def cut(self, text: str, limit: int) -> tuple[str, int]:
        words = text.split(" ")
        return " ".join(words[:limit]), max(0, len(words) - limit)

    def encode(self, chat: Chat) -> Prompt:
        user = "".join(piece.text for piece in chat.user)
        return Prompt([piece.text for piece in (*chat.system, *chat.user)], len(user.split()))

    def generate(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        texts = [prompt.content[1] for prompt in prompts]
        self.seen.append(texts)
        return [
            {"text": self.table[t], "prompt_tokens": p.size, "output_tokens": 2}
            for t, p in zip(texts, prompts, strict=True)
        ]

    def choose(self, prompts: Sequence[Prompt], options: Sequence[str]) -> list[dict[str, Any]]:
        raise ValueError("no probabilities")


def shortlist_of(
    anchors: list[int], candidates: list[list[int]], context: list[list[int]]
) -> Shortlist:
    ids = torch.tensor(candidates, dtype=torch.int32)
    zero = torch.zeros(ids.shape)
    around = torch.tensor(context, dtype=torch.int32).reshape(len(anchors), -1)
    return Shortlist(torch.tensor(anchors), around, ids, zero, zero.int(), zero)


def listwise(engine: Any, folder: Path, **settings: Any) -> Listwise:
    mode = settings.pop("mode", LlmMode.generate)
    return Listwise(engine, TEXTS, PROMPT, ListwiseSettings(mode, **settings), AnswerLog(folder))


SHORTLIST = shortlist_of(
    [0, 1, 4, 5, 3],
    [[3, 1, 2], [5, 3, -1], [0, 2, -1], [-1, -1, -1], [4, 5, 0]],
    [[4, -1], [2, 0], [-1, -1], [1, 2], [-1, -1]],
)
TABLE = {
    "zero (7)": "[3] [1] [2]",
    "one": "NONE",
    "four": "3 is best",
    "three": "QUERY: [1]\n[2]\n",
}


def test_answers_become_picks_in_order(tmp_path: Path) -> None:
    engine = Canned(TABLE)
    selector = listwise(engine, tmp_path, document_tokens=4)
    found = selector(SHORTLIST, 2)
    assert found.picks.tolist() == [[2, 3], [-1, -1], [-1, -1], [-1, -1], [5, -1]]
    chosen, none, unreadable = (int(Status[x]) for x in ("chosen", "none", "unreadable"))
    assert found.status.tolist() == [chosen, none, unreadable, none, chosen]
    assert (found.asked, found.replayed, found.output_tokens) == (4, 0, 8)
    assert "five" not in [
        text for batch in engine.seen for text in batch
    ]  # no candidates: nobody is asked
    assert selector.queries == {3: ("[1]",)}
    selector.save_queries(tmp_path / "queries")
    assert (tmp_path / "queries").read_text() == '{"node": 3, "queries": ["[1]"]}\n'
    # Six words cut to four, in the prompts of 0, 1 (as context) and 4.
    assert (found.cut_documents, found.cut_tokens, found.shown_documents) == (3, 6, 4 + 10 + 3)
    account = Account()
    account.add(found)
    account.add(found)
    assert (account.chosen, account.none, account.unreadable) == (4, 4, 2)
    assert (account.output_tokens, account.cut_documents, account.asked) == (16, 6, 8)


def test_the_raw_text_is_logged_and_replayed(tmp_path: Path) -> None:
    first = listwise(Canned(TABLE), tmp_path)(SHORTLIST, 2)
    lines = [json.loads(x) for p in tmp_path.glob("*.jsonl") for x in p.read_text().splitlines()]
    texts = [answer["text"] for line in lines for answer in line.values()]
    assert sorted(texts) == sorted(TABLE.values())
    again = listwise(Canned({}), tmp_path)(SHORTLIST, 2)  # an engine that knows nothing
    assert torch.equal(first.picks, again.picks) and torch.equal(first.status, again.status)
    assert (again.asked, again.replayed, again.tokens, again.output_tokens) == (0, 4, 0, 0)
    assert again.used_tokens == first.used_tokens == first.tokens + first.output_tokens > 0
    for change in ({"document_tokens": 2}, {"shuffle": 1}):
        with pytest.raises(KeyError):
            listwise(Canned({}), tmp_path, **change)(SHORTLIST, 2)
    with pytest.raises(KeyError):
        listwise(Canned({}), tmp_path)(SHORTLIST, 1)  # the budget stands in the prompt


def test_shuffling_is_seeded_by_anchor(tmp_path: Path) -> None:
    order = list(range(1, 5))
    two = shortlist_of([0, 5], [order, order], [[-1], [-1]])
    table = {"zero (7)": "[1] [2] [3] [4]", "five": "[1] [2] [3] [4]"}
    first = listwise(Canned(table), tmp_path / "a", shuffle=1)(two, 4).picks.tolist()
    alone = shortlist_of([5], [order], [[-1]])
    assert listwise(Canned(table), tmp_path / "b", shuffle=1)(alone, 4).picks.tolist() == first[1:]
    others = [
        listwise(Canned(table), tmp_path / str(s), shuffle=s)(two, 4).picks.tolist()
        for s in range(2, 6)
    ]
    assert all(sorted(row) == order for row in first)
    assert len({tuple(row) for picks in [first, *others] for row in picks}) > 3


def test_numbers_above_none_best_first() -> None:
    assert above_none([-2.0, -1.0, -3.0, -0.5, -2.0, -1.0], 9) == (2, 0, 4)
    assert above_none([-2.0, -1.0, -3.0, -0.5], 1) == (2,)
    assert above_none([-0.1, -1.0], 2) == () and above_none([0.0], 2) == ()


@pytest.fixture(scope="module")
def qwen3(tiny_qwen3: Path) -> LanguageModel:
    return load_language_model(str(tiny_qwen3))


def local(lm: LanguageModel) -> LocalEngine:
    return LocalEngine(lm, 400, 8, is_answered, "answer line")


def test_constrained_equals_one_forward_an_answer(qwen3: LanguageModel, tmp_path: Path) -> None:
    engine = local(qwen3)
    selector = listwise(engine, tmp_path, mode=LlmMode.constrained)
    found = selector(SHORTLIST, 3)

    def plain(ids: list[int], answer: str) -> float:
        path = qwen3.tokenizer.encode(answer, add_special_tokens=False)
        logp = qwen3.model(torch.tensor([ids + path])).logits[0].log_softmax(-1)
        return sum(float(logp[len(ids) - 1 + at, t]) for at, t in enumerate(path))

    asked = [(0, [3, 1, 2], [4]), (1, [5, 3], [2, 0]), (4, [0, 2], []), (3, [4, 5, 0], [])]
    picks = {0: [-1] * 3, 1: [-1] * 3, 4: [-1] * 3, 5: [-1] * 3, 3: [-1] * 3}
    for anchor, shown, context in asked:
        prompt = selector._prompt(anchor, context, shown, 3, [])
        none = plain(prompt.content, "NONE")
        score = {c: plain(prompt.content, f"[{at}]") for at, c in enumerate(shown, start=1)}
        best = sorted((c for c in shown if score[c] > none), key=lambda c: -score[c])
        picks[anchor] = (best + [-1] * 3)[:3]
    assert found.picks.tolist() == [picks[a] for a in SHORTLIST.anchors.tolist()]
    assert not (found.status == int(Status.unreadable)).any()
    again = listwise(engine, tmp_path, mode=LlmMode.constrained)(SHORTLIST, 3)
    assert torch.equal(again.picks, found.picks) and again.asked == 0


def assert_same(a: Selection, b: Selection) -> None:
    assert torch.equal(a.picks, b.picks) and torch.equal(a.status, b.status)


@pytest.mark.parametrize("mode", [LlmMode.generate, LlmMode.constrained])
def test_two_halves_logged_apart_replay_as_one(
    qwen3: LanguageModel, tmp_path: Path, mode: LlmMode
) -> None:
    def half(rows: slice) -> Shortlist:
        return Shortlist(*(getattr(SHORTLIST, f.name)[rows] for f in fields(SHORTLIST)))

    both = tmp_path / "both"
    for rows in (slice(0, 2), slice(2, 5)):
        listwise(local(qwen3), both, mode=mode)(half(rows), 2)
    assert len(list(both.glob("*.jsonl"))) == 2
    third = listwise(local(qwen3), both, mode=mode)(SHORTLIST, 2)
    assert third.asked == 0
    assert_same(third, listwise(local(qwen3), tmp_path / "one", mode=mode)(SHORTLIST, 2))


def numbered(sizes: list[int]) -> list[str]:
    return [f"k{at}" for at in range(len(sizes))]


def test_memory_running_out_halves_the_budget_and_is_remembered(tmp_path: Path) -> None:
    sizes, asked = [10] * 8, []

    def ask(places: list[int]) -> list[int]:
        if len(places) > 3:
            raise torch.OutOfMemoryError("full")
        asked.append(places)
        return places

    log = AnswerLog(tmp_path)
    found = ask_all(log, numbered(sizes), sizes, 80, ask, "test")
    assert found.answers == list(range(8)) and sorted(found.fresh) == list(range(8))
    assert asked == [[0, 1], [2, 3], [4, 5], [6, 7]]  # 80 and 40 were too much
    asked.clear()
    more = numbered([0] * 8) + [f"n{at}" for at in range(4)]
    ask_all(AnswerLog(tmp_path), more, [10] * 12, 80, ask, "test")  # a restart: 20 from the start
    assert asked == [[8, 9], [10, 11]]


def test_a_single_prompt_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    def ask(places: list[int]) -> list[int]:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        ask_all(AnswerLog(tmp_path), ["a", "b"], [10, 10], 20, ask, "test")


def test_batches_after_a_kill_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    sizes = [5, 9, 3, 7, 7, 2, 8, 5, 5]

    class KilledError(Exception):
        pass

    def killed(folder: Path, stop: int | None) -> list[list[int]]:
        batches: list[list[int]] = []

        def ask(places: list[int]) -> list[int]:
            if stop is not None and len(batches) == stop:
                raise KilledError
            batches.append(places)
            return places

        with contextlib.suppress(KilledError):
            ask_all(AnswerLog(folder), numbered(sizes), sizes, 16, ask, "test")
        return batches

    calm = killed(tmp_path / "calm", None)
    rough = [b for stop in (1, 0, 2, 1, None) for b in killed(tmp_path / "rough", stop)]
    assert rough == calm and len(calm) > 4


def test_equal_prompts_are_asked_once(tmp_path: Path) -> None:
    asked: list[list[int]] = []

    def ask(places: list[int]) -> list[int]:
        asked.append(places)
        return [10 + at for at in places]

    found = ask_all(AnswerLog(tmp_path), ["a", "b", "a", "b"], [3, 3, 3, 3], 6, ask, "test")
    assert found.answers == [10, 11, 10, 11] and found.replayed == 2 and asked == [[0, 1]]


WORDS = [
    "refine=llm", "refine.when=post", "prompt=general", "llm.document_tokens=6",
    "llm.anchor_tokens=8", "llm.new_tokens=4", "refine.shortlist_size=4",
    "refine.node_budget=0.2", "search.widths=[10]", "search.budgets=[]",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["generate", "constrained"])
def test_a_run_reports_its_answers(tmp_path: Path, tiny_qwen3: Path, mode: str) -> None:
    words = [
        *WORDS, f"llm.model={tiny_qwen3}", f"llm.mode={mode}", f"run_dir={tmp_path / 'run'}",
        f"store_dir={tmp_path / 'store'}",
    ]  # fmt: skip
    run(compose(words), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    account = summary["graphs"][-1]["account"]
    answers = account["chosen"] + account["none"] + account["unreadable"]
    assert account["asked"] > 0 and answers == summary["graphs"][-1]["n_eligible"]
    assert account["unreadable"] == 0 or mode == "generate"
    assert account["cut_documents"] > 0
    (line,) = [x for x in graph_lines(tmp_path / "run") if x.startswith("refined llm")]
    assert f"{account['unreadable']} unreadable (" in line
    assert f"{account['cut_documents']} of {account['shown_documents']} documents shown" in line


def test_whatever_shapes_an_answer_is_in_the_stage_key() -> None:
    def inputs(*words: str) -> dict[str, Any]:
        config = compose(["refine=llm", "prompt=general", *words])
        return selector_inputs(SelectorKind.llm, config, "digest")

    base = inputs("llm.mode=generate")
    for word in (
        "llm.mode=constrained", "llm.new_tokens=9", "llm.document_tokens=9", "llm.anchor_tokens=9",
        "llm.shuffle=1", "llm.batch_tokens=9", "llm.dtype=bfloat16", "prompt=code",
        "prompt.uses=other", "prompt.selection_system='At most {B}'",
    ):  # fmt: skip
        assert inputs("llm.mode=generate", word) != base, word
    assert inputs("llm.mode=generate", "prompt.ranking_system=other") == base
    constrained = inputs("llm.mode=constrained")
    assert inputs("llm.mode=constrained", "llm.new_tokens=9") == constrained
