"""The in-process engine of chat prompts: answers written out, or chosen by their probability.

In: chats. Out: texts, or log p of every possible answer. Selection and ranking are unknown here.
Documents in a chat are encoded as data: whatever they spell, they end no turn and open none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import Tensor

from lgp.ask import Prompt
from lgp.llm import LanguageModel, common_start
from lgp.prefill import Prefilled, Prefix, compute_prefix, forward, prefill
from lgp.prompts import Chat, Piece

SHORTEST_PREFIX = 32
"""Tokens below which a shared prefix is not worth a pass of its own."""

_MARK, _END = "\ue000", "\ue001"  # private use: around the number of a document in a template


def never(text: str) -> bool:
    """The stop rule of an answer that only its turn's end completes."""
    return False


@dataclass
class LocalEngine:
    """Chats answered by a model in this process, greedily.

    Attributes:
        batch_tokens: padded tokens a batch, see `lgp.ask`.
        new_tokens: tokens an answer may have.
        answered: whether a text holds a complete answer, asked at line ends; what would follow
            is not written. stop: its name, a part of the answers' keys.
    """

    lm: LanguageModel
    batch_tokens: int = 4096
    new_tokens: int = 32
    answered: Callable[[str], bool] = never
    stop: str = "end of turn"
    _prefix: Prefix | None = None

    @cached_property
    def identity(self) -> dict[str, Any]:
        return self.lm.identity | {"engine": "transformers"}

    @property
    def decoding(self) -> dict[str, Any]:
        return {"greedy": True, "new_tokens": self.new_tokens, "stop": self.stop}

    def cut(self, text: str, limit: int) -> tuple[str, int]:
        """(a text's start of at most `limit` tokens, tokens cut off)."""
        return self.lm.cut(text, limit)

    def encode(self, chat: Chat) -> Prompt:
        """Token ids of a chat in the model's own format, the answer's turn opened.

        Raises:
            ValueError: it is longer than the model's context.
        """
        ids, shared = encode_chat(self.lm, chat)
        self._check_length(len(ids))
        return Prompt(ids, len(ids) + self.new_tokens, shared)

    def _check_length(self, n_tokens: int) -> None:
        """Refuse a prompt that leaves no room for its answer (ValueError)."""
        config = self.lm.model.config.get_text_config()
        longest = getattr(config, "max_position_embeddings", None)
        if longest is not None and n_tokens + self.new_tokens > longest:
            raise ValueError(
                f"a prompt of {n_tokens} tokens and an answer of {self.new_tokens} exceed the "
                f"model's {longest}; lower llm.document_tokens or refine.shortlist_size, in "
                "reranking rerank.document_tokens or rerank.window"
            )

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """What the model writes after each prompt, up to its end of turn or a complete answer."""
        state = self._prefill(prompts, self.new_tokens)
        written = decode_greedily(self.lm, state, self.new_tokens, self._is_done)
        ends = self._ends
        return [
            {
                "text": self._text([t for t in tokens if t not in ends]),
                "prompt_tokens": len(prompt.content),
                "output_tokens": len(tokens),
            }
            for prompt, tokens in zip(prompts, written, strict=True)
        ]

    @torch.inference_mode()
    def choose(self, prompts: Sequence[Prompt], options: Sequence[str]) -> list[dict[str, Any]]:
        """log p of every option as the start of the answer, to its last token.

        Args:
            options: the same for all prompts.
        Returns:
            {"logp": float an option, "prompt_tokens": int} a prompt.
        """
        paths = [self.lm.tokenizer.encode(o, add_special_tokens=False) for o in options]
        tree = answer_tree(paths)
        state = self._prefill(prompts, len(tree.tokens))
        table = score_tree(self.lm, state, tree).tolist()
        return [
            {"logp": row, "prompt_tokens": len(prompt.content)}
            for prompt, row in zip(prompts, table, strict=True)
        ]

    def _prefill(self, prompts: Sequence[Prompt], room: int) -> Prefilled:
        """Read a batch; what all its prompts start with is computed once and kept for the next."""
        starts = [prompt.content[: prompt.shared] for prompt in prompts]
        start = starts[0][: common_start(starts)]
        prefix = None
        if len(start) >= SHORTEST_PREFIX:
            if self._prefix is None or self._prefix.ids != tuple(start):
                self._prefix = compute_prefix(self.lm, start)
            prefix = self._prefix
        return prefill(self.lm, [prompt.content for prompt in prompts], prefix, room)

    @cached_property
    def _ends(self) -> frozenset[int]:
        """Tokens that end a turn."""
        ends = self.lm.model.generation_config.eos_token_id
        if ends is None:
            ends = self.lm.tokenizer.eos_token_id
        return frozenset([ends] if isinstance(ends, int) else ends or [])

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self.lm.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return text

    def _is_done(self, tokens: list[int]) -> bool:
        if tokens[-1] in self._ends:
            return True
        return "\n" in self._text(tokens[-1:]) and self.answered(self._text(tokens))


def encode_chat(lm: LanguageModel, chat: Chat) -> tuple[list[int], int]:
    """(token ids of a chat, how many of them come before the first document).

    The model's chat template sees marks in place of the documents; then the template's text is
    encoded with its special tokens, and each document as data. A model without a chat template
    gets the messages one after the other.

    Raises:
        ValueError: the chat template drops or repeats a message's text, or the chat has images.
    """
    chat.refuse_images()
    numbers = count()
    contents = {"system": marked(chat.system, numbers), "user": marked(chat.user, numbers)}
    messages = [{"role": role, "content": text} for role, text in contents.items() if text]
    if lm.tokenizer.chat_template is None:
        text = (lm.tokenizer.bos_token or "") + "\n\n".join(m["content"] for m in messages) + "\n\n"
    else:
        text = lm.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    return encode_marked(lm, text, [p.text for p in (*chat.system, *chat.user) if p.data])


def marked(pieces: Sequence[Piece], numbers: Iterator[int]) -> str:
    """The pieces' text, with a numbered mark in place of each document."""
    return "".join(
        f"{_MARK}{next(numbers)}{_END}" if piece.data else piece.text for piece in pieces
    )


def encode_marked(lm: LanguageModel, text: str, documents: Sequence[str]) -> tuple[list[int], int]:
    """(token ids of a text whose marks stand for documents, how many come before the first one).

    Raises:
        ValueError: the marks are not those of all documents in order.
    """
    head, *tails = text.split(_MARK)
    parts = [tail.partition(_END) for tail in tails]
    if [number for number, _, _ in parts] != [str(i) for i in range(len(documents))]:
        raise ValueError(
            f"the chat template of {lm.identity['model']} does not hold every document once, in "
            "order; use a model whose template keeps system and user messages as they are"
        )
    ids: list[int] = []
    shared = None
    for document, (_, _, tail) in zip(documents, parts, strict=True):
        # A blank before a word belongs to the word's token, so it goes with the document.
        blank = " " if head.endswith(" ") else ""
        ids += lm.tokenizer.encode(head.removesuffix(" "), add_special_tokens=False)
        shared = len(ids) if shared is None else shared
        ids += lm.tokens(blank + document)
        head = tail
    ids += lm.tokenizer.encode(head, add_special_tokens=False)
    return ids, len(ids) - 1 if shared is None else shared


def decode_greedily(
    lm: LanguageModel, state: Prefilled, new_tokens: int, is_done: Callable[[list[int]], bool]
) -> list[list[int]]:
    """The likeliest next tokens of each row, until it is done or has `new_tokens`.

    Rows that are done leave the batch once they are half of it: dropping a row copies the
    others' caches, and a row less saves little while the weights are what is read.
    """
    written: list[list[int]] = [[] for _ in state.lengths]
    rows = list(range(len(written)))  # which prompt a row of the batch is
    live = set(rows)
    logits, mask, positions = state.logits, state.mask, state.lengths.clone()
    for step in range(new_tokens):
        best = logits.argmax(-1)
        for row, token in zip(rows, best.tolist(), strict=True):
            if row in live:
                written[row].append(token)
                if is_done(written[row]):
                    live.remove(row)
        if not live or step + 1 == new_tokens:
            break
        if 2 * len(live) <= len(rows):
            kept = torch.tensor([at for at, row in enumerate(rows) if row in live])
            rows = [rows[at] for at in kept.tolist()]
            for layer in state.cache.layers:
                layer.keep_rows(kept)
            kept = kept.to(best.device)
            best, mask, positions = best[kept], mask[kept], positions[kept]
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        logits = forward(lm, best[:, None], state.cache, positions[:, None], mask)[:, -1]
        positions = positions + 1
    return written


@dataclass(frozen=True)
class AnswerTree:
    """Possible answers as a tree of tokens: a start that several share is there once.

    Attributes:
        tokens: of the inner nodes, the ones a token follows. Parents come before children.
        parents: node before each, -1 = the prompt's end.
        steps: per answer its (node or -1, next token) pairs; log p of the answer is their sum.
    """

    tokens: list[int]
    parents: list[int]
    steps: list[list[tuple[int, int]]]


def answer_tree(paths: Sequence[Sequence[int]]) -> AnswerTree:
    """The tree of some answers' token ids."""
    nodes: dict[tuple[int, ...], int] = {(): -1}
    tokens: list[int] = []
    parents: list[int] = []
    for path in paths:
        for end in range(1, len(path)):
            start = tuple(path[:end])
            if start not in nodes:
                nodes[start] = len(tokens)
                tokens.append(start[-1])
                parents.append(nodes[start[:-1]])
    steps = [[(nodes[tuple(path[:at])], path[at]) for at in range(len(path))] for path in paths]
    return AnswerTree(tokens, parents, steps)


def score_tree(lm: LanguageModel, state: Prefilled, tree: AnswerTree) -> Tensor:
    """log p of every answer after every prompt, float32 [B, answers], on the CPU.

    All inner nodes go through the model at once; each sees its prompt and its own ancestors.
    """
    logp = state.logits.float().log_softmax(-1).unsqueeze(1)  # [B, 1, V]: after the prompt
    n = len(tree.tokens)
    if n:
        sees = torch.eye(n, dtype=torch.bool)
        depth = torch.zeros(n, dtype=torch.int64)
        for node, parent in enumerate(tree.parents):
            if parent >= 0:
                sees[node] |= sees[parent]
                depth[node] = depth[parent] + 1
        n_rows = len(state.lengths)
        read = state.mask.bool().cpu()[:, None, :].expand(-1, n, -1)  # [B, n, T]
        allowed = torch.cat([read, sees.expand(n_rows, -1, -1)], 2)
        mask = torch.zeros(allowed.shape, dtype=lm.model.dtype).masked_fill(
            ~allowed, torch.finfo(lm.model.dtype).min
        )
        after = forward(
            lm,
            torch.tensor(tree.tokens).expand(n_rows, -1),
            state.cache,
            state.lengths[:, None] + depth.to(state.lengths.device),
            mask.unsqueeze(1),
        )
        logp = torch.cat([logp, after.float().log_softmax(-1)], 1)  # [B, 1 + n, V]
    sums = [
        torch.stack([logp[:, node + 1, token] for node, token in steps]).sum(0)
        for steps in tree.steps
    ]
    return torch.stack(sums, 1).cpu()
