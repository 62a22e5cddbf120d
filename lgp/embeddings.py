"""Vectors of texts and images through the stage store: embedded once, reused by every job.

In: texts, or pairs of text and image, and an encoder. Out: float32 unit rows. How an encoder works
is in `lgp.embed` and `lgp.embed_clip`, how a killed job goes on in `lgp.blocks`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lgp.beir import DataError
from lgp.blocks import BlockFiles, Plan, embed_plan, plan_blocks
from lgp.choices import EmbedderKind, Storage
from lgp.clip_model import ClipEncoder, clip_digest
from lgp.config import EmbedderConfig, to_plain
from lgp.dataset import Dataset, say_unread_images
from lgp.embed import HfEncoder, Kind, embed_precomputed, plan_hf, plan_wordllama, source_digest
from lgp.embed_clip import Item, plan_clip
from lgp.images import ImageFolder, Pictures
from lgp.store import MANIFEST, Store, digest_of
from lgp.vectors import check_vectors

log = logging.getLogger(__name__)

STAGE_VERSION = 1
"""Raise it when an encoder's code changes its vectors."""


def dataset_vectors(
    store: Store, dataset: Dataset, kind: Kind, c: EmbedderConfig, device: str, unit: bool
) -> Tensor:
    """Vectors of a collection's documents or queries by the configured embedder, float32 [n, D].

    Args:
        unit: make precomputed rows unit rows; the embedders' own always are.
    Raises:
        DataError: the embedder reads text only, and some have an image and no text.
    """
    documents = kind is Kind.DOCUMENT
    texts = dataset.texts if documents else dataset.query_texts
    if c.kind is EmbedderKind.precomputed:
        path = str(c.document_vectors if documents else c.query_vectors)
        given = embed_precomputed(Path(path), len(texts))
        return torch.from_numpy(check_vectors(given, path, normalise=unit))
    dtype = _dtype(c, device)
    if c.kind is EmbedderKind.open_clip:
        images = dataset.images if documents else dataset.query_images
        items = list(map(Item, texts, images or [""] * len(texts)))
        clip = _clip_encoder(c, dtype)
        return stored_items(store, items, dataset.image_folder, clip, device, c.storage)
    say_unread_images(dataset, documents, f"embedder={c.kind.value}")
    encoder = _text_encoder(c, dtype)
    return stored_vectors(store, texts, kind, encoder, device, c.storage)


def query_vectors(store: Store, texts: Sequence[str], c: EmbedderConfig, device: str) -> Tensor:
    """Vectors of further query texts by the configured embedder, unit rows, float32 [n, D].

    Raises:
        DataError: the embedder is a file of vectors, which knows no other texts.
    """
    if c.kind is EmbedderKind.precomputed:
        raise DataError(
            "embedder=precomputed has no vectors of latent queries; choose the embedder by name"
        )
    if c.kind is EmbedderKind.open_clip:
        return stored_items(store, [Item(text, "") for text in texts], None,
                            _clip_encoder(c, _dtype(c, device)), device, c.storage)  # fmt: skip
    encoder = _text_encoder(c, _dtype(c, device))
    return stored_vectors(store, texts, Kind.QUERY, encoder, device, c.storage)


def _dtype(c: EmbedderConfig, device: str) -> str:
    if c.dtype != "auto":
        return c.dtype
    return "bfloat16" if device.startswith("cuda") else "float32"


def _clip_encoder(c: EmbedderConfig, dtype: str) -> ClipEncoder:
    return ClipEncoder(
        str(c.model), c.pretrained, c.checkpoint, c.random_weights, c.fusion,
        c.corrupt_images, c.batch_size, dtype,
    )  # fmt: skip


def _text_encoder(c: EmbedderConfig, dtype: str) -> HfEncoder | None:
    if c.kind is not EmbedderKind.hf:
        return None
    return HfEncoder(
        model=str(c.model), revision=c.revision, pooling=c.pooling,
        query_template=c.query_template, document_template=c.document_template,
        max_tokens=c.max_tokens, batch_tokens=c.batch_tokens, dtype=dtype,
        expected_final_token=c.expected_final_token,
    )  # fmt: skip


def stored_vectors(
    store: Store,
    texts: Sequence[str],
    kind: Kind,
    encoder: HfEncoder | None,
    device: str,
    storage: Storage = Storage.float32,
) -> Tensor:
    """Unit vectors of texts, float32 [len(texts), D]; each distinct text is embedded once.

    Args:
        encoder: None = the static wordllama vectors.
        storage: how rows lie in the store; float16 halves it and moves each component by up to
            2^-11 of itself.
    """
    distinct = list(dict.fromkeys(texts))
    source = "wordllama" if encoder is None else encoder.model
    revision = None if encoder is None else encoder.revision
    inputs = {
        "texts": digest_of(distinct),
        "kind": kind.value,
        "encoder": "wordllama" if encoder is None else to_plain(asdict(encoder)),
        "weights": source_digest(source, revision),
    }

    def plan() -> Plan:
        if encoder is None:
            return plan_wordllama(distinct)
        return plan_hf(distinct, kind, encoder, device)

    vectors = _stored(store, inputs, plan, storage, f"vectors of {source}")
    row = {text: at for at, text in enumerate(distinct)}
    return vectors[[row[text] for text in texts]]


def stored_items(
    store: Store,
    items: Sequence[Item],
    folder: ImageFolder | None,
    encoder: ClipEncoder,
    device: str,
    storage: Storage = Storage.float32,
) -> Tensor:
    """Unit vectors of texts with or without images, float32 [len(items), D].

    Each distinct pair (text, image file's digest) is embedded once, so that copies of an image
    under other names have bit-equal rows.
    """
    refs = [item.image for item in items]
    digests = refs if folder is None else Pictures(folder, refs).digests()
    keys = [(item.text, digest) for item, digest in zip(items, digests, strict=True)]
    first = dict(zip(reversed(keys), reversed(items), strict=True))
    distinct = list(dict.fromkeys(keys))
    inputs = {
        "items": digest_of([list(key) for key in distinct]),
        "encoder": encoder.key(),
        "weights": clip_digest(encoder),
    }
    vectors = _stored(
        store, inputs, lambda: plan_clip([first[key] for key in distinct], folder, encoder, device),
        storage, f"vectors of {encoder.model}",
    )  # fmt: skip
    row = {key: at for at, key in enumerate(distinct)}
    return vectors[[row[key] for key in keys]]


def _stored(
    store: Store,
    inputs: dict[str, Any],
    make_plan: Callable[[], Plan],
    storage: Storage,
    what: str,
) -> Tensor:
    """The stage's rows, float32 unit [n, D].

    More than one block is kept in files beside the stage until it is finished.
    """
    if storage is not Storage.float32:
        inputs = inputs | {"storage": storage.value}
    final = store.path("vectors", STAGE_VERSION, inputs)
    parts = store.root / f".{final.name}.part"
    plan: Plan | None = None
    files: BlockFiles | None = None
    if not _is_finished(final):
        plan = make_plan()
        if len(plan_blocks(plan)) > 1:
            files = BlockFiles(plan, parts, lambda: _is_finished(final))
            files.fill()

    def compute(folder: Path) -> Mapping[str, Any] | None:
        assert plan is not None
        rows = embed_plan(plan) if files is None else files.join()
        rows = check_vectors(rows, what, normalise=True)
        kept = torch.from_numpy(rows).to(getattr(torch, storage.value))
        save_file({"vectors": kept}, folder / "vectors.safetensors")
        return None

    try:
        stage = store.get("vectors", STAGE_VERSION, inputs, compute)
    except FileNotFoundError:
        if not _is_finished(final):  # else another machine joined the blocks and removed them
            raise
        stage = final
    shutil.rmtree(parts, ignore_errors=True)
    vectors = load_file(stage / "vectors.safetensors")["vectors"]
    if storage is Storage.float32:
        return vectors
    return torch.from_numpy(check_vectors(vectors.float().numpy(), what, normalise=True))


def _is_finished(stage: Path) -> bool:
    return (stage / MANIFEST).is_file()
