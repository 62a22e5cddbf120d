"""Latent queries for somebody's index: vectors of a query log, of titles, of written queries.

In: a file of vectors made by the model that embedded the documents. Out: its rows, checked, as the
index's metric compares them. Nobody judged them; texts are not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Metric, Points, check_dimensions
from lgp.latent import count_twins
from lgp.vectors import check_vectors, embed_precomputed


@dataclass(frozen=True)
class LatentVectors:
    """Latent queries.

    Attributes:
        rows: float32 [Q, D], as logged: what is asked often stands there often.
        distinct: float32 [U, D], each once, in the order of the file; where these are split, a
            held-out query is none that the graph was repaired for.
    """

    rows: Tensor
    distinct: Tensor

    def some(self, n: int | None, seed: int) -> Tensor:
        """n of the distinct queries, float32 [min(n, U), D]; fewer are a part of more."""
        if n is None:
            return self.distinct
        order = torch.randperm(len(self.distinct), generator=torch.Generator().manual_seed(seed))
        return self.distinct[order[:n].to(self.distinct.device)]

    def twins(self, asked: Tensor, similar: float) -> int:
        """How many distinct ones are (nearly) one of the queries that quality is measured with.

        Args:
            asked: float32 [T, D]. similar: cosine from which two are nearly equal.
        """
        unit = torch.nn.functional.normalize
        return count_twins(unit(self.distinct), unit(asked), similar)


def query_rows(path: Path, points: Points) -> Tensor:
    """A file of query vectors as the points' metric compares them, float32 [Q, D].

    Args:
        path: .npy or .safetensors.
    Raises:
        ValueError: vectors that cannot be searched for, or of another dimension than the index.
    """
    unit = points.metric is Metric.cosine
    rows = torch.from_numpy(check_vectors(embed_precomputed(path), str(path), normalise=unit))
    check_dimensions(points, rows)
    return rows.to(points.device)


def read_latent(path: Path, points: Points) -> LatentVectors:
    """Latent queries of a file (ValueError: as `query_rows`)."""
    rows = query_rows(path, points)
    first = np.unique(rows.cpu().numpy(), axis=0, return_index=True)[1]
    return LatentVectors(rows, rows[torch.from_numpy(np.sort(first)).to(rows.device)])
