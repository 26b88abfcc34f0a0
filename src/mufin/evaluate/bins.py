"""Break metrics down: recall by label popularity, precision by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from mufin.data.items import Items
from mufin.errors import UsageError
from mufin.evaluate.per_point import FloatArray, IntArray, find_relevant

POPULARITY_BINS = 5
NO_CATEGORY = "none"  # the category of items whose value is missing
NOT_COUNTED = "–"


def popularity_bins(train_relevance: csr_matrix, bins: int = POPULARITY_BINS) -> IntArray:
    """Bin of each label, 0 = rarest; all bins have about the same number of training pairs.

    Labels are sorted by training frequency; a label on a boundary goes where its middle pair lies. Labels
    that do not occur in training are in bin 0.

    >>> train = csr_matrix([[1, 1, 1, 0], [1, 0, 0, 0]], dtype=bool)  # seen 2, 1, 1, 0 times
    >>> popularity_bins(train, bins=2).tolist()
    [1, 0, 0, 0]
    """
    if bins < 1:
        raise UsageError(f"bins is {bins}; it must be at least 1")
    frequency = np.asarray(train_relevance.astype(bool).sum(axis=0), dtype=np.int64).ravel()  # (L,)
    order = np.argsort(frequency, kind="stable")
    middle = np.cumsum(frequency[order]) - frequency[order] / 2  # in pairs, rarest label first
    numbers = np.empty(len(frequency), np.int64)
    numbers[order] = np.minimum(middle * bins // max(1, frequency.sum()), bins - 1)
    return numbers


def recall_contributions(
    predicted: npt.ArrayLike, truth: csr_matrix, bin_of_label: npt.ArrayLike, k: int = 10
) -> FloatArray:
    """The contribution of each bin to R@k, (bins,); the contributions sum to R@k.

    >>> truth = csr_matrix([[1, 1, 0, 0], [0, 0, 0, 1]], dtype=bool)
    >>> recall_contributions([[0, 1], [2, 3]], truth, [0, 1, 1, 1]).tolist()  # R@10 = 1
    [0.25, 0.75]
    """
    numbers = np.asarray(bin_of_label)
    if numbers.shape != (truth.shape[1],):
        raise UsageError(f"bin numbers of shape {numbers.shape} for {truth.shape[1]} labels")
    hits = find_relevant(predicted, truth).top(k)
    share = 1 / hits.relevant[hits.rows]  # (H,)
    bins = int(numbers.max(initial=0)) + 1
    return np.bincount(numbers[hits.labels], share, minlength=bins) / hits.n


def categories_of(items: Items, rows: IntArray, column: str = "category") -> list[str] | None:
    """The category of each item, or None if the column does not exist."""
    if column not in items.table.column_names:
        return None
    values = items.table.column(column).take(rows).to_pylist()
    return [NO_CATEGORY if value is None else str(value) for value in values]


def labels_by_category(labels: Items, column: str, names: Iterable[str]) -> dict[str, int | str]:
    """Number of labels per category; “–” if labels do not have the column."""
    found = categories_of(labels, np.arange(len(labels)), column)
    count = Counter(found)
    return {name: NOT_COUNTED if found is None else count[name] for name in names}


def precision_by_category(
    predicted: npt.ArrayLike, truth: csr_matrix, categories: Sequence[str], k: int = 5
) -> dict[str, float]:
    """P@k over the datapoints of each category, sorted by name.

    >>> truth = csr_matrix([[1, 1], [1, 0], [0, 1]], dtype=bool)
    >>> precision_by_category([[0, 1], [1, 0], [0, -1]], truth, ["desk", "lamp", "lamp"], k=2)
    {'desk': 1.0, 'lamp': 0.25}
    """
    if len(categories) != truth.shape[0]:
        raise UsageError(f"{len(categories)} categories for {truth.shape[0]} datapoints; expected one each")
    names, number, size = np.unique(
        np.asarray(categories, dtype=str), return_inverse=True, return_counts=True
    )
    hits = find_relevant(predicted, truth).top(k)
    count = np.bincount(number[hits.rows], minlength=len(names))
    return {str(name): float(value) for name, value in zip(names, count / (k * size), strict=True)}
