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
LEVEL = 0.05  # of significance; intervals are of 95 %
ROUNDING = 1e-12  # differences that are smaller are zero


@dataclass(frozen=True)
class Difference:
    """The difference of a metric between two runs on the same datapoints."""

    value: float
    low: float  # of the 95 % interval, by paired bootstrap
    high: float
    p: float  # two-sided, by the same bootstrap


def intervals(metrics: PointMetrics, samples: int = 1000, seed: int = 0) -> dict[str, tuple[float, float]]:
    """The 95 % percentile interval of each metric over `samples` bootstrap samples."""
    numerator, denominator = _sum_into_groups(seed, metrics.numerator, metrics.denominator)
    counts = _resampling_counts(len(numerator), samples, seed)
    drawn = np.concatenate([ratio(w @ numerator, w @ denominator) for w in counts])
    low, high = _percentiles(metrics.scale * drawn)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(metrics.names)}


def paired(
    run: PointMetrics, base: PointMetrics, samples: int = 5000, seed: int = 0
) -> dict[str, Difference]:
    """The difference `run` − `base` of every metric, with interval and p-value of one paired bootstrap.

    p = 2 min((1 + #{d* ≤ 0}) / (1 + B), (1 + #{d* ≥ 0}) / (1 + B)) over the differences d* of B samples, at
    most 1. The interval leaves out as many samples on each side as p < 0.05 allows beyond zero, so it
    excludes zero exactly if p < 0.05.
    """
    if run.names != base.names or run.numerator.shape != base.numerator.shape:
        raise UsageError("the two runs were not evaluated on the same datapoints")
    change, run_top, base_top, run_bottom, base_bottom = _sum_into_groups(
        seed, run.numerator - base.numerator, run.numerator, base.numerator, run.denominator, base.denominator
    )
    drawn = np.concatenate([
        ratio(w @ run_top, w @ run_bottom) - ratio(w @ base_top, w @ base_bottom)
        for w in _resampling_counts(len(change), samples, seed)
    ])  # fmt: skip
    drawn[np.abs(drawn) < ROUNDING] = 0.0
    beyond = np.minimum((drawn <= 0).sum(axis=0), (drawn >= 0).sum(axis=0))
    p = np.minimum(2 * (1 + beyond) / (1 + samples), 1.0)
    significant = 2 * (1 + np.arange(samples)) / (1 + samples) < LEVEL  # by the number of samples beyond zero
    left_out = max(int(significant.sum()) - 1, 0)
    ordered = run.scale * np.sort(drawn, axis=0)
    low, high = ordered[left_out], ordered[-1 - left_out]
    value = run.scale * ratio(change.sum(axis=0), run.denominator.sum(axis=0))
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


def _percentiles(drawn: FloatArray) -> FloatArray:
    """The ends of the 95 % interval, (2, M)."""
    return np.asarray(np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2], axis=0), np.float64)
