"""The size fields of a faiss HNSW file, checked before faiss allocates by them.

In: a path. Out: nothing, or a `FormatError`. Only lengths, types and the fields that decide how
much is read or decoded are looked at; the content is checked by `lgp.formats.faiss_hnsw`.

Layout (faiss 1.15 `impl/index_write.cpp`; little endian; a vector is u64 length, values):

    "IxMp" or "IxM2", header, the index inside, i64 vector of ids
    "IHNf" or "IHNs", header, HNSW, its storage
    HNSW: f64 vector assign_probas, i32 vectors cum_nneighbor_per_level and levels, u64 vector
        offsets, i32 vector neighbors, 5 x i32
    storage "IxF2", "IxFI" or "IxFl": header, vector of 4-byte values
    storage "IxSQ": header, i32 qtype, i32 rangestat, f32 rangestat_arg, u64 d, u64 code size,
        f32 vector trained, u8 vector codes
    header: i32 d, i64 ntotal, 2 x i64, u8 trained, i32 metric (and f32 argument above 1)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lgp.formats.base import FormatError, check_count, fail, require

INDEX = struct.Struct("<iqqqBi")
QUANTIZER = struct.Struct("<iifQQ")
NAMES = {
    "IHNp": "IndexHNSWPQ", "IHN2": "IndexHNSW2Level", "IHc2": "IndexHNSWCagra",
    "IHNc": "IndexHNSWCagra", "IxPT": "IndexPreTransform", "IxRF": "IndexRefine",
    "IwFl": "IndexIVFFlat", "IxF2": "IndexFlatL2", "IxFI": "IndexFlatIP", "IwPQ": "IndexIVFPQ",
    "INSf": "IndexNSGFlat", "IxPq": "IndexPQ", "IxSQ": "IndexScalarQuantizer",
}  # fmt: skip
# qtype -> (name, bits a dimension, trained values, of which per dimension)
QUANTIZERS = {
    0: ("8bit", 8, 0, 2), 1: ("4bit", 4, 0, 2), 2: ("8bit_uniform", 8, 2, 0),
    3: ("4bit_uniform", 4, 2, 0), 4: ("fp16", 16, 0, 0), 5: ("8bit_direct", 8, 0, 0),
    6: ("6bit", 6, 0, 2), 7: ("bf16", 16, 0, 0), 8: ("8bit_direct_signed", 8, 0, 0),
}  # fmt: skip


@dataclass
class _Walker:
    """A file read front to back, never past its end."""

    path: Path
    file: BinaryIO
    size: int

    def take(self, layout: struct.Struct, what: str) -> tuple[int, ...]:
        data = self.file.read(layout.size)
        if len(data) < layout.size:
            fail(self.path, "file length", self.size, f"it ends inside {what}")
        return layout.unpack(data)

    def skip(self, what: str, item: int) -> int:
        """Pass over a vector; its length."""
        (length,) = self.take(struct.Struct("<Q"), f"the length of {what}")
        left = self.size - self.file.tell()
        require(length * item <= left, self.path, f"length of {what}", length,
                f"{left} bytes are left, one entry takes {item}")  # fmt: skip
        self.file.seek(length * item, 1)
        return int(length)

    def code(self, what: str) -> str:
        (value,) = self.take(struct.Struct("<I"), what)
        return value.to_bytes(4, "little").decode("latin-1")

    def header(self, what: str) -> tuple[int, int, int]:
        """(d, ntotal, metric)."""
        d, n, _, _, trained, metric = self.take(INDEX, what)
        require(d > 0, self.path, f"d of {what}", d, "1 or more")
        check_count(self.path, f"ntotal of {what}", n)
        require(trained == 1, self.path, f"is_trained of {what}", trained, "1: it holds vectors")
        require(metric in (0, 1), self.path, f"metric of {what}", metric,
                "L2 (1) and inner product (0) are read")  # fmt: skip
        return d, n, metric


def check_layout(path: Path) -> None:
    """Refuse a file whose sizes do not add up, or whose index type is not read here.

    Raises:
        FormatError: naming the field, its value and its bound.
    """
    if not path.is_file():
        raise FormatError(f"{path} is not a file; give the path of an index written by faiss")
    size = path.stat().st_size
    with open(path, "rb") as file:
        walker = _Walker(path, file, size)
        code = walker.code("the index type")
        outer = None
        if code in ("IxMp", "IxM2"):
            outer = walker.header("the id map")
            code = walker.code("the index type inside the id map")
        if code not in ("IHNf", "IHNs"):
            fail(path, "index type", f"{code!r} ({NAMES.get(code, 'unknown')})",
                 "IndexHNSWFlat and IndexHNSWSQ are read, alone or in IndexIDMap or IndexIDMap2"
                 )  # fmt: skip
        head = walker.header("the HNSW")
        require(outer in (None, head), path, "d, ntotal, metric of the id map", outer,
                f"the HNSW has {head}")  # fmt: skip
        _check_hnsw(walker, head[1])
        _check_storage(walker, head, flat=code == "IHNf")
        if outer is not None:
            n_ids = walker.skip("the id map", 8)
            require(n_ids == head[1], path, "length of the id map", n_ids, f"ntotal is {head[1]}")
        require(file.tell() == size, path, "file length", size, f"the index ends at {file.tell()}")


def _check_hnsw(walker: _Walker, n: int) -> None:
    walker.skip("assign_probas", 8)
    walker.skip("cum_nneighbor_per_level", 4)
    for what, item, need in (("levels", 4, n), ("offsets", 8, n + 1)):
        length = walker.skip(what, item)
        require(length == need, walker.path, f"length of {what}", length, f"{need} for {n} vectors")
    walker.skip("neighbors", 4)
    walker.take(struct.Struct("<5i"), "the HNSW's search settings")


def _check_storage(walker: _Walker, head: tuple[int, int, int], flat: bool) -> None:
    path, (d, n, _) = walker.path, head
    code = walker.code("the storage type")
    known = ("IxF2", "IxFI", "IxFl") if flat else ("IxSQ",)
    require(code in known, path, "storage type", repr(code), f"one of {', '.join(known)}")
    stored = walker.header("the storage")
    require(stored == head, path, "d, ntotal, metric of the storage", stored, f"the HNSW: {head}")
    if flat:
        values = walker.skip("the vectors", 4)
        require(values == n * d, path, "length of the vectors", values, f"{n} x {d} are needed")
        return
    qtype, _, _, inner_d, code_size = walker.take(QUANTIZER, "the quantizer")
    if qtype not in QUANTIZERS:
        known_types = ", ".join(name for name, *_ in QUANTIZERS.values())
        fail(path, "quantizer type", qtype, f"{known_types} are read")
    name, bits, fixed, per_dimension = QUANTIZERS[qtype]
    need = (bits * d + 7) // 8
    require(inner_d == d, path, "d of the quantizer", inner_d, f"the index has {d}")
    require(code_size == need, path, "code size", code_size, f"{name} of {d} values takes {need}")
    trained, expected = walker.skip("the quantizer's training", 4), fixed + per_dimension * d
    require(trained == expected, path, "length of the quantizer's training", trained,
            f"{name} has {expected}")  # fmt: skip
    codes = walker.skip("the codes", 1)
    require(codes == n * code_size, path, "length of the codes", codes, f"{n} x {code_size}")
