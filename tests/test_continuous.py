"""Continuous batching writes what the plain engine writes, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from lgp.choices import EngineKind, LlmMode
from lgp.config_llm import LlmConfig
from lgp.continuous import ContinuousEngine
from lgp.engines import make_engine
from lgp.generate import LocalEngine, decode_greedily
from lgp.llm import LanguageModel, load_language_model
from lgp.prompts import Chat, Piece

pytestmark = pytest.mark.skipif(
    not hasattr(transformers, "ContinuousBatchingConfig"),
    reason=f"transformers {transformers.__version__} has no continuous batching",
)


@pytest.fixture(params=["tiny_lm", "tiny_qwen3"])
def lm(request: pytest.FixtureRequest) -> LanguageModel:
    return load_language_model(str(request.getfixturevalue(request.param)))


def chat(n_words: int) -> Chat:
    return Chat(
        (Piece("You choose. " * 9),), (Piece("doc: "), Piece("river " * n_words, data=True))
    )


LENGTHS = (1, 21, 90, 21)  # one comes twice, one fills more than a page


def test_its_text_is_the_plain_engines(lm: LanguageModel) -> None:
    plain, packed = LocalEngine(lm, new_tokens=8), ContinuousEngine(lm, new_tokens=8)
    prompts = [plain.encode(chat(n)) for n in LENGTHS]
    attention = lm.model.config._attn_implementation
    expected = plain.generate(prompts)
    assert max(len(prompt.content) for prompt in prompts) > 256
    assert packed.generate(prompts) == expected
    assert packed.generate(prompts[2:0:-1]) == expected[2:0:-1]
    assert lm.model.config._attn_implementation == attention
    assert plain.generate(prompts) == expected  # the model is left as it was
    assert packed.decoding == plain.decoding and packed.identity != plain.identity
    assert packed.decoding["stop"] == "end of turn"


def test_answers_end_with_their_turn(lm: LanguageModel) -> None:
    plain = LocalEngine(lm, new_tokens=8)
    prompts = [plain.encode(chat(n)) for n in LENGTHS]
    with torch.inference_mode():
        written = decode_greedily(lm, plain._prefill(prompts, 8), 8, lambda tokens: False)
    # The fourth token of the first answer ends a turn from now on.
    lm.model.generation_config.eos_token_id = [written[0][3]]
    expected = LocalEngine(lm, new_tokens=8).generate(prompts)
    assert expected[0]["output_tokens"] <= 4
    assert ContinuousEngine(lm, new_tokens=8).generate(prompts) == expected


def test_the_cache_is_as_large_as_the_batch(lm: LanguageModel) -> None:
    engine = ContinuousEngine(lm, new_tokens=8)
    bounds = engine._bounds([[1] * 300, [1] * 10])
    page = getattr(bounds, "page_size", None) or bounds.block_size
    # 308 tokens fill two pages of 256, 18 one; one more each.
    assert page == 256 and bounds.num_blocks == 3 + 2
    assert (bounds.max_batch_tokens, bounds.max_requests_per_batch) == (2048, 2)
    assert not getattr(bounds, "auto_switch_to_flash", False)


def test_failures_are_told(lm: LanguageModel) -> None:
    engine = ContinuousEngine(lm)
    prompt = engine.encode(chat(3))
    with pytest.raises(RuntimeError, match="came to no end"):
        engine._answer(prompt, None)
    with pytest.raises(RuntimeError, match=r"broken pipe.*llm\.engine=transformers"):
        engine._answer(prompt, SimpleNamespace(error="broken pipe"))
    with pytest.raises(torch.OutOfMemoryError):
        engine._answer(prompt, SimpleNamespace(error="CUDA out of memory. Tried"))
    with pytest.raises(ValueError, match="end of their turn only"):
        ContinuousEngine(lm, answered=lambda text: True)


def test_engines_are_made_by_kind(tiny_lm: Path) -> None:
    model = str(tiny_lm)
    engines = {
        kind: make_engine(LlmConfig(model=model, engine=kind, mode=LlmMode.generate), "cpu")
        for kind in (EngineKind.transformers, EngineKind.continuous)
    }
    assert {kind.value: engine.identity["engine"] for kind, engine in engines.items()} == {
        "transformers": "transformers", "continuous": "continuous",
    }  # fmt: skip
