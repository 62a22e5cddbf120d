"""The knobs of language models and their prompts, with their checks; a part of `lgp.config`.

No torch and no files here.
"""

from __future__ import annotations

from dataclasses import dataclass

from lgp.choices import LlmMode
from lgp.templates import PLACEHOLDERS, check_template


class ConfigError(ValueError):
    """A setting that cannot work, told before any work starts."""


def at_least(key: str, value: float, bound: float, way_out: str) -> None:
    """Refuse a value below its bound (ConfigError)."""
    if value < bound:
        raise ConfigError(f"{key}={value} is below {bound}; {way_out}")


@dataclass
class LlmConfig:
    model: str = "smollm2"  # hub name, folder, or the embedded "smollm2"
    revision: str | None = None
    mode: LlmMode = LlmMode.likelihood
    dtype: str = "float32"  # or bfloat16
    device_map: str | None = None  # accelerate's, over several GPUs: "auto"; null = one device
    anchor_tokens: int = 256  # the anchor's text is cut to this
    document_tokens: int = 128  # the text of a candidate or of a context document is cut to this
    batch_tokens: int = 4096  # padded tokens a batch
    min_score: float | None = None  # likelihood: picks below it are dropped
    new_tokens: int = 32  # generate: tokens an answer may have
    shuffle: int | None = None  # generate, constrained: seed of the order shown; null = shortlist's

    def __post_init__(self) -> None:
        for key in ("anchor_tokens", "document_tokens", "batch_tokens", "new_tokens"):
            at_least(f"llm.{key}", getattr(self, key), 1, "raise it")
        if self.dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"llm.dtype={self.dtype} is not one of float32, bfloat16")
        if self.min_score is not None and self.mode is not LlmMode.likelihood:
            raise ConfigError(
                f"llm.min_score={self.min_score} with llm.mode={self.mode.value}: only likelihood "
                "has such scores; drop it"
            )


@dataclass
class PromptConfig:
    """Templates; their placeholders are in `lgp.templates`."""

    name: str = "likelihood"
    prefix: str = "{anchor}\n\n"  # what stands before a candidate in likelihood mode
    selection_system: str | None = None  # generate, constrained (C.1)
    selection_user: str | None = None
    ranking_system: str | None = None  # listwise reranking (C.2)
    ranking_user: str | None = None
    query_prefix: str = "Passage: {document}\nQuery: "  # before a query in likelihood reranking
    documents: str = "documents"  # what the collection holds, for {documents}
    uses: str = ""  # what makes a candidate useful there, for {uses}

    def __post_init__(self) -> None:
        if self.prefix.count("{anchor}") != 1:
            raise ConfigError(
                f"prompt.prefix={self.prefix!r} must hold {{anchor}} exactly once; add it"
            )
        for key, placeholders in PLACEHOLDERS.items():
            if getattr(self, key) is None:
                continue
            try:
                check_template(getattr(self, key), placeholders)
            except ValueError as error:
                raise ConfigError(f"prompt.{key} {error}") from error
