"""Paired statistics over queries: intervals, randomisation tests, and budget curves.

Input: per-query values on any one scale (the package uses fractions). Output: numbers on that
scale. Each query's value is averaged over graph seeds first and queries are resampled after that,
so an interval speaks about other queries of the same kind, not about other graphs. No files, no
plots.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# Up to here all 2^n sign patterns are fewer than the 10,000 random ones they replace.
EXACT_FLIPS_MAX = 13
# Cells of one block of resampling weights: 4 million float64 are 32 MiB.
_BLOCK_CELLS = 4_000_000
# Equal statistics differ by rounding when summed in another order; this much is no difference.
_TIE = 1e-12


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same queries; `difference` is other minus base, on the input's scale.

    `relative_pct` = 100 * difference / mean_base before any rounding; NaN where mean_base is 0.
    `low`, `high`: 95 % bootstrap interval of the difference. `p`: two-sided sign-flip test.
    `wins`, `ties`, `losses`: queries where other is better, equal, worse, seeds averaged.
    """

    mean_base: float
    mean_other: float
    difference: float
    relative_pct: float
    low: float
    high: float
    p: float
    wins: int
    ties: int
    losses: int
    n_queries: int
    n_seeds: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > _TIE or self.high < -_TIE


def paired_interval(
    difference: ArrayLike, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of the mean over queries.

    Args:
        difference: one value per query, [n_queries].
        level: coverage, between 0 and 1.
    Returns:
        (low, high). With one query both equal its value.
    Raises:
        ValueError: no queries, NaN or infinite values, `level` or `resamples` out of range.
    """
    low, high = paired_intervals(_column(difference), resamples, level, seed)
    return float(low[0]), float(high[0])


def paired_intervals(
    differences: Floats, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> tuple[Floats, Floats]:
    """Do `paired_interval` for the columns of [n_queries, C], all with the same resampled queries.

    Returns:
        (low [C], high [C]). Shared resamples make a whole report one matrix product per block.
    """
    _check(differences)
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(
            f"resamples={resamples} must be at least 1 and level={level} between 0 and 1; "
            "try 10000 and 0.95"
        )
    means = _resampled_means(differences, resamples, seed)
    tail = 50 * (1 - level)
    low, high = np.percentile(means, [tail, 100 - tail], axis=0)
    return low, high


def sign_flip_p(difference: ArrayLike, flips: int = 10_000, seed: int = 0) -> float:
    """Compute the two-sided randomisation p-value of a mean paired difference.

    Under the null hypothesis each query's difference may as well have the other sign. Up to 13
    queries all sign patterns are counted; above that,
    p = (1 + random patterns at least as extreme) / (1 + flips).

    Args:
        difference: one value per query, [n_queries].
    Raises:
        ValueError: no queries, NaN or infinite values, `flips` below 1.
    """
    return float(sign_flip_ps(_column(difference), flips, seed)[0])


def sign_flip_ps(differences: Floats, flips: int = 10_000, seed: int = 0) -> Floats:
    """Do `sign_flip_p` for the columns of [n_queries, C] with the same signs; returns [C]."""
    _check(differences)
    if flips < 1:
        raise ValueError(f"flips={flips} must be at least 1; try 10000")
    n_queries = len(differences)
    exact = n_queries <= EXACT_FLIPS_MAX
    observed = np.abs(differences.sum(axis=0))
    threshold = observed - _TIE * (1 + np.abs(differences).sum(axis=0))
    extreme = np.zeros(differences.shape[1])
    blocks = _all_signs(n_queries) if exact else _random_signs(n_queries, flips, seed)
    for signs in blocks:
        extreme += (np.abs(signs @ differences) >= threshold).sum(axis=0)
    return extreme / 2**n_queries if exact else (1 + extreme) / (1 + flips)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for several tests by Holm's step-down rule; returned in the given order."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for step, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - step) * p_values[index]))
        adjusted[index] = running
    return adjusted


def compare(
    base: Mapping[str, Sequence[float]],
    other: Mapping[str, Sequence[float]],
    resamples: int = 10_000,
    flips: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare two systems given as `{query_id: [value of each graph seed]}`, seeds in one order.

    Raises:
        ValueError: query sets or numbers of seeds differ, or there are no queries.
    """
    if base.keys() != other.keys():
        lone = sorted(base.keys() ^ other.keys())
        raise ValueError(
            f"{len(lone)} queries are on one side only, first: {lone[:5]}; "
            "compare on the same queries"
        )
    counts = {len(values) for side in (base, other) for values in side.values()}
    if len(counts) > 1:
        raise ValueError(
            f"queries have {sorted(counts)} seed values; give every query one value of each seed"
        )
    sides = [np.array([side[q] for q in base], dtype=np.float64) for side in (base, other)]
    return compare_arrays([(sides[0], sides[1])], resamples, flips, seed)[0]


def compare_arrays(
    pairs: Sequence[tuple[Floats, Floats]],
    resamples: int = 10_000,
    flips: int = 10_000,
    seed: int = 0,
) -> list[Comparison]:
    """Compare many pairs (base, other), each [n_queries, n_seeds] with rows and columns paired.

    Gives what `compare` gives for each pair alone; pairs with equally many queries share their
    random numbers, which makes a report of many comparisons a few matrix products.
    """
    for base, other in pairs:
        if base.shape != other.shape or base.ndim != 2 or 0 in base.shape:
            raise ValueError(
                f"base {base.shape} and other {other.shape} must be the same [n_queries, n_seeds], "
                "both at least 1; keep the common queries and seeds"
            )
    means = [(base.mean(axis=1), other.mean(axis=1)) for base, other in pairs]
    results: dict[int, Comparison] = {}
    for n_queries in {len(base) for base, _ in pairs}:
        members = [i for i, (base, _) in enumerate(pairs) if len(base) == n_queries]
        differences = np.stack([means[i][1] - means[i][0] for i in members], axis=1)
        low, high = paired_intervals(differences, resamples, seed=seed)
        p = sign_flip_ps(differences, flips, seed)
        for column, i in enumerate(members):
            difference = differences[:, column]
            mean_base = float(means[i][0].mean())
            gain = float(difference.mean())
            results[i] = Comparison(
                mean_base=mean_base,
                mean_other=float(means[i][1].mean()),
                difference=gain,
                relative_pct=100 * gain / mean_base if mean_base else float("nan"),
                low=float(low[column]),
                high=float(high[column]),
                p=float(p[column]),
                wins=int((difference > _TIE).sum()),
                ties=int((np.abs(difference) <= _TIE).sum()),
                losses=int((difference < -_TIE).sum()),
                n_queries=n_queries,
                n_seeds=pairs[i][0].shape[1],
            )
    return [results[i] for i in range(len(pairs))]


def compare_groups(
    groups: Sequence[Sequence[tuple[Floats, Floats]]],
    resamples: int = 10_000,
    flips: int = 10_000,
    seed: int = 0,
) -> list[Comparison]:
    """Compare two systems over several collections, each collection weighing the same.

    Means are means of the collections' means; queries are resampled within each collection, and
    signs flipped query by query. `wins`, `ties` and `losses` count collections, `n_queries` all
    queries; `n_seeds` is the fewest graph seeds.

    Args:
        groups: for each comparison the pairs (base, other) of its collections, [n_queries, n_seeds]
            as for `compare_arrays`; of the same sizes they share their random numbers.
    Raises:
        ValueError: a comparison without collections, or a pair that `compare_arrays` refuses.
    """
    if not all(groups):
        raise ValueError("a comparison of 0 collections; give each at least one")
    means = [
        [(c.mean_base, c.mean_other, c.n_seeds) for c in compare_arrays(pairs, 1, 1)]
        for pairs in groups
    ]
    differences = [[o.mean(axis=1) - b.mean(axis=1) for b, o in pairs] for pairs in groups]
    sizes = [tuple(map(len, found)) for found in differences]
    results: dict[int, Comparison] = {}
    for size in dict.fromkeys(sizes):
        members = [i for i, other in enumerate(sizes) if other == size]
        stacked = [np.stack([differences[i][at] for i in members], 1) for at in range(len(size))]
        drawn = [_resampled_means(d, resamples, seed + at) for at, d in enumerate(stacked)]
        low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5], axis=0)
        # Over all queries the mean of these is the mean of the collections' means.
        n = sum(size)
        weighted = np.concatenate([d * (n / (len(d) * len(size))) for d in stacked])
        p = sign_flip_ps(weighted, flips, seed)
        for column, i in enumerate(members):
            gains = np.array([float(d.mean()) for d in differences[i]])
            base = float(np.mean([b for b, _, _ in means[i]]))
            results[i] = Comparison(
                mean_base=base,
                mean_other=float(np.mean([o for _, o, _ in means[i]])),
                difference=float(gains.mean()),
                relative_pct=100 * float(gains.mean()) / base if base else float("nan"),
                low=float(low[column]),
                high=float(high[column]),
                p=float(p[column]),
                wins=int((gains > _TIE).sum()),
                ties=int((np.abs(gains) <= _TIE).sum()),
                losses=int((gains < -_TIE).sum()),
                n_queries=n,
                n_seeds=min(s for _, _, s in means[i]),
            )
    return [results[i] for i in range(len(groups))]


def _resampled_means(differences: Floats, resamples: int, seed: int) -> Floats:
    """Means of resampled queries, [resamples, C], of differences [n_queries, C]."""
    return np.concatenate(
        [weights @ differences for weights in _resample_weights(len(differences), resamples, seed)]
    )


def _column(difference: ArrayLike) -> Floats:
    values = np.asarray(difference, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(
            f"difference has shape {values.shape}; give one value per query, [n_queries]"
        )
    return values[:, None]


def _check(differences: Floats) -> None:
    if not len(differences):
        raise ValueError("0 queries; at least 1 is needed to compare")
    bad = np.flatnonzero(~np.isfinite(differences).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{len(bad)} queries hold NaN or infinite differences, first rows: {bad[:5].tolist()}; "
            "a query that cannot be judged must be left out on both sides"
        )


def _block_sizes(n_queries: int, total: int) -> Iterator[int]:
    size = max(1, _BLOCK_CELLS // n_queries)
    for start in range(0, total, size):
        yield min(size, total - start)


def _resample_weights(n_queries: int, resamples: int, seed: int) -> Iterator[Floats]:
    """Yield blocks [b, n_queries] of how often each query was drawn, divided by n_queries."""
    rng = np.random.default_rng(seed)
    for block in _block_sizes(n_queries, resamples):
        drawn = rng.integers(0, n_queries, size=(block, n_queries))
        drawn += n_queries * np.arange(block)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=block * n_queries)
        yield counts.reshape(block, n_queries).astype(np.float64) / n_queries


def _random_signs(n_queries: int, flips: int, seed: int) -> Iterator[Floats]:
    rng = np.random.default_rng(seed)
    row_bytes = -(-n_queries // 8)
    for block in _block_sizes(n_queries, flips):
        random_bytes = np.frombuffer(rng.bytes(block * row_bytes), dtype=np.uint8)
        bits = np.unpackbits(random_bytes.reshape(block, row_bytes), axis=1, count=n_queries)
        yield 1 - 2 * bits.astype(np.float64)  # [b, n_queries]


def _all_signs(n_queries: int) -> Iterator[Floats]:
    patterns = np.arange(2**n_queries)[:, None] >> np.arange(n_queries)[None, :]
    yield 1 - 2 * (patterns & 1).astype(np.float64)  # [2^n, n_queries]
