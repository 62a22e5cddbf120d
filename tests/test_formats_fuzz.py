"""Mutated files: every reader answers with a `FormatError` or with arrays that keep its promises.

Seeds are fixed. faiss's own reader runs in a child process, so that a crash would be seen and
not share this process.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_formats_base import check_index, vectors

from lgp.formats import (
    ForeignIndex,
    FormatError,
    read_diskann,
    read_faiss,
    read_hnswlib,
    read_usearch,
    write_diskann,
    write_faiss,
    write_hnswlib,
    write_usearch,
)

N, DIM, M = 120, 8, 4
MUTATIONS = 2500
FAISS_MUTATIONS = 600
FAISS_GROWTH_KIB = 64 << 10
PEAK = 16 << 20
"""Bytes a reader may allocate for a file of 10 KB; a trusted size field would ask for far more."""
INTERESTING = [
    0, 1, 2, 3, 5, N - 1, N, N + 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
    2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
]  # fmt: skip


def mutate(raw: bytes, heads: list[tuple[int, int]], rng: np.random.Generator) -> bytes:
    """One to three random changes; half of them aim at the header ranges."""
    out = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        kind = int(rng.integers(9))
        low, high = heads[int(rng.integers(len(heads)))] if rng.random() < 0.5 else (0, len(raw))
        low, high = min(low, len(out)), min(high, len(out))
        if high - low < 16:
            continue
        at = int(rng.integers(low, high - 15))
        if kind == 0:
            out[at] = int(rng.integers(256))
        elif kind == 1:
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            del out[int(rng.integers(len(out))) :]
        elif kind == 3:
            out += rng.bytes(int(rng.integers(1, 40)))
        elif kind == 4:  # a 64-bit field, also where two 32-bit ones are
            at -= (at - low) % 4
            struct.pack_into("<Q", out, at, INTERESTING[int(rng.integers(len(INTERESTING)))])
        elif kind == 5:  # a 32-bit field, also half of a 64-bit one
            at -= (at - low) % 4
            value = INTERESTING[int(rng.integers(len(INTERESTING)))] % 2**32
            struct.pack_into("<I", out, at, value)
        elif kind == 6:  # two neighboring fields swapped
            size = int(rng.choice([4, 8]))
            at -= (at - low) % 4
            out[at : at + 2 * size] = out[at + size : at + 2 * size] + out[at : at + size]
        elif kind == 7:  # a run of bytes goes missing
            del out[at : at + int(rng.integers(1, 16))]
        else:
            out[at : at + 8] = rng.bytes(8)
    return bytes(out)


def fuzz(
    base: bytes, heads: list[tuple[int, int]], path: Path, read: Callable[[], ForeignIndex],
    write: Callable[[ForeignIndex, Path], None], mutations: int, exact: bool,
) -> dict[str, int]:  # fmt: skip
    """Mutate, read, check; counts of refusals and reads."""
    rng = np.random.default_rng(7)
    counts = {"refused": 0, "read": 0, "peak": 0}
    out = path.with_name("out")
    for _ in range(mutations):
        mutated = mutate(base, heads, rng)
        path.write_bytes(mutated)
        tracemalloc.reset_peak()
        try:
            index = read()
        except FormatError as error:
            assert str(path) in str(error)
            counts["refused"] += 1
        else:
            counts["read"] += 1
            check_index(index)
            write(index, out)
            assert not exact or out.read_bytes() == mutated
        counts["peak"] = max(counts["peak"], tracemalloc.get_traced_memory()[1])
    return counts


def run(*arguments: object, exact: bool = True, mutations: int = MUTATIONS) -> None:
    tracemalloc.start()
    try:
        counts = fuzz(*arguments, mutations=mutations, exact=exact)  # type: ignore[arg-type]
    finally:
        tracemalloc.stop()
    print(counts)
    # Both ends must be met, or the mutations test nothing.
    assert counts["refused"] > mutations / 5 and counts["read"] > mutations / 50
    assert counts["peak"] < PEAK


def hnswlib_case(path: Path) -> tuple[bytes, list[tuple[int, int]]]:
    """A saved index's bytes and where its headers lie."""
    hnswlib = pytest.importorskip("hnswlib")
    index = hnswlib.Index("l2", DIM)
    index.init_index(N, M=M, random_seed=1)
    index.add_items(vectors(N, DIM), num_threads=1)
    index.mark_deleted(3)
    index.save_index(str(path))
    base = path.read_bytes()
    return base, [(0, 96), (96 + N * (4 + 8 * M + 4 * DIM + 8), len(base))]


def usearch_case(path: Path) -> tuple[bytes, list[tuple[int, int]]]:
    usearch = pytest.importorskip("usearch.index")
    index = usearch.Index(ndim=DIM, metric="l2sq", dtype="f32", connectivity=M)
    index.add(np.arange(N), vectors(N, DIM), threads=1)
    index.remove(3)
    index.save(str(path))
    head = 8 + N * DIM * 4
    return path.read_bytes(), [(0, 24), (head, head + 104), (head + 104, head + 104 + 2 * N)]


@pytest.mark.slow
def test_hnswlib_survives(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    run(*hnswlib_case(path), path, lambda: read_hnswlib(path, "l2", DIM),
        lambda i, out: write_hnswlib(i, i.neighbors, out))  # fmt: skip


@pytest.mark.slow
def test_usearch_survives(tmp_path: Path) -> None:
    path = tmp_path / "a.usearch"
    run(*usearch_case(path), path, lambda: read_usearch(path),
        lambda i, out: write_usearch(i, i.neighbors, out))  # fmt: skip


def diskann_files(prefix: Path) -> None:
    from test_formats_diskann import random_lists, save

    save(prefix, random_lists(N, 8), vectors(N, DIM), start=N - 1, frozen=1)
    tags = np.arange(N, dtype="<u4").tobytes()
    Path(f"{prefix}.tags").write_bytes(struct.pack("<ii", N, 1) + tags)
    Path(f"{prefix}.del").write_bytes(struct.pack("<iiII", 2, 1, 5, 9))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "head"), [("", 24), (".data", 8), ("_metadata.bin", 32), (".tags", 8), (".del", 16)]
)
def test_diskann_survives(tmp_path: Path, suffix: str, head: int) -> None:
    prefix = tmp_path / "ann"
    diskann_files(prefix)
    path = Path(f"{prefix}{suffix}")
    base = path.read_bytes()
    if suffix == "":
        run(base, [(0, head), (0, head + 64)], path, lambda: read_diskann(prefix),
            lambda i, out: write_diskann(i, i.neighbors, out))  # fmt: skip
        return
    rng, refused = np.random.default_rng(7), 0
    for _ in range(MUTATIONS // 5):
        path.write_bytes(mutate(base, [(0, max(head, 16))], rng))
        try:
            check_index(read_diskann(prefix))
        except FormatError:
            refused += 1
    assert refused > MUTATIONS // 50


CHILD = """
import json, sys
from pathlib import Path
import test_formats_fuzz
print(json.dumps(getattr(test_formats_fuzz, sys.argv[1])(Path(sys.argv[2]), sys.argv[3])))
"""


def in_child(function: str, folder: Path, kind: str) -> dict[str, int]:
    """What a function of this module returns in a process of its own, which must not crash."""
    here = str(Path(__file__).parent)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, function, str(folder), kind], env=env, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    print(counts)
    return counts


def search_accepted(folder: Path, kind: str) -> dict[str, int]:
    """Load and search, in the library, whatever mutated file our reader accepts."""
    rng, path, queries = np.random.default_rng(8), folder / "a", vectors(20, DIM, seed=5)
    base, heads = hnswlib_case(path) if kind == "hnswlib" else usearch_case(path)
    counts = {"searched": 0, "library refused": 0}
    for _ in range(MUTATIONS):
        path.write_bytes(mutate(base, heads, rng))
        try:
            index = read_hnswlib(path, "l2", DIM) if kind == "hnswlib" else read_usearch(path)
        except FormatError:
            continue
        if kind == "hnswlib" and struct.unpack_from("<Q", path.read_bytes(), 8)[0] > 10 * N:
            continue  # an honest but large capacity, which the library would allocate
        try:
            found = library_search(path, kind, queries)
        except (RuntimeError, ValueError):  # too few results, an older usearch's version
            counts["library refused"] += 1
        else:
            counts["searched"] += 1
            assert np.isin(found.astype(np.int64), index.labels.numpy()).all()
    return counts


def library_search(path: Path, kind: str, queries: np.ndarray) -> np.ndarray:
    """Labels [Q, 5]."""
    if kind == "hnswlib":
        import hnswlib

        index = hnswlib.Index("l2", DIM)
        index.load_index(str(path))
        index.set_ef(30)
        return np.asarray(index.knn_query(queries, 5, num_threads=1)[0])
    from usearch.index import Index

    return np.asarray(Index.restore(str(path)).search(queries, 5, threads=1).keys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hnswlib", "usearch"])
def test_what_is_accepted_does_not_crash_the_library(tmp_path: Path, kind: str) -> None:
    pytest.importorskip(kind)
    counts = in_child("search_accepted", tmp_path, kind)
    assert counts["searched"] > MUTATIONS / 20
    assert counts["library refused"] < counts["searched"] / 20


def fuzz_faiss(folder: Path, kind: str) -> dict[str, int]:
    """Runs in the child."""
    import faiss

    faiss.omp_set_num_threads(1)
    path, rows = folder / "a.faiss", vectors(N, DIM)
    inner = faiss.IndexHNSWFlat(DIM, M)
    if "sq" in kind:
        inner = faiss.IndexHNSWSQ(DIM, faiss.ScalarQuantizer.QT_8bit, M)
        inner.train(rows)
    index = faiss.IndexIDMap2(inner) if "map" in kind else inner
    if "map" in kind:
        index.add_with_ids(rows, np.arange(N) + 1000)
    else:
        index.add(rows)
    faiss.write_index(index, str(path))
    base = path.read_bytes()
    storage = base.index(b"IxSQ" if "sq" in kind else b"IxF2")
    # Outer headers, probabilities and levels, search settings, storage head, ids.
    heads = [(0, 80), (80, 300), (storage - 40, storage + 100), (len(base) - 8 * N, len(base))]
    read_faiss(path)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = memory_kib("VmRSS")
    counts = fuzz(
        base, heads, path, lambda: read_faiss(path),
        lambda i, out: write_faiss(i, i.neighbors, out), FAISS_MUTATIONS, False,
    )  # fmt: skip
    return counts | {"grown_kib": memory_kib("VmHWM") - before}


def memory_kib(name: str) -> int:
    """A figure of this process, from Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "map sq"])
def test_faiss_survives(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("faiss")
    counts = in_child("fuzz_faiss", tmp_path, kind)
    assert counts["refused"] > FAISS_MUTATIONS / 5 and counts["read"] > FAISS_MUTATIONS / 50
    assert counts["grown_kib"] < FAISS_GROWTH_KIB
