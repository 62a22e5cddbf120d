"""The closed choices of the configuration: a typo lists the members."""

from __future__ import annotations

from enum import Enum


class DatasetKind(Enum):
    toy = "toy"
    pydocs = "pydocs"
    beir = "beir"
    bright = "bright"
    mbeir = "mbeir"
    image_text = "image_text"


class Direction(Enum):
    """image_text: which side is searched; the other one asks."""

    text_to_image = "text_to_image"
    image_to_text = "image_to_text"


class BrightTask(Enum):
    """The 12 datasets of BRIGHT; values are its names of splits."""

    biology = "biology"
    earth_science = "earth_science"
    economics = "economics"
    psychology = "psychology"
    robotics = "robotics"
    stackoverflow = "stackoverflow"
    sustainable_living = "sustainable_living"
    leetcode = "leetcode"
    pony = "pony"
    aops = "aops"
    theoremqa_questions = "theoremqa_questions"
    theoremqa_theorems = "theoremqa_theorems"


class MbeirTask(Enum):
    """The 16 tasks of M-BEIR that have a pool of their own."""

    visualnews_task0 = "visualnews_task0"
    mscoco_task0 = "mscoco_task0"
    fashion200k_task0 = "fashion200k_task0"
    webqa_task1 = "webqa_task1"
    edis_task2 = "edis_task2"
    webqa_task2 = "webqa_task2"
    visualnews_task3 = "visualnews_task3"
    mscoco_task3 = "mscoco_task3"
    fashion200k_task3 = "fashion200k_task3"
    nights_task4 = "nights_task4"
    oven_task6 = "oven_task6"
    infoseek_task6 = "infoseek_task6"
    fashioniq_task7 = "fashioniq_task7"
    cirr_task7 = "cirr_task7"
    oven_task8 = "oven_task8"
    infoseek_task8 = "infoseek_task8"


class QuerySource(Enum):
    """BRIGHT: the queries as asked, or as a language model rewrote them; values are folders."""

    original = "examples"
    gpt4_reason = "gpt4_reason"
    claude_3_opus_reason = "claude-3-opus_reason"
    gemini_1_0_reason = "Gemini-1.0_reason"
    llama3_70b_reason = "llama3-70b_reason"
    grit_reason = "grit_reason"


class Instruction(Enum):
    """What an embedder reads before each query: nothing, BRIGHT's sentences as its Qwen-like or
    its BGE models read them, or one of M-BEIR's own."""

    none = "none"
    qwen = "qwen"
    bge = "bge"
    uniir = "uniir"


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
    open_clip = "open_clip"
    precomputed = "precomputed"


class Pooling(Enum):
    """How token states become one vector: mean over tokens, first token, last token."""

    mean = "mean"
    cls = "cls"
    last = "last"


class Storage(Enum):
    """In which precision vectors lie in the store; they are float32 wherever they are used."""

    float32 = "float32"
    float16 = "float16"


class Fusion(Enum):
    """How the features of a text and of an image become one vector, normalised afterwards."""

    sum = "sum"
    normalise_then_sum = "normalise_then_sum"


class CorruptImages(Enum):
    """What happens to files that are no images: nothing runs, or they count as no image."""

    error = "error"
    skip = "skip"


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
    """Which nodes are asked about first under a budget (beta < 1); ours."""

    random = "random"
    traffic = "traffic"  # that searches for latent queries pass most often
    blind_spots = "blind_spots"  # that such searches should return and most often do not
    in_degree = "in_degree"  # that most edges point to
    low_in_degree = "low_in_degree"


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
    """Where a language model runs: here, here under transformers' continuous batching, here with
    images (a vision-language model), or behind an OpenAI-compatible server."""

    transformers = "transformers"
    continuous = "continuous"
    vlm = "vlm"
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


class Method(Enum):
    """How a graph is refined."""

    lgp = "lgp"  # the paper's
    repair = "repair"  # edges where searches for latent queries get stuck; ours
    lgp_repair = "lgp+repair"
    vars()["lgp+repair"] = "lgp+repair"  # the same under the name that people write


class LatentQueries(Enum):
    """Where a repair's queries come from; nobody judged them."""

    title = "title"  # of every document
    first_sentence = "first_sentence"  # of every document's body
    llm = "llm"  # written by the language model, document by document
    lgp = "lgp"  # the QUERY: lines of an LGP run's answers
    log = "log"  # a file of real queries
    train = "train"  # another split of the collection


class RepairSource(Enum):
    """Which found node gets the edge to a missed target."""

    closest = "closest"  # to the query
    target = "target"  # to the target, among the result
    path = "path"  # to the target, among all expanded nodes
    coverage = "coverage"  # whose two-hop reach the target widens most, among the result (§4)
