"""What a language model costs: account, projection, and when the offline tokens are earned back.

In: the account of a refinement, rows of a comparison. Out: numbers and sentences. No files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lgp.comparison import Row
from lgp.config_llm import LlmConfig
from lgp.effort import budget_to_reach
from lgp.refine.step import Account

DRY_NODES = 8
"""Nodes a dry run asks about, to measure what one costs."""


@dataclass(frozen=True)
class Prices:
    """Currency per million tokens; None where tokens have no price."""

    prompt: float | None = None
    output: float | None = None
    currency: str = ""

    def of(self, prompt_tokens: float, output_tokens: float) -> float | None:
        """What so many tokens cost, None without any price."""
        if self.prompt is None and self.output is None:
            return None
        return (prompt_tokens * (self.prompt or 0) + output_tokens * (self.output or 0)) / 1e6


def configured_prices(llm: LlmConfig) -> Prices:
    """What the configured model's tokens cost."""
    return Prices(llm.prompt_price, llm.output_price, llm.currency)


@dataclass(frozen=True)
class Projection:
    """What refining `nodes` nodes will cost, scaled up from `measured_on` of them.

    Answers already logged cost nothing and are not known beforehand.
    """

    nodes: int
    measured_on: int
    calls: int
    prompt_tokens: int
    output_tokens: int
    hours: float

    def sentence(self, prices: Prices) -> str:
        """The projection in words."""
        if not self.calls:
            return f"{self.nodes} nodes would be refined, without a language model"
        rate = (self.prompt_tokens + self.output_tokens) / max(self.hours * 3600, 1e-9)
        price = prices.of(self.prompt_tokens, self.output_tokens)
        money = "" if price is None else f", {price:.2f} {prices.currency}".rstrip()
        return (
            f"{self.nodes} nodes would be asked about: about {self.calls} calls, "
            f"{self.prompt_tokens:.3g} prompt and {self.output_tokens:.3g} written tokens, "
            f"{self.hours:.2f} hours at {rate:.0f} tokens/s{money} "
            f"(scaled up from {self.measured_on} nodes; loading the model not counted, answers "
            "already logged cost nothing)"
        )


def project(account: Account, measured_on: int, nodes: int) -> Projection:
    """Scale the account of a few nodes up to `nodes`."""
    scale = nodes / max(1, measured_on)
    return Projection(
        nodes, measured_on, round(account.asked * scale), round(account.tokens * scale),
        round(account.output_tokens * scale), account.seconds * scale / 3600,
    )  # fmt: skip


def cost_sentence(account: Mapping[str, Any], seconds: float | None, prices: Prices) -> str:
    """Prompts, tokens, speed, waiting and price of one refinement, "" where no model was asked.

    Args:
        account: the fields of `Account`. seconds: of the whole stage, None where not known.
    """
    asked, replayed = account["asked"], account["replayed"]
    if not (asked or replayed):
        return ""
    written, waited = account.get("output_tokens", 0), account["seconds"]
    text = f"{asked} prompts asked, {replayed} replayed, {account['tokens']} tokens read"
    text += f" and {written} written, {waited:.0f} s waiting"
    if asked and waited > 0:
        nodes = "" if replayed else f"{account['anchors'] / waited:.2f} nodes/s, "
        text += f" ({nodes}{(account['tokens'] + written) / waited:.0f} tokens/s"
        text += f", {100 * min(1, waited / seconds):.0f} % of the stage)" if seconds else ")"
    price = prices.of(account["tokens"], written)
    return text if price is None else f"{text}, {price:.2f} {prices.currency}".rstrip()


@dataclass(frozen=True)
class BreakEven:
    """How vanilla would reach a refined graph's quality at one width, and when that costs more.

    Attributes:
        gain: of the mean, a fraction. width, n_dist: interpolated on vanilla's curve; None where
            vanilla never gets there.
        extra_dist: distances a query more than the refined graph spends.
        queries_rerank: queries after which reranking the wider list has read as many tokens as
            the refinement; None without a wider list.
    """

    at: int
    gain: float
    width: float | None
    n_dist: float | None
    extra_dist: float | None
    queries_rerank: float | None


def break_even(
    rows: Sequence[Row], label: str, tokens: float, document_tokens: int
) -> list[BreakEven]:
    """Set offline tokens against what each query saves.

    Args:
        rows: of one metric and ranking. label: the refined graph.
        tokens: the refinement read and wrote. document_tokens: a reranked document costs.
    Returns:
        one entry per width that both graphs were searched at; `width` None where the refined
        graph is no better (gain <= 0: nothing to earn) or vanilla cannot reach it.
    """
    vanilla = [r for r in rows if r.mode == "width" and r.label == "vanilla" and r.base is None]
    vanilla.sort(key=lambda r: r.value)
    widths, means = [r.value for r in vanilla], [r.mean for r in vanilla]
    best_at: dict[float, float] = {}  # two widths that exhaust a small graph cost the same
    for r in vanilla:
        best_at[r.n_dist] = max(r.mean, best_at.get(r.n_dist, 0.0))
    found = []
    for row in rows:
        if row.mode != "width" or row.label != label or row.base != "vanilla":
            continue
        own = next((r for r in vanilla if r.value == row.value), None)
        if own is None:
            continue
        gain = row.mean - own.mean
        width = budget_to_reach(widths, means, row.mean) if gain > 0 else None
        n_dist = budget_to_reach([*best_at], [*best_at.values()], row.mean) if gain > 0 else None
        wider = None if width is None else width - row.value
        found.append(
            BreakEven(
                row.value, gain, width, n_dist,
                None if n_dist is None else n_dist - row.n_dist,
                tokens / (wider * document_tokens) if wider and wider > 0 else None,
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True)
class MeanCost:
    """What refining some graphs of one selector cost, means over them; None where not known.

    Attributes:
        seconds: of the stage. nodes: seen by the selector. asked, replayed: prompts.
        read, written: tokens. waited: seconds in which the stage waited for the model.
    """

    seconds: float | None
    nodes: float | None
    asked: float | None
    replayed: float | None
    read: float | None
    written: float | None
    waited: float | None

    @property
    def asked_model(self) -> bool:
        """Whether a language model was asked, now or earlier."""
        return bool(self.asked or self.replayed)

    @property
    def minutes(self) -> float | None:
        return None if self.seconds is None else self.seconds / 60

    @property
    def s_a_node(self) -> float | None:
        """Seconds of the stage per node that the selector saw."""
        return self.seconds / self.nodes if self.seconds is not None and self.nodes else None

    @property
    def read_m(self) -> float | None:
        """Millions of tokens read; None where no model was asked."""
        return self.read / 1e6 if self.asked_model and self.read is not None else None

    @property
    def written_m(self) -> float | None:
        return self.written / 1e6 if self.asked_model and self.written is not None else None

    @property
    def waiting_pct(self) -> float | None:
        """Share of the stage spent waiting for the model, %."""
        if not self.asked_model or self.waited is None or not self.seconds:
            return None
        return min(100.0, 100 * self.waited / self.seconds)


def mean_cost(graphs: Sequence[Mapping[str, Any]]) -> MeanCost:
    """The cost of graphs as summary.json describes them."""
    return MeanCost(
        *(mean_of(graphs, key) for key in ("seconds", "n_eligible")),
        *(
            mean_of(graphs, f"account.{key}")
            for key in ("asked", "replayed", "tokens", "output_tokens", "seconds")
        ),
    )


def mean_of(items: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The mean of a number that all items have, a.b for one inside an object; None else."""
    values = [number_at(item, key) for item in items]
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def number_at(item: Mapping[str, Any], key: str) -> float | None:
    """A number inside JSON objects by its path a.b; None where there is none."""
    value: Any = item
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else float(value)
