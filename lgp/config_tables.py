"""Tables and figures as data: which sweeps they need, and how rows and columns are cut from them.

`configs/experiment/` names one table or figure of the paper each, `configs/scale/` says what its
sweeps run on. A part of `lgp.config`; no files here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from lgp.config_llm import ConfigError
from lgp.config_llm import at_least as _at_least

FACETS = (
    "benchmark", "dataset", "knob", "value", "width", "budget", "effort", "ranking", "metric",
    "tokens",
)  # fmt: skip
"""What rows and columns may be named after, besides a configuration key such as `llm.model`."""


class TableKind(Enum):
    quality = "quality"  # vanilla against refined, pivoted
    structure = "structure"  # Table 15
    cost = "cost"  # Table 16
    one_edge = "one_edge"  # Figure 1


@dataclass
class SweepConfig:
    """Runs that a table needs: a collection set of the scale, times the values of one knob."""

    name: str = ""  # names its folder; tables that need the same sweep share it
    over: str = "all"  # which of the scale's collections
    knob: str | None = None  # key that is varied
    values: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # settings of all its runs


@dataclass
class ScaleConfig:
    """What `scale=paper|local|tiny` stands for, as words of the command line."""

    name: str = "paper"
    hours: str = ""  # what to expect, in words
    common: list[str] = field(default_factory=list)  # settings of all runs
    collections: dict[str, list[str]] = field(default_factory=dict)  # by `SweepConfig.over`
    words: dict[str, list[str]] = field(default_factory=dict)  # more, by name of a sweep
    sweeps: dict[str, SweepConfig] = field(default_factory=dict)  # replaced, by name of a sweep


@dataclass
class TableConfig:
    title: str = ""
    note: str = ""  # what differs from the paper
    kind: TableKind = TableKind.quality
    sweeps: list[SweepConfig] = field(default_factory=list)
    rows: list[str] = field(default_factory=lambda: ["dataset"])
    columns: list[str] = field(default_factory=lambda: ["ranking", "metric"])
    widths: list[int] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)
    rankings: list[str] = field(default_factory=lambda: ["greedy", "rerank"])
    metrics: list[str] = field(default_factory=lambda: ["ndcg_at_10", "recall_at_10"])
    figure: str | None = None  # facet along x; null = no figure; tokens: gain against tokens

    def __post_init__(self) -> None:
        for facet in [*self.rows, *self.columns, *([self.figure] if self.figure else [])]:
            if facet not in FACETS and "." not in facet:
                raise ConfigError(
                    f"table facet {facet!r} is unknown; use {', '.join(FACETS)} or a "
                    "configuration key such as index.max_degree"
                )
        names = [sweep.name for sweep in self.sweeps]
        if not all(names) or len(set(names)) < len(names):
            raise ConfigError(f"table.sweeps are named {names}; give each a name of its own")


@dataclass
class OneEdgeConfig:
    """The one-edge study of section 3 beside a run."""

    enabled: bool = False
    budgets: list[int] = field(default_factory=lambda: [25, 50, 100, 200, 400])  # P
    continuations: list[int] = field(default_factory=lambda: [8, 16, 32, 64, 128, 256])  # C
    fixed_budget: int = 100  # P of the curve over C
    fixed_continuation: int = 64  # C of the curve over P
    max_pairs: int | None = None  # changes tried a query, drawn; null = all

    def __post_init__(self) -> None:
        for value in (*self.budgets, *self.continuations):
            _at_least("one_edge.budgets, one_edge.continuations", value, 1, "raise it")
        for key, value, among in (
            ("fixed_budget", self.fixed_budget, self.budgets),
            ("fixed_continuation", self.fixed_continuation, self.continuations),
        ):
            if value not in among:
                raise ConfigError(f"one_edge.{key}={value} is not among {among}; add it there")
