"""Statistics against slow obvious versions, hand-made numbers and simulated coverage."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lgp.effort import budget_to_reach
from lgp.stats import compare, compare_arrays, holm, paired_interval, paired_intervals, sign_flip_p


def slow_interval(difference: np.ndarray, resamples: int, level: float) -> tuple[float, float]:
    """Resample with a loop and sort; its random numbers are its own."""
    rng = np.random.default_rng(99)
    n = len(difference)
    means = sorted(difference[rng.integers(0, n, n)].mean() for _ in range(resamples))
    cut = (1 - level) / 2
    return means[int(cut * resamples)], means[int((1 - cut) * resamples) - 1]


def slow_p(difference: list[float]) -> float:
    """Count all sign patterns whose mean is at least as far from 0."""
    observed = abs(sum(difference))
    patterns = list(product((-1, 1), repeat=len(difference)))
    sums = [abs(sum(s * d for s, d in zip(p, difference, strict=True))) for p in patterns]
    return sum(total >= observed - 1e-9 for total in sums) / len(patterns)


def test_interval_agrees_with_a_loop() -> None:
    difference = np.random.default_rng(1).exponential(size=60) - 0.8
    fast = paired_interval(difference, resamples=20_000)
    assert fast == pytest.approx(slow_interval(difference, 20_000, 0.95), abs=0.01)
    assert fast == paired_interval(difference, resamples=20_000)
    narrow = paired_interval(difference, level=0.5)
    assert fast[0] < narrow[0] < difference.mean() < narrow[1] < fast[1]


def test_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    samples = np.random.default_rng(2).normal(0.3, 1.0, size=(80, 400))  # [queries, experiments]
    low, high = paired_intervals(samples, resamples=1000)
    covered = ((low <= 0.3) & (high >= 0.3)).mean()
    assert 0.91 <= covered <= 0.97  # measured 0.935; the standard error is 0.011


def test_columns_get_what_they_get_alone() -> None:
    columns = np.random.default_rng(3).normal(size=(500, 3))
    low, high = paired_intervals(columns)
    for i in range(3):
        assert paired_interval(columns[:, i]) == pytest.approx((low[i], high[i]), abs=1e-12)


def test_sign_flip_by_hand() -> None:
    # Of 2^5 patterns only all-plus and all-minus reach |sum| = 15.
    assert sign_flip_p([1, 2, 3, 4, 5]) == 2 / 32
    # |sum| = 13: all-plus, flipping the 1, and their mirror images.
    assert sign_flip_p([-1, 2, 3, 4, 5]) == 4 / 32
    assert sign_flip_p([0.0, 0.0]) == 1.0


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_sign_flip_enumerates_exactly(values: list[int]) -> None:
    tenths = [v / 10 for v in values]  # tenths are inexact in binary, so ties need their tolerance
    assert sign_flip_p(tenths) == pytest.approx(slow_p(tenths))


def test_random_flips_agree_with_all_flips_and_never_give_zero() -> None:
    difference = np.random.default_rng(4).normal(0.35, 1.0, size=14)
    assert sign_flip_p(difference) == pytest.approx(slow_p(difference.tolist()), abs=0.015)
    assert sign_flip_p(np.ones(200), flips=999) == 1 / 1000
    assert sign_flip_p(np.zeros(200)) == 1.0


def test_sign_flip_p_is_uniform_without_an_effect() -> None:
    rng = np.random.default_rng(5)
    p = np.array([sign_flip_p(rng.normal(size=40), flips=500) for _ in range(300)])
    assert 0.02 <= (p <= 0.05).mean() <= 0.09


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.5 times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.5; none may fall.
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    # 0.02 * 2 = 0.04, then 0.03 * 1 = 0.03, raised to the 0.04 before it.
    assert holm([0.03, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_budget_to_reach_by_hand() -> None:
    budgets, means = [400, 100, 200], [0.5, 0.2, 0.3]
    assert budget_to_reach(budgets, means, 0.35) == pytest.approx(250)  # a quarter of 200..400
    assert budget_to_reach(budgets, means, 0.3) == 200
    assert budget_to_reach(budgets, means, 0.1) == 100  # nothing is known below the first
    assert budget_to_reach(budgets, means, 0.6) is None
    # A dip is skipped: the running maximum is 0.2, 0.4, 0.4, 0.6.
    assert budget_to_reach([1, 2, 3, 4], [0.2, 0.4, 0.1, 0.6], 0.5) == pytest.approx(3.5)
    with pytest.raises(ValueError, match=r"2 budgets \[1, 2\] against 1 means"):
        budget_to_reach([1, 2], [0.1], 0.1)


def test_compare_averages_seeds_before_it_resamples_queries() -> None:
    base = {"a": [0.2, 0.4], "b": [0.5, 0.5], "c": [0.0, 0.2]}
    other = {"c": [0.1, 0.1], "a": [0.6, 0.4], "b": [0.4, 0.4]}
    # Query means 0.3, 0.5, 0.1 against 0.5, 0.4, 0.1: differences +0.2, -0.1, 0.
    c = compare(base, other)
    assert (c.mean_base, c.mean_other) == pytest.approx((0.3, 1 / 3))
    assert c.difference == pytest.approx(0.1 / 3)
    assert c.relative_pct == pytest.approx(100 * (0.1 / 3) / 0.3)
    assert (c.wins, c.ties, c.losses, c.n_queries, c.n_seeds) == (1, 1, 1, 3, 2)
    assert c.p == slow_p([0.2, -0.1, 0.0])
    assert (c.low, c.high) == pytest.approx(paired_interval([0.2, -0.1, 0.0]))
    assert not c.excludes_zero


def test_relative_gain_is_taken_before_rounding() -> None:
    c = compare({"a": [0.0149], "b": [0.0149]}, {"a": [0.0251], "b": [0.0251]})
    assert c.relative_pct == pytest.approx(68.456, abs=0.001)  # 0.01 to 0.03 would be 200 %
    assert np.isnan(compare({"a": [0.0]}, {"a": [0.1]}).relative_pct)


def test_many_comparisons_equal_single_ones() -> None:
    rng = np.random.default_rng(6)
    pairs = [(rng.random((n, 2)), rng.random((n, 2))) for n in (20, 30, 20)]
    for (base, other), many in zip(pairs, compare_arrays(pairs), strict=True):
        single = compare(
            {str(i): row.tolist() for i, row in enumerate(base)},
            {str(i): row.tolist() for i, row in enumerate(other)},
        )
        assert (many.low, many.high) == pytest.approx((single.low, single.high), abs=1e-12)
        assert (many.p, many.wins, many.n_queries) == (single.p, single.wins, single.n_queries)


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"1 queries are on one side only, first: \['b'\]"):
        compare({"a": [1.0]}, {"a": [1.0], "b": [1.0]})
    with pytest.raises(ValueError, match=r"queries have \[1, 2\] seed values"):
        compare({"a": [1.0]}, {"a": [1.0, 2.0]})
    with pytest.raises(ValueError, match=r"NaN or infinite differences, first rows: \[1\]"):
        paired_interval([0.0, float("nan")])
    with pytest.raises(ValueError, match="0 queries"):
        sign_flip_p([])
    with pytest.raises(ValueError, match="level=95"):
        paired_interval([0.0], level=95)
