"""Linear layers in 8-bit floats: half the memory of bfloat16, and twice the matmul rate on cards
that have it (compute capability 8.9 and up).

In: a model. Out: the same model, its decoder's linear layers replaced; embeddings, norms and the
vocabulary layer stay as they are. Elsewhere the same rounding is done and the product taken in
float32: slow, but what the rounding does to answers can be measured on any machine.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
MULTIPLE = 16
"""The hardware product wants both sides of a weight to be multiples of this."""


class Fp8Linear(nn.Module):
    """A linear layer with weights [N, K] in float8, a scale per output, and inputs rounded to
    float8 with a scale per token."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight, scale = rounded(linear.weight.detach())
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.bias = linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        rows, scale = rounded(x.flatten(0, -2))
        if fast(x.device) and self.in_features % MULTIPLE == self.out_features % MULTIPLE == 0:
            flat = torch._scaled_mm(
                rows, self.weight.t(), scale, self.scale.t(), out_dtype=torch.bfloat16
            )
        else:
            flat = (rows.float() * scale) @ (self.weight.float() * self.scale).t()
        out: Tensor = flat.to(x.dtype).unflatten(0, x.shape[:-1])
        return out if self.bias is None else out + self.bias


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [X, K] as (float8 [X, K], float32 scale [X, 1]) with rows ~ float8 * scale."""
    scale = rows.abs().amax(1, keepdim=True).float().clamp_min(1e-12) / LARGEST
    return (rows.float() / scale).to(FP8), scale


def fast(device: torch.device) -> bool:
    """Whether this device multiplies float8 itself."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def to_fp8(model: Any) -> None:
    """Replace the decoder's linear layers, one at a time, in place."""
    decoder = model.get_decoder()
    for name, module in list(decoder.named_modules()):
        if isinstance(module, nn.Linear):
            if module.weight.is_meta:
                raise ValueError(
                    f"layer {name} was offloaded (llm.device_map), so it cannot be rounded; give "
                    "the model room on the devices, or set llm.fp8=false"
                )
            parent = decoder.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], Fp8Linear(module))
