"""Choosing the compiled backend, running ranges on threads, distances inside kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Metric, Points

numba: Any
try:
    import numba
except ImportError:  # an optional dependency: the torch functions serve every device
    numba = None

_chosen: ContextVar[str] = ContextVar("backend")
EMPTY = 0x7FFFFFFFFFFFFFFF
"""`lgp.distance.KEY_MAX` as a constant that kernels can hold."""


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Choose "torch" or "auto" (numba on the CPU where it is installed) for a while."""
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def usable(tensor: Tensor) -> bool:
    """Whether the compiled kernels serve this tensor."""
    backend = _chosen.get(os.environ.get("LGP_BACKEND", "auto"))
    return numba is not None and tensor.device.type == "cpu" and backend != "torch"


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for the CPU; "reassoc" lets dot products use SIMD, in one fixed order."""
    if numba is None:
        return function
    compiled: Callable[..., Any] = numba.njit(
        nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"}
    )(function)
    return compiled


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def run_ranges(work: Callable[[int, int], None], n: int, smallest: int = 8) -> None:
    """Call work(lo, hi) over range(n), on as many threads as torch uses."""
    threads = torch.get_num_threads()
    step = max(smallest, -(-n // (4 * threads)))
    ranges = [(lo, min(n, lo + step)) for lo in range(0, n, step)]
    if threads == 1 or len(ranges) == 1:
        for lo, hi in ranges:
            work(lo, hi)
    else:
        list(_pool(threads).map(lambda r: work(*r), ranges))


@jit
def distance_of(a, b, cosine):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    if cosine:
        for i in range(a.shape[0]):
            total += a[i] * b[i]
        total = np.float32(1.0) - total
    else:
        for i in range(a.shape[0]):
            difference = a[i] - b[i]
            total += difference * difference
    return total if total > 0 else np.float32(0.0)


@jit
def key_of(distance, node):  # type: ignore[no-untyped-def]
    return (np.int64(np.float32(distance).view(np.int32)) << 32) | np.int64(node)


@jit
def between(a, b, table, vectors, classes, cosine):  # type: ignore[no-untyped-def]
    """D between two nodes, from the table where there is one."""
    if table.shape[0] > 0:
        return table[a, b]
    if a == b or (classes.shape[0] > 0 and classes[a] == classes[b]):
        return np.float32(0.0)
    return distance_of(vectors[a], vectors[b], cosine)


NO_TABLE = np.zeros((0, 0), np.float32)
NO_CLASSES = np.zeros(0, np.int32)


def point_arrays(points: Points) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """(table, vectors, classes, cosine) of the points as the kernels take them."""
    table = NO_TABLE if points.table is None else points.table.numpy()
    classes = NO_CLASSES if points.duplicate_class is None else points.duplicate_class.numpy()
    return table, points.vectors.numpy(), classes, points.metric is Metric.cosine
