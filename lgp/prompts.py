"""Prompts as data: a chat of pieces, each the experimenter's template text or somebody's document.

In: the templates of a `PromptConfig` and texts. Out: a `Chat`. Models and tokens are unknown here.
Documents are data: they are cleaned so that none can write an identifier or start a line, and an
engine must encode their pieces so that none can open or close a turn.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lgp.config_llm import ConfigError, PromptConfig
from lgp.templates import template_parts


@dataclass(frozen=True)
class Piece:
    """A stretch of a prompt; `data` marks text that is no part of the template."""

    text: str
    data: bool = False


@dataclass(frozen=True)
class Chat:
    """A system and a user message. An empty system message is left out by engines."""

    system: tuple[Piece, ...]
    user: tuple[Piece, ...]

    def messages(self) -> list[dict[str, str]]:
        """The chat as role and content, for servers that take text."""
        both = {"system": self.system, "user": self.user}
        texts = {role: "".join(piece.text for piece in pieces) for role, pieces in both.items()}
        return [{"role": role, "content": text} for role, text in texts.items() if text]


# ASCII, full-width, lenticular and tortoise-shell brackets.
_OPEN, _CLOSE = r"\[\uff3b\u3010\u3014", r"\]\uff3d\u3011\u3015"
_BRACKETED = re.compile(f"[{_OPEN}]([^{_OPEN}{_CLOSE}]{{1,40}})[{_CLOSE}]")


def clean(text: str) -> str:
    """A document as a listwise prompt shows it: on one line, without anything like an identifier.

    White space, line ends included, becomes single blanks, so a document cannot start a line.
    Numbers and lists of numbers in square brackets (`[12]`, `[ 1, 2 ]`, other scripts' digits
    and full-width brackets, too) get round ones: only the prompt's own identifiers are bracketed.
    """
    return _BRACKETED.sub(_rounded, " ".join(text.split()))


def _rounded(found: re.Match[str]) -> str:
    inner = found[1]
    numbers = [c for c in inner if c.isnumeric()]
    others = [c for c in inner if not c.isnumeric() and c not in " ,;.-\u2013"]
    if not numbers or any(unicodedata.category(c) != "Cf" for c in others):
        return found[0]
    return f"({inner})"


def fill(template: str, values: Mapping[str, Sequence[Piece]]) -> tuple[Piece, ...]:
    """A checked template with its placeholders replaced; neighboring texts become one piece."""
    pieces: list[Piece] = []
    for literal, name in template_parts(template):
        for piece in (Piece(literal), *(values[name] if name is not None else ())):
            if pieces and not pieces[-1].data and not piece.data:
                pieces[-1] = Piece(pieces[-1].text + piece.text)
            elif piece.text:
                pieces.append(piece)
    return tuple(pieces)


def selection_chat(
    prompt: PromptConfig,
    anchor: str,
    context: Sequence[str],
    candidates: Sequence[str],
    edit_budget: int,
) -> Chat:
    """The prompt of LLMSelect (paper C.1): which candidates should be linked from the anchor?

    Args:
        anchor, context, candidates: texts, cleaned (`clean`) and cut. Candidates are numbered
            from [1]; context documents have a dash, so that nothing else is numbered.
    """
    system = {
        "B": [Piece(str(edit_budget))],
        "documents": [Piece(prompt.documents)],
        "uses": [Piece(prompt.uses)],
    }
    user = {
        "anchor": [Piece(anchor, data=True)],
        "keep_block": _block(["- "] * len(context), context) or [Piece("(none)")],
        "cand_block": _block(_numbers(len(candidates)), candidates),
    }
    return Chat(
        fill(_template(prompt, "selection_system"), system),
        fill(_template(prompt, "selection_user"), user),
    )


def ranking_chat(prompt: PromptConfig, query: str, passages: Sequence[str]) -> Chat:
    """The prompt of listwise reranking (paper C.2); passages are numbered from [1].

    Args:
        query, passages: texts, cleaned (`clean`) and cut.
    """
    values = {
        "N": [Piece(str(len(passages)))],
        "QUERY": [Piece(query, data=True)],
        "passages": _block(_numbers(len(passages)), passages),
    }
    return Chat(
        fill(_template(prompt, "ranking_system"), values),
        fill(_template(prompt, "ranking_user"), values),
    )


def _template(prompt: PromptConfig, key: str) -> str:
    template: str | None = getattr(prompt, key)
    if template is None:
        raise ConfigError(
            f"prompt={prompt.name} has no {key}; choose a prompt that has (prompt=general)"
        )
    return template


def _numbers(n: int) -> list[str]:
    return [f"[{number}] " for number in range(1, n + 1)]


def _block(marks: Sequence[str], texts: Sequence[str]) -> list[Piece]:
    """One line a document: its mark, then its text."""
    pieces: list[Piece] = []
    for at, (mark, text) in enumerate(zip(marks, texts, strict=True)):
        pieces += [Piece(("\n" if at else "") + mark), Piece(text, data=True)]
    return pieces
