"""Every knob with its type, its default (the paper's where it states one) and its checks.

YAML under `configs/` only selects and overrides. Checks run when the config becomes these
dataclasses, before any work; each error names the key, the value, the bound and the way out.
No torch and no files here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from lgp.choices import (
    CorruptImages,
    EmbedderKind,
    EngineKind,
    Exclude,
    Fusion,
    IndexKind,
    Instruction,
    LatentQueries,
    LlmMode,
    Method,
    MetricName,
    Pooling,
    RerankKind,
    SelectorKind,
    Storage,
    TrackingMode,
    When,
)
from lgp.config_data import DatasetConfig
from lgp.config_llm import ConfigError as ConfigError
from lgp.config_llm import LlmConfig, PromptConfig
from lgp.config_llm import at_least as _at_least
from lgp.config_refine import RefineConfig
from lgp.config_repair import RepairConfig
from lgp.config_tables import OneEdgeConfig, ScaleConfig, TableConfig


@dataclass
class EmbedderConfig:
    kind: EmbedderKind = EmbedderKind.wordllama
    model: str | None = None  # hf: hub name, folder, or "minilm"; open_clip: a name it lists
    revision: str | None = None
    pooling: Pooling = Pooling.mean
    query_template: str = "{text}"
    document_template: str = "{text}"
    max_tokens: int = 256
    batch_tokens: int = 8192  # padded tokens a batch
    dtype: str = "float32"  # or bfloat16; auto: bfloat16 on a GPU, float32 on a CPU
    storage: Storage = Storage.float32  # precision of the vectors in the store
    expected_final_token: str | None = None  # checked under last pooling
    document_vectors: str | None = None  # precomputed: .npy / .safetensors in corpus order
    query_vectors: str | None = None  # precomputed: in order of the judged queries
    pretrained: str | None = "openai"  # this and the next five: open_clip. Tag of the weights
    checkpoint: str | None = None  # file with the weights; null = the hub's
    random_weights: bool = False  # noise instead of weights, for rehearsals
    fusion: Fusion = Fusion.sum  # of text and image; not in the paper
    corrupt_images: CorruptImages = CorruptImages.error
    batch_size: int = 256  # items at a time

    def __post_init__(self) -> None:
        if self.kind in (EmbedderKind.hf, EmbedderKind.open_clip) and not self.model:
            raise ConfigError(
                f"embedder.model is not set; embedder={self.kind.value} needs a name or a folder"
            )
        if self.kind is EmbedderKind.precomputed and not (
            self.document_vectors and self.query_vectors
        ):
            raise ConfigError(
                "embedder=precomputed needs embedder.document_vectors and embedder.query_vectors"
            )
        for key in ("query_template", "document_template"):
            if "{text}" not in getattr(self, key):
                raise ConfigError(f"embedder.{key}={getattr(self, key)!r} lacks {{text}}; add it")
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"embedder.dtype={self.dtype} is not one of auto, float32, bfloat16")
        _at_least("embedder.max_tokens", self.max_tokens, 1, "raise it")
        _at_least("embedder.batch_size", self.batch_size, 1, "raise it")
        if self.kind is not EmbedderKind.open_clip:
            for key in ("checkpoint", "random_weights"):
                if getattr(self, key):
                    raise ConfigError(
                        f"embedder.{key} is set with embedder.kind={self.kind.value}, which does "
                        "not read it; drop it, or choose embedder=open_clip"
                    )


@dataclass
class IndexConfig:
    kind: IndexKind = IndexKind.vamana
    max_degree: int = 16  # vamana: R (§5)
    connectivity: int = 16  # hnsw: M (§5); rows hold 2M on the base layer, M above
    construction_width: int = 125  # L at build (§5); hnsw: ef, 200 there
    alpha: float = 1.2  # vamana: prune slack, acts on D of `metric` (§5); hnsw has slack 1
    metric: MetricName = MetricName.cosine
    batch_size: int = 0  # nodes a snapshot; 0 = 2 % of N up to 4096, 1 = the paper's order
    seeds: list[int] = field(default_factory=lambda: [0])  # one graph each
    collapse_duplicates: bool = True
    connect: bool = False  # add an edge to each unreachable node, after build and refinement
    table_gib: float = 4.0  # lay the N x N distance table when it fits in this

    def __post_init__(self) -> None:
        _at_least("index.max_degree", self.max_degree, 1, "raise it")
        _at_least("index.alpha", self.alpha, 1, "raise it")
        _at_least("index.connectivity", self.connectivity, 2, "levels are drawn by 1 / ln M")
        _at_least("index.batch_size", self.batch_size, 0, "0 chooses it")
        layered = self.kind is IndexKind.hnsw
        for key in ("max_degree", "alpha") if layered else ("connectivity",):
            if getattr(self, key) != type(self).__dataclass_fields__[key].default:
                raise ConfigError(
                    f"index.{key}={getattr(self, key)} with index.kind={self.kind.value}: it is "
                    f"not read there; drop it or choose index={'diskann' if layered else 'hnsw'}"
                )
        if layered and self.connect:
            raise ConfigError(
                "index.connect=true with index.kind=hnsw: upper layers lead to more than the base "
                "layer's edges do; set index.connect=false"
            )
        least = "connectivity" if layered else "max_degree"
        if self.construction_width < getattr(self, least):
            raise ConfigError(
                f"index.construction_width={self.construction_width} is below index.{least}="
                f"{getattr(self, least)}; raise index.construction_width"
            )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"index.seeds={self.seeds} must name different seeds, at least one")


@dataclass
class SearchConfig:
    widths: list[int] = field(default_factory=lambda: [10, 20, 50, 100, 200])  # §5
    budgets: list[int] = field(default_factory=lambda: [100, 200, 300, 500, 800, 1600, 3200])
    k: int = 10  # documents a list must be able to hold
    exclude: Exclude = Exclude.collect
    memory_gib: float = 2.0  # query-node distance table a block

    def __post_init__(self) -> None:
        _at_least("search.k", self.k, 1, "raise it")
        for width in self.widths:
            if width < self.k:
                raise ConfigError(
                    f"search.widths holds {width}, below search.k={self.k}; raise the width or "
                    "lower search.k"
                )
        for budget in self.budgets:
            _at_least("search.budgets", budget, 1, "a search computes at least one distance")
        if not self.widths and not self.budgets:
            raise ConfigError("search.widths and search.budgets are both empty; name one setting")
        for key in ("widths", "budgets"):
            values = getattr(self, key)
            if len(set(values)) < len(values):
                raise ConfigError(f"search.{key}={values} repeats a value; name each once")


@dataclass
class RerankConfig:
    kind: RerankKind = RerankKind.none
    depth: int | None = None  # null: the whole list by width, the top 20 by budget (§5, §B.6)
    model: str | None = None  # null: encoder "minilm", listwise and likelihood llm.model
    revision: str | None = None  # of a model other than llm.model
    max_tokens: int = 128  # encoder: texts are cut to this
    document_tokens: int = 128  # listwise, likelihood: a document is cut to this
    query_tokens: int = 512  # listwise, likelihood: a query is cut to this
    window: int = 20  # listwise: documents a prompt (§5)
    step: int = 10  # listwise: by how much windows move up where a list is longer
    repair: bool = True  # listwise: documents an answer lacks follow; false: the window is kept

    def __post_init__(self) -> None:
        if self.depth is not None:
            _at_least("rerank.depth", self.depth, 1, "leave it null for the paper's depths")
        for key in ("max_tokens", "document_tokens", "query_tokens", "step"):
            _at_least(f"rerank.{key}", getattr(self, key), 1, "raise it")
        _at_least("rerank.window", self.window, 2, "one document needs no order")
        if self.step > self.window:
            raise ConfigError(
                f"rerank.step={self.step} is above rerank.window={self.window}: documents between "
                "windows would be skipped; lower rerank.step"
            )


@dataclass
class TrackingConfig:
    mode: TrackingMode = TrackingMode.off
    project: str = "lgp"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class Config:
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    embedder: EmbedderConfig = field(default_factory=EmbedderConfig)
    index: IndexConfig = field(default_factory=IndexConfig)
    refine: RefineConfig = field(default_factory=RefineConfig)
    repair: RepairConfig = field(default_factory=RepairConfig)
    llm: LlmConfig = field(default_factory=LlmConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    rerank: RerankConfig = field(default_factory=RerankConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    one_edge: OneEdgeConfig = field(default_factory=OneEdgeConfig)
    table: TableConfig | None = None  # experiment=tableN, figN: a table over sweeps, not a run
    scale: ScaleConfig | None = None  # what those sweeps run on
    name: str = "run"  # of the experiment; names the run folder
    run_dir: str = "runs/run"  # results of this run
    store_dir: str = "lgp-store"  # stages shared by all runs
    dry_run: bool = False  # estimate calls, tokens and hours of the refinement, measure nothing
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    threads: int = 0  # CPU threads; 0 = torch's choice

    def __post_init__(self) -> None:
        layered, gain = self.index.kind is IndexKind.hnsw, self.refine.min_coverage_gain
        bound, name = self.index.max_degree, "index.max_degree"
        if layered:
            bound, name = 2 * self.index.connectivity, "2 * index.connectivity"
        if gain is not None and not 0 <= gain <= bound:
            raise ConfigError(
                f"refine.min_coverage_gain={gain} is outside 0..{name}={bound}: no candidate "
                "could pass; lower it"
            )
        if layered and self.refine.when is When.build:
            raise ConfigError(
                "refine.when=build with index.kind=hnsw: an HNSW is refined when it is finished; "
                "set refine.when=post"
            )
        asked, template = self.dataset.instruction, self.embedder.query_template
        if asked is not Instruction.none and template != "{text}":
            raise ConfigError(
                f"dataset.instruction={asked.value} with embedder.query_template={template!r}: a "
                "query would get two instructions; set dataset.instruction=none or "
                "embedder.query_template={text}"
            )
        if SelectorKind.llm in (self.refine.selector, *self.refine.controls):
            self._check_llm()
        self._check_rerank()
        self._check_repair()
        if self.one_edge.enabled and layered:
            raise ConfigError(
                "one_edge.enabled=true with index.kind=hnsw: it has no single flat graph to "
                "change; set index=diskann"
            )
        _at_least("threads", self.threads, 0, "0 leaves the choice to torch")

    def _check_llm(self) -> None:
        if self.llm.mode is not LlmMode.likelihood and not (
            self.prompt.selection_system and self.prompt.selection_user
        ):
            raise ConfigError(
                f"prompt={self.prompt.name} has no selection templates, which llm.mode="
                f"{self.llm.mode.value} needs; choose prompt=general or prompt=paper"
            )

    def _check_repair(self) -> None:
        if (
            self.refine.method is Method.repair
            and self.refine.node_budget < 1
            and LatentQueries.llm not in self.repair.queries
        ):
            said = [q.value for q in self.repair.queries]
            raise ConfigError(
                f"refine.node_budget={self.refine.node_budget} with refine.method=repair and "
                f"repair.queries={said}: nothing is asked that could be rationed; drop it, or "
                "add llm to repair.queries"
            )

    def _check_rerank(self) -> None:
        kind, engine = self.rerank.kind, self.llm.engine
        if kind is RerankKind.listwise and not (
            self.prompt.ranking_system and self.prompt.ranking_user
        ):
            raise ConfigError(
                f"prompt={self.prompt.name} has no ranking templates, which rerank=listwise "
                "needs; choose prompt=general or prompt=paper"
            )
        if kind is RerankKind.likelihood and engine is EngineKind.openai:
            raise ConfigError(
                "rerank=likelihood with llm.engine=openai: a server's answers do not tell log p "
                "of a query; choose rerank=listwise, or llm.engine=transformers"
            )


def to_plain(value: Any) -> Any:
    """Dataclasses and enums as JSON-able dicts, lists and strings."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {k: to_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return {k: to_plain(getattr(value, k)) for k in value.__dataclass_fields__}
    return value
