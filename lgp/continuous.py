"""The in-process engine on transformers' continuous batching.

In: chats. Out: texts. Prompts are packed without padding, a prompt that has ended makes room for
the next, and what prompts start with in common is read once. There is no stop at the end of the
answer line: `new_tokens` bounds an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from lgp.ask import Prompt
from lgp.generate import LocalEngine, never

STEP_TOKENS = 2048
"""Tokens of one forward pass; more would not fill a GPU better, but its attention mask grows."""


@dataclass
class ContinuousEngine(LocalEngine):
    """A `LocalEngine` whose answers are decoded by `model.generate_batch`.

    The cache holds the batch and no more: left alone, transformers takes 60 % of the free memory
    on a CPU, 90 % on a GPU.

    Raises:
        ValueError: the installed transformers, or this model, has no continuous batching.
    """

    def __post_init__(self) -> None:
        if self.answered is not never:
            raise ValueError("continuous batching ends answers at the end of their turn only")
        if not hasattr(self.lm.model, "generate_batch") or _config_class() is None:
            import transformers

            raise ValueError(
                f"transformers {transformers.__version__} has no continuous batching for "
                f"{type(self.lm.model).__name__}; set llm.engine=transformers"
            )

    @cached_property
    def identity(self) -> dict[str, Any]:
        return self.lm.identity | {"engine": "continuous"}

    def generate(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """What the model writes after each prompt, up to its end of turn or `new_tokens`.

        Raises:
            torch.OutOfMemoryError: the batch does not fit.
            RuntimeError: transformers gave up on a prompt.
        """
        from transformers import GenerationConfig

        model = self.lm.model
        # Equal prompts have equal answers; transformers reads each once and names none twice.
        distinct = list({tuple(prompt.content): prompt.content for prompt in prompts}.values())
        bounds, plain = self._bounds(distinct), model.config._attn_implementation
        # Flash attention, whose results differ, is not to be swapped in. transformers 5.17
        # has no switch for that, but leaves alone what is called paged already.
        if not hasattr(bounds, "auto_switch_to_flash"):
            model.set_attn_implementation(f"paged|{plain}")
        try:
            results = model.generate_batch(
                distinct,
                generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                    max_new_tokens=self.new_tokens, do_sample=False,
                    eos_token_id=sorted(self._ends) or None,
                ),
                continuous_batching_config=bounds,
                warmup=False,
            )  # fmt: skip
        finally:
            model.set_attn_implementation(plain)
        written = {tuple(result.prompt_ids): result for result in results.values()}
        return [self._answer(prompt, written.get(tuple(prompt.content))) for prompt in prompts]

    def _answer(self, prompt: Prompt, result: Any) -> dict[str, Any]:
        error = "it came to no end" if result is None else result.error
        if error is not None:
            if "out of memory" in str(error).lower():
                raise torch.OutOfMemoryError(str(error))
            raise RuntimeError(
                f"continuous batching failed on a prompt of {len(prompt.content)} tokens: {error}; "
                "set llm.engine=transformers"
            )
        tokens = result.generated_tokens
        return {
            "text": self._text([t for t in tokens if t not in self._ends]),
            "prompt_tokens": len(prompt.content),
            "output_tokens": len(tokens),
        }

    def _bounds(self, prompts: Sequence[Sequence[int]]) -> Any:
        """A cache that holds these prompts and their answers, and passes of bounded size."""
        config = _config_class()()
        page = getattr(config, "page_size", None) or config.block_size  # its name in 5.17
        config.num_blocks = sum(-(-(len(ids) + self.new_tokens) // page) + 1 for ids in prompts)
        config.max_batch_tokens = STEP_TOKENS
        config.max_requests_per_batch = len(prompts)
        if hasattr(config, "auto_switch_to_flash"):
            config.auto_switch_to_flash = False
        return config


def _config_class() -> Any:
    """transformers' settings of continuous batching, None where there are none."""
    import transformers

    return getattr(transformers, "ContinuousBatchingConfig", None)
