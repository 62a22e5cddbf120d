"""Vectors to measure on: a BEIR folder under static embeddings, or seeded clusters.

In: a folder or sizes. Out: float32 vectors and queries. Only `load_collection` needs more than
torch, so `clustered` also serves on a bare GPU machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

LATENT = 24
"""Dimensions in which the clusters live. Noise in all of hundreds of dimensions would put the
points equally far apart; with 24, recall rises with ef much as on SciFact (10,000 x 256, hnswlib,
ef 10, 50, 200: 0.81, 0.97, 1.00; SciFact 0.72, 0.94, 0.99)."""


@dataclass(frozen=True)
class Collection:
    """What is indexed and asked.

    Attributes:
        vectors: unit float32 [N, D], no two rows bit-equal, in corpus order.
        queries: unit float32 [Q, D], repeated in order until there are at least 1,000.
        n_dropped: repeated rows left out. n_distinct: queries before the repetition.
    """

    name: str
    vectors: Tensor
    queries: Tensor
    n_dropped: int
    n_distinct: int


def clustered(
    n: int,
    dim: int,
    n_queries: int,
    clusters: int = 100,
    unit: bool = True,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Overlapping clusters on a 24-dimensional sheet with a little noise off it.

    Made on the CPU in one order, so every machine and device gets the same bits (up to the
    rounding of its matrix product).

    Args:
        unit: rows of length 1, for cosine.
    Returns:
        (vectors float32 [n, dim], queries float32 [n_queries, dim] from the same clusters).
    """
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(clusters, LATENT, generator=generator)
    spread = torch.randn(LATENT, dim, generator=generator) / LATENT**0.5
    out = torch.empty(n + n_queries, dim)
    for block in out.split(65536):  # a view: filled in place
        chosen = torch.randint(clusters, (len(block),), generator=generator)
        latent = torch.randn(len(block), LATENT, generator=generator)
        noise = torch.randn(len(block), dim, generator=generator).mul_(0.05)
        block.copy_(noise.addmm_(latent + centers[chosen], spread))
        if unit:
            block /= block.norm(dim=1, keepdim=True)
    return out[:n], out[n:]


def load_collection(path: Path) -> Collection:
    """Embed every document and every query of a BEIR folder with the packaged static vectors.

    All queries of the queries file are asked, judged or not: what is measured is nearest
    neighbors, for which no judgment is needed.
    """
    from lgp.beir import find_file, read_records
    from lgp.dataset import join_text
    from lgp.embed import embed_wordllama

    def texts(stem: str) -> list[str]:
        return [join_text(title, body) for _, title, body in read_records(find_file(path, stem))]

    vectors = torch.from_numpy(embed_wordllama(texts("corpus")))
    queries = torch.from_numpy(embed_wordllama(texts("queries")))
    return make_collection(path.resolve().name, vectors, queries)


def make_collection(name: str, vectors: Tensor, queries: Tensor) -> Collection:
    """Drop repeated rows (they make nearest neighbors ambiguous) and repeat the queries."""
    from lgp.distance import duplicate_classes

    kept = vectors
    classes = duplicate_classes(vectors)
    if classes is not None:
        kept = vectors[classes == torch.arange(len(vectors))].contiguous()
    times = -(-1000 // len(queries))
    return Collection(
        name, kept, queries.repeat(times, 1), len(vectors) - len(kept), len(queries)
    )  # fmt: skip
