"""RobustPrune, compiled: the twin of `lgp.prune.robust_prune`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Points
from lgp.kernels.backend import between, jit, key_of, occludes, point_arrays, run_ranges


@jit
def _prune_range(  # type: ignore[no-untyped-def]
    lo, hi, nodes, candidates, protected, alpha, max_degree, points, out
):
    table, vectors, classes, cosine = points
    keys = np.empty(candidates.shape[1], np.int64)
    shield = np.zeros(candidates.shape[1], np.bool_)
    for b in range(lo, hi):
        node = nodes[b]
        held = 0
        for c in range(candidates.shape[1]):
            other = candidates[b, c]
            if other >= 0 and other != node:
                keys[held] = key_of(between(node, other, table, vectors, classes, cosine), other)
                held += 1
        keys[:held].sort()
        if protected.shape[0]:
            for i in range(held):
                shield[i] = False
                for j in range(protected.shape[1]):
                    if protected[b, j] == keys[i] & 0xFFFFFFFF:
                        shield[i] = True
        kept = 0
        for turn in range(2 if protected.shape[0] else 1):
            for i in range(held):
                if kept == max_degree:
                    break
                if i > 0 and keys[i] == keys[i - 1]:
                    continue
                if protected.shape[0] and shield[i] != (turn == 0):
                    continue
                other = keys[i] & 0xFFFFFFFF
                limit = np.int32(keys[i] >> 32).view(np.float32)
                free = True
                if turn == 1 or not protected.shape[0]:
                    for j in range(kept):
                        mate = out[b, j]
                        if occludes(mate, other, limit, alpha, table, vectors, classes, cosine):
                            free = False
                            break
                if free:
                    out[b, kept] = other
                    kept += 1


_NO_IDS = np.zeros((0, 0), np.int32)


def robust_prune(
    points: Points,
    nodes: Tensor,
    candidates: Tensor,
    alpha: float,
    max_degree: int,
    protected: Tensor | None,
) -> Tensor:
    """`lgp.prune.robust_prune`, compiled."""
    out = np.full((len(nodes), max_degree), -1, np.int32)
    shield = _NO_IDS if protected is None else protected.to(torch.int32).numpy()
    arrays = point_arrays(points)
    ids, pool = nodes.numpy(), candidates.to(torch.int32).numpy()
    slack = np.float32(alpha)
    run_ranges(
        lambda lo, hi: _prune_range(lo, hi, ids, pool, shield, slack, max_degree, arrays, out),
        len(nodes),
    )
    return torch.from_numpy(out)
