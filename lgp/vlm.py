"""The engine of chats with images: a vision-language model in this process, greedily.

In: chats whose pieces may be images. Out: what the model writes. Selection and ranking are unknown
here. Text is encoded as in `lgp.generate`; where a document has an image, the model's own image
tokens stand, which no document's text can spell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import Tensor

from lgp.ask import Prompt
from lgp.choices import CorruptImages
from lgp.generate import LocalEngine, encode_marked, marked
from lgp.images import CorruptImageError, ImageFolder
from lgp.llm import LanguageModel, load_weights, model_source
from lgp.prompts import Chat, Piece
from lgp.store import digest_of

log = logging.getLogger(__name__)

READERS = 8
"""Threads that open images."""


@dataclass(frozen=True)
class VisionModel:
    """A vision-language model of the Qwen-VL families with its processor.

    Attributes:
        lm: model, tokenizer and identity; image sizes and the processor's settings are part of
            the identity.
    """

    lm: LanguageModel
    processor: Any

    @property
    def image_token(self) -> int:
        """The token that stands for a piece of an image."""
        return int(self.processor.image_token_id)

    def n_tokens(self, width: int, height: int) -> int:
        """How many tokens an image of so many pixels takes in a prompt."""
        images = self.processor.image_processor
        patches: int = images.get_number_of_image_patches(height, width, {})
        return patches // int(images.merge_size) ** 2


def load_vision_model(
    name: str,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    device_map: str | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> VisionModel:
    """Load a vision-language model by hub name or folder.

    Args:
        device_map: as for `lgp.llm.load_language_model`.
        min_pixels, max_pixels: images are scaled to so many; None = the processor's own bounds.
    Raises:
        ValueError: no model that takes images in the Qwen-VL families' way.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig

    processor: Any = AutoProcessor.from_pretrained(name, revision=revision)
    images: Any = getattr(processor, "image_processor", None)
    if not hasattr(images, "get_number_of_image_patches") or not hasattr(images, "merge_size"):
        raise ValueError(
            f"llm.model={name} has a {type(processor).__name__}, whose images cannot be counted in "
            "tokens; use a model of the Qwen2-VL, Qwen2.5-VL or Qwen3-VL families"
        )
    size = dict(images.size)
    size |= {} if min_pixels is None else {"shortest_edge": min_pixels}
    size |= {} if max_pixels is None else {"longest_edge": max_pixels}
    images.size = type(images.size)(**size)
    model = load_weights(
        AutoModelForImageTextToText, name, dtype, device, device_map, revision=revision
    )
    # Sampling defaults of the model would only be warned of; answers are greedy.
    ends = model.generation_config.eos_token_id
    ends = processor.tokenizer.eos_token_id if ends is None else ends
    pad = processor.tokenizer.pad_token_id
    if pad is None:
        pad = ends[0] if isinstance(ends, list) else ends
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=ends, pad_token_id=pad)
    settings = {
        key: value for key, value in images.to_dict().items() if isinstance(value, _PLAIN)
    } | {"size": size}
    identity = {
        "model": name,
        "revision": model_source(name, revision, model),
        "dtype": dtype,
        "template": digest_of(_template(processor) or ""),
        "images": digest_of(settings),
        "pixels": [size["shortest_edge"], size["longest_edge"]],
    }
    device_of = model.get_input_embeddings().weight.device
    return VisionModel(LanguageModel(model, processor.tokenizer, identity, device_of), processor)


_PLAIN = (str, int, float, bool, list, type(None))


def _template(processor: Any) -> str | None:
    found: str | None = processor.chat_template or processor.tokenizer.chat_template
    return found


@dataclass
class VlmEngine(LocalEngine):
    """Chats with images answered by a model in this process, greedily.

    An image is opened when a prompt that shows it is answered, and once before for its size. A
    prompt's key holds the images' digests, not their names. `model.generate` decodes: positions
    of image tokens depend on the images before them, so caches are not ours to reuse.

    Attributes:
        folder: what opens the references; None = no image may be shown.
        corrupt_images: `skip` shows a document without its image where that cannot be read.
    """

    vision: VisionModel = field(kw_only=True)
    folder: ImageFolder | None = field(kw_only=True, default=None)
    corrupt_images: CorruptImages = field(kw_only=True, default=CorruptImages.error)
    _seen: dict[str, tuple[str, int] | None] = field(default_factory=dict)
    _refs: dict[str, str] = field(default_factory=dict)

    @cached_property
    def identity(self) -> dict[str, Any]:
        return self.lm.identity | {"engine": "vlm"}

    def encode(self, chat: Chat) -> Prompt:
        """Token ids of a chat, one image token an image, and the images' digests.

        The size counts every image's own number of tokens.

        Raises:
            ValueError: it is longer than the model's context, an image cannot be opened, or the
                chat template does not show every document and image once.
        """
        numbers = count()
        images: list[tuple[str, int]] = []
        messages = [
            {"role": role, "content": content}
            for role, pieces in (("system", chat.system), ("user", chat.user))
            if (content := self._content(pieces, numbers, images))
        ]
        text = self.vision.processor.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        documents = [p.text for p in (*chat.system, *chat.user) if p.data and not p.image]
        ids, _ = encode_marked(self.lm, text, documents)
        if ids.count(self.vision.image_token) != len(images):
            raise ValueError(
                f"the chat template of {self.lm.identity['model']} shows "
                f"{ids.count(self.vision.image_token)} of {len(images)} images; use a model whose "
                "template keeps them, and no image token in the prompt's templates"
            )
        n_tokens = len(ids) + sum(n - 1 for _, n in images)
        self._check_length(n_tokens)
        complete = {"ids": ids, "images": [digest for digest, _ in images]}
        return Prompt(complete, n_tokens + self.new_tokens)

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """What the model writes after each prompt, up to its end of turn or a complete answer."""
        inputs = self.inputs(prompts)
        width = inputs["input_ids"].shape[1]
        stop = _Stop(self._is_done, width, len(prompts))
        found = self.lm.model.generate(
            **inputs, max_new_tokens=self.new_tokens, stopping_criteria=[stop]
        )
        written: list[list[int]] = [
            row[: length or None]
            for row, length in zip(found[:, width:].tolist(), stop.lengths, strict=True)
        ]
        reads = inputs["attention_mask"].sum(1).tolist()
        return [
            {
                "text": self._text([t for t in tokens if t not in self._ends]),
                "prompt_tokens": n_read,
                "output_tokens": len(tokens),
            }
            for n_read, tokens in zip(reads, written, strict=True)
        ]

    def choose(self, prompts: Sequence[Prompt], options: Sequence[str]) -> list[dict[str, Any]]:
        raise ValueError("llm.engine=vlm only writes; set llm.mode=generate")

    def inputs(self, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """A batch as the model takes it, padded on the left; images in order of the prompts."""
        token, device = self.vision.image_token, self.lm.device
        rows: list[list[int]] = []
        shown: list[str] = []
        for prompt in prompts:
            digests = iter(prompt.content["images"])
            row: list[int] = []
            for read in prompt.content["ids"]:
                if read != token:
                    row.append(read)
                    continue
                ref = self._refs[next(digests)]
                _, n_tokens = self._look(ref) or ("", 0)
                row += [token] * n_tokens
                shown.append(ref)
            rows.append(row)
        width = max(map(len, rows))
        pad = self.lm.model.generation_config.pad_token_id
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        batch = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
        if shown:
            assert self.folder is not None
            with ThreadPoolExecutor(READERS) as pool:
                opened = list(pool.map(self.folder.open, shown))
            # Scaled where the model is: hundreds of images a batch would keep a CPU busy for as
            # long as the model itself.
            pixels = self.vision.processor.image_processor(
                images=opened, return_tensors="pt", device=str(device)
            )
            batch["pixel_values"] = pixels["pixel_values"].to(device, self.lm.model.dtype)
            batch["image_grid_thw"] = pixels["image_grid_thw"].to(device)
            batch["mm_token_type_ids"] = ((ids == token) & (mask == 1)).long().to(device)
        return batch

    def _content(
        self, pieces: Sequence[Piece], numbers: Iterator[int], images: list[tuple[str, int]]
    ) -> list[dict[str, str]]:
        """A message as texts, marks in place of documents, and images; those join `images`."""
        content: list[dict[str, str]] = []
        start = 0
        for at, piece in enumerate((*pieces, Piece(""))):
            found = self._look(piece.image) if piece.image else None
            if found is None and at < len(pieces):
                continue
            text = marked([p for p in pieces[start:at] if not p.image], numbers)
            if text:
                content.append({"type": "text", "text": text})
            if found is not None:
                content.append({"type": "image"})
                images.append(found)
            start = at + 1
        return content

    def _look(self, ref: str) -> tuple[str, int] | None:
        """(digest, tokens) of an image; None for one that is skipped."""
        if ref not in self._seen:
            if self.folder is None:
                raise ValueError(f"image {ref!r} has no folder it could be in; name the folder")
            try:
                width, height = self.folder.open(ref).size
                n_tokens = self.vision.n_tokens(width, height)
            except CorruptImageError:
                if self.corrupt_images is CorruptImages.error:
                    raise
                self._seen[ref] = None
                log.warning("image %r is corrupt and not shown", ref)
            except ValueError as error:
                raise ValueError(f"image {ref!r} cannot be shown: {error}") from error
            else:
                digest = self.folder.digest(ref)
                self._seen[ref] = digest, n_tokens
                self._refs.setdefault(digest, ref)
        return self._seen[ref]


class _Stop:
    """Ends a row whose answer is complete, and remembers how long it is."""

    def __init__(self, is_done: Callable[[list[int]], bool], start: int, n: int) -> None:
        self.is_done, self.start, self.lengths = is_done, start, [0] * n

    def __call__(self, ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        for row, tokens in enumerate(ids[:, self.start :].tolist()):
            if not self.lengths[row] and self.is_done(tokens):
                self.lengths[row] = len(tokens)
        return torch.tensor([length > 0 for length in self.lengths], device=ids.device)
