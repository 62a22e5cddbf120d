"""What turns a refined index file back into the file it came from, byte by byte.

In: two files. Out: a `Patch` of tensors that the edit log carries. Row edits alone would not do:
libraries leave old ids behind a row's count, and an appended edge overwrites one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lgp.formats.base import Bytes, FormatError, Ints, replacing
from lgp.store import file_digest

BLOCK = 1 << 24
"""Bytes compared at a time."""


@dataclass(frozen=True)
class Patch:
    """Runs of the refined file and what stood there.

    Attributes:
        at, length: int64 [P], rising byte offsets in the refined file and bytes taken out there.
        size: int64 [P], bytes of the original put in their place.
        data: uint8, these bytes, one run after the other.
    """

    at: Tensor
    length: Tensor
    size: Tensor
    data: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """By the names they have in a file."""
        return {f"patch_{f.name}": getattr(self, f.name) for f in fields(Patch)}

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor]) -> Patch:
        """Read back (KeyError: no patch among them)."""
        return Patch(*(tensors[f"patch_{f.name}"] for f in fields(Patch)))


def make_patch(original: Path, refined: Path, cuts: tuple[Ints, Ints] | None = None) -> Patch:
    """Compare two files.

    Args:
        cuts: byte offsets of corresponding parts of (original, refined), rising from 0, as many
            in both; None = byte i corresponds to byte i, or the whole to the whole where the
            lengths differ.
    """
    old, new = _map(original), _map(refined)
    if cuts is None and len(old) == len(new):
        return _equal_length(old, new)
    starts = cuts or (np.zeros(1, np.int64), np.zeros(1, np.int64))
    before, after = (
        np.append(start, end) for start, end in zip(starts, (len(old), len(new)), strict=True)
    )
    runs = [
        (a, b - a, old[c:d])
        for a, b, c, d in zip(
            after[:-1].tolist(), after[1:].tolist(), before[:-1].tolist(), before[1:].tolist(),
            strict=True,
        )
        if new[a:b].tobytes() != old[c:d].tobytes()
    ]  # fmt: skip
    return _patch(
        [at for at, _, _ in runs], [length for _, length, _ in runs], [data for *_, data in runs]
    )


def _map(path: Path) -> Bytes:
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)


def _equal_length(old: Bytes, new: Bytes) -> Patch:
    parts = []
    for start in range(0, len(old), BLOCK):
        end = start + BLOCK
        parts.append(start + np.flatnonzero(old[start:end] != new[start:end]))
    differs = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    first = np.flatnonzero(np.diff(differs, prepend=-2) > 1)
    length = np.diff(np.append(first, len(differs)))
    at = differs[first]
    return Patch(
        torch.from_numpy(at), torch.from_numpy(length), torch.from_numpy(length.copy()),
        torch.from_numpy(old[differs].copy()),
    )  # fmt: skip


def _patch(at: list[int], length: list[int], data: list[Bytes]) -> Patch:
    joined = np.concatenate(data) if data else np.zeros(0, np.uint8)
    size = [len(part) for part in data]
    return Patch(
        torch.tensor(at, dtype=torch.int64), torch.tensor(length, dtype=torch.int64),
        torch.tensor(size, dtype=torch.int64), torch.from_numpy(joined.copy()),
    )  # fmt: skip


def apply_patch(refined: Path, patch: Patch, out: Path, sha256: str) -> None:
    """Write the original file.

    Args:
        sha256: of the original; `out` appears only if it is met.
    Raises:
        FormatError: the patch does not fit this file.
    """
    new = _map(refined)
    ends, data = patch.size.cumsum(0).tolist(), patch.data.numpy()
    with replacing(out) as aside:
        with open(aside, "wb") as file:
            done = 0
            for at, length, size, end in zip(
                patch.at.tolist(), patch.length.tolist(), patch.size.tolist(), ends, strict=True
            ):
                if not (done <= at and length >= 0 and at + length <= len(new)):
                    raise FormatError(f"{refined}: the log's patch does not fit this file")
                file.write(new[done:at].data)
                file.write(data[end - size : end].data)
                done = at + length
            file.write(new[done:].data)
        found = file_digest(aside)
        if found != sha256:
            raise FormatError(
                f"{refined}: taking the edits back gives sha256 {found[:12]}..., the log promises "
                f"{sha256[:12]}...; the log is damaged"
            )
