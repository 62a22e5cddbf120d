"""The engine a configuration names, and the language model behind it.

In: an `LlmConfig`. Out: an `Engine`. What is asked of it (`lgp.refine.listwise`, `lgp.rerank`) is
unknown here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from lgp.answers import AnswerLog
from lgp.ask import Engine
from lgp.choices import CorruptImages, EngineKind
from lgp.config_llm import LlmConfig
from lgp.continuous import ContinuousEngine
from lgp.fp8 import to_fp8
from lgp.generate import LocalEngine
from lgp.images import ImageFolder
from lgp.llm import LanguageModel, load_language_model, load_tokenizer, model_source
from lgp.openai_engine import OpenAIEngine
from lgp.replies import is_answered
from lgp.shipped import keep_facts, shipped_identity, shipped_model
from lgp.vlm import VisionModel, VlmEngine, load_vision_model


def language_model(llm: LlmConfig, device: str) -> LanguageModel:
    """The configured model, loaded once a process: selector and reranker use the same (paper
    section 5). With `llm.replay` it has no weights."""
    if llm.replay is not None:
        return shipped_model(llm)
    return _loaded(llm.model, llm.revision, llm.dtype, device, llm.device_map, llm.fp8)


@lru_cache(maxsize=2)  # two, since selector and reranker may be told apart
def _loaded(
    name: str, revision: str | None, dtype: str, device: str, device_map: str | None, fp8: bool
) -> LanguageModel:
    lm = load_language_model(name, revision, dtype, device, device_map)
    if not fp8:
        return lm
    to_fp8(lm.model)
    return replace(lm, identity=lm.identity | {"weights": "fp8"})


def answer_log(llm: LlmConfig, device: str, folder: Path) -> AnswerLog:
    """The log of a model's answers; what replaying it elsewhere needs is kept beside it."""
    if llm.replay is not None:
        return AnswerLog(folder, Path(llm.replay))
    if llm.engine in (EngineKind.transformers, EngineKind.continuous):
        keep_facts(language_model(llm, device), llm, folder)
    return AnswerLog(folder)


@lru_cache(maxsize=2)
def _loaded_vision(
    name: str,
    revision: str | None,
    dtype: str,
    device: str,
    device_map: str | None,
    min_pixels: int | None,
    max_pixels: int | None,
) -> VisionModel:
    return load_vision_model(name, revision, dtype, device, device_map, min_pixels, max_pixels)


def engine_model(llm: LlmConfig) -> dict[str, Any]:
    """What an engine's answers depend on besides prompts: a part of a stage's key."""
    if llm.engine is EngineKind.openai:
        return {
            "engine": "openai", "model": llm.model, "revision": llm.revision,
            "tokenizer": llm.tokenizer and model_source(llm.tokenizer),
            "no_thinking": llm.sends_no_thinking(),
        }  # fmt: skip
    how = {} if llm.engine is EngineKind.transformers else {"engine": llm.engine.value}
    if llm.engine is EngineKind.vlm:
        how["pixels"] = [llm.min_pixels, llm.max_pixels]
    if llm.fp8:
        how["weights"] = "fp8"
    source = (
        model_source(llm.model, llm.revision)
        if llm.replay is None
        else shipped_identity(llm)["revision"]
    )
    return how | {"model": source, "dtype": llm.dtype}


def make_engine(
    llm: LlmConfig,
    device: str,
    new_tokens: int | None = None,
    answered: Callable[[str], bool] = is_answered,
    stop: str = "answer line",
    folder: ImageFolder | None = None,
    corrupt_images: CorruptImages = CorruptImages.error,
) -> Engine:
    """The engine, its model loaded; a server is not contacted before the first prompt.

    Args:
        new_tokens: tokens an answer may have, None = `llm.new_tokens`.
        answered, stop: the stop rule and its name (`LocalEngine`); the other engines end at the
            end of the turn.
        folder, corrupt_images: of the images that prompts show (`VlmEngine`).
    """
    room = llm.new_tokens if new_tokens is None else new_tokens
    if llm.engine is EngineKind.openai:
        assert llm.base_url is not None
        return OpenAIEngine(
            llm.base_url, llm.model, llm.api_key_env, llm.revision, room,
            llm.sends_no_thinking(), llm.concurrency, llm.timeout_s, llm.retries,
            None if llm.tokenizer is None else load_tokenizer(llm.tokenizer),
        )  # fmt: skip
    if llm.engine is EngineKind.vlm:
        vision = _loaded_vision(
            llm.model, llm.revision, llm.dtype, device, llm.device_map, llm.min_pixels,
            llm.max_pixels,
        )  # fmt: skip
        return VlmEngine(
            vision.lm, llm.batch_tokens, room, answered, stop,
            vision=vision, folder=folder, corrupt_images=corrupt_images,
        )  # fmt: skip
    lm = language_model(llm, device)
    if llm.engine is EngineKind.continuous:
        return ContinuousEngine(lm, llm.batch_tokens, room)
    return LocalEngine(lm, llm.batch_tokens, room, answered, stop)
