"""Arrays of vectors: the check every one passes, and the reader of files made elsewhere.

Input is an array or a file, output float32 [N, D]; nothing here computes an embedding.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Vectors = npt.NDArray[np.float32]


def check_vectors(vectors: npt.ArrayLike, what: str, normalise: bool) -> Vectors:
    """Check and convert to a float32 C-contiguous array [N, D]; with `normalise`, to unit rows.

    Equal rows stay bit-equal. The input is not changed, but may be returned as it is.

    Raises:
        ValueError: not two-dimensional, empty, not numeric, rows with NaN or infinity, or, with
            `normalise`, zero rows. Rows are counted from 0; the first five are named.
    """
    array = np.asarray(vectors)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{what}: shape {array.shape} is not [N, D] with N and D above 0")
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{what}: dtype {array.dtype} is not a real number type; use float32")
    with np.errstate(over="ignore"):  # too large for float32 becomes infinity, reported below
        result: Vectors = np.ascontiguousarray(array, dtype=np.float32)
    finite = np.isfinite(result).all(axis=1)
    refuse_rows(
        np.logical_not(finite), f"rows of {what}", "hold NaN or infinity; embed these texts again"
    )
    if not normalise:
        return result
    largest = np.abs(result).max(axis=1, keepdims=True)  # [N, 1]
    way_out = "are zero and have no direction; drop these documents or use index.metric=l2"
    refuse_rows(largest[:, 0] == 0, f"rows of {what}", way_out)
    # Scaled first: squares of very large or small values would overflow or vanish.
    result = result / largest
    result /= np.sqrt(np.square(result).sum(axis=1, keepdims=True))
    return result


def refuse_rows(bad: Sequence[bool] | npt.NDArray[np.bool_], what: str, problem: str) -> None:
    """Raise a ValueError that counts and names (from 0) the rows where `bad` holds, if any do."""
    rows = np.flatnonzero(bad)
    if rows.size:
        shown = ", ".join(map(str, rows[:5])) + (", ..." if rows.size > 5 else "")
        raise ValueError(f"{rows.size} {what} (numbers {shown}) {problem}")


def embed_precomputed(path: Path, n: int | None = None) -> Vectors:
    """Read vectors made elsewhere: float32 [n, D], checked but not normalised.

    Args:
        path: .npy of two dimensions, or .safetensors with one tensor or one named "vectors".
        n: number of rows expected, one for each text; None = any.
    Raises:
        ValueError: another suffix, a damaged file, no single tensor, or another number of rows.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path} is not a file; give a .npy or .safetensors file of vectors")
    try:
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
        elif path.suffix == ".safetensors":
            array = _read_safetensors(path)
        else:
            raise ValueError(f"suffix {path.suffix!r} is unknown; known: .npy, .safetensors")
    # safetensors raises its own exception, which is no ValueError.
    except Exception as error:
        raise ValueError(f"{path} cannot be read as vectors: {error}") from error
    vectors = check_vectors(array, str(path), normalise=False)
    if n is not None and len(vectors) != n:
        raise ValueError(
            f"{path} has {len(vectors)} rows but there are {n} texts; it needs one row for each "
            "document, in corpus order (empty documents too, unless empty=drop)"
        )
    return vectors


def _read_safetensors(path: Path) -> npt.NDArray[Any]:
    from safetensors.torch import load_file  # NumPy has no bfloat16

    tensors = load_file(path)
    if "vectors" not in tensors and len(tensors) != 1:
        raise ValueError(f"it holds {sorted(tensors)}; name one tensor 'vectors'")
    tensor = tensors["vectors"] if "vectors" in tensors else next(iter(tensors.values()))
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
