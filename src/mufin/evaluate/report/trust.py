"""How much classifiers lean on ẑ (α), and whether probabilities mean what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mufin.evaluate.bins import popularity_bins
from mufin.evaluate.calibration import calibration_curve, expected_calibration_error
from mufin.evaluate.report.figures import Theme, bare
from mufin.evaluate.report.page import Figure, Section, Table, Text
from mufin.evaluate.report.study import Study
from mufin.evaluate.score import seen

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

BINS = 15
TOP = 10  # hits of each datapoint that are judged; the probability was fitted on as many
POPULARITY = 5


def alpha_section(study: Study) -> Section:
    """The histogram of α_l, and α by popularity."""
    section = Section("alpha", "α: text and pictures, or learnt freely")
    known = np.flatnonzero(study.model_rows >= 0)
    alpha = study.model.labels.alpha.float().cpu().numpy()[study.model_rows[known]]
    section.blocks.append(
        Text("w = N(α ẑ + (1 − α) N(η)): at α = 1 a classifier is what the label's own descriptors say.")
    )
    if study.model.config.rank.alpha == "one":
        section.blocks.append(Text("This model has no free vectors: α is 1 for every label."))
        return section
    bins = popularity_bins(seen(study.catalogue, study.points), POPULARITY)[known]
    groups = [alpha[bins == i] for i in range(POPULARITY)]

    def draw(canvas: Canvas, theme: Theme) -> None:
        left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
        left.hist(alpha, bins=50, range=(0, 1), color=theme.good)
        left.set_xlabel("α")
        left.set_ylabel("labels")
        bare(left, theme, "y")
        box = right.boxplot(
            [group if len(group) else [np.nan] for group in groups],
            showfliers=False,
            patch_artist=True,
            widths=0.6,
        )
        for part in box["boxes"]:
            part.set(facecolor=theme.good, edgecolor=theme.text)
        for part in (*box["whiskers"], *box["caps"], *box["medians"]):
            part.set(color=theme.text)
        names = ["rarest", *([""] * (POPULARITY - 2)), "most\npopular"]
        right.set_xticks(range(1, POPULARITY + 1), names)
        right.set_ylabel("α")
        right.set_ylim(-0.03, 1.03)
        bare(right, theme, "y")

    middle = f"{np.median(alpha):.2f}" if len(alpha) else "–"
    caption = (
        f"Left: α of {len(alpha):,} labels, median {middle}; {np.mean(alpha > 0.99):.0%} are at 1, without "
        "training. Right: by five bins of popularity (median, quartiles, range without outliers)."
    )
    section.blocks.append(Figure("alpha", caption, f"Histogram of α, median {middle}.", draw))
    return section


def calibration_section(study: Study) -> Section:
    """Of hits said to be relevant with probability p, a share p should be."""
    there = study.predictions.labels[:, :TOP] >= 0
    chance = study.predictions.probability[:, :TOP][there].astype(np.float64)
    relevant = study.relevant[:, :TOP][there]
    count, claimed, found = calibration_curve(chance, relevant, BINS)
    error = expected_calibration_error(chance, relevant, BINS)
    some = count > 0
    spread = 1.96 * np.sqrt(found * (1 - found) / np.maximum(count, 1))

    def draw(canvas: Canvas, theme: Theme) -> None:
        from matplotlib.ticker import NullFormatter, StrMethodFormatter

        axes, below = canvas.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        axes.plot([0, 1], [0, 1], color=theme.text, linewidth=1, linestyle="--", label="perfect")
        axes.errorbar(
            claimed[some],
            found[some],
            spread[some],
            color=theme.good,
            marker="o",
            capsize=2,
            label="this model",
        )
        axes.set_ylabel("share that is relevant")
        axes.set_ylim(-0.02, 1.02)
        axes.legend(loc="upper left")
        bare(axes, theme, "y")
        below.bar((np.arange(BINS) + 0.5) / BINS, count, width=0.9 / BINS, color=theme.bad)
        below.set_yscale("log")
        below.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        below.yaxis.set_minor_formatter(NullFormatter())
        below.set_xlabel("probability given")
        below.set_ylabel("hits")
        below.set_xlim(0, 1)
        bare(below, theme, "y")

    rows = [[int(count[i]), float(claimed[i]), float(found[i])] for i in range(BINS) if some[i]]
    return Section(
        "calibration",
        "Calibration",
        [
            Text(
                f"Expected calibration error {error:.4f}, over {BINS} bins: how far probabilities are from "
                f"shares on average. Over the {TOP} best hits of each datapoint; relevant hits that the "
                "truth lacks make a model look too sure."
            ),
            Figure(
                "calibration",
                "Above: of the hits in a range of probability, the share that is relevant, with its 95 % "
                "interval. Below: how many hits each range holds (logarithmic).",
                f"Calibration curve; expected calibration error {error:.4f}.",
                draw,
                (8.0, 5.0),
            ),
            Table("calibration", ["hits", "mean probability", "share relevant"], rows, left=0),
        ],
    )
