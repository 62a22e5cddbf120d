"""The closed choices of the configuration: a typo lists the members."""

from __future__ import annotations

from enum import Enum


class DatasetKind(Enum):
    toy = "toy"
    pydocs = "pydocs"
    beir = "beir"


class EmptyDocuments(Enum):
    """What happens to documents with neither title nor text; they are counted either way."""

    embed = "embed"
    drop = "drop"


class UnknownIds(Enum):
    """What happens to judgments and exclusions that name ids not in the collection."""

    error = "error"
    drop = "drop"


class EmbedderKind(Enum):
    wordllama = "wordllama"
    hf = "hf"
    precomputed = "precomputed"


class Pooling(Enum):
    """How token states become one vector: mean over tokens, first token, last token."""

    mean = "mean"
    cls = "cls"
    last = "last"


class IndexKind(Enum):
    """A flat graph as DiskANN builds it, or a hierarchy whose base layer is refined."""

    vamana = "vamana"
    hnsw = "hnsw"


class MetricName(Enum):
    cosine = "cosine"
    l2 = "l2"


class SelectorKind(Enum):
    none = "none"
    uniform = "uniform"
    farthest = "farthest"
    nearest = "nearest"
    first = "first"
    encoder = "encoder"
    llm = "llm"
    recorded = "recorded"
    scripted = "scripted"


class When(Enum):
    """Refine inside the last construction pass (§E.1), or a finished graph."""

    build = "build"
    post = "post"


class NodeOrder(Enum):
    random = "random"


class ShortlistRule(Enum):
    """Which rankings fill the shortlist (§B.3, Table 13)."""

    balanced = "balanced"
    proximity = "proximity"
    coverage = "coverage"
    separation = "separation"


class VictimRule(Enum):
    """How the neighbor to replace is found (§B.3, Table 14)."""

    lexicographic = "lexicographic"
    redundancy = "redundancy"
    coverage = "coverage"


class LlmMode(Enum):
    """How a language model selects (DESIGN section 5); the first two share the listwise prompt."""

    generate = "generate"
    constrained = "constrained"
    likelihood = "likelihood"


class EngineKind(Enum):
    """Where a language model runs: here, here under transformers' continuous batching, or behind
    an OpenAI-compatible server."""

    transformers = "transformers"
    continuous = "continuous"
    openai = "openai"


class Exclude(Enum):
    """How excluded documents leave a result: see `lgp.search.frontier`."""

    collect = "collect"
    post = "post"


class RerankKind(Enum):
    """Who reorders what was found: a stronger encoder, or a language model by a listwise prompt
    (§C.2) or by query likelihood."""

    none = "none"
    encoder = "encoder"
    listwise = "listwise"
    likelihood = "likelihood"


class TrackingMode(Enum):
    off = "off"
    offline = "offline"
    online = "online"
