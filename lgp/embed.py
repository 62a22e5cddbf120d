"""Texts to vectors: packaged static vectors, any transformers encoder, or a file made elsewhere.

Input is a list of texts, output float32 unit rows [N, D] in the same order, each row depending on
its own text alone. Distances and the collapsing of equal texts are left to other modules.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from lgp.blocks import Plan, embed_plan
from lgp.choices import Pooling
from lgp.packaged import WORDLLAMA_FILES, model_path, packaged_file, source_digest
from lgp.vectors import Vectors, check_vectors, embed_precomputed, refuse_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "HfEncoder",
    "Kind",
    "Pooling",
    "Vectors",
    "check_vectors",
    "embed_hf",
    "embed_precomputed",
    "embed_wordllama",
    "model_path",
    "plan_hf",
    "plan_wordllama",
    "source_digest",
]

Tokens = npt.NDArray[np.int32]

log = logging.getLogger(__name__)

START_TOKEN = 1  # `<s>`; stands in for texts without any token


class Kind(Enum):
    """What a text is; encoders may wrap queries and documents in different templates."""

    DOCUMENT = "document"
    QUERY = "query"


@dataclass(frozen=True)
class HfEncoder:
    """Settings of a transformers encoder.

    Attributes:
        model: folder, hub name, or "minilm" for the packaged all-MiniLM-L6-v2.
        revision: commit or tag of a hub model; ignored for folders.
        query_template, document_template: must hold "{text}" once; kept verbatim otherwise.
        max_tokens: longest input, special tokens included; longer texts are cut and counted.
        batch_tokens: bound on texts x longest text of a batch, padding included.
        dtype: "float32" or "bfloat16", of weights and activations; vectors are float32 anyway.
        expected_final_token: for last pooling, the token every input must end with.
    """

    model: str
    revision: str | None = None
    pooling: Pooling = Pooling.mean
    query_template: str = "{text}"
    document_template: str = "{text}"
    max_tokens: int = 256
    batch_tokens: int = 8192
    dtype: str = "float32"
    expected_final_token: str | None = None

    def __post_init__(self) -> None:
        for name in ("query_template", "document_template"):
            if getattr(self, name).count("{text}") != 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must hold {{text}} exactly once")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens} is below 1")
        if self.batch_tokens < self.max_tokens:
            raise ValueError(
                f"batch_tokens={self.batch_tokens} is below max_tokens={self.max_tokens}, so one "
                "long text would not fit; raise batch_tokens or lower max_tokens"
            )
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype={self.dtype!r} is unknown; known: float32, bfloat16")
        if self.expected_final_token is not None and self.pooling is not Pooling.last:
            raise ValueError(
                f"expected_final_token={self.expected_final_token!r} is checked for pooling=last "
                f"only, but pooling={self.pooling.value}; leave it empty or set pooling=last"
            )


def embed_wordllama(texts: Sequence[str]) -> Vectors:
    """Mean of the packaged WordLlama token vectors of each text: float32 unit rows [N, 256].

    Neither special tokens nor truncation: with both off SciFact's exact NDCG@10 is 51.3, with
    either on 51.1 or less. A text without tokens (the empty text) gets the unit vector of the
    start token `<s>`, the only token its full encoding would have; how many is logged.

    Raises:
        ModuleNotFoundError: the wordllama wheel is not installed.
    """
    vectors = embed_plan(plan_wordllama(texts), progress=False)
    return check_vectors(vectors, "wordllama vectors", normalise=True)


def plan_wordllama(texts: Sequence[str]) -> Plan:
    """`embed_wordllama` as a plan: its rows before they are normalised."""
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    # The package itself is not imported: it needs dependencies we do not, and its loader does not
    # find its own tokenizer offline.
    weights, tokenizer_file = (packaged_file("wordllama", name) for name in WORDLLAMA_FILES)
    table = load_file(weights)["embedding.weight"].astype(np.float32)  # [32000, 256]
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.no_truncation()

    n_without = 0

    def embed(batch: Sequence[int]) -> Vectors:
        nonlocal n_without
        chunk = [texts[place] for place in batch]
        encodings = tokenizer.encode_batch_fast(chunk, add_special_tokens=False)
        n_without += sum(not encoding.ids for encoding in encodings)
        if n_without and batch[-1] == len(texts) - 1:
            log.warning("%d of %d texts have no token and share one vector", n_without, len(texts))
        return np.stack([table[e.ids or [START_TOKEN]].mean(axis=0) for e in encodings])

    # Encodings hold offsets and strings: a lot of memory.
    batches = [range(at, min(at + 1024, len(texts))) for at in range(0, len(texts), 1024)]
    return Plan(batches, embed, [1] * len(texts), "embedding", "text")


def embed_hf(
    texts: Sequence[str], kind: Kind, encoder: HfEncoder, device: str, progress: bool = True
) -> Vectors:
    """Vectors of a transformers encoder: float32 unit rows [N, D], in input order.

    Batches hold texts of similar length, longest first, so a lack of memory shows at once. In
    float32 a text's vector is the same to about 1e-6 whatever it is batched with. The number of
    texts cut to `max_tokens` is logged as a warning. The model is loaded for the call and freed.

    Raises:
        ValueError: `max_tokens` above the model's positions, a text without any token (its rows
            are named), or an input that does not end with `expected_final_token`.
    """
    vectors = embed_plan(plan_hf(texts, kind, encoder, device), progress)
    return check_vectors(vectors, f"vectors of {encoder.model}", normalise=True)


def plan_hf(texts: Sequence[str], kind: Kind, encoder: HfEncoder, device: str) -> Plan:
    """`embed_hf` as a plan: its rows before they are normalised. The model is loaded."""
    from transformers import AutoModel, AutoTokenizer

    name = model_path(encoder.model)
    tokenizer = AutoTokenizer.from_pretrained(name, revision=encoder.revision)
    model = AutoModel.from_pretrained(
        name, revision=encoder.revision, dtype=getattr(torch, encoder.dtype)
    )
    model.config.use_cache = False
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and encoder.max_tokens > positions:
        raise ValueError(
            f"max_tokens={encoder.max_tokens} is above the {positions} positions of "
            f"{encoder.model}; lower max_tokens"
        )
    template = encoder.query_template if kind is Kind.QUERY else encoder.document_template
    inputs = _tokenize([template.replace("{text}", text) for text in texts], tokenizer, encoder)
    lengths = [len(ids) for ids in inputs]
    model = model.to(device).eval()

    @torch.inference_mode()
    def embed(batch: Sequence[int]) -> Vectors:
        pooled = _pool([inputs[place] for place in batch], model, tokenizer, encoder.pooling)
        found: Vectors = pooled.float().cpu().numpy()
        return found

    order = sorted(range(len(inputs)), key=lambda place: -lengths[place])
    batches = _batches(order, lengths, encoder.batch_tokens)
    return Plan(batches, embed, lengths, f"embedding, {kind.value}")


def _tokenize(
    texts: list[str], tokenizer: "PreTrainedTokenizerBase", encoder: HfEncoder
) -> list[Tokens]:
    """Token ids of each text, special tokens included, at most `max_tokens` of them."""
    tokenizer.truncation_side = "right"
    inputs: list[Tokens] = []
    n_cut = 0
    for first in range(0, len(texts), 4096):  # lists of Python integers take ten times the memory
        chunk = texts[first : first + 4096]
        found: list[list[int]] = tokenizer(chunk, verbose=False)["input_ids"]
        # Whole lengths are needed to count the cut texts; the tokenizer does the cutting, since
        # only it knows which special tokens must stay at the end.
        long = [row for row, ids in enumerate(found) if len(ids) > encoder.max_tokens]
        if long:
            long_texts = [chunk[row] for row in long]
            cut = tokenizer(long_texts, truncation=True, max_length=encoder.max_tokens)["input_ids"]
            for row, ids in zip(long, cut, strict=True):
                found[row] = ids
        n_cut += len(long)
        inputs += [np.array(ids, dtype=np.int32) for ids in found]
    if n_cut:
        log.warning("%d of %d texts cut to %d tokens", n_cut, len(texts), encoder.max_tokens)
    empty = [ids.size == 0 for ids in inputs]
    refuse_rows(empty, "texts", "have no token; drop empty documents (empty=drop)")
    if encoder.expected_final_token is not None:
        final = tokenizer.convert_tokens_to_ids(encoder.expected_final_token)
        refuse_rows(
            [ids[-1] != final for ids in inputs],
            f"inputs of {encoder.model}",
            f"do not end with expected_final_token={encoder.expected_final_token!r} (id {final}); "
            "its tokenizer must append it, or the template must hold it",
        )
    return inputs


def _batches(order: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Cut `order` (longest first) into batches of at most `batch_tokens` padded tokens."""
    batches: list[list[int]] = []
    for row in order:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= batch_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _pool(
    inputs: list[Tokens],
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    pooling: Pooling,
) -> torch.Tensor:
    """Run one batch: [B, D]. Last pooling pads on the left, so the last column is always real."""
    width = max(map(len, inputs))
    pad = tokenizer.pad_token_id or 0  # masked, so any valid id does
    left = pooling is Pooling.last
    ids = torch.full((len(inputs), width), pad)
    mask = torch.zeros((len(inputs), width), dtype=torch.long)
    for row, tokens in enumerate(inputs):
        place = slice(width - len(tokens), None) if left else slice(len(tokens))
        ids[row, place] = torch.from_numpy(tokens)
        mask[row, place] = 1
    ids, mask = ids.to(model.device), mask.to(model.device)  # [B, T]
    # Without this, decoders count positions from the padding.
    extra = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if left else {}
    states: torch.Tensor = model(input_ids=ids, attention_mask=mask, **extra).last_hidden_state
    if pooling is Pooling.last:
        return states[:, -1]
    if pooling is Pooling.cls:
        return states[:, 0]
    weights = mask.unsqueeze(2)  # states are [B, T, D]
    return torch.sum(states.float() * weights, dim=1) / weights.sum(1)
