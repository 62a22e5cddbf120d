"""The language model engine on a GPU at the paper's size: tokens and nodes a second, the share of
the matmul ceiling, 8-bit weights.

In: a device and a scale. Out: figures on the screen, and in $OUT/gpu_llm.json where OUT is set. The
model has the shape of Qwen3-32B and random weights, which take the same time. Needs torch and
transformers; no hub, no tokenizer file: prompts are random token ids.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from asking import batched, ranking_change
from gpu import Report
from measure import commit, machine
from torch import Tensor, nn

from lgp.ask import Prompt
from lgp.fp8 import Fp8Linear, fast, to_fp8
from lgp.generate import LocalEngine
from lgp.llm import Continuations, LanguageModel
from lgp.packed import continuation_logprobs

PROMPT_TOKENS, SHARED, NEW_TOKENS = 4096, 350, 32
N_NODES, N_PLAIN, N_CANDIDATES = 16, 3, 24
CEILING_ROWS = 2048


class Letters:
    """A tokenizer of single characters: enough to spell answers."""

    eos_token_id = 0
    chat_template = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return "".join(chr(token % 128) for token in tokens)


def random_model(device: torch.device, scale: float) -> LanguageModel:
    """A Qwen3 of random weights in bfloat16: 32B at scale 1, narrower and shallower below."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    config = Qwen3Config(
        vocab_size=max(2048, round(151936 * scale)),
        hidden_size=max(128, 128 * round(40 * scale)),
        intermediate_size=max(256, 256 * round(100 * scale)),
        num_hidden_layers=max(2, round(64 * scale)),
        num_attention_heads=max(8, 8 * round(8 * scale)),
        num_key_value_heads=8,
        head_dim=128 if scale == 1 else 16,
        max_position_embeddings=40960,
        tie_word_embeddings=False,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    model.train(False).requires_grad_(False)
    model.generation_config.eos_token_id = None
    return LanguageModel(model, Letters(), {"model": "random"}, device)


def prompts(vocabulary: int, length: int, shared: int) -> list[Prompt]:
    """Prompts of nearly equal lengths that share their start."""
    draw = torch.Generator().manual_seed(1)
    start = torch.randint(1, vocabulary, (shared,), generator=draw).tolist()
    made = []
    for node in range(N_NODES):
        rest = length - shared - 8 * (node % 5)
        ids = start + torch.randint(1, vocabulary, (rest,), generator=draw).tolist()
        made.append(Prompt(ids, len(ids) + NEW_TOKENS, shared))
    return made


class Watch:
    """Seconds on a device, which is waited for before and after."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, call: Callable[[], Any]) -> tuple[float, Any]:
        self._wait()
        start = time.perf_counter()
        found = call()
        self._wait()
        return time.perf_counter() - start, found

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def ceiling(lm: LanguageModel, watch: Watch) -> tuple[float, float]:
    """Seconds a token of the bare matmuls at 2,048 rows: (decoder's linear layers, last layer)."""
    layers = [m for m in lm.model.get_decoder().modules() if isinstance(m, nn.Linear | Fp8Linear)]
    shapes: dict[tuple[int, int], list[nn.Module]] = {}
    for layer in layers:
        shapes.setdefault((layer.in_features, layer.out_features), []).append(layer)

    def seconds(layer: nn.Module, width: int) -> float:
        rows = torch.randn(CEILING_ROWS, width, dtype=torch.bfloat16, device=watch.device)
        layer(rows)
        return median(watch(lambda: layer(rows))[0] for _ in range(5)) / CEILING_ROWS

    with torch.inference_mode():
        body = sum(len(same) * seconds(same[0], k) for (k, _), same in shapes.items())
        head = lm.model.get_output_embeddings()
        return body, seconds(head, head.in_features)


def plain(lm: LanguageModel, prompt: Prompt) -> None:
    """One `generate` call of transformers for one node."""
    ids = torch.tensor([prompt.content], device=lm.device)
    with torch.inference_mode():
        lm.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0,
        )  # fmt: skip


def measure(
    lm: LanguageModel, asked: list[Prompt], batch_tokens: int, watch: Watch, with_plain: bool
) -> tuple[dict[str, Any], Tensor]:
    """Figures of generate and constrained, and log p of every number [nodes, candidates]."""
    options = ["NONE", *(f"[{n}]" for n in range(1, N_CANDIDATES + 1))]
    engine = LocalEngine(lm, batch_tokens, NEW_TOKENS)
    batched(engine.generate, asked[:2], batch_tokens)  # warm
    found: dict[str, Any] = {}
    if with_plain:
        plain(lm, asked[0])
        seconds, _ = watch(lambda: [plain(lm, prompt) for prompt in asked[:N_PLAIN]])
        found["plain_nodes_per_s"] = N_PLAIN / seconds
    body, head = ceiling(lm, watch)
    shared = asked[0].shared
    read = shared + sum(len(p.content) - shared for p in asked)
    seconds, _ = watch(lambda: batched(engine.generate, asked, batch_tokens))
    written = NEW_TOKENS * len(asked)
    found["generate"] = {
        "nodes_per_s": len(asked) / seconds,
        "tokens_per_s": (read + written) / seconds,
        "ceiling_share": ((read + written) * body + written * head) / seconds,
    }
    seconds, answers = watch(
        lambda: batched(lambda batch: engine.choose(batch, options), asked, batch_tokens)
    )
    nodes = (3 + N_CANDIDATES) * len(asked)
    found["constrained"] = {
        "nodes_per_s": len(asked) / seconds,
        "tokens_per_s": read / seconds,
        "ceiling_share": ((read + nodes) * body + nodes * head) / seconds,
    }
    if with_plain:
        for mode in ("generate", "constrained"):
            found[mode]["speedup"] = found[mode]["nodes_per_s"] / found["plain_nodes_per_s"]
    found["ceiling_tokens_per_s"] = 1 / body
    return found, torch.tensor([answer["logp"] for answer in answers])[:, 1:]


def measure_likelihood(lm: LanguageModel, vocabulary: int, watch: Watch) -> dict[str, float]:
    """Nodes a second at anchor 256, 24 candidates of 128 tokens, and the share of the ceiling."""
    draw = torch.Generator().manual_seed(2)

    def ids(n: int) -> list[int]:
        return torch.randint(1, vocabulary, (n,), generator=draw).tolist()

    nodes = [Continuations(ids(256), [ids(128) for _ in range(N_CANDIDATES)]) for _ in range(4)]
    continuation_logprobs(lm, nodes[:1])
    seconds, _ = watch(lambda: continuation_logprobs(lm, nodes))
    body, head = ceiling(lm, watch)
    scored = N_CANDIDATES * 128
    return {
        "nodes_per_s": len(nodes) / seconds,
        "ceiling_share": len(nodes) * ((256 + scored) * body + scored * head) / seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the model and prompts")
    options = parser.parse_args()
    device, scale = torch.device(options.device), options.scale
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here; run with --device cpu --scale 0.02")
    folder = os.environ.get("OUT")
    report = Report(Path(folder) / "gpu_llm.json" if folder else None)
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    report.add("ran_on", {"device": named, "torch": torch.__version__, "commit": commit(),
                          "scale": scale, "machine": machine()})  # fmt: skip
    watch = Watch(device)
    seconds, lm = watch(lambda: random_model(device, scale))
    vocabulary = lm.model.config.vocab_size
    length = max(192, round(PROMPT_TOKENS * scale))
    shared = SHARED if length > 2 * SHARED else 64
    asked = prompts(vocabulary, length, shared)
    report.add("model", {"parameters": lm.model.num_parameters(), "made_in_s": seconds,
                         "prompt_tokens": length})  # fmt: skip
    bf16, before = measure(lm, asked, 16 * (length + NEW_TOKENS), watch, True)
    report.add("bfloat16", bf16)
    report.add("bfloat16_likelihood", measure_likelihood(lm, vocabulary, watch))
    to_fp8(lm.model)
    fp8, after = measure(lm, asked, 16 * (length + NEW_TOKENS), watch, False)
    report.add("float8", fp8 | {"in_hardware": fast(device)} | ranking_change(before, after))
    print(json.dumps(report.facts, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
