"""Section: whether predicted probabilities match observed frequencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mufin.evaluate.metrics import CALIBRATION_BINS, calibration_curve, expected_calibration_error
from mufin.evaluate.per_point import FloatArray, IntArray
from mufin.evaluate.report.data import ReportData
from mufin.evaluate.report.figures import Draw, Theme, clean_axes
from mufin.evaluate.report.page import Figure, Section, Table, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

HITS_PER_POINT = 10  # the probability is fitted on as many


def calibration_section(data: ReportData) -> Section:
    """Calibration curve and expected calibration error over the first hits."""
    exists = data.predictions.labels[:, :HITS_PER_POINT] >= 0
    probability = data.predictions.probability[:, :HITS_PER_POINT][exists].astype(np.float64)
    relevant = data.relevant[:, :HITS_PER_POINT][exists]
    count, predicted, observed = calibration_curve(probability, relevant)
    error = expected_calibration_error(probability, relevant)
    rows = [
        [int(count[i]), float(predicted[i]), float(observed[i])] for i in range(CALIBRATION_BINS) if count[i]
    ]
    return Section(
        "calibration",
        "Calibration",
        [
            Text(
                f"Expected calibration error {error:.4f} over {CALIBRATION_BINS} bins: the mean distance "
                f"between probability and observed frequency, for the {HITS_PER_POINT} best hits of each "
                "datapoint. Relevant hits that the truth lacks make a model look overconfident."
            ),
            Figure(
                "calibration",
                "Top: fraction of relevant hits by predicted probability, with 95 % intervals. Bottom: "
                "number of hits per bin (logarithmic).",
                f"Calibration curve; expected calibration error {error:.4f}.",
                _draw_curve(count, predicted, observed),
                (8.0, 5.0),
            ),
            Table("calibration", ["hits", "mean probability", "fraction relevant"], rows, text_columns=0),
        ],
    )


def _draw_curve(count: IntArray, predicted: FloatArray, observed: FloatArray) -> Draw:
    used = count > 0
    spread = 1.96 * np.sqrt(observed * (1 - observed) / np.maximum(count, 1))

    def draw(canvas: Canvas, theme: Theme) -> None:
        from matplotlib.ticker import NullFormatter, StrMethodFormatter

        curve, histogram = canvas.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        curve.plot([0, 1], [0, 1], color=theme.text, linewidth=1, linestyle="--", label="perfect")
        curve.errorbar(
            predicted[used], observed[used], spread[used], color=theme.good, marker="o", capsize=2,
            label="this model",
        )  # fmt: skip
        curve.set_ylabel("fraction relevant")
        curve.set_ylim(-0.02, 1.02)
        curve.legend(loc="upper left")
        clean_axes(curve, theme, "y")
        centres = (np.arange(CALIBRATION_BINS) + 0.5) / CALIBRATION_BINS
        histogram.bar(centres, count, width=0.9 / CALIBRATION_BINS, color=theme.bad)
        histogram.set_yscale("log")
        histogram.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        histogram.yaxis.set_minor_formatter(NullFormatter())
        histogram.set_xlabel("predicted probability")
        histogram.set_ylabel("hits")
        histogram.set_xlim(0, 1)
        clean_axes(histogram, theme, "y")

    return draw
