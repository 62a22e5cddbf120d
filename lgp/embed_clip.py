"""Texts and images to vectors of one space: open_clip models.

In: items, each a text, an image, or both. Out: a plan whose rows are the models' features, fused
where an item has both. Normalising, the store and duplicates are left to other modules.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgp.blocks import Plan
from lgp.choices import CorruptImages, Fusion
from lgp.clip_model import ClipEncoder, load_clip
from lgp.images import CorruptImageError, ImageFolder
from lgp.vectors import Vectors

log = logging.getLogger(__name__)

TEXT_COST, IMAGE_COST = 77, 50
"""What a text and an image count in a block: tokens, padding included, and patches of a ViT-B/32
at 224 pixels."""

READERS = 8
"""Threads that open and scale images while the model works."""


@dataclass(frozen=True)
class Item:
    """What is embedded as one vector; "" = no text, no image.

    With neither it is embedded as the empty text.
    """

    text: str
    image: str = ""


def plan_clip(
    items: Sequence[Item], folder: ImageFolder | None, encoder: ClipEncoder, device: str
) -> Plan:
    """Features of items, fused, as a plan: its rows before they are normalised. Loads the model.

    Texts longer than the model's context (77 tokens) are cut, its end mark kept; how many is
    logged, and so is how many corrupt images were skipped.

    Raises:
        ValueError: as `clip_digest`; when the plan runs, a missing image, or a corrupt one unless
            those are skipped.
    """
    model, transform, tokenizer = load_clip(encoder, device)
    n_cut = _count_cut([item.text for item in items], tokenizer)
    if n_cut:
        log.warning("%d of %d texts cut to %d tokens", n_cut, len(items), tokenizer.context_length)
    dtype = getattr(torch, encoder.dtype)
    n_skipped = 0

    def read(ref: str) -> Tensor | None:
        if not ref:
            return None
        if folder is None:
            raise ValueError(f"image {ref!r} has no folder it could be in; name the folder")
        try:
            pixels: Tensor = transform(folder.open(ref))
        except CorruptImageError:
            if encoder.corrupt_images is CorruptImages.error:
                raise
            return None
        return pixels

    @torch.inference_mode()
    def embed(batch: Sequence[int]) -> Vectors:
        nonlocal n_skipped
        shown = [items[place] for place in batch]
        with ThreadPoolExecutor(READERS) as pool:
            images = list(pool.map(read, [item.image for item in shown]))
        skipped = sum(item.image != "" for item in shown) - sum(i is not None for i in images)
        if skipped:
            n_skipped += skipped
            log.warning("%d corrupt images skipped so far", n_skipped)
        with_image = [at for at, image in enumerate(images) if image is not None]
        with_text = [at for at, item in enumerate(shown) if item.text or images[at] is None]
        features: list[tuple[list[int], Tensor]] = []
        if with_text:
            tokens = tokenizer([shown[at].text for at in with_text]).to(device)
            features.append((with_text, model.encode_text(tokens)))
        if with_image:
            pixels = torch.stack([image for image in images if image is not None])
            features.append((with_image, model.encode_image(pixels.to(device, dtype))))
        return fuse(len(batch), [(at, f.float().cpu()) for at, f in features], encoder.fusion)

    places = range(len(items))
    batches = [
        places[at : at + encoder.batch_size] for at in range(0, len(items), encoder.batch_size)
    ]
    costs = [
        IMAGE_COST * bool(item.image) + TEXT_COST * bool(item.text or not item.image)
        for item in items
    ]
    return Plan(batches, embed, costs, "embedding, open_clip", "patch")


def fuse(n: int, features: Sequence[tuple[list[int], Tensor]], fusion: Fusion) -> Vectors:
    """Sum the features of each item, float32 [n, D].

    Args:
        features: per modality the items that have it and their features [items, D].
    """
    total = torch.zeros(n, features[0][1].shape[1])
    for places, values in features:
        if fusion is Fusion.normalise_then_sum:
            values = torch.nn.functional.normalize(values, dim=1)
        total[places] += values
    return np.ascontiguousarray(total.numpy())


def _count_cut(texts: Sequence[str], tokenizer: Any) -> int:
    """How many texts are longer than the context: with one more place they read differently."""
    context = tokenizer.context_length
    # A token has at least one byte, so short texts need not be looked at; two places are marks.
    long = [text for text in texts if len(text.encode()) > context - 2]
    n_cut = 0
    for at in range(0, len(long), 1024):
        chunk = long[at : at + 1024]
        short, longer = tokenizer(chunk), tokenizer(chunk, context_length=context + 1)
        n_cut += int((short != longer[:, :context]).any(1).sum())
    return n_cut
