"""How far probabilities can be believed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mufin.errors import UsageError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def calibration_curve(
    probability: npt.ArrayLike, relevant: npt.ArrayLike, bins: int = 15
) -> tuple[IntArray, FloatArray, FloatArray]:
    """By `bins` equal ranges of probability: how many, their mean probability, the share that is relevant.

    >>> count, claimed, found = calibration_curve([0.1, 0.9, 0.7], [False, True, False], bins=2)
    >>> count.tolist(), claimed.tolist(), found.tolist()
    ([1, 2], [0.1, 0.8], [0.0, 0.5])
    """
    chance, hit = np.asarray(probability, np.float64).ravel(), np.asarray(relevant, np.float64).ravel()
    if chance.shape != hit.shape or bins < 1:
        raise UsageError(f"{len(chance)} probabilities, {len(hit)} judgements, {bins} bins; expected as many")
    which = np.clip((chance * bins).astype(np.int64), 0, bins - 1)
    count = np.bincount(which, minlength=bins)
    mean = [np.bincount(which, values, minlength=bins) / np.maximum(count, 1) for values in (chance, hit)]
    return count, mean[0], mean[1]


def expected_calibration_error(probability: npt.ArrayLike, relevant: npt.ArrayLike, bins: int = 15) -> float:
    """ECE = Σ over bins of (its share of all) · |mean probability − share that is relevant|.

    >>> round(expected_calibration_error([0.1, 0.9, 0.7], [False, True, False], bins=2), 6)  # 0.1/3 + 0.6/3
    0.233333
    """
    count, claimed, found = calibration_curve(probability, relevant, bins)
    return float((count * np.abs(claimed - found)).sum() / max(1, count.sum()))
