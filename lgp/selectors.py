"""Make the selector a configuration names: models loaded, logs opened, tables read.

In: settings, texts. Out: a `Selector` and the facts that identify its answers. How selectors
choose is in `lgp.refine`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import Tensor

from lgp.choices import EngineKind, LlmMode, Pooling, SelectorKind
from lgp.config import Config, to_plain
from lgp.config_refine import RefineConfig
from lgp.embed import HfEncoder, Kind, embed_hf
from lgp.engines import answer_log, engine_model, language_model, make_engine
from lgp.images import Pictures
from lgp.refine.listwise import Listwise, ListwiseSettings
from lgp.refine.llm_select import Likelihood, LikelihoodSettings
from lgp.refine.log import EditLog
from lgp.refine.select import (
    Encoder,
    Recorded,
    Scripted,
    Selector,
    Uniform,
    farthest,
    first,
    nearest,
)
from lgp.refine.step import StepSettings
from lgp.store import digest_of, file_digest


def selector_inputs(kind: SelectorKind, config: Config, texts_digest: str) -> dict[str, Any]:
    """What a selector's answers depend on besides graph and vectors: a part of the stage key."""
    refine = config.refine
    if kind is SelectorKind.uniform:
        return {"seed": refine.seed}
    if kind is SelectorKind.encoder:
        return {
            "texts": texts_digest, "encoder": refine.encoder, "tokens": refine.encoder_tokens,
            "weight": refine.redundancy_weight,
        }  # fmt: skip
    if kind is SelectorKind.llm:
        likelihood = config.llm.mode is LlmMode.likelihood
        settings = likelihood_settings(config).__dict__ if likelihood else _listwise_inputs(config)
        return {"texts": texts_digest, "mode": settings} | engine_model(config.llm)
    if kind is SelectorKind.recorded:
        return {"log": _digest(refine.log)}
    if kind is SelectorKind.scripted:
        return {"answers": _digest(refine.answers)}
    return {}


def _digest(path: str | None) -> str:
    if path is None or not Path(path).is_file():
        raise ValueError(f"{path} is not a file; give the path of a saved log or table")
    return file_digest(Path(path))


def likelihood_settings(config: Config) -> LikelihoodSettings:
    llm = config.llm
    return LikelihoodSettings(
        config.prompt.prefix, llm.anchor_tokens, llm.document_tokens, llm.batch_tokens,
        llm.min_score,
    )  # fmt: skip


def listwise_settings(config: Config) -> ListwiseSettings:
    llm = config.llm
    return ListwiseSettings(llm.mode, llm.anchor_tokens, llm.document_tokens, llm.shuffle)


def _listwise_inputs(config: Config) -> dict[str, Any]:
    llm, prompt = config.llm, config.prompt
    how = {"new_tokens": llm.new_tokens} if llm.mode is LlmMode.generate else {}
    return {
        "listwise": to_plain(listwise_settings(config)),
        "batch_tokens": llm.batch_tokens,
        "system": prompt.selection_system, "user": prompt.selection_user,
        "documents": prompt.documents, "uses": prompt.uses,
    } | how  # fmt: skip


def step_settings(refine: RefineConfig, alpha: float) -> StepSettings:
    """The knobs of a refinement step; alpha is that of the graph."""
    return StepSettings(
        refine.edit_budget, refine.shortlist_size, refine.context_size, refine.min_coverage_gain,
        refine.shortlist, refine.victim, alpha,
    )  # fmt: skip


def make_selector(
    kind: SelectorKind,
    config: Config,
    texts: Sequence[str],
    encoder_vectors: Callable[[], Tensor],
    answers: Path,
    device: str,
    progress: bool = True,
    pictures: Pictures | None = None,
) -> Selector:
    """The selector itself, its model loaded.

    Args:
        pictures: images per node, for an engine that reads them.
        texts: a text per node. encoder_vectors: unit vectors [N, E] of the stronger encoder.
        answers: folder of the answer log.
    """
    refine, llm = config.refine, config.llm
    if kind is SelectorKind.encoder:
        return Encoder(encoder_vectors(), refine.redundancy_weight)
    if kind is SelectorKind.llm:
        log = answer_log(llm, device, answers)
        if llm.mode is LlmMode.likelihood:
            lm = language_model(llm, device)
            return Likelihood(lm, texts, likelihood_settings(config), log, progress)
        shown = pictures if llm.engine is EngineKind.vlm else None
        engine = make_engine(
            llm, device, folder=None if shown is None else shown.folder,
            corrupt_images=config.embedder.corrupt_images,
        )  # fmt: skip
        return Listwise(
            engine, texts, config.prompt, listwise_settings(config), log, progress,
            shown.refs if shown is not None else (),
        )  # fmt: skip
    if kind is SelectorKind.recorded:
        assert refine.log is not None
        recorded = EditLog.load(Path(refine.log))
        if (method := recorded.header.get("method", "lgp")) != "lgp":
            raise ValueError(
                f"{refine.log} is the log of refine.method={method}, whose edges are no selector's "
                "decisions; run that method again, or apply it with lgp.refine.log.apply_edits"
            )
        return Recorded.from_log(recorded, len(texts))
    if kind is SelectorKind.scripted:
        assert refine.answers is not None
        return Scripted.from_file(Path(refine.answers))
    plain: dict[SelectorKind, Selector] = {
        SelectorKind.uniform: Uniform(refine.seed),
        SelectorKind.farthest: farthest,
        SelectorKind.nearest: nearest,
        SelectorKind.first: first,
    }
    return plain[kind]


def mean_encoder(model: str, max_tokens: int) -> HfEncoder:
    """A mean-pooled encoder (the embedded MiniLM is one), for selection and reranking."""
    return HfEncoder(model=model, pooling=Pooling.mean, max_tokens=max_tokens)


def default_text_selector(name: str, texts: list[str]) -> Selector:
    """The embedded models behind `lgp.refine(..., selector="encoder" | "llm")`."""
    config = Config()
    answers = Path(mkdtemp(prefix="lgp-answers-"))

    def vectors() -> Tensor:
        encoder = mean_encoder(config.refine.encoder, config.refine.encoder_tokens)
        return torch.from_numpy(embed_hf(texts, Kind.DOCUMENT, encoder, "cpu"))

    return make_selector(SelectorKind(name), config, texts, vectors, answers, "cpu")


def texts_digest(texts: Sequence[str]) -> str:
    """sha256 over the texts in order."""
    return digest_of(list(texts))
