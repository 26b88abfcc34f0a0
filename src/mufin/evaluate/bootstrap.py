"""How sure a metric is: bootstrap intervals over datapoints, and paired tests of two rankings.

Datapoints are resampled; what varies from one training to the next is not in these intervals. Beyond 10,000
datapoints, random groups of them are resampled instead: the same distribution at a bounded cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mufin.errors import UsageError
from mufin.evaluate.metrics import FloatArray, Pointwise, ratio

GROUPS = 10_000
BLOCK = 1 << 22  # cells of the largest block of random numbers
LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """A metric of a run less that of another on the same datapoints."""

    value: float
    low: float  # of the 95 % interval, by the paired bootstrap
    high: float
    p: float  # two-sided, by randomisation: how often swapping the runs at random gives as much


def intervals(metrics: Pointwise, samples: int = 1000, seed: int = 0) -> dict[str, tuple[float, float]]:
    """The 95 % percentile interval of each metric over `samples` bootstrap samples of the datapoints."""
    reached, possible = _grouped(seed, metrics.reached, metrics.possible)
    drawn = np.concatenate([ratio(w @ reached, w @ possible) for w in _draws(len(reached), samples, seed)])
    low, high = _percentiles(metrics.scale * drawn)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(metrics.names)}


def paired(run: Pointwise, base: Pointwise, samples: int = 10_000, seed: int = 0) -> dict[str, Difference]:
    """`run` less `base` for every metric: paired bootstrap for the interval, randomisation for p.

    Under the null hypothesis the two rankings of a datapoint could be swapped: p is the share of random
    swaps (and the one observed) that leave a difference at least as large.
    """
    if run.names != base.names or run.reached.shape != base.reached.shape:
        raise UsageError("the two runs were not measured on the same datapoints")
    change, a, b, pa, pb = _grouped(
        seed, run.reached - base.reached, run.reached, base.reached, run.possible, base.possible
    )
    bootstrap = np.concatenate(
        [ratio(w @ a, w @ pa) - ratio(w @ b, w @ pb) for w in _draws(len(a), max(1, samples // 10), seed)]
    )
    low, high = _percentiles(run.scale * bootstrap)
    observed = change.sum(axis=0)
    # Sums that are equal but for rounding must count as equal.
    least = np.abs(observed) * (1 - 1e-9) - 1e-12
    larger = sum((np.abs(s @ change) >= least).sum(axis=0) for s in _signs(len(change), samples, seed))
    p = (1 + larger) / (1 + samples)
    value = run.scale * ratio(observed, run.possible.sum(axis=0))
    return {
        name: Difference(float(value[i]), float(low[i]), float(high[i]), float(p[i]))
        for i, name in enumerate(run.names)
    }


def _grouped(seed: int, *columns: FloatArray) -> list[FloatArray]:
    """The rows (n, M) of each, summed into at most 10,000 random groups."""
    n = len(columns[0])
    if n <= GROUPS:
        return list(columns)
    group = np.random.default_rng(seed).permutation(n) % GROUPS
    sums = []
    for column in columns:
        total = np.zeros((GROUPS, column.shape[1]))
        np.add.at(total, group, column)
        sums.append(total)
    return sums


def _draws(n: int, samples: int, seed: int) -> Iterator[FloatArray]:
    """How often each of n rows is in each bootstrap sample, block by block: (b, n)."""
    rng = np.random.default_rng(seed)
    step = max(1, BLOCK // n)
    for start in range(0, samples, step):
        size = min(step, samples - start)
        rows = rng.integers(0, n, (size, n)) + n * np.arange(size)[:, None]
        yield np.bincount(rows.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)


def _signs(n: int, samples: int, seed: int) -> Iterator[FloatArray]:
    """Random signs, block by block: (b, n)."""
    rng = np.random.default_rng(seed)
    step = max(1, BLOCK // n)
    for start in range(0, samples, step):
        yield rng.integers(0, 2, (min(step, samples - start), n), np.int8) * 2.0 - 1.0


def _percentiles(drawn: FloatArray) -> FloatArray:
    """The ends of the 95 % interval, (2, M)."""
    tail = (1 - LEVEL) / 2
    return np.asarray(np.quantile(drawn, [tail, 1 - tail], axis=0), np.float64)
