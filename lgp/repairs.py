"""A repair as a configuration names it: queries gathered and embedded, the graph repaired.

In: a collection, a finished index and the knobs. Out: the repaired index, its edits, and facts for
the stage's manifest. How edges are chosen is in `lgp.refine.repair`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lgp.choices import LatentQueries
from lgp.config import Config, to_plain
from lgp.config_llm import ConfigError
from lgp.config_repair import RepairConfig
from lgp.dataset import Dataset
from lgp.distance import Points
from lgp.embeddings import query_vectors
from lgp.engines import answer_log, engine_model, make_engine
from lgp.graph import Graph
from lgp.hnsw import Hnsw, descend
from lgp.index import Index, base_layer
from lgp.latent import (
    Written,
    ask_queries,
    count_twins,
    first_sentence,
    read_query_file,
    read_split_queries,
    split_queries,
)
from lgp.refine.log import Edits
from lgp.refine.repair import RepairSettings, repair
from lgp.search import query_blocks
from lgp.store import Store, digest_of


@dataclass(frozen=True)
class Latent:
    """Latent queries of a collection, each text once, by source in the order configured.

    Attributes:
        counts: texts of each source, repeats left out. written: what a language model did.
    """

    texts: list[str]
    counts: dict[str, int]
    written: Written | None


Sources = Sequence[LatentQueries]
_READERS = (LatentQueries.train, LatentQueries.log, LatentQueries.lgp)
"""Sources that are files."""


def repair_settings(c: RepairConfig) -> RepairSettings:
    """The knobs of the algorithm."""
    return RepairSettings(
        c.width, c.targets, c.source, c.batch_size, c.passes, c.edit_limit, c.node_limit, c.seed
    )


def repair_inputs(config: Config, texts: str, sources: Sources | None = None) -> dict[str, Any]:
    """What a repaired graph depends on besides the graph: a part of its stage's key.

    Args:
        texts: digest of titles and bodies. sources: of queries; None = as configured.
    Raises:
        DataError: a file or split of queries that cannot be read.
    """
    c, llm, prompt = config.repair, config.llm, config.prompt
    sources = c.queries if sources is None else sources
    found: dict[str, Any] = {
        "method": config.refine.method.value,
        "texts": texts,
        "repair": to_plain(c) | {"file": None, "queries": to_plain(sources)},
        "embedder": to_plain(config.embedder),  # of the queries; the documents' may be the same
        "read": digest_of([_read(config, source) for source in sources if source in _READERS]),
    }
    if LatentQueries.llm in sources:
        found["llm"] = {
            "model": engine_model(llm), "batch_tokens": llm.batch_tokens,
            "system": prompt.query_system, "user": prompt.query_user,
            "documents": prompt.documents,
        }  # fmt: skip
    return found


def free_sources(c: RepairConfig) -> Sources:
    """The configured sources that ask no language model; titles and first sentences where there is
    no other."""
    free = tuple(source for source in c.queries if source is not LatentQueries.llm)
    return free or (LatentQueries.title, LatentQueries.first_sentence)


def gather(
    config: Config, sources: Sources, dataset: Dataset, rows: Sequence[int], answers: Path,
    device: str, asked: Sequence[bool] | None = None,
) -> Latent:  # fmt: skip
    """The latent queries of the documents at some rows (the first of each node).

    Args:
        rows: one per node.
        asked: by row, whether a language model may be asked about it; None = all.
    Raises:
        ConfigError: a source that the collection cannot give.
        DataError: a file or split that cannot be read; no query at all.
    """
    found: dict[str, None] = {}
    counts: Counter[str] = Counter()
    written: Written | None = None
    for source in sources:
        if source is LatentQueries.title:
            texts = [dataset.titles[row].strip() for row in rows]
        elif source is LatentQueries.first_sentence:
            texts = [first_sentence(dataset.bodies[row]) for row in rows]
        elif source is LatentQueries.llm:
            kept = list(rows if asked is None else compress(rows, asked))
            written = _written(config, [dataset.texts[row] for row in kept], answers, device)
            texts = [text for queries in written.queries for text in queries]
        else:
            texts = _read(config, source)
        for text in texts:
            if text and text not in found:
                found[text] = None
                counts[source.value] += 1
    if not found:
        raise ConfigError(
            f"repair.queries={[q.value for q in sources]} gives no query for {dataset.name} (its "
            "documents have no such text); name another source"
        )
    return Latent(list(found), dict(counts), written)


def _read(config: Config, source: LatentQueries) -> list[str]:
    """The queries of a source that is a file (ConfigError, DataError: it cannot be read)."""
    c, folder = config.repair, config.dataset.path
    if source is not LatentQueries.train:
        return read_query_file(Path(str(c.file)))
    if folder is None:
        raise ConfigError(
            f"repair.queries=train with dataset={config.dataset.kind.value}: only a folder in BEIR "
            "layout has splits; drop it"
        )
    return read_split_queries(Path(folder), c.split)


def repaired(
    config: Config, index: Index, points: Points, latent: Latent, store: Store, device: str,
    asked: Tensor, shielded: Tensor | None,
) -> tuple[Index, Edits, dict[str, Any]]:  # fmt: skip
    """Repair a finished index of either kind.

    Args:
        asked: the test queries' vectors, only to count their twins. shielded: see `repair`.
    Returns:
        the index, the repair's edits, and facts: queries by source, twins, miss rates, cost.
    """
    vectors = query_vectors(store, latent.texts, config.embedder, device).to(points.device)
    result, edits, facts = repair_index(config.repair, index, points, vectors, shielded)
    similar = config.repair.similar
    facts |= {
        "latent_queries": latent.counts,
        "latent_twins_of_test": count_twins(vectors, asked.to(vectors.device), similar),
        "latent_digest": digest_of(latent.texts),
    }
    if latent.written is not None:
        facts["written"] = {key: value for key, value in vars(latent.written).items()
                            if key != "queries"}  # fmt: skip
    return result, edits, facts


def repair_index(
    c: RepairConfig, index: Index, points: Points, queries: Tensor,
    shielded: Tensor | None = None, allowed: Tensor | None = None,
) -> tuple[Index, Edits, dict[str, Any]]:  # fmt: skip
    """Repair the base layer of an index of either kind for the vectors of latent queries.

    Args:
        queries: float32 [Q, D]; the configured share of them is only measured.
        shielded, allowed: see `repair`.
    Returns:
        the index, the repair's edits, and facts: queries held out, miss rates, edges.
    """
    own, aside = (places.to(points.device) for places in
                  split_queries(len(queries), c.held_out, c.seed))  # fmt: skip
    starts = start_nodes(index, points, queries)
    done = repair(
        base_layer(index), points, queries[own], repair_settings(c), queries[aside], shielded,
        None if starts is None else starts[own], None if starts is None else starts[aside],
        allowed, progress=True,
    )  # fmt: skip
    facts = {
        "latent_held_out": len(aside),
        "miss_rate": [done.miss_before, done.miss_after],
        "miss_rate_held_out": list(done.held_out),
        "n_repairs": len(done.edits.node),
        "n_unplaced": done.unplaced,
    }
    result = replace(index, base=done.graph) if isinstance(index, Hnsw) else done.graph
    return result, done.edits, facts


def miss_clause(facts: Mapping[str, Any]) -> str:
    """What a repair added, and how often searches missed before and after, in words."""
    before, after = (100 * rate for rate in facts["miss_rate"])
    text = (
        f"{facts['n_repairs']} edges, {before:.1f} -> {after:.1f} % of their nearest documents "
        "missed"
    )
    if unseen := facts["miss_rate_held_out"]:
        text += (
            f", {100 * unseen[0]:.1f} -> {100 * unseen[-1]:.1f} % for "
            f"{facts['latent_held_out']} held out"
        )
    return text


def own_slots(graph: Graph, edits: Edits) -> Tensor:
    """The slots that hold a selector's edges still, bool [N, R]."""
    own = edits.own()
    node = edits.node[own].long().to(graph.neighbors.device)
    hit = graph.neighbors[node] == edits.added[own].to(node.device).unsqueeze(1)
    slots = torch.zeros_like(graph.neighbors, dtype=torch.bool)
    slots[node[hit.any(1)], hit.int().argmax(1)[hit.any(1)]] = True
    return slots


def start_nodes(index: Index, points: Points, queries: Tensor) -> Tensor | None:
    """Where the upper layers of an HNSW lead each query, int64 [Q]; None for a flat graph."""
    if not isinstance(index, Hnsw):
        return None
    found = queries.new_zeros(len(queries)).long()
    for block, distances in query_blocks(points, queries):
        found[block] = descend(index, distances)[0]
    return found


def _written(config: Config, texts: Sequence[str], answers: Path, device: str) -> Written:
    c, llm = config.repair, config.llm
    log = answer_log(llm, device, answers)
    make = partial(_engine, config, device)
    return ask_queries(
        make, config.prompt, texts, log, c.per_document, c.document_tokens, progress=True
    )


def _engine(config: Config, device: str, answered: Any, stop: str) -> Any:
    room = config.repair.new_tokens * config.repair.per_document
    return make_engine(config.llm, device, room, answered, stop)
