"""Several models on the same datapoints, side by side, each held against the first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mufin.data.catalogue import Catalogue
from mufin.errors import UsageError
from mufin.evaluate.bins import (
    categories_of,
    labels_by_category,
    popularity_bins,
    precision_by_category,
    recall_contributions,
)
from mufin.evaluate.bootstrap import Difference, intervals, paired
from mufin.evaluate.metrics import propensities
from mufin.evaluate.per_point import point_metrics
from mufin.evaluate.relevant_hits import FloatArray, find_relevant
from mufin.evaluate.score import measured, predict, seen
from mufin.model import Mufin
from mufin.progress import Progress

BINS = 5


@dataclass(frozen=True)
class Measured:
    """What one run reached."""

    metrics: dict[str, float]  # as `evaluate` gives them
    intervals: dict[str, tuple[float, float]]
    categories: dict[str, float]  # P@5 in percent; none where items have no category
    bins: FloatArray  # (5,) parts of R@10 in percent, rare labels first
    against: dict[str, Difference]  # to the first run; empty for the first


@dataclass(frozen=True)
class Comparison:
    """Runs by name, the first being the one that others are held against."""

    runs: dict[str, Measured]
    points: int
    category_sizes: dict[str, int]  # datapoints
    category_labels: dict[str, int | str]
    bin_sizes: list[int]  # labels in each bin

    @property
    def base(self) -> str:
        return next(iter(self.runs))

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "points": self.points,
            "against": self.base,
            "runs": {
                name: {
                    "metrics": run.metrics,
                    "intervals": run.intervals,
                    "P@5 by category": run.categories,
                    "R@10 by popularity": run.bins.tolist(),
                    "differences": {metric: vars(found) for metric, found in run.against.items()},
                }
                for name, run in self.runs.items()
            },
        }


def compare(
    models: Iterable[tuple[str, Mufin]],
    catalogue: Catalogue,
    split: str = "test",
    propensity: tuple[float, float] = (0.55, 1.5),
    category: str = "category",
    progress: Progress | None = None,
) -> Comparison:
    """Measure each model, one in memory at a time, and test what differs from the first.

    Differences have a 95 % interval by the paired bootstrap and a p by randomisation; p is that of one
    comparison, and is not corrected for how many are made.
    """
    points = catalogue.split(split)
    if not len(points):
        raise UsageError(f"split {split!r} has no datapoints")
    train = seen(catalogue, points)
    weights, bins = propensities(train, *propensity), popularity_bins(train, BINS)
    categories = categories_of(catalogue.items, points.members[points.offsets[:-1]], category) or []
    runs: dict[str, Measured] = {}
    first = None
    for name, model in models:
        if name in runs:
            raise UsageError(f"{name} is given twice; name each run once")
        predictions = predict(model, catalogue, points, progress=progress)
        by_point = point_metrics(find_relevant(predictions.labels, points.relevance), weights)
        parts = recall_contributions(predictions.labels, points.relevance, bins)
        precision = (
            precision_by_category(predictions.labels, points.relevance, categories) if categories else {}
        )
        runs[name] = Measured(
            measured(predictions, catalogue, points, propensity),
            intervals(by_point),
            {key: 100 * value for key, value in precision.items()},
            100 * np.pad(parts, (0, BINS - len(parts))),
            {} if first is None else paired(by_point, first),
        )
        first = first or by_point
    names, counts = np.unique(np.asarray(categories, dtype=str), return_counts=True)
    sizes = dict(zip(names.tolist(), counts.tolist(), strict=True))
    own = labels_by_category(catalogue.labels, category, sizes)
    return Comparison(runs, len(points), sizes, own, np.bincount(bins, minlength=BINS).tolist())
