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
    """A stretch of a prompt; `data` marks text that is no part of the template.

    With an `image`, its reference, a piece is that image and has no text.
    """

    text: str
    data: bool = False
    image: str = ""


@dataclass(frozen=True)
class Shown:
    """A document or query as a prompt shows it: text, cleaned (`clean`) and cut, then its image,
    a reference or ""."""

    text: str
    image: str = ""

    def pieces(self) -> list[Piece]:
        image = [Piece("", data=True, image=self.image)] if self.image else []
        return [Piece(self.text, data=True), *image]


@dataclass(frozen=True)
class Chat:
    """A system and a user message. An empty system message is left out by engines."""

    system: tuple[Piece, ...]
    user: tuple[Piece, ...]

    def messages(self) -> list[dict[str, str]]:
        """The chat as role and content, for servers that take text.

        Raises:
            ValueError: it shows an image.
        """
        self.refuse_images()
        both = {"system": self.system, "user": self.user}
        texts = {role: "".join(piece.text for piece in pieces) for role, pieces in both.items()}
        return [{"role": role, "content": text} for role, text in texts.items() if text]

    def refuse_images(self) -> None:
        """Refuse images, for engines that cannot show them (ValueError)."""
        if any(piece.image for piece in (*self.system, *self.user)):
            raise ValueError("a prompt shows images, which only llm.engine=vlm reads; set it")


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
            elif piece.text or piece.image:
                pieces.append(piece)
    return tuple(pieces)


def selection_chat(
    prompt: PromptConfig,
    anchor: str | Shown,
    context: Sequence[str | Shown],
    candidates: Sequence[str | Shown],
    edit_budget: int,
) -> Chat:
    """The prompt of LLMSelect (paper C.1): which candidates should be linked from the anchor?

    Args:
        anchor, context, candidates: texts, cleaned (`clean`) and cut, with images where they have
            any. Candidates are numbered from [1]; context documents have a dash, so that nothing
            else is numbered.
    """
    system = {
        "B": [Piece(str(edit_budget))],
        "documents": [Piece(prompt.documents)],
        "uses": [Piece(prompt.uses)],
    }
    user = {
        "anchor": _shown(anchor).pieces(),
        "keep_block": _block(["- "] * len(context), context) or [Piece("(none)")],
        "cand_block": _block(_numbers("[{n}] ", len(candidates)), candidates),
    }
    return Chat(
        fill(_template(prompt, "selection_system"), system),
        fill(_template(prompt, "selection_user"), user),
    )


def ranking_chat(
    prompt: PromptConfig,
    query: str | Shown,
    passages: Sequence[str | Shown],
    instruction: str = "",
) -> Chat:
    """The prompt of listwise reranking (paper C.2, C.3); passages are numbered from [1].

    Args:
        query, passages: texts, cleaned (`clean`) and cut, with images where they have any. The
            system message has the query's text only.
        instruction: the query's task, cleaned, for templates that hold {instruction}.
    """
    asked = _shown(query)
    values = {
        "N": [Piece(str(len(passages)))],
        "QUERY": asked.pieces(),
        "instruction": [Piece(instruction, data=True)],
        "passages": _block(_numbers(prompt.passage_mark, len(passages)), passages),
    }
    return Chat(
        fill(_template(prompt, "ranking_system"), values | {"QUERY": Shown(asked.text).pieces()}),
        fill(_template(prompt, "ranking_user"), values),
    )


def _template(prompt: PromptConfig, key: str) -> str:
    template: str | None = getattr(prompt, key)
    if template is None:
        raise ConfigError(
            f"prompt={prompt.name} has no {key}; choose a prompt that has (prompt=general)"
        )
    return template


def _shown(item: str | Shown) -> Shown:
    return Shown(item) if isinstance(item, str) else item


def _numbers(mark: str, n: int) -> list[str]:
    return [mark.replace("{n}", str(number)) for number in range(1, n + 1)]


def _block(marks: Sequence[str], items: Sequence[str | Shown]) -> list[Piece]:
    """One line a document: its mark, then its text and image."""
    pieces: list[Piece] = []
    for at, (mark, item) in enumerate(zip(marks, items, strict=True)):
        pieces += [Piece(("\n" if at else "") + mark), *_shown(item).pieces()]
    return pieces
