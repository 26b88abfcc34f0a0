"""All metrics with confidence intervals; P@5 by category; what labels of each popularity add to R@10."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mufin.evaluate.bins import labels_by_category, popularity_bins, recall_contributions
from mufin.evaluate.bootstrap import intervals
from mufin.evaluate.metrics import propensities
from mufin.evaluate.per_point import point_metrics
from mufin.evaluate.relevant_hits import FloatArray, find_relevant
from mufin.evaluate.report.figures import Theme, bare, shortened
from mufin.evaluate.report.page import Figure, Rows, Section, Table, Text
from mufin.evaluate.report.study import Study
from mufin.evaluate.score import measured, seen

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

CATEGORIES = 20  # bars in the figure; the table has all
BINS = 5


def metrics_section(study: Study) -> Section:
    """Every metric, and how sure it is."""
    values = measured(study.predictions, study.catalogue, study.points, study.propensity)
    weights = propensities(seen(study.catalogue, study.points), *study.propensity)
    ranges = intervals(
        point_metrics(find_relevant(study.predictions.labels, study.points.relevance), weights)
    )
    names = [name for name in values if "ms" not in name and name != "points"]
    rows = [[name, values[name], *ranges.get(name, ("–", "–"))] for name in names]
    return Section(
        "metrics",
        "Metrics",
        [
            Text(
                f"On {len(study):,} datapoints. Names with an @ are percentages. The intervals (95 %) come "
                "from 1,000 bootstrap samples of the datapoints; what varies from one training to the next "
                "is not in them. Coverage counts labels, not datapoints, and has none."
            ),
            Table("metrics", ["metric", "value", "low", "high"], rows),
        ],
    )


def category_section(study: Study) -> Section:
    """P@5 over the datapoints of each category."""
    section = Section("categories", "P@5 by category")
    if study.categories is None:
        section.blocks.append(
            Text(f"The items have no column “{study.category}”: there is nothing to group by.")
        )
        return section
    names, count, value, error = _by_category(study, study.categories)
    order = np.argsort(-count, kind="stable")
    labels = labels_by_category(study.catalogue.labels, study.category, names)
    rows = [[n := names[i], labels[n], int(count[i]), float(value[i]), float(error[i])] for i in order]
    top = order[:CATEGORIES]

    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        place = np.arange(len(top))
        axes.barh(place, value[top], xerr=error[top], color=theme.good, ecolor=theme.text, height=0.7)
        axes.set_yticks(place, [f"{shortened(names[i])}  ({count[i]:,})" for i in top])
        axes.invert_yaxis()
        axes.set_xlabel("P@5, %")
        bare(axes, theme, "x")

    caption = "P@5 of each category, with its 95 % interval; in brackets the number of datapoints."
    more = f" The {len(top)} largest of {len(names)}; the table beside this page has all."
    section.blocks.extend([
        Figure(
            "categories", caption + (more if len(names) > len(top) else ""),
            "; ".join(f"{names[i]} {value[i]:.1f}" for i in top), draw, (8.0, 0.9 + 0.28 * len(top)),
        ),
        Table("categories", ["category", "labels", "datapoints", "P@5", "±"], rows, most=CATEGORIES),
    ])  # fmt: skip
    return section


def _by_category(study: Study, categories: list[str]) -> tuple[list[str], np.ndarray, FloatArray, FloatArray]:
    """Names, sizes, P@5 and the half widths of its intervals."""
    names, number, count = np.unique(np.asarray(categories), return_inverse=True, return_counts=True)
    by_point = point_metrics(find_relevant(study.predictions.labels, study.points.relevance)).select("P@5")
    hits = 100 * by_point.numerator[:, 0]
    groups = [hits[number == i] for i in range(len(names))]
    value, error = (np.array([of(group) for group in groups]) for of in (np.mean, study.interval))
    return names.tolist(), count, value, error


def popularity_section(study: Study) -> Section:
    """R@10 taken apart by how often labels were seen in training."""
    bins = popularity_bins(seen(study.catalogue, study.points), BINS)
    reached = 100 * recall_contributions(study.predictions.labels, study.points.relevance, bins)
    relevance = study.points.relevance
    share = np.repeat(1 / np.maximum(np.diff(relevance.indptr), 1), np.diff(relevance.indptr))
    there = 100 * np.bincount(bins[relevance.indices], share, minlength=BINS) / len(study)
    reached = np.pad(reached, (0, BINS - len(reached)))
    sizes = np.bincount(bins, minlength=BINS)
    ranges = [_range(study.frequency[bins == i]) for i in range(BINS)]

    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        place = np.arange(BINS)
        axes.bar(place, there, color=theme.faint, width=0.7, label="all there is to find")
        bars = axes.bar(place, reached, color=theme.good, width=0.7, label="found in the top 10")
        axes.bar_label(bars, [f"{value:.1f}" for value in reached], padding=2)
        axes.set_xticks(place, [f"{sizes[i]:,} labels\nseen {ranges[i]}" for i in range(BINS)])
        axes.set_ylabel("part of R@10, %")
        axes.set_ylim(0, 1.22 * max(there.max(), 1))
        axes.legend(loc="upper center", ncols=2)
        bare(axes, theme, "y")

    rows: Rows = [
        [f"seen {ranges[i]}", int(sizes[i]), float(reached[i]), float(there[i])] for i in range(BINS)
    ]
    return Section(
        "popularity",
        "R@10 by popularity of labels",
        [
            Figure(
                "popularity",
                f"Labels in {BINS} bins from rare to popular, each with about the same number of training "
                f"pairs. The blue parts add up to R@10 = {reached.sum():.1f} %.",
                "; ".join(f"seen {ranges[i]}: {reached[i]:.1f} of {there[i]:.1f}" for i in range(BINS)),
                draw,
            ),
            Table("popularity", ["bin", "labels", "part of R@10", "all there is"], rows),
        ],
    )


def _range(frequency: np.ndarray) -> str:
    if not len(frequency):
        return "–"
    low, high = int(frequency.min()), int(frequency.max())
    return f"{low:,}×" if low == high else f"{low:,}–{high:,}×"
