"""Report sections on metrics: overall, by group, and by signal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from mufin.evaluate.baselines import baselines
from mufin.evaluate.bins import POPULARITY_BINS, labels_by_category, popularity_bins, recall_contributions
from mufin.evaluate.bootstrap import intervals
from mufin.evaluate.metrics import evaluate, propensities
from mufin.evaluate.per_point import FloatArray, find_relevant, point_metrics
from mufin.evaluate.report.data import ReportData, half_width
from mufin.evaluate.report.figures import Theme, clean_axes, truncate
from mufin.evaluate.report.page import Figure, Rows, Section, Table, Text
from mufin.evaluate.score import score_predictions, training_relevance
from mufin.progress import count
from mufin.signals.base import marked

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PLOTTED_CATEGORIES = 20  # the table has all
BASELINES = "the most frequent labels, and the labels of training points with similar words (TF-IDF)"


def metrics_section(data: ReportData) -> Section:
    """Every metric with its confidence interval."""
    values = score_predictions(data.predictions, data.catalogue, data.points, data.propensity)
    inverse_propensity = propensities(training_relevance(data.catalogue, data.points), *data.propensity)
    hits = find_relevant(data.predictions.labels, data.points.relevance)
    ranges = intervals(point_metrics(hits, inverse_propensity))
    names = [name for name in values if "ms" not in name and name != "points"]
    others = {
        name: evaluate(ranked, data.points.relevance, inverse_propensity)
        for name, ranked in baselines(data.catalogue, data.points, data.predictions.labels.shape[1]).items()
    }
    rows = [
        [name, values[name], *ranges.get(name, ("–", "–")), *(other[name] for other in others.values())]
        for name in names
    ]
    beside = f" Beside them, two baselines: {BASELINES}." if len(others) == 2 else ""
    return Section(
        "metrics",
        "Metrics",
        [
            Text(
                f"Over {len(data):,} datapoints. Metrics with an @ are percentages. The 95 % intervals come "
                "from 1,000 bootstrap samples of the datapoints and do not include variation between "
                f"training runs. Coverage counts labels, not datapoints, and has no interval.{beside}"
            ),
            Table("metrics", ["metric", "value", "low", "high", *others], rows),
        ],
    )


def category_section(data: ReportData) -> Section:
    """P@5 over the datapoints of each category."""
    section = Section("categories", "P@5 by category")
    if data.categories is None:
        section.blocks.append(Text(f"The items have no column “{data.category}” to group by."))
        return section
    names, count, value, error = _by_category(data, data.categories)
    order = np.argsort(-count, kind="stable")
    labels = labels_by_category(data.catalogue.labels, data.category, names)
    rows = [[n := names[i], labels[n], int(count[i]), float(value[i]), float(error[i])] for i in order]
    top = order[:PLOTTED_CATEGORIES]

    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        y = np.arange(len(top))
        axes.barh(y, value[top], xerr=error[top], color=theme.good, ecolor=theme.text, height=0.7)
        axes.set_yticks(y, [f"{truncate(names[i])}  ({count[i]:,})" for i in top])
        axes.invert_yaxis()
        axes.set_xlabel("P@5, %")
        axes.set_ylabel("category (datapoints)")
        clean_axes(axes, theme, "x")

    caption = "P@5 of each category with its 95 % interval; the number of datapoints is in parentheses."
    more = f" The {len(top)} largest of {len(names)} categories; the CSV file has all."
    section.blocks.extend([
        Figure(
            "categories", caption + (more if len(names) > len(top) else ""),
            "; ".join(f"{names[i]} {value[i]:.1f}" for i in top), draw, (8.0, 0.9 + 0.28 * len(top)),
        ),
        Table(
            "categories", ["category", "labels", "datapoints", "P@5", "±"], rows,
            max_rows=PLOTTED_CATEGORIES,
        ),
    ])  # fmt: skip
    return section


def _by_category(
    data: ReportData, categories: list[str]
) -> tuple[list[str], np.ndarray, FloatArray, FloatArray]:
    """Name, number of datapoints, P@5 and half width of its interval for each category."""
    names, number, count = np.unique(np.asarray(categories), return_inverse=True, return_counts=True)
    hits = find_relevant(data.predictions.labels, data.points.relevance)
    precision = 100 * point_metrics(hits).select("P@5").numerator[:, 0]
    groups = [precision[number == i] for i in range(len(names))]
    value, error = (np.array([of(group) for group in groups]) for of in (np.mean, half_width))
    return names.tolist(), count, value, error


def popularity_section(data: ReportData) -> Section:
    """The contribution of labels of each popularity to R@10."""
    bins = popularity_bins(training_relevance(data.catalogue, data.points))
    found = 100 * recall_contributions(data.predictions.labels, data.points.relevance, bins)
    found = np.pad(found, (0, POPULARITY_BINS - len(found)))
    possible = _possible_recall(data, bins)
    sizes = np.bincount(bins, minlength=POPULARITY_BINS)
    ranges = [_range(data.frequency[bins == i]) for i in range(POPULARITY_BINS)]

    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        x = np.arange(POPULARITY_BINS)
        axes.bar(x, possible, color=theme.muted, width=0.7, label="maximum")
        bars = axes.bar(x, found, color=theme.good, width=0.7, label="found in the top 10")
        axes.bar_label(bars, [f"{value:.1f}" for value in found], padding=2)
        axes.set_xticks(
            x, [f"{count(size, 'label')}\nseen {seen}" for size, seen in zip(sizes, ranges, strict=True)]
        )
        axes.set_xlabel("labels by number of training points")
        axes.set_ylabel("contribution to R@10, %")
        axes.set_ylim(0, 1.22 * max(possible.max(), 1))
        axes.legend(loc="upper center", ncols=2)
        clean_axes(axes, theme, "y")

    rows: Rows = [
        [f"seen {ranges[i]}", int(sizes[i]), float(found[i]), float(possible[i])]
        for i in range(POPULARITY_BINS)
    ]
    caption = (
        f"Labels in {POPULARITY_BINS} bins from rare to popular, each with about the same number of training "
        f"pairs. The blue bars add up to R@10 = {found.sum():.1f} %."
    )
    alt = "; ".join(f"seen {ranges[i]}: {found[i]:.1f} of {possible[i]:.1f}" for i in range(POPULARITY_BINS))
    return Section(
        "popularity",
        "R@10 by label popularity",
        [
            Figure("popularity", caption, alt, draw),
            Table("popularity", ["training points", "labels", "contribution to R@10", "maximum"], rows),
        ],
    )


def _possible_recall(data: ReportData, bins: np.ndarray) -> FloatArray:
    """The contribution of each bin to a recall of 100 %, (5,)."""
    relevance = data.points.relevance
    counts = np.diff(relevance.indptr)
    share = np.repeat(1 / np.maximum(counts, 1), counts)
    return 100 * np.bincount(bins[relevance.indices], share, minlength=POPULARITY_BINS) / len(data)


def _range(frequency: np.ndarray) -> str:
    if not len(frequency):
        return "–"
    low, high = int(frequency.min()), int(frequency.max())
    return f"{low:,}×" if low == high else f"{low:,}–{high:,}×"


SAMPLED_POINTS = 500
HITS_PER_POINT = 10


def signals_section(data: ReportData) -> Section:
    """The mean contribution of each signal to the scores of the first hits."""
    model, points = data.model, data.sample(SAMPLED_POINTS)
    exclude, relevant = (
        model.labels.align(relation[points], data.catalogue.labels)
        for relation in (data.points.exclude, data.points.relevance)
    )
    allowed = torch.from_numpy(data.catalogue.labels.rows(model.labels.items.ids) >= 0)
    device = model.labels.alive.device
    ranked = model.rank(data.query(points), HITS_PER_POINT, exclude, allowed.to(device))
    exists = ranked.labels >= 0
    is_relevant = marked(ranked.labels, relevant) & exists
    described_parts = zip(model.part_descriptions.items(), ranked.parts.unbind(-1), strict=True)
    rows: Rows = [
        [name, description, _mean(parts, is_relevant), _mean(parts, exists & ~is_relevant)]
        for (name, description), parts in described_parts
    ]
    return Section(
        "signals",
        "Contribution of each signal",
        [
            Text(
                f"The score of a label is the sum of these contributions. Means over the first "
                f"{HITS_PER_POINT} hits of {len(points)} random datapoints: a useful signal adds more to "
                "relevant hits than to others."
            ),
            Table("signals", ["signal", "measures", "relevant hits", "other hits"], rows, text_columns=2),
        ],
    )


def _mean(parts: torch.Tensor, chosen: torch.Tensor) -> float:
    return float(parts[chosen].mean()) if bool(chosen.any()) else 0.0
