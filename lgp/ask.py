"""The loop between prompts and answers: from the log where it has them, else from a model.

In: prompts with their keys and sizes, and a function that answers a batch. Out: all answers.
What prompts and answers look like is unknown here. The batch plan is a pure function of all the
sizes, those answered already included, and of the token budget, so that a run that was killed
forms the same batches as one that was not (DESIGN section 9).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from tqdm import tqdm

from lgp.answers import AnswerLog
from lgp.llm import plan_batches
from lgp.prompts import Chat
from lgp.stopping import stop_if_asked
from lgp.store import digest_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompt:
    """A chat as an engine takes it.

    Attributes:
        content: JSON-able and complete (token ids, or messages): a part of the answer's key.
        size: padded tokens it is worth in a batch, room for its answer included.
        shared: how many of the first tokens come before any document.
    """

    content: Any
    size: int
    shared: int = 0


class Engine(Protocol):
    """Something that answers chats.

    Attributes:
        identity: what makes its answers, JSON-able: engine, model, revision, dtype, template.
        decoding: how `generate` ends and draws, JSON-able; a part of its answers' keys.
        batch_tokens: summed `size` a batch may have.
    """

    @property
    def identity(self) -> dict[str, Any]: ...

    @property
    def decoding(self) -> dict[str, Any]: ...

    @property
    def batch_tokens(self) -> int: ...

    def cut(self, text: str, limit: int) -> tuple[str, int]:
        """(a text's start of at most `limit` tokens, tokens cut off)."""

    def encode(self, chat: Chat) -> Prompt: ...

    def generate(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """{"text": what the model wrote, "prompt_tokens": int, "output_tokens": int} each."""

    def choose(self, prompts: Sequence[Prompt], options: Sequence[str]) -> list[dict[str, Any]]:
        """{"logp": log p of each option, "prompt_tokens": int} each (ValueError: it cannot)."""


@dataclass(frozen=True)
class Asked:
    """All answers, in order of the prompts.

    Attributes:
        fresh: places of the prompts that a model answered now; the others were replayed.
    """

    answers: list[Any]
    fresh: list[int]

    @property
    def replayed(self) -> int:
        return len(self.answers) - len(self.fresh)


def answer_tokens(answer: Mapping[str, Any]) -> int:
    """Tokens read and written for an engine's answer."""
    return int(answer["prompt_tokens"]) + int(answer.get("output_tokens", 0))


def first_uses(keys: Sequence[str], tokens: Sequence[int], seen: set[str]) -> int:
    """Summed tokens of the answers that are used for the first time, replayed or not: what they
    cost whoever has no log.

    Args:
        tokens: read and written for each key's answer. seen: keys used before; grows by the new.
    """
    new = {key: count for key, count in zip(keys, tokens, strict=True) if key not in seen}
    seen.update(new)
    return sum(new.values())


def ask_all(
    answers: AnswerLog,
    keys: Sequence[str],
    sizes: Sequence[int],
    batch_tokens: int,
    ask: Callable[[list[int]], Sequence[Any]],
    label: str,
    progress: bool = False,
) -> Asked:
    """Answer every prompt, batch by batch, each batch logged in one append.

    Where a batch does not fit into memory the budget is halved and the rest planned anew. That
    is logged, too: whoever opens the log starts with the budget that worked.

    Args:
        keys: of the prompts; equal keys are asked once. sizes: in tokens.
        batch_tokens: padded tokens a batch.
        ask: answers the prompts at some places; answers are JSON-able.
        label: what the progress bar says.
    Raises:
        torch.OutOfMemoryError: a single prompt does not fit.
    """
    fresh: list[int] = []
    missing = len({key for key in keys if key not in answers})
    with tqdm(total=missing, desc=label, unit="prompt", disable=not progress or not missing) as bar:
        while True:
            budget = _working_budget(answers, batch_tokens)
            if _ask_batches(answers, keys, plan_batches(sizes, budget), ask, fresh, bar):
                return Asked([answers[key] for key in keys], fresh)
            answers.append({_too_large(budget): True})
            log.warning(
                "%s: out of memory at %d tokens a batch; going on with %d (set llm.batch_tokens)",
                label, budget, budget // 2,
            )  # fmt: skip


def _ask_batches(
    answers: AnswerLog,
    keys: Sequence[str],
    batches: Sequence[list[int]],
    ask: Callable[[list[int]], Sequence[Any]],
    fresh: list[int],
    bar: Any,
) -> bool:
    """Answer what the log lacks, batch by batch; False where memory ran out."""
    for batch in batches:
        places = list({keys[i]: i for i in reversed(batch) if keys[i] not in answers}.values())
        if not places:
            continue
        places.reverse()
        try:
            found = ask(places)
        except torch.OutOfMemoryError:
            if len(places) == 1:
                raise
            return False
        answers.append({keys[i]: answer for i, answer in zip(places, found, strict=True)})
        fresh += places
        bar.update(len(places))
        stop_if_asked()
    return True


def _working_budget(answers: AnswerLog, batch_tokens: int) -> int:
    while batch_tokens > 1 and _too_large(batch_tokens) in answers:
        batch_tokens //= 2
    return batch_tokens


def _too_large(batch_tokens: int) -> str:
    """Key of the record that a budget did not fit on this kind of device."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return digest_of(["out of memory", device, batch_tokens])
