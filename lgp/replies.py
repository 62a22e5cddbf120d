"""Reading what a model wrote: picks of a selection, orders of a ranking.

In: untrusted text. Out: positions. Nothing here knows models or documents. The rules:

- An identifier is `[n]`: an ASCII number without leading zeros in one pair of square brackets,
  blanks inside allowed. `[01]`, `[1-3]`, `[1, 2]`, `[3.0]`, other scripts' digits and other
  brackets are not identifiers; of `[[3]]` the inner pair is one.
- Only identifiers of this prompt count, each once, in the order written.
- Lines that start with `QUERY:` (a list mark or emphasis before it allowed) are kept apart and
  never read for identifiers.
- Thinking does not count: the answer is what follows the last `</think>`, up to a `<think>` that
  is never closed.
- Of that, the first `LONGEST` characters are read. All rules take linear time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

LONGEST = 100_000
"""Characters of an answer that are read; a sensible one has below a hundred."""

_IDENTIFIER = re.compile(r"\[[ \t]{0,8}([1-9][0-9]{0,8})[ \t]{0,8}\]")
_NONE = re.compile(r"(?<!\w)NONE(?!\w)")
_QUERY = re.compile(r"[ \t*_#>`-]{0,16}QUERY[*_`]{0,4}:[*_`]{0,4}(.*)", re.DOTALL)


@dataclass(frozen=True)
class Reply:
    """An answer to a selection prompt.

    Attributes:
        picks: positions (from 0) of the chosen candidates, best first.
        queries: texts of the `QUERY:` lines, which are latent queries of the anchor.
    """

    picks: tuple[int, ...]
    status: Literal["chosen", "none", "unreadable"]
    queries: tuple[str, ...] = ()


def read_selection(text: str, n_shown: int, limit: int) -> Reply:
    """The picks in an answer, at most `limit`.

    NONE (upper case, a word of its own) counts only where no identifier was written, not even
    one that this prompt lacks. Whatever is neither is unreadable.
    """
    lines, queries = _lines(text)
    numbers = [int(found) for line in lines for found in _IDENTIFIER.findall(line)]
    picks = _known(numbers, n_shown)[:limit]
    if picks:
        return Reply(tuple(picks), "chosen", tuple(queries))
    declined = not numbers and any(_NONE.search(line) for line in lines)
    return Reply((), "none" if declined else "unreadable", tuple(queries))


def is_answered(text: str) -> bool:
    """Whether the answer line is complete: an ended line that holds an identifier or NONE.

    A `QUERY:` line does not end an answer, and neither does anything thought before it.
    """
    lines, _ = _lines(text)
    return any(_IDENTIFIER.search(line) or _NONE.search(line) for line in lines[:-1])


@dataclass(frozen=True)
class Ranking:
    """An answer to a ranking prompt of `n` passages.

    Attributes:
        listed: positions (from 0) in the order written, each once.
        repeated, unknown: identifiers written again, or that this prompt lacks.
    """

    n: int
    listed: tuple[int, ...]
    repeated: int
    unknown: int

    @property
    def flawed(self) -> bool:
        """Whether it is anything but one identifier for every passage."""
        return len(self.listed) < self.n or self.repeated > 0 or self.unknown > 0

    def order(self, strict: bool) -> list[int]:
        """A permutation of the n passages.

        Args:
            strict: a flawed answer keeps the input order; else it is repaired: passages it does
                not list are appended in input order.
        """
        if strict and self.flawed:
            return list(range(self.n))
        named = set(self.listed)
        return [*self.listed, *(at for at in range(self.n) if at not in named)]


def read_ranking(text: str, n: int) -> Ranking:
    """The order in an answer; prose around the identifiers is ignored and is no flaw."""
    lines, _ = _lines(text)
    numbers = [int(found) for line in lines for found in _IDENTIFIER.findall(line)]
    known = [number for number in numbers if number <= n]
    listed = _known(numbers, n)
    return Ranking(n, tuple(listed), len(known) - len(listed), len(numbers) - len(known))


def _known(numbers: list[int], n: int) -> list[int]:
    """Positions of the identifiers of this prompt, each once."""
    return [number - 1 for number in dict.fromkeys(numbers) if number <= n]


def _lines(text: str) -> tuple[list[str], list[str]]:
    """(lines of the answer without its QUERY lines, texts of the QUERY lines).

    The last line is the one not ended yet, empty where the text ends with a line end.
    """
    text = text.rpartition("</think>")[2]
    thought = text.find("<think>")
    text = text[: thought if thought >= 0 else LONGEST][:LONGEST]
    lines, queries = [], []
    for line in text.replace("\r", "\n").split("\n"):
        query = _QUERY.match(line)
        if query is None:
            lines.append(line)
        else:
            queries.append(query[1].strip())
            lines.append("")
    return lines, queries
