"""The knobs of a refinement, with their checks; a part of `lgp.config`."""

from __future__ import annotations

from dataclasses import dataclass, field

from lgp.choices import Method, NodeOrder, SelectorKind, ShortlistRule, VictimRule, When
from lgp.config_llm import ConfigError
from lgp.config_llm import at_least as _at_least

REPAIR = Method.repair.value
"""What a graph that was repaired, and nothing else, is called in results."""


def refined_label(method: str, selector: str) -> str:
    """What a graph refined so is called in results."""
    return {"lgp": selector, "repair": REPAIR}.get(method, f"{selector}+repair")


@dataclass
class RefineConfig:
    method: Method = Method.lgp
    selector: SelectorKind = SelectorKind.farthest
    when: When = When.build
    edit_budget: int = 2  # B (§5)
    shortlist_size: int = 24  # M (§5; 12 on M-BEIR)
    context_size: int = 4  # K (§B.4)
    min_coverage_gain: int | None = None  # g_min, nodes; null = min(12, ceil(0.75 R)) (§B.4)
    shortlist: ShortlistRule = ShortlistRule.balanced
    victim: VictimRule = VictimRule.lexicographic
    keep_degree: bool = True  # hnsw: rows keep their degree (§E.1); false fills free slots first
    node_budget: float = 1.0  # beta, share of nodes that see the selector (§5)
    node_order: NodeOrder = NodeOrder.random
    batch_size: int = 0  # post only: anchors a snapshot, 0 = the whole graph
    seed: int = 0  # of `uniform` and of the node order
    match: str | None = None  # edit log whose number of edits per node is reproduced
    controls: list[SelectorKind] = field(default_factory=list)  # run beside, matched to selector
    repair_beside: bool = False  # also repair vanilla: a graph of its own, matched to nothing
    log: str | None = None  # recorded: the edit log to replay
    answers: str | None = None  # scripted: JSON table
    encoder: str = "minilm"  # encoder: model name or folder, mean pooling
    encoder_tokens: int = 128
    redundancy_weight: float = 0.5  # encoder: weight of closeness to the context
    shards: int = 1  # post: jobs among which the selector's decisions are split
    shard: int | None = None  # decide for this one's nodes only; null = apply what all decided

    def __post_init__(self) -> None:
        for key in ("edit_budget", "context_size", "batch_size"):
            _at_least(f"refine.{key}", getattr(self, key), 0, "raise it")
        _at_least("refine.shortlist_size", self.shortlist_size, 1, "raise it")
        if not 0 < self.node_budget <= 1:
            raise ConfigError(f"refine.node_budget={self.node_budget} is outside (0, 1]; set it so")
        if self.edit_budget > self.shortlist_size:
            raise ConfigError(
                f"refine.edit_budget={self.edit_budget} is above refine.shortlist_size="
                f"{self.shortlist_size}; raise refine.shortlist_size"
            )
        if self.when is When.build and self.batch_size:
            raise ConfigError(
                f"refine.batch_size={self.batch_size} with refine.when=build: a build's anchors "
                "share the builder's batch; set index.batch_size"
            )
        if self.selector is SelectorKind.recorded and not self.log:
            raise ConfigError("refine.log is not set; selector=recorded needs an edit log")
        if self.selector is SelectorKind.scripted and not self.answers:
            raise ConfigError("refine.answers is not set; selector=scripted needs a JSON table")
        if self.method is Method.repair and self.selector is not SelectorKind.none:
            raise ConfigError(
                f"refine.selector={self.selector.value} with refine.method=repair, which reads "
                "none; set refine.selector=none, or refine.method=lgp+repair"
            )
        if self.method is Method.lgp_repair and self.selector is SelectorKind.none:
            raise ConfigError(
                "refine.method=lgp+repair needs a refine.selector other than none; name one, or "
                "set refine.method=repair"
            )
        if self.method is Method.repair and self.repair_beside:
            raise ConfigError(
                "refine.repair_beside=true with refine.method=repair: it would be the same graph "
                "twice; drop it"
            )
        self._check_shards()
        if self.label is None and self.controls:
            raise ConfigError("refine.controls need a refine.selector other than none to match")
        beside = [self.selector, *self.controls]
        if len(set(beside)) < len(beside):
            raise ConfigError(
                f"refine.controls={[c.value for c in self.controls]} repeat a selector "
                f"(refine.selector={self.selector.value}); name each once"
            )
        for kind in (SelectorKind.none, SelectorKind.recorded, SelectorKind.scripted):
            if kind in self.controls:
                raise ConfigError(f"refine.controls cannot hold {kind.value}; drop it")

    def _check_shards(self) -> None:
        _at_least("refine.shards", self.shards, 1, "1 is a single process")
        if self.shard is not None and not 0 <= self.shard < self.shards:
            raise ConfigError(
                f"refine.shard={self.shard} is outside 0..refine.shards-1={self.shards - 1}; "
                "raise refine.shards or lower refine.shard"
            )
        if self.shards == 1 and self.shard is None:
            return
        if self.when is When.build:
            raise ConfigError(
                f"refine.shards={self.shards} with refine.when=build: there each batch needs the "
                "edges of the one before; set refine.when=post, or spread a batch's prompts over "
                "a server's GPUs (llm.engine=openai, llm.concurrency)"
            )
        if self.batch_size:
            raise ConfigError(
                f"refine.shards={self.shards} with refine.batch_size={self.batch_size}: shards "
                "can only share one snapshot of the whole graph; set refine.batch_size=0"
            )
        if self.selector is SelectorKind.none:
            raise ConfigError(
                f"refine.shards={self.shards} with refine.selector=none: there is nothing to "
                "decide; name a selector, or set refine.shards=1"
            )

    @property
    def label(self) -> str | None:
        """What the refined graph is called: its selector, `repair`, or both; None = not refined."""
        if self.method is not Method.repair and self.selector is SelectorKind.none:
            return None
        return refined_label(self.method.value, self.selector.value)
