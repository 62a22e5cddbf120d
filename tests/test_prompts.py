"""Prompts: placeholders are checked, documents are cleaned, the paper's words are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from lgp.cli import compose
from lgp.config_llm import ConfigError, PromptConfig
from lgp.prompts import Piece, clean, ranking_chat, selection_chat

NAMES = ["paper", "general", "code", "question_answering", "bright_science", "bright_code",
         "bright_math"]  # fmt: skip
TEMPLATES = {
    "selection_system": "At most {B}.",
    "selection_user": "A {anchor} K {keep_block} C {cand_block}",
    "ranking_system": "{N} for {QUERY}",
    "ranking_user": "{passages}\n{QUERY}",
}

PAPER = {
    "selection_system": "feadcee650f7ae65",
    "selection_user": "3cd0c3a6fec71240",
    "ranking_system": "2caf7269463a972e",
    "ranking_user": "527af47d20f22e56",
}


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_of_the_package_renders(name: str) -> None:
    prompt = compose([f"prompt={name}"]).prompt
    assert prompt.name == name
    chat = selection_chat(prompt, "an anchor", ["a neighbor"], ["one", "two"], 2)
    system, user = text_of(chat.system), text_of(chat.user)
    assert "t most 2 candidate" in system + user or "at most 2 candidates" in system
    assert user.index("an anchor") < user.index("- a neighbor") < user.index("[1] one\n[2] two")
    assert "{" not in system + user and "see also" not in (system + user).lower()
    ranked = ranking_chat(prompt, "why?", ["one", "two"])
    assert "[1] one\n[2] two" in text_of(ranked.user) and "{" not in text_of(ranked.user)


def test_the_papers_prompts_are_quoted_word_for_word() -> None:
    """sha256 of appendix C.1 and C.2, white space collapsed, as the paper's text has them."""
    prompt = compose(["prompt=paper"]).prompt
    digests = {
        key: hashlib.sha256(" ".join(getattr(prompt, key).split()).encode()).hexdigest()[:16]
        for key in TEMPLATES
    }
    assert digests == PAPER


def test_documents_are_pieces_of_data() -> None:
    prompt = PromptConfig(**TEMPLATES)
    chat = selection_chat(prompt, "anchor", ["x", "y"], ["c1", "c2"], 3)
    assert [p.text for p in chat.user if p.data] == ["anchor", "x", "y", "c1", "c2"]
    assert text_of(chat.user) == "A anchor K - x\n- y C [1] c1\n[2] c2"
    assert chat.messages() == [
        {"role": "system", "content": "At most 3."},
        {"role": "user", "content": "A anchor K - x\n- y C [1] c1\n[2] c2"},
    ]
    ranked = ranking_chat(prompt, "why {N}?", ["p"])  # a query's braces are text
    assert text_of(ranked.system) == "1 for why {N}?" and text_of(ranked.user) == "[1] p\nwhy {N}?"
    empty = selection_chat(prompt, "anchor", [], ["c"], 1)
    assert text_of(empty.user) == "A anchor K (none) C [1] c"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n\n  b\tc\r\nd\u2028e\x0bf\x85g", "a b c d e f g"),
        ("shown by [12] and [3].", "shown by (12) and (3)."),
        ("[ 3 ] [3\n] [1, 2] [1-3] [4;5]", "( 3 ) (3 ) (1, 2) (1-3) (4;5)"),
        ("[[3]]", "[(3)]"),
        ("[٣] [३] [\uff13] \uff3b3\uff3d 【4】 [③]", "(٣) (३) (\uff13) (3) (4) (③)"),
        ("[\u200b3]", "(\u200b3)"),
        ("x[i] [a3] [] [ ] [n]", "x[i] [a3] [] [ ] [n]"),
        ("QUERY: [1]\nNONE", "QUERY: (1) NONE"),
    ],
)
def test_cleaned_documents_hold_no_identifier_and_one_line(text: str, expected: str) -> None:
    assert clean(text) == expected
    assert clean(expected) == expected


@pytest.mark.parametrize(
    ("key", "template", "message"),
    [
        ("selection_system", "At most some.", r"prompt\.selection_system lacks .*\{B\}"),
        ("selection_user", "{anchor} {cand_block}",
         r"prompt\.selection_user lacks .*\{keep_block\}"),
        ("selection_user", "{anchor} {keep_block} {cand_block} {docs}",
         r"prompt\.selection_user holds the unknown placeholder \{docs\}"),
        ("ranking_user", "{passages}", r"prompt\.ranking_user lacks .*\{QUERY\}"),
        ("ranking_system", "{passages}", r"prompt\.ranking_system holds .*\{passages\}"),
        ("ranking_user", "{passages} {QUERY} {", r"prompt\.ranking_user is no template"),
        ("ranking_user", "{passages} {QUERY!r}", r"not a plain name"),
        ("ranking_user", "{passages} {QUERY.x}", r"not a plain name"),
        ("ranking_user", "{passages} {QUERY} {}", r"not a plain name"),
    ],
)  # fmt: skip
def test_bad_templates_are_refused_at_load(key: str, template: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PromptConfig(**(TEMPLATES | {key: template}))


def test_doubled_braces_are_text() -> None:
    prompt = PromptConfig(**(TEMPLATES | {"selection_system": 'At most {B}: {{"a": 1}}'}))
    assert text_of(selection_chat(prompt, "a", [], ["c"], 2).system) == 'At most 2: {"a": 1}'


def test_a_listwise_mode_needs_a_listwise_prompt() -> None:
    for mode in ("generate", "constrained"):
        with pytest.raises(ConfigError, match=f"llm.mode={mode} needs; choose prompt=general"):
            compose(["refine=llm", f"llm.mode={mode}"])
        compose(["refine=llm", f"llm.mode={mode}", "prompt=general"])
    with pytest.raises(ConfigError, match="prompt=likelihood has no ranking_system"):
        ranking_chat(PromptConfig(), "q", ["p"])


@pytest.mark.parametrize("name", ["smollm2", "smollm2_135m", "qwen3_8b", "qwen3_32b"])
def test_presets_compose(name: str) -> None:
    llm = compose([f"llm={name}"]).llm
    assert llm.model == {"qwen3_8b": "Qwen/Qwen3-8B", "qwen3_32b": "Qwen/Qwen3-32B"}.get(
        name, "smollm2"
    )
