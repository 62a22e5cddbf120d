"""Vectors of texts through the stage store: embedded once, reused by every job.

In: texts and an encoder. Out: float32 unit rows. How an encoder works is in `lgp.embed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lgp.config import to_plain
from lgp.embed import HfEncoder, Kind, embed_hf, embed_wordllama, source_digest
from lgp.store import Store, digest_of

STAGE_VERSION = 1
"""Raise it when an encoder's code changes its vectors."""


def stored_vectors(
    store: Store, texts: Sequence[str], kind: Kind, encoder: HfEncoder | None, device: str
) -> Tensor:
    """Unit vectors of texts, float32 [len(texts), D]; each distinct text is embedded once.

    Args:
        encoder: None = the static wordllama vectors.
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

    def compute(folder: Path) -> None:
        if encoder is None:
            vectors = embed_wordllama(distinct)
        else:
            vectors = embed_hf(distinct, kind, encoder, device)
        save_file({"vectors": torch.from_numpy(vectors)}, folder / "vectors.safetensors")

    stage = store.get("vectors", STAGE_VERSION, inputs, compute)
    vectors = load_file(stage / "vectors.safetensors")["vectors"]
    row = {text: at for at, text in enumerate(distinct)}
    return vectors[[row[text] for text in texts]]
