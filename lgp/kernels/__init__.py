"""Compiled CPU twins of the walk, the prune and the coverage counts (numba).

Chosen automatically on the CPU. Same inputs, same outputs, same order and tie rules as the torch
functions that call them; no policy of their own. Work is cut into ranges of rows that threads run
without the GIL; rows are independent, so the thread count cannot change a bit.
`LGP_BACKEND=torch` turns them off.
"""

from lgp.kernels.backend import usable, use_backend
from lgp.kernels.build import CompiledBuilder
from lgp.kernels.greedy import search, visited_by
from lgp.kernels.hnsw import search_hnsw, select_neighbors, visited_by_hnsw
from lgp.kernels.hnsw_build import CompiledInserter
from lgp.kernels.place import edges_back, place
from lgp.kernels.prune import robust_prune
from lgp.kernels.shortlist import shortlist
from lgp.kernels.table import finish_tile
from lgp.kernels.walk import best_seen, walk

__all__ = [
    "CompiledBuilder",
    "CompiledInserter",
    "best_seen",
    "edges_back",
    "finish_tile",
    "place",
    "robust_prune",
    "search",
    "search_hnsw",
    "select_neighbors",
    "shortlist",
    "usable",
    "use_backend",
    "visited_by",
    "visited_by_hnsw",
    "walk",
]
