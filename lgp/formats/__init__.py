"""Indices of other libraries: read the base-layer graph, refine it, write it back.

| format | read | write | what it cannot hold |
|---|---|---|---|
| hnswlib | `read_hnswlib(path, space, dim)` | `write_hnswlib` | its own space and dimension |
| usearch | `read_usearch(path)` | `write_usearch` | multi=True, and i8, f64, b1 are refused |
| DiskANN in memory | `read_diskann(prefix, ...)` | `write_diskann` | layers, alpha |
| faiss HNSW | `read_faiss(path or index)` | `write_faiss` | deletions |

Every reader returns a `ForeignIndex` or raises `FormatError`. `lgp.formats.export` turns a flat
graph of ours into something stock libraries serve.
"""

from lgp.formats.base import ForeignIndex, FormatError
from lgp.formats.diskann import read_diskann, write_diskann
from lgp.formats.export import to_cagra, to_faiss_hnsw, to_hnswlib, to_pyterrier_adaptive
from lgp.formats.faiss_hnsw import read_faiss, write_faiss
from lgp.formats.hnswlib import read_hnswlib, write_hnswlib
from lgp.formats.usearch import read_usearch, write_usearch
from lgp.hnsw import UpperLevel

__all__ = [
    "ForeignIndex",
    "FormatError",
    "UpperLevel",
    "read_diskann",
    "read_faiss",
    "read_hnswlib",
    "read_usearch",
    "to_cagra",
    "to_faiss_hnsw",
    "to_hnswlib",
    "to_pyterrier_adaptive",
    "write_diskann",
    "write_faiss",
    "write_hnswlib",
    "write_usearch",
]
