"""What both language model benches do with an engine: batches in order, and rankings compared.

In: prompts and scores. Out: answers and agreement. Nothing is timed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lgp.ask import Prompt
from lgp.llm import plan_batches


def batched(
    ask: Callable[[list[Prompt]], list[dict[str, Any]]], prompts: list[Prompt], batch_tokens: int
) -> list[dict[str, Any]]:
    """Answers in order of the prompts, batches as in a refinement."""
    answers: dict[int, dict[str, Any]] = {}
    for batch in plan_batches([prompt.size for prompt in prompts], batch_tokens):
        answers.update(zip(batch, ask([prompts[at] for at in batch]), strict=True))
    return [answers[at] for at in range(len(prompts))]


def ranking_change(before: Tensor, after: Tensor) -> dict[str, float]:
    """What a change of weights did to the order of candidates.

    Args:
        before, after: scores [nodes, candidates], larger is better.
    Returns:
        means over nodes of Spearman's correlation and of the share of the best two kept, and the
        mean and largest change of a score.
    """
    places = [scores.argsort(1).argsort(1).double() for scores in (before, after)]
    x, y = (p - p.mean(1, keepdim=True) for p in places)
    best = (before.topk(2).indices.unsqueeze(2) == after.topk(2).indices.unsqueeze(1)).any(2)
    return {
        "spearman": float(((x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1))).mean()),
        "best_two_kept": float(best.double().mean()),
        "mean_change": float((before - after).abs().mean()),
        "largest_change": float((before - after).abs().max()),
    }
