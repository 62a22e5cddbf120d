"""LGP: make a graph nearest-neighbor index serve semantics, not only geometry."""

from lgp.api import build, refine, repair, search

__all__ = ["build", "refine", "repair", "search"]
