"""8-bit linear layers: rounding by hand, closeness, and what they leave alone."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from lgp.config_llm import LlmConfig
from lgp.engines import engine_model, language_model
from lgp.fp8 import FP8, Fp8Linear, rounded, to_fp8
from lgp.llm import load_language_model


def test_rows_are_scaled_to_the_largest_number_of_the_format() -> None:
    rows = torch.tensor([[448.0, 1.0, -224.0], [0.0, 0.0, 0.0], [1e-3, 5e-4, 0.0]])
    small, scale = rounded(rows)
    assert small.dtype == FP8
    assert scale[0].item() == 1.0
    assert torch.equal(small.float()[0], rows[0])  # 448, 1 and 224 are numbers of the format
    assert torch.equal(small.float()[1], torch.zeros(3))
    assert torch.allclose(small.float() * scale, rows, rtol=0.07, atol=1e-9)


def test_the_product_is_close_and_keeps_shape_type_and_bias() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 48)
    x = torch.randn(2, 5, 64)
    with torch.inference_mode():
        found, expected = Fp8Linear(linear)(x), linear(x)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert float((found - expected).norm() / expected.norm()) < 0.05
    assert not torch.equal(found, expected)


def test_a_model_keeps_its_embeddings_and_vocabulary_layer(tiny_qwen3: Path) -> None:
    plain, small = (load_language_model(str(tiny_qwen3)) for _ in range(2))
    to_fp8(small.model)
    kinds = [type(m) for m in small.model.get_decoder().modules()]
    assert nn.Linear not in kinds and kinds.count(Fp8Linear) == 3 * 7
    assert isinstance(small.model.get_output_embeddings(), nn.Linear)
    ids = torch.arange(5, 40).unsqueeze(0)
    with torch.inference_mode():
        a, b = (lm.model(ids).logits.log_softmax(-1) for lm in (plain, small))
    assert 0 < float((a - b).abs().mean()) < 0.5
    assert small.model.get_input_embeddings().weight.dtype == torch.float32


def test_answers_of_8_bit_weights_have_their_own_keys(tiny_lm: Path) -> None:
    plain, small = (
        language_model(LlmConfig(model=str(tiny_lm), fp8=fp8), "cpu") for fp8 in (False, True)
    )
    assert small.identity == plain.identity | {"weights": "fp8"}
    assert engine_model(LlmConfig(model=str(tiny_lm))) != engine_model(
        LlmConfig(model=str(tiny_lm), fp8=True)
    )
    assert language_model(LlmConfig(model=str(tiny_lm), fp8=True), "cpu") is small
