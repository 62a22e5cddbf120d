"""The knobs of language models and their prompts, with their checks; a part of `lgp.config`.

No torch and no files here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from lgp.choices import EngineKind, LlmMode
from lgp.templates import PLACEHOLDERS, check_template


class ConfigError(ValueError):
    """A setting that cannot work, told before any work starts."""


def at_least(key: str, value: float, bound: float, way_out: str) -> None:
    """Refuse a value below its bound (ConfigError)."""
    if value < bound:
        raise ConfigError(f"{key}={value} is below {bound}; {way_out}")


@dataclass
class LlmConfig:
    model: str = "smollm2"  # hub name, folder, or the embedded "smollm2"; openai: the server's name
    revision: str | None = None
    engine: EngineKind = EngineKind.transformers
    mode: LlmMode = LlmMode.likelihood
    dtype: str = "float32"  # or bfloat16
    fp8: bool = False  # linear layers in 8-bit floats (lgp.fp8): half the memory, other rounding
    device_map: str | None = None  # accelerate's, over several GPUs: "auto"; null = one device
    anchor_tokens: int = 256  # the anchor's text is cut to this
    document_tokens: int = 128  # the text of a candidate or of a context document is cut to this
    batch_tokens: int = 4096  # padded tokens a batch
    min_score: float | None = None  # likelihood: picks below it are dropped
    min_pixels: int | None = None  # vlm: smaller images are scaled up; null = the model's bounds
    max_pixels: int | None = None  # vlm: larger images are scaled down
    new_tokens: int = 32  # generate: tokens an answer may have
    shuffle: int | None = None  # generate, constrained: seed of the order shown; null = shortlist's
    base_url: str | None = None  # this and the next six: openai. Address up to /v1
    api_key_env: str | None = None  # name of the environment variable with the key; null = no key
    concurrency: int = 16  # requests at a time
    timeout_s: float = 120.0  # seconds an answer may take
    retries: int = 5  # of a request
    tokenizer: str | None = None  # model that cuts texts by tokens; null = 4 characters a token
    no_thinking: bool | None = None  # send enable_thinking=false; null = to models named Qwen3...
    replay: str | None = None  # folder of answers made elsewhere: only these, no weights needed
    prompt_price: float | None = None  # currency per million tokens read; null = not counted
    output_price: float | None = None  # currency per million tokens written
    currency: str = ""

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
        if self.engine is not EngineKind.transformers and self.mode is not LlmMode.generate:
            raise ConfigError(
                f"llm.engine={self.engine.value} with llm.mode={self.mode.value}: it only writes; "
                "set llm.mode=generate, or llm.engine=transformers"
            )
        self._check_images()
        self._check_server()

    def _check_images(self) -> None:
        """The knobs of `engine=vlm`."""
        if self.engine is EngineKind.vlm:
            if self.fp8:
                raise ConfigError("llm.fp8=true with llm.engine=vlm is not offered; drop it")
            if self.replay is not None:
                raise ConfigError("llm.replay with llm.engine=vlm is not offered; drop it")
            low, high = self.min_pixels, self.max_pixels
            if low is not None and high is not None and low > high:
                raise ConfigError(f"llm.min_pixels={low} is above llm.max_pixels={high}; lower it")
        for key in ("min_pixels", "max_pixels"):
            value = getattr(self, key)
            if value is not None and self.engine is not EngineKind.vlm:
                raise ConfigError(
                    f"llm.{key} is set with llm.engine={self.engine.value}, which reads no "
                    "images; drop it, or set llm.engine=vlm"
                )
            if value is not None:
                at_least(f"llm.{key}", value, 1, "leave it null for the model's bound")

    def _check_server(self) -> None:
        """The knobs of `engine=openai`; a key put in the wrong place is not repeated."""
        if self.engine is EngineKind.openai and self.fp8:
            raise ConfigError(
                "llm.fp8=true with llm.engine=openai: a server chooses its own weights; drop it"
            )
        if self.engine is not EngineKind.openai:
            for key in ("base_url", "api_key_env", "tokenizer", "no_thinking"):
                if getattr(self, key) is not None:
                    raise ConfigError(
                        f"llm.{key} is set with llm.engine={self.engine.value}, which does not "
                        "read it; drop it, or set llm.engine=openai"
                    )
            return
        address = urlsplit(self.base_url or "")
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(
                "llm.base_url is no http(s) address; set it to the server's, as in "
                "http://127.0.0.1:8000/v1"
            )
        if "@" in address.netloc or address.query:
            raise ConfigError(
                "llm.base_url holds more than host and path; put a key into an environment "
                "variable and its name into llm.api_key_env"
            )
        if self.api_key_env is not None and not re.fullmatch("[A-Z_][A-Z0-9_]*", self.api_key_env):
            raise ConfigError(
                "llm.api_key_env is no name of an environment variable (capitals, digits, _); "
                "give the variable's name, not the key"
            )
        at_least("llm.concurrency", self.concurrency, 1, "raise it")
        at_least("llm.retries", self.retries, 0, "0 tries once")
        if not self.timeout_s > 0:
            raise ConfigError(f"llm.timeout_s={self.timeout_s} is not above 0; raise it")

    def sends_no_thinking(self) -> bool:
        """Whether a server is told to leave thinking out."""
        if self.no_thinking is not None:
            return self.no_thinking
        return self.model.rpartition("/")[2].startswith("Qwen3")


@dataclass
class PromptConfig:
    """Templates; their placeholders are in `lgp.templates`."""

    name: str = "likelihood"
    prefix: str = "{anchor}\n\n"  # what stands before a candidate in likelihood mode
    selection_system: str | None = None  # generate, constrained (C.1)
    selection_user: str | None = None
    ranking_system: str | None = None  # listwise reranking (C.2)
    ranking_user: str | None = None
    passage_mark: str = "[{n}] "  # before each passage in listwise reranking
    query_prefix: str = "Passage: {document}\nQuery: "  # before a query in likelihood reranking
    query_system: str | None = None  # writing latent queries; ours
    query_user: str | None = None
    documents: str = "documents"  # what the collection holds, for {documents}
    uses: str = ""  # what makes a candidate useful there, for {uses}

    def __post_init__(self) -> None:
        if self.prefix.count("{anchor}") != 1:
            raise ConfigError(
                f"prompt.prefix={self.prefix!r} must hold {{anchor}} exactly once; add it"
            )
        if "[{n}]" not in self.passage_mark:
            raise ConfigError(
                f"prompt.passage_mark={self.passage_mark!r} lacks [{{n}}], by which answers name "
                "passages; add it"
            )
        for key, placeholders in PLACEHOLDERS.items():
            if getattr(self, key) is None:
                continue
            try:
                check_template(getattr(self, key), placeholders)
            except ValueError as error:
                raise ConfigError(f"prompt.{key} {error}") from error
