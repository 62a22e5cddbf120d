"""Modules import only what stands before them: one way, so each can be read alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

ORDER = [
    "choices", "templates", "config_llm", "config_data", "config_refine",
    "config_repair", "config_tables", "config", "stopping", "store",
    "hardware", "vectors", "beir", "toy", "pydocs_walk", "pydocs", "images", "dataset",
    "image_text", "hub", "bright", "mbeir_files", "mbeir", "data",
    "distance", "packaged", "blocks", "embed", "clip_model", "embed_clip", "embeddings",
    "graph", "structure", "kernels", "points", "search",
    "prune", "vamana",
    "hnsw", "hnsw_build", "hnsw_file", "index",
    "prompts", "replies", "answers", "llm", "shipped", "packed", "fp8", "ask",
    "prefill", "generate",
    "vlm", "continuous", "openai_engine", "engines", "rerank_account", "rerank",
    "refine", "formats", "selectors", "latent", "repairs", "asked", "evaluate", "results", "stats",
    "effort", "comparison", "averages",
    "cost", "summary", "cells",
    "foreign", "foreign_latent", "foreign_job", "foreign_files",
    "refine_index_options", "refine_index", "figures",
    "grids", "paper_numbers", "tables", "diagnostics", "curves", "token_curves", "gather",
    "page_records", "multiples", "page_columns",
    "page_style", "page_html", "page", "report", "runs",
    "one_edge", "one_edge_study", "collection", "shards", "stages",
    "describe_models", "describe", "pipeline", "track", "dashboard", "experiment", "api", "jobs",
    "cli",
]  # fmt: skip
ROOT = Path(__file__).parent.parent / "lgp"


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules of `lgp` that run-time import statements name, inside functions, too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "lgp":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lgp."):
            yield node.module.split(".")[1]  # type: ignore[union-attr]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("lgp."))
        assert not (isinstance(node, ast.ImportFrom) and node.level), "relative import"
        yield from imports(node)


def test_imports_go_one_way() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if name == "__init__":
            continue
        for other in imports(ast.parse(path.read_text())):
            assert other == name or ORDER.index(other) < ORDER.index(name), f"{path}: {other}"
