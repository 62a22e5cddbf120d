"""Curves of quality over budget: how much effort a graph needs to be as good as vanilla.

Input: means by budget, on any one scale. Output: budgets, interpolated on the running best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


def budget_to_reach(
    budgets: Sequence[float], means: Sequence[float], target: float
) -> float | None:
    """Find the smallest budget at which a curve reaches `target`.

    The curve is the running maximum of the means (more budget is never a loss), linear between
    points.

    Returns:
        A budget; the smallest one measured if the target is met there, since nothing is known below
        it; None if the curve never reaches the target.
    Raises:
        ValueError: lengths differ, no points, or a budget given twice.
    """
    if len(budgets) != len(means) or not budgets or len(set(budgets)) < len(budgets):
        raise ValueError(
            f"{len(budgets)} budgets {list(budgets)[:8]} against {len(means)} means; "
            "give one mean for each of one or more different budgets"
        )
    order = np.argsort(budgets)
    x = np.asarray(budgets, dtype=np.float64)[order]
    y = np.maximum.accumulate(np.asarray(means, dtype=np.float64)[order])
    reached = np.flatnonzero(y >= target)
    if not len(reached):
        return None
    i = int(reached[0])
    if i == 0:
        return float(x[0])
    return float(x[i - 1] + (target - y[i - 1]) / (y[i] - y[i - 1]) * (x[i] - x[i - 1]))


@dataclass(frozen=True)
class Effort:
    """Distances to reach vanilla's quality at a budget, interpolated.

    Attributes:
        vanilla: what vanilla needs itself, which may be less than the budget: the fair yardstick.
        own: what the other graph needs; None = it never gets there.
        or_fewer: `own` is the smallest budget measured, and fewer might do.
    """

    vanilla: float
    own: float | None
    or_fewer: bool

    @property
    def change_pct(self) -> float | None:
        """The other graph's distances against vanilla's, in %."""
        return None if self.own is None else 100 * (self.own / self.vanilla - 1)


def effort_to_reach(
    vanilla: Mapping[float, float], own: Mapping[float, float], budget: float
) -> Effort:
    """Compare two curves, mean by budget, at vanilla's mean of one budget (KeyError: not run)."""
    target = vanilla[budget]
    base = budget_to_reach(list(vanilla), list(vanilla.values()), target)
    spent = budget_to_reach(list(own), list(own.values()), target)
    assert base is not None  # its own quality is on its curve
    return Effort(base, spent, spent == min(own))
