"""Prompts through the model once: a batch padded on the left, behind a prefix computed before.

In: token ids. Out: a cache of keys and values with room for what follows, and the logits after
each prompt. What is done with them (`lgp.generate`) is unknown here.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from lgp.llm import LanguageModel


class RoomyLayer(DynamicLayer):  # type: ignore[misc, no-untyped-call]
    """One layer's keys and values in a buffer with room: appending copies only what is new.

    transformers' own layer concatenates, which copies the whole cache at every new token.
    """

    def __init__(self, rows: int, room: int, prefix: tuple[Tensor, Tensor] | None = None) -> None:
        """
        Args:
            rows: of the batch. room: tokens the buffer holds, the prefix included.
            prefix: keys and values [1, H, P, D] that every row starts with.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows, self.room, self.length = rows, room, 0
        self.buffers: list[Tensor] = []
        if prefix is not None:
            self.update(*(part.expand(rows, -1, -1, -1) for part in prefix))

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        new = (key_states, value_states)
        if not self.buffers:
            self.device, self.is_initialized = key_states.device, True
            self.buffers = [x.new_empty(self.rows, x.shape[1], self.room, x.shape[3]) for x in new]
        end = self.length + key_states.shape[2]
        for buffer, states in zip(self.buffers, new, strict=True):
            buffer[:, :, self.length : end] = states
        self.length = end
        return self._filled()

    def keep_rows(self, rows: Tensor) -> None:
        """Drop the other rows of the batch."""
        self.buffers = [buffer[rows.to(buffer.device)] for buffer in self.buffers]
        self._filled()

    def _filled(self) -> tuple[Tensor, Tensor]:
        keys, values = (buffer[:, :, : self.length] for buffer in self.buffers)
        self.keys, self.values = keys, values
        return keys, values


@dataclass(frozen=True)
class Prefix:
    """Tokens that several prompts start with, and their keys and values [1, H, P, D] a layer."""

    ids: tuple[int, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]


@dataclass
class Prefilled:
    """A batch whose prompts the model has read.

    Attributes:
        logits: float [B, V], of the token after each prompt.
        cache: keys and values, one `RoomyLayer` a layer.
        mask: int64 [B, T], 1 where the cache holds a token, 0 at padding.
        lengths: int64 [B], tokens of each prompt.
    """

    logits: Tensor
    cache: Any
    mask: Tensor
    lengths: Tensor


def compute_prefix(lm: LanguageModel, ids: Sequence[int]) -> Prefix:
    """Keys and values of a prefix, computed once."""
    cache = _cache(lm, 1, len(ids))
    forward(lm, torch.tensor([list(ids)]), cache, logits_to_keep=1)
    return Prefix(tuple(ids), tuple((layer.keys, layer.values) for layer in cache.layers))


def prefill(
    lm: LanguageModel, prompts: Sequence[Sequence[int]], prefix: Prefix | None, room: int
) -> Prefilled:
    """Read a batch of prompts.

    Args:
        prompts: token ids; each starts with the prefix and has more.
        room: tokens that may follow.
    """
    start = 0 if prefix is None else len(prefix.ids)
    rest = [list(ids[start:]) for ids in prompts]
    longest = max(map(len, rest))
    cache = _cache(lm, len(rest), start + longest + room, prefix)
    ids = torch.zeros(len(rest), longest, dtype=torch.int64)
    mask = torch.ones(len(rest), start + longest, dtype=torch.int64)
    for row, tokens in enumerate(rest):
        ids[row, longest - len(tokens) :] = torch.tensor(tokens)
        mask[row, start : start + longest - len(tokens)] = 0
    positions = (mask.cumsum(1) - 1).clamp_min(0)[:, start:]
    # Without padding and prefix the model's own causal mask does, which has faster kernels.
    plain = bool(mask.all()) and prefix is None
    logits = forward(
        lm, ids, cache, positions=positions, mask=None if plain else mask, logits_to_keep=1
    )
    return Prefilled(logits[:, -1], cache, mask.to(lm.device), mask.sum(1).to(lm.device))


def forward(
    lm: LanguageModel,
    ids: Tensor,
    cache: Any,
    positions: Tensor | None = None,
    mask: Tensor | None = None,
    logits_to_keep: int = 0,
) -> Tensor:
    """Logits [B, S, V] of tokens [B, S] that follow a cache, which grows by them."""
    on = lm.device
    # The argument's name changed in transformers 5.24.
    name = (
        "cache" if "cache" in inspect.signature(lm.model.forward).parameters else "past_key_values"
    )
    logits: Tensor = lm.model(
        input_ids=ids.to(on),
        attention_mask=None if mask is None else mask.to(on),
        position_ids=None if positions is None else positions.to(on),
        use_cache=True,
        logits_to_keep=logits_to_keep,
        **{name: cache},
    ).logits
    return logits.to(on)


def _cache(lm: LanguageModel, rows: int, room: int, prefix: Prefix | None = None) -> Any:
    n_layers = lm.model.config.get_text_config().num_hidden_layers
    starts = prefix.layers if prefix is not None else (None,) * n_layers
    return Cache(layers=[RoomyLayer(rows, room, start) for start in starts])
