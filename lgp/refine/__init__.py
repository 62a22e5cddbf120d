"""The paper's contribution: signals, shortlist, selection, replacement (§4, Algorithm 8)."""
