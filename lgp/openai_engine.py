"""The engine behind an OpenAI-compatible server (vLLM, llama.cpp, a paid service).

In: chats. Out: texts. All prompts of a batch are asked at the same time; nothing is sent anywhere
but to the server named. Retries (connections, timeouts, 408, 409, 429, 5xx; exponential backoff
with jitter, `Retry-After` up to two minutes) are those of the `openai` client library.

Documents travel as text, which the server encodes with its special tokens. So what looks like a
reserved token of a chat template there gets a blank after its first character: `<|im_end|>`
becomes `< |im_end|>`, `[/INST]` becomes `[ /INST]`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from lgp.ask import Prompt
from lgp.llm import LanguageModel
from lgp.prompts import Chat, Piece

log = logging.getLogger(__name__)

CHARACTERS_PER_TOKEN = 4
"""Of English text; the measure where no tokenizer is at hand."""

CONNECT_S = 5.0
"""Seconds a connection may take; answers may take `llm.timeout_s`."""

_TAGS = (
    "s", "unk", "pad", "bos", "eos", "mask", "cls", "sep", "sop", "eop", "think", "tool_call",
    "tool_response", "tools", "start_of_turn", "end_of_turn", "start_of_image", "end_of_image",
    "image", "video", "endoftext", "repo_name", "reponame", "file_sep", "filename", "gh_stars",
    "issue_start", "issue_comment", "issue_closed", "jupyter_start", "jupyter_text",
    "jupyter_code", "jupyter_output", "jupyter_script", "empty_output", "fim_prefix",
    "fim_middle", "fim_suffix", "fim_pad", "code_to_intermediate", "intermediate_to_code",
    r"unused\d+", r"extra_id_\d+", r"SPECIAL_\d+", r"reserved_\d+",
)  # fmt: skip

_FAMILIES = "|".join(
    [
        "<[|\uff5c]",  # <|im_start|>, <|eot_id|>, DeepSeek's full-width bars
        f"</?(?:{'|'.join(_TAGS)})>",
        "<</?SYS>>",
        r"\[/?[A-Z_]{2,32}\]",  # [INST], [/INST], [TOOL_CALLS], [MASK]
        r"\[gMASK\]",
    ]
)
"""Reserved tokens of the chat templates of Qwen, Llama, Mistral, Gemma, DeepSeek, GLM, SmolLM."""


def neutralised(pieces: Sequence[Piece], reserved: re.Pattern[str]) -> tuple[str, int]:
    """(the pieces as one text, reserved tokens broken in it).

    A blank goes behind the first character of each reserved token that a document spells, alone
    or together with the template's text beside it; the template's own tokens stay.
    """
    text = "".join(piece.text for piece in pieces)
    owner = "".join(("d" if piece.data else "t") * len(piece.text) for piece in pieces)
    parts, start = [], 0
    for found in reserved.finditer(text):
        if "d" in owner[found.start(1) : found.end(1)]:
            parts.append(text[start : found.start() + 1])
            start = found.start() + 1
    return " ".join([*parts, text[start:]]), len(parts)


@dataclass
class OpenAIEngine:
    """Chats answered by a server, at temperature 0.

    A prompt counts 1 in a batch, so a batch is `concurrency` prompts: all are in flight at once,
    and a kill loses no more than these. Where the answers come from is no part of their keys: a
    server may move.

    Attributes:
        key_name: environment variable that holds the key, None where the server wants none.
        revision: of the model, only to tell answers apart; the server is not asked.
        no_thinking: send `chat_template_kwargs: {"enable_thinking": false}`, which vLLM and SGLang
            know and others may refuse.
        timeout_s: seconds an answer may take. retries: per request.
        tokenizer: a model's, to cut by its tokens; None cuts by characters, 4 a token.
        broken: reserved tokens broken so far in documents of prompts.
    """

    base_url: str
    model: str
    key_name: str | None = None
    revision: str | None = None
    new_tokens: int = 64
    no_thinking: bool = False
    concurrency: int = 16
    timeout_s: float = 120.0
    retries: int = 5
    tokenizer: Any = None
    broken: int = 0
    _reached: bool = field(default=False, init=False)

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "engine": "openai", "model": self.model, "revision": self.revision,
            "dtype": None, "template": None,
        }  # fmt: skip

    @property
    def decoding(self) -> dict[str, Any]:
        return {
            "temperature": 0, "seed": 0, "new_tokens": self.new_tokens,
            "no_thinking": self.no_thinking, "stop": "end of turn",
        }  # fmt: skip

    @property
    def batch_tokens(self) -> int:
        return self.concurrency

    def cut(self, text: str, limit: int) -> tuple[str, int]:
        """(a text's start of at most `limit` tokens, tokens cut off); 4 characters are a token
        where there is no tokenizer."""
        if self._tokens is not None:
            return self._tokens.cut(text, limit)
        kept = text[: CHARACTERS_PER_TOKEN * limit]
        return kept, _estimated(len(text) - len(kept))

    def encode(self, chat: Chat) -> Prompt:
        """The messages of a chat, reserved tokens in its documents broken."""
        messages = []
        for role, pieces in (("system", chat.system), ("user", chat.user)):
            text, broken = neutralised(pieces, self._reserved)
            if broken and not self.broken:
                log.warning(
                    "documents spell reserved tokens of chat templates; a blank is put after the "
                    "first character of each"
                )
            self.broken += broken
            if text:
                messages.append({"role": role, "content": text})
        return Prompt(messages, 1)

    def generate(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """What the server's model writes after each prompt.

        Returns:
            as `lgp.ask.Engine`; "estimated": True where the server tells no tokens.
        Raises:
            ConnectionError: no answer after all retries, or one that is not a chat completion.
            ValueError: the server refuses a request.
        """
        self._reach()
        with ThreadPoolExecutor(self.concurrency) as pool:
            try:
                return list(pool.map(self._ask, prompts))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def choose(self, prompts: Sequence[Prompt], options: Sequence[str]) -> list[dict[str, Any]]:
        raise ValueError(
            "a server gives no probabilities of whole answers; set llm.mode=generate, or "
            "llm.engine=transformers"
        )

    @cached_property
    def _tokens(self) -> LanguageModel | None:
        """The tokenizer with its rules for documents; there are no weights."""
        if self.tokenizer is None:
            return None
        return LanguageModel(None, self.tokenizer, {}, torch.device("cpu"))

    @cached_property
    def _reserved(self) -> re.Pattern[str]:
        """Matches the start of every reserved token; group 1 is all of it."""
        own = [] if self.tokenizer is None else sorted(self.tokenizer.get_added_vocab(), key=len)
        return re.compile(f"(?=({'|'.join([*map(re.escape, reversed(own)), _FAMILIES])}))")

    @cached_property
    def _key(self) -> str:
        if self.key_name is None:
            return "none"  # the library insists on a key
        key = os.environ.get(self.key_name)
        if not key:
            raise ValueError(
                "llm.api_key_env names an environment variable that is not set; export the key "
                "under that name, or leave llm.api_key_env null for a server without keys"
            )
        return key

    @cached_property
    def _client(self) -> Any:
        openai = _library()
        for name in ("httpx", "httpx2"):  # it tells every request at level INFO
            logging.getLogger(name).setLevel(logging.WARNING)
        return openai.OpenAI(
            base_url=self.base_url,
            api_key=self._key,
            timeout=openai.Timeout(self.timeout_s, connect=CONNECT_S),
            max_retries=self.retries,
            http_client=openai.DefaultHttpxClient(follow_redirects=False),
        )

    def _reach(self) -> None:
        """Fail within seconds where nobody listens, instead of after all retries of a prompt."""
        if self._reached:
            return
        openai = _library()
        try:
            self._client.with_options(max_retries=1, timeout=2 * CONNECT_S).models.list()
        except openai.APIConnectionError as error:
            raise ConnectionError(
                f"no server answers at llm.base_url={self.base_url} ({error.__cause__ or error}); "
                "start it, or correct the address"
            ) from error
        except openai.OpenAIError:
            pass  # somebody is there; not every server lists its models
        self._reached = True

    def _ask(self, prompt: Prompt) -> dict[str, Any]:
        openai = _library()
        where = f"llm.base_url={self.base_url}"
        template = {"chat_template_kwargs": {"enable_thinking": False}}
        try:
            reply = self._client.chat.completions.with_raw_response.create(
                model=self.model,
                messages=prompt.content,
                temperature=0,
                seed=0,
                max_tokens=self.new_tokens,
                extra_body=template if self.no_thinking else None,
            )
        except openai.APITimeoutError as error:
            raise ConnectionError(
                f"{where} gave no answer within llm.timeout_s={self.timeout_s}, tried "
                f"{self.retries + 1} times; raise it, or lower llm.concurrency"
            ) from error
        except openai.APIConnectionError as error:
            raise ConnectionError(
                f"{where} cannot be reached any more ({error.__cause__ or error}), tried "
                f"{self.retries + 1} times; what was answered is logged: start the server and rerun"
            ) from error
        except openai.APIStatusError as error:
            told = error.response.text[:500].replace(self._key, "***")
            if error.status_code < 500 and error.status_code not in (408, 409, 429):
                raise ValueError(f"{where} refuses with {error.status_code}: {told}") from None
            raise ConnectionError(
                f"{where} failed with {error.status_code}, tried {self.retries + 1} times: {told}; "
                "what was answered is logged: rerun later"
            ) from None
        return self._read(prompt, reply.text)

    def _read(self, prompt: Prompt, body: str) -> dict[str, Any]:
        """The answer in a chat completion.

        A message without content (all tokens spent on thinking) is an empty answer.
        """
        try:
            completion = json.loads(body)
            text = completion["choices"][0]["message"].get("content") or ""
            usage = completion.get("usage") or {}
            if not isinstance(text, str):
                raise TypeError("its content is no text")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConnectionError(
                f"llm.base_url={self.base_url} sent what is no chat completion ({error!r}): "
                f"{body[:200]!r}; it must end in the path of an OpenAI-compatible API, as in "
                "http://host:8000/v1"
            ) from error
        counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        told = all(isinstance(count, int) for count in counts)
        if not told:
            asked = sum(len(message["content"]) for message in prompt.content)
            counts = (_estimated(asked), _estimated(len(text)))
        answer = {"text": text, "prompt_tokens": counts[0], "output_tokens": counts[1]}
        return answer if told else answer | {"estimated": True}


def _library() -> Any:
    try:
        import openai
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "llm.engine=openai needs the package openai; pip install 'lgp[openai]'"
        ) from error
    return openai


def _estimated(characters: int) -> int:
    return math.ceil(characters / CHARACTERS_PER_TOKEN)
