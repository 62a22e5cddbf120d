"""The graphs of one configuration: load what is stored, else compute.

`collection -> graph -> refined graph`. No algorithm lives here, and no measurement.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from lgp.asked import asked_inputs, asked_nodes
from lgp.choices import EngineKind, IndexKind, Method, SelectorKind, When
from lgp.collection import CollectionStages
from lgp.config import to_plain
from lgp.cost import DRY_NODES, Projection, project
from lgp.dataset import say_unread_images
from lgp.embed import Kind
from lgp.graph import Graph, changed_neighborhoods, reachable
from lgp.hnsw import Hnsw
from lgp.index import (
    Index,
    base_layer,
    build_index,
    describe_index,
    load_index,
    save_index,
    settings_key,
)
from lgp.refine.connect import connect
from lgp.refine.hnsw import refine_finished
from lgp.refine.listwise import Listwise
from lgp.refine.log import EditLog, Edits
from lgp.refine.repair import decisions_of
from lgp.refine.step import Account, Refiner
from lgp.repairs import Latent, Sources, gather, own_slots, repair_inputs, repaired
from lgp.selectors import make_selector, mean_encoder, selector_inputs, step_settings
from lgp.shards import QUERIES_FILE, Decided, answers_digest, decide, gather_shards
from lgp.vamana import VamanaSettings, build_vamana

log = logging.getLogger(__name__)

Compute = Callable[[Path], Mapping[str, Any]]

# Raise a version when the stage's code changes its results.
STAGE_VERSION = {"graph": 1, "refined": 3, "hnsw": 1, "hnsw_refined": 2, "decisions": 1}


class Stages(CollectionStages):
    """One configuration, with its graphs as stages."""

    def _graph_inputs(self, seed: int) -> dict[str, Any]:
        c = self.config.index
        more = {"metric": self.metric.value, "connect": c.connect}
        return {"vectors": self.vectors_digest, "index": settings_key(self.settings(seed)) | more}

    def _stored(
        self, seed: int, name: str, inputs: Mapping[str, Any], compute: Compute
    ) -> tuple[Index, Path]:
        stage = self.store.get(name, STAGE_VERSION[name], inputs, compute)
        index = load_index(stage / "graph.safetensors", self.settings(seed))
        return index.to(self.device), stage

    def vanilla(self, seed: int) -> Index:
        """The unrefined graph of a seed."""
        return self.vanilla_stage(seed)[0]

    def vanilla_stage(self, seed: int) -> tuple[Index, Path]:
        """The unrefined graph of a seed, and its stage folder."""

        def compute(folder: Path) -> Mapping[str, Any]:
            start = time.perf_counter()
            graph = build_index(self.points, self.settings(seed))
            if self.config.index.connect and isinstance(graph, Graph):
                graph, _ = connect(graph, self.points)
            save_index(graph, folder / "graph.safetensors")
            return describe_index(graph) | {"seconds": time.perf_counter() - start}

        name = "hnsw" if self.config.index.kind is IndexKind.hnsw else "graph"
        return self._stored(seed, name, self._graph_inputs(seed), compute)

    def refined(
        self,
        kind: SelectorKind,
        seed: int,
        matched: EditLog | None,
        method: Method = Method.lgp,
    ) -> tuple[Index, Path]:
        """The graph refined with a selector, by a repair, or by both, and its stage folder.

        Args:
            kind: `none` for a repair alone.
            matched: a log whose number of edits at each node is reproduced (DESIGN 4.10).
        """
        base = self.vanilla(seed)
        inputs = self._decision_inputs(kind, seed, base, matched)
        if method is not Method.lgp:
            inputs |= repair_inputs(self.config, self._texts_of_documents)

        def compute(folder: Path) -> Mapping[str, Any]:
            if method is Method.repair:
                return self._repair(folder, seed, base)
            return self._refine(folder, kind, seed, base, matched, method)

        name = "hnsw_refined" if isinstance(base, Hnsw) else "refined"
        return self._stored(seed, name, inputs, compute)

    def decided(self, kind: SelectorKind, seed: int, matched: EditLog | None) -> Path:
        """The stage with the decisions of the configured shard, which are not applied here."""
        c, base = self.config.refine, self.vanilla(seed)
        assert c.shard is not None

        def compute(folder: Path) -> Mapping[str, Any]:
            assert c.shard is not None
            asked = self._asked(base, matched)
            refiner = self._refiner(kind, base, *asked, self.store.root / "answers")
            width = self.settings(seed).construction_width
            return decide(folder, base, self.points, refiner, width, c.shard, c.shards)

        inputs = self._decision_inputs(kind, seed, base, matched) | {"of": c.shards}
        inputs["shard"] = c.shard
        return self.store.get("decisions", STAGE_VERSION["decisions"], inputs, compute)

    def _gathered(
        self, kind: SelectorKind, seed: int, base: Index, matched: EditLog | None
    ) -> Decided | None:
        """What all shards decided; None where the refinement is not split. Controls never are."""
        c = self.config.refine
        if c.shards == 1 or kind is not c.selector:
            return None
        inputs = self._decision_inputs(kind, seed, base, matched) | {"of": c.shards}
        version = STAGE_VERSION["decisions"]
        shards = [inputs | {"shard": shard} for shard in range(c.shards)]
        return gather_shards([self.store.path("decisions", version, own) for own in shards])

    def _decision_inputs(
        self, kind: SelectorKind, seed: int, base: Index, matched: EditLog | None
    ) -> dict[str, Any]:
        """What a selector's decisions, and the graph made of them, depend on."""
        c = self.config.refine
        inputs = self._graph_inputs(seed) | {
            "step": to_plain(asdict(step_settings(c, base_layer(base).alpha))),
            "when": c.when.value,
            "batch_size": c.batch_size,
            "nodes": asked_inputs(self.config, self._texts_of_documents)
            if matched is None
            else "matched",
            "match": None if matched is None else matched.decisions.digest(),
            "selector": kind.value,
            "answers": selector_inputs(kind, self.config, self._shown_digest(kind)),
        }
        if isinstance(base, Hnsw) and not c.keep_degree:
            inputs["keep_degree"] = False
        return inputs

    def chosen(self, vanilla: Index, limit: int | None = None) -> Tensor:
        """The nodes that are asked about under the budget, bool [N]."""
        return asked_nodes(
            self.config, vanilla, self.points, self._latent, self.store, self.device, limit
        )

    def _latent(self, sources: Sources, asked: Tensor | None = None) -> Latent:
        answers, rows = self.store.root / "answers", self.node_rows.tolist()
        allowed = None if asked is None else asked.tolist()
        return gather(
            self.config, sources, self.dataset, rows, answers, self.device, allowed
        )  # fmt: skip

    def _asked(self, vanilla: Index, matched: EditLog | None) -> tuple[Tensor, Tensor | None]:
        """Nodes that see the selector, bool [N], and edits to place at each, int64 [N]."""
        if matched is None:
            return self.chosen(vanilla), None
        quota = matched.decisions.quota(base_layer(vanilla).n)
        return quota > 0, quota

    def _refiner(
        self,
        kind: SelectorKind,
        vanilla: Index,
        eligible: Tensor,
        quota: Tensor | None,
        answers: Path,
        decided: Decided | None = None,
    ) -> Refiner:
        c = self.config.refine
        fixed = isinstance(vanilla, Hnsw) and c.keep_degree
        step = step_settings(c, base_layer(vanilla).alpha)
        if decided is not None:
            replay = decided.selector(base_layer(vanilla).n)
            return Refiner(self.points, replay, step, eligible, quota, fixed_degree=fixed)
        llm = self.config.llm.engine
        if kind is SelectorKind.encoder or (kind is SelectorKind.llm and llm is not EngineKind.vlm):
            say_unread_images(self.dataset, True, f"refine={kind.value}")
        encoder = mean_encoder(c.encoder, c.encoder_tokens)
        selector = make_selector(
            kind, self.config, self.node_texts,
            lambda: self.embed(self.dataset.texts, Kind.DOCUMENT, encoder)[self.node_rows].to(
                self.device
            ),
            answers, self.device, pictures=self.pictures,
        )  # fmt: skip
        return Refiner(self.points, selector, step, eligible, quota, fixed_degree=fixed)

    def projection(self, seed: int) -> Projection:
        """What refining a seed's graph would cost, measured on a few nodes of the finished one;
        their answers are thrown away."""
        c, vanilla = self.config.refine, self.vanilla(seed)
        wanted, few = self.chosen(vanilla), self.chosen(vanilla, DRY_NODES)
        with TemporaryDirectory(prefix="lgp-estimate-") as folder:
            refiner = self._refiner(c.selector, vanilla, few, None, Path(folder))
            refine_finished(vanilla, self.points, refiner, self.settings(seed).construction_width)
        return project(refiner.account, int(few.sum()), int(wanted.sum()))

    def _refine(
        self,
        folder: Path,
        kind: SelectorKind,
        seed: int,
        vanilla: Index,
        matched: EditLog | None,
        method: Method,
    ) -> Mapping[str, Any]:
        c, base = self.config.refine, base_layer(vanilla)
        decided = self._gathered(kind, seed, vanilla, matched)
        eligible, quota = self._asked(vanilla, matched)
        answers = self.store.root / "answers"
        refiner = self._refiner(kind, vanilla, eligible, quota, answers, decided)
        log.info("refine: %s on %d of %d nodes", kind.value, int(eligible.sum()), base.n)
        start = time.perf_counter()
        index, edits = self._edited(vanilla, seed, refiner)
        decisions, account = refiner.all_decisions(), refiner.account
        if decided is not None:
            decided.check(decisions)
            account = decided.account
        more: dict[str, Any] = {}
        if method is Method.lgp_repair:
            index, repairs, more = self._repaired(index, eligible, edits)
            edits = Edits.join([edits, repairs])
            account.charge(more.get("written", {}))
        seconds = time.perf_counter() - start + (decided.seconds if decided else 0.0)
        graph, selector = base_layer(index), refiner.selector
        header = {
            "when": c.when.value, "selector": kind.value, "seed": seed, "method": method.value,
            "base_sha256": base.digest(), "result_sha256": graph.digest(),
        }  # fmt: skip
        EditLog(edits, decisions, header).save(folder / "edits.safetensors")
        if isinstance(selector, Listwise):
            selector.save_queries(folder / QUERIES_FILE)
        elif decided is not None:
            decided.save_queries(folder)
        save_index(index, folder / "graph.safetensors")
        wanted = int(quota.sum()) if quota is not None else None
        return (
            self._facts(index, base, edits)
            | more
            | {
                "n_eligible": int(eligible.sum()),
                "n_edits_wanted": wanted,
                "account": asdict(account),
                "seconds": seconds,
                "answers_sha256": decided.answers_sha256 if decided else answers_digest(selector),
            }
        )

    def _facts(self, index: Index, base: Graph, edits: Edits) -> dict[str, Any]:
        """What changed between a base layer and an edited index."""
        graph, own = base_layer(index), edits.own()
        kept = graph.neighbors[edits.node[own].long().to(graph.neighbors.device)]
        alive = (kept == edits.added[own].to(kept.device).unsqueeze(1)).any(1)
        return describe_index(index) | {
            "n_edits": int(own.sum()),
            "n_edits_surviving": int(alive.sum()),
            "n_became_unreachable": int((reachable(base) & ~reachable(graph)).sum()),
            "changed_neighborhoods": changed_neighborhoods(base, graph),
        }

    def _repair(self, folder: Path, seed: int, vanilla: Index) -> Mapping[str, Any]:
        """A repair alone: no selector is asked, every node may get edges."""
        start, base = time.perf_counter(), base_layer(vanilla)
        eligible = self.chosen(vanilla)
        index, edits, more = self._repaired(vanilla, eligible)
        header = {
            "when": When.post.value, "selector": "none", "seed": seed, "method": "repair",
            "base_sha256": base.digest(), "result_sha256": base_layer(index).digest(),
        }  # fmt: skip
        EditLog(edits, decisions_of(edits), header).save(folder / "edits.safetensors")
        save_index(index, folder / "graph.safetensors")
        account = Account()
        account.charge(more.get("written", {}))
        return self._facts(index, base, edits) | more | {
            "n_eligible": int(eligible.sum()), "n_edits_wanted": None, "account": asdict(account),
            "seconds": time.perf_counter() - start, "answers_sha256": None,
        }  # fmt: skip

    def _repaired(
        self, index: Index, asked: Tensor, edits: Edits | None = None
    ) -> tuple[Index, Edits, dict[str, Any]]:
        """Repair an index; with `repair.protect` the edges of earlier edits are kept.

        Args:
            asked: nodes for which a language model may write queries, bool [N].
        """
        shielded = None
        if edits is not None and self.config.repair.protect:
            shielded = own_slots(base_layer(index), edits)
        latent = self._latent(self.config.repair.queries, asked)
        return repaired(
            self.config, index, self.points, latent, self.store,
            self.device, self.collection.query_vectors, shielded,
        )  # fmt: skip

    def _edited(self, vanilla: Index, seed: int, refiner: Refiner) -> tuple[Index, Edits]:
        """The refined index and its edits; in a build the vanilla one is built anew."""
        c, settings = self.config.refine, self.settings(seed)
        index: Index
        if c.when is When.build and isinstance(settings, VamanaSettings):
            index = build_vamana(self.points, settings, refiner, progress=True)
            edits = refiner.all_edits()
        else:
            index, edits = refine_finished(
                vanilla, self.points, refiner, settings.construction_width, c.batch_size,
                progress=True,
            )  # fmt: skip
        if self.config.index.connect and isinstance(index, Graph):
            index, joined = connect(index, self.points)
            edits = Edits.join([edits, joined])
        return index, edits
