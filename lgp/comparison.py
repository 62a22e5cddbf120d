"""Graphs compared at equal search effort, as rows of numbers and as plain sentences.

Input: `Results`. Output: one `Row` per (mode, value, graph) against vanilla, one per control of a
main selector, and sentences that claim no more than the numbers show. A gain over vanilla alone
says nothing about a selector's judgment (random edits gain, too), hence the controls. No files, no
layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lgp.effort import effort_to_reach
from lgp.results import METRICS, Results
from lgp.stats import Comparison, compare_arrays, holm

Floats = NDArray[np.float64]

# Where sentences are drawn up; the smallest value run stands in where these were not.
HEADLINE = {"width": 20, "budget": 500}
# The level at which a randomisation p is called support; the intervals are 95 % ones.
P_LEVEL = 0.05


@dataclass(frozen=True)
class Row:
    """One graph at one point of search effort.

    `mean`, `reach`, `exact` are fractions; `reach` is NaN and `exact` None where unknown. `n_dist`
    is the mean number of distances per query, `n_dist_above` the part of it on the upper layers of
    an HNSW. `base` and `comparison` are None for vanilla itself.
    """

    mode: str
    value: int
    label: str
    base: str | None
    mean: float
    n_dist: float
    reach: float
    exact: float | None
    comparison: Comparison | None
    n_dist_above: float = 0.0

    @property
    def share_of_exact(self) -> float | None:
        """The mean as a fraction of the exact-kNN ceiling; None where there is none."""
        return self.mean / self.exact if self.exact else None


def comparison_table(
    results: Results,
    metric: str = "ndcg_at_10",
    ranking: str = "greedy",
    main: str | None = None,
) -> list[Row]:
    """Compare every graph with vanilla, and `main` with each of its controls, point by point.

    Args:
        metric: one of the measures, or `reach`.
        ranking: `greedy` or `rerank`.
        main: the selector whose controls the other selectors are; None for no such rows.
    Returns:
        Rows in order of mode and value; in each point vanilla, the selectors against vanilla, then
        `main` against its controls. Differences use the queries and graph seeds both sides have.
    Raises:
        ValueError: unknown metric, ranking or selector; no vanilla; no seed in common.
    """
    labels = results.labels()
    for name, given, known in (
        ("metric", metric, list(METRICS)),
        ("ranking", ranking, results.rankings()),
        ("main selector", main or "vanilla", labels),
    ):
        if given not in known:
            raise ValueError(f"unknown {name} {given!r}; known here: {', '.join(known)}")
    if labels[:1] != ["vanilla"] or main == "vanilla":
        raise ValueError(
            f"found graphs {labels}, main={main!r}; vanilla is the base and must be run, "
            "main must be a selector"
        )
    exact = column_mean(results, metric, "exact", ranking, "exact", 0)
    wanted: list[tuple[str, int, str, str | None]] = []
    pairs: list[tuple[Floats, Floats]] = []
    for mode, value in results.points(ranking):
        run = [x for x in labels if results.rows_by_seed(x, ranking, mode, value)]
        jobs = [(x, "vanilla") for x in run[1:] if run[0] == "vanilla"]
        if main in run:
            jobs += [(main, x) for x in results.controls(main) if x in run]
        wanted += [(mode, value, x, None) for x in run if x == "vanilla" or run[0] != "vanilla"]
        for label, base in jobs:
            wanted.append((mode, value, label, base))
            pairs.append(paired(results, metric, ranking, mode, value, base, label))
    compared = iter(compare_arrays(pairs))
    return [
        Row(
            mode=mode,
            value=value,
            label=label,
            base=base,
            mean=column_mean(results, metric, label, ranking, mode, value),
            n_dist=column_mean(results, "n_dist", label, ranking, mode, value),
            reach=column_mean(results, "reach", label, ranking, mode, value),
            exact=None if np.isnan(exact) else exact,
            comparison=None if base is None else next(compared),
            n_dist_above=column_mean(results, "n_dist_above", label, ranking, mode, value),
        )
        for mode, value, label, base in wanted
    ]


def headline_value(rows: Sequence[Row], mode: str) -> int | None:
    """Choose the width or budget that sentences speak about; None if the mode was not run."""
    values = {row.value for row in rows if row.mode == mode}
    return HEADLINE[mode] if HEADLINE[mode] in values else min(values, default=None)


def sentences(rows: Sequence[Row], main: str | None = None) -> list[str]:
    """Put the headline points of one metric and ranking into words."""
    lines = []
    for mode in HEADLINE:
        value = headline_value(rows, mode)
        here = [r for r in rows if (r.mode, r.value) == (mode, value)]
        against_vanilla = [r for r in here if r.base == "vanilla"]
        lines += [_sentence(row, None) for row in against_vanilla]
        controls = [r for r in here if r.base not in (None, "vanilla")]
        adjusted = holm([r.comparison.p for r in controls if r.comparison])
        lines += [_sentence(row, p) for row, p in zip(controls, adjusted, strict=True)]
        if main is not None and any(r.label == main for r in here):
            lines.append(_conclusion(main, f"{mode} {value}", controls, adjusted))
    return lines + _effort_sentences(rows)


def outcome(comparison: Comparison, adjusted_p: float | None = None) -> str:
    """Name what is shown: `gain` or `loss` if interval and p-value agree on it, else `none`."""
    p = comparison.p if adjusted_p is None else adjusted_p
    if not comparison.excludes_zero or p > P_LEVEL:
        return "none"
    return "gain" if comparison.difference > 0 else "loss"


def verdict(comparison: Comparison, adjusted_p: float | None = None) -> str:
    """Say the outcome in words, and whether the interval excludes 0."""
    shown = outcome(comparison, adjusted_p)
    if shown != "none":
        return f"the interval excludes 0: a {shown}"
    if comparison.excludes_zero:
        return "the interval excludes 0 but p does not support it: no difference shown"
    return "the interval includes 0: no difference shown"


def _sentence(row: Row, adjusted_p: float | None) -> str:
    c = row.comparison
    assert c is not None
    corrected = "" if adjusted_p is None else f" ({adjusted_p:.4f} over the controls, Holm)"
    return (
        f"{row.label} vs {row.base} at {row.mode} {row.value}: {100 * c.difference:+.1f} "
        f"({c.relative_pct:+.1f} %), 95 % interval [{100 * c.low:+.1f}, {100 * c.high:+.1f}], "
        f"p {c.p:.4f}{corrected}, {count(c.n_queries, 'query', 'queries')}, "
        f"{count(c.n_seeds, 'graph seed', 'graph seeds')}; {verdict(c, adjusted_p)}."
    )


def _conclusion(main: str, point: str, controls: Sequence[Row], p: Sequence[float]) -> str:
    if not controls:
        return (
            f"{main} at {point}: no control was run, so a gain over vanilla says nothing about its "
            "choices; run uniform and farthest, too."
        )
    words = {"gain": "better than", "loss": "worse than", "none": "no difference shown from"}
    found: dict[str, list[str]] = {key: [] for key in words}
    for row, adjusted in zip(controls, p, strict=True):
        assert row.comparison is not None
        found[outcome(row.comparison, adjusted)].append(str(row.base))
    parts = [f"{words[key]} {', '.join(names)}" for key, names in found.items() if names]
    return f"{main} against its controls at {point}: {'; '.join(parts)}."


def _effort_sentences(rows: Sequence[Row]) -> list[str]:
    curves: dict[str, dict[float, float]] = {}
    for row in rows:
        if row.mode == "budget" and row.base in (None, "vanilla"):
            curves.setdefault(row.label, {})[row.value] = row.mean
    vanilla, budget = curves.pop("vanilla", {}), headline_value(rows, "budget")
    if budget is None or budget not in vanilla:
        return []
    goal = f"vanilla's {100 * vanilla[budget]:.1f} at budget {budget}"
    itself = effort_to_reach(vanilla, vanilla, budget).vanilla
    lines = [f"vanilla itself reaches {goal} with {itself:.0f} distances."]
    for label, curve in curves.items():
        effort = effort_to_reach(vanilla, curve, budget)
        if effort.own is None or effort.change_pct is None:
            lines.append(f"{label} does not reach {goal}.")
        elif effort.or_fewer:
            lines.append(
                f"{label} reaches it with {effort.own:.0f} distances or fewer (the fewest run)."
            )
        else:
            change = round(effort.change_pct)
            lines.append(f"{label} reaches it with {effort.own:.0f} distances ({change:+d} %).")
    return lines


def count(number: int, one: str, many: str) -> str:
    """Write a number with its noun."""
    return f"{number} {one if number == 1 else many}"


def column_mean(
    results: Results, column: str, label: str, ranking: str, mode: str, value: int
) -> float:
    """Average a column over seeds and queries that have it; NaN where none has."""
    rows = list(results.rows_by_seed(label, ranking, mode, value).values())
    values = results.columns[column][rows]
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else float("nan")


def paired(
    results: Results, metric: str, ranking: str, mode: str, value: int, base: str, other: str
) -> tuple[Floats, Floats]:
    """Gather two graphs as [n_queries, n_seeds] over the seeds and queries both have.

    Raises:
        ValueError: no seed or no query in common.
    """
    sides = [results.rows_by_seed(x, ranking, mode, value) for x in (base, other)]
    seeds = sorted(sides[0].keys() & sides[1].keys())
    if not seeds:
        raise ValueError(
            f"at {mode} {value}, {base} has graph seeds {sorted(sides[0])} and {other} "
            f"{sorted(sides[1])}, none in common; run both with the same seeds"
        )
    first, second = (results.columns[metric][[side[s] for s in seeds]].T for side in sides)
    kept = np.isfinite(first).all(axis=1) & np.isfinite(second).all(axis=1)
    if not kept.any():
        raise ValueError(
            f"at {mode} {value}, {base} and {other} share no query with {metric}; run them again"
        )
    return first[kept], second[kept]
