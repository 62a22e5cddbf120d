"""Log-probabilities of continuations, with nothing computed twice and nothing padded.

In: prefixes, each with its options, as token ids. Out: log p of every option's tokens. All tokens
of a batch go through the model as one sequence, so the linear layers see no padding; the
attention below keeps prefixes and options apart. Graphs and ranking are unknown here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from lgp.llm import Continuations, LanguageModel

ATTENTION = "lgp_packed"
LOGIT_ROWS = 512
"""Rows of the vocabulary computed at a time: 512 x 150,000 float32 are 300 MB."""


@dataclass(frozen=True)
class Part:
    """Where one prefix and its options lie in the sequence.

    Attributes:
        start, end: the prefix. options: int64 [C, L], places of the options' tokens; short ones
            repeat a place, which is never read back. used: bool [C, L]. mask: additive float
            [L, end - start + L]: all of the prefix, and of the option what came before.
    """

    start: int
    end: int
    options: Tensor
    used: Tensor
    mask: Tensor

    def to(self, device: torch.device) -> Part:
        """The same on a device."""
        moved = (x.to(device) for x in (self.options, self.used, self.mask))
        return Part(self.start, self.end, *moved)


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: None,
    scaling: float, packed_parts: Sequence[Part], dropout: float = 0.0, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention of every part on its own, in the form that transformers calls.

    Args:
        query: [1, H, T, D]. key, value: [1, H_kv, T, D].
    Returns:
        [1, T, H, D], None.
    """
    out = torch.empty_like(query.transpose(1, 2))  # [1, T, H, D]
    grouped = query.shape[1] != key.shape[1]
    for part in packed_parts:
        here = slice(part.start, part.end)
        q, k, v = (x[:, :, here] for x in (query, key, value))
        seen = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scaling, enable_gqa=grouped
        )
        out[:, here] = seen.transpose(1, 2)
        part = part.to(query.device)  # accelerate moves tensors between cards, not what holds them
        count, length = part.options.shape
        if not count * length:
            continue
        q, k, v = (
            x[0][:, part.options.flatten()].unflatten(1, (count, length)).transpose(0, 1)
            for x in (query, key, value)
        )  # [C, H, L, D]
        shared = (x[:, :, here].expand(count, -1, -1, -1) for x in (key, value))
        k, v = (torch.cat(pair, 2) for pair in zip(shared, (k, v), strict=True))
        seen = scaled_dot_product_attention(
            q, k, v, attn_mask=part.mask, scale=scaling, enable_gqa=grouped
        )
        out[0, part.options[part.used]] = seen.transpose(1, 2)[part.used]
    return out, None


AttentionInterface.register(ATTENTION, packed_attention)


@contextmanager
def attending(config: Any) -> Iterator[None]:
    """Let the model of this configuration attend by `packed_attention` for a while."""
    before = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before


def check_attention(config: Any, length: int) -> None:
    """Refuse models whose answers the packed way would get wrong.

    Args:
        length: tokens of the longest sequence that attends.
    Raises:
        ValueError: attention that is not plain and full, recurrent layers, rescaled logits.
    """
    odd = []
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "logit_scale"):
        if getattr(config, name, None) not in (None, 1.0):
            odd.append(name)
    if getattr(config, "logits_scaling", 1.0) != 1.0:
        odd.append("logits_scaling")
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        if length > window:
            odd.append(f"sliding_window {window} below {length} tokens")
        kinds.discard("sliding_attention")
    odd += sorted(kinds - {"full_attention"})
    if "gpt_oss" in str(getattr(config, "model_type", "")):
        odd.append("attention sinks")
    if odd:
        raise ValueError(
            f"a model of type {config.model_type} has {', '.join(odd)}: llm.mode=likelihood and "
            "rerank=likelihood would score it wrongly; use llm.mode=generate or constrained, "
            "rerank=listwise, or another model"
        )


@torch.inference_mode()
def continuation_logprobs(
    lm: LanguageModel, batch: Sequence[Continuations]
) -> list[list[list[float]]]:
    """log p of every token of every continuation, each given its prefix alone.

    A prefix that several items have is computed once.

    Returns:
        per item, per option, the natural log-probability of each of its tokens (float32).
    Raises:
        ValueError: an empty prefix (there is nothing to predict the first token from).
    """
    if any(not item.prefix for item in batch):
        raise ValueError("a prefix has no tokens; put text into prompt.prefix")
    if not batch:
        return []
    sharing: dict[tuple[int, ...], list[int]] = {}
    for number, item in enumerate(batch):
        sharing.setdefault(tuple(item.prefix), []).append(number)
    ids: list[int] = []
    positions: list[int] = []
    sources: list[int] = []  # place of the state that predicts each scored token
    targets: list[int] = []
    parts = []
    for prefix, numbers in sharing.items():
        start, end = len(ids), len(ids) + len(prefix)
        ids += prefix
        positions += range(end - start)
        places = []
        for option in (option for number in numbers for option in batch[number].options):
            at = len(ids)
            ids += option
            positions += range(end - start, end - start + len(option))
            sources += [end - 1, *range(at, at + len(option) - 1)][: len(option)]
            targets += option
            places.append(range(at, at + len(option)))
        parts.append(_part(start, end, places, lm))
    decoder = lm.model.get_decoder()
    check_attention(decoder.config, 1 + max(positions))
    with attending(decoder.config):
        hidden = decoder(
            input_ids=torch.tensor([ids], device=lm.device),
            position_ids=torch.tensor([positions], device=lm.device),
            use_cache=False,
            packed_parts=parts,
        ).last_hidden_state[0]
    flat = iter(_log_softmax_at(lm, hidden, sources, targets))
    scored = {
        number: [[next(flat) for _ in option] for option in batch[number].options]
        for numbers in sharing.values()
        for number in numbers
    }
    return [scored[number] for number in range(len(batch))]


def _part(start: int, end: int, places: Sequence[range], lm: LanguageModel) -> Part:
    longest = max(map(len, places), default=0)
    options = torch.full((len(places), longest), end - 1)
    for row, place in enumerate(places):
        options[row, : len(place)] = torch.arange(place.start, place.stop)
    lengths = torch.tensor([len(place) for place in places])
    used = torch.arange(longest) < lengths.unsqueeze(1) if len(places) else options.bool()
    prefix = torch.ones(longest, end - start, dtype=torch.bool)
    seen = torch.cat([prefix, torch.ones(longest, longest, dtype=torch.bool).tril()], 1)
    mask = torch.zeros(seen.shape, dtype=lm.model.dtype).masked_fill(~seen, -torch.inf)
    return Part(start, end, options.to(lm.device), used.to(lm.device), mask.to(lm.device))


def _log_softmax_at(
    lm: LanguageModel, hidden: Tensor, sources: list[int], targets: list[int]
) -> list[float]:
    """log p of a token after some states, [S]; logits exist for a few states at a time."""
    head = lm.model.get_output_embeddings()
    on = head.weight.device
    wanted = torch.tensor(targets, dtype=torch.int64, device=on).split(LOGIT_ROWS)
    places = torch.tensor(sources, dtype=torch.int64, device=hidden.device).split(LOGIT_ROWS)
    flat: list[float] = []
    for place, token in zip(places, wanted, strict=True):
        logits = head(hidden[place].to(on)).float()
        chosen = logits.gather(1, token.unsqueeze(1)).squeeze(1) - logits.logsumexp(1)
        flat += chosen.tolist()
    return flat
