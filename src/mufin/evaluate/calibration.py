"""Calibration of probabilities: calibration curve and expected calibration error."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mufin.errors import UsageError
from mufin.evaluate.relevant_hits import FloatArray, IntArray

CALIBRATION_BINS = 15


def calibration_curve(
    probability: npt.ArrayLike, relevant: npt.ArrayLike, bins: int = CALIBRATION_BINS
) -> tuple[IntArray, FloatArray, FloatArray]:
    """For each of `bins` equal ranges of probability: count, mean probability, fraction that is relevant.

    >>> count, predicted, observed = calibration_curve([0.1, 0.9, 0.7], [False, True, False], bins=2)
    >>> count.tolist(), predicted.tolist(), observed.tolist()
    ([1, 2], [0.1, 0.8], [0.0, 0.5])
    """
    p, y = np.asarray(probability, np.float64).ravel(), np.asarray(relevant, np.float64).ravel()
    if p.shape != y.shape:
        raise UsageError(f"{len(p)} probabilities for {len(y)} relevance values; expected one each")
    if bins < 1:
        raise UsageError(f"bins is {bins}; it must be at least 1")
    which = np.clip((p * bins).astype(np.int64), 0, bins - 1)
    count = np.bincount(which, minlength=bins)
    mean = [np.bincount(which, values, minlength=bins) / np.maximum(count, 1) for values in (p, y)]
    return count, mean[0], mean[1]


def expected_calibration_error(
    probability: npt.ArrayLike, relevant: npt.ArrayLike, bins: int = CALIBRATION_BINS
) -> float:
    """ECE = Σ over bins of (fraction of all in the bin) · |mean probability − fraction that is relevant|.

    >>> round(expected_calibration_error([0.1, 0.9, 0.7], [False, True, False], bins=2), 6)  # 0.1/3 + 0.6/3
    0.233333
    """
    count, predicted, observed = calibration_curve(probability, relevant, bins)
    return float((count * np.abs(predicted - observed)).sum() / max(1, count.sum()))
