"""Confidence intervals of metrics by bootstrap over datapoints, and paired tests of two rankings.

The intervals do not include variation between training runs. Above 10,000 datapoints, random groups of them
are resampled instead: the same distribution at a bounded cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mufin.errors import UsageError
from mufin.evaluate.per_point import FloatArray, PointMetrics, ratio

MAX_GROUPS = 10_000
BLOCK_CELLS = 1 << 22  # random numbers drawn at once; bounds memory
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two runs on the same datapoints."""

    value: float
    low: float  # of the 95 % interval, by paired bootstrap
    high: float
    p: float  # two-sided, by a randomisation test


def intervals(metrics: PointMetrics, samples: int = 1000, seed: int = 0) -> dict[str, tuple[float, float]]:
    """The 95 % percentile interval of each metric over `samples` bootstrap samples."""
    numerator, denominator = _sum_into_groups(seed, metrics.numerator, metrics.denominator)
    counts = _resampling_counts(len(numerator), samples, seed)
    drawn = np.concatenate([ratio(w @ numerator, w @ denominator) for w in counts])
    low, high = _percentiles(metrics.scale * drawn)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(metrics.names)}


def paired(
    run: PointMetrics, base: PointMetrics, samples: int = 10_000, seed: int = 0
) -> dict[str, Difference]:
    """The difference `run` − `base` of every metric, with a paired bootstrap interval and a p-value.

    p comes from a randomisation test: the fraction of random swaps of the two rankings per datapoint (the
    observed assignment included) that give a difference at least as large.
    """
    if run.names != base.names or run.numerator.shape != base.numerator.shape:
        raise UsageError("the two runs were not evaluated on the same datapoints")
    change, run_top, base_top, run_bottom, base_bottom = _sum_into_groups(
        seed, run.numerator - base.numerator, run.numerator, base.numerator, run.denominator, base.denominator
    )
    bootstrap = np.concatenate([
        ratio(w @ run_top, w @ run_bottom) - ratio(w @ base_top, w @ base_bottom)
        for w in _resampling_counts(len(change), max(1, samples // 10), seed)
    ])  # fmt: skip
    low, high = _percentiles(run.scale * bootstrap)
    observed = change.sum(axis=0)
    # Treat sums that differ only by rounding as equal.
    least = np.abs(observed) * (1 - 1e-9) - 1e-12
    larger = sum((np.abs(s @ change) >= least).sum(axis=0) for s in _random_signs(len(change), samples, seed))
    p = (1 + larger) / (1 + samples)
    value = run.scale * ratio(observed, run.denominator.sum(axis=0))
    return {
        name: Difference(float(value[i]), float(low[i]), float(high[i]), float(p[i]))
        for i, name in enumerate(run.names)
    }


def _sum_into_groups(seed: int, *columns: FloatArray) -> list[FloatArray]:
    """Sum the rows (n, M) of each array into at most 10,000 random groups."""
    n = len(columns[0])
    if n <= MAX_GROUPS:
        return list(columns)
    group = np.random.default_rng(seed).permutation(n) % MAX_GROUPS
    sums = []
    for column in columns:
        total = np.zeros((MAX_GROUPS, column.shape[1]))
        np.add.at(total, group, column)
        sums.append(total)
    return sums


def _resampling_counts(n: int, samples: int, seed: int) -> Iterator[FloatArray]:
    """Yield blocks (b, n): how often each of n rows occurs in each bootstrap sample."""
    rng = np.random.default_rng(seed)
    step = max(1, BLOCK_CELLS // n)
    for start in range(0, samples, step):
        size = min(step, samples - start)
        rows = rng.integers(0, n, (size, n)) + n * np.arange(size)[:, None]
        yield np.bincount(rows.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)


def _random_signs(n: int, samples: int, seed: int) -> Iterator[FloatArray]:
    """Yield blocks (b, n) of random signs."""
    rng = np.random.default_rng(seed)
    step = max(1, BLOCK_CELLS // n)
    for start in range(0, samples, step):
        yield rng.integers(0, 2, (min(step, samples - start), n), np.int8) * 2.0 - 1.0


def _percentiles(drawn: FloatArray) -> FloatArray:
    """The ends of the 95 % interval, (2, M)."""
    tail = (1 - CONFIDENCE) / 2
    return np.asarray(np.quantile(drawn, [tail, 1 - tail], axis=0), np.float64)
