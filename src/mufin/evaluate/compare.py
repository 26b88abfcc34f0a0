"""Compare several models on the same datapoints; the first one is the baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mufin.data.catalogue import Catalogue
from mufin.data.split import Split
from mufin.errors import UsageError
from mufin.evaluate.bins import (
    POPULARITY_BINS,
    categories_of,
    labels_by_category,
    popularity_bins,
    precision_by_category,
    recall_contributions,
)
from mufin.evaluate.bootstrap import Difference, intervals, paired
from mufin.evaluate.metrics import propensities
from mufin.evaluate.per_point import FloatArray, IntArray, PointMetrics, find_relevant, point_metrics
from mufin.evaluate.score import Predictions, predict, score_predictions, training_relevance
from mufin.model.mufin import Mufin
from mufin.progress import QUIET, Progress


@dataclass(frozen=True)
class RunMetrics:
    """The metrics of one run."""

    metrics: dict[str, float]  # as `evaluate` returns them
    intervals: dict[str, tuple[float, float]]
    categories: dict[str, float]  # P@5 in percent; empty if items have no category
    bins: FloatArray  # (5,) contributions to R@10 in percent, rare labels first
    against: dict[str, Difference]  # to the baseline; empty for the baseline itself


@dataclass(frozen=True)
class Comparison:
    """Runs by name; the first one is the baseline."""

    runs: dict[str, RunMetrics]
    points: int
    category_sizes: dict[str, int]  # datapoints per category
    category_labels: dict[str, int | str]  # labels per category
    bin_sizes: list[int]  # labels per popularity bin

    @property
    def base(self) -> str:
        """The name of the baseline."""
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
    progress: Progress = QUIET,
) -> Comparison:
    """Evaluate each model, one in memory at a time, and test its differences from the first.

    Differences have a 95 % interval and a p-value of one paired bootstrap, not corrected for multiple
    comparisons.
    """
    points = catalogue.split(split)
    if not len(points):
        raise UsageError(f"split {split!r} has no datapoints")
    train = training_relevance(catalogue, points)
    inverse_propensity, bins = propensities(train, *propensity), popularity_bins(train)
    categories = categories_of(catalogue.items, points.members[points.offsets[:-1]], category) or []
    runs: dict[str, RunMetrics] = {}
    baseline: PointMetrics | None = None
    for name, model in models:
        if name in runs:
            raise UsageError(f"{name} is given twice; name each run once")
        predictions = predict(model, catalogue, points, progress=progress)
        by_point = point_metrics(find_relevant(predictions.labels, points.relevance), inverse_propensity)
        runs[name] = RunMetrics(
            score_predictions(predictions, catalogue, points, propensity),
            intervals(by_point),
            _by_category(predictions, points, categories),
            _by_popularity(predictions, points, bins),
            {} if baseline is None else paired(by_point, baseline),
        )
        baseline = baseline or by_point
    names, counts = np.unique(np.asarray(categories, dtype=str), return_counts=True)
    sizes = dict(zip(names.tolist(), counts.tolist(), strict=True))
    labels = labels_by_category(catalogue.labels, category, sizes)
    return Comparison(runs, len(points), sizes, labels, np.bincount(bins, minlength=POPULARITY_BINS).tolist())


def _by_category(predictions: Predictions, points: Split, categories: list[str]) -> dict[str, float]:
    """P@5 per category in percent; empty without categories."""
    if not categories:
        return {}
    found = precision_by_category(predictions.labels, points.relevance, categories)
    return {name: 100 * value for name, value in found.items()}


def _by_popularity(predictions: Predictions, points: Split, bins: IntArray) -> FloatArray:
    """Contributions to R@10 per popularity bin in percent, (5,)."""
    parts = recall_contributions(predictions.labels, points.relevance, bins)
    return 100 * np.pad(parts, (0, POPULARITY_BINS - len(parts)))
