"""Means over runs, each run weighing the same whatever its number of queries: a benchmark's line.

Input: the rows of `comparison_table` of every run, of one metric and ranking. Output: one `Average`
per point of effort and graph that every run has. Nothing is rounded before the means are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from lgp.comparison import Row


@dataclass(frozen=True)
class Average:
    """A graph at one point of effort over all runs, as fractions; `n_dist` a query.

    `vanilla` is the mean of the base that the graph was compared with, None for vanilla itself;
    `exact` None where some run has no exact neighbors.
    """

    mode: str
    value: int
    label: str
    mean: float
    vanilla: float | None
    exact: float | None
    n_dist: float

    @property
    def difference(self) -> float | None:
        """The mean minus vanilla's."""
        return None if self.vanilla is None else self.mean - self.vanilla

    @property
    def relative_pct(self) -> float | None:
        """The gain of the mean over vanilla's mean (not the mean of the runs' gains), in %."""
        if self.vanilla is None or self.vanilla == 0:
            return None
        return 100 * (self.mean / self.vanilla - 1)


def average_rows(tables: Sequence[Sequence[Row]]) -> list[Average]:
    """Average runs point by point; what some run lacks is left out.

    Args:
        tables: a run's rows each; rows against other graphs than vanilla are not read.
    """
    runs = [{(r.mode, r.value, r.label): r for r in rows if r.base in (None, "vanilla")}
            for rows in tables]  # fmt: skip
    if not runs:
        return []
    found = []
    for mode, value, label in runs[0]:
        rows = [run[mode, value, label] for run in runs if (mode, value, label) in run]
        if len(rows) < len(runs):
            continue
        # The same queries on both sides, where some run has lines of one side only.
        pairs = [row.comparison for row in rows if row.comparison is not None]
        paired = len(pairs) == len(rows)
        exact = [row.exact for row in rows if row.exact is not None]
        found.append(
            Average(
                mode, value, label,
                fmean(pair.mean_other for pair in pairs) if paired else fmean(r.mean for r in rows),
                fmean(pair.mean_base for pair in pairs) if paired else None,
                fmean(exact) if len(exact) == len(rows) else None,
                fmean(row.n_dist for row in rows),
            )
        )  # fmt: skip
    return found
