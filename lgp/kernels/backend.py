"""Choosing the compiled backend, running ranges on threads, distances inside kernels."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lgp.distance import Metric, Points

numba: Any
try:
    import numba
    from llvmlite import ir
    from numba.core import cgutils
    from numba.extending import intrinsic
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


def jit(function: Callable[..., Any], inline: str = "never") -> Callable[..., Any]:
    """Compile for the CPU; "reassoc" lets dot products use SIMD, in one fixed order."""
    if numba is None:
        return function
    usual, numba.config.CACHE_DIR = numba.config.CACHE_DIR, _cache_folder()
    try:
        compiled: Callable[..., Any] = numba.njit(
            nogil=True,
            cache=True,
            fastmath={"reassoc", "contract", "nsz"},
            error_model="numpy",
            inline=inline,
        )(function)
    finally:
        numba.config.CACHE_DIR = usual
    return compiled


@cache
def _cache_folder() -> str:
    """A folder named by the kernels' sources: numba itself overlooks changes in called files."""
    here = Path(__file__).parent
    sources = b"".join(file.read_bytes() for file in sorted(here.glob("*.py")))
    folder = here / "__pycache__" / hashlib.sha256(sources).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return str(numba.config.CACHE_DIR)  # a read-only install: numba's own choice
    return str(folder)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile into every caller: a call that passes arrays costs some 40 ns of counting."""
    return jit(function, "always")


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


def run_ranges(work: Callable[[int, int], None], n: int, smallest: int = 8) -> None:
    """Call work(lo, hi) over range(n), on as many threads as torch uses."""
    threads = torch.get_num_threads()
    if threads == 1 or n <= smallest:
        work(0, n)
        return
    step = max(smallest, -(-n // (4 * threads)))
    list(_pool(threads).map(lambda lo: work(lo, min(n, lo + step)), range(0, n, step)))


prefetch: Any
if numba is None:

    def prefetch(array: Any, row: Any, column: Any) -> None:
        """Nothing to do without a compiler."""

else:

    @intrinsic
    def prefetch(typingctx: Any, array: Any, row: Any, column: Any) -> Any:
        """Ask for the cache line that holds one element of a 2-D array."""

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = signature.args[0]
            view = context.make_array(kind)(context, builder, args[0])
            index = [
                context.cast(builder, args[i], signature.args[i], numba.types.intp) for i in (1, 2)
            ]
            pointer = cgutils.get_item_pointer(context, builder, kind, view, index)
            pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
            i32 = ir.IntType(32)
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32]),
                "llvm.prefetch.p0",
            )
            builder.call(function, [pointer, i32(0), i32(3), i32(1)])
            return context.get_dummy_value()

        return numba.types.void(array, row, column), generate


@inlined
def prefetch_row(array, row):  # type: ignore[no-untyped-def]
    """Ask for the first KiB of a float32 row; the hardware follows a longer one on its own."""
    for column in range(0, min(array.shape[1], 256), 16):
        prefetch(array, row, column)


@jit
def distance_of(a, i, b, j, cosine):  # type: ignore[no-untyped-def]
    """D between row i of a and row j of b (indexed in place: slices cost a reference count)."""
    total = np.float32(0.0)
    if cosine:
        for d in range(a.shape[1]):
            total += a[i, d] * b[j, d]
        total = np.float32(1.0) - total
    else:
        for d in range(a.shape[1]):
            difference = a[i, d] - b[j, d]
            total += difference * difference
    return total if total > 0 else np.float32(0.0)


@jit
def key_of(distance, node):  # type: ignore[no-untyped-def]
    """`lgp.distance.order_key` of one pair."""
    return (np.int64(np.float32(distance).view(np.int32)) << 32) | np.int64(node)


@jit
def key_gap(key):  # type: ignore[no-untyped-def]
    """The distance in a key."""
    return np.int32(key >> 32).view(np.float32)


@inlined
def between(a, b, table, vectors, classes, cosine):  # type: ignore[no-untyped-def]
    """D between two nodes, from the table where there is one."""
    if table.shape[0] > 0:
        return table[a, b]
    if a == b or (classes.shape[0] > 0 and classes[a] == classes[b]):
        return np.float32(0.0)
    return distance_of(vectors, a, vectors, b, cosine)


@inlined
def occludes(  # type: ignore[no-untyped-def]
    mate, other, limit, alpha, table, vectors, classes, cosine
):
    """Whether a kept node prunes another at distance `limit`: the rule of RobustPrune."""
    if classes.shape[0] > 0 and classes[mate] == classes[other]:
        return True
    return alpha * between(mate, other, table, vectors, classes, cosine) < limit


NO_TABLE = np.zeros((0, 0), np.float32)
NO_CLASSES = np.zeros(0, np.int32)


def point_arrays(points: Points) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """(table, vectors, classes, cosine) of the points as the kernels take them."""
    table = NO_TABLE if points.table is None else points.table.numpy()
    classes = NO_CLASSES if points.duplicate_class is None else points.duplicate_class.numpy()
    return table, points.vectors.numpy(), classes, points.metric is Metric.cosine
